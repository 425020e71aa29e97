"""Verdict: what forkwise's own tests say of one patch, found once by running them in a sandbox on a branch."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bench.quality.bug import Bug, Patch, write_project
from forkwise import BestOfN, Tests, Workspace
from forkwise.files.store import trash
from forkwise.fork.attempt import Attempt
from forkwise.fork.evaluation import Evaluation, Evaluator, scratch
from forkwise.fork.fork import Fork
from forkwise.ledger.sqlite import open_ledger
from forkwise.sandbox.run import arun_in_branch

__all__ = ["GRADINGS", "Grading", "Verdict", "build_tests", "find_verdicts"]

#: How tests decide: sealed as by default; with ``sealed=False``; or as a tool does that trusts their exit code.
Grading = Literal["sealed", "unsealed", "exit code"]
GRADINGS: tuple[Grading, ...] = ("sealed", "unsealed", "exit code")

_TIMEOUT_S = 120.0
_COMMAND = f"{shlex.quote(sys.executable)} -m pytest -q"
_PARALLEL = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The evaluation of one patch: whether it may win, its scores, the reason against it, and the time taken."""

    success: bool
    scores: tuple[float, ...]
    reason: str | None
    seconds: float

    def dump(self) -> dict[str, Any]:
        """Return the verdict as JSON data."""
        return asdict(self)

    @classmethod
    def load(cls, data: dict[str, Any]) -> Verdict:
        """Read what ``dump`` returned."""
        return cls(data["success"], tuple(data["scores"]), data["reason"], data["seconds"])


class _ExitCode(Evaluator):
    """The grading of a tool that trusts the tests of the attempt: they pass if their command exits with 0."""

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        async with scratch(attempt.own_branch) as branch:
            done = await arun_in_branch(branch, ["/bin/sh", "-c", _COMMAND], timeout=_TIMEOUT_S)
        is_pass = done.returncode == 0
        return Evaluation((float(is_pass),), is_pass, None if is_pass else f"the tests exited with {done.returncode}")


class _Timed(Evaluator):
    """An evaluator that records how long each evaluation took."""

    def __init__(self, inner: Evaluator) -> None:
        self._inner = inner
        self.criteria = inner.criteria
        self.seconds: dict[int, float] = {}

    async def prepare(self, fork: Fork) -> None:
        await self._inner.prepare(fork)

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        started = time.monotonic()
        try:
            return await self._inner.evaluate(attempt)
        finally:
            self.seconds[attempt.index] = time.monotonic() - started


def build_tests(grading: Grading) -> Evaluator:
    """Build the evaluator that runs a project's visible tests."""
    if grading == "exit code":
        return _ExitCode()
    return Tests(_COMMAND, timeout=_TIMEOUT_S, sealed=grading == "sealed")


def find_verdicts(bug: Bug, patches: Sequence[Patch], directory: str, grading: Grading) -> list[Verdict]:
    """Apply each patch in a branch of the bug's project, and have forkwise test it. Nothing is committed."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # other plugins of this environment only take time
    root = Path(tempfile.mkdtemp(prefix=f"{bug.name}-", dir=directory))
    write_project(bug, root)
    tests = _Timed(build_tests(grading))
    workspace = Workspace(root, durable=False)
    outcome = BestOfN(
        [_write(patch) for patch in patches], evaluate=tests, commit=False, max_parallel=_PARALLEL, retest=False
    )(workspace)
    assert outcome.fork is not None
    with open_ledger(workspace) as ledger:
        records = {record.index: record for record in ledger.attempts(outcome.fork)}
    trash.wait_until_empty()
    verdicts = []
    for index, result in enumerate(outcome.all_results):
        if result.fault is not None:
            raise RuntimeError(f"{bug.name}, {patches[index].name}: the machine failed: {result.reason}")
        scores = tuple(records[index].scores or ())
        verdicts.append(Verdict(result.success, scores, result.reason, tests.seconds.get(index, 0.0)))
    return verdicts


def _write(patch: Patch) -> Callable[[Path], bool]:
    def write(path: Path) -> bool:
        patch.apply(path)
        return True

    return write
