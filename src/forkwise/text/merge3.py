"""Three-way merge of one text, and the alignment of many versions of it hunk by hunk.

``merge`` combines two versions and marks conflicts; ``align`` lists the hunks of any number of versions, so that a user
interface can let the user accept some of them and reject others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from forkwise.text.diff import Edit, edits, is_text, lines_of

__all__ = [
    "Alignment",
    "ConflictHunk",
    "Hunk",
    "Merge",
    "Region",
    "align",
    "is_text",
    "merge",
    "overlaps",
]


@dataclass(frozen=True, slots=True)
class ConflictHunk:
    """Lines ``start:stop`` of the base, counted from zero, that both sides changed differently."""

    start: int
    stop: int
    base: tuple[bytes, ...]
    ours: tuple[bytes, ...]
    theirs: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """The merged content, in which each conflict has both sides between git's conflict markers."""

    content: bytes
    conflicts: tuple[ConflictHunk, ...]

    @property
    def clean(self) -> bool:
        """Whether there is no conflict."""
        return not self.conflicts


@dataclass(frozen=True, slots=True)
class _Region:
    """Edits of both sides that overlap or touch, and the lines of the base that they span."""

    start: int
    stop: int
    ours: list[Edit]
    theirs: list[Edit]


def merge(
    base: bytes, ours: bytes, theirs: bytes, *, labels: tuple[str, str, str] = ("branch", "base", "parent")
) -> Merge:
    r"""Merge both sides' changes to the base.

    Changes with an unchanged line between them are combined, a change that both sides made alike is applied once, and
    others that overlap or touch conflict. The labels name ours, base and theirs in the conflict markers. The result
    differs from git's only if lines repeat so much that there are several shortest diffs and git uses another one, or
    one that is not the shortest.

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
            merged += _mark_conflict(hunk, labels, ending)
        at = region.stop
    merged += base_lines[at:]
    return Merge(b"".join(merged), tuple(conflicts))


def _conflict_regions(ours: Sequence[Edit], theirs: Sequence[Edit]) -> Iterator[_Region]:
    """Group the edits of both sides so that an unchanged line of the base is between any two groups."""
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


def _mark_conflict(hunk: ConflictHunk, labels: tuple[str, str, str], ending: bytes) -> Iterator[bytes]:
    """Yield both sides of a conflict and their base, between conflict markers."""
    our_label, base_label, their_label = (label.encode("utf-8", "surrogateescape") for label in labels)
    yield b"<<<<<<< " + our_label + ending
    yield from _end_lines(hunk.ours, ending)
    yield b"||||||| " + base_label + ending
    yield from _end_lines(hunk.base, ending)
    yield b"=======" + ending
    yield from _end_lines(hunk.theirs, ending)
    yield b">>>>>>> " + their_label + ending


def _end_lines(lines: Sequence[bytes], ending: bytes) -> Iterator[bytes]:
    """Yield the lines; a last line without an ending gets one, so that the marker after it starts on a new line."""
    for line in lines:
        yield line if line.endswith(b"\n") else line + ending


def _ends_in_crlf(
    base: Sequence[bytes], ours: Sequence[bytes], theirs: Sequence[bytes], our_start: int, their_start: int
) -> bool:
    """Return whether markers end in CRLF: as the base's first line, unless a line just before the conflict has LF."""
    before = (_is_crlf(ours, max(our_start - 1, 0)), _is_crlf(theirs, max(their_start - 1, 0)))
    return False not in before and _is_crlf(base, 0) is True


def _is_crlf(lines: Sequence[bytes], number: int) -> bool | None:
    """Return whether a line ends in CRLF; for a last line without an ending, the line before it decides."""
    if number < len(lines) and not lines[number].endswith(b"\n"):
        number -= 1
    return lines[number].endswith(b"\r\n") if 0 <= number < len(lines) else None


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines ``start:stop`` of the base, counted from zero, and one change to them that all of ``versions`` made.

    Two hunks with the same change are equal, whichever versions made it.
    """

    start: int
    stop: int
    lines: tuple[bytes, ...]
    versions: tuple[str, ...] = field(compare=False)

    def meets(self, other: Hunk) -> bool:
        """Return whether the two overlap or touch, so that they cannot be applied together."""
        return self.start <= other.stop and other.start <= self.stop


@dataclass(frozen=True, slots=True)
class Region:
    """Lines ``start:stop`` of the base that some versions changed, with all of their hunks."""

    start: int
    stop: int
    hunks: tuple[Hunk, ...]

    def of(self, version: str) -> tuple[Hunk, ...]:
        """Return the hunks of one version in this region."""
        return tuple(hunk for hunk in self.hunks if version in hunk.versions)


@dataclass(frozen=True, slots=True)
class Alignment:
    r"""Aligned versions of a text: outside of the ``regions`` all of them have the lines of the base.

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
        """All hunks, in the order of the text."""
        return tuple(hunk for region in self.regions for hunk in region.hunks)

    def of(self, version: str) -> tuple[Hunk, ...]:
        """Return all hunks of one version."""
        return tuple(hunk for hunk in self.hunks if version in hunk.versions)

    def apply(self, chosen: Iterable[Hunk]) -> bytes:
        """Return the base with some of the hunks applied; their order does not matter.

        Raise ValueError if two of them overlap or touch (see ``overlaps``), or if one is not in this alignment.
        """
        picked = sorted(set(chosen), key=_sort_key)
        known = set(self.hunks)
        if unknown := [hunk for hunk in picked if hunk not in known]:
            raise ValueError(f"the change of line {unknown[0].start + 1} is not one of this text's hunks")
        if clashes := overlaps(picked):
            first, second = clashes[0]
            raise ValueError(
                f"the changes by {_names(first)} and by {_names(second)} of line {second.start + 1} overlap: choose one"
            )
        return b"".join(_apply(picked, self.base, 0, len(self.base)))

    def part(self, region: Region, version: str | None) -> tuple[bytes, ...]:
        """Return a version's lines in a region; None is the base."""
        own = () if version is None else region.of(version)
        return tuple(_apply(own, self.base, region.start, region.stop))


def align(base: bytes, versions: Mapping[str, bytes]) -> Alignment:
    """Align versions of a text with their base; a change that several versions made alike is one hunk."""
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
    """Return the pairs of hunks that cannot be applied together, in the order of the text."""
    ordered = sorted(set(hunks), key=_sort_key)
    return [(first, second) for first, second in pairwise(ordered) if first.meets(second)]


def _regions(hunks: Sequence[Hunk]) -> Iterator[Region]:
    """Group sorted hunks so that an unchanged line is between any two groups."""
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


def _apply(hunks: Sequence[Hunk], base: Sequence[bytes], start: int, stop: int) -> Iterator[bytes]:
    """Yield lines ``start:stop`` of the base with sorted hunks applied that do not meet."""
    position = start
    for hunk in hunks:
        yield from base[position : hunk.start]
        yield from hunk.lines
        position = hunk.stop
    yield from base[position:stop]


def _sort_key(hunk: Hunk) -> tuple[int, int, tuple[str, ...]]:
    return hunk.start, hunk.stop, hunk.versions


def _names(hunk: Hunk) -> str:
    return " and ".join(hunk.versions)
