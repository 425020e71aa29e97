"""Rounds: contenders take turns, so that other load on the machine affects all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from bench.figure import Figure

__all__ = ["Contender", "play", "timed"]

#: Runs one turn with its preparation and clean-up, and returns the seconds to count.
Contender = Callable[[], float]


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that ``action`` takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def play(contenders: Mapping[str, Contender], rounds: int, warm: int = 1) -> dict[str, Figure]:
    """Run all contenders in turn: ``warm`` rounds that are not counted, then ``rounds`` for the figures.

    Every other round runs in reverse order, so that no contender always follows the same one.
    """
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for turn in range(warm + rounds):
        for name in order if turn % 2 else reversed(order):
            seconds = contenders[name]()
            if turn >= warm:
                samples[name].append(seconds)
    return {name: Figure(tuple(taken)) for name, taken in samples.items()}
