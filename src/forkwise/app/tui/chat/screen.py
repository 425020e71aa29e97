"""ChatScreen: the face of a session. It shows what the session tells and hands on what a person writes; what is asked
for on a screen of its own is in `commands`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.worker import WorkType

from forkwise.app.chat.command import COMMANDS, Line, UsageError, parse
from forkwise.app.chat.events import ApprovalAsked
from forkwise.app.chat.failing import told
from forkwise.app.tui.chat.approval import ApprovalScreen
from forkwise.app.tui.chat.commands import opener_of
from forkwise.app.tui.chat.listening import ListeningScreen
from forkwise.app.tui.chat.overview import Overview
from forkwise.app.tui.chat.prompt import Prompt
from forkwise.app.tui.chat.tabs import TabStrip
from forkwise.app.tui.question import Question

if TYPE_CHECKING:
    from forkwise.app.chat.session import Session

__all__ = ["ChatScreen"]

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
            self.complain(told(error))

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
            self.complain(str(error))
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
            self.complain(f"{label} still runs: wait for it, or steer it with >>{label} …")
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
