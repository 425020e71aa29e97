"""N-way diff: the parent and all attempts of a file side by side, where what is taken of whom is accepted and rejected
hunk by hunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.cells import set_cell_size
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

from forkwise.app.cli.output import printable
from forkwise.app.tui.diff import DiffView
from forkwise.app.tui.line import Line
from forkwise.app.tui.nway_layout import Cell, GridRow, accept, changed, counted, is_accepted, lay_out, places, reject
from forkwise.files.choosing import Choice, Lineup

__all__ = ["NwayScreen", "NwayView"]

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
        self._lineup: Lineup | None = None
        self._chosen: Choice | None = None
        self._rows: list[GridRow] = []

    @property
    def version(self) -> str:
        """The version under the cursor."""
        return self.versions[self.column]

    def show(self, lineup: Lineup, chosen: Choice | None) -> None:
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
        lineups: Sequence[Lineup],
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
    def current(self) -> Lineup:
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

    def _choose(self, lineup: Lineup, chosen: Choice | None) -> None:
        if chosen:
            self.choice[lineup.path] = chosen
        else:
            self.choice.pop(lineup.path, None)
        self._view.show(lineup, chosen)
        number = self.lineups.index(lineup)
        self._paths.replace_option_prompt_at_index(number, self._named(lineup))
        self._tell()

    def _named(self, lineup: Lineup) -> str:
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
