"""Evaluation: how good an attempt is that ended well, told by whoever can tell: a function, the diff, the tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkwise.fork.attempt import Attempt
from forkwise.fork.telling import as_score, as_truth, shown
from forkwise.fork.testing.report import TestReport
from forkwise.runners.asking import ask
from forkwise.sandbox.threads import in_thread

__all__ = ["Evaluate", "Evaluation", "Evaluator", "OwnScore", "SmallerDiff", "evaluator"]

_NOT = "its evaluation returned False"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluator says: scores, the first of which counts first, and whether the attempt may win at all."""

    scores: tuple[float, ...] = ()
    success: bool = True
    reason: str | None = None
    tests: TestReport | None = None


class Evaluator(ABC):
    """Something that says how good an attempt is. It must not change the attempt's branch."""

    @abstractmethod
    async def evaluate(self, attempt: Attempt) -> Evaluation:
        """Evaluate an attempt that ended well."""


#: What patterns take: an evaluator, a function of the directory that gives a score, or several, the first first.
Evaluate = Evaluator | Callable[[Path], Any] | Sequence[Evaluator | Callable[[Path], Any]]


def evaluator(what: Evaluate) -> Evaluator:
    """An evaluator from what a caller gave."""
    if isinstance(what, Evaluator):
        return what
    if callable(what):
        return _ByFunction(what)
    if isinstance(what, list | tuple) and what:
        return _InOrder([evaluator(one) for one in what])
    raise TypeError(f"an evaluator is a function, Tests(...), or a list of such, not {what!r}")


class OwnScore(Evaluator):
    """What an attempt says of itself; for who wants to weigh other things after that."""

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        return Evaluation(attempt.scores)


class SmallerDiff(Evaluator):
    """The fewer lines an attempt added and removed, the better. What is not text counts as one line."""

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        diff = await in_thread(attempt.place.diff)
        return Evaluation((-float(_lines_changed(diff)),))


def _lines_changed(diff: str) -> int:
    """Lines of hunks: the head of a file looks like some. A file that is not shown counts as one."""
    changed, in_hunk = 0, False
    for line in diff.split("\n"):
        if line.startswith(("diff ", "@@ ")):
            in_hunk = line.startswith("@@ ")
        elif line.startswith(("+", "-") if in_hunk else ("Binary files ", "Files ")):
            changed += 1
    return changed


class _ByFunction(Evaluator):
    def __init__(self, function: Callable[[Path], Any]) -> None:
        self._function = function

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        path = await in_thread(lambda: attempt.place.path)
        return _read((await ask(self._function, path)).get())


class _InOrder(Evaluator):
    """Several, each asked only where those before had nothing against the attempt."""

    def __init__(self, several: Sequence[Evaluator]) -> None:
        self._several = several

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        scores: tuple[float, ...] = ()
        tests = None
        for one in self._several:
            said = await one.evaluate(attempt)
            scores += said.scores
            tests = said.tests or tests
            if not said.success:
                return Evaluation(scores, False, said.reason, tests)
        return Evaluation(scores, tests=tests)


def _read(value: Any) -> Evaluation:
    """A score, a verdict, or both."""
    if isinstance(value, Evaluation):
        return value
    if isinstance(value, tuple | list) and len(value) == 2:
        success, score = as_truth(value[0]), as_score(value[1])
        is_plain = success is not None and score is not None
    else:
        success, score = as_truth(value), as_score(value)
        is_plain = success is not None or score is not None
    if not is_plain:
        return Evaluation(success=False, reason=f"its evaluation returned {shown(value)}, which is no score")
    scores = (float(success is True) if score is None else score,)
    return Evaluation(scores, success is not False, _NOT if success is False else None)
