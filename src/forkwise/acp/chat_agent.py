"""ChatAgent: serves chats to an editor that speaks the Agent Client Protocol.

A chat is a session of the protocol. While its conversation is forked, each branch is a session too, named
``CHAT:LABEL``: it receives the branch's text and tool calls, and prompts sent there go to the branch. An editor that
forks a session itself gets another chat that continues from the same messages, in the same workspace. Commands such as
``/fork`` and ``/merge`` are typed as prompts of the chat. Tool calls that need approval, and merges that change what
the user's machine will run, become permission requests.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import acp
from acp import helpers, schema

from forkwise import __version__
from forkwise.chat import open_session
from forkwise.chat.events import (
    ApprovalAsked,
    BranchChanged,
    BranchText,
    ChatEvent,
    Copied,
    CostChanged,
    Ended,
    Failed,
    ForkAdopted,
    ForkOpened,
    ForkResolved,
    MergeRefused,
    Ready,
    TextDelta,
    ThoughtDelta,
    ToolCalled,
    ToolReturned,
    TurnBegan,
    TurnEnded,
    error_text,
)
from forkwise.chat.plain_ui import format_event
from forkwise.chat.render import format_refusal
from forkwise.chat.slash_commands import COMMANDS
from forkwise.chat.storage import copy_chat, list_messages
from forkwise.concurrency import run_in_thread
from forkwise.errors import BranchingError
from forkwise.files.workspace import Workspace
from forkwise.ledger.sqlite import open_ledger
from forkwise.text.clean import truncate_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forkwise.chat.session import Session

__all__ = ["ChatAgent", "serve_stdio"]

_LONGEST_TITLE = 120
_LONGEST_MESSAGE = 50 << 20  # bytes on one line, from the editor
_LONGEST_PAYLOAD = 100_000  # characters of a tool's result; the model has all of it
_NOT_OFFERED = {"approve", "deny", "copy", "quit"}
_KINDS: dict[str, schema.ToolKind] = {
    "read": "read",
    "write": "edit",
    "edit": "edit",
    "delete": "delete",
    "execute": "execute",
    "grep": "search",
    "glob": "search",
    "ls": "search",
    "write_todos": "think",
}
_ALLOW = schema.PermissionOption(option_id="allow", name="Allow", kind="allow_once")
_REJECT = schema.PermissionOption(option_id="reject", name="Reject", kind="reject_once")
_RUNNING = "running"


class Update(Protocol):
    """An update of a session, in one of the protocol's forms."""

    session_update: Any


@dataclass(slots=True)
class _Chat:
    """An open chat, the branches of its open fork, and the requests that wait for their turns."""

    session: Session
    directory: Path
    branches: tuple[str, ...] = ()
    waiting: dict[str, list[asyncio.Future[BranchChanged]]] = field(default_factory=dict)
    last_turn: TurnEnded | None = None
    is_cancelled: bool = False
    running: asyncio.Task[None] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def take_turn(self) -> TurnEnded | None:
        """Return the turn that ended since the last call."""
        turn, self.last_turn = self.last_turn, None
        return turn


class ChatAgent:
    """The agent's side of a connection to an editor. ``close`` ends all chats; their open forks are kept."""

    def __init__(
        self, *, model: str | None = None, ask: Sequence[str] = (), allow_executable_config: bool = False
    ) -> None:
        self._options: dict[str, Any] = {"model": model, "ask": ask, "allow_executable_config": allow_executable_config}
        self._chats: dict[str, _Chat] = {}
        self._outbox: asyncio.Queue[tuple[str, Update]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: Any = None

    def on_connect(self, conn: Any) -> None:
        """Store the connection, and send updates on it in the order in which they occur."""
        self._client = conn
        self._start(self._send_updates())

    async def close(self) -> None:
        """End all chats, and everything that still runs for them."""
        for chat in self._chats.values():
            await chat.session.close()
        self._chats.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Requests of the protocol. Their parameters have the names that the protocol gives them.

    async def initialize(self, protocol_version: int, **_: Any) -> schema.InitializeResponse:
        """Return the capabilities of this agent."""
        capabilities = schema.AgentCapabilities(
            load_session=True,
            prompt_capabilities=schema.PromptCapabilities(embedded_context=True),
            session_capabilities=schema.SessionCapabilities(
                list=schema.SessionListCapabilities(),
                resume=schema.SessionResumeCapabilities(),
                fork=schema.SessionForkCapabilities(),
            ),
        )
        return schema.InitializeResponse(
            protocol_version=min(protocol_version, acp.PROTOCOL_VERSION),
            agent_capabilities=capabilities,
            agent_info=schema.Implementation(name="forkwise", version=__version__),
        )

    async def new_session(self, cwd: str, **more: Any) -> schema.NewSessionResponse:
        """Start a chat in a directory."""
        chat = await self._open(cwd, None, more)
        return schema.NewSessionResponse(session_id=chat.session.id)

    async def load_session(self, cwd: str, session_id: str, **more: Any) -> schema.LoadSessionResponse:
        """Continue a chat, and send its messages."""
        chat, branch = await self._resume(cwd, session_id, more)
        for entry in chat.session.said(branch):
            match entry.who:
                case "user":
                    update: Update = acp.update_user_message_text(entry.text)
                case "agent":
                    update = acp.update_agent_message_text(entry.text)
                case "call":
                    update = acp.update_agent_thought_text(_title(entry.name, entry.text))
                case _:
                    continue
            self._put(session_id, update)
        await self._outbox.join()
        return schema.LoadSessionResponse()

    async def resume_session(self, cwd: str, session_id: str, **more: Any) -> schema.ResumeSessionResponse:
        """Continue a chat without sending its messages."""
        await self._resume(cwd, session_id, more)
        return schema.ResumeSessionResponse()

    async def fork_session(self, cwd: str, session_id: str, **more: Any) -> schema.ForkSessionResponse:
        """Start a chat that continues from the last complete answer of another one, which is not changed."""
        directory = _check_directory(cwd)
        id_, colon, label = session_id.partition(":")
        chat = self._chats.get(id_)
        if colon:
            raise acp.RequestError.invalid_params(
                {"details": f"{session_id} is a branch of a fork: merge {label} first, or fork the session {id_}"}
            )
        if chat is not None and chat.directory != directory:
            raise acp.RequestError.invalid_params(
                {"details": f"the session {id_} works in {chat.directory}: its fork cannot work in {cwd}"}
            )
        messages = None if chat is None else list_messages(chat.session.conversation)
        try:
            copy = await run_in_thread(copy_chat, directory, id_, messages)
        except BranchingError as error:
            raise acp.RequestError(-32002, error_text(error)) from error
        opened = await self._open(cwd, copy, more)
        return schema.ForkSessionResponse(session_id=opened.session.id)

    async def list_sessions(self, cwd: str | None = None, **_: Any) -> schema.ListSessionsResponse:
        """List the chats of a directory, and the branches of those that are open here and forked."""
        directory = _check_directory(cwd) if cwd is not None else Path.cwd()
        found = await run_in_thread(_list_chats, directory)
        for id_, chat in self._chats.items():
            found += [
                schema.SessionInfo(session_id=f"{id_}:{label}", cwd=str(chat.directory), title=f"branch {label}")
                for label in chat.branches
                if chat.directory == directory
            ]
        return schema.ListSessionsResponse(sessions=found)

    async def prompt(self, session_id: str, prompt: Sequence[Any], **_: Any) -> schema.PromptResponse:
        """Run a prompt or a command, and return when it is done."""
        chat, branch = self._find(session_id)
        text = "\n\n".join(filter(None, map(_as_text, prompt)))
        if not text.strip():
            raise acp.RequestError.invalid_params({"details": "the prompt has no text"})
        chat.is_cancelled = False
        if branch is not None:
            reason = await self._prompt_branch(chat, branch, text)
        else:
            reason = await self._prompt_chat(chat, text)
        await self._outbox.join()
        return schema.PromptResponse(stop_reason=reason)

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Interrupt the turn of a chat, or terminate a branch, whose changes can still be merged."""
        chat, branch = self._find(session_id)
        chat.is_cancelled = True
        if branch is None:
            if not chat.session.interrupt() and chat.running is not None:  # no turn yet, or a command
                chat.running.cancel()
            return
        with suppress(BranchingError, RuntimeError, LookupError, ValueError):
            await chat.session.terminate(branch)

    # Chats

    async def _open(self, cwd: str, conversation: str | None, more: dict[str, Any]) -> _Chat:
        directory = _check_directory(cwd)
        early: list[ChatEvent] = []
        try:
            session = await open_session(
                directory,
                conversation=conversation,
                is_new=conversation is None,
                listener=early.append,
                **self._options,
            )
        except BranchingError as error:
            raise acp.RequestError(-32603, error_text(error)) from error
        chat = self._chats[session.id] = _Chat(session, directory)
        session.listen(lambda event: self._on_event(chat, event))
        for event in early:
            self._on_event(chat, event)
        offered = [
            schema.AvailableCommand(
                name=command.name,
                description=command.help,
                input=schema.AvailableCommandInput(schema.UnstructuredCommandInput(hint=command.arguments))
                if command.arguments
                else None,
            )
            for command in COMMANDS
            if " " not in command.name and command.name not in _NOT_OFFERED
        ]
        self._put(session.id, helpers.update_available_commands(offered))
        ignored = [f"the MCP server {server.name}" for server in more.get("mcp_servers") or ()]
        ignored += [f"the directory {path}" for path in more.get("additional_directories") or ()]
        if ignored:
            text = f"forkwise works in {directory} with its own tools and does not use {', '.join(ignored)}.\n"
            self._put(session.id, acp.update_agent_message_text(text))
        return chat

    async def _resume(self, cwd: str, session_id: str, more: dict[str, Any]) -> tuple[_Chat, str | None]:
        with suppress(acp.RequestError):
            return self._find(session_id)
        return await self._open(cwd, session_id.partition(":")[0], more), None

    def _find(self, session_id: str) -> tuple[_Chat, str | None]:
        id_, colon, label = session_id.partition(":")
        chat = self._chats.get(id_)
        if chat is None or (colon and label not in chat.branches):
            raise acp.RequestError(-32002, f"there is no open session {session_id!r}")
        return chat, label if colon else None

    async def _prompt_chat(self, chat: _Chat, text: str) -> schema.StopReason:
        async with chat.lock:
            chat.take_turn()
            chat.running = asyncio.create_task(chat.session.submit(text, "soon"))
            await asyncio.wait({chat.running})
            turn = chat.take_turn()
        if turn is not None and turn.state == "failed":
            raise acp.RequestError(-32603, turn.error or "the turn failed")
        if chat.is_cancelled or (turn is not None and turn.state == "interrupted"):
            return "cancelled"
        return "end_turn"

    async def _prompt_branch(self, chat: _Chat, branch: str, text: str) -> schema.StopReason:
        end: asyncio.Future[BranchChanged] = asyncio.get_running_loop().create_future()
        chat.waiting.setdefault(branch, []).append(end)
        try:
            await chat.session.say(branch, text)
            changed = await end
        except (BranchingError, RuntimeError, LookupError, ValueError) as error:
            raise acp.RequestError(-32603, error_text(error)) from error
        finally:
            chat.waiting[branch].remove(end)
        if changed.state == "failed":
            raise acp.RequestError(-32603, changed.error or "the branch failed")
        return "end_turn" if changed.state == "done" and not chat.is_cancelled else "cancelled"

    # Events

    def _on_event(self, chat: _Chat, event: ChatEvent) -> None:
        id_ = chat.session.id
        match event:
            case TextDelta(text):
                self._put(id_, acp.update_agent_message_text(text))
            case BranchText(branch, text):
                self._put(f"{id_}:{branch}", acp.update_agent_message_text(text))
            case ThoughtDelta(text, branch):
                self._put(_name(id_, branch), acp.update_agent_thought_text(text))
            case ToolCalled(call, tool, arguments, branch):
                kind = _KINDS.get(tool, "other")
                start = acp.start_tool_call(
                    call, _title(tool, arguments), kind=kind, status="in_progress", raw_input=_parse(arguments)
                )
                self._put(_name(id_, branch), start)
            case ToolReturned(call, _, result, is_error, branch):
                content = [acp.tool_content(acp.text_block(result[:_LONGEST_PAYLOAD]))]
                status: schema.ToolCallStatus = "failed" if is_error else "completed"
                self._put(_name(id_, branch), acp.update_tool_call(call, status=status, content=content))
            case CostChanged():
                self._put(id_, _usage(event))
            case TurnEnded():
                chat.last_turn = event
            case ApprovalAsked():
                self._start(self._ask_approval(chat, event))
            case MergeRefused():
                self._start(self._ask_merge(chat, event))
            case Ready() | Ended() | Copied() | TurnBegan(branch=None):
                pass
            case _:
                self._follow_fork(chat, event)
                lines = [line.removeprefix("[").removesuffix("]") for line in format_event(event)]
                self._put(id_, acp.update_agent_message_text("\n".join([*lines, ""])))
        if isinstance(event, Failed):
            for label in list(chat.waiting):  # such as a message for a branch that has ended
                self._end_turn(chat, BranchChanged("", label, "", "failed", 0, event.text))

    def _follow_fork(self, chat: _Chat, event: ChatEvent) -> None:
        match event:
            case ForkOpened(_, branches) | ForkAdopted(_, branches):
                chat.branches = branches
            case ForkResolved():
                for label in chat.branches:
                    self._end_turn(chat, BranchChanged(event.fork, label, "", "resolved", 0))
                chat.branches = ()
            case BranchChanged() if event.state != _RUNNING:
                self._end_turn(chat, event)

    @staticmethod
    def _end_turn(chat: _Chat, event: BranchChanged) -> None:
        for end in chat.waiting.get(event.branch, ()):
            if not end.done():
                end.set_result(event)

    async def _ask_approval(self, chat: _Chat, event: ApprovalAsked) -> None:
        title = _title(event.tool, event.arguments)
        is_allowed = await self._ask(_name(chat.session.id, event.branch), event.id, title, event.arguments)
        with suppress(LookupError):  # answered elsewhere, or no longer needed
            (chat.session.approve if is_allowed else chat.session.deny)(event.id)

    async def _ask_merge(self, chat: _Chat, event: MergeRefused) -> None:
        text = "\n".join(format_refusal(event))
        self._put(chat.session.id, acp.update_agent_message_text(f"{text}\n"))
        if await self._ask(chat.session.id, "merge", "Merge what your machine will run by itself", text):
            await chat.session.submit(event.retry, "soon")

    async def _ask(self, session_id: str, call: str, title: str, raw: str) -> bool:
        """Ask the user for permission. If the editor cannot ask, or is gone, the answer is no."""
        await self._outbox.join()
        try:
            answer = await self._client.request_permission(
                session_id=session_id,
                tool_call=schema.ToolCallUpdate(tool_call_id=call, title=title, status="pending", raw_input=raw),
                options=[_ALLOW, _REJECT],
            )
        except (acp.RequestError, ConnectionError):
            return False
        outcome = cast("schema.RequestPermissionResponse", answer).outcome
        return isinstance(outcome, schema.AllowedOutcome) and outcome.option_id == _ALLOW.option_id

    def _put(self, session_id: str, update: Any) -> None:
        self._outbox.put_nowait((session_id, update))

    async def _send_updates(self) -> None:
        is_connected = True
        while True:
            session_id, update = await self._outbox.get()
            try:
                if is_connected:
                    await self._client.session_update(session_id=session_id, update=update)
            except (ConnectionError, RuntimeError):  # the editor is gone, and the connection is about to end
                is_connected = False
            finally:
                self._outbox.task_done()

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def serve_stdio(agent: ChatAgent) -> None:
    """Serve one editor on standard input and output until it closes them."""
    out_fd = os.dup(1)
    os.dup2(2, 1)  # stray prints must not end up between the messages
    own_output, sys.stdout = sys.stdout, os.fdopen(out_fd, "w")
    try:
        reader, writer = await acp.stdio_streams(limit=_LONGEST_MESSAGE)
    finally:
        sys.stdout = own_output
    try:
        # Forks of sessions are not yet in the stable part of the protocol.
        await acp.run_agent(cast("acp.Agent", agent), writer, reader, use_unstable_protocol=True)
    finally:
        await agent.close()
    if (task := asyncio.current_task()) is not None and task.cancelling():
        raise asyncio.CancelledError  # the library ends a cancelled session like one that the editor closed


def _check_directory(cwd: str) -> Path:
    path = Path(cwd)
    if not path.is_absolute() or not path.is_dir():
        raise acp.RequestError.invalid_params({"details": f"{cwd} is not an absolute path of a directory"})
    return path


def _list_chats(directory: Path) -> list[schema.SessionInfo]:
    with open_ledger(Workspace(directory)) as ledger:
        return [
            schema.SessionInfo(
                session_id=record.id,
                cwd=str(directory),
                title=record.title or None,
                updated_at=datetime.fromtimestamp(record.updated, UTC).isoformat(),
            )
            for record in ledger.conversations.all()
            if record.id.startswith("chat-")
        ]


def _as_text(block: Any) -> str:
    """Return a part of a prompt as text; a file is named, or quoted if the editor sent its text."""
    match block:
        case schema.TextContentBlock(text=text):
            return text
        case schema.ResourceContentBlock(uri=uri):
            return f"See {uri.removeprefix('file://')}"
        case schema.EmbeddedResourceContentBlock(resource=schema.TextResourceContents(uri=uri, text=text)):
            return f"{uri.removeprefix('file://')}:\n{text}"
    raise acp.RequestError.invalid_params({"details": f"prompts with {block.type} are not supported"})


def _name(id_: str, branch: str | None) -> str:
    return id_ if branch is None else f"{id_}:{branch}"


def _title(tool: str, arguments: str) -> str:
    return truncate_line(f"{tool} {arguments}", _LONGEST_TITLE)


def _parse(arguments: str) -> Any:
    """Return the arguments of a call, which are JSON unless the model wrote something else."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _usage(cost: CostChanged) -> schema.UsageUpdate:
    used = cost.input_tokens + cost.output_tokens
    paid = None if cost.usd is None else schema.Cost(amount=cost.usd, currency="USD")
    return schema.UsageUpdate(session_update="usage_update", used=used, size=used, cost=paid)
