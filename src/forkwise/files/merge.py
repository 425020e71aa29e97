"""The three-way merge of one file's contents, line by line and as git does it.

Apart from the commit that asks for it: a merge is a pure function of three contents, and its conflicts are values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forkwise.files.lines import Edit, edits, is_text, lines_of

__all__ = ["Hunk", "Merge", "is_text", "merge"]


@dataclass(frozen=True, slots=True)
class Hunk:
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
    conflicts: tuple[Hunk, ...]

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
    (Hunk(start=0, stop=1, base=(b'a\n',), ours=(b'A\n',), theirs=(b'b\n',)),)
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
    for region in _regions(edits(base_lines, our_lines), edits(base_lines, their_lines)):
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
            hunk = Hunk(region.start, region.stop, tuple(base_part), tuple(our_part), tuple(their_part))
            conflicts.append(hunk)
            ending = b"\r\n" if _ends_in_crlf(base_lines, our_lines, their_lines, our_start, their_start) else b"\n"
            merged += _marked(hunk, labels, ending)
        at = region.stop
    merged += base_lines[at:]
    return Merge(b"".join(merged), tuple(conflicts))


def _regions(ours: Sequence[Edit], theirs: Sequence[Edit]) -> Iterator[_Region]:
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


def _marked(hunk: Hunk, labels: tuple[str, str, str], ending: bytes) -> Iterator[bytes]:
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
