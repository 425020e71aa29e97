"""Session: a chat as a program has it: an agent in a workspace, its conversation, its forks, and all that can be asked
for. A face listens to its events, calls its methods, and decides nothing.

It loads an agent's libraries; who wants a first frame before that asks `opening.open_session` for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from forkwise.chat.events import (
    ApprovalAsked,
    CostChanged,
    Ended,
    Failed,
    Feed,
    Listener,
    Notice,
    Ready,
    SettingsChanged,
    TurnEnded,
    error_text,
)
from forkwise.chat.forks import BranchView, Forks
from forkwise.chat.interpreter import BLOCKED, Interpreter, When
from forkwise.chat.merges import Choices, Merges
from forkwise.chat.services import ChatServices, open_services
from forkwise.chat.settings import BranchRow, ForkForm, Settings, blank_form, save_settings
from forkwise.chat.storage import FORK, LOADING, MERGED, OVER, UNDOING, StoredChat
from forkwise.chat.turns import Navigation, Turns
from forkwise.concurrency import run_in_thread
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.node import Node
from forkwise.conversation.store import StoredConversation
from forkwise.errors import BranchingError, ForkNotFoundError, LedgerError
from forkwise.files.workspace import Workspace
from forkwise.fork.combine import Prepared
from forkwise.ledger.records import ForkRecord
from forkwise.live.checkpoints import Checkpoint
from forkwise.live.fork_plan import ForkPlan
from forkwise.live.judging.verdict import ResolveOutcome
from forkwise.live.resume import list_unfinished
from forkwise.live.values import MergeResult

__all__ = [
    "BranchRow",
    "BranchView",
    "ForkForm",
    "Said",
    "Session",
    "recover",
    "said",
]


@dataclass(frozen=True, slots=True)
class Said:
    """Something that was said, or done. ``name`` is the tool's, where it is one's."""

    who: Literal["user", "agent", "call", "result"]
    text: str
    name: str = ""


def said(messages: Iterable[ModelMessage]) -> list[Said]:
    """What messages say, for people."""
    found = []
    for message in messages:
        for part in message.parts:
            match part:
                case UserPromptPart(content=str(text)):
                    found.append(Said("user", text))
                case UserPromptPart(content=several):
                    found.append(Said("user", " ".join(one for one in several if isinstance(one, str))))
                case TextPart(content=text) if text:
                    found.append(Said("agent", text))
                case ToolCallPart():
                    found.append(Said("call", part.args_as_json_str(), part.tool_name))
                case ToolReturnPart():
                    found.append(Said("result", part.model_response_str(), part.tool_name))
                case RetryPromptPart() if isinstance(message, ModelRequest):
                    found.append(Said("result", part.model_response(), part.tool_name or ""))
    return found


async def recover(desk: ChatServices, forks: Forks, merges: Merges, moves: Navigation) -> None:
    """Finish what was begun, take over what is open, and tell of it."""
    kept = desk.kept
    for label in list(kept.conversation.labels):
        if label.startswith(LOADING):
            await moves.finish_load(label.removeprefix(LOADING))
        elif label.startswith(UNDOING):
            await merges.finish_undo(label.removeprefix(UNDOING))
    if not kept.is_new:
        _claim(kept)
    for fork in list(kept.forks()):
        if kept.marked(MERGED, fork) is None and kept.marked(OVER, fork) is None:
            try:
                await _settle(desk, forks, merges, fork)
            except (BranchingError, RuntimeError, OSError) as error:
                desk.feed.publish(Failed(f"fork {fork} cannot be gone on with: {error_text(error)}"))


async def _settle(desk: ChatServices, forks: Forks, merges: Merges, fork: str) -> None:
    """See what became of a fork of which the conversation does not know it."""
    kept = desk.kept
    try:
        record = kept.ledger.fork(fork)
    except ForkNotFoundError:
        kept.mark(OVER, fork, kept.here)
        kept.save()
        return
    if record.stored == "resolved" and record.commit is not None:
        if merges.find_lost(fork):
            desk.feed.publish(
                Notice(f"fork {fork} was merged when the chat was cut short; the conversation goes on there")
            )
            return
    elif record.id in {one.id for one in list_unfinished(kept.ledger)} and not forks.is_open:
        await forks.resume(record.id)
        if kept.ledger.fork(fork).is_over and merges.find_lost(fork):
            desk.feed.publish(Notice(f"fork {fork} was decided when the chat was cut short; it is merged now"))
        return
    elif not record.is_over:
        desk.feed.publish(Notice(f"fork {fork} of this conversation is {record.state}, and is left as it is"))
        return
    kept.mark(OVER, fork, kept.marked(FORK, fork) or kept.here)
    kept.save()


def _claim(kept: StoredChat) -> None:
    """Find a fork that was made here by a process that was killed before it could write that down."""
    known = {
        label.removeprefix(FORK)
        for record in kept.ledger.conversations.all()
        for label in record.labels
        if label.startswith(FORK)
    }
    own = [message.parts for message in kept.conversation.path()]
    for record in list_unfinished(kept.ledger) if own else ():
        if record.id not in known and _parent_parts(kept, record) == own:
            kept.mark(FORK, record.id, kept.here)
            kept.save()


def _parent_parts(kept: StoredChat, record: ForkRecord) -> list[object] | None:
    """What was said before a fork; None where that was not written down."""
    try:
        plan = ForkPlan.from_json(record.spec, record.id)
        talk = StoredConversation.load(kept.ledger.conversations, plan.conversation).conversation
    except LedgerError:
        return None
    return [message.parts for message in talk.path()]


class Session:
    """A chat. ``async with await Session.open(directory, model="local") as session: …``"""

    def __init__(self, desk: ChatServices) -> None:
        self.desk = desk
        self._turns = Turns(desk)
        self._forks = Forks(desk)
        self._merges = Merges(desk, self._forks)
        self._moves = Navigation(desk)
        self.choices = Choices(desk, self._forks, self._merges)
        self._interpreter = Interpreter(self)
        self._alone = asyncio.Lock()
        self._holder: asyncio.Task[Any] | None = None
        self._is_closed = False
        desk.showing.returned = self._tool_returned

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        model: str | None = None,
        conversation: str | None = None,
        is_new: bool = False,
        ask: Sequence[str] = (),
        listener: Listener | None = None,
    ) -> Session:
        """Open a chat in a directory: the conversation of that name, or the last one, or a new one. What an earlier
        chat left undone is done first, and told to the listener.

        Raises ChatModelError, SettingsError, ConversationError.
        """
        feed = Feed()
        if listener is not None:
            feed.subscribe(listener)
        desk = await run_in_thread(open_services, directory, model, conversation, is_new, tuple(ask), feed)
        try:
            session = cls(desk)
            if desk.kept.was_held:
                feed.publish(Notice("another chat has the last conversation of this workspace: this is a new one"))
            await session._start()
        except BaseException:
            desk.kept.close()
            raise
        return session

    async def _start(self) -> None:
        kept = self.desk.kept
        kept.save()
        here = kept.here
        self.desk.feed.publish(
            Ready(kept.id, str(self.desk.workspace.path), self.desk.model_name, kept.is_new, here.depth)
        )
        await recover(self.desk, self._forks, self._merges, self._moves)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the chat: a turn under way is interrupted, an open fork is kept for the next one; nothing runs on."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._turns.interrupt() and self._holder is not None and self._holder is not asyncio.current_task():
            self._holder.cancel()
        async with self._alone:
            await self._forks.leave()
        self.desk.kept.save()
        await self.desk.models.aclose()
        self.desk.feed.publish(Ended())
        self.desk.feed.close()
        self.desk.kept.close()

    @asynccontextmanager
    async def _alone_here(self) -> AsyncIterator[None]:
        """Where one thing is done at a time. Who still waits for that when the chat ends does nothing any more."""
        async with self._alone:
            if self._is_closed:
                raise RuntimeError("the chat is over")
            self._holder = asyncio.current_task()
            try:
                yield
            finally:
                self._holder = None

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Have somebody told of all that happens from now on; gives what ends that."""
        return self.desk.feed.subscribe(listener)

    # What there is

    @property
    def id(self) -> str:
        """The name of the conversation."""
        return self.desk.kept.id

    @property
    def model_name(self) -> str:
        """Which model answers."""
        return self.desk.model_name

    @property
    def workspace(self) -> Workspace:
        """Where the agent works."""
        return self.desk.workspace

    @property
    def conversation(self) -> Conversation:
        """All that was said; to be read."""
        return self.desk.kept.conversation

    @property
    def here(self) -> Node:
        """Where the conversation goes on."""
        return self.desk.kept.here

    @property
    def settings(self) -> Settings:
        """What the next fork is made with."""
        return self.desk.settings

    @property
    def is_busy(self) -> bool:
        """Whether a turn of the agent is under way."""
        return self._turns.is_under_way

    @property
    def is_closed(self) -> bool:
        """Whether the chat is over."""
        return self._is_closed

    @property
    def fork(self) -> str | None:
        """The id of the open fork, if one is."""
        coordinator = self._forks.coordinator
        return None if coordinator is None else coordinator.fork_id

    @property
    def last_merge(self) -> str | None:
        """The id of the fork that was merged last, if that can be taken back."""
        return self._merges.last

    @property
    def overruled(self) -> tuple[str, ...]:
        """The branches that judges did not choose, where one of them may still be taken."""
        return self._forks.overruled

    @property
    def last_answer(self) -> str:
        """What the agent said last, in words."""
        return self.desk.kept.last_answer

    @property
    def approvals(self) -> list[ApprovalAsked]:
        """The tool calls that wait for a person's word."""
        return self.desk.approvals.pending

    @property
    def cost(self) -> CostChanged:
        """What all of it has taken."""
        return self.desk.costs.now()

    def branches(self) -> list[BranchView]:
        """Where the branches of the open fork stand."""
        return self._forks.views()

    def said(self, branch: str | None = None) -> list[Said]:
        """What was said up to here, or in a branch of the open fork since it was forked."""
        if branch is None:
            return said(self.conversation.path())
        return said(self._forks.find(branch).thread.own_messages())

    # Talking

    async def submit(self, line: str, when: When = "now") -> None:
        """Do what a line asks for, and wait until it is done. What goes wrong is told as an event.

        What cannot be done before the agent is done is refused ``now``, and waited for with ``soon``. ``in_order`` has
        all lines wait for those before, but for answers to what is asked, and for what is said to branches.
        """
        await self._interpreter.submit(line, when)

    async def prompt(self, text: str) -> TurnEnded:
        """Say something to the agent, and wait for the end of its answer. RuntimeError while a fork is open."""
        async with self._alone_here():
            if self._forks.is_open:
                raise RuntimeError(BLOCKED)
            try:
                return await self._turns.prompt(text)
            finally:
                self._forks.turn_ended()

    def interrupt(self) -> bool:
        """End the turn of the agent under way; whether there was one."""
        return self._turns.interrupt()

    async def say(self, branch: str, message: str) -> None:
        """Tell a branch something, while it runs or when it is done."""
        await self._forks.say(branch, message)

    def addressed(self, text: str) -> tuple[str, str]:
        """Whom the text behind ``>>`` is for, and what they are told; ValueError where that is no branch."""
        return self._forks.addressed(text)

    async def shell(self, command: str) -> str:
        """Run a shell command in the workspace, confined as the agent's are; gives what it printed."""
        done = await self.desk.deps.backend.async_execute(command, None)
        return f"{done.output.rstrip()}\nexit code: {done.exit_code}".lstrip()

    def approve(self, id_: str | None = None) -> None:
        """Let a tool be called; LookupError where no such call waits."""
        self.desk.approvals.answer(id_, True)

    def deny(self, id_: str | None = None) -> None:
        """Do not let a tool be called; LookupError where no such call waits."""
        self.desk.approvals.answer(id_, False)

    def nobody_answers(self) -> None:
        """From now on nobody can be asked: it is denied, but in branches that nobody waits for."""
        self.desk.approvals.nobody_answers()

    def _tool_returned(self, tool: str) -> None:
        if tool == "fork_run":
            self._forks.agent_forked(self._turns.node)
        elif tool == "merge_or_select":
            merged = self._forks.agent_decided()
            if merged is not None:
                self._turns.merged(merged)

    # Forks

    def fork_form(self, task: str = "") -> ForkForm:
        """What a picker begins with: as many rows as the settings say."""
        return blank_form(self.settings, task)

    async def open_fork(self, form: ForkForm) -> str:
        """Split the conversation into branches, which begin to run; gives the fork's id. RuntimeError where one is open
        already, ValueError where the form makes no sense."""
        async with self._alone_here():
            if self._forks.is_open:
                raise RuntimeError(ALREADY[self._forks.by])
            return await self._forks.open(form)

    async def judge(self) -> ResolveOutcome:
        """Ask a judge which branch is the best; nothing is merged by that."""
        with self.desk.approvals.awaiting():
            return await self._merges.judge()

    async def merge(self, choice: str, prefer: Mapping[str, str] | None = None) -> MergeResult | None:
        """Decide the fork: for a label, ``combine:a,b``, ``auto`` or ``vote``; None where judges are not sure."""
        async with self._alone_here():
            with self.desk.approvals.awaiting():
                return await self._merges.merge(choice, prefer)

    async def choose(self, prepared: Prepared) -> None:
        """Decide the fork for what was chosen of it, see `choices`."""
        async with self._alone:
            await self.choices.commit(prepared)

    async def terminate(self, branch: str) -> None:
        """End one branch; it can still be merged with what it did."""
        await self._forks.terminate(branch)

    async def abort(self) -> None:
        """Drop the fork with all its branches."""
        await self._forks.abort()

    async def override(self, branch: str) -> MergeResult:
        """After ``auto`` or ``vote``: take another branch instead, its files and what it said."""
        async with self._alone_here():
            self._no_fork()
            return await self._merges.override(branch)

    async def undo(self) -> str:
        """Take the last merge back, its files and what was said; gives the fork."""
        async with self._alone_here():
            self._no_fork()
            return await self._merges.undo()

    # Places

    def go(self, name: str) -> Node:
        """Go on from another place, by the number of a message or a label."""
        self._no_fork()
        return self._moves.go(name)

    def label(self, name: str, node: Node) -> None:
        """Give a place a name, by which it can be gone to; ConversationError for one that means something else."""
        self._moves.label(name, node)

    def compare(self, first: str, second: str) -> str:
        """How what was said up to two places differs."""
        return self._moves.compare(first, second)

    async def combine(self, names: Sequence[str] = (), how: str = "concatenate") -> Node:
        """Make one answer of several, and go on from there."""
        async with self._alone_here():
            self._no_fork()
            return await self._moves.combine(names, how)  # type: ignore[arg-type]

    async def checkpoints(self) -> list[Checkpoint]:
        """What can be gone back to, the oldest first."""
        return await self._moves.checkpoints()

    async def load(self, name: str) -> Checkpoint:
        """Go back to a checkpoint, with its files."""
        async with self._alone_here():
            self._no_fork()
            await self._forks.let_go()
            loaded = await self._moves.load(name)
            self._merges.forget_undone()
            return loaded

    def _no_fork(self) -> None:
        if self._forks.is_open:
            raise RuntimeError(BLOCKED)

    # Settings

    def use_model(self, name: str) -> None:
        """Have another model answer; ChatModelError where it cannot be had."""
        self.desk.use_model(name)
        self.desk.feed.publish(SettingsChanged(f"model = {name}"))

    def change(self, told: str, changes: Mapping[str, object]) -> None:
        """Change settings and write them down; ValueError where they make no sense."""
        if changes:
            changed = replace(self.settings, **changes)  # type: ignore[arg-type]
            save_settings(self.workspace.path, changed)
            self.desk.settings = changed
        self.desk.feed.publish(SettingsChanged(told))


ALREADY = {
    "agent": "agent already forked — resolve it first: /merge or /abort",
    "user": "a fork is open already — resolve it first: /merge or /abort",
}
