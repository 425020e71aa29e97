"""Watch: the panels of ``forkwise watch``, which show a fork until it is resolved, whichever process runs it.

They show its attempts, their steps or their output, and their changes, and have keys to resolve the fork.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, OptionList
from textual.widgets.data_table import RowKey
from textual.widgets.option_list import Option

from forkwise.concurrency import run_in_thread
from forkwise.display.board import Row, edits_text, time_text
from forkwise.display.output import printable
from forkwise.display.subject import find_prompts, format_subject
from forkwise.ledger.records import Summary
from forkwise.text.clean import truncate, truncate_line
from forkwise.tui.decide import DecisionScreen
from forkwise.tui.diff_view import DiffScreen
from forkwise.tui.fork_model import ForkModel, ForkSnapshot
from forkwise.tui.widgets import OutputLog, TextLine, ThemedApp, chip, tally

__all__ = [
    "POLL_S",
    "AttemptTable",
    "ForksScreen",
    "WatchApp",
    "WatchScreen",
]


_LAST_LINE = 60
_ALWAYS = ("", "state", "#", "label", "time")
_SOMETIMES = ("files", "git", "tests", "score", "cost", "last line")


class AttemptTable(DataTable[Text]):
    """The attempts of a fork, one row each. ``marked`` are the ids of those to combine or to compare."""

    DEFAULT_CSS = "AttemptTable { height: 1fr; }"

    def __init__(self, **options: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, **options)
        self.marked: list[str] = []
        self._cells: dict[str, dict[str, Text]] = {}
        self._shown_columns: tuple[str, ...] = ()
        self._widths: list[int] = []

    @property
    def current(self) -> str | None:
        """The attempt under the cursor."""
        if not self.row_count:
            return None
        return str(self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value)

    def toggle_mark(self) -> None:
        """Mark or unmark the attempt under the cursor, and move to the next one."""
        name = self.current
        if name is not None:
            self.marked = [m for m in self.marked if m != name] if name in self.marked else [*self.marked, name]
            self._put(name, "", _mark(name in self.marked))
            self.move_cursor(row=self.cursor_row + 1)

    def clear_marks(self) -> None:
        """Unmark all attempts."""
        for name in self.marked:
            self._put(name, "", _mark(False))
        self.marked = []

    def show(self, rows: Sequence[Row], now: float) -> None:
        """Show attempts in their current state."""
        drawn = {row.attempt.id: self._draw(row, now) for row in rows}
        columns = (*_ALWAYS, *(name for name in _SOMETIMES if any(cells[name].plain for cells in drawn.values())))
        current = self.current
        is_rebuilt = columns != self._shown_columns or list(drawn)[: len(self._cells)] != list(self._cells)
        if is_rebuilt:
            self.clear(columns=True)
            self._cells, self._shown_columns = {}, columns
            for name in columns:
                self.add_column(name, key=name)
        for name, cells in drawn.items():
            if name in self._cells:
                for column in columns:
                    self._put(name, column, cells[column])
            else:
                self._cells[name] = cells
                self.add_row(*(cells[column] for column in columns), key=name)
        if is_rebuilt and current in drawn:
            self.move_cursor(row=self.get_row_index(current))

    def _update_dimensions(self, new_rows: Iterable[RowKey]) -> None:
        """Redraw all rows when the width of a column has changed.

        DataTable measures widths while idle, and rows drawn before that are misaligned.
        """
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

    def _draw(self, row: Row, now: float) -> dict[str, Text]:
        cells = row.cells(now)
        number = row.attempt.id if row.depth else row.attempt.id.rpartition(".")[2]
        texts = {
            "label": truncate(cells["label"], max(20, self.app.size.width // 4)),
            **{name: truncate(cells[name], 12) for name in ("time", "files", "tests", "score")},
            "#": f"{'  ' * row.depth}{number}",
            "git": truncate(printable(cells["git"]), 20),
            "cost": cells["cost"],
            "last line": truncate(printable(cells[""]), _LAST_LINE),
        }
        return {
            "": _mark(row.attempt.id in self.marked),
            "state": chip(cells["state"]),
            **{name: Text(text, no_wrap=True) for name, text in texts.items()},
        }


def _mark(is_marked: bool) -> Text:
    return Text("▪" if is_marked else " ", style="bold yellow")


class ForksScreen(ModalScreen[str | None]):
    """The list of forks, the newest first. Returns the id of one, or None if the user goes back."""

    DEFAULT_CSS = """
    ForksScreen { align: center middle; }
    ForksScreen > OptionList { width: 90%; height: auto; max-height: 80%; border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,f", "back", "back")]

    def __init__(self, summaries: Sequence[Summary]) -> None:
        super().__init__()
        self.summaries = summaries

    def compose(self) -> ComposeResult:
        """Yield the list."""
        yield OptionList(*(Option(_format_summary(summary), id=summary.fork.id) for summary in self.summaries))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the fork under the cursor."""
        self.dismiss(event.option_id)

    def action_back(self) -> None:
        """Close without a choice."""
        self.dismiss(None)


def _format_summary(summary: Summary) -> Text:
    fork = summary.fork
    states = [state for state, count in summary.attempts.items() for _ in range(count)]
    started = datetime.fromtimestamp(fork.started).strftime("%m-%d %H:%M")
    label = printable(" ".join(format_subject(fork, summary.label).split()))
    parts = [Text(fork.id, style="bold"), chip(fork.state), Text(fork.kind), tally(states), Text(started), Text(label)]
    line = Text("  ", no_wrap=True, overflow="ellipsis").join(part for part in parts if part.plain)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


POLL_S = 0.25
"""Seconds between two readings of a ledger that announces no changes."""

_WIDEST_PROMPT = 200
_LOG_POLL_S = 0.1  # seconds between two readings of a log


class WatchScreen(DecisionScreen):
    """One fork: its attempts, and below them the steps or the output of the one under the cursor."""

    DEFAULT_CSS = """
    WatchScreen > #attempts { height: auto; max-height: 50%; min-height: 4; scrollbar-size-horizontal: 0; }
    WatchScreen > #below { height: 1fr; min-height: 4; }
    WatchScreen #subtitle { text-style: none; }
    WatchScreen OutputLog { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "mark", "mark", key_display="␣", priority=True),
        Binding("p", "pick", "pick"),
        Binding("c", "combine", "combine"),
        Binding("n", "choose", "n-way"),
        Binding("d,enter", "diff", "diff", key_display="d", priority=True),
        Binding("w", "winner", "winner", show=False),
        Binding("r", "raw", "output/steps", show=False),
        Binding("o", "open", "open"),
        Binding("x", "abort_attempt", "end"),
        Binding("a,escape", "abort", "abort", key_display="a"),
        Binding("u", "undo", "undo"),
        Binding("f", "forks", "fork"),
        Binding("q", "leave", "quit"),
    ]

    def __init__(self, model: ForkModel) -> None:
        super().__init__(model)
        self.table = AttemptTable(id="attempts")
        self.output = OutputLog(id="output")
        self._title = TextLine("waiting for a fork …")
        self._subtitle = TextLine(id="subtitle")
        self._followed: str | None = None
        self._is_raw = False  # whether to show the output of attempts that have steps
        self._has_steps = False

    def compose(self) -> ComposeResult:
        """Yield the title, the attempts, the output of one of them and the keys."""
        yield self._title
        yield self.table
        with Vertical(id="below"):
            yield self._subtitle
            yield self.output
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Start to poll the ledger."""
        self.table.focus()
        self.run_worker(self._poll(), group="poll")

    # Reading

    async def _poll(self) -> None:
        with await run_in_thread(self.model.watch_changes) as watch:
            while True:
                # A new fork must not replace one that the user is deciding, or whose changes they are reading.
                self.model.is_held = bool(self.table.marked or self.activity or self.app.screen is not self)
                snapshot = await run_in_thread(self.model.read)
                if not self.table.is_attached:  # the screen is being removed
                    return
                if snapshot is not None and snapshot.fork.id == self.model.fork:
                    self._show(snapshot)
                await watch.wait_async(POLL_S, 1.0)

    def _show(self, snapshot: ForkSnapshot) -> None:
        if self.snapshot is None or self.snapshot.fork.id != snapshot.fork.id:
            self.table.marked = []
        self.snapshot = snapshot
        self.table.show(snapshot.rows, self.model.now())
        self.show_status()
        self._follow_current()

    def show_status(self) -> None:
        """Show the state of the fork and the operation under way in the title."""
        snapshot = self.snapshot
        if snapshot is None:
            return
        fork = snapshot.fork
        line = Text.assemble(f"{fork.kind} {fork.id}  ", chip(snapshot.state), "  ")
        line.append(f"{time_text((fork.ended or self.model.now()) - fork.started)}  ")
        line.append_text(tally([attempt.state for attempt in snapshot.own]))
        line.append(f"  {self.activity} …" if self.activity else f"  {_format_outcome(snapshot)}")
        if fork.edits:
            line.append(f"  {edits_text(fork.edits)}", style="dim")
        self._title.show(line)

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        """Show the output of the attempt under the cursor."""
        self._follow_current()

    def _follow_current(self) -> None:
        attempt = None if self.snapshot is None else self.snapshot.find_attempt(self.table.current or "")
        if attempt is None:
            return
        line = Text(f"{attempt.id}  {printable(' '.join(attempt.label.split()))}")
        line.append(f"  {printable(attempt.reason)}" if attempt.reason else "", style="bold")
        for prompt in find_prompts(self.snapshot.fork, attempt) if self.snapshot is not None else ():
            line.append(f"  {printable(truncate_line(prompt, _WIDEST_PROMPT))}", style="dim")
        if self._has_steps:
            line.append("  r: its steps" if self._is_raw else "  r: its output", style="dim")
        self._subtitle.show(line)
        if attempt.id != self._followed:
            self._followed = attempt.id
            self.output.reset()
            self.run_worker(self._follow(attempt.id), group="output", exclusive=True)

    async def _follow(self, attempt: str) -> None:
        """Show what an attempt does: its steps if it has any, or else its output."""
        position = 0
        found = await run_in_thread(self.model.steps, attempt, position)
        self._has_steps = found is not None
        if found is not None and not self._is_raw:
            with await run_in_thread(self.model.watch_changes) as watch:
                while found is not None and not self._is_raw:
                    position, text = found
                    if text and self.output.is_attached:
                        self.output.feed(text.encode(errors="replace"))
                    await watch.wait_async(_LOG_POLL_S)
                    found = await run_in_thread(self.model.steps, attempt, position)
        position = 0
        while True:
            position, piece = await run_in_thread(self.model.output, attempt, position)
            if piece and self.output.is_attached:
                self.output.feed(piece)
            await asyncio.sleep(_LOG_POLL_S)

    def action_raw(self) -> None:
        """Show the output of an agent instead of its steps, or its steps again."""
        self._is_raw = not self._is_raw
        self._followed = None
        self._follow_current()

    # Diffs

    def action_mark(self) -> None:
        """Mark the attempt under the cursor, to combine or compare it with others."""
        self.table.toggle_mark()

    def action_diff(self) -> None:
        """Show the diff of the attempt under the cursor."""
        current = self.table.current
        if current is not None:
            self.run_reported(self._show_diff(current, lambda: self.model.diff(current)))

    def action_winner(self) -> None:
        """Show the diff of the winner, or of the attempt that is ahead."""
        fork = None if self.snapshot is None else self.snapshot.fork
        ahead = None if fork is None else fork.winner or (fork.verdict or {}).get("winner")
        if isinstance(ahead, str):
            self.run_reported(self._show_diff(ahead, lambda: self.model.diff(ahead)))
        elif fork is not None and fork.commit is not None:
            self.run_reported(self._show_diff(f"commit {fork.commit}", lambda: self.model.read_commit(fork)))
        else:
            self.notify("No attempt has won yet.")

    async def _show_diff(self, name: str, read: Callable[[], str]) -> None:
        await self.app.push_screen(DiffScreen(f"{name}: changes", await run_in_thread(read)))

    def action_open(self) -> None:
        """Open the changes of the attempt under the cursor in a diff tool."""
        current = self.table.current
        if current is not None:
            self.run_reported(self._open(current))

    async def _open(self, attempt: str) -> None:
        commands = await run_in_thread(self.model.prepare_difftool, attempt)
        if commands.uses_terminal:
            with self.app.suspend():
                commands.run()
            return
        self.notify(f"Opened the changes of {attempt}.")
        await run_in_thread(commands.run_detached)

    def action_forks(self) -> None:
        """Ask for another fork to show."""
        self.run_reported(self._choose_fork())

    async def _choose_fork(self) -> None:
        fork = await self.app.push_screen_wait(ForksScreen(await run_in_thread(self.model.forks)))
        if fork is not None:
            self.model.choose(fork)

    # Decisions

    def action_pick(self) -> None:
        """Resolve the fork with the attempt under the cursor."""
        attempt = None if self.snapshot is None else self.snapshot.find_attempt(self.table.current or "")
        if attempt is not None:
            self.decide(self.pick(attempt))

    def action_combine(self) -> None:
        """Resolve the fork with the marked attempts."""
        if len(self.table.marked) < 2:
            self.notify("Mark at least two attempts with space; their changes are merged, tested and committed.")
        else:
            self.decide(self.combine(tuple(self.table.marked)))

    def action_choose(self) -> None:
        """Choose hunk by hunk from the marked attempts, or from all that have ended."""
        self.decide(self.choose(tuple(self.table.marked)))

    def action_abort_attempt(self) -> None:
        """Abort the attempt under the cursor; the others continue."""
        attempt = None if self.snapshot is None else self.snapshot.find_attempt(self.table.current or "")
        if attempt is not None and attempt.is_over:
            self.notify(f"{attempt.id} has already ended: {attempt.state}.")
        elif attempt is not None:
            self.decide(self.abort_attempt(attempt))

    def action_abort(self) -> None:
        """Abort the fork."""
        self.decide(self.abort())

    def action_undo(self) -> None:
        """Undo the commit of the fork."""
        fork = None if self.snapshot is None else self.snapshot.fork
        if fork is None or fork.commit is None or fork.undone is not None:
            self.notify("There is no commit to undo.")
        else:
            self.run_reported(self.undo(fork.commit))

    def action_leave(self) -> None:
        """Quit; the fork keeps running."""
        if self.activity:
            self.notify(f"Still {self.activity}; wait for it.", severity="warning")
        else:
            self.app.exit()


def _format_outcome(snapshot: ForkSnapshot) -> str:
    """Format the outcome of a fork in a few words."""
    fork = snapshot.fork
    ids = [fork.winner] if fork.winner else (fork.resolution or {}).get("attempts", ())
    winners = " ".join(f"#{name.rpartition('.')[2]}" for name in ids)
    if fork.commit is None:
        waits = {"open": "waits for a pick: p", "interrupted": "its process has died"}
        return waits.get(snapshot.state, f"{winners} won" if winners else "")
    return f"{winners} → commit {fork.commit}" + ("" if fork.undone is None else f", undone by {fork.undone}")


class WatchApp(ThemedApp):
    """The application of ``forkwise watch``."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("t", "theme", "light/dark", show=False)]

    def __init__(self, model: ForkModel) -> None:
        super().__init__()
        self.model = model

    def on_mount(self) -> None:
        """Show the fork."""
        self.push_screen(WatchScreen(self.model))
