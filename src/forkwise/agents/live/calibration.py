"""Calibration: how often what a judge picked was later undone or overridden, and so what its confidence is worth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forkwise.agents.live.confidence import Signal
from forkwise.agents.live.verdict import JudgeVerdict
from forkwise.ledger.reading import Reading
from forkwise.ledger.record import ForkRecord

__all__ = ["Calibration", "JudgedFork", "calibrate", "judged_forks", "track_record", "votes_of"]

_BANDS = 10
# How many picks of a band weigh as much as the judge's own word.
_PRIOR = 5
_WEIGHT = 0.2


@dataclass(frozen=True, slots=True)
class JudgedFork:
    """A pick of a judge, and what became of it."""

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
    """One judge's picks: how many, how many held, and how far its confidence was off.

    ``brier`` is the mean squared difference between confidence and outcome: 0.0 is perfect, 0.25 a coin. ``bands`` has
    for every tenth of confidence that occurred how many picks there were, and how many held.
    """

    judge: str
    picks: int
    undone: int
    overridden: int
    brier: float
    bands: Mapping[int, tuple[int, int]]

    @classmethod
    def from_ledger(cls, ledger: Reading) -> dict[str, Calibration]:
        """The calibration of every judge whose picks a ledger has, by the judge's name."""
        return calibrate(judged_forks(ledger))

    @property
    def held(self) -> int:
        """How many picks held."""
        return sum(held for _, held in self.bands.values())

    @property
    def hold_rate(self) -> float:
        """The share of picks that held."""
        return self.held / self.picks

    @property
    def trust(self) -> float:
        """The same for a judge of whom little is known: it begins at 1.0, as if a few picks had held before."""
        return (self.held + _PRIOR) / (self.picks + _PRIOR)

    def adjusted(self, confidence: float) -> float:
        """What a confidence of this judge is worth: what held at such confidence, and its word where little is known.

        >>> sure = [JudgedFork("haiku", 0.95, was_undone=n < 10) for n in range(20)]
        >>> round(calibrate(sure)["haiku"].adjusted(0.95), 2)
        0.59
        """
        picks, held = self.bands.get(_band(confidence), (0, 0))
        return (held + _PRIOR * confidence) / (picks + _PRIOR)


def calibrate(records: Iterable[JudgedFork]) -> dict[str, Calibration]:
    """The calibration of every judge there are records of."""
    by_judge: dict[str, list[JudgedFork]] = defaultdict(list)
    for record in records:
        by_judge[record.judge].append(record)
    return {judge: _calibration(judge, picks) for judge, picks in by_judge.items()}


def judged_forks(ledger: Reading) -> list[JudgedFork]:
    """The picks of judges that a ledger tells of, and what became of them, the newest first.

    A pick counts once its fork was decided. It was overridden where somebody decided for another branch, and undone
    where what it put into the workspace was taken back. A judge whom only other judges of its panel outvoted was
    neither right nor wrong: nobody looked.
    """
    return [pick for fork in ledger.forks(state="resolved") for pick in _picks(fork)]


def track_record(calibrations: Mapping[str, Calibration], *judges: str, weight: float = _WEIGHT) -> Signal:
    """A signal for `merge_confidence`: how often the picks of these judges held, in the mean of those that have any.

    >>> bad = calibrate(JudgedFork("haiku", 0.9, was_undone=True) for _ in range(15))
    >>> track_record(bad, "haiku").measure(...), track_record(bad, "opus").measure(...)
    (0.25, None)
    """
    known = [calibrations[judge].trust for judge in judges if judge in calibrations]
    trust = sum(known) / len(known) if known else None
    return Signal("track_record", weight, lambda _: trust)


def votes_of(judges: Sequence[str], verdicts: Sequence[JudgeVerdict]) -> list[dict[str, Any]]:
    """What each judge said, as the verdict on a fork has it in the ledger."""
    return [
        {"judge": judge, "winner": verdict.winner_branch_id, "confidence": verdict.confidence}
        for judge, verdict in zip(judges, verdicts, strict=True)
    ]


def _picks(fork: ForkRecord) -> Iterator[JudgedFork]:
    kept = _kept(fork)
    by_judges = (fork.resolution or {}).get("how") == "vote"
    for vote in _votes(fork.verdict or {}):
        if vote["winner"] in kept:
            yield JudgedFork(vote["judge"], vote["confidence"], was_undone=fork.undone is not None)
        elif not by_judges:
            yield JudgedFork(vote["judge"], vote["confidence"], was_overridden=True)


def _votes(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each judge said; verdicts of no judge, such as those that tests come to, have none."""
    votes = verdict.get("votes")
    return votes if isinstance(votes, list) else []


def _kept(fork: ForkRecord) -> set[str]:
    """The attempts whose work a fork was decided for."""
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
