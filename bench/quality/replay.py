"""Replay: forkwise's own patterns, run on attempts whose verdicts are known, without files and sandboxes.

The patterns choose as they always do; only the fork that runs their candidates is replaced by one that looks up what
each candidate's patch and its tests came to. ``policy.play_with_files`` runs a sample with files, to compare.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from bench.quality.agent import Agent
from bench.quality.verdict import Verdict
from forkwise.explore.judges import contest
from forkwise.explore.pattern import Pattern, Search
from forkwise.fork.attempt import Attempt
from forkwise.fork.candidate import Candidate
from forkwise.fork.fork import Fork

__all__ = ["ReplayFork", "replay", "start_no_threads"]

_PATHS = [Path(f"/{number}") for number in range(32)]  # one for each attempt of a fork


class ReplayFork(Fork):
    """A fork whose attempts end at once, with the verdicts of the patches that the agent draws for them.

    Without ``verdicts`` nothing is tested, and every attempt succeeds. ``ended`` counts the attempts that the pattern
    waited for.
    """

    def __init__(
        self, pattern: Pattern, agent: Agent, verdicts: list[Verdict] | None, is_fix: dict[Path, bool]
    ) -> None:
        super().__init__(None, pattern.kind, pattern.settings)
        self._agent = agent
        self._verdicts = verdicts
        self._is_fix = is_fix
        self._ledger: Any = SimpleNamespace(record_verdict=lambda *_: None, fetch_files=lambda _: "/nonexistent")
        self._record: Any = SimpleNamespace(id="replay")
        self.ended: list[Attempt] = []

    def add(self, candidate: Candidate, index: int, key: str | None = None, feedback: str | None = None) -> Attempt:
        number = len(self.attempts)
        patch = self._agent.attempt(number)
        record: Any = SimpleNamespace(id=f"replay.{number}", key=key or str(index), index=index)
        attempt = Attempt(self, record, candidate, feedback, number=number + 1)
        path = _PATHS[number]
        branch: Any = SimpleNamespace(path=path, diff=lambda: f"attempt {number}")
        attempt.branch = branch
        self._is_fix[path] = self._agent.patches[patch].is_fix
        verdict = None if self._verdicts is None else self._verdicts[patch]
        attempt.state = "succeeded" if verdict is None or verdict.success else "failed"
        attempt.scores = (candidate.prior,) if verdict is None else verdict.scores
        self.attempts.append(attempt)
        return attempt

    async def finished(self, attempts: Iterable[Attempt]) -> AsyncIterator[Attempt]:
        for attempt in attempts:
            self.ended.append(attempt)
            yield attempt

    async def prepare(self, winner: Attempt) -> None:
        """Do nothing: the workspace does not change meanwhile, so no winner is tested again."""


async def replay(pattern: Pattern, fork: ReplayFork) -> int | None:
    """Run a pattern on known verdicts; return the number of the attempt that it chooses, or None."""
    winner = await pattern.explore(Search(fork))
    return None if winner is None else fork.attempts.index(winner)


@contextmanager
def start_no_threads() -> Iterator[None]:
    """Let judges find the paths of branches at once while the block runs.

    They mount a branch in a thread of its own. Without files that thread takes most of the time of a match.
    """

    async def call(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    with patch.object(contest, "run_in_thread", call):
        yield
