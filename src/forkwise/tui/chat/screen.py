"""ChatScreen: the main screen of a chat.

It draws the events of a session and passes what the user types to the session. Commands that open a screen of their own
are in ``screen_commands``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, ClassVar

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
    ChatEvent,
    Copied,
    CostChanged,
    Ended,
    Failed,
    ForkAdopted,
    ForkLeft,
    ForkOpened,
    ForkResolved,
    Judged,
    MergeRefused,
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
from forkwise.chat.render import format_merge
from forkwise.chat.slash_commands import COMMANDS, Line, UsageError, parse
from forkwise.display.output import printable
from forkwise.tui.chat.approval import ApprovalLine, ApprovalScreen, format_request
from forkwise.tui.chat.panels import NoticeLine, Overview, Stage, StatusLine, TabStrip
from forkwise.tui.chat.prompt import Prompt
from forkwise.tui.chat.screen_commands import find_opener
from forkwise.tui.decide import ask_about_executables
from forkwise.tui.diff_view import DiffScreen
from forkwise.tui.tool_call import format_call, format_result
from forkwise.tui.transcript_entry import build_entry
from forkwise.tui.widgets import PageScreen, QuestionScreen

if TYPE_CHECKING:
    from forkwise.chat.session import Session

__all__ = [
    "ChatScreen",
    "show_event",
]


def show_event(stage: Stage, event: ChatEvent) -> None:
    """Draw an event on the stage, if it is of a kind that is drawn there."""
    match event:
        case TextDelta(text):
            stage.talk.stream("text", text)
        case BranchText(branch, text):
            stage.find_transcript(branch).stream("text", text)
        case ThoughtDelta(text, branch):
            stage.find_transcript(branch).stream("thought", text)
        case ToolCalled(_, tool, arguments, branch):
            stage.find_transcript(branch).add_call(format_call(tool, arguments))
        case ToolReturned(_, _, result, is_error, branch):
            stage.find_transcript(branch).add("error" if is_error else "result", format_result(result))
        case TurnBegan(prompt, branch):
            stage.find_transcript(branch).add("user", prompt)
        case TurnEnded(state, _, _, error):
            stage.talk.end_stream()
            if state != "done":
                stage.talk.add("error" if error else "note", error or state)
        case BranchChanged(branch=name, state=state, turn=turn, error=error):
            panel = stage.panels.get(name)
            if panel is not None:
                panel.state, panel.turn, panel.error = state, turn, error or ""
                if state != "running":
                    panel.transcript.end_stream()
        case ForkResolved():
            stage.talk.add("note", "\n".join(format_merge(event)))
        case MergeUndone(fork):
            stage.talk.add("note", f"Undone: the merge of fork {fork}, its files and its messages")
    stage.schedule_flush()


_POLL_S = 1.0  # seconds between two readings of the branches' costs, which no event reports
_HINT = "say something · /help lists the commands"


class ChatScreen(Screen[None]):
    """A chat: tabs, transcript, pending approval, prompt and status.

    ``session`` is None until it has started. ``verdict`` is the last verdict on the open fork, ``left`` the fork that
    stays open for the next chat, ``judging`` the task that waits for a judge.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "escape", "stop"),
        Binding("ctrl+y", "approve(True)", "approve", priority=True),
        Binding("ctrl+n", "approve(False)", "deny", priority=True),
        Binding("ctrl+o", "show_request", "details", priority=True),
        Binding("pageup", "page(-1)", "up", priority=True),
        Binding("pagedown", "page(1)", "down", priority=True),
    ]

    class SessionEnded(Message):
        """The session has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.session: Session | None = None
        self.stage = Stage()
        self.status = StatusLine()
        self.approval = ApprovalLine()
        self.notices = NoticeLine()
        self.prompt = Prompt(self._completions, placeholder=_HINT)
        self.verdict: Judged | None = None
        self.pending: dict[str, ApprovalAsked] = {}
        self.left: ForkLeft | None = None
        self.judging: asyncio.Task[None] | None = None
        self._early_events: list[ChatEvent] = []  # of branches whose fork has not been reported yet
        self._early_lines: list[str] = []  # sent before the session had started

    def compose(self) -> ComposeResult:
        """Yield the stage, the pending approval, the notices, the prompt and the status."""
        yield self.stage
        yield self.approval
        yield self.notices
        yield self.prompt
        yield self.status

    def on_mount(self) -> None:
        """Focus the prompt, and poll the costs of branches."""
        self.set_interval(_POLL_S, self._update_costs)
        self.prompt.focus()

    def begin(self, session: Session) -> None:
        """Show the stored messages of a session that has started, and submit the lines sent before."""
        self.session = session
        self.status.cost = session.cost
        self._reload_talk()
        self._fill_panels(self.stage.panels, is_new=False)
        self._count_checkpoints()
        self._show_model()
        self.show_status()
        lines, self._early_lines = self._early_lines, []
        for text in lines:
            self._handle(text)

    def _show_model(self) -> None:
        """Show the model, and on the first screen also the workspace and its forks."""
        session = self.session
        if session is None:
            return
        services = session.services
        self.status.model, self.status.has_tools = session.model_name, services.has_tools
        notes = ["free"] if services.is_free else []
        notes += [] if services.has_tools else ["no tools: it only answers"]
        self.stage.welcome.show(
            {
                "workspace": str(session.workspace.path),
                "model": session.model_name + (f" ({', '.join(notes)})" if notes else ""),
                "fork": "none is open; /fork opens one" if session.fork is None else f"{session.fork} is open",
            }
        )

    def show_notice(self, text: str, severity: str, timeout_s: float) -> None:
        """Show a notice above the prompt."""
        if self.notices.is_attached:
            self.notices.show(text, severity, timeout_s)

    def show_error(self, text: str) -> None:
        """Show an error as a notification."""
        self.app.notify(printable(text), severity="error", timeout=10, markup=False)

    def run_reported(self, work: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Run ``work`` in the background and show its error, if it raises one."""
        reported: WorkType[None] = partial(self._run_reported, work, *arguments)
        self.run_worker(reported, group="work")

    async def _run_reported(self, work: Callable[..., Awaitable[object]], *arguments: object) -> None:
        try:
            await work(*arguments)
        except Exception as error:  # noqa: BLE001 - any error of a model or a tool is shown, and the chat continues
            self.show_error(error_text(error))

    # Events

    def show_event(self, event: ChatEvent) -> None:
        """Show an event of the session."""
        branch = getattr(event, "branch", None)
        if branch is not None and self.stage.find_panel(branch) is None:
            self._early_events.append(event)
            return
        if isinstance(event, TextDelta | BranchText | ThoughtDelta):
            show_event(self.stage, event)
            return
        self._apply(event)
        show_event(self.stage, event)
        self.show_approvals()
        self.show_status()

    def _apply(self, event: ChatEvent) -> None:
        match event:
            case Ready(model=model):
                self.status.model, self.status.activity = model, ""
            case TurnBegan(branch=None):
                self.status.activity = "● answering"
                self._early_events.clear()
            case TurnEnded():
                self.status.activity = ""
                self._count_checkpoints()
            case CostChanged():
                self.status.cost = event
            case ForkOpened(branches=labels) | ForkAdopted(branches=labels):
                self._open_fork(labels)
            case ForkResolved() | MergeUndone() | Moved():
                self._show_new_position(is_resolved=isinstance(event, ForkResolved))
            case Judged():
                self.verdict = event
            case ApprovalAsked(id=name):
                self.pending[name] = event
                if self.app.screen is not self:
                    hint = f"{format_request(event)}\nanswer in the chat with ctrl+y or ctrl+n"
                    self.app.notify(hint, severity="warning", markup=False)
            case ApprovalAnswered(id=name):
                self.pending.pop(name, None)
            case _:
                self._notify(event)

    def _notify(self, event: ChatEvent) -> None:
        match event:
            case Notice(text):
                self.app.notify(printable(text), timeout=6, markup=False)
            case Failed(text):
                self.show_error(text)
            case MergeRefused(found, retry):
                self.run_reported(self._ask, ask_about_executables(found), retry)
            case SettingsChanged(text):
                self.stage.talk.add("note", text)
                self._show_model()
            case Shown(title, text):
                is_diff = text.startswith(("diff ", "--- "))
                self.app.push_screen(DiffScreen(title, text) if is_diff else PageScreen(title, text))
            case Copied(text):
                self.app.copy_to_clipboard(text)
                self.app.notify("copied the last answer")
            case ForkLeft():
                self.left = event
            case Ended():
                self.status.activity = "leaving …"
                self.post_message(self.SessionEnded())

    # Forks

    def _open_fork(self, labels: tuple[str, ...]) -> None:
        added = [label for label in labels if label not in self.stage.panels]
        self.stage.open_fork(labels)
        self._fill_panels(added, is_new=True)
        self._update_costs()
        early, self._early_events = self._early_events, []
        for event in early:
            self.show_event(event)

    def _fill_panels(self, labels: Collection[str], *, is_new: bool) -> None:
        """Show the task of new branches, or all stored messages of branches that ran before."""
        if self.session is None:
            return
        for view in self.session.branches():
            if view.label in labels:
                transcript = self.stage.panels[view.label].transcript
                if is_new:
                    transcript.add("user", view.steer)
                else:
                    said = self.session.said(view.label)
                    transcript.load(build_entry(one.who, one.text, one.name) for one in said)

    def _show_new_position(self, *, is_resolved: bool) -> None:
        """Show the conversation again, after its fork was resolved or another position was chosen."""
        self.verdict = None
        self._early_events.clear()
        if is_resolved:
            self.stage.close_fork()
        self._reload_talk()
        self._count_checkpoints()
        self.status.cost = self.status.cost if self.session is None else self.session.cost

    def _reload_talk(self) -> None:
        if self.session is not None:
            self.stage.talk.load(build_entry(one.who, one.text, one.name) for one in self.session.said())
            self.stage.schedule_flush()

    # Status

    def _update_costs(self) -> None:
        if self.session is not None and self.stage.is_forked:
            for view in self.session.branches():
                panel = self.stage.panels.get(view.label)
                if panel is not None and panel.usd != view.usd:
                    panel.usd = view.usd
                    self.stage.schedule_flush()

    def _count_checkpoints(self) -> None:
        if self.session is not None:
            count: WorkType[None] = partial(self._read_checkpoints, self.session)
            self.run_worker(count, group="count", exclusive=True)

    async def _read_checkpoints(self, session: Session) -> None:
        store = session.services.deps.checkpoint_store
        if store is not None:
            self.status.checkpoints = await store.count()
            self.show_status()

    def show_approvals(self) -> None:
        """Show pending tool calls in the approval line and on the tabs of their branches."""
        waiting = list(self.pending.values())
        for panel in self.stage.panels.values():
            own = [e for e in waiting if e.branch is not None and self.stage.find_panel(e.branch) is panel]
            panel.pending_approvals = len(own)
        self.approval.show_pending(waiting, self.stage.strip.current)

    def show_status(self) -> None:
        """Update the status line."""
        self.status.states = [panel.shown_state for panel in self.stage.panels.values()]
        self.status.show_state()

    # Prompt

    def _completions(self) -> list[str]:
        labels = list(self.stage.panels)
        commands = [f"/{command.name}" for command in COMMANDS]
        return [*commands, *(f"/merge {label}" for label in labels), *(f">>{label} " for label in labels)]

    def on_prompt_sent(self, event: Prompt.Sent) -> None:
        """Handle a line, or remember it until the session has started."""
        if self.session is None:
            self._early_lines.append(event.text)
            self.app.notify("still starting: the line is sent afterwards")
        else:
            self._handle(event.text)

    def _handle(self, text: str) -> None:
        try:
            line = parse(text)
        except UsageError as error:
            self.show_error(str(error))
            self.prompt.restore(text)
            return
        if line is None:
            return
        if line.command is not None and line.command.name == "fork" and not self.stage.is_forked:
            self._early_events.clear()
        branch = self.stage.current
        opener = find_opener(line)
        if line.kind == "prompt" and branch is not None:
            self._prompt_branch(branch.label, branch.state, line.rest)
        elif opener is not None and self._can_open(line):
            self.run_reported(opener, self)
        else:
            self.submit(text)

    def submit(self, text: str) -> None:
        """Submit a line to the session."""
        if self.session is not None:
            self.run_reported(self.session.submit, text)

    def _prompt_branch(self, label: str, state: str, text: str) -> None:
        if state == "running":
            self.show_error(f"{label} is still running: wait for it, or steer it with >>{label} …")
            self.prompt.restore(text)
        else:
            self.submit(f">>{label} {text}")

    def _can_open(self, line: Line) -> bool:
        """Return whether a command's screen can be opened now; if not, the session refuses the line and says why."""
        assert line.command is not None
        session = self.session
        if session is None or (session.fork is not None and not line.command.during_fork):
            return False
        return line.command.during_turn or not session.is_busy

    # Tabs

    def on_prompt_tab_requested(self, event: Prompt.TabRequested) -> None:
        """Select the next or the previous tab."""
        if self.stage.is_forked:
            self.choose(self.stage.strip.find_neighbour(event.step))

    def on_tab_strip_tab_clicked(self, event: TabStrip.TabClicked) -> None:
        """Select the tab that was clicked."""
        self.choose(event.name)

    def on_overview_branch_clicked(self, event: Overview.BranchClicked) -> None:
        """Select the tab of the branch that was clicked."""
        self.choose(event.name)

    def choose(self, name: str) -> None:
        """Show a branch, or the overview."""
        self.stage.choose(name)
        self.show_approvals()
        self.prompt.focus()

    def action_page(self, step: int) -> None:
        """Scroll the transcript by a page."""
        transcript = self.stage.current_transcript
        transcript.scroll_relative(y=step * max(transcript.size.height - 1, 1), animate=False, force=True)

    # Stopping and picking

    def action_escape(self) -> None:
        """Stop the turn or the judge; else ask whether to terminate the branch of this tab, or to abort the fork."""
        if self.session is None or self.session.interrupt():
            return
        branch = self.stage.current
        if self.judging is not None:
            self.judging.cancel()
        elif branch is not None and branch.state == "running":
            self.run_reported(self._ask, f"terminate {branch.label}?", f"/abort {branch.label}")
        elif branch is not None:
            self.app.notify(f"{branch.label} has ended; /merge resolves the fork", markup=False)
        elif self.stage.is_forked:
            self.run_reported(self._ask, "abort the entire fork?", "/abort")

    def on_prompt_empty_sent(self, _: Prompt.EmptySent) -> None:
        """Offer to keep the branch of this tab when enter is pressed on an empty line."""
        branch = self.stage.current
        if branch is not None:
            self.run_reported(self._ask, f"keep {branch.label} and drop the others?", f"/merge {branch.label}")

    async def _ask(self, question: str | QuestionScreen, line: str) -> None:
        """Ask a question with the answers yes and no; submit ``line`` if the user says yes."""
        screen = QuestionScreen(question) if isinstance(question, str) else question
        if await self.app.push_screen_wait(screen) and self.session is not None:
            await self.session.submit(line)

    # Approvals

    def action_approve(self, is_approved: bool) -> None:
        """Approve or deny the tool call in the approval line."""
        if self.approval.event is not None:
            self._answer(self.approval.event, is_approved)

    def _answer(self, event: ApprovalAsked, is_approved: bool) -> None:
        if self.session is not None and event.id in self.pending:
            (self.session.approve if is_approved else self.session.deny)(event.id)

    def action_show_request(self) -> None:
        """Show the tool call in the approval line with all of its arguments."""
        if self.approval.event is not None:
            self.run_reported(self._show_request, self.approval.event)

    async def _show_request(self, event: ApprovalAsked) -> None:
        answer = await self.app.push_screen_wait(ApprovalScreen(event))
        if answer is not None:
            self._answer(event, answer)
