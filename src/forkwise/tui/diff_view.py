"""Diffs: a unified diff on a screen of its own, and the n-way view of all attempts.

The n-way view shows the parent and every version of a file side by side; the user accepts and rejects hunk by hunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

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

from forkwise.display.nway_grid import (
    DiffCell,
    GridRow,
    accept,
    build_rows,
    count_regions,
    format_choice,
    format_region,
    is_accepted,
    reject,
)
from forkwise.display.output import printable
from forkwise.files.selection import AlignedPath, Choice
from forkwise.tui.widgets import TextLine

__all__ = [
    "DiffScreen",
    "DiffView",
    "NwayScreen",
    "NwayView",
]


_KINDS = {"+": "diff--added", "-": "diff--removed", "@": "diff--hunk"}
_HEADS = ("diff ", "--- ", "+++ ")


class DiffView(ScrollView, can_focus=True):
    """A unified diff. ``n`` and ``p`` scroll from file to file."""

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
        """The diff."""
        return "\n".join(self._lines)

    @text.setter
    def text(self, text: str) -> None:
        self._lines = [printable(line.expandtabs(4)) for line in text.removesuffix("\n").split("\n")]
        self._files = [number for number, line in enumerate(self._lines) if line.startswith("diff ")]
        self.virtual_size = Size(max(map(cell_len, self._lines)), len(self._lines))
        self.refresh()

    def action_file(self, step: int) -> None:
        """Scroll to the next or the previous file."""
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
    """A unified diff with a title."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "back", "back")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self.heading = title
        self.text = text or "no file was changed"

    def compose(self) -> ComposeResult:
        """Yield the title, the diff and the keys."""
        yield TextLine(self.heading)
        yield DiffView(self.text)
        yield Footer(compact=True)

    def action_back(self) -> None:
        """Close the diff."""
        self.dismiss()


_NARROWEST = 18
_STYLES = {"changed": "nway--changed", "removed": "nway--removed"}


class NwayView(ScrollView, can_focus=True):
    """One path with a column for the parent and for each version, and a cursor on a version of a region."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"nway--changed", "nway--removed", "nway--head", "nway--cursor"}
    DEFAULT_CSS = """
    NwayView { width: 1fr; height: 1fr; }
    NwayView > .nway--changed { color: $text-success; }
    NwayView > .nway--removed { color: $text-error; }
    NwayView > .nway--head { background: $panel; text-style: bold; }
    NwayView > .nway--cursor { text-style: bold reverse; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "region(-1)", "hunk", show=False),
        Binding("down", "region(1)", "hunk", show=False),
        Binding("left", "version(-1)", "attempt", show=False),
        Binding("right", "version(1)", "attempt", show=False),
        Binding("space", "toggle_hunk", "accept/reject"),
    ]

    class Toggled(Message):
        """The user accepts or rejects a version's change of a region."""

        def __init__(self, region: int, version: str) -> None:
            super().__init__()
            self.region = region
            self.version = version

    class CursorMoved(Message):
        """The user moved the cursor."""

    def __init__(self, versions: Sequence[str], names: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.versions = tuple(versions)
        self._version_names = dict(names or {})
        self.region_number = 0
        self.column = 0
        self._lineup: AlignedPath | None = None
        self._choice: Choice | None = None
        self._rows: list[GridRow] = []

    @property
    def version(self) -> str:
        """The version under the cursor."""
        return self.versions[self.column]

    def show(self, lineup: AlignedPath, choice: Choice | None) -> None:
        """Show a path and the choice made for it."""
        if lineup is not self._lineup:
            self._lineup, self.region_number = lineup, 0
            self._rows = build_rows(lineup, self.versions)
            self.column = next((n for n, name in enumerate(self.versions) if name in lineup.versions), 0)
            self.scroll_to(0, 0, animate=False)
        self._choice = choice
        self._measure()
        self.refresh()

    def on_resize(self) -> None:
        """Fit the columns to the new width."""
        self._measure()

    def watch_show_vertical_scrollbar(self) -> None:
        """Fit the columns beside the scroll bar; without this the view would scroll sideways by its width."""
        self.call_after_refresh(self._measure)

    def action_region(self, step: int) -> None:
        """Move to the next or the previous region."""
        if self._lineup is not None:
            self._move_to(min(max(self.region_number + step, 0), count_regions(self._lineup) - 1), self.column)

    def action_version(self, step: int) -> None:
        """Move to the next or the previous version."""
        self._move_to(self.region_number, min(max(self.column + step, 0), len(self.versions) - 1))

    def action_toggle_hunk(self) -> None:
        """Accept or reject the change under the cursor."""
        self.post_message(self.Toggled(self.region_number, self.version))

    def on_click(self, event: Any) -> None:
        """Move the cursor to a click; accept or reject the change by a click on its head."""
        offset = event.get_content_offset(self)
        number = -1 if offset is None else offset.y + round(self.scroll_offset.y) - 1
        if offset is None or not 0 <= number < len(self._rows):
            return
        row = self._rows[number]
        column = (offset.x + round(self.scroll_offset.x)) // self._width - 1
        if row.region is not None and 0 <= column < len(self.versions):
            self._move_to(row.region, column)
            if row.is_head:
                self.action_toggle_hunk()

    def _move_to(self, region: int, column: int) -> None:
        self.region_number, self.column = region, column
        rows = [number for number, row in enumerate(self._rows) if row.region == region]
        if rows:
            # One line more than the region at the top, which the fixed row of names covers.
            height = min(len(rows) + 2, max(self.size.height - 1, 1))
            left = (column + 1) * self._width
            self.scroll_to_region(Region(left, rows[0], self._width, height), animate=False)
        self.refresh()
        self.post_message(self.CursorMoved())

    @property
    def _width(self) -> int:
        return max(_NARROWEST, self.scrollable_content_region.width // (len(self.versions) + 1))

    def _measure(self) -> None:
        self.virtual_size = Size(self._width * (len(self.versions) + 1), len(self._rows) + 1)

    # Drawing

    def render_line(self, y: int) -> Strip:
        """Draw one line; the first always shows the names of the columns."""
        left, top = self.scroll_offset
        width = self.size.width
        if y == 0:
            strip = Strip(self._draw_names())
        elif top + y - 1 < len(self._rows):
            strip = Strip(self._draw_row(self._rows[top + y - 1]))
        else:
            return Strip.blank(width, self.rich_style)
        return strip.crop_extend(left, left + width, self.rich_style)

    def _draw_names(self) -> list[Segment]:
        style = self.get_component_rich_style("nway--head")
        names = ["parent", *(printable(self._version_names.get(name, name)) for name in self.versions)]
        return [self._draw_cell(name, style, is_last=n == len(self.versions)) for n, name in enumerate(names)]

    def _draw_row(self, row: GridRow) -> list[Segment]:
        return [
            self._draw_cell(self._format_cell(row, n, cell), self._style(row, n, cell), is_last=n == len(self.versions))
            for n, cell in enumerate(row.cells)
        ]

    def _format_cell(self, row: GridRow, column: int, cell: DiffCell) -> str:
        if not row.is_head or column == 0:
            return cell.text
        assert self._lineup is not None
        assert row.region is not None
        if cell.mark == "same":
            return "="
        name = self.versions[column - 1]
        return "[✓] accepted" if is_accepted(self._choice, self._lineup, row.region, name) else "[ ]"

    def _style(self, row: GridRow, column: int, cell: DiffCell) -> Style:
        if row.is_head and column - 1 == self.column and row.region == self.region_number:
            return self.get_component_rich_style("nway--cursor")
        if row.is_head:
            return self.get_component_rich_style("nway--head")
        kind = _STYLES.get(cell.mark)
        return self.rich_style if kind is None else self.get_component_rich_style(kind)

    def _draw_cell(self, text: str, style: Style, *, is_last: bool) -> Segment:
        cut = set_cell_size(text, self._width - 1)
        if len(text) > len(cut.rstrip()) and text.rstrip() != cut.rstrip():
            cut = set_cell_size(text, self._width - 2) + "…"
        return Segment(f"{cut}{' ' if is_last else '│'}", style)


class NwayScreen(Screen[Mapping[str, Choice] | None]):
    """The n-way view of every path that an attempt changed. Returns the choice, or None if the user goes back.

    ``names`` are the names of versions for people, if they differ from their ids.
    """

    DEFAULT_CSS = """
    NwayScreen OptionList { width: auto; max-width: 24; height: 1fr; padding: 0; border: none;
        border-right: solid $panel; }
    NwayScreen > DiffView { height: 30%; border-top: solid $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "path(1)", "next file"),
        Binding("p", "path(-1)", "previous file", show=False),
        Binding("a", "all(True)", "accept all"),
        Binding("x", "all(False)", "reject all"),
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
        versions = sorted({n for one in lineups for n in one.versions}, key=_sort_key)
        self._view = NwayView(versions, self.names, id="nway")

    def compose(self) -> ComposeResult:
        """Yield the list of paths, the n-way view and the change under the cursor."""
        yield TextLine(id="nway-title")
        with Horizontal():
            yield OptionList(
                *(Option(self._format_path(lineup)) for lineup in self.lineups), id="nway-paths", markup=False
            )
            yield self._view
        yield DiffView(id="nway-hunk")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Show the first path; hide the list if it is the only one."""
        self._paths.display = len(self.lineups) > 1
        self._paths.highlighted = 0
        self._view.focus()
        self._show_title()

    @property
    def _paths(self) -> OptionList:
        return self.query_one("#nway-paths", OptionList)

    @property
    def current(self) -> AlignedPath:
        """The path in the n-way view."""
        return self.lineups[self._paths.highlighted or 0]

    def on_option_list_option_highlighted(self) -> None:
        """Show the path under the cursor."""
        self._view.show(self.current, self.choice.get(self.current.path))
        self._show_title()
        self.on_nway_view_cursor_moved()

    def on_nway_view_cursor_moved(self) -> None:
        """Show the change under the cursor in full width."""
        version = self._view.version
        text = format_region(self.current, self._view.region_number, version, self.names.get(version))
        self.query_one("#nway-hunk", DiffView).text = text

    def on_nway_view_toggled(self, event: NwayView.Toggled) -> None:
        """Accept or reject a change."""
        lineup, choice = self.current, self.choice.get(self.current.path)
        change = reject if is_accepted(choice, lineup, event.region, event.version) else accept
        self._choose(lineup, change(choice, lineup, event.region, event.version))

    def action_path(self, step: int) -> None:
        """Show the next or the previous path."""
        self._paths.highlighted = ((self._paths.highlighted or 0) + step) % len(self.lineups)

    def action_all(self, should_accept: bool) -> None:
        """Accept all changes of this path by the attempt under the cursor, or reject those of all attempts."""
        choice: Choice | None = None
        for number in range(count_regions(self.current)) if should_accept else ():
            choice = accept(choice, self.current, number, self._view.version)
        self._choose(self.current, choice)

    def action_done(self) -> None:
        """Return the choice, unless it is empty."""
        if self.choice:
            self.dismiss(dict(self.choice))
        else:
            self.notify("Accept a change first: press space.", severity="warning")

    def action_back(self) -> None:
        """Close without a choice."""
        self.dismiss(None)

    def _choose(self, lineup: AlignedPath, choice: Choice | None) -> None:
        if choice:
            self.choice[lineup.path] = choice
        else:
            self.choice.pop(lineup.path, None)
        self._view.show(lineup, choice)
        number = self.lineups.index(lineup)
        self._paths.replace_option_prompt_at_index(number, self._format_path(lineup))
        self._show_title()

    def _format_path(self, lineup: AlignedPath) -> str:
        mark = "✓" if lineup.path in self.choice else " "
        return f"{mark} {printable(lineup.path)}"

    def _show_title(self) -> None:
        position = f"file {(self._paths.highlighted or 0) + 1} of {len(self.lineups)}"
        line = f"{printable(self.current.path)} · {position} · accepted: {format_choice(self.choice)}"
        self.query_one("#nway-title", TextLine).show(line)


def _sort_key(name: str) -> tuple[str, int]:
    fork, _, number = name.rpartition(".")
    return fork, int(number) if number.isdigit() else 0
