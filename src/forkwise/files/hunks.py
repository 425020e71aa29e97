"""Hunks: several versions of one text lined up against what they were made from, and a choice among their changes.

Pure functions of bytes, apart from any face: whoever lets somebody accept and reject changes across branches, in a
terminal, over MCP or in a browser, asks here what there is to choose and what a choice makes of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from forkwise.files.lines import edits, lines_of

__all__ = ["Alignment", "Hunk", "Region", "align", "overlaps"]


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
