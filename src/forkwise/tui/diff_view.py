"""N-way diff: the parent and all attempts of a file side by side, where what is taken of whom is accepted and rejected
hunk by hunk.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.geometry import Region, Size
from textual.message import Message
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, OptionList
from textual.widgets.option_list import Option

from forkwise.display.output import printable, size_text
from forkwise.files.selection import AlignedPath, Choice
from forkwise.text.diff import Side, is_text, lines_of
from forkwise.text.merge3 import Alignment, Hunk
from forkwise.tui.widgets import Line

__all__ = [
    "Cell",
    "DiffScreen",
    "DiffView",
    "GridRow",
    "NwayScreen",
    "NwayView",
    "accept",
    "changed",
    "counted",
    "is_accepted",
    "lay_out",
    "places",
    "reject",
]


_KINDS = {"+": "diff--added", "-": "diff--removed", "@": "diff--hunk"}
_HEADS = ("diff ", "--- ", "+++ ")


class DiffView(ScrollView, can_focus=True):
    """A diff. ``n`` and ``p`` go from file to file."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"diff--added", "diff--removed", "diff--hunk", "diff--head"}
    DEFAULT_CSS = """
    DiffView { height: 1fr; }
    DiffView > .diff--added { color: $text-success; }
    DiffView > .diff--removed { color: $text-error; }
    DiffView > .diff--hunk { color: $text-primary; }
    DiffView > .diff--head { text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "file(1)", "next file"),
        Binding("p", "file(-1)", "previous file"),
    ]

    def __init__(self, text: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._lines: list[str] = []
        self._files: list[int] = []
        self.text = text

    @property
    def text(self) -> str:
        """The diff that is shown."""
        return "\n".join(self._lines)

    @text.setter
    def text(self, text: str) -> None:
        self._lines = [printable(line.expandtabs(4)) for line in text.removesuffix("\n").split("\n")]
        self._files = [number for number, line in enumerate(self._lines) if line.startswith("diff ")]
        self.virtual_size = Size(max(map(cell_len, self._lines)), len(self._lines))
        self.refresh()

    def action_file(self, step: int) -> None:
        """Go to the next file, or to the one before."""
        here = round(self.scroll_offset.y)
        beside = [y for y in self._files if (y > here if step > 0 else y < here)]
        if beside:
            self.scroll_to(y=min(beside) if step > 0 else max(beside), animate=False)

    def render_line(self, y: int) -> Strip:
        """Draw one line."""
        left, top = self.scroll_offset
        width = self.size.width
        if top + y >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        line = self._lines[top + y]
        strip = Strip([Segment(line, self._style(line))], cell_len(line))
        return strip.crop_extend(left, left + width, self.rich_style)

    def _style(self, line: str) -> Style:
        kind = "diff--head" if line.startswith(_HEADS) else _KINDS.get(line[:1])
        return self.rich_style if kind is None else self.get_component_rich_style(kind)


class DiffScreen(Screen[None]):
    """A diff that fills the screen, under a title."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "back", "back")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self.heading = title
        self.text = text or "nothing was changed"

    def compose(self) -> ComposeResult:
        """The title, the diff, the keys."""
        yield Line(self.heading)
        yield DiffView(self.text)
        yield Footer(compact=True)

    def action_back(self) -> None:
        """Go back to where one was."""
        self.dismiss()


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


def places(lineup: AlignedPath) -> int:
    """How many regions there are to accept or reject something in."""
    return 1 if lineup.alignment is None else len(lineup.alignment.regions)


def changed(lineup: AlignedPath, place: int, version: str, name: str | None = None) -> str:
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


def lay_out(lineup: AlignedPath, versions: Sequence[str]) -> list[GridRow]:
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


def is_accepted(chosen: Choice | None, lineup: AlignedPath, place: int, version: str) -> bool:
    """Whether a version's change of a region is part of a choice."""
    if lineup.alignment is None or isinstance(chosen, str):
        return chosen == version
    own = lineup.alignment.regions[place].of(version)
    return bool(own) and set(own) <= (chosen or frozenset())


def accept(chosen: Choice | None, lineup: AlignedPath, place: int, version: str) -> Choice | None:
    """The choice with a version's change of a region, which takes the place of those it cannot be had with."""
    if version not in lineup.versions:
        return chosen
    if lineup.alignment is None:
        return version
    own = lineup.alignment.regions[place].of(version)
    return _kept(chosen, own) | frozenset(own)


def reject(chosen: Choice | None, lineup: AlignedPath, place: int, version: str) -> Choice | None:
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


def _whole(lineup: AlignedPath, versions: Sequence[str]) -> list[GridRow]:
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


_NARROWEST = 18
_STYLES = {"changed": "nway--changed", "removed": "nway--removed"}


class NwayView(ScrollView, can_focus=True):
    """One path, a column for the parent and for each version, with a cursor on one version of one region."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"nway--changed", "nway--removed", "nway--head", "nway--cursor"}
    DEFAULT_CSS = """
    NwayView { width: 1fr; height: 1fr; }
    NwayView > .nway--changed { color: $text-success; }
    NwayView > .nway--removed { color: $text-error; }
    NwayView > .nway--head { background: $panel; text-style: bold; }
    NwayView > .nway--cursor { text-style: bold reverse; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "place(-1)", "hunk", show=False),
        Binding("down", "place(1)", "hunk", show=False),
        Binding("left", "version(-1)", "attempt", show=False),
        Binding("right", "version(1)", "attempt", show=False),
        Binding("space", "take", "take/leave"),
    ]

    class Toggled(Message):
        """Somebody wants a version's change of a region, or no longer."""

        def __init__(self, place: int, version: str) -> None:
            super().__init__()
            self.place = place
            self.version = version

    class Moved(Message):
        """The cursor is elsewhere."""

    def __init__(self, versions: Sequence[str], names: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.versions = tuple(versions)
        self._named = dict(names or {})
        self.place = 0
        self.column = 0
        self._lineup: AlignedPath | None = None
        self._chosen: Choice | None = None
        self._rows: list[GridRow] = []

    @property
    def version(self) -> str:
        """The version under the cursor."""
        return self.versions[self.column]

    def show(self, lineup: AlignedPath, chosen: Choice | None) -> None:
        """Show a path, and what was chosen of it."""
        if lineup is not self._lineup:
            self._lineup, self.place = lineup, 0
            self._rows = lay_out(lineup, self.versions)
            self.column = next((n for n, name in enumerate(self.versions) if name in lineup.versions), 0)
            self.scroll_to(0, 0, animate=False)
        self._chosen = chosen
        self._measure()
        self.refresh()

    def on_resize(self) -> None:
        """Have the columns fit."""
        self._measure()

    def action_place(self, step: int) -> None:
        """Go to another region."""
        if self._lineup is not None:
            self._go(min(max(self.place + step, 0), places(self._lineup) - 1), self.column)

    def action_version(self, step: int) -> None:
        """Go to another version."""
        self._go(self.place, min(max(self.column + step, 0), len(self.versions) - 1))

    def action_take(self) -> None:
        """Take what is under the cursor, or leave it."""
        self.post_message(self.Toggled(self.place, self.version))

    def on_click(self, event: Any) -> None:
        """Go where somebody clicks; on the head of a region, take or leave it."""
        at = event.get_content_offset(self)
        number = -1 if at is None else at.y + round(self.scroll_offset.y) - 1
        if at is None or not 0 <= number < len(self._rows):
            return
        row = self._rows[number]
        column = (at.x + round(self.scroll_offset.x)) // self._width - 1
        if row.place is not None and 0 <= column < len(self.versions):
            self._go(row.place, column)
            if row.is_head:
                self.action_take()

    def _go(self, place: int, column: int) -> None:
        self.place, self.column = place, column
        rows = [number for number, row in enumerate(self._rows) if row.place == place]
        if rows:
            # With the line above it, which the row of names would else cover, and as much of it as there is room for.
            height = min(len(rows) + 2, max(self.size.height - 1, 1))
            left = (column + 1) * self._width
            self.scroll_to_region(Region(left, rows[0], self._width, height), animate=False)
        self.refresh()
        self.post_message(self.Moved())

    @property
    def _width(self) -> int:
        return max(_NARROWEST, self.size.width // (len(self.versions) + 1))

    def _measure(self) -> None:
        self.virtual_size = Size(self._width * (len(self.versions) + 1), len(self._rows) + 1)

    # Drawing

    def render_line(self, y: int) -> Strip:
        """Draw one line; the first has the names of the columns, however far one has scrolled."""
        left, top = self.scroll_offset
        width = self.size.width
        if y == 0:
            strip = Strip(self._names())
        elif top + y - 1 < len(self._rows):
            strip = Strip(self._drawn(self._rows[top + y - 1]))
        else:
            return Strip.blank(width, self.rich_style)
        return strip.crop_extend(left, left + width, self.rich_style)

    def _names(self) -> list[Segment]:
        style = self.get_component_rich_style("nway--head")
        names = ["parent", *(printable(self._named.get(name, name)) for name in self.versions)]
        return [self._segment(name, style, is_last=n == len(self.versions)) for n, name in enumerate(names)]

    def _drawn(self, row: GridRow) -> list[Segment]:
        return [
            self._segment(self._text(row, n, cell), self._style(row, n, cell), is_last=n == len(self.versions))
            for n, cell in enumerate(row.cells)
        ]

    def _text(self, row: GridRow, column: int, cell: Cell) -> str:
        if not row.is_head or column == 0:
            return cell.text
        assert self._lineup is not None
        assert row.place is not None
        if cell.mark == "same":
            return "="
        name = self.versions[column - 1]
        return "[✓] taken" if is_accepted(self._chosen, self._lineup, row.place, name) else "[ ]"

    def _style(self, row: GridRow, column: int, cell: Cell) -> Style:
        if row.is_head and column - 1 == self.column and row.place == self.place:
            return self.get_component_rich_style("nway--cursor")
        if row.is_head:
            return self.get_component_rich_style("nway--head")
        kind = _STYLES.get(cell.mark)
        return self.rich_style if kind is None else self.get_component_rich_style(kind)

    def _segment(self, text: str, style: Style, *, is_last: bool) -> Segment:
        cut = set_cell_size(text, self._width - 1)
        if len(text) > len(cut.rstrip()) and text.rstrip() != cut.rstrip():
            cut = set_cell_size(text, self._width - 2) + "…"
        return Segment(f"{cut}{' ' if is_last else '│'}", style)


class NwayScreen(Screen[Mapping[str, Choice] | None]):
    """All paths that attempts changed, each with its N-way diff; gives what was chosen, None where it was left.

    ``names`` is what versions are called for people, where that is not what they are called by.
    """

    DEFAULT_CSS = """
    NwayScreen OptionList { width: auto; max-width: 24; height: 1fr; padding: 0; border: none;
        border-right: solid $panel; }
    NwayScreen > DiffView { height: 30%; border-top: solid $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "path(1)", "next file"),
        Binding("p", "path(-1)", "file before", show=False),
        Binding("a", "all(True)", "all of attempt"),
        Binding("x", "all(False)", "none of file"),
        Binding("enter", "done", "preview", priority=True),
        Binding("escape,q", "back", "back"),
    ]

    def __init__(
        self,
        lineups: Sequence[AlignedPath],
        choice: Mapping[str, Choice] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.lineups = list(lineups)
        self.choice = dict(choice or {})
        self.names = dict(names or {})
        versions = sorted({n for one in lineups for n in one.versions}, key=_numbered)
        self._view = NwayView(versions, self.names, id="nway")

    def compose(self) -> ComposeResult:
        """The paths beside the one that is shown."""
        yield Line(id="nway-title")
        with Horizontal():
            yield OptionList(*(Option(self._named(lineup)) for lineup in self.lineups), id="nway-paths", markup=False)
            yield self._view
        yield DiffView(id="nway-hunk")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Begin with the first path. Where there is no other, there is no list of them."""
        self._paths.display = len(self.lineups) > 1
        self._paths.highlighted = 0
        self._view.focus()
        self._tell()

    @property
    def _paths(self) -> OptionList:
        return self.query_one("#nway-paths", OptionList)

    @property
    def current(self) -> AlignedPath:
        """The path that is shown."""
        return self.lineups[self._paths.highlighted or 0]

    def on_option_list_option_highlighted(self) -> None:
        """Show another path."""
        self._view.show(self.current, self.choice.get(self.current.path))
        self._tell()
        self.on_nway_view_moved()

    def on_nway_view_moved(self) -> None:
        """Show in full width what is under the cursor."""
        version = self._view.version
        text = changed(self.current, self._view.place, version, self.names.get(version))
        self.query_one("#nway-hunk", DiffView).text = text

    def on_nway_view_toggled(self, event: NwayView.Toggled) -> None:
        """Take a change, or leave it."""
        lineup, chosen = self.current, self.choice.get(self.current.path)
        change = reject if is_accepted(chosen, lineup, event.place, event.version) else accept
        self._choose(lineup, change(chosen, lineup, event.place, event.version))

    def action_path(self, step: int) -> None:
        """Go to another path."""
        self._paths.highlighted = ((self._paths.highlighted or 0) + step) % len(self.lineups)

    def action_all(self, is_taken: bool) -> None:
        """Take all that the attempt under the cursor changed in this path, or nothing of anybody."""
        chosen: Choice | None = None
        for place in range(places(self.current)) if is_taken else ():
            chosen = accept(chosen, self.current, place, self._view.version)
        self._choose(self.current, chosen)

    def action_done(self) -> None:
        """Give what was chosen, if anything was."""
        if self.choice:
            self.dismiss(dict(self.choice))
        else:
            self.notify("Take something first: space takes what is under the cursor.", severity="warning")

    def action_back(self) -> None:
        """Leave all as it is."""
        self.dismiss(None)

    def _choose(self, lineup: AlignedPath, chosen: Choice | None) -> None:
        if chosen:
            self.choice[lineup.path] = chosen
        else:
            self.choice.pop(lineup.path, None)
        self._view.show(lineup, chosen)
        number = self.lineups.index(lineup)
        self._paths.replace_option_prompt_at_index(number, self._named(lineup))
        self._tell()

    def _named(self, lineup: AlignedPath) -> str:
        mark = "✓" if lineup.path in self.choice else " "
        return f"{mark} {printable(lineup.path)}"

    def _tell(self) -> None:
        here = self._paths.highlighted or 0
        self.query_one("#nway-title", Line).say(
            f"{printable(self.current.path)} · file {here + 1} of {len(self.lineups)} · taken: {counted(self.choice)}"
        )


def _numbered(name: str) -> tuple[str, int]:
    fork, _, number = name.rpartition(".")
    return fork, int(number) if number.isdigit() else 0
