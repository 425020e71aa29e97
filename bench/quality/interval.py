"""Interval: a share with its 95 % confidence interval, by resampling the bugs or from a number of trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from random import Random

__all__ = ["Interval", "bootstrap", "estimate"]

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A share, and the bounds between which it lies with 95 % confidence."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"

    def dump(self) -> list[float]:
        """Return the interval as JSON data."""
        return [round(x, 5) for x in (self.value, self.low, self.high)]


def bootstrap(counts: Sequence[float], totals: Sequence[float]) -> Interval:
    """Return the sum of ``counts`` over the sum of ``totals``, both by bug.

    The bugs are resampled and not the seeds, because attempts at one bug have the same patches to draw from.

    >>> print(bootstrap([5, 5, 5], [10, 10, 10]))
    50.0 [50.0, 50.0]
    """
    random, bugs = Random(0), range(len(counts))
    shares = []
    for _ in range(_RESAMPLES):
        sample = random.choices(bugs, k=len(counts))
        shares.append(sum(counts[i] for i in sample) / (sum(totals[i] for i in sample) or 1))
    shares.sort()
    low, high = shares[int(0.025 * _RESAMPLES)], shares[int(0.975 * _RESAMPLES)]
    return Interval(sum(counts) / (sum(totals) or 1), low, high)


def estimate(successes: int, trials: int) -> Interval:
    """Return the share of successes in independent trials, with Wilson's interval.

    >>> print(estimate(0, 40), estimate(20, 40))
    0.0 [0.0, 8.8] 50.0 [35.2, 64.8]
    """
    z = 1.96
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))
