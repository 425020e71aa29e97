"""ChatScreen: the face of a session. It shows what the session tells and hands on what a person writes; what is asked
for on a screen of its own is in `commands`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.worker import WorkType

from forkwise.chat.events import (
    ApprovalAnswered,
    ApprovalAsked,
    BranchChanged,
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
    ToolCalled,
    ToolReturned,
    TurnBegan,
    TurnEnded,
    error_text,
)
from forkwise.chat.slash_commands import COMMANDS, Line, UsageError, parse
from forkwise.display.output import printable
from forkwise.tui.chat.approval import ApprovalLine, ApprovalScreen, asked
from forkwise.tui.chat.panels import Overview, Stage, StatusLine, TabStrip, short
from forkwise.tui.chat.prompt import Prompt
from forkwise.tui.chat.screen_commands import opener_of
from forkwise.tui.chat.transcript import Transcript
from forkwise.tui.diff_view import DiffScreen
from forkwise.tui.widgets import PageScreen, Question

if TYPE_CHECKING:
    from forkwise.chat.session import Session

__all__ = [
    "ChatScreen",
    "ListeningScreen",
    "call_text",
    "merge_text",
    "replay",
    "show_event",
]


_WIDE = 160


def show_event(stage: Stage, event: Event) -> None:
    """Put an event on the stage, if it is one that is seen there."""
    match event:
        case TextDelta(text):
            stage.talk.feed("text", text)
        case BranchText(branch, text):
            stage.place(branch).feed("text", text)
        case ThoughtDelta(text, branch):
            stage.place(branch).feed("thought", text)
        case ToolCalled(_, tool, arguments, branch):
            stage.place(branch).say("tool", call_text(tool, arguments))
        case ToolReturned(_, _, result, is_error, branch):
            stage.place(branch).say("error" if is_error else "result", short(result, _WIDE))
        case TurnBegan(prompt, branch):
            stage.place(branch).say("user", prompt)
        case TurnEnded(state, _, _, error):
            stage.talk.end()
            if state != "done":
                stage.talk.say("error" if error else "note", error or state)
        case BranchChanged(branch=name, state=state, turn=turn, error=error):
            panel = stage.panels.get(name)
            if panel is not None:
                panel.state, panel.turn, panel.error = state, turn, error or ""
                if state != "running":
                    panel.transcript.end()
        case ForkResolved():
            stage.talk.say("note", merge_text(event))
        case MergeUndone(fork):
            stage.talk.say("note", f"Undone: the merge of fork {fork}, its files and what was said")
    stage.changed()


def call_text(tool: str, arguments: str) -> str:
    """A tool call on one line.

    >>> call_text("write_file", '{"path": "src/store.py", "content": "..."}')
    'write_file src/store.py ...'
    """
    try:
        told = json.loads(arguments)
    except ValueError:
        told = arguments
    values = told.values() if isinstance(told, dict) else [told]
    return short(" ".join([tool, *(value if isinstance(value, str) else json.dumps(value) for value in values)]), _WIDE)


def merge_text(event: ForkResolved) -> str:
    """What became of a fork.

    >>> merge_text(ForkResolved("f1", "pick", ("whimsical",), ("cat.md",)))
    'Merged: kept branch whimsical · 1 file'
    """
    if event.how == "abort":
        return "The fork was aborted: nothing of it is kept"
    count = len(event.paths) + len(event.deleted)
    kept = f"branch{'' if len(event.winners) == 1 else 'es'} {', '.join(event.winners)}"
    lines = [f"Merged: kept {kept} · {count} file{'' if count == 1 else 's'}"]
    lines += [f"changed meanwhile, and written over: {path}" for path in event.conflicts]
    lines += [f"not written: {error}" for error in event.errors]
    return "\n".join(lines)


def replay(transcript: Transcript, told: Iterable[tuple[str, str, str]]) -> None:
    """Write what was said before, by who said it, what, and the tool that was used."""
    for who, text, name in told:
        if who == "call":
            transcript.say("tool", call_text(name, text))
        elif who == "result":
            transcript.say("result", short(text, _WIDE))
        else:
            transcript.say("user" if who == "user" else "text", text)


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

    def show_error(self, text: str) -> None:
        """Say that something did not happen."""
        self.app.notify(printable(text), severity="error", timeout=10, markup=False)

    # What happens

    def show_event(self, event: Event) -> None:
        """Show what the session tells."""
        branch = getattr(event, "branch", None)
        if branch is not None and self.stage.branch(branch) is None:
            self._early.append(event)
            return
        if isinstance(event, TextDelta | BranchText | ThoughtDelta):
            show_event(self.stage, event)
            return
        self._take(event)
        show_event(self.stage, event)
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
                self.show_error(text)
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
            self.show_event(event)

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
                    replay(transcript, ((one.who, one.text, one.name) for one in self.session.said(view.label)))

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
            replay(self.stage.talk, ((one.who, one.text, one.name) for one in self.session.said()))
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


_HINT = "say something · /help lists what else there is"


class ChatScreen(ListeningScreen):
    """A chat: tabs, what is said, what is asked, the prompt, the status. ``judging`` is a judge that is waited for."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "escape", "stop"),
        Binding("ctrl+y", "approve(True)", "approve", priority=True),
        Binding("ctrl+n", "approve(False)", "deny", priority=True),
        Binding("ctrl+o", "look", "all of it", priority=True),
        Binding("pageup", "page(-1)", "up", priority=True),
        Binding("pagedown", "page(1)", "down", priority=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.prompt = Prompt(self._words, placeholder=_HINT)
        self.judging: asyncio.Task[None] | None = None
        self._written: list[str] = []

    def compose(self) -> ComposeResult:
        """The whole of it."""
        yield self.stage
        yield self.approval
        yield self.prompt
        yield self.status

    def on_mount(self) -> None:
        """Write at once."""
        super().on_mount()
        self.prompt.focus()

    def begin(self, session: Session) -> None:
        """The session has started: what was written meanwhile is done."""
        super().begin(session)
        written, self._written = self._written, []
        for text in written:
            self._do(text)

    def attempt_to(self, work: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Do something beside the screen; what goes wrong is told."""
        told_of: WorkType[None] = partial(self._told, work, *arguments)
        self.run_worker(told_of, group="work")

    async def _told(self, work: Callable[..., Awaitable[object]], *arguments: object) -> None:
        try:
            await work(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever a model or a tool raises is told, and the chat goes on
            self.show_error(error_text(error))

    # Writing

    def _words(self) -> list[str]:
        labels = list(self.stage.panels)
        commands = [f"/{command.name}" for command in COMMANDS]
        return [*commands, *(f"/merge {label}" for label in labels), *(f">>{label} " for label in labels)]

    def on_prompt_sent(self, event: Prompt.Sent) -> None:
        """Do what was written, or remember it until the session has started."""
        if self.session is None:
            self._written.append(event.text)
            self.app.notify("still starting: it is done then")
        else:
            self._do(event.text)

    def _do(self, text: str) -> None:
        try:
            line = parse(text)
        except UsageError as error:
            self.show_error(str(error))
            return
        if line is None:
            return
        if line.command is not None and line.command.name == "fork" and not self.stage.is_forked:
            self.forget_early()
        branch = self.stage.current
        opener = opener_of(line)
        if line.kind == "prompt" and branch is not None:
            self._speak(branch.label, branch.state, line.rest)
        elif opener is not None and self._may(line):
            self.attempt_to(opener, self)
        else:
            self.submit(text)

    def submit(self, text: str) -> None:
        """Have the session do what a line asks for."""
        if self.session is not None:
            self.attempt_to(self.session.submit, text)

    def _speak(self, label: str, state: str, text: str) -> None:
        if state == "running":
            self.show_error(f"{label} still runs: wait for it, or steer it with >>{label} …")
        else:
            self.submit(f">>{label} {text}")

    def _may(self, line: Line) -> bool:
        """Whether a screen can be opened now; what cannot be done now the session refuses, and says why."""
        assert line.command is not None
        session = self.session
        if session is None or (session.fork is not None and not line.command.during_fork):
            return False
        return line.command.during_turn or not session.is_busy

    # Tabs

    def on_prompt_walked(self, event: Prompt.Walked) -> None:
        """Go to the next tab, or to the one before."""
        if self.stage.is_forked:
            self.choose(self.stage.strip.beside(event.step))

    def on_tab_strip_chosen(self, event: TabStrip.Chosen) -> None:
        """Go to the tab that was clicked."""
        self.choose(event.name)

    def on_overview_chosen(self, event: Overview.Chosen) -> None:
        """Go to the branch that was clicked."""
        self.choose(event.name)

    def choose(self, name: str) -> None:
        """Show a branch, or all of them."""
        self.stage.choose(name)
        self.show_approvals()
        self.prompt.focus()

    def action_page(self, step: int) -> None:
        """Scroll what is shown."""
        here = self.stage.current
        shown = self.stage.talk if here is None else here.transcript
        shown.scroll_relative(y=step * max(shown.size.height - 1, 1), animate=False, force=True)

    # Stopping

    def action_escape(self) -> None:
        """End the turn under way, or the wait for a judge; on a tab, ask whether its branch is to end, on the overview
        whether all are."""
        if self.session is None or self.session.interrupt():
            return
        branch = self.stage.current
        if self.judging is not None:
            self.judging.cancel()
        elif branch is not None and branch.state == "running":
            self.attempt_to(self._ask, f"terminate {branch.label}?", f"/abort {branch.label}")
        elif branch is not None:
            self.app.notify(f"{branch.label} is over; /merge decides the fork", markup=False)
        elif self.stage.is_forked:
            self.attempt_to(self._ask, "abort the entire fork?", "/abort")

    def on_prompt_kept(self, _: Prompt.Kept) -> None:
        """Enter on an empty line, on the tab of a branch, keeps that branch."""
        branch = self.stage.current
        if branch is not None:
            self.attempt_to(self._ask, f"keep {branch.label} and drop the others?", f"/merge {branch.label}")

    async def _ask(self, question: str, line: str) -> None:
        if await self.app.push_screen_wait(Question(question)) and self.session is not None:
            await self.session.submit(line)

    # Approving

    def action_approve(self, is_approved: bool) -> None:
        """Answer the question that is shown."""
        if self.approval.event is not None:
            self._answer(self.approval.event, is_approved)

    def _answer(self, event: ApprovalAsked, is_approved: bool) -> None:
        if self.session is not None and event.id in self.pending:
            (self.session.approve if is_approved else self.session.deny)(event.id)

    def action_look(self) -> None:
        """Show all that is asked."""
        if self.approval.event is not None:
            self.attempt_to(self._look_at, self.approval.event)

    async def _look_at(self, event: ApprovalAsked) -> None:
        answer = await self.app.push_screen_wait(ApprovalScreen(event))
        if answer is not None:
            self._answer(event, answer)
