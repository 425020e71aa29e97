"""Moved blocks: lines that a branch took out in one place and put in at another, within a file or between files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from forkwise.agents.live.diff_report import BranchDiffReport
from forkwise.files.lines import edits, lines_of

__all__ = ["MovedBlock", "moved_blocks"]

# Places at which a block is sought; lines that stand in more places than this are no landmark.
_PLACES = 8


@dataclass(frozen=True, slots=True)
class MovedBlock:
    """So many ``lines``, counted from line 1, that went from one place to another; their indentation may differ."""

    from_path: str
    from_line: int
    to_path: str
    to_line: int
    lines: int


class _Run(NamedTuple):
    """Consecutive lines that were taken out, or put in: without indentation, for a block may move into another."""

    path: str
    start: int
    lines: list[bytes]


def moved_blocks(report: BranchDiffReport, branch_id: str, *, least: int = 3) -> list[MovedBlock]:
    """The blocks of at least ``least`` lines that a branch moved; files that were renamed as a whole are left out."""
    removed, added = _runs(report, branch_id)
    renamed = {(change.renamed_from, path.path) for path, change in report.changes_of(branch_id)}
    places: dict[tuple[bytes, ...], list[tuple[int, int]]] = defaultdict(list)
    for number, run in enumerate(added):
        for at in range(len(run.lines) - least + 1):
            places[tuple(run.lines[at : at + least])].append((number, at))
    taken: set[tuple[int, int]] = set()
    blocks = []
    for run in removed:
        at = 0
        while at <= len(run.lines) - least:
            landmarks = places.get(tuple(run.lines[at : at + least]), [])
            size, number, to = max(
                (
                    (_length(run.lines, at, added[number].lines, to), number, to)
                    for number, to in landmarks[:_PLACES]
                    if (number, to) not in taken and (run.path, added[number].path) not in renamed
                ),
                default=(0, 0, 0),
            )
            if size and any(len(line) > 1 for line in run.lines[at : at + size]):
                taken.update((number, to + step) for step in range(size))
                target = added[number]
                blocks.append(MovedBlock(run.path, run.start + at + 1, target.path, target.start + to + 1, size))
            at += size or 1
    return blocks


def _runs(report: BranchDiffReport, branch_id: str) -> tuple[list[_Run], list[_Run]]:
    removed: list[_Run] = []
    added: list[_Run] = []
    for path, change in report.changes_of(branch_id):
        if change.is_binary:
            continue
        old, new = _lines(path.parent_content), _lines(change.new_content)
        for edit in edits(old, new):
            removed += _run(path.path, old, edit.old_start, edit.old_stop)
            added += _run(path.path, new, edit.new_start, edit.new_stop)
    return removed, added


def _lines(content: str | None) -> list[bytes]:
    return lines_of((content or "").encode())


def _run(path: str, lines: Sequence[bytes], start: int, stop: int) -> Iterator[_Run]:
    if stop > start:
        yield _Run(path, start, [line.strip() for line in lines[start:stop]])


def _length(one: Sequence[bytes], at: int, other: Sequence[bytes], to: int) -> int:
    """How many lines from here on are the same."""
    size = 0
    while at + size < len(one) and to + size < len(other) and one[at + size] == other[to + size]:
        size += 1
    return size
