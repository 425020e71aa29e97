"""Stage: the middle of a chat: the conversation, and while a fork is open its branches, one tab each and all at once.

Text is taken as it comes and drawn a few times a second, and only where somebody looks."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical

from forkwise.app.tui.chat.overview import Overview
from forkwise.app.tui.chat.panel import BranchPanel
from forkwise.app.tui.chat.tabs import OVERVIEW, TabStrip
from forkwise.app.tui.chat.transcript import Transcript

__all__ = ["PACE", "Stage"]

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
