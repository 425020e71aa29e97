"""Calibration: how often what a judge picked was later undone or overridden, and so what its confidence is worth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Calibration", "JudgedFork", "calibrate"]

_BANDS = 10
# How many picks of a band weigh as much as the judge's own word.
_PRIOR = 5


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

    @property
    def hold_rate(self) -> float:
        """The share of picks that held."""
        return sum(held for _, held in self.bands.values()) / self.picks

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
