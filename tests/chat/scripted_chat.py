"""A chat for tests: a session with a scripted model, and a log of its events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from forkwise.chat.events import BranchChanged, ChatEvent, Failed
from forkwise.chat.session import Session

__all__ = ["SCRIPT", "EventLog", "call", "chatting", "write_script"]

E = TypeVar("E", bound=ChatEvent)
PATIENCE = 60.0


def call(tool: str, **args: Any) -> dict[str, Any]:
    """Build a tool call of a script."""
    return {"tool": tool, "args": args}


def _writes(branch: str) -> dict[str, Any]:
    steps = [
        {"calls": [call("write", path="lib.txt", content=f"from {branch}\n")]},
        {"say": f"{branch} wrote lib.txt."},
    ]
    return {"when": "^task", "branch": branch, "steps": steps}


#: Answers of the agent, branches that each write a file, and a judge.
SCRIPT: list[dict[str, Any]] = [
    {"when": "^hello", "say": "Hi there,\nhow are you?"},
    {
        "when": "^write",
        "steps": [{"say": "I will.", "calls": [call("write", path="x.txt", content="X\n")]}, {"say": "Wrote it."}],
    },
    {"when": "^break", "error": "out of order"},
    {"when": "^wait", "steps": [{"say": "At last.", "until": "go"}]},
    {"when": "^shell", "steps": [{"calls": [call("execute", command="echo ran > ran.txt")]}, {"say": "It ran."}]},
    {"when": "^more", "steps": [{"calls": [call("write", path="more.txt", content="more\n")]}, {"say": "More."}]},
    {
        "when": "^task until",
        "branch": "a",
        "steps": [{"say": "Waiting.", "calls": [call("ls")]}, {"say": "a", "until": "a"}],
    },
    *map(_writes, "abc"),
    {"judge": True, "verdict": {"winner_branch_id": "b", "confidence": 0.95, "reasoning": "b is shorter"}},
]


def write_script(directory: Path, rules: list[dict[str, Any]] | None = None, **more: Any) -> str:
    """Write a script to a file. Return the name of its model."""
    file = directory / "script.json"
    file.write_text(json.dumps({"reply": SCRIPT if rules is None else rules, **more}))
    return f"script:{file}"


class EventLog(list[ChatEvent]):
    """A listener that records events, and waits for further ones."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()

    def __call__(self, event: ChatEvent) -> None:
        self.append(event)
        self._arrived.set()

    def of(self, kind: type[E]) -> list[E]:
        """List the events of a kind."""
        return [event for event in self if isinstance(event, kind)]

    def last(self, kind: type[E]) -> E:
        """Return the last event of a kind."""
        return self.of(kind)[-1]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds, checking it after every event."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._arrived.clear()
                await self._arrived.wait()

    async def branch(self, label: str, state: str, times: int = 1) -> None:
        """Wait until a branch was reported ``times`` times in a state."""

        def count() -> int:
            return sum(one.branch == label and one.state == state for one in self.of(BranchChanged))

        await self.until(lambda: count() >= times)

    def check_no_failures(self, expected: int = 0) -> None:
        """Check that there are no failures after the first ``expected`` ones."""
        assert [event.text for event in self.of(Failed)][expected:] == []


@asynccontextmanager
async def chatting(project: Path, model: str, **options: Any) -> AsyncIterator[tuple[Session, EventLog]]:
    """Open a chat, and close it at the end of the block."""
    log = EventLog()
    session = await Session.open(project, model=model, listener=log, **options)
    try:
        yield session, log
    finally:
        await session.close()
