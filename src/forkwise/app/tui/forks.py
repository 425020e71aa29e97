"""Forks: a list to choose another fork from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from forkwise.app.cli.output import printable
from forkwise.app.tui.chips import chip, tally
from forkwise.ledger.record import Summary

__all__ = ["ForksScreen"]


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
