"""Policy: one way to choose between attempts, as a pattern of forkwise; and how it is played."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.quality.agent import Agent, Judge
from bench.quality.bug import Bug, write_project
from bench.quality.replay import ReplayFork, replay
from bench.quality.verdict import GRADINGS, Grading, Verdict, build_tests
from forkwise import BestOfN, RecursiveTournament, Speculate, Workspace
from forkwise.explore.evidence.summary import AttemptSummary, Summaries
from forkwise.explore.pattern import Pattern
from forkwise.fork.attempt import Attempt

__all__ = ["ATTEMPTS", "POLICIES", "Play", "Policy", "play", "play_with_files"]

ATTEMPTS = 8

#: A candidate: a function of its directory and, in a recursive tournament, of its number and its feedback.
Task = Callable[..., bool]
#: Builds a pattern from its candidates, the judge, the tests, if any, and what summarises attempts.
Build = Callable[[list[Task], Judge, Any, Summaries], Pattern]


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to choose. ``grading`` is None if it runs no tests; ``build`` is None if it is no pattern of forkwise."""

    name: str
    grading: Grading | None = None
    build: Build | None = None

    @property
    def label(self) -> str:
        return self.name if self.grading is None else f"{self.name}, {self.grading}"


def _speculate(tasks: list[Task], judge: Judge, tests: Any, summaries: Summaries) -> Pattern:
    return Speculate(tasks, evaluate=tests, max_parallel=1)


def _best_of(tasks: list[Task], judge: Judge, tests: Any, summaries: Summaries) -> Pattern:
    return BestOfN(tasks, evaluate=tests)


def _best_of_judged(tasks: list[Task], judge: Judge, tests: Any, summaries: Summaries) -> Pattern:
    return BestOfN(tasks, judge=judge.compare, evaluate=tests)


def _recursive(tasks: list[Task], judge: Judge, tests: Any, summaries: Summaries) -> Pattern:
    return RecursiveTournament(tasks, judge=judge.compare, evaluate=tests, summaries=summaries)


POLICIES = (
    Policy("pass@1"),
    *(Policy("first success", grading, _speculate) for grading in GRADINGS),
    *(Policy("best of 8 by tests", grading, _best_of) for grading in GRADINGS),
    Policy("best of 8 by judge", None, _best_of_judged),
    *(Policy("best of 8 by tests and judge", grading, _best_of_judged) for grading in GRADINGS),
    *(Policy("recursive tournament", grading, _recursive) for grading in GRADINGS),
    Policy("oracle"),
)


@dataclass(frozen=True, slots=True)
class Play:
    """One fork by one policy: the attempt that it chose, whether that is a fix, and what it cost."""

    winner: int | None
    is_fix: bool
    attempts: int
    tests: int = 0
    calls: int = 0
    seconds: float = 0.0


async def play(
    policy: Policy,
    agent: Agent,
    verdicts: dict[Grading, list[Verdict]],
    *,
    judge: Judge | None = None,
    count: int = ATTEMPTS,
) -> Play:
    """Let a policy choose between the agent's attempts, with the verdicts of the tests."""
    if policy.build is None:
        count = 1 if policy.name == "pass@1" else count
        fixes = [i for i in range(count) if agent.patches[agent.attempt(i)].is_fix]
        return Play(fixes[0] if fixes else None, bool(fixes), count)
    judge = judge or Judge({}, agent.seed)
    known = None if policy.grading is None else verdicts[policy.grading]
    tests = None if policy.grading is None else _build_tests_once(policy.grading)
    pattern = policy.build([_do_nothing] * count, judge, tests, _NoSummaries())
    fork = ReplayFork(pattern, agent, known, judge.is_fix)
    winner = await replay(pattern, fork)
    ended = [agent.attempt(fork.attempts.index(attempt)) for attempt in fork.ended]
    return Play(
        winner,
        winner is not None and agent.patches[agent.attempt(winner)].is_fix,
        len(ended),
        0 if known is None else len(ended),
        judge.calls,
        0.0 if known is None else sum(known[patch].seconds for patch in ended),
    )


_build_tests_once = cache(build_tests)  # nothing is tested with them; patterns ask for their criteria


def _do_nothing(path: Path, *_: Any) -> bool:
    return True


class _NoSummaries(Summaries):
    """Summaries of attempts without files; the simulated agent learns nothing from them."""

    async def summarise(self, attempt: Attempt) -> AttemptSummary:
        return AttemptSummary(attempt=attempt.id, label="", outcome=attempt.state)


def play_with_files(policy: Policy, bug: Bug, agent: Agent, directory: str) -> int | None:
    """Run a policy with files, sandboxes and a commit; return the number of the attempt that it chooses."""
    assert policy.build is not None
    root = Path(tempfile.mkdtemp(prefix=f"{bug.name}-", dir=directory))
    write_project(bug, root)
    numbered: dict[int, Path] = {}

    def make(index: int) -> Task:
        def write(path: Path, number: int | None = None, feedback: str | None = None) -> bool:
            number = index if number is None else number  # a refined attempt has the candidate of an earlier one
            numbered[number] = path
            agent.patches[agent.attempt(number)].apply(path)
            (path / "notes.md").write_text(f"Attempt {number}\n")  # no two attempts are the same, as with real agents
            return True

        return write

    class FileJudge(Judge):
        async def compare(self, first: Path, second: Path) -> int:
            self.is_fix = {numbered[index]: agent.patches[agent.attempt(index)].is_fix for index in sorted(numbered)}
            return await Judge.compare(self, first, second)

    tests = None if policy.grading is None else build_tests(policy.grading)
    pattern = policy.build([make(index) for index in range(ATTEMPTS)], FileJudge({}, agent.seed), tests, Summaries())
    outcome = pattern(Workspace(root, durable=False))
    if outcome.winner is None:
        return None
    chosen = agent.patches[agent.attempt(outcome.winner.branch_index)]
    for name, content in chosen.files.items():
        path = root / name
        assert content == (path.read_text() if path.exists() else None), f"{bug.name}: another attempt was committed"
    return outcome.winner.branch_index
