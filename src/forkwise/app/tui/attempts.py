"""Attempts: the table of a fork, one row an attempt, of which only what has changed is drawn again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.text import Text
from textual.widgets import DataTable
from textual.widgets.data_table import RowKey

from forkwise.app.cli.board import Row
from forkwise.app.cli.output import printable
from forkwise.app.tui.chips import chip

__all__ = ["AttemptTable"]

_WIDEST = {"what": 20, "last line": 60}
_ALWAYS = ("", "state", "#", "what", "time")
_SOMETIMES = ("files", "tests", "score", "cost", "last line")


class AttemptTable(DataTable[Text]):
    """One row an attempt, by its id. ``marked`` are those that somebody chose to do something with together."""

    DEFAULT_CSS = "AttemptTable { height: 1fr; }"

    def __init__(self, **options: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, **options)
        self.marked: list[str] = []
        self._cells: dict[str, dict[str, Text]] = {}
        self._told: tuple[str, ...] = ()
        self._widths: list[int] = []

    @property
    def current(self) -> str | None:
        """The attempt under the cursor."""
        if not self.row_count:
            return None
        return str(self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value)

    def toggle_mark(self) -> None:
        """Mark the attempt under the cursor, or no longer, and go on to the next."""
        name = self.current
        if name is not None:
            self.marked = [m for m in self.marked if m != name] if name in self.marked else [*self.marked, name]
            self._put(name, "", _mark(name in self.marked))
            self.move_cursor(row=self.cursor_row + 1)

    def clear_marks(self) -> None:
        """Mark none."""
        for name in self.marked:
            self._put(name, "", _mark(False))
        self.marked = []

    def show(self, rows: Sequence[Row], now: float) -> None:
        """Show attempts as they are."""
        drawn = {row.attempt.id: self._drawn(row, now) for row in rows}
        told = (*_ALWAYS, *(name for name in _SOMETIMES if any(cells[name].plain for cells in drawn.values())))
        here = self.current
        is_anew = told != self._told or list(drawn)[: len(self._cells)] != list(self._cells)
        if is_anew:
            self.clear(columns=True)
            self._cells, self._told = {}, told
            for name in told:
                self.add_column(name, key=name)
        for name, cells in drawn.items():
            if name in self._cells:
                for column in told:
                    self._put(name, column, cells[column])
            else:
                self._cells[name] = cells
                self.add_row(*(cells[column] for column in told), key=name)
        if is_anew and here in drawn:
            self.move_cursor(row=self.get_row_index(here))

    def _update_dimensions(self, new_rows: Iterable[RowKey]) -> None:
        """Draw all anew where a column turns out wider: widths are measured when nothing else is to be done, and what
        was drawn before that stood at the wrong place."""
        super()._update_dimensions(new_rows)
        widths = [column.get_render_width(self) for column in self.ordered_columns]
        if widths != self._widths:
            self._widths = widths
            self._clear_caches()
            self.refresh()

    def _put(self, name: str, column: str, cell: Text) -> None:
        cells = self._cells[name]
        if cells[column] != cell or cells[column].style != cell.style:
            grows = cell.cell_len > cells[column].cell_len
            cells[column] = cell
            self.update_cell(name, column, cell, update_width=grows)

    def _drawn(self, row: Row, now: float) -> dict[str, Text]:
        cells = row.cells(now)
        number = row.attempt.id if row.depth else row.attempt.id.rpartition(".")[2]
        texts = {
            **{name: _cut(cells[name], _WIDEST.get(name, 12)) for name in ("what", "time", "files", "tests", "score")},
            "#": f"{'  ' * row.depth}{number}",
            "cost": cells["cost"],
            "last line": _cut(printable(cells[""]), _WIDEST["last line"]),
        }
        return {
            "": _mark(row.attempt.id in self.marked),
            "state": chip(cells["state"]),
            **{name: Text(text, no_wrap=True) for name, text in texts.items()},
        }


def _mark(is_marked: bool) -> Text:
    return Text("▪" if is_marked else " ", style="bold yellow")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
