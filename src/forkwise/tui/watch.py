"""Watch: a fork while it runs and until it is decided, whoever runs it: its attempts, what they print and change, and
the keys by which a person decides it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, OptionList
from textual.widgets.data_table import RowKey
from textual.widgets.option_list import Option

from forkwise.concurrency import run_in_thread
from forkwise.display.board import Row, time_text
from forkwise.display.output import printable
from forkwise.ledger.records import Summary
from forkwise.tui.decide import DecidingScreen
from forkwise.tui.diff_view import DiffScreen
from forkwise.tui.fork_model import Look, Watched
from forkwise.tui.widgets import Line, OutputLog, chip, tally

__all__ = [
    "PACE",
    "AttemptTable",
    "ForksScreen",
    "WatchApp",
    "WatchScreen",
]


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


class ForksScreen(ModalScreen[str | None]):
    """The forks there are, the newest first; gives the id of one."""

    DEFAULT_CSS = """
    ForksScreen { align: center middle; }
    ForksScreen > OptionList { width: 90%; height: auto; max-height: 80%; border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,f", "back", "back")]

    def __init__(self, summaries: Sequence[Summary]) -> None:
        super().__init__()
        self.summaries = summaries

    def compose(self) -> ComposeResult:
        """One line a fork."""
        yield OptionList(*(Option(_line(summary), id=summary.fork.id) for summary in self.summaries))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Give the one that was chosen."""
        self.dismiss(event.option_id)

    def action_back(self) -> None:
        """Choose none."""
        self.dismiss(None)


def _line(summary: Summary) -> Text:
    fork = summary.fork
    states = [state for state, count in summary.attempts.items() for _ in range(count)]
    began = datetime.fromtimestamp(fork.started).strftime("%m-%d %H:%M")
    label = printable(" ".join((summary.label or "").split()))
    parts = [Text(fork.id, style="bold"), chip(fork.state), Text(fork.kind), tally(states), Text(began), Text(label)]
    line = Text("  ", no_wrap=True, overflow="ellipsis").join(part for part in parts if part.plain)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


PACE = 0.25
"""Seconds between two looks at the ledger."""

_READING = 0.1  # seconds between two looks at what is printed


class WatchScreen(DecidingScreen):
    """One fork: its attempts above, what the one under the cursor prints below."""

    DEFAULT_CSS = """
    WatchScreen > #attempts { height: auto; max-height: 50%; min-height: 4; scrollbar-size-horizontal: 0; }
    WatchScreen > #below { height: 1fr; min-height: 4; }
    WatchScreen #what { text-style: none; }
    WatchScreen OutputLog { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "mark", "mark", key_display="␣", priority=True),
        Binding("p", "pick", "pick"),
        Binding("c", "combine", "combine"),
        Binding("n", "choose", "n-way"),
        Binding("d,enter", "diff", "diff", key_display="d", priority=True),
        Binding("w", "winner", "winner", show=False),
        Binding("o", "open", "open"),
        Binding("x", "end", "end"),
        Binding("a,escape", "abort", "abort", key_display="a"),
        Binding("u", "undo", "undo"),
        Binding("f", "forks", "fork"),
        Binding("q", "leave", "quit"),
    ]

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self.table = AttemptTable(id="attempts")
        self.output = OutputLog(id="output")
        self._first_line = Line("waiting for a fork …")
        self._what = Line(id="what")
        self._followed: str | None = None

    def compose(self) -> ComposeResult:
        """The fork, its attempts, the output of one of them, the keys."""
        yield self._first_line
        yield self.table
        with Vertical(id="below"):
            yield self._what
            yield self.output
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Begin to look."""
        self.table.focus()
        self.run_worker(self._look_on(), group="look")

    # Looking

    async def _look_on(self) -> None:
        while True:
            look = await run_in_thread(self.watched.look)
            if not self.table.is_attached:  # the screen is being taken down
                return
            if look is not None and look.fork.id == self.watched.fork:
                self._show(look)
            await asyncio.sleep(PACE)

    def _show(self, look: Look) -> None:
        if self.look is None or self.look.fork.id != look.fork.id:
            self.table.marked = []
        self.look = look
        self.table.show(look.rows, self.watched.now())
        self.tell()
        self._follow_current()

    def tell(self) -> None:
        """Say in the first line how the fork is, and what is under way."""
        look = self.look
        if look is None:
            return
        fork = look.fork
        line = Text.assemble(f"{fork.kind} {fork.id}  ", chip(look.state), "  ")
        line.append(f"{time_text((fork.ended or self.watched.now()) - fork.started)}  ")
        line.append_text(tally([attempt.state for attempt in look.own]))
        line.append(f"  {self.doing} …" if self.doing else f"  {_outcome(look)}")
        self._first_line.say(line)

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        """Show what another attempt prints."""
        self._follow_current()

    def _follow_current(self) -> None:
        attempt = None if self.look is None else self.look.attempt(self.table.current or "")
        if attempt is None:
            return
        line = Text(f"{attempt.id}  {printable(' '.join(attempt.label.split()))}")
        line.append(f"  {printable(attempt.reason)}" if attempt.reason else "", style="bold")
        self._what.say(line)
        if attempt.id != self._followed:
            self._followed = attempt.id
            self.output.begin()
            self.run_worker(self._read_on(attempt.id), group="output", exclusive=True)

    async def _read_on(self, attempt: str) -> None:
        start = 0
        while True:
            start, piece = await run_in_thread(self.watched.output, attempt, start)
            if piece and self.output.is_attached:
                self.output.feed(piece)
            await asyncio.sleep(_READING)

    # Showing more

    def action_mark(self) -> None:
        """Mark the attempt under the cursor, to combine it or to line it up with others."""
        self.table.toggle_mark()

    def action_diff(self) -> None:
        """Show what the attempt under the cursor changed."""
        current = self.table.current
        if current is not None:
            self.attempt_to(self._show_diff(current, lambda: self.watched.diff(current)))

    def action_winner(self) -> None:
        """Show what won, or what is ahead."""
        fork = None if self.look is None else self.look.fork
        ahead = None if fork is None else fork.winner or (fork.verdict or {}).get("winner")
        if isinstance(ahead, str):
            self.attempt_to(self._show_diff(ahead, lambda: self.watched.diff(ahead)))
        elif fork is not None and fork.commit is not None:
            self.attempt_to(self._show_diff(f"commit {fork.commit}", lambda: self.watched.committed(fork)))
        else:
            self.notify("Nobody has won yet.")

    async def _show_diff(self, name: str, read: Callable[[], str]) -> None:
        await self.app.push_screen(DiffScreen(f"{name}: what it changed", await run_in_thread(read)))

    def action_open(self) -> None:
        """Open what the attempt under the cursor changed in one's own diff tool."""
        current = self.table.current
        if current is not None:
            self.attempt_to(self._open(current))

    async def _open(self, attempt: str) -> None:
        opening = await run_in_thread(self.watched.open, attempt)
        if opening.in_terminal:
            with self.app.suspend():
                opening.run()
            return
        self.notify(f"Opened what {attempt} changed.")
        await run_in_thread(opening.run_beside)

    def action_forks(self) -> None:
        """Go to another fork."""
        self.attempt_to(self._choose_fork())

    async def _choose_fork(self) -> None:
        fork = await self.app.push_screen_wait(ForksScreen(await run_in_thread(self.watched.forks)))
        self.watched.fork = fork or self.watched.fork

    # Deciding

    def action_pick(self) -> None:
        """Decide the fork for the attempt under the cursor."""
        attempt = None if self.look is None else self.look.attempt(self.table.current or "")
        if attempt is not None:
            self.decide(self.pick(attempt))

    def action_combine(self) -> None:
        """Decide the fork for the marked attempts together."""
        if len(self.table.marked) < 2:
            self.notify("Mark at least two attempts with space: their changes are merged, tested and committed.")
        else:
            self.decide(self.combine(tuple(self.table.marked)))

    def action_choose(self) -> None:
        """Line up what the marked attempts changed, or all that are over, and choose from it hunk by hunk."""
        self.decide(self.choose(tuple(self.table.marked)))

    def action_end(self) -> None:
        """End the attempt under the cursor; the others go on."""
        attempt = None if self.look is None else self.look.attempt(self.table.current or "")
        if attempt is not None and attempt.is_over:
            self.notify(f"{attempt.id} is over: it {'was ' if attempt.state == 'cancelled' else ''}{attempt.state}.")
        elif attempt is not None:
            self.decide(self.end(attempt))

    def action_abort(self) -> None:
        """Give the fork up."""
        self.decide(self.abort())

    def action_undo(self) -> None:
        """Take back what the fork committed."""
        fork = None if self.look is None else self.look.fork
        if fork is None or fork.commit is None or fork.undone is not None:
            self.notify("Nothing was committed that could be undone.")
        else:
            self.attempt_to(self.undo(fork.commit))

    def action_leave(self) -> None:
        """End watching; the fork goes on."""
        if self.doing:
            self.notify(f"It is {self.doing}; wait for that.", severity="warning")
        else:
            self.app.exit()


def _outcome(look: Look) -> str:
    """What became of a fork, in a few words."""
    fork = look.fork
    names = [fork.winner] if fork.winner else (fork.resolution or {}).get("attempts", ())
    who = " ".join(f"#{name.rpartition('.')[2]}" for name in names)
    if fork.commit is None:
        waits = {"open": "waits for a pick: p", "interrupted": "its process is gone"}
        return waits.get(look.state, f"{who} won" if who else "")
    return f"{who} → commit {fork.commit}" + ("" if fork.undone is None else f", undone by {fork.undone}")


class WatchApp(App[None]):
    """The terminal, with nothing but a fork in it."""

    TITLE = "forkwise"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("t", "theme", "light/dark", show=False)]

    def __init__(self, watched: Watched) -> None:
        super().__init__()
        self.watched = watched

    def on_mount(self) -> None:
        """Begin with the fork."""
        self.push_screen(WatchScreen(self.watched))

    def action_theme(self) -> None:
        """Light, or dark."""
        self.theme = "textual-light" if self.current_theme.dark else "textual-dark"
