"""``--agent acp:COMMAND``: attempts by any program that speaks the Agent Client Protocol, here a small real one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise.agents.agent_event import format_step
from forkwise.agents.stream import AgentStream

AGENT = """
import asyncio, os, sys
import acp
from acp import schema

class Agent:
    def on_connect(self, conn): self.client = conn
    async def initialize(self, protocol_version, **_):
        return schema.InitializeResponse(protocol_version=protocol_version)
    async def new_session(self, cwd, **_):
        self.cwd = cwd
        return schema.NewSessionResponse(session_id="s-" + os.environ["FORKWISE_ATTEMPT"])
    async def prompt(self, session_id, prompt, **_):
        text = prompt[0].text
        if "log in" in text:
            raise acp.RequestError.auth_required({"details": "run /login"})
        async def tell(update): await self.client.session_update(session_id=session_id, update=update)
        await tell(acp.update_plan([acp.plan_entry("write it", status="in_progress"), acp.plan_entry("check it")]))
        path = os.path.join(self.cwd, "won.txt")
        await tell(acp.start_edit_tool_call("c1", "Write", path, text))
        options = [
            schema.PermissionOption(option_id="no", name="No", kind="reject_once"),
            schema.PermissionOption(option_id="yes", name="Yes", kind="allow_once"),
        ]
        call = schema.ToolCallUpdate(tool_call_id="c1", title="Write")
        answer = await self.client.request_permission(session_id=session_id, tool_call=call, options=options)
        assert answer.outcome.option_id == "yes"
        before = (await self.client.read_text_file(session_id=session_id, path=os.path.join(self.cwd, "a.txt"))).content
        await self.client.write_text_file(session_id=session_id, path=path, content=before + text)
        for word in ("All ", "done."):
            await tell(acp.update_agent_message_text(word))
        paid = schema.Cost(amount=0.25, currency="USD")
        await tell(schema.UsageUpdate(session_update="usage_update", used=10, size=100, cost=paid))
        return schema.PromptResponse(stop_reason="refusal" if "refuse" in text else "end_turn")

asyncio.run(acp.run_agent(Agent()))
"""


@pytest.fixture
def agent(project: Path) -> str:
    """The name of an agent that writes its prompt to a file through the protocol."""
    program = project / "agent.py"  # a sandbox has a temporary directory of its own
    program.write_text(AGENT)
    return f"acp:{sys.executable} {program}"


def test_an_attempt_by_the_protocol(run: Callable[..., Result], project: Path, agent: str) -> None:
    said = run("best-of", "1", "--json", "--agent", agent, "fix it\n").stdout.splitlines()
    attempt = json.loads(said[-1])["outcome"]["attempts"][0]
    assert (project / "won.txt").read_text() == "one\nfix it\n"
    assert attempt["cost"]["usd"] == 0.25
    shown = json.loads(run("show", "--json", attempt["id"]).stdout)
    assert "All done." in json.dumps(shown)
    assert "plan, 1 of 2: write it" in json.dumps(shown)


@pytest.mark.parametrize(("prompt", "reason"), [("please log in", "run /login"), ("please refuse", "refusal")])
def test_its_failure_says_why(run: Callable[..., Result], project: Path, agent: str, prompt: str, reason: str) -> None:
    result = run("best-of", "1", "--json", "--agent", agent, prompt, code=7)
    attempt = json.loads(result.stdout.splitlines()[-1])["outcome"]["attempts"][0]
    assert reason in attempt["reason"]
    assert not (project / "won.txt").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("acp:", "names no command"), ("acp:'", "No closing quotation"), ("acp:no-such-program", "not on the PATH")],
)
def test_bad_names(run: Callable[..., Result], name: str, reason: str) -> None:
    assert reason in run("best-of", "1", "--agent", name, "fix it", code=2).stderr


@pytest.mark.parametrize(
    "update",
    [
        {"sessionUpdate": "plan", "entries": [None, {"status": "in_progress", "content": "\x1b[2J" * 9}] * 300},
        {"sessionUpdate": "tool_call", "title": ["x"], "kind": {}, "locations": [[]], "rawInput": "x" * 9999},
        {"sessionUpdate": "usage_update", "cost": {"amount": 1e400, "currency": "USD"}},
        {"sessionUpdate": "agent_message_chunk", "content": "text"},
        {"sessionUpdate": {}},
    ],
)
def test_hostile_lines(update: dict[str, Any]) -> None:
    stream = AgentStream("acp", "/project")
    stream.feed("stdout", json.dumps({"type": "update", "update": update}).encode() + b"\n")
    stream.finish()
    assert all(format_step(step).isprintable() for step in stream.take_steps())
    assert stream.find_cost() is None
