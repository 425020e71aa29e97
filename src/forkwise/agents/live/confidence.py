"""Confidence: how sure a merge is, beyond the judge's own word.

`compute_confidence` is the guide's formula, which counts branches that differ for the winner. By it, branches that all
did the same and pass all tests come to 0.6 at most, and are never merged without asking. `merge_confidence` is what the
decision goes by: passing tests count most, and that others did the same counts for the winner. Where tests pass it is
never less sure than the formula. Whoever knows more adds signals of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic_ai.messages import ModelMessage

from forkwise.agents.live.agreement import support
from forkwise.agents.live.diff_report import BranchDiffReport
from forkwise.agents.live.retries import retries_of
from forkwise.agents.live.verdict import BranchOutcome, ConfidenceSignals, JudgeVerdict

__all__ = [
    "MERGE_SIGNALS",
    "NO_TESTS_CAP",
    "STUCK_LOOP_MARKERS",
    "Evidence",
    "MergeConfidence",
    "Signal",
    "compute_confidence",
    "count_retry_parts",
    "count_stuck_loop_hits",
    "measure_signals",
    "merge_confidence",
]

#: What the signals come to at most where no tests ran.
NO_TESTS_CAP = 0.65

#: What an agent is told that runs in circles, in lower case.
STUCK_LOOP_MARKERS = ("stuck in a loop", "stuck loop", "loop detected", "same arguments", "alternating between")

_SPREAD, _TESTS, _CONSISTENCY = 0.4, 0.4, 0.2


def compute_confidence(signals: ConfidenceSignals, judge_confidence: float) -> float:
    """The guide's formula: 0.4 · spread + 0.4 · tests + 0.2 · consistency, times what the judge says of itself.

    Without tests their term is 0, and the sum counts 0.65 at most.

    >>> compute_confidence(ConfidenceSignals(1.0, 1.0, 1.0), 0.9)
    0.9
    >>> compute_confidence(ConfidenceSignals(1.0, None, 1.0), 1.0)
    0.6
    """
    tests = signals.test_pass_ratio
    heuristic = _SPREAD * signals.quality_spread + _TESTS * (tests or 0.0) + _CONSISTENCY * signals.internal_consistency
    if tests is None:
        heuristic = min(heuristic, NO_TESTS_CAP)
    return _clamped(round(heuristic, 12) * _known(judge_confidence))


def count_retry_parts(messages: Sequence[ModelMessage]) -> int:
    """How often a model was told to try again, for whatever reason."""
    return len(retries_of(messages))


def count_stuck_loop_hits(messages: Sequence[ModelMessage]) -> int:
    """How often a model was told that it runs in circles."""
    told = [retry.text.lower() for retry in retries_of(messages)]
    return sum(any(marker in text for marker in STUCK_LOOP_MARKERS) for text in told)


@dataclass(frozen=True)
class Evidence:
    """All that is known when a fork is decided."""

    report: BranchDiffReport
    outcomes: Sequence[BranchOutcome]
    verdict: JudgeVerdict

    @property
    def winner(self) -> BranchOutcome:
        """The branch the judge chose."""
        return next(o for o in self.outcomes if o.branch_id == self.verdict.winner_branch_id)

    @property
    def others(self) -> list[BranchOutcome]:
        """All other branches."""
        return [o for o in self.outcomes if o.branch_id != self.verdict.winner_branch_id]


def measure_signals(evidence: Evidence) -> ConfidenceSignals:
    """The guide's three signals."""
    winner = evidence.winner
    return ConfidenceSignals(
        quality_spread=1.0 - evidence.report.summary.agreement_score,
        test_pass_ratio=winner.test_pass_ratio,
        internal_consistency=_consistency(evidence),
    )


@dataclass(frozen=True)
class Signal:
    """Something that speaks for the winner or against it.

    ``measure`` gives 0 to 1, or None where it has nothing to say: then the others count for more, but all together no
    more than ``cap_without``, if there is one.
    """

    name: str
    weight: float
    measure: Callable[[Evidence], float | None]
    cap_without: float | None = None


class MergeConfidence(NamedTuple):
    """How sure a merge is, and what each signal said."""

    value: float
    measured: Mapping[str, float | None]


def merge_confidence(evidence: Evidence, signals: Sequence[Signal] | None = None) -> MergeConfidence:
    """The weighted mean of the signals, times what the judge says of itself.

    ``signals`` are those of `MERGE_SIGNALS` unless others are given: ``[*MERGE_SIGNALS, Signal(…)]`` adds one.
    """
    used = MERGE_SIGNALS if signals is None else signals
    measured = {signal.name: signal.measure(evidence) for signal in used}
    said = [(signal.weight, value) for signal in used if (value := measured[signal.name]) is not None]
    caps = [s.cap_without for s in used if measured[s.name] is None and s.cap_without is not None]
    total = sum(weight for weight, _ in said)
    mean = sum(weight * _clamped(value) for weight, value in said) / total if total else 0.0
    return MergeConfidence(_clamped(min([mean, *caps]) * _known(evidence.verdict.confidence)), measured)


def _tests(evidence: Evidence) -> float | None:
    return evidence.winner.test_pass_ratio


def _consistency(evidence: Evidence) -> float:
    winner = evidence.winner
    return _clamped(1.0 - (winner.retry_count + winner.stuck_loop_hits) / max(winner.turns, 1))


def _standing(evidence: Evidence) -> float:
    """How the winner stands among the others: they did the same, it is ahead in tests, or they are plainly apart."""
    tests = evidence.winner.test_pass_ratio or 0.0
    best_other = max((other.test_pass_ratio or 0.0 for other in evidence.others), default=0.0)
    spread = 1.0 - evidence.report.summary.agreement_score
    return max(support(evidence.report, evidence.winner.branch_id), _clamped(tests - best_other), spread)


#: What a merge goes by: the winner's tests, how straight it went, and how it stands among the others.
MERGE_SIGNALS = (
    Signal("tests", 0.6, _tests, cap_without=NO_TESTS_CAP),
    Signal("consistency", 0.2, _consistency),
    Signal("standing", 0.2, _standing),
)


def _known(confidence: float) -> float:
    """A judge's confidence, which counts for nothing where it is no number."""
    return confidence if math.isfinite(confidence) else 0.0


def _clamped(value: float) -> float:
    """From 0 to 1; what is no number speaks for nothing."""
    return max(0.0, min(1.0, value)) if math.isfinite(value) else 0.0
