"""The kinds of candidates and the ways to run them, so that one suite covers all of them.

A ``Deed`` is a value that describes what a candidate does; a kind turns it into a function, an ``async`` function or a
command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forkwise import SandboxRunner

__all__ = ["WAYS", "Deed", "Way", "by_way"]


@dataclass(frozen=True)
class Deed:
    """A candidate that adds its name to the file ``trail`` and then succeeds or fails, with a score if it has one."""

    name: str
    ok: bool = True
    score: float | None = None

    def do(self, path: Path) -> Any:
        with (path / "trail").open("a") as file:
            file.write(f"{self.name}\n")
        return self.ok if self.score is None else (self.ok, self.score)

    def script(self) -> str:
        score = "" if self.score is None else f'echo {self.score} > "$FORKWISE_SCORE"; '
        return f"echo {self.name} >> trail; {score}exit {0 if self.ok else 1}"


@dataclass(frozen=True)
class Way:
    """A kind of candidate, and the options of the pattern that runs it."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    is_async: bool = False
    is_command: bool = False

    def one(self, deed: Deed) -> Any:
        """Build a candidate for one deed."""
        return ["sh", "-c", deed.script()] if self.is_command else self._function(deed.do)

    def several(self, deeds: Sequence[Deed]) -> list[Any]:
        return [self.one(deed) for deed in deeds]

    def numbered(self, deeds: Sequence[Deed]) -> Any:
        """Build a task that does one of several deeds, by its number."""
        if self.is_command:
            cases = " ".join(f"{number}) {deed.script()};;" for number, deed in enumerate(deeds, 1))
            return ["sh", "-c", f'case "$FORKWISE_ATTEMPT" in {cases} esac']
        return self._function(lambda path, number, *_: deeds[number].do(path))

    def taught(self, before: Deed, after: Deed) -> Any:
        """Build a task that does another deed once it gets feedback."""
        if self.is_command:
            return ["sh", "-c", f'if [ -s "$FORKWISE_FEEDBACK" ]; then {after.script()}; else {before.script()}; fi']
        return self._function(lambda path, report: (after if report else before).do(path))

    def _function(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        if not self.is_async:
            return plain

        async def awaited(*arguments: Any) -> Any:
            return plain(*arguments)

        return awaited


WAYS = [
    Way("threads"),
    Way("async", is_async=True),
    Way("isolated", {"isolate_processes": True}),
    Way("isolated-async", {"isolate_processes": True}, is_async=True),
    Way("strict", {"runner": SandboxRunner("strict")}),
    Way("commands", is_command=True),
    Way("strict-commands", {"runner": SandboxRunner("strict")}, is_command=True),
]


def by_way(way: Way) -> str:
    """Return the name for parametrised tests."""
    return way.name
