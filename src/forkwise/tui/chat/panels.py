"""Stage: the middle of a chat: the conversation, and while a fork is open its branches, one tab each and all at once.

Text is taken as it comes and drawn a few times a second, and only where somebody looks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import set_cell_size
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import Click
from textual.message import Message
from textual.widget import Widget

from forkwise.chat.events import CostChanged
from forkwise.display.output import printable
from forkwise.tui.chat.transcript import Transcript, wrapped
from forkwise.tui.widgets import Line

__all__ = [
    "OVERVIEW",
    "PACE",
    "SIGNS",
    "BranchPanel",
    "Cell",
    "Overview",
    "Stage",
    "StatusLine",
    "TabStrip",
    "branch_chip",
    "count_text",
    "fork_tally",
    "grid",
    "short",
]


#: The sign, the word and the style of each state of a branch.
SIGNS: dict[str, tuple[str, str, str]] = {
    "running": ("●", "running", "cyan"),
    "waiting": ("!", "asks", "bold yellow"),
    "done": ("✓", "done", "green"),
    "failed": ("✗", "failed", "red"),
    "terminated": ("⊘", "terminated", "dim"),
    "budget_exhausted": ("$", "exhausted", "yellow"),
    "aggregate_budget_exhausted": ("$$", "agg-exhausted", "yellow"),
}


def branch_chip(state: str, *, word: bool = True) -> Text:
    """The state of a branch as a chip.

    >>> branch_chip("aggregate_budget_exhausted").plain, branch_chip("done", word=False).plain
    ('$$ agg-exhausted', '✓')
    """
    sign, name, style = SIGNS.get(state, ("·", state, ""))
    return Text(f"{sign} {name}" if word else sign, style=style, no_wrap=True)


def short(text: str, most: int) -> str:
    """A text on one line, cut where it is too long.

    >>> short("a word  or\\ntwo", 9)
    'a word o…'
    """
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


OVERVIEW = ""
"""The name of the tab that shows all branches."""

_LABEL = 14


class TabStrip(Widget):
    """One line of tabs. ``current`` is the label of the branch that is shown, or that of the overview."""

    DEFAULT_CSS = "TabStrip { height: 1; width: 100%; background: $panel; display: none; }"

    class Chosen(Message):
        """Somebody clicked a tab."""

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
        """Show branches by their labels and states; none at all, and there is no strip."""
        if list(branches) != self._branches:
            self._branches = list(branches)
            self.display = bool(branches)
            if self.current not in self.names:
                self.current = OVERVIEW
            self.refresh()

    def choose(self, name: str) -> None:
        """Go to a tab."""
        self.current = name
        self.refresh()

    def beside(self, step: int) -> str:
        """The tab so many steps on, round and round."""
        names = self.names
        return names[(names.index(self.current) + step) % len(names)]

    def render(self) -> Text:
        """Draw as many as there is room for, the current one among them."""
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        for name, chip in self._in_sight():
            line.append_text(chip)
            if name == self.current:
                line.stylize("reverse bold", len(line) - len(chip), len(line) - 1)
        return line

    def on_click(self, event: Click) -> None:
        """Go to the tab under the mouse."""
        end = 0
        for name, chip in self._in_sight():
            end += chip.cell_len
            if event.x < end:
                self.post_message(self.Chosen(name))
                return

    def _in_sight(self) -> list[tuple[str, Text]]:
        chips = [(OVERVIEW, Text("[+ overview] "))]
        for label, state in self._branches:
            sign = branch_chip(state, word=False)
            chips.append((label, Text.assemble("[", sign, f" {short(printable(label), _LABEL)}] ")))
        here = self.names.index(self.current)
        first = 0
        while first < here and sum(chip.cell_len for _, chip in chips[first : here + 1]) > self.size.width:
            first += 1
        return chips[first:]


def count_text(count: int) -> str:
    """A number of tokens as people read it.

    >>> count_text(950), count_text(12_345), count_text(3_400_000)
    ('950', '12.3k', '3.4M')
    """
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 1_000_000 else f"{count / 1_000_000:.1f}M"


def fork_tally(states: Iterable[str]) -> Text:
    """How many branches there are, and how they stand.

    >>> fork_tally(["running", "done", "running"]).plain
    'FORK: 3 · 2● 1✓'
    """
    counts = Counter(states)
    parts = [Text(f"{counts[state]}{sign}", style=style) for state, (sign, _, style) in SIGNS.items() if counts[state]]
    return Text.assemble(f"FORK: {counts.total()} · ", Text(" ").join(parts))


class StatusLine(Line):
    """What is known of the session. ``doing`` is what is under way, if anything is."""

    DEFAULT_CSS = "StatusLine { text-wrap: nowrap; text-overflow: ellipsis; text-style: none; }"

    def __init__(self) -> None:
        super().__init__("starting …")
        self.model = ""
        self.cost = CostChanged(0, 0, 0)
        self.checkpoints = 0
        self.doing = "starting …"
        self.states: list[str] = []

    def tell(self, doing: str | None = None) -> None:
        """Say how things are now, and what is under way, if that is another than before."""
        self.doing = self.doing if doing is None else doing
        cost = self.cost
        parts = [Text(self.doing)] if self.doing else []
        if self.states:
            parts.append(fork_tally(self.states))
        if self.model:
            parts.append(Text("$?" if cost.usd is None else f"${cost.usd:.4f}"))
            parts.append(Text(f"{count_text(cost.input_tokens + cost.output_tokens)} tokens"))
            parts.append(Text(f"{self.checkpoints} checkpoint{'' if self.checkpoints == 1 else 's'}"))
            parts.append(Text(printable(self.model)))
        self.say(Text(" · ").join(parts))


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


class BranchPanel(Vertical):
    """A branch by its label. ``asks`` is how many of its calls wait for somebody to approve them."""

    DEFAULT_CSS = "BranchPanel { height: 1fr; display: none; }"

    def __init__(self, label: str) -> None:
        super().__init__()
        self.label = label
        self.state = "running"
        self.turn = 0
        self.usd: float | None = None
        self.error = ""
        self.asks = 0
        self.transcript = Transcript()
        self._title = Line()

    def compose(self) -> ComposeResult:
        """How it stands, over what it says."""
        yield self._title
        yield self.transcript

    @property
    def shown_state(self) -> str:
        """Its state, or that it waits for a person."""
        return "waiting" if self.asks and self.state == "running" else self.state

    @property
    def cell(self) -> Cell:
        """The branch as the overview shows it."""
        lines = (*self.transcript.last, *([self.error] if self.error else []))
        return Cell(self.label, self.shown_state, self._note, lines)

    @property
    def _note(self) -> str:
        return f"turn {self.turn + 1}" if self.usd is None else f"turn {self.turn + 1} · ${self.usd:.4f}"

    def flush(self) -> None:
        """Show how it stands and what was said since."""
        title = Text.assemble(f"branch {printable(self.label)} · ", branch_chip(self.shown_state))
        title.append(f" · {self._note}")
        if self.error:
            title.append(f" · {short(printable(self.error), 200)}")
        self._title.say(title)
        self.transcript.flush()


PACE = 0.05
"""Seconds between two drawings of what is said."""


class Stage(Vertical):
    """``talk`` is the conversation, ``panels`` are the branches of the fork that is open, by their labels. ``is_due``
    says that something is to be drawn soon."""

    DEFAULT_CSS = """
    Stage { height: 1fr; }
    Stage > Overview { height: 2fr; display: none; border-top: solid $panel; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.strip = TabStrip()
        self.talk = Transcript(id="talk")
        self.overview = Overview()
        self.panels: dict[str, BranchPanel] = {}
        self.is_due = False

    def compose(self) -> ComposeResult:
        """The tabs over what they show."""
        yield self.strip
        yield self.talk
        yield self.overview

    # Forks

    @property
    def is_forked(self) -> bool:
        """Whether a fork is open."""
        return bool(self.panels)

    @property
    def current(self) -> BranchPanel | None:
        """The branch whose tab is shown; None where it is the overview, or no fork is open."""
        return self.panels.get(self.strip.current)

    def open_fork(self, labels: Sequence[str]) -> None:
        """Have a tab for each branch; those that are there already stay."""
        added = [BranchPanel(label) for label in labels if label not in self.panels]
        self.panels |= {panel.label: panel for panel in added}
        self._show_tabs()
        self.choose(self.strip.current)
        if added:
            self.mount(*added)

    def close_fork(self) -> None:
        """Have the conversation alone."""
        gone, self.panels = list(self.panels.values()), {}
        self._show_tabs()
        self.choose(OVERVIEW)
        for panel in gone:
            panel.remove()

    def choose(self, name: str) -> None:
        """Show a branch, or all of them."""
        self.strip.choose(name)
        for panel in self.panels.values():
            panel.display = panel.label == name
        self.talk.display = name == OVERVIEW
        self.overview.display = name == OVERVIEW and self.is_forked
        self.changed()

    # What is said

    def branch(self, name: str) -> BranchPanel | None:
        """The panel of a branch; that of a branch inside a branch is the outer one's."""
        return self.panels.get(name) or self.panels.get(name.partition("/")[0])

    def place(self, branch: str | None) -> Transcript:
        """Where something is written that a branch, or the conversation, says."""
        panel = None if branch is None else self.branch(branch)
        return self.talk if panel is None else panel.transcript

    def changed(self) -> None:
        """Something is to be drawn; it is, soon, with all else that changes until then."""
        if not self.is_due and self.is_attached:
            self.is_due = True
            self.set_timer(PACE, self.flush)

    def flush(self) -> None:
        """Draw what has changed, where it is seen."""
        self.is_due = False
        self._show_tabs()
        here = self.current
        if here is not None:
            here.flush()
            return
        self.talk.flush()
        if self.is_forked:
            self.overview.show([panel.cell for panel in self.panels.values()])

    def _show_tabs(self) -> None:
        self.strip.show([(panel.label, panel.shown_state) for panel in self.panels.values()])
