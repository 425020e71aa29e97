"""Models that play a script."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError

from forkwise.chat.script import ScriptError, load_script
from forkwise.live.backends import expression

pytestmark = pytest.mark.anyio

PLAYED = """
pace = 0.0
otherwise = "Pardon?"

[[reply]]
when = "^time"
steps = [{ say = "Let me see.", calls = [{ tool = "clock", args = { zone = "UTC" } }] }, { say = "Noon." }]

[[reply]]
when = "^fail"
error = "no service"
"""


async def test_each_response_depends_on_the_messages_before(tmp_path: Path) -> None:
    file = tmp_path / "played.toml"
    file.write_text(PLAYED)
    agent = Agent(load_script(file))
    zones = []

    @agent.tool_plain
    def clock(zone: str) -> str:
        """Tell the time."""
        zones.append(zone)
        return "12:00"

    first = await agent.run("time, please")
    assert (first.output, zones) == ("Noon.", ["UTC"])
    again = await agent.run("time once more", message_history=first.all_messages())
    assert (again.output, zones) == ("Noon.", ["UTC", "UTC"])
    async with agent.run_stream("whatever") as stream:
        assert [piece async for piece in stream.stream_text(delta=True, debounce_by=None)] == ["Pardon?"]
    with pytest.raises(ModelHTTPError, match="no service"):
        await agent.run("fail")


@pytest.mark.parametrize(
    "text",
    ["[[reply", "[[reply]]\nwhen = '('\nsay = 'x'", "[[reply]]\nsays = 'x'", "reply = 1", "[[reply]]\nsteps = []"],
)
def test_an_invalid_script_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(text)
    with pytest.raises(ScriptError, match=r"broken\.toml"):
        load_script(file)


def test_a_missing_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"there is no script .*absent\.toml"):
        load_script(tmp_path / "absent.toml")


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(ScriptError, match="not a regular file"):
        load_script(tmp_path / "pipe.toml")


async def test_a_slow_expression_blocks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expression, "CPU_PER_BATCH_S", 1)
    file = tmp_path / "script.json"
    file.write_text('{"reply": [{"when": "^a\\\\s+(b+)+$", "say": "found"}]}')
    agent = Agent(load_script(file))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    assert (await agent.run("a\nbb")).output == "found"  # one text, not line by line
    assert (await agent.run("x\na bb")).output != "found"
    turns = 0
    with pytest.raises(ScriptError, match="seconds of CPU time"):
        await agent.run("a " + "b" * 40 + "c")
    assert turns > 10
    counter.cancel()
