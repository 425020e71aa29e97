"""Overview: all branches side by side, each with the last of what it said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import set_cell_size
from rich.text import Text
from textual.events import Click
from textual.message import Message
from textual.widget import Widget

from forkwise.app.cli.output import printable
from forkwise.app.tui.chat.signs import branch_chip
from forkwise.app.tui.chat.transcript import wrapped

__all__ = ["Cell", "Overview", "grid"]

_NARROWEST = 26
_LOWEST = 3


@dataclass(frozen=True)
class Cell:
    """A branch as the overview shows it."""

    label: str
    state: str
    note: str
    lines: tuple[str, ...]


def grid(count: int, width: int, height: int) -> tuple[int, int]:
    """Into how many columns and rows so many cells go: side by side while there is room for that.

    >>> grid(2, 80, 16), grid(3, 80, 16), grid(10, 80, 16), grid(10, 200, 40)
    ((2, 1), (3, 1), (3, 4), (5, 2))
    """
    columns = max(1, min(count, width // _NARROWEST))
    rows = -(-count // columns)
    while columns > 1 and -(-count // (columns - 1)) == rows:
        columns -= 1
    return columns, max(1, min(rows, height // _LOWEST))


class Overview(Widget):
    """A grid of cells. A click on one goes to its branch."""

    DEFAULT_CSS = "Overview { height: 1fr; width: 100%; }"

    class Chosen(Message):
        """Somebody clicked a branch."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._cells: tuple[Cell, ...] = ()

    def show(self, cells: Sequence[Cell]) -> None:
        """Show branches as they are now."""
        if tuple(cells) != self._cells:
            self._cells = tuple(cells)
            self.refresh()

    def render(self) -> Text:
        """Draw all of them."""
        picture = Text(no_wrap=True, end="")
        if not self._cells:
            return picture
        columns, rows = self._grid
        width, height = self.size.width // columns, self.size.height // rows
        for row in range(rows):
            cells = self._cells[row * columns : (row + 1) * columns]
            drawn = [_drawn(cell, width - 1, height) for cell in cells]
            for line in zip(*drawn, strict=True):
                for number, part in enumerate(line):
                    picture.append("│" if number else "", style="dim")
                    picture.append_text(part)
                picture.append("\n")
        if len(self._cells) > columns * rows:
            picture.append(f"and {len(self._cells) - columns * rows} more: tab goes to each", style="dim")
        return picture

    def on_click(self, event: Click) -> None:
        """Go to the branch under the mouse."""
        if self._cells:
            columns, rows = self._grid
            column, row = event.x // (self.size.width // columns), event.y // (self.size.height // rows)
            number = row * columns + column
            if column < columns and number < len(self._cells):
                self.post_message(self.Chosen(self._cells[number].label))

    @property
    def _grid(self) -> tuple[int, int]:
        return grid(len(self._cells), self.size.width, self.size.height)


def _drawn(cell: Cell, width: int, height: int) -> list[Text]:
    title = Text.assemble((printable(cell.label), "bold"), " ", branch_chip(cell.state), f" {cell.note}")
    title.truncate(width, overflow="ellipsis", pad=True)
    title.stylize("underline")
    room = height - 1
    if room < 1:
        return [title]
    lines = [row for line in cell.lines[-room:] for row in wrapped(line, width)][-room:]
    filled = [Text(set_cell_size(line, width)) for line in lines]
    return [title, *filled, *(Text(" " * width) for _ in range(room - len(filled)))]
