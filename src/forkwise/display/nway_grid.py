"""N-way grid: the versions of a path by several attempts as rows, and the choice of hunks among them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from forkwise.display.output import printable, size_text
from forkwise.files.selection import AlignedPath, Choice
from forkwise.text.diff import FileVersion, is_text, lines_of
from forkwise.text.merge3 import Alignment, Hunk

__all__ = [
    "DiffCell",
    "GridRow",
    "accept",
    "build_rows",
    "count_regions",
    "format_choice",
    "format_region",
    "is_accepted",
    "reject",
]

_CONTEXT = 2

Mark = Literal["same", "changed", "removed", "empty"]


@dataclass(frozen=True, slots=True)
class DiffCell:
    """The text of one column in a row, and how it relates to the parent's."""

    text: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class GridRow:
    """One row: the parent's cell, then one for each version.

    ``region`` is the number of the row's region, None for lines that all versions share. ``is_head`` marks the row
    above a region, which shows whether its hunks are accepted.
    """

    cells: tuple[DiffCell, ...]
    region: int | None = None
    is_head: bool = False


def count_regions(lineup: AlignedPath) -> int:
    """Count the regions in which hunks can be accepted."""
    return 1 if lineup.alignment is None else len(lineup.alignment.regions)


def format_region(lineup: AlignedPath, number: int, version: str, name: str | None = None) -> str:
    """Format a version's change of a region as a diff. ``name`` is the version's name for people."""
    unchanged = f"{name or version} did not change this part"
    if version not in lineup.versions:
        return unchanged
    if lineup.alignment is None:
        old, new = _describe(lineup.base), _describe(lineup.versions[version])
    else:
        region = lineup.alignment.regions[number]
        if not region.of(version):
            return unchanged
        parts = (lineup.alignment.part(region, name) for name in (None, version))
        old, new = ([_format_line(line) for line in part] for part in parts)
    return "\n".join([*(f"-{line}" for line in old), *(f"+{line}" for line in new)])


def build_rows(lineup: AlignedPath, versions: Sequence[str]) -> list[GridRow]:
    """Build the rows of a path. ``versions`` are the columns; one without a change shows the parent's lines."""
    if lineup.alignment is None:
        return _build_whole_file(lineup, versions)
    rows: list[GridRow] = []
    alignment = lineup.alignment
    line = 0
    for number, region in enumerate(alignment.regions):
        rows += _build_shared(alignment, line, region.start, len(versions), is_first=number == 0)
        heads = [_build_head(is_changed=bool(region.of(name))) for name in versions]
        title = f"@@ {region.start + 1}" + (f"-{region.stop}" if region.stop > region.start + 1 else "")
        rows.append(GridRow((DiffCell(title, "same"), *heads), number, is_head=True))
        parts = [alignment.part(region, name) for name in (None, *versions)]
        marks: list[Mark] = ["removed", *("changed" if region.of(name) else "same" for name in versions)]
        rows += _build_region([[_format_line(text) for text in part] for part in parts], marks, number)
        line = region.stop
    rows += _build_shared(alignment, line, len(alignment.base), len(versions), is_last=True)
    return rows


# Choices


def is_accepted(choice: Choice | None, lineup: AlignedPath, number: int, version: str) -> bool:
    """Return whether a choice contains a version's change of a region."""
    if lineup.alignment is None or isinstance(choice, str):
        return choice == version
    own = lineup.alignment.regions[number].of(version)
    return bool(own) and set(own) <= (choice or frozenset())


def accept(choice: Choice | None, lineup: AlignedPath, number: int, version: str) -> Choice | None:
    """Add a version's change of a region to a choice, in place of the hunks that overlap it."""
    if version not in lineup.versions:
        return choice
    if lineup.alignment is None:
        return version
    own = lineup.alignment.regions[number].of(version)
    return _without_overlap(choice, own) | frozenset(own)


def reject(choice: Choice | None, lineup: AlignedPath, number: int, version: str) -> Choice | None:
    """Remove a version's change of a region from a choice, which restores the parent's lines."""
    if lineup.alignment is None or isinstance(choice, str):
        return None if choice == version else choice
    return (choice or frozenset()) - set(lineup.alignment.regions[number].of(version)) or None


def _without_overlap(choice: Choice | None, own: Sequence[Hunk]) -> frozenset[Hunk]:
    hunks = frozenset() if choice is None or isinstance(choice, str) else choice
    return frozenset(hunk for hunk in hunks if not any(hunk.meets(one) for one in own))


# Rows


def _build_shared(
    alignment: Alignment, start: int, stop: int, columns: int, *, is_first: bool = False, is_last: bool = False
) -> list[GridRow]:
    """Build the rows for lines that all versions share; only those next to a region are shown."""
    lines = [_format_line(line) for line in alignment.base[start:stop]]
    top, bottom = (0 if is_first else _CONTEXT), (0 if is_last else _CONTEXT)
    if len(lines) > top + bottom + 1:
        hidden = len(lines) - top - bottom
        lines = [*lines[:top], f"⋯ {hidden} lines", *lines[len(lines) - bottom :]]
    return [GridRow((DiffCell(line, "same"),) * (columns + 1)) for line in lines]


def _build_whole_file(lineup: AlignedPath, versions: Sequence[str]) -> list[GridRow]:
    """Build the rows of a path that is accepted as a whole, such as a binary file."""
    heads = [_build_head(is_changed=name in lineup.versions) for name in versions]
    sides = [lineup.base, *(lineup.versions.get(name, lineup.base) for name in versions)]
    marks: list[Mark] = ["same", *("changed" if name in lineup.versions else "same" for name in versions)]
    head = GridRow((DiffCell("whole file", "same"), *heads), 0, is_head=True)
    return [head, *_build_region([_describe(side) for side in sides], marks, 0)]


def _build_region(columns: Sequence[Sequence[str]], marks: Sequence[Mark], number: int) -> list[GridRow]:
    height = max(map(len, columns))
    return [
        GridRow(
            tuple(
                DiffCell(lines[n], mark) if n < len(lines) else DiffCell("", "empty")
                for lines, mark in zip(columns, marks, strict=True)
            ),
            number,
        )
        for n in range(height)
    ]


def _describe(side: FileVersion | None) -> list[str]:
    if side is None:
        return ["(nothing)"]
    if stat.S_ISLNK(side.mode):
        return [f"→ {printable(os.fsdecode(side.content or b''))}"]
    mode = f"mode {stat.S_IMODE(side.mode):o}"
    if side.content is None or not is_text(side.content):
        size = side.size if side.content is None else len(side.content)
        return [mode, f"{size_text(size or 0)}, not text"]
    return [mode, *(_format_line(line) for line in lines_of(side.content))]


def _build_head(*, is_changed: bool) -> DiffCell:
    return DiffCell("", "changed" if is_changed else "same")


def _format_line(line: bytes) -> str:
    text = line.removesuffix(b"\n").decode("utf-8", "surrogateescape").expandtabs(4)
    return printable(text) + ("" if line.endswith(b"\n") else " (no newline)")


def format_choice(choice: Mapping[str, Choice]) -> str:
    """Format how many hunks and files a choice contains."""
    hunks = sum(len(one) for one in choice.values() if not isinstance(one, str))
    files = sum(isinstance(one, str) for one in choice.values())
    parts = [f"{hunks} hunk{'s'[: hunks != 1]}" if hunks else "", f"{files} file{'s'[: files != 1]}" if files else ""]
    return " and ".join(filter(None, parts)) or "nothing"
