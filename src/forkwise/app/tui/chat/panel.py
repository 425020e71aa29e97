"""Panel: one branch while it works: how it stands over what it says."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical

from forkwise.app.cli.output import printable
from forkwise.app.tui.chat.overview import Cell
from forkwise.app.tui.chat.signs import branch_chip, short
from forkwise.app.tui.chat.transcript import Transcript
from forkwise.app.tui.line import Line

__all__ = ["BranchPanel"]


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
