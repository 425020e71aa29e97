"""Stage: the middle of a chat screen, with the panels on it and the lines around them.

It shows the conversation and, while a fork is open, a tab for each branch and an overview of all branches. Text is
collected as it arrives and drawn a few times a second, and only in the panel that is visible.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import Click
from textual.message import Message
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from forkwise.chat.events import CostChanged
from forkwise.chat.render import format_price
from forkwise.display.output import printable
from forkwise.text.clean import truncate_line
from forkwise.text.phrases import format_number
from forkwise.tui.transcript import Transcript
from forkwise.tui.widgets import TextLine

__all__ = [
    "OVERVIEW",
    "REFRESH_S",
    "SIGNS",
    "BranchCell",
    "BranchPanel",
    "NoticeLine",
    "Overview",
    "Stage",
    "StatusLine",
    "TabStrip",
    "Welcome",
    "branch_chip",
    "choose_grid",
    "format_count",
    "format_tally",
    "wrap_line",
]


#: The sign, the word and the style of each state of a branch.
SIGNS: dict[str, tuple[str, str, str]] = {
    "running": ("●", "running", "cyan"),
    "waiting": ("!", "asks", "bold yellow"),
    "done": ("✓", "done", "green"),
    "failed": ("✗", "failed", "red"),
    "faulted": ("!", "faulted", "yellow"),
    "terminated": ("⊘", "terminated", "dim"),
    "budget_exhausted": ("$", "exhausted", "yellow"),
    "aggregate_budget_exhausted": ("$$", "agg-exhausted", "yellow"),
}


def branch_chip(state: str, *, word: bool = True) -> Text:
    """Build the chip for a branch's state: its sign and, with ``word``, its name.

    >>> branch_chip("aggregate_budget_exhausted").plain, branch_chip("done", word=False).plain
    ('$$ agg-exhausted', '✓')
    """
    sign, name, style = SIGNS.get(state, ("·", state, ""))
    return Text(f"{sign} {name}" if word else sign, style=style, no_wrap=True)


OVERVIEW = ""
"""The name of the tab that shows all branches."""

_LABEL = 14


class TabStrip(Widget):
    """One line of tabs. ``current`` is the label of the branch that is shown, or ``OVERVIEW``."""

    DEFAULT_CSS = "TabStrip { height: 1; width: 100%; background: $panel; display: none; }"

    class TabClicked(Message):
        """The user clicked a tab."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.current = OVERVIEW
        self._branches: list[tuple[str, str]] = []

    @property
    def names(self) -> list[str]:
        """The tabs, from left to right."""
        return [OVERVIEW, *(label for label, _ in self._branches)]

    def show(self, branches: Sequence[tuple[str, str]]) -> None:
        """Show branches by label and state; hide the strip if there are none."""
        if list(branches) != self._branches:
            self._branches = list(branches)
            self.display = bool(branches)
            if self.current not in self.names:
                self.current = OVERVIEW
            self.refresh()

    def choose(self, name: str) -> None:
        """Select a tab."""
        self.current = name
        self.refresh()

    def find_neighbour(self, step: int) -> str:
        """Return the tab ``step`` tabs to the right of the current one; the last is followed by the first."""
        names = self.names
        return names[(names.index(self.current) + step) % len(names)]

    def render(self) -> Text:
        """Draw as many tabs as fit, the current one among them."""
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        for name, chip in self._visible_tabs():
            if name == self.current:
                line.append(chip.plain.rstrip(), style="reverse bold").append(" ")
            else:
                line.append_text(chip)
        return line

    def on_click(self, event: Click) -> None:
        """Select the tab under the mouse."""
        end = 0
        for name, chip in self._visible_tabs():
            end += chip.cell_len
            if event.x < end:
                self.post_message(self.TabClicked(name))
                return

    def _visible_tabs(self) -> list[tuple[str, Text]]:
        chips = [(OVERVIEW, Text("[+ overview] "))]
        for label, state in self._branches:
            sign = branch_chip(state, word=False)
            chips.append((label, Text.assemble("[", sign, f" {truncate_line(printable(label), _LABEL)}] ")))
        here = self.names.index(self.current)
        first = 0
        while first < here and sum(chip.cell_len for _, chip in chips[first : here + 1]) > self.size.width:
            first += 1
        return chips[first:]


def format_count(count: int) -> str:
    """Format a number of tokens.

    >>> format_count(950), format_count(12_345), format_count(3_400_000)
    ('950', '12.3k', '3.4M')
    """
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 1_000_000 else f"{count / 1_000_000:.1f}M"


def format_tally(states: Iterable[str]) -> Text:
    """Format how many branches a fork has, and how many are in each state.

    >>> format_tally(["running", "done", "running"]).plain
    'FORK: 3 · 2● 1✓'
    """
    counts = Counter(states)
    parts = [Text(f"{counts[state]}{sign}", style=style) for state, (sign, _, style) in SIGNS.items() if counts[state]]
    return Text.assemble(f"FORK: {counts.total()} · ", Text(" ").join(parts))


class StatusLine(TextLine):
    """The state of the session in one line. ``activity`` is the operation under way, if there is one."""

    DEFAULT_CSS = "StatusLine { text-wrap: nowrap; text-overflow: ellipsis; text-style: none; }"

    def __init__(self) -> None:
        super().__init__("starting …")
        self.model = ""
        self.has_tools = True
        self.cost = CostChanged(0, 0, 0)
        self.checkpoints = 0
        self.activity = "starting …"
        self.states: list[str] = []

    def show_state(self, activity: str | None = None) -> None:
        """Show the current state, and ``activity`` as the operation under way."""
        self.activity = self.activity if activity is None else activity
        cost = self.cost
        parts = [Text(self.activity)] if self.activity else []
        if self.states:
            parts.append(format_tally(self.states))
        if self.model:
            if cost.requests:
                parts.append(Text(format_price(cost.usd, cost.requests, cost.unpriced)))
            parts.append(Text(f"{format_count(cost.input_tokens + cost.output_tokens)} tokens"))
            parts.append(Text(format_number(self.checkpoints, "checkpoint")))
            parts += [] if self.has_tools else [Text("no tools")]
            parts.append(Text(printable(self.model)))
        self.show(Text(" · ").join(parts))


class NoticeLine(Static):
    """The last notices, above the prompt: they take room from the transcript instead of covering it."""

    DEFAULT_CSS = """
    NoticeLine { height: auto; max-height: 4; width: 100%; padding: 0 1; display: none; background: $boost;
        color: $text; }
    NoticeLine.warning { color: $text-warning; }
    NoticeLine.error { color: $text-error; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.notice = ""
        self._timer: Timer | None = None

    def show(self, text: str, severity: str, timeout_s: float) -> None:
        """Show a notice for a while, in place of the last one."""
        if self._timer is not None:
            self._timer.stop()
        self.notice = text
        self.set_classes([severity])
        self.update(Text(text))
        self.display = True
        self._timer = self.set_timer(timeout_s, self.clear)

    def clear(self) -> None:
        """Hide the notice."""
        self.notice = ""
        self.display = False


_KEYS = (
    ("/fork", "try several ways side by side", "/merge", "keep one of the branches"),
    ("/undo", "take back the last merge", "/load", "return to a checkpoint"),
    ("/tree", "the conversation as a tree", "/model", "change the model"),
    ("!make", "run a shell command", "/help", "all commands"),
)


class Welcome(Static):
    """The first screen of a chat, before the first message: its workspace and model, and the most useful commands."""

    DEFAULT_CSS = "Welcome { height: 1fr; width: 100%; padding: 1 2; overflow: hidden; }"

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.facts: dict[str, str] = {}

    def on_mount(self) -> None:
        """Draw what is known before the session has started."""
        self.show({})

    def show(self, facts: Mapping[str, str]) -> None:
        """Show facts by name, such as the workspace and the model, above the commands and keys."""
        self.facts = dict(facts)
        text = Text().append("forkwise chat\n", "bold")
        text.append("Say what you want. A fork tries it in several branches; you keep one.\n\n", "dim")
        for name, value in self.facts.items():
            text.append(f"{name:10}", "dim").append(f"{printable(value)}\n")
        text.append("\n" if self.facts else "")
        for first, does, second, other in _KEYS:
            text.append(f"{first:8}", "bold").append(f"{does:32}")
            text.append(f"{second:8}", "bold").append(f"{other}\n")
        keys = "\nenter sends · tab completes · esc stops · pgup/pgdn scroll · ctrl+q leaves"
        text.append(keys, "dim")
        self.update(text)


_NARROWEST = 26
_LOWEST = 3
_WORDS = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True)
class BranchCell:
    """A branch in the overview."""

    label: str
    state: str
    note: str
    lines: tuple[str, ...]


def choose_grid(count: int, width: int, height: int) -> tuple[int, int]:
    """Choose the columns and rows for ``count`` cells: side by side while they are wide enough.

    >>> choose_grid(2, 80, 16), choose_grid(3, 80, 16), choose_grid(10, 80, 16), choose_grid(10, 200, 40)
    ((2, 1), (3, 1), (3, 4), (5, 2))
    """
    columns = max(1, min(count, width // _NARROWEST))
    rows = -(-count // columns)
    while columns > 1 and -(-count // (columns - 1)) == rows:
        columns -= 1
    return columns, max(1, min(rows, height // _LOWEST))


def wrap_line(text: str, width: int) -> list[str]:
    """Wrap a line at ``width`` cells, between words if possible.

    >>> wrap_line("to be or not", 6)
    ['to be ', 'or not']
    >>> wrap_line("incomprehensible", 10)
    ['incomprehe', 'nsible']
    """
    if len(text) <= width and (text.isascii() or cell_len(text) <= width):
        return [text]
    rows, row, left = [], "", width
    for word in _WORDS.findall(text):
        size = cell_len(word.rstrip()) if word.strip() else 0
        if size > left and row:
            rows.append(row)
            row, left = "", width
        while cell_len(word.rstrip()) > width:
            piece = chop_cells(word, width)[0]
            rows.append(piece)
            word = word[len(piece) :]
        row += word
        left = width - cell_len(row)
    return [*rows, row] if row or not rows else rows


class Overview(Widget):
    """A grid of all branches. A click on a cell selects the tab of its branch."""

    DEFAULT_CSS = "Overview { height: 1fr; width: 100%; }"

    class BranchClicked(Message):
        """The user clicked a branch."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._cells: tuple[BranchCell, ...] = ()

    def show(self, cells: Sequence[BranchCell]) -> None:
        """Show branches in their current state."""
        if tuple(cells) != self._cells:
            self._cells = tuple(cells)
            self.refresh()

    def render(self) -> Text:
        """Draw all cells."""
        picture = Text(no_wrap=True, end="")
        if not self._cells:
            return picture
        columns, rows = self._grid
        width, height = self.size.width // columns, self.size.height // rows
        for row in range(rows):
            cells = self._cells[row * columns : (row + 1) * columns]
            drawn = [_draw_cell(cell, width - 1, height) for cell in cells]
            for line in zip(*drawn, strict=True):
                for number, part in enumerate(line):
                    picture.append("│" if number else "", style="dim")
                    picture.append_text(part)
                picture.append("\n")
        if len(self._cells) > columns * rows:
            picture.append(f"and {len(self._cells) - columns * rows} more: press tab to see each", style="dim")
        return picture

    def on_click(self, event: Click) -> None:
        """Select the branch under the mouse."""
        if self._cells:
            columns, rows = self._grid
            column, row = event.x // (self.size.width // columns), event.y // (self.size.height // rows)
            number = row * columns + column
            if column < columns and number < len(self._cells):
                self.post_message(self.BranchClicked(self._cells[number].label))

    @property
    def _grid(self) -> tuple[int, int]:
        return choose_grid(len(self._cells), self.size.width, self.size.height)


def _draw_cell(cell: BranchCell, width: int, height: int) -> list[Text]:
    title = Text.assemble((printable(cell.label), "bold"), " ", branch_chip(cell.state), f" {cell.note}")
    title.truncate(width, overflow="ellipsis", pad=True)
    title.stylize("underline")
    count = height - 1
    if count < 1:
        return [title]
    lines = [row for line in cell.lines[-count:] for row in wrap_line(printable(line), width)][-count:]
    filled = [Text(set_cell_size(line, width)) for line in lines]
    return [title, *filled, *(Text(" " * width) for _ in range(count - len(filled)))]


class BranchPanel(Vertical):
    """The tab of a branch. ``pending_approvals`` is the number of its tool calls that wait for approval."""

    DEFAULT_CSS = "BranchPanel { height: 1fr; display: none; }"

    def __init__(self, label: str) -> None:
        super().__init__()
        self.label = label
        self.state = "running"
        self.turn = 0
        self.usd: float | None = None
        self.error = ""
        self.pending_approvals = 0
        self.transcript = Transcript()
        self._title = TextLine()

    def compose(self) -> ComposeResult:
        """Yield the title and, below it, the transcript."""
        yield self._title
        yield self.transcript

    @property
    def shown_state(self) -> str:
        """The branch's state, or ``waiting`` if it waits for an approval."""
        return "waiting" if self.pending_approvals and self.state == "running" else self.state

    @property
    def cell(self) -> BranchCell:
        """The branch in the overview."""
        lines = (*self.transcript.last_lines, *([self.error] if self.error else []))
        return BranchCell(self.label, self.shown_state, self._note, lines)

    @property
    def _note(self) -> str:
        return f"turn {self.turn + 1}" if self.usd is None else f"turn {self.turn + 1} · {format_price(self.usd, 1)}"

    def flush(self) -> None:
        """Draw the title and the new entries of the transcript."""
        title = Text.assemble(f"branch {printable(self.label)} · ", branch_chip(self.shown_state))
        title.append(f" · {self._note}")
        if self.error:
            title.append(f" · {truncate_line(printable(self.error), 200)}")
        self._title.show(title)
        self.transcript.flush()


REFRESH_S = 0.05
"""Seconds between two drawings of streamed text."""


class Stage(Vertical):
    """The conversation and the branches of the open fork.

    ``talk`` is the transcript of the conversation, ``panels`` are the branches by label. ``is_due`` is True while a
    drawing is scheduled.
    """

    DEFAULT_CSS = """
    Stage { height: 1fr; }
    Stage > Overview { height: 2fr; display: none; border-top: solid $panel; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.strip = TabStrip()
        self.talk = Transcript(id="talk")
        self.welcome = Welcome()
        self.overview = Overview()
        self.panels: dict[str, BranchPanel] = {}
        self.is_due = False

    def compose(self) -> ComposeResult:
        """Yield the tabs, the conversation and the overview."""
        yield self.strip
        yield self.welcome
        yield self.talk
        yield self.overview

    # Forks

    @property
    def is_forked(self) -> bool:
        """Whether a fork is open."""
        return bool(self.panels)

    @property
    def current(self) -> BranchPanel | None:
        """The branch whose tab is selected; None for the overview, and if no fork is open."""
        return self.panels.get(self.strip.current)

    @property
    def current_transcript(self) -> Transcript:
        """The transcript of the selected branch, or of the conversation."""
        return self.talk if self.current is None else self.current.transcript

    def open_fork(self, labels: Sequence[str]) -> None:
        """Add a tab for each branch that has none yet."""
        added = [BranchPanel(label) for label in labels if label not in self.panels]
        self.panels |= {panel.label: panel for panel in added}
        self._show_tabs()
        self.choose(self.strip.current)
        if added:
            self.mount(*added)

    def close_fork(self) -> None:
        """Remove all tabs and show the conversation alone."""
        removed, self.panels = list(self.panels.values()), {}
        self._show_tabs()
        self.choose(OVERVIEW)
        for panel in removed:
            panel.remove()

    def choose(self, name: str) -> None:
        """Show the branch with this label, or all branches for ``OVERVIEW``."""
        self.strip.choose(name)
        for panel in self.panels.values():
            panel.display = panel.label == name
        self._show_talk()
        self.overview.display = name == OVERVIEW and self.is_forked
        self.schedule_flush()

    def find_panel(self, name: str) -> BranchPanel | None:
        """Return the panel of a branch; a nested branch is shown in the panel of the outer one."""
        return self.panels.get(name) or self.panels.get(name.partition("/")[0])

    def find_transcript(self, branch: str | None) -> Transcript:
        """Return the transcript of a branch, or of the conversation for None."""
        panel = None if branch is None else self.find_panel(branch)
        return self.talk if panel is None else panel.transcript

    # Drawing

    def schedule_flush(self) -> None:
        """Schedule a drawing, which includes everything that changes until then."""
        if not self.is_due and self.is_attached:
            self.is_due = True
            self.set_timer(REFRESH_S, self.flush)

    def flush(self) -> None:
        """Draw the changes in the panel that is visible."""
        self.is_due = False
        self._show_talk()
        self._show_tabs()
        if self.current is not None:
            self.current.flush()
        else:
            self.talk.flush()
            if self.is_forked:
                self.overview.show([panel.cell for panel in self.panels.values()])
        if self.current_transcript.is_behind:
            self.schedule_flush()

    def _show_talk(self) -> None:
        """Show the conversation, or the first screen while there are no messages."""
        is_shown = self.strip.current == OVERVIEW
        is_new = self.talk.is_empty and not self.is_forked
        self.welcome.display = is_shown and is_new
        self.talk.display = is_shown and not is_new

    def _show_tabs(self) -> None:
        self.strip.show([(panel.label, panel.shown_state) for panel in self.panels.values()])
