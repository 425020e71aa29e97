"""Hunks: several versions of one text lined up against what they were made from, and a choice among their changes.

Pure functions of bytes, apart from any face: whoever lets somebody accept and reject changes across branches, in a
terminal, over MCP or in a browser, asks here what there is to choose and what a choice makes of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from forkwise.text.diff import Edit, edits, is_text, lines_of

__all__ = [
    "Alignment",
    "ConflictHunk",
    "Merge",
    "Region",
    "align",
    "is_text",
    "merge",
    "overlaps",
]


@dataclass(frozen=True, slots=True)
class ConflictHunk:
    """Lines ``start:stop`` of the base, counted from zero, that both sides changed, each in its own way."""

    start: int
    stop: int
    base: tuple[bytes, ...]
    ours: tuple[bytes, ...]
    theirs: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """The merged content; where the sides conflict it holds both, between git's markers."""

    content: bytes
    conflicts: tuple[ConflictHunk, ...]

    @property
    def clean(self) -> bool:
        """Whether every change of both sides found its place."""
        return not self.conflicts


@dataclass(frozen=True, slots=True)
class _Region:
    """Edits of both sides that overlap or touch, and the lines of the base they span."""

    start: int
    stop: int
    ours: list[Edit]
    theirs: list[Edit]


def merge(
    base: bytes, ours: bytes, theirs: bytes, *, labels: tuple[str, str, str] = ("branch", "base", "parent")
) -> Merge:
    r"""Both sides' changes to the base in one content.

    Changes with an unchanged line between them are combined, a change both sides made alike is taken once, and any
    others that overlap or touch conflict. The labels name ours, base and theirs in the markers. Git differs only where
    lines repeat so much that there are several shortest diffs and it takes another one, or not a shortest.

    >>> merge(b"a\nb\nc\n", b"A\nb\nc\n", b"a\nb\nC\n").content
    b'A\nb\nC\n'
    >>> both = merge(b"a\n", b"A\n", b"b\n")
    >>> both.content
    b'<<<<<<< branch\nA\n||||||| base\na\n=======\nb\n>>>>>>> parent\n'
    >>> both.conflicts
    (ConflictHunk(start=0, stop=1, base=(b'a\n',), ours=(b'A\n',), theirs=(b'b\n',)),)
    """
    if ours == theirs or theirs == base:
        return Merge(ours, ())
    if ours == base:
        return Merge(theirs, ())
    base_lines, our_lines, their_lines = lines_of(base), lines_of(ours), lines_of(theirs)
    merged: list[bytes] = []
    conflicts = []
    at = 0
    our_shift = their_shift = 0
    for region in _conflict_regions(edits(base_lines, our_lines), edits(base_lines, their_lines)):
        merged += base_lines[at : region.start]
        our_start, their_start = region.start + our_shift, region.start + their_shift
        our_shift += _growth(region.ours)
        their_shift += _growth(region.theirs)
        our_part = our_lines[our_start : region.stop + our_shift]
        their_part = their_lines[their_start : region.stop + their_shift]
        if not region.theirs or our_part == their_part:
            merged += our_part
        elif not region.ours:
            merged += their_part
        else:
            base_part = base_lines[region.start : region.stop]
            hunk = ConflictHunk(region.start, region.stop, tuple(base_part), tuple(our_part), tuple(their_part))
            conflicts.append(hunk)
            ending = b"\r\n" if _ends_in_crlf(base_lines, our_lines, their_lines, our_start, their_start) else b"\n"
            merged += _marked(hunk, labels, ending)
        at = region.stop
    merged += base_lines[at:]
    return Merge(b"".join(merged), tuple(conflicts))


def _conflict_regions(ours: Sequence[Edit], theirs: Sequence[Edit]) -> Iterator[_Region]:
    """Group the edits of both sides so that an unchanged line of the base lies between any two groups."""
    changes = [(edit, True) for edit in ours] + [(edit, False) for edit in theirs]
    changes.sort(key=lambda change: change[0].old_start)
    stop = -1
    group: list[tuple[Edit, bool]] = []
    for edit, is_ours in changes:
        if edit.old_start > stop and group:
            yield _region(group, stop)
            group = []
        group.append((edit, is_ours))
        stop = max(stop, edit.old_stop)
    if group:
        yield _region(group, stop)


def _region(group: list[tuple[Edit, bool]], stop: int) -> _Region:
    ours = [edit for edit, is_ours in group if is_ours]
    theirs = [edit for edit, is_ours in group if not is_ours]
    return _Region(group[0][0].old_start, stop, ours, theirs)


def _growth(side: list[Edit]) -> int:
    return sum((edit.new_stop - edit.new_start) - (edit.old_stop - edit.old_start) for edit in side)


def _marked(hunk: ConflictHunk, labels: tuple[str, str, str], ending: bytes) -> Iterator[bytes]:
    """Both sides of a conflict and what they had in common, between markers."""
    our_label, base_label, their_label = (label.encode("utf-8", "surrogateescape") for label in labels)
    yield b"<<<<<<< " + our_label + ending
    yield from _whole(hunk.ours, ending)
    yield b"||||||| " + base_label + ending
    yield from _whole(hunk.base, ending)
    yield b"=======" + ending
    yield from _whole(hunk.theirs, ending)
    yield b">>>>>>> " + their_label + ending


def _whole(lines: Sequence[bytes], ending: bytes) -> Iterator[bytes]:
    """The lines, the last of them ended if it was not, so that a marker begins a line of its own."""
    for line in lines:
        yield line if line.endswith(b"\n") else line + ending


def _ends_in_crlf(
    base: Sequence[bytes], ours: Sequence[bytes], theirs: Sequence[bytes], our_start: int, their_start: int
) -> bool:
    """Whether markers end in CRLF: the base's first line must, and no line just before the conflict may end in LF."""
    before = (_is_crlf(ours, max(our_start - 1, 0)), _is_crlf(theirs, max(their_start - 1, 0)))
    return False not in before and _is_crlf(base, 0) is True


def _is_crlf(lines: Sequence[bytes], at: int) -> bool | None:
    """Whether a line ends in CRLF; a last line without an ending is asked by the one before it, if there is one."""
    if at < len(lines) and not lines[at].endswith(b"\n"):
        at -= 1
    return lines[at].endswith(b"\r\n") if 0 <= at < len(lines) else None


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines ``start:stop`` of the base, counted from zero, as they are in the ``versions`` that changed them alike. The
    same change is the same hunk, whoever else was lined up."""

    start: int
    stop: int
    lines: tuple[bytes, ...]
    versions: tuple[str, ...] = field(compare=False)

    def meets(self, other: Hunk) -> bool:
        """Whether no unchanged line of the base lies between the two, so that they cannot be had together."""
        return self.start <= other.stop and other.start <= self.stop


@dataclass(frozen=True, slots=True)
class Region:
    """Lines ``start:stop`` of the base that some versions changed, each in its own way, with all of their hunks."""

    start: int
    stop: int
    hunks: tuple[Hunk, ...]

    def of(self, version: str) -> tuple[Hunk, ...]:
        """What one version changed here; nothing where it has the base's lines."""
        return tuple(hunk for hunk in self.hunks if version in hunk.versions)


@dataclass(frozen=True, slots=True)
class Alignment:
    r"""Versions of a text, lined up: outside of the ``regions`` all of them have the lines of the base.

    >>> found = align(b"a\nb\nc\n", {"one": b"A\nb\nc\n", "two": b"a\nb\nC\n", "three": b"A\nb\n"})
    >>> [(hunk.start, hunk.versions) for hunk in found.hunks]
    [(0, ('one', 'three')), (2, ('two',)), (2, ('three',))]
    >>> found.apply([found.hunks[0], found.hunks[1]])
    b'A\nb\nC\n'
    """

    base: tuple[bytes, ...]
    versions: tuple[str, ...]
    regions: tuple[Region, ...]

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        """All that can be chosen, in the order of the text."""
        return tuple(hunk for region in self.regions for hunk in region.hunks)

    def of(self, version: str) -> tuple[Hunk, ...]:
        """All that one version changed."""
        return tuple(hunk for hunk in self.hunks if version in hunk.versions)

    def apply(self, chosen: Iterable[Hunk]) -> bytes:
        """The base with some of the hunks, in whatever order they come.

        ValueError for two that overlap or touch, as ``overlaps`` finds them, and for one that is not among these.
        """
        picked = sorted(set(chosen), key=_place)
        known = set(self.hunks)
        if strange := [hunk for hunk in picked if hunk not in known]:
            raise ValueError(f"no such change of line {strange[0].start + 1} is there to choose")
        if clashes := overlaps(picked):
            first, second = clashes[0]
            raise ValueError(
                f"the changes by {_names(first)} and by {_names(second)} of line {second.start + 1} overlap: choose one"
            )
        return b"".join(_with(picked, self.base, 0, len(self.base)))

    def part(self, region: Region, version: str | None) -> tuple[bytes, ...]:
        """What a version has in a region; None stands for the base."""
        own = () if version is None else region.of(version)
        return tuple(_with(own, self.base, region.start, region.stop))


def align(base: bytes, versions: Mapping[str, bytes]) -> Alignment:
    """Line versions of a text up against what they were made from. A change that several made alike is there once."""
    old = lines_of(base)
    makers: dict[tuple[int, int, tuple[bytes, ...]], list[str]] = {}
    for name, content in versions.items():
        new = lines_of(content)
        for edit in edits(old, new):
            change = (edit.old_start, edit.old_stop, tuple(new[edit.new_start : edit.new_stop]))
            makers.setdefault(change, []).append(name)
    order = {name: number for number, name in enumerate(versions)}
    hunks = [Hunk(*change, tuple(names)) for change, names in makers.items()]
    hunks.sort(key=lambda hunk: (hunk.start, hunk.stop, order[hunk.versions[0]]))
    return Alignment(tuple(old), tuple(versions), tuple(_regions(hunks)))


def overlaps(hunks: Iterable[Hunk]) -> list[tuple[Hunk, Hunk]]:
    """Pairs of hunks that cannot be chosen together, in the order of the text: none, if all of them can."""
    ordered = sorted(set(hunks), key=_place)
    return [(first, second) for first, second in pairwise(ordered) if first.meets(second)]


def _regions(hunks: Sequence[Hunk]) -> Iterator[Region]:
    """Group sorted hunks so that an unchanged line lies between any two groups."""
    group: list[Hunk] = []
    stop = -1
    for hunk in hunks:
        if group and hunk.start > stop:
            yield Region(group[0].start, stop, tuple(group))
            group = []
        group.append(hunk)
        stop = max(stop, hunk.stop)
    if group:
        yield Region(group[0].start, stop, tuple(group))


def _with(hunks: Sequence[Hunk], base: Sequence[bytes], start: int, stop: int) -> Iterator[bytes]:
    """Lines of the base with sorted hunks that do not meet."""
    at = start
    for hunk in hunks:
        yield from base[at : hunk.start]
        yield from hunk.lines
        at = hunk.stop
    yield from base[at:stop]


def _place(hunk: Hunk) -> tuple[int, int, tuple[str, ...]]:
    return hunk.start, hunk.stop, hunk.versions


def _names(hunk: Hunk) -> str:
    return " and ".join(hunk.versions)
