"""How sure a merge is: the signals that count, and how far each judge's confidence can be trusted.

A judge is calibrated by its past picks in the ledger: how often they were later undone or overridden.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic_ai.messages import ModelMessage

from forkwise.ledger.ledger import Ledger
from forkwise.ledger.records import ForkRecord
from forkwise.live.diff.diff_report import BranchDiffReport, measure_support
from forkwise.live.diff.tool_calls import retries_of
from forkwise.live.judging.verdict import BranchOutcome, ConfidenceSignals, JudgeVerdict

__all__ = [
    "MERGE_SIGNALS",
    "NO_TESTS_CAP",
    "STUCK_LOOP_MARKERS",
    "Calibration",
    "Evidence",
    "JudgedFork",
    "MergeConfidence",
    "Signal",
    "calibrate",
    "compute_confidence",
    "count_retry_parts",
    "count_stuck_loop_hits",
    "judged_forks",
    "measure_signals",
    "merge_confidence",
    "track_record",
    "votes_of",
]


#: The upper limit of the signals if no tests ran.
NO_TESTS_CAP = 0.65

#: Phrases, in lower case, of a retry prompt that reports a loop.
STUCK_LOOP_MARKERS = (
    "stuck in a loop",
    "stuck loop",
    "loop detected",
    "same arguments",
    "identical arguments",
    "alternating between",
    "returned the same result",
)

_SPREAD, _TESTS, _CONSISTENCY = 0.4, 0.4, 0.2


def compute_confidence(signals: ConfidenceSignals, judge_confidence: float) -> float:
    """Compute (0.4 · spread + 0.4 · tests + 0.2 · consistency) · the judge's own confidence.

    Without tests their term is 0 and the sum is limited to 0.65.

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
    """Count the retry prompts in a history, for whatever reason."""
    return len(retries_of(messages))


def count_stuck_loop_hits(messages: Sequence[ModelMessage]) -> int:
    """Count the retry prompts that report a loop."""
    texts = [retry.text.lower() for retry in retries_of(messages)]
    return sum(any(marker in text for marker in STUCK_LOOP_MARKERS) for text in texts)


@dataclass(frozen=True)
class Evidence:
    """The facts on which a fork is decided."""

    report: BranchDiffReport
    outcomes: Sequence[BranchOutcome]
    verdict: JudgeVerdict

    @property
    def winner(self) -> BranchOutcome:
        """The branch that the judge chose."""
        return next(o for o in self.outcomes if o.branch_id == self.verdict.winner_branch_id)

    @property
    def others(self) -> list[BranchOutcome]:
        """All other branches."""
        return [o for o in self.outcomes if o.branch_id != self.verdict.winner_branch_id]


def measure_signals(evidence: Evidence) -> ConfidenceSignals:
    """Measure the three signals of `compute_confidence`."""
    winner = evidence.winner
    return ConfidenceSignals(
        quality_spread=1.0 - evidence.report.summary.agreement_score,
        test_pass_ratio=winner.test_pass_ratio,
        internal_consistency=_consistency(evidence),
    )


@dataclass(frozen=True)
class Signal:
    """One weighted piece of evidence about the winner.

    ``measure`` returns 0 to 1, or None if it does not apply: the other signals then weigh more, but the result is
    limited to ``cap_without``, if set.
    """

    name: str
    weight: float
    measure: Callable[[Evidence], float | None]
    cap_without: float | None = None


class MergeConfidence(NamedTuple):
    """The confidence of a merge, and the value of each signal."""

    value: float
    measured: Mapping[str, float | None]


def merge_confidence(evidence: Evidence, signals: Sequence[Signal] | None = None) -> MergeConfidence:
    """Compute the weighted mean of the signals, times the judge's own confidence.

    ``signals`` defaults to `MERGE_SIGNALS`; ``[*MERGE_SIGNALS, Signal(…)]`` adds one.
    """
    used = MERGE_SIGNALS if signals is None else signals
    measured = {signal.name: signal.measure(evidence) for signal in used}
    values = [(signal.weight, value) for signal in used if (value := measured[signal.name]) is not None]
    caps = [s.cap_without for s in used if measured[s.name] is None and s.cap_without is not None]
    total = sum(weight for weight, _ in values)
    mean = sum(weight * _clamped(value) for weight, value in values) / total if total else 0.0
    return MergeConfidence(_clamped(min([mean, *caps]) * _known(evidence.verdict.confidence)), measured)


def _tests(evidence: Evidence) -> float | None:
    return evidence.winner.test_pass_ratio


def _consistency(evidence: Evidence) -> float:
    winner = evidence.winner
    return _clamped(1.0 - (winner.retry_count + winner.stuck_loop_hits) / max(winner.turns, 1))


def _standing(evidence: Evidence) -> float:
    """Compare the winner with the others: they agree with it, it leads in tests, or they clearly differ."""
    tests = evidence.winner.test_pass_ratio or 0.0
    best_other = max((other.test_pass_ratio or 0.0 for other in evidence.others), default=0.0)
    spread = 1.0 - evidence.report.summary.agreement_score
    return max(measure_support(evidence.report, evidence.winner.branch_id), _clamped(tests - best_other), spread)


#: The signals that decide about a merge: the winner's tests, its consistency, and its lead over the others.
MERGE_SIGNALS = (
    Signal("tests", 0.6, _tests, cap_without=NO_TESTS_CAP),
    Signal("consistency", 0.2, _consistency),
    Signal("standing", 0.2, _standing),
)


def _known(confidence: float) -> float:
    """Return a judge's confidence, or 0 if it is not a finite number."""
    return confidence if math.isfinite(confidence) else 0.0


def _clamped(value: float) -> float:
    """Clamp a value to 0 to 1; anything but a finite number is 0."""
    return max(0.0, min(1.0, value)) if math.isfinite(value) else 0.0


_BANDS = 10
# The number of picks in a band that weigh as much as the judge's own confidence.
_PRIOR = 5
_WEIGHT = 0.2


@dataclass(frozen=True, slots=True)
class JudgedFork:
    """A judge's pick, and whether it was later undone or overridden."""

    judge: str
    confidence: float
    was_undone: bool = False
    was_overridden: bool = False

    @property
    def held(self) -> bool:
        """Whether the pick was neither undone nor overridden."""
        return not (self.was_undone or self.was_overridden)


@dataclass(frozen=True, slots=True)
class Calibration:
    """One judge's record: its picks, how many held, and how far its confidence was off.

    ``brier`` is the mean squared difference between confidence and outcome: 0.0 is perfect, 0.25 a coin. ``bands`` maps
    each tenth of confidence to its number of picks, and how many of them held.
    """

    judge: str
    picks: int
    undone: int
    overridden: int
    brier: float
    bands: Mapping[int, tuple[int, int]]

    @classmethod
    def from_ledger(cls, ledger: Ledger) -> dict[str, Calibration]:
        """Return the calibration of every judge in a ledger, by the judge's name."""
        return calibrate(judged_forks(ledger))

    @property
    def held(self) -> int:
        """The number of picks that held."""
        return sum(held for _, held in self.bands.values())

    @property
    def hold_rate(self) -> float:
        """The share of picks that held."""
        return self.held / self.picks

    @property
    def trust(self) -> float:
        """The hold rate, starting at 1.0 for a judge with few picks, as if some had held before."""
        return (self.held + _PRIOR) / (self.picks + _PRIOR)

    def adjusted(self, confidence: float) -> float:
        """Return the calibrated confidence: the hold rate at such confidence, mixed with the judge's own word.

        >>> sure = [JudgedFork("haiku", 0.95, was_undone=n < 10) for n in range(20)]
        >>> round(calibrate(sure)["haiku"].adjusted(0.95), 2)
        0.59
        """
        picks, held = self.bands.get(_band(confidence), (0, 0))
        return (held + _PRIOR * confidence) / (picks + _PRIOR)


def calibrate(records: Iterable[JudgedFork]) -> dict[str, Calibration]:
    """Calibrate every judge that has records."""
    by_judge: dict[str, list[JudgedFork]] = defaultdict(list)
    for record in records:
        by_judge[record.judge].append(record)
    return {judge: _calibration(judge, picks) for judge, picks in by_judge.items()}


def judged_forks(ledger: Ledger) -> list[JudgedFork]:
    """List the judges' picks in a ledger, newest first, with their later fate.

    A pick counts once its fork is resolved. It was overridden if another branch was picked instead, and undone if its
    commit was undone. A judge that was merely outvoted by its panel counts as neither.
    """
    return [pick for fork in ledger.forks(state="resolved") for pick in _picks(fork)]


def track_record(calibrations: Mapping[str, Calibration], *judges: str, weight: float = _WEIGHT) -> Signal:
    """Build a signal for `merge_confidence`: the mean trust in these judges, from their past picks.

    >>> bad = calibrate(JudgedFork("haiku", 0.9, was_undone=True) for _ in range(15))
    >>> track_record(bad, "haiku").measure(...), track_record(bad, "opus").measure(...)
    (0.25, None)
    """
    known = [calibrations[judge].trust for judge in judges if judge in calibrations]
    trust = sum(known) / len(known) if known else None
    return Signal("track_record", weight, lambda _: trust)


def votes_of(judges: Sequence[str], verdicts: Sequence[JudgeVerdict]) -> list[dict[str, Any]]:
    """Return each judge's vote in the form that the ledger stores."""
    return [
        {"judge": judge, "winner": verdict.winner_branch_id, "confidence": verdict.confidence}
        for judge, verdict in zip(judges, verdicts, strict=True)
    ]


def _picks(fork: ForkRecord) -> Iterator[JudgedFork]:
    winners = _winners(fork)
    by_judges = (fork.resolution or {}).get("how") == "vote"
    for vote in _votes(fork.verdict or {}):
        if vote["winner"] in winners:
            yield JudgedFork(vote["judge"], vote["confidence"], was_undone=fork.undone is not None)
        elif not by_judges:
            yield JudgedFork(vote["judge"], vote["confidence"], was_overridden=True)


def _votes(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the stored votes; a verdict that comes from tests alone has none."""
    votes = verdict.get("votes")
    return votes if isinstance(votes, list) else []


def _winners(fork: ForkRecord) -> set[str]:
    """Return the attempts that a fork was decided for."""
    return {fork.winner} if fork.winner is not None else set((fork.resolution or {}).get("attempts", ()))


def _calibration(judge: str, picks: list[JudgedFork]) -> Calibration:
    bands: dict[int, tuple[int, int]] = {}
    for pick in picks:
        count, held = bands.get(_band(pick.confidence), (0, 0))
        bands[_band(pick.confidence)] = (count + 1, held + pick.held)
    return Calibration(
        judge,
        len(picks),
        sum(pick.was_undone for pick in picks),
        sum(pick.was_overridden for pick in picks),
        sum((pick.confidence - pick.held) ** 2 for pick in picks) / len(picks),
        bands,
    )


def _band(confidence: float) -> int:
    return min(int(confidence * _BANDS), _BANDS - 1)
