"""Power cuts: which writes of a log have reached the disks.

A disk has everything that was written before its last flush. Of the later writes it may have all, or any part, in
blocks of 4 KiB.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.power.disk import BLOCK, Event

__all__ = ["Cut", "choose_cuts", "marks_before", "writes_before"]


@dataclass(frozen=True)
class Cut:
    """A power cut after ``position`` events; each unflushed block is lost with the probability ``loss``."""

    position: int
    loss: float
    seed: int


def choose_cuts(events: Sequence[Event], count: int, seed: int) -> list[Cut]:
    """Choose cuts after the mark ``start``: at flushes, between them, with random losses, and after each mark."""
    chooser = random.Random(seed)
    marks = {event.data: n for n, event in enumerate(events) if event.kind == "m"}
    first, last = marks[b"start"], marks[b"end"]
    flushes = [n + 1 for n in range(first, last) if events[n].kind == "f"]
    # What was acknowledged counts from that moment on, even if nothing unflushed survives.
    cuts = [Cut(n + 1, 1, 0) for data, n in marks.items() if data not in (b"start", b"end")]
    while len(cuts) < count:
        kind = len(cuts) % 4
        if kind == 0 and flushes:
            cuts.append(Cut(chooser.choice(flushes), 0, 0))
        elif kind == 1:
            cuts.append(Cut(chooser.randint(first + 1, last), 0, 0))
        else:
            loss = chooser.choice((0.1, 0.5, 0.9, 1))
            cuts.append(Cut(chooser.randint(first + 1, last), loss, chooser.getrandbits(32)))
    return cuts[:count]


def marks_before(events: Sequence[Event], cut: Cut) -> list[str]:
    """List the marks that were made before a cut."""
    return [event.data.decode() for event in events[: cut.position] if event.kind == "m"]


def writes_before(events: Sequence[Event], cut: Cut, disk: int) -> Iterator[tuple[int, bytes]]:
    """Yield the writes to one disk that survive a cut."""
    chooser = random.Random(cut.seed)
    flushed = max((n for n in range(cut.position) if events[n].kind == "f" and events[n].disk == disk), default=-1)
    for number in range(cut.position):
        event = events[number]
        if event.kind != "w" or event.disk != disk:
            continue
        if number < flushed or not cut.loss:
            yield event.offset, event.data
            continue
        for start in range(0, len(event.data), BLOCK):
            if chooser.random() >= cut.loss:
                yield event.offset + start, event.data[start : start + BLOCK]
