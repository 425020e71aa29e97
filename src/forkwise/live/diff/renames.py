"""Moved blocks: lines that a branch took out in one place and put in at another, within a file or between files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from forkwise.live.diff.diff_report import BranchDiffReport
from forkwise.text.diff import edits, is_text, lines_of

__all__ = [
    "ALIKE",
    "Known",
    "MovedBlock",
    "Origin",
    "moved_blocks",
    "origins",
]


#: How alike two files must be for one to have come from the other.
ALIKE = 0.5

# A line that more files have than this says nothing of where a file came from.
_COMMON = 16
# Of the files that share lines with a new one, so many are compared with it as a whole.
_COMPARED = 4


class Origin(NamedTuple):
    """Where a file came from: the path, how alike they are, and whether it left that path."""

    path: str
    similarity: float
    is_rename: bool


#: The lines of contents that were looked at before, each with how often it is there.
Known = dict[bytes, Counter[bytes]]


def origins(
    created: Mapping[str, bytes],
    deleted: Mapping[str, bytes],
    kept: Mapping[str, bytes],
    known: Known | None = None,
) -> dict[str, Origin]:
    r"""What created files came from: a deleted file each was renamed from, or else a kept one it was copied from.

    A deleted file becomes one new file at most, of several the one most like it. ``known`` is filled and used again
    where the same contents are asked about several times.

    >>> origins({"new.py": b"a\nb\nc\n"}, {"old.py": b"a\nb\n"}, {"b.py": b"x\n"})
    {'new.py': Origin(path='old.py', similarity=0.6666666666666666, is_rename=True)}
    """
    found: dict[str, Origin] = {}
    left = dict(deleted)
    known = {} if known is None else known
    for similarity, new, old in _pairs(created, deleted, known):
        if new not in found and old in left:
            found[new] = Origin(old, similarity, is_rename=True)
            del left[old]
    rest = {path: content for path, content in created.items() if path not in found}
    for similarity, new, old in _pairs(rest, {**kept, **deleted}, known):
        if new not in found:
            found[new] = Origin(old, similarity, is_rename=False)
    return found


def _pairs(news: Mapping[str, bytes], olds: Mapping[str, bytes], known: Known) -> list[tuple[float, str, str]]:
    """Pairs of a new and an old file that are alike, the most alike first, and then those of the same name."""
    if not news or not olds:
        return []
    pairs = list(_same(news, olds))
    settled = {new for _, new, _ in pairs}
    pairs += _similar({path: content for path, content in news.items() if path not in settled}, olds, known)
    return sorted(pairs, key=lambda pair: (-pair[0], _name(pair[1]) != _name(pair[2]), pair[1], pair[2]))


def _same(news: Mapping[str, bytes], olds: Mapping[str, bytes]) -> Iterable[tuple[float, str, str]]:
    by_content: dict[bytes, list[str]] = defaultdict(list)
    for path, content in olds.items():
        if content:  # empty files are all the same, and come from nowhere
            by_content[content].append(path)
    # Of many that are the same, the nth new one goes with the nth old one: each finds one, and nothing is quadratic.
    taken: Counter[bytes] = Counter()
    for path, content in sorted(news.items()):
        if same := by_content.get(content):
            named_alike = [old for old in same[:_COMMON] if _name(old) == _name(path)]
            for old in {same[taken[content] % len(same)], *named_alike}:
                yield 1.0, path, old
            taken[content] += 1


def _similar(news: Mapping[str, bytes], olds: Mapping[str, bytes], known: Known) -> Iterable[tuple[float, str, str]]:
    mine = {path: _lines(content, known) for path, content in news.items() if content and is_text(content)}
    its = {path: _lines(content, known) for path, content in olds.items() if content and is_text(content)}
    sought = dict.fromkeys(line for counted in mine.values() for line in counted)
    having: dict[bytes, list[str]] = defaultdict(list)
    for path, counted in its.items():
        for line in counted.keys() & sought.keys():
            having[line].append(path)
    for new, counted in mine.items():
        shared: Counter[str] = Counter()
        for line in counted:
            holders = having.get(line, ())
            if len(holders) <= _COMMON:
                for old in holders:
                    shared[old] += len(line)
        for old, _ in shared.most_common(_COMPARED):
            similarity = _similarity(counted, its[old], max(len(news[new]), len(olds[old])))
            if similarity >= ALIKE:
                yield similarity, new, old


def _lines(content: bytes, known: Known) -> Counter[bytes]:
    counted = known.get(content)
    if counted is None:
        counted = known[content] = Counter(lines_of(content))
    return counted


def _similarity(mine: Counter[bytes], its: Counter[bytes], size: int) -> float:
    return sum(len(line) * count for line, count in (mine & its).items()) / size


def _name(path: str) -> str:
    return path.rpartition("/")[2]


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
        old, new = _lines_of_block(path.parent_content), _lines_of_block(change.new_content)
        for edit in edits(old, new):
            removed += _run(path.path, old, edit.old_start, edit.old_stop)
            added += _run(path.path, new, edit.new_start, edit.new_stop)
    return removed, added


def _lines_of_block(content: str | None) -> list[bytes]:
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
