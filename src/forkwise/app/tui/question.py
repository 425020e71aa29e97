"""Question: something is asked before something is done, answered by a key or a click, or in a line of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label

__all__ = ["YES", "LineQuestion", "Question"]

#: The answers of a question that is a yes or a no.
YES = {"y": "yes"}


class Question(ModalScreen[str | None]):
    """A text and some answers, each with its key; gives the key, or None where it was escaped. Enter answers with what
    has the focus, which is the way back at first."""

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question > Vertical { width: auto; min-width: 40; max-width: 76; height: auto; max-height: 90%; padding: 0 1;
        border: round $primary; background: $surface; }
    Question Label { width: auto; max-width: 72; margin-bottom: 1; }
    Question Horizontal { width: auto; height: 1; }
    Question Button { margin-right: 1; }
    """

    def __init__(self, text: str, answers: Mapping[str, str] = YES) -> None:
        super().__init__()
        self.text = text
        self.answers = answers

    def compose(self) -> ComposeResult:
        """The text over its buttons."""
        with Vertical():
            yield Label(self.text, markup=False)
            with Horizontal():
                for key, label in self.answers.items():
                    yield Button(f"\\[{key}] {label}", id=f"answer-{key}", compact=True, variant="warning")
                yield Button("\\[esc] no" if self.answers == YES else "\\[esc] back", id="back", compact=True)

    def on_mount(self) -> None:
        """Have the harmless answer under the finger."""
        self.query_one("#back").focus()

    def on_key(self, event: Key) -> None:
        """Take an answer by its key."""
        if event.key in self.answers:
            event.stop()
            self.dismiss(event.key)
        elif event.key in ("escape", "n", "q"):
            event.stop()
            self.dismiss(None)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Take an answer by a click, or by enter."""
        name = event.button.id or ""
        self.dismiss(name.removeprefix("answer-") if name != "back" else None)


class LineQuestion(ModalScreen[str | None]):
    """A text and a line to write the answer into; None where it was escaped, or left empty."""

    DEFAULT_CSS = """
    LineQuestion { align: center middle; }
    LineQuestion > Vertical { width: 60; height: auto; border: round $primary; background: $surface; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "back")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        """The text over the line."""
        with Vertical():
            yield Label(self.text, markup=False)
            yield Input(compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take what was written."""
        self.dismiss(event.value.strip() or None)

    def action_back(self) -> None:
        """Answer nothing."""
        self.dismiss(None)
