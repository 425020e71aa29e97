"""Acceptance: what the judge would keep, before it is kept: accepted, looked at, overridden or left for later."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Label

from forkwise.app.chat.events import Judged
from forkwise.app.cli.output import printable

__all__ = ["AcceptanceScreen"]


class AcceptanceScreen(ModalScreen[str | None]):
    """A verdict; gives ``accept``, ``diff``, ``override``, or None where nothing is to be decided now."""

    DEFAULT_CSS = """
    AcceptanceScreen { align: center middle; }
    AcceptanceScreen > Vertical { width: 76; max-width: 98%; height: auto; max-height: 90%; padding: 0 1;
        border: round $success; background: $surface; }
    AcceptanceScreen Label { width: 100%; margin-bottom: 1; }
    AcceptanceScreen Horizontal { width: auto; height: 1; }
    AcceptanceScreen Button { margin-right: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "answer('diff')", "diff"),
        Binding("o", "answer('override')", "override"),
        Binding("escape", "answer('')", "cancel"),
    ]

    def __init__(self, verdict: Judged) -> None:
        super().__init__()
        self.verdict = verdict

    def compose(self) -> ComposeResult:
        """What it would keep, and why."""
        verdict = self.verdict
        with Vertical() as box:
            box.border_title = "the judge has decided"
            yield Label(f"keep {printable(verdict.winner or '')} · confidence {verdict.confidence:.2f}", markup=False)
            yield Label(printable(verdict.reasoning, keep="\n"), markup=False)
            for caveat in verdict.caveats:
                yield Label(f"but: {printable(caveat)}", markup=False)
            with Horizontal():
                yield Button("\\[enter] accept", id="accept", compact=True, variant="success")
                yield Button("\\[d] diff", id="diff", compact=True)
                yield Button("\\[o] override", id="override", compact=True)
                yield Button("\\[esc] cancel", id="cancel", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Take an answer by a click."""
        self.action_answer("" if event.button.id == "cancel" else event.button.id or "")

    def action_answer(self, answer: str) -> None:
        """Give an answer."""
        self.dismiss(answer or None)
