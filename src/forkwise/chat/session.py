"""A chat session: an agent in a workspace, its conversation, its forks, and every command as a method.

A user interface subscribes to its events and calls its methods. Opening a session first recovers what an earlier chat
left unfinished. Importing this module loads the agent libraries: `forkwise.chat.open_session` does so in a thread.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic_ai.messages import (
    ModelRequest,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from forkwise.chat.events import Ended, Failed, Feed, Notice, Ready, error_text
from forkwise.chat.forks import Forks
from forkwise.chat.interpreter import FORK_IS_OPEN, Interpreter
from forkwise.chat.merges import Choices, Merges
from forkwise.chat.services import open_services
from forkwise.chat.settings import build_form
from forkwise.chat.storage import FORK, LOADING, MERGED, OVER, UNDOING
from forkwise.chat.turns import Navigation, Turns
from forkwise.concurrency import run_in_thread
from forkwise.conversation.store import StoredConversation
from forkwise.errors import BranchingError, ForkNotFoundError, LedgerError
from forkwise.live.fork_plan import ForkPlan
from forkwise.live.resume import list_unfinished

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from pydantic_ai.messages import ModelMessage

    from forkwise.chat.events import ApprovalAsked, CostChanged, Listener, TurnEnded
    from forkwise.chat.forks import BranchView
    from forkwise.chat.interpreter import When
    from forkwise.chat.services import ChatServices
    from forkwise.chat.settings import ForkForm, Settings
    from forkwise.chat.storage import StoredChat
    from forkwise.conversation.conversation import Conversation
    from forkwise.conversation.node import Node
    from forkwise.files.workspace import Workspace
    from forkwise.fork.combine import Prepared
    from forkwise.ledger.records import ForkRecord
    from forkwise.live.checkpoints import Checkpoint
    from forkwise.live.judging.verdict import ResolveOutcome
    from forkwise.live.values import MergeResult

__all__ = [
    "ChatMessage",
    "Session",
]

_ALREADY_FORKED = {
    "agent": "agent already forked — resolve it first: /merge or /abort",
    "user": "a fork is open already — resolve it first: /merge or /abort",
}


class Session:
    """A chat: ``async with await Session.open(directory, model="local") as session: …``."""

    def __init__(self, services: ChatServices) -> None:
        self.services = services
        self._turns = Turns(services)
        self._forks = Forks(services)
        self._merges = Merges(services, self._forks)
        self._navigation = Navigation(services)
        self.choices = Choices(services, self._forks, self._merges)
        self._interpreter = Interpreter(self, services, self._forks, self._navigation, self.choices)
        self._lock = asyncio.Lock()
        self._lock_owner: asyncio.Task[Any] | None = None
        self._is_closed = False
        services.hooks.on_tool_returned = self._on_tool_returned

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        model: str | None = None,
        conversation: str | None = None,
        is_new: bool = False,
        ask: Sequence[str] = (),
        allow_executable_config: bool = False,
        listener: Listener | None = None,
    ) -> Session:
        """Open a chat in a directory, with the named conversation, the last one, or a new one.

        ``allow_executable_config`` lets merges change what the user's machine will run, such as git hooks.
        What an earlier chat left unfinished is finished first, and published to the listener. Raises ChatModelError,
        SettingsError, ConversationError.
        """
        feed = Feed()
        if listener is not None:
            feed.subscribe(listener)
        services = await run_in_thread(
            open_services,
            directory,
            model,
            conversation,
            is_new,
            tuple(ask),
            feed,
            allow_executable_config=allow_executable_config,
        )
        try:
            session = cls(services)
            if services.chat.is_last_locked:
                feed.publish(Notice("another chat uses the last conversation of this workspace: this is a new one"))
            await session._start()
        except BaseException:
            services.chat.close()
            raise
        return session

    async def _start(self) -> None:
        chat = self.services.chat
        chat.save()
        workspace, model_name = str(self.services.workspace.path), self.services.model_name
        self.services.feed.publish(Ready(chat.id, workspace, model_name, chat.is_new, chat.here.depth))
        self.services.warn_without_tools()
        for note in self.services.settings.notes:
            self.services.feed.publish(Notice(note))
        await _recover(self.services, self._forks, self._merges, self._navigation)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the chat: interrupt a running turn, and keep an open fork for the next chat. Nothing keeps running."""
        if self._is_closed:
            return
        self._is_closed = True
        owner = self._lock_owner
        if not self._turns.interrupt() and owner is not None and owner is not asyncio.current_task():
            owner.cancel()
        async with self._lock:
            await self._forks.leave()
        self.services.chat.save()
        await self.services.models.aclose()
        self.services.feed.publish(Ended())
        self.services.feed.close()
        self.services.chat.close()

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Exclude other work within the block. Raises RuntimeError if the chat ended while waiting for the lock."""
        async with self._lock:
            if self._is_closed:
                raise RuntimeError("the chat has ended")
            self._lock_owner = asyncio.current_task()
            try:
                yield
            finally:
                self._lock_owner = None

    def _require_no_fork(self) -> None:
        if self._forks.is_open:
            raise RuntimeError(FORK_IS_OPEN)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Subscribe to events. Return a function that unsubscribes."""
        return self.services.feed.subscribe(listener)

    # State

    @property
    def id(self) -> str:
        """The id of the conversation."""
        return self.services.chat.id

    @property
    def model_name(self) -> str:
        """The model that answers."""
        return self.services.model_name

    @property
    def workspace(self) -> Workspace:
        """The workspace of the agent."""
        return self.services.workspace

    @property
    def conversation(self) -> Conversation:
        """The conversation; read only."""
        return self.services.chat.conversation

    @property
    def here(self) -> Node:
        """The current node of the conversation."""
        return self.services.chat.here

    @property
    def settings(self) -> Settings:
        """The settings of the chat."""
        return self.services.settings

    @property
    def is_busy(self) -> bool:
        """Whether a turn of the agent is running."""
        return self._turns.is_running

    @property
    def is_closed(self) -> bool:
        """Whether the chat has ended."""
        return self._is_closed

    @property
    def fork(self) -> str | None:
        """The id of the open fork, if there is one."""
        coordinator = self._forks.coordinator
        return None if coordinator is None else coordinator.fork_id

    @property
    def last_merge(self) -> str | None:
        """The id of the last merged fork, if its merge can be undone."""
        return self._merges.last_fork

    @property
    def overruled(self) -> tuple[str, ...]:
        """The branches that `override` can keep instead of the judges' choice."""
        return self._forks.overruled

    @property
    def last_answer(self) -> str:
        """The text of the agent's last answer."""
        return self.services.chat.last_answer

    @property
    def approvals(self) -> list[ApprovalAsked]:
        """The tool calls that wait for approval."""
        return self.services.approvals.pending

    @property
    def cost(self) -> CostChanged:
        """The cost of the conversation so far."""
        return self.services.costs.update()

    def branches(self) -> list[BranchView]:
        """List the states of the open fork's branches."""
        return self._forks.list_views()

    def said(self, branch: str | None = None) -> list[ChatMessage]:
        """List the transcript up to the current node, or of a branch of the open fork since it was forked."""
        if branch is None:
            return _build_transcript(self.conversation.path())
        return _build_transcript(self._forks.find(branch).thread.own_messages())

    # Prompts

    async def submit(self, line: str, when: When = "now") -> None:
        """Run a line as the user typed it, and wait until it is done. An error is published as an event.

        A line that has to wait for the agent is refused with ``now`` and waits with ``soon``. With ``in_order`` every
        line waits for the lines before it, except approvals and prompts for branches.
        """
        await self._interpreter.submit(line, when)

    async def prompt(self, text: str) -> TurnEnded:
        """Prompt the agent and wait for the end of its turn. Raises RuntimeError while a fork is open."""
        async with self._exclusive():
            self._require_no_fork()
            try:
                return await self._turns.prompt(text)
            finally:
                self._forks.adopt_agent_fork()

    def interrupt(self) -> bool:
        """Interrupt the running turn of the agent. Return whether there was one."""
        return self._turns.interrupt()

    async def say(self, branch: str, message: str) -> None:
        """Prompt a branch: with its next request if it runs, else in a new turn."""
        await self._forks.prompt(branch, message)

    def addressed(self, text: str) -> tuple[str, str]:
        """Split the text after ``>>`` into label and message. Raises ValueError if no branch has the label."""
        return self._forks.parse_address(text)

    async def shell(self, command: str) -> str:
        """Run a shell command in the workspace, confined like the agent's. Return its output and exit code."""
        return await self.services.run_shell(command)

    def approve(self, id_: str | None = None) -> None:
        """Approve a tool call. Raises LookupError if no such call waits."""
        self.services.approvals.answer(id_, True)

    def deny(self, id_: str | None = None) -> None:
        """Deny a tool call. Raises LookupError if no such call waits."""
        self.services.approvals.answer(id_, False)

    def nobody_answers(self) -> None:
        """Deny approvals from now on, because no user can answer; those of branches only while a merge waits."""
        self.services.approvals.detach_user()

    def _on_tool_returned(self, tool: str) -> None:
        if tool == "fork_run":
            self._forks.register_agent_fork(self._turns.node)
        elif tool == "merge_or_select":
            fork = self._forks.record_agent_resolution()
            if fork is not None:
                self._turns.record_merge(fork)

    # Forks

    def fork_form(self, task: str = "") -> ForkForm:
        """Build a form for `open_fork` from the settings."""
        return build_form(self.settings, task)

    async def open_fork(self, form: ForkForm) -> str:
        """Fork the conversation into branches and run them. Return the fork's id.

        Raises RuntimeError if a fork is open, ValueError if the form is invalid.
        """
        async with self._exclusive():
            if self._forks.is_open:
                raise RuntimeError(_ALREADY_FORKED[self._forks.opener])
            return await self._forks.open(form)

    async def judge(self) -> ResolveOutcome:
        """Ask a judge for the best branch. Nothing is merged."""
        with self.services.approvals.deny_unattended():
            return await self._merges.judge()

    async def merge(
        self, choice: str, prefer: Mapping[str, str] | None = None, *, allow_executable_config: bool | None = None
    ) -> MergeResult | None:
        """Merge a label, ``combine:a,b``, ``auto`` or ``vote``. Return None if no judge gave a verdict.

        Raises ExecutableConfigError, with the fork open, unless ``allow_executable_config`` is set.
        """
        async with self._exclusive():
            with self.services.approvals.deny_unattended():
                return await self._merges.merge(choice, prefer, allow=allow_executable_config)

    async def choose(self, prepared: Prepared, *, allow_executable_config: bool | None = None) -> None:
        """Resolve the fork with a branch that `choices` prepared. Raises ExecutableConfigError as `merge` does."""
        async with self._lock:
            await self.choices.commit(prepared, allow=allow_executable_config)

    async def terminate(self, branch: str) -> None:
        """Terminate a branch; its changes can still be merged."""
        await self._forks.terminate(branch)

    async def abort(self) -> None:
        """Drop the fork with all its branches."""
        await self._forks.abort()

    async def override(self, branch: str, *, allow_executable_config: bool | None = None) -> MergeResult:
        """After ``auto`` or ``vote``: keep another branch instead, its files and its messages.

        Raises ExecutableConfigError, with nothing changed, unless ``allow_executable_config`` is set.
        """
        async with self._exclusive():
            self._require_no_fork()
            return await self._merges.override(branch, allow=allow_executable_config)

    async def undo(self) -> str:
        """Undo the last merge, its files and its messages. Return the fork."""
        async with self._exclusive():
            self._require_no_fork()
            return await self._merges.undo()

    # Navigation

    def go(self, name: str) -> Node:
        """Continue from another node, by its number or label."""
        self._require_no_fork()
        return self._navigation.go(name)

    def label(self, name: str, node: Node) -> None:
        """Label a node. Raises ConversationError if the name is not usable."""
        self._navigation.label(name, node)

    def compare(self, first: str, second: str) -> str:
        """Compare the conversation up to two nodes. Return a unified diff."""
        return self._navigation.compare(first, second)

    async def combine(self, names: Sequence[str] = (), how: str = "concatenate") -> Node:
        """Combine several answers into one, and continue from there."""
        async with self._exclusive():
            self._require_no_fork()
            return await self._navigation.combine(names, how)  # type: ignore[arg-type]

    async def checkpoints(self) -> list[Checkpoint]:
        """List the checkpoints, the oldest first."""
        return await self._navigation.list_checkpoints()

    async def load(self, name: str) -> Checkpoint:
        """Go back to a checkpoint, with its files."""
        async with self._exclusive():
            self._require_no_fork()
            await self._forks.close_resolved()
            checkpoint = await self._navigation.load(name)
            self._merges.unmark_undone()
            return checkpoint

    # Settings

    def use_model(self, name: str) -> None:
        """Answer with another model from now on. Raises ChatModelError if it is not available."""
        self.services.use_model(name)

    def change(self, text: str, changes: Mapping[str, object]) -> None:
        """Change and save settings, and publish ``text``. Raises ValueError if a value is invalid."""
        self.services.change_settings(text, changes)


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A prompt, an answer, a tool call or its result. ``name`` is the tool's."""

    who: Literal["user", "agent", "call", "result"]
    text: str
    name: str = ""


def _build_transcript(messages: Iterable[ModelMessage]) -> list[ChatMessage]:
    entries = []
    for message in messages:
        for part in message.parts:
            match part:
                case UserPromptPart(content=str(text)):
                    entries.append(ChatMessage("user", text))
                case UserPromptPart(content=items):
                    text = " ".join(item for item in items if isinstance(item, str))
                    entries.append(ChatMessage("user", text))
                case TextPart(content=text) if text:
                    entries.append(ChatMessage("agent", text))
                case ToolCallPart():
                    entries.append(ChatMessage("call", part.args_as_json_str(), part.tool_name))
                case ToolReturnPart():
                    entries.append(ChatMessage("result", part.model_response_str(), part.tool_name))
                case RetryPromptPart() if isinstance(message, ModelRequest):
                    entries.append(ChatMessage("result", part.model_response(), part.tool_name or ""))
    return entries


async def _recover(services: ChatServices, forks: Forks, merges: Merges, navigation: Navigation) -> None:
    """Finish interrupted work of an earlier chat, and resume its open fork."""
    chat = services.chat
    for label in list(chat.conversation.labels):
        if label.startswith(LOADING):
            await navigation.finish_load(label.removeprefix(LOADING))
        elif label.startswith(UNDOING):
            await merges.finish_undo(label.removeprefix(UNDOING))
    if not chat.is_new:
        _claim_unmarked_forks(chat)
    for fork in list(chat.fork_ids()):
        if chat.find_mark(MERGED, fork) is None and chat.find_mark(OVER, fork) is None:
            try:
                await _recover_fork(services, forks, merges, fork)
            except (BranchingError, RuntimeError, OSError) as error:
                services.feed.publish(Failed(f"cannot resume fork {fork}: {error_text(error)}"))


async def _recover_fork(services: ChatServices, forks: Forks, merges: Merges, fork: str) -> None:
    """Bring the conversation up to date with a fork whose outcome it does not have."""
    chat = services.chat
    try:
        record = chat.ledger.fork(fork)
    except ForkNotFoundError:
        chat.mark(OVER, fork, chat.here)
        chat.save()
        return
    if record.stored == "resolved" and record.commit is not None:
        if merges.recover_merge(fork):
            text = f"fork {fork} was merged when the last chat was interrupted; the conversation continues from there"
            services.feed.publish(Notice(text))
            return
    elif record.id in {one.id for one in list_unfinished(chat.ledger)} and not forks.is_open:
        await forks.resume(record.id)
        if chat.ledger.fork(fork).is_over and merges.recover_merge(fork):
            text = f"fork {fork} was resolved when the last chat was interrupted; it is merged now"
            services.feed.publish(Notice(text))
        return
    elif not record.is_over:
        services.feed.publish(Notice(f"fork {fork} of this conversation is {record.state}, and is left as it is"))
        return
    chat.mark(OVER, fork, chat.find_mark(FORK, fork) or chat.here)
    chat.save()


def _claim_unmarked_forks(chat: StoredChat) -> None:
    """Mark a fork of this conversation that a process opened just before it was killed."""
    known = {
        label.removeprefix(FORK)
        for record in chat.ledger.conversations.all()
        for label in record.labels
        if label.startswith(FORK)
    }
    own_parts = [message.parts for message in chat.conversation.path()]
    for record in list_unfinished(chat.ledger) if own_parts else ():
        if record.id not in known and _load_parent_parts(chat, record) == own_parts:
            chat.mark(FORK, record.id, chat.here)
            chat.save()


def _load_parent_parts(chat: StoredChat, record: ForkRecord) -> list[object] | None:
    """Load the parts of the messages before a fork; None if they were not stored."""
    try:
        plan = ForkPlan.from_json(record.spec, record.id)
        conversation = StoredConversation.load(chat.ledger.conversations, plan.conversation).conversation
    except LedgerError:
        return None
    return [message.parts for message in conversation.path()]
