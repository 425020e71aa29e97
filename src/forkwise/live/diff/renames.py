"""Renamed and copied files, and blocks of lines that a branch moved within a file or between files.

Both are found through lines that few files share, so the cost does not grow with the number of file pairs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from forkwise.live.diff.diff_report import BranchDiffReport
from forkwise.text.diff import edits, is_text, lines_of

__all__ = [
    "MIN_SIMILARITY",
    "LineCounts",
    "MovedBlock",
    "Origin",
    "find_origins",
    "moved_blocks",
]


#: The similarity from which one file counts as a rename or a copy of another.
MIN_SIMILARITY = 0.5

# A line that more files than this contain is no evidence of an origin.
_MAX_HOLDERS = 16
# The number of files, among those that share lines with a new file, that are compared with it in full.
_MAX_COMPARED = 4


class Origin(NamedTuple):
    """The origin of a file: its path, their similarity, and whether it is a rename (else a copy)."""

    path: str
    similarity: float
    is_rename: bool


#: A cache: the lines of each content, with the number of times each occurs.
LineCounts = dict[bytes, Counter[bytes]]


def find_origins(
    created: Mapping[str, bytes],
    deleted: Mapping[str, bytes],
    kept: Mapping[str, bytes],
    line_counts: LineCounts | None = None,
) -> dict[str, Origin]:
    r"""Find the origins of created files: a deleted file it was renamed from, else a kept one it was copied from.

    A deleted file is the origin of at most one rename: that of the most similar new file. ``line_counts`` is a cache
    that the caller passes again if the same contents occur in several calls.

    >>> find_origins({"new.py": b"a\nb\nc\n"}, {"old.py": b"a\nb\n"}, {"b.py": b"x\n"})
    {'new.py': Origin(path='old.py', similarity=0.6666666666666666, is_rename=True)}
    """
    found: dict[str, Origin] = {}
    available = dict(deleted)
    line_counts = {} if line_counts is None else line_counts
    for similarity, new, old in _find_pairs(created, deleted, line_counts):
        if new not in found and old in available:
            found[new] = Origin(old, similarity, is_rename=True)
            del available[old]
    rest = {path: content for path, content in created.items() if path not in found}
    for similarity, new, old in _find_pairs(rest, {**kept, **deleted}, line_counts):
        if new not in found:
            found[new] = Origin(old, similarity, is_rename=False)
    return found


def _find_pairs(
    news: Mapping[str, bytes], olds: Mapping[str, bytes], line_counts: LineCounts
) -> list[tuple[float, str, str]]:
    """Find pairs of a new and an old file that are similar, most similar first, then those with the same name."""
    if not news or not olds:
        return []
    pairs = list(_find_identical(news, olds))
    settled = {new for _, new, _ in pairs}
    pairs += _find_similar({path: content for path, content in news.items() if path not in settled}, olds, line_counts)
    return sorted(pairs, key=lambda pair: (-pair[0], _base_name(pair[1]) != _base_name(pair[2]), pair[1], pair[2]))


def _find_identical(news: Mapping[str, bytes], olds: Mapping[str, bytes]) -> Iterable[tuple[float, str, str]]:
    by_content: dict[bytes, list[str]] = defaultdict(list)
    for path, content in olds.items():
        if content:  # empty files are all identical, which is no evidence of an origin
            by_content[content].append(path)
    # Among many identical files the nth new one is paired with the nth old one, which keeps this linear.
    taken: Counter[bytes] = Counter()
    for path, content in sorted(news.items()):
        if same := by_content.get(content):
            same_name = [old for old in same[:_MAX_HOLDERS] if _base_name(old) == _base_name(path)]
            for old in {same[taken[content] % len(same)], *same_name}:
                yield 1.0, path, old
            taken[content] += 1


def _find_similar(
    news: Mapping[str, bytes], olds: Mapping[str, bytes], line_counts: LineCounts
) -> Iterable[tuple[float, str, str]]:
    new_lines = {
        path: _count_lines(content, line_counts) for path, content in news.items() if content and is_text(content)
    }
    old_lines = {
        path: _count_lines(content, line_counts) for path, content in olds.items() if content and is_text(content)
    }
    wanted = dict.fromkeys(line for counts in new_lines.values() for line in counts)
    holders: dict[bytes, list[str]] = defaultdict(list)
    for path, counts in old_lines.items():
        for line in counts.keys() & wanted.keys():
            holders[line].append(path)
    for new, counts in new_lines.items():
        shared: Counter[str] = Counter()
        for line in counts:
            paths = holders.get(line, ())
            if len(paths) <= _MAX_HOLDERS:
                for old in paths:
                    shared[old] += len(line)
        for old, _ in shared.most_common(_MAX_COMPARED):
            similarity = _measure_similarity(counts, old_lines[old], max(len(news[new]), len(olds[old])))
            if similarity >= MIN_SIMILARITY:
                yield similarity, new, old


def _count_lines(content: bytes, line_counts: LineCounts) -> Counter[bytes]:
    counts = line_counts.get(content)
    if counts is None:
        counts = line_counts[content] = Counter(lines_of(content))
    return counts


def _measure_similarity(new: Counter[bytes], old: Counter[bytes], size: int) -> float:
    return sum(len(line) * count for line, count in (new & old).items()) / size


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]


# The number of positions at which a block is searched for; lines that occur more often do not identify it.
_MAX_POSITIONS = 8


@dataclass(frozen=True, slots=True)
class MovedBlock:
    """A number of ``lines`` that were moved; line numbers start at 1, and the indentation may differ."""

    from_path: str
    from_line: int
    to_path: str
    to_line: int
    lines: int


class _LineRun(NamedTuple):
    """Consecutive lines that were removed, or added; without indentation, which a move may change."""

    path: str
    start: int
    lines: list[bytes]


def moved_blocks(report: BranchDiffReport, branch_id: str, *, least: int = 3) -> list[MovedBlock]:
    """Find the blocks of at least ``least`` lines that a branch moved, except those of renamed files."""
    removed, added = _find_line_runs(report, branch_id)
    renamed = {(change.renamed_from, path.path) for path, change in report.changes_of(branch_id)}
    positions: dict[tuple[bytes, ...], list[tuple[int, int]]] = defaultdict(list)
    for number, run in enumerate(added):
        for at in range(len(run.lines) - least + 1):
            positions[tuple(run.lines[at : at + least])].append((number, at))
    taken: set[tuple[int, int]] = set()
    blocks = []
    for run in removed:
        at = 0
        while at <= len(run.lines) - least:
            candidates = positions.get(tuple(run.lines[at : at + least]), [])
            size, number, to = max(
                (
                    (_count_common_lines(run.lines, at, added[number].lines, to), number, to)
                    for number, to in candidates[:_MAX_POSITIONS]
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


def _find_line_runs(report: BranchDiffReport, branch_id: str) -> tuple[list[_LineRun], list[_LineRun]]:
    removed: list[_LineRun] = []
    added: list[_LineRun] = []
    for path, change in report.changes_of(branch_id):
        if change.is_binary:
            continue
        old, new = _split_lines(path.parent_content), _split_lines(change.new_content)
        for edit in edits(old, new):
            removed += _cut_line_run(path.path, old, edit.old_start, edit.old_stop)
            added += _cut_line_run(path.path, new, edit.new_start, edit.new_stop)
    return removed, added


def _split_lines(content: str | None) -> list[bytes]:
    return lines_of((content or "").encode())


def _cut_line_run(path: str, lines: Sequence[bytes], start: int, stop: int) -> Iterator[_LineRun]:
    if stop > start:
        yield _LineRun(path, start, [line.strip() for line in lines[start:stop]])


def _count_common_lines(one: Sequence[bytes], at: int, other: Sequence[bytes], to: int) -> int:
    """Count the equal lines from the two positions on."""
    size = 0
    while at + size < len(one) and to + size < len(other) and one[at + size] == other[to + size]:
        size += 1
    return size
