"""Tabs: the strip over a fork: the overview, then a chip for each branch. The one that is shown is always in sight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text
from textual.events import Click
from textual.message import Message
from textual.widget import Widget

from forkwise.app.cli.output import printable
from forkwise.app.tui.chat.signs import branch_chip, short

__all__ = ["OVERVIEW", "TabStrip"]

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
