"""Rounds: contenders that take turns, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from bench.figure import Figure

__all__ = ["Contender", "play", "timed"]

#: Does one turn, with whatever has to be prepared and cleaned up around it, and gives the seconds that count.
Contender = Callable[[], float]


def timed(action: Callable[[], object]) -> float:
    """The seconds an action takes."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def play(contenders: Mapping[str, Contender], rounds: int, warm: int = 1) -> dict[str, Figure]:
    """Let all have their turns, ``warm`` times for nothing and ``rounds`` times for the figures.

    Every other round goes backwards, so that nobody always follows the same one.
    """
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for turn in range(warm + rounds):
        for name in order if turn % 2 else reversed(order):
            seconds = contenders[name]()
            if turn >= warm:
                samples[name].append(seconds)
    return {name: Figure(tuple(taken)) for name, taken in samples.items()}
