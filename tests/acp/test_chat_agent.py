"""``forkwise acp`` as an editor sees it: the protocol's own client talks to the command on its stdin and stdout."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import acp
import pytest
from acp import schema

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


@dataclass
class Editor:
    """The editor's side: keeps the updates of each session, and answers permission requests."""

    allows: bool = True
    updates: list[tuple[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append((session_id, update))
        self.arrived.set()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **_: Any
    ) -> schema.RequestPermissionResponse:
        self.asked.append((session_id, tool_call.title))
        chosen = options[0 if self.allows else 1].option_id
        return schema.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=chosen))

    def said(self, session_id: str) -> str:
        """Return the text of the agent's messages in a session."""
        chunks = [u for s, u in self.updates if s == session_id and u.session_update == "agent_message_chunk"]
        return "".join(chunk.content.text for chunk in chunks)

    def of(self, kind: str, session_id: str) -> list[Any]:
        return [update for session, update in self.updates if session == session_id and update.session_update == kind]

    async def until(self, is_there: Callable[[], bool]) -> None:
        """Wait for updates until something is there."""
        async with asyncio.timeout(60):
            while not is_there():
                self.arrived.clear()
                await self.arrived.wait()


@asynccontextmanager
async def editing(editor: Editor, project: Path, model: str, *options: str) -> AsyncIterator[Any]:
    """Start the command, as an editor does, and connect to it."""
    words = ("-c", "from forkwise.cli import main; main()", "acp", "--model", model, *options)
    patience = {"shutdown_timeout": 60}
    start = acp.spawn_agent_process(
        editor,
        sys.executable,
        *words,
        env=os.environ,
        cwd=project,
        transport_kwargs=patience,
        use_unstable_protocol=True,
    )
    async with start as (agent, process):
        await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
        yield agent
    assert process.returncode == 0, "the end of its input ends it"


async def test_prompt_fork_merge_and_undo(project: Path, model: str) -> None:
    editor = Editor()
    async with editing(editor, project, model) as agent:
        session = (await agent.new_session(cwd=str(project), mcp_servers=[])).session_id
        answer = await agent.prompt(session_id=session, prompt=[acp.text_block("hello")])
        assert answer.stop_reason == "end_turn"
        assert editor.said(session) == "Hi there,\nhow are you?"
        offered = editor.of("available_commands_update", session)[0].available_commands
        assert {"fork", "merge", "undo"} <= {command.name for command in offered}

        await agent.prompt(session_id=session, prompt=[acp.text_block("/fork task")])
        branches = [f"{session}:a", f"{session}:b"]
        await editor.until(lambda: all("wrote lib.txt." in editor.said(branch) for branch in branches))
        listed = (await agent.list_sessions(cwd=str(project))).sessions
        assert [info.session_id for info in listed] == [session, *branches]
        calls = editor.of("tool_call", branches[0])
        assert [(call.title.split()[0], call.kind) for call in calls] == [("write", "edit")]
        assert editor.of("tool_call_update", branches[0])[0].status == "completed"

        again = await agent.prompt(session_id=branches[0], prompt=[acp.text_block("once more")])
        assert again.stop_reason == "end_turn"
        assert not (project / "lib.txt").exists()
        await agent.prompt(session_id=session, prompt=[acp.text_block("/merge b")])
        assert (project / "lib.txt").read_text() == "from b\n"
        with pytest.raises(acp.RequestError, match="no open session"):
            await agent.prompt(session_id=branches[0], prompt=[acp.text_block("too late")])
        await agent.prompt(session_id=session, prompt=[acp.text_block("/undo")])
        assert not (project / "lib.txt").exists()

    later = Editor()
    async with editing(later, project, model) as agent:
        await agent.load_session(cwd=str(project), session_id=session, mcp_servers=[])
        assert [u.content.text for u in later.of("user_message_chunk", session)] == ["hello"]


async def test_an_editor_forks_a_session(project: Path, model: str, tmp_path: Path) -> None:
    editor = Editor()
    async with editing(editor, project, model) as agent:
        first = (await agent.new_session(cwd=str(project), mcp_servers=[])).session_id
        blank = (await agent.fork_session(cwd=str(project), session_id=first)).session_id
        await agent.prompt(session_id=first, prompt=[acp.text_block("hello")])
        fork = (await agent.fork_session(cwd=str(project), session_id=first)).session_id
        assert len({first, blank, fork}) == 3
        answer = await agent.prompt(session_id=fork, prompt=[acp.text_block("write it down")])
        assert answer.stop_reason == "end_turn"
        assert (project / "x.txt").exists()
        await agent.prompt(session_id=first, prompt=[acp.text_block("/fork task")])
        for cwd, session, reason in (
            (project, f"{first}:a", "Invalid params"),
            (tmp_path, first, "Invalid params"),
            (project, "chat-none", "chat-none"),
            (project, "../../x", "x"),
        ):
            with pytest.raises(acp.RequestError, match=reason):
                await agent.fork_session(cwd=str(cwd), session_id=session)
        await agent.prompt(session_id=first, prompt=[acp.text_block("/abort")])
    later = Editor()
    async with editing(later, project, model) as agent:
        again = (await agent.fork_session(cwd=str(project), session_id=fork)).session_id  # of a chat that is not open
        for session, said in (
            (first, ["hello"]),
            (fork, ["hello", "write it down"]),
            (again, ["hello", "write it down"]),
        ):
            await agent.load_session(cwd=str(project), session_id=session, mcp_servers=[])
            assert [u.content.text for u in later.of("user_message_chunk", session)] == said


async def test_a_tool_call_needs_permission(project: Path, model: str) -> None:
    editor = Editor(allows=False)
    async with editing(editor, project, model, "--ask", "write") as agent:
        session = (await agent.new_session(cwd=str(project), mcp_servers=[])).session_id
        await agent.prompt(session_id=session, prompt=[acp.text_block("write it down")])
        assert [name for name, _ in editor.asked] == [session]
        assert not (project / "x.txt").exists()
        editor.allows = True
        await agent.prompt(session_id=session, prompt=[acp.text_block("write it down")])
        assert (project / "x.txt").read_text() == "X\n"


async def test_a_turn_is_cancelled(project: Path, model: str) -> None:
    editor = Editor()
    async with editing(editor, project, model) as agent:
        session = (await agent.new_session(cwd=str(project), mcp_servers=[])).session_id
        turn = asyncio.ensure_future(agent.prompt(session_id=session, prompt=[acp.text_block("wait for me")]))
        await asyncio.sleep(0)  # so that the prompt is sent first
        await agent.cancel(session_id=session)
        assert (await turn).stop_reason == "cancelled"
        assert (await agent.prompt(session_id=session, prompt=[acp.text_block("hello")])).stop_reason == "end_turn"


async def test_bad_requests(project: Path, model: str) -> None:
    text = acp.text_block
    async with editing(Editor(), project, model) as agent:
        session = (await agent.new_session(cwd=str(project), mcp_servers=[])).session_id
        requests: list[tuple[Awaitable[Any], str]] = [
            (agent.new_session(cwd="not/absolute", mcp_servers=[]), "not an absolute path"),
            (agent.load_session(cwd=str(project), session_id="chat-none", mcp_servers=[]), "chat-none"),
            (agent.prompt(session_id="chat-none", prompt=[text("x")]), "no open session 'chat-none'"),
            (agent.prompt(session_id=f"{session}:z", prompt=[text("x")]), ":z"),
            (agent.prompt(session_id=session, prompt=[text(" ")]), "no text"),
            (agent.prompt(session_id=session, prompt=[acp.image_block("", "image/png")]), "image"),
            (agent.prompt(session_id=session, prompt=[text("break it")]), "out of order"),
        ]
        for request, reason in requests:
            with pytest.raises(acp.RequestError) as caught:
                await request
            assert reason in f"{caught.value} {caught.value.data}"
