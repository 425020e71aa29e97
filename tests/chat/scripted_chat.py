"""A chat for tests: a session on a small project with a script, and all that it told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from forkwise.chat.events import BranchChanged, Event, Failed
from forkwise.chat.session import Session

__all__ = ["SCRIPT", "Heard", "call", "chatting", "write_script"]

E = TypeVar("E", bound=Event)
PATIENCE = 60.0


def call(tool: str, **args: Any) -> dict[str, Any]:
    """A call in a script."""
    return {"tool": tool, "args": args}


def _writes(branch: str) -> dict[str, Any]:
    steps = [
        {"calls": [call("write", path="lib.txt", content=f"from {branch}\n")]},
        {"say": f"{branch} wrote lib.txt."},
    ]
    return {"when": "^task", "branch": branch, "steps": steps}


#: Answers, and branches that each write a file.
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


def write_script(place: Path, rules: list[dict[str, Any]] | None = None, **more: Any) -> str:
    """A script in a file; gives the name of its model."""
    file = place / "script.json"
    file.write_text(json.dumps({"reply": SCRIPT if rules is None else rules, **more}))
    return f"script:{file}"


class Heard(list[Event]):
    """All that was told, and a way to wait for more of it."""

    def __init__(self) -> None:
        self._came = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.append(event)
        self._came.set()

    def of(self, kind: type[E]) -> list[E]:
        """The events of a kind."""
        return [event for event in self if isinstance(event, kind)]

    def last(self, kind: type[E]) -> E:
        """The last of a kind."""
        return self.of(kind)[-1]

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until something is so, looking whenever something was told."""
        async with asyncio.timeout(PATIENCE):
            while not is_so():
                self._came.clear()
                await self._came.wait()

    async def branch(self, label: str, state: str, times: int = 1) -> None:
        """Wait until a branch was in a state so often."""

        def count() -> int:
            return sum(one.branch == label and one.state == state for one in self.of(BranchChanged))

        await self.until(lambda: count() >= times)

    def fine(self, but: int = 0) -> None:
        """Nothing went wrong, but for so many things that were meant to."""
        assert [event.text for event in self.of(Failed)][but:] == []


@asynccontextmanager
async def chatting(project: Path, model: str, **options: Any) -> AsyncIterator[tuple[Session, Heard]]:
    """A chat, which is ended in the end."""
    heard = Heard()
    session = await Session.open(project, model=model, listener=heard, **options)
    try:
        yield session, heard
    finally:
        await session.close()
