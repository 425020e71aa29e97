"""How several versions of a path are laid out side by side: the parent and each attempt in a column of its own, and
what belongs together on one row. Values only; the view draws them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from forkwise.app.cli.output import printable, size_text
from forkwise.files.choosing import Choice, Lineup
from forkwise.files.diff import Side
from forkwise.files.hunks import Alignment, Hunk
from forkwise.files.lines import is_text, lines_of

__all__ = ["Cell", "GridRow", "accept", "changed", "counted", "is_accepted", "lay_out", "places", "reject"]

_CONTEXT = 2

Mark = Literal["same", "changed", "removed", "empty"]


@dataclass(frozen=True, slots=True)
class Cell:
    """What one column has in a row, and how that is to the parent's."""

    text: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class GridRow:
    """One row: the parent's cell, then one for each version. ``place`` is the number of the region it is part of, None
    for lines that all share; ``is_head`` is the row above a region, where one accepts and rejects."""

    cells: tuple[Cell, ...]
    place: int | None = None
    is_head: bool = False


def places(lineup: Lineup) -> int:
    """How many regions there are to accept or reject something in."""
    return 1 if lineup.alignment is None else len(lineup.alignment.regions)


def changed(lineup: Lineup, place: int, version: str, name: str | None = None) -> str:
    """What a version, of that name for people, makes of a region, one line below the other as a diff has it."""
    left = f"{name or version} left it as the parent has it"
    if version not in lineup.versions:
        return left
    if lineup.alignment is None:
        old, new = _described(lineup.base), _described(lineup.versions[version])
    else:
        region = lineup.alignment.regions[place]
        if not region.of(version):
            return left
        parts = (lineup.alignment.part(region, name) for name in (None, version))
        old, new = ([_text(line) for line in part] for part in parts)
    return "\n".join([*(f"-{line}" for line in old), *(f"+{line}" for line in new)])


def lay_out(lineup: Lineup, versions: Sequence[str]) -> list[GridRow]:
    """The rows of a path. ``versions`` are the columns; one that left the path alone has the parent's lines in it."""
    if lineup.alignment is None:
        return _whole(lineup, versions)
    rows: list[GridRow] = []
    alignment = lineup.alignment
    at = 0
    for number, region in enumerate(alignment.regions):
        rows += _shared(alignment, at, region.start, len(versions), is_first=number == 0)
        heads = [_head(bool(region.of(name))) for name in versions]
        where = f"@@ {region.start + 1}" + (f"-{region.stop}" if region.stop > region.start + 1 else "")
        rows.append(GridRow((Cell(where, "same"), *heads), number, is_head=True))
        parts = [alignment.part(region, name) for name in (None, *versions)]
        marks: list[Mark] = ["removed", *("changed" if region.of(name) else "same" for name in versions)]
        rows += _side_by_side([[_text(line) for line in part] for part in parts], marks, number)
        at = region.stop
    rows += _shared(alignment, at, len(alignment.base), len(versions), is_last=True)
    return rows


# Accepting and rejecting


def is_accepted(chosen: Choice | None, lineup: Lineup, place: int, version: str) -> bool:
    """Whether a version's change of a region is part of a choice."""
    if lineup.alignment is None or isinstance(chosen, str):
        return chosen == version
    own = lineup.alignment.regions[place].of(version)
    return bool(own) and set(own) <= (chosen or frozenset())


def accept(chosen: Choice | None, lineup: Lineup, place: int, version: str) -> Choice | None:
    """The choice with a version's change of a region, which takes the place of those it cannot be had with."""
    if version not in lineup.versions:
        return chosen
    if lineup.alignment is None:
        return version
    own = lineup.alignment.regions[place].of(version)
    return _kept(chosen, own) | frozenset(own)


def reject(chosen: Choice | None, lineup: Lineup, place: int, version: str) -> Choice | None:
    """The choice without it: the parent's lines are there again."""
    if lineup.alignment is None or isinstance(chosen, str):
        return None if chosen == version else chosen
    return (chosen or frozenset()) - set(lineup.alignment.regions[place].of(version)) or None


def _kept(chosen: Choice | None, own: Sequence[Hunk]) -> frozenset[Hunk]:
    before = frozenset() if chosen is None or isinstance(chosen, str) else chosen
    return frozenset(hunk for hunk in before if not any(hunk.meets(one) for one in own))


# The rows


def _shared(
    alignment: Alignment, start: int, stop: int, columns: int, *, is_first: bool = False, is_last: bool = False
) -> list[GridRow]:
    """Lines that all have, of which only those beside a region are shown."""
    lines = [_text(line) for line in alignment.base[start:stop]]
    top, bottom = (0 if is_first else _CONTEXT), (0 if is_last else _CONTEXT)
    if len(lines) > top + bottom + 1:
        left = len(lines) - top - bottom
        lines = [*lines[:top], f"⋯ {left} lines", *lines[len(lines) - bottom :]]
    return [GridRow((Cell(line, "same"),) * (columns + 1)) for line in lines]


def _whole(lineup: Lineup, versions: Sequence[str]) -> list[GridRow]:
    """A path of which one version is taken as it is."""
    heads = [_head(name in lineup.versions) for name in versions]
    sides = [lineup.base, *(lineup.versions.get(name, lineup.base) for name in versions)]
    marks: list[Mark] = ["same", *("changed" if name in lineup.versions else "same" for name in versions)]
    told = [GridRow((Cell("whole file", "same"), *heads), 0, is_head=True)]
    return told + _side_by_side([_described(side) for side in sides], marks, 0)


def _side_by_side(columns: Sequence[Sequence[str]], marks: Sequence[Mark], place: int) -> list[GridRow]:
    height = max(map(len, columns))
    return [
        GridRow(
            tuple(
                Cell(lines[n], mark) if n < len(lines) else Cell("", "empty")
                for lines, mark in zip(columns, marks, strict=True)
            ),
            place,
        )
        for n in range(height)
    ]


def _described(side: Side | None) -> list[str]:
    if side is None:
        return ["(nothing)"]
    if stat.S_ISLNK(side.mode):
        return [f"→ {printable(os.fsdecode(side.content or b''))}"]
    mode = f"mode {stat.S_IMODE(side.mode):o}"
    if side.content is None or not is_text(side.content):
        size = side.size if side.content is None else len(side.content)
        return [mode, f"{size_text(size or 0)}, not text"]
    return [mode, *(_text(line) for line in lines_of(side.content))]


def _head(is_changed: bool) -> Cell:
    return Cell("", "changed" if is_changed else "same")


def _text(line: bytes) -> str:
    ended = line.removesuffix(b"\n").decode("utf-8", "surrogateescape").expandtabs(4)
    return printable(ended) + ("" if line.endswith(b"\n") else " (no newline)")


def counted(choice: Mapping[str, Choice]) -> str:
    """How much was chosen, for people."""
    hunks = sum(len(chosen) for chosen in choice.values() if not isinstance(chosen, str))
    files = sum(isinstance(chosen, str) for chosen in choice.values())
    told = [f"{hunks} hunk{'s'[: hunks != 1]}" if hunks else "", f"{files} file{'s'[: files != 1]}" if files else ""]
    return " and ".join(filter(None, told)) or "nothing"
