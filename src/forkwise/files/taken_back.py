"""What a roll back put back: its ctime is then the roll back's, and says nothing of anybody who changed it since.

A path counts as changed by somebody else when its ctime is not below the moment of a fork or a commit. The steps of a
commit that was taken back have set that ctime twice. So the record of such a commit is kept, with the moment at which
all was back, and tells for every entry it touched which ctime that had before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from forkwise.files.journal import facts
from forkwise.files.record import Record, Times
from forkwise.files.state import Place

__all__ = ["TakenBack", "is_taken_back", "keep_taken_back", "mark_taken_back"]

_MARK = "taken-back"


class TakenBack:
    """The ctimes that entries of a target would have, had no commit ever been taken back."""

    def __init__(self, known: Iterable[tuple[int, Times]] = ()) -> None:
        # Newest first: a moment, and of what was put back by then ctime and mtime as they were.
        self._known = sorted(known, key=lambda k: k[0], reverse=True)

    @classmethod
    def load(cls, place: Place) -> TakenBack:
        """Read what is known of a place; nearly always that is nothing."""
        try:
            names = [n for n in os.listdir(f"{place.path}/history") if "-" in n]
        except FileNotFoundError:
            return cls()
        known = []
        for name in names:
            record = Record.load(f"{place.path}/history/{name}")
            if record is not None:
                known.append((int(name.partition("-")[2], 16), record.times()))
        return cls(known)

    def ctime(self, entry: os.stat_result) -> int:
        """When somebody last changed an entry."""
        ctime = entry.st_ctime_ns
        for moment, times in self._known:
            had = times.get(entry.st_ino) or times.get(tuple(facts(entry)))
            if had is not None and ctime <= moment and had[1] == entry.st_mtime_ns:
                ctime = min(ctime, had[0])
        return ctime


def is_taken_back(history: str) -> bool:
    """Whether all steps of a commit were taken back, and it is only to be forgotten."""
    return os.path.lexists(f"{history}/{_MARK}")


def mark_taken_back(history: str) -> int:
    """Say that they were; gives the moment, by the filesystem's own clock. Asks a full disk for a name, no more."""
    beside = f"{history}/{_MARK}.new"
    with suppress(FileNotFoundError):
        os.unlink(beside)
    os.symlink(".", beside)
    os.rename(beside, f"{history}/{_MARK}")
    return os.lstat(f"{history}/{_MARK}").st_mtime_ns


def keep_taken_back(history: str) -> None:
    """Keep the record of a commit that was taken back, after the last change, under a name that tells when that was;
    what else lies beside the record may go."""
    kept = f"{history}-{mark_taken_back(history):x}"
    os.mkdir(kept, 0o700)
    os.rename(f"{history}/record.json", f"{kept}/record.json")
