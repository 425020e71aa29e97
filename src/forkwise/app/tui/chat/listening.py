"""Listening: how a screen hears a session: each event changes what it belongs to, and what is drawn follows soon."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from textual.message import Message
from textual.screen import Screen
from textual.worker import WorkType

from forkwise.app.chat.events import (
    ApprovalAnswered,
    ApprovalAsked,
    BranchText,
    Copied,
    CostChanged,
    Ended,
    Event,
    Failed,
    ForkAdopted,
    ForkLeft,
    ForkOpened,
    ForkResolved,
    Judged,
    MergeUndone,
    Moved,
    Notice,
    Ready,
    SettingsChanged,
    Shown,
    TextDelta,
    ThoughtDelta,
    TurnBegan,
    TurnEnded,
)
from forkwise.app.cli.output import printable
from forkwise.app.tui.chat.approval import ApprovalLine, asked
from forkwise.app.tui.chat.hearing import hear, retell
from forkwise.app.tui.chat.pages import PageScreen
from forkwise.app.tui.chat.stage import Stage
from forkwise.app.tui.chat.status import StatusLine
from forkwise.app.tui.diff import DiffScreen

if TYPE_CHECKING:
    from forkwise.app.chat.session import Session

__all__ = ["ListeningScreen"]

_LOOK = 1.0  # seconds between two looks at what branches cost


class ListeningScreen(Screen[None]):
    """A screen that shows a session. ``session`` is None until that has started; ``verdict`` is what judges said last
    of the fork that is open, ``left`` the fork that is left open for the next chat."""

    class Over(Message):
        """The session has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.session: Session | None = None
        self.stage = Stage()
        self.status = StatusLine()
        self.approval = ApprovalLine()
        self.verdict: Judged | None = None
        self.pending: dict[str, ApprovalAsked] = {}
        self.left: ForkLeft | None = None
        self._early: list[Event] = []  # of branches of which nobody has told yet

    def on_mount(self) -> None:
        """Look now and then at what is not told."""
        self.set_interval(_LOOK, self._look)

    def begin(self, session: Session) -> None:
        """The session has started: show what was said before."""
        self.session = session
        self.status.cost = session.cost
        self._retell()
        self._begin_panels(self.stage.panels, is_new=False)
        self._count_checkpoints()
        self.tell_status()

    def complain(self, text: str) -> None:
        """Say that something did not happen."""
        self.app.notify(printable(text), severity="error", timeout=10, markup=False)

    # What happens

    def hear(self, event: Event) -> None:
        """Show what the session tells."""
        branch = getattr(event, "branch", None)
        if branch is not None and self.stage.branch(branch) is None:
            self._early.append(event)
            return
        if isinstance(event, TextDelta | BranchText | ThoughtDelta):
            hear(self.stage, event)
            return
        self._take(event)
        hear(self.stage, event)
        self.show_approvals()
        self.tell_status()

    def _take(self, event: Event) -> None:
        match event:
            case Ready(model=model):
                self.status.model, self.status.doing = model, ""
            case TurnBegan(branch=None):
                self.status.doing = "● answering"
                self.forget_early()
            case TurnEnded():
                self.status.doing = ""
                self._count_checkpoints()
            case CostChanged():
                self.status.cost = event
            case ForkOpened(branches=labels) | ForkAdopted(branches=labels):
                self._open_fork(labels)
            case ForkResolved() | MergeUndone() | Moved():
                self._settle(is_over=isinstance(event, ForkResolved))
            case Judged():
                self.verdict = event
            case ApprovalAsked(id=name):
                self.pending[name] = event
                if self.app.screen is not self:
                    self.app.notify(f"{asked(event)}\nin the chat: ctrl+y or ctrl+n", severity="warning", markup=False)
            case ApprovalAnswered(id=name):
                self.pending.pop(name, None)
            case _:
                self._tell(event)

    def _tell(self, event: Event) -> None:
        match event:
            case Notice(text):
                self.app.notify(printable(text), timeout=6, markup=False)
            case Failed(text):
                self.complain(text)
            case SettingsChanged(text):
                self.stage.talk.say("note", text)
                self.status.model = self.status.model if self.session is None else self.session.model_name
            case Shown(title, text):
                is_diff = text.startswith(("diff ", "--- "))
                self.app.push_screen(DiffScreen(title, text) if is_diff else PageScreen(title, text))
            case Copied(text):
                self.app.copy_to_clipboard(text)
                self.app.notify("copied the last answer")
            case ForkLeft():
                self.left = event
            case Ended():
                self.status.doing = "leaving …"
                self.post_message(self.Over())

    # Forks

    def forget_early(self) -> None:
        """What branches of the last fork still said is of no fork that comes."""
        self._early.clear()

    def _open_fork(self, labels: tuple[str, ...]) -> None:
        added = [label for label in labels if label not in self.stage.panels]
        self.stage.open_fork(labels)
        self._begin_panels(added, is_new=True)
        early, self._early = self._early, []
        for event in early:
            self.hear(event)

    def _begin_panels(self, labels: Any, *, is_new: bool) -> None:
        """Show what branches were told, or all that was said in them before somebody looked."""
        if self.session is None:
            return
        for view in self.session.branches():
            if view.label in labels:
                transcript = self.stage.panels[view.label].transcript
                if is_new:
                    transcript.say("user", view.steer)
                else:
                    retell(transcript, ((one.who, one.text, one.name) for one in self.session.said(view.label)))

    def _settle(self, *, is_over: bool) -> None:
        """A fork is over, or the conversation goes on elsewhere: show the one that there is now."""
        self.verdict = None
        self.forget_early()
        if is_over:
            self.stage.close_fork()
        self._retell()
        self._count_checkpoints()
        self.status.cost = self.status.cost if self.session is None else self.session.cost

    def _retell(self) -> None:
        if self.session is not None:
            self.stage.talk.begin()
            retell(self.stage.talk, ((one.who, one.text, one.name) for one in self.session.said()))
            self.stage.changed()

    # What is drawn

    def _look(self) -> None:
        if self.session is not None and self.stage.is_forked:
            for view in self.session.branches():
                panel = self.stage.panels.get(view.label)
                if panel is not None and panel.usd != view.usd:
                    panel.usd = view.usd
                    self.stage.changed()

    def _count_checkpoints(self) -> None:
        if self.session is not None:
            count: WorkType[None] = partial(self._counted, self.session)
            self.run_worker(count, group="count", exclusive=True)

    async def _counted(self, session: Session) -> None:
        store = session.desk.deps.checkpoint_store
        if store is not None:
            self.status.checkpoints = await store.count()
            self.tell_status()

    def show_approvals(self) -> None:
        """Show what is asked: in the line, and in the chips of the branches that ask."""
        waiting = list(self.pending.values())
        for panel in self.stage.panels.values():
            panel.asks = sum(event.branch is not None and self.stage.branch(event.branch) is panel for event in waiting)
        self.approval.show(waiting, self.stage.strip.current)

    def tell_status(self) -> None:
        """Say in the last line how things are."""
        self.status.states = [panel.shown_state for panel in self.stage.panels.values()]
        self.status.tell()
