"""Widgets and small screens that several panels share: lines, chips, logs, questions, pages and lists.

None of them knows about forks or conversations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TextIO, cast

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Log, OptionList, Static
from textual.widgets.option_list import Option

from forkwise.display.output import printable
from forkwise.text.clean import TerminalCleaner

__all__ = [
    "SIGNS",
    "YES",
    "ChoiceScreen",
    "DetachableDriver",
    "InputScreen",
    "OutputLog",
    "PageScreen",
    "QuestionScreen",
    "TextLine",
    "ThemedApp",
    "chip",
    "tally",
]


class ThemedApp(App[None]):
    """An application with a light and a dark theme, which a binding of the subclass switches."""

    TITLE = "forkwise"
    ENABLE_COMMAND_PALETTE = False

    def action_theme(self) -> None:
        """Switch between the light and the dark theme."""
        self.theme = "textual-light" if self.current_theme.dark else "textual-dark"


class TextLine(Static):
    """A title or a status line. Its size is fixed, so that a new text causes no layout."""

    DEFAULT_CSS = """
    TextLine { width: 100%; height: 1; padding: 0 1; background: $panel; text-style: bold; }
    TextLine.good { color: $text-success; }
    TextLine.bad { color: $text-error; }
    """

    def __init__(self, text: str = "", **options: Any) -> None:
        super().__init__(text, markup=False, **options)
        self.line = Text(text)

    def show(self, text: str | Text) -> None:
        """Show a text, truncated to the width of the line."""
        line = Text(text) if isinstance(text, str) else text
        if line != self.line:
            self.line = line
            line.no_wrap, line.overflow = True, "ellipsis"
            self.update(line, layout=False)


#: The sign and the style of each state.
SIGNS: dict[str, tuple[str, str]] = {
    "won": ("★", "bold green"),
    "running": ("●", "cyan"),
    "succeeded": ("✓", "green"),
    "failed": ("✗", "red"),
    "faulted": ("!", "yellow"),
    "cancelled": ("⊘", "dim"),
    "pending": ("○", "dim"),
    "open": ("?", "yellow"),
    "interrupted": ("!", "yellow"),
    "resolved": ("✓", "green"),
    "aborted": ("⊘", "dim"),
}


def chip(state: str) -> Text:
    """Build the chip for a state: its sign and its name.

    >>> chip("failed").plain
    '✗ failed'
    """
    sign, style = SIGNS.get(state, ("·", ""))
    return Text(f"{sign} {state}", style=style, no_wrap=True)


def tally(states: Sequence[str]) -> Text:
    """Count the states, in the order of ``SIGNS``.

    >>> tally(["failed", "running", "running"]).plain
    '2● 1✗'
    """
    counts = [(states.count(state), sign, style) for state, (sign, style) in SIGNS.items()]
    return Text(" ").join(Text(f"{count}{sign}", style=style) for count, sign, style in counts if count)


_LINES = 10_000
_LONGEST = 2000  # characters shown of a line


class OutputLog(Log):
    """A log of raw terminal output. It follows its end until the user scrolls up, and again when they scroll back."""

    DEFAULT_CSS = "OutputLog { overflow-x: auto; }"

    def __init__(self, **options: Any) -> None:
        super().__init__(max_lines=_LINES, auto_scroll=True, **options)
        self._cleaner = TerminalCleaner()
        self._space_left = _LONGEST  # characters of the last line

    def reset(self) -> None:
        """Clear the log, to show another attempt."""
        self._cleaner = TerminalCleaner()
        self._space_left = _LONGEST
        self.clear()
        self.auto_scroll = True

    def feed(self, piece: bytes) -> None:
        """Append a piece of output."""
        text = self._cleaner.feed(piece)
        if text:
            self.auto_scroll = self.is_vertical_scroll_end or not self.line_count
            first, *others = text.split("\n")
            shown = "\n".join([first[: self._space_left], *(line[:_LONGEST] for line in others)])
            last = others[-1] if others else first
            self._space_left = max((_LONGEST if others else self._space_left) - len(last), 0)
            self.write(shown)


class _DetachableFile:
    """A file that ignores write errors."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()


class DetachableDriver(LinuxDriver):
    """A driver that ignores a closed terminal, so that SIGHUP ends the app in order, not a write error."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._file = cast(Any, _DetachableFile(cast(TextIO, self._file)))


#: The answer of a yes-or-no question.
YES = {"y": "yes"}


class QuestionScreen(ModalScreen[str | None]):
    """A question and its answers by key. Returns the key, or None if the user goes back.

    Enter presses the button with the focus, which at first is the one that goes back.
    """

    DEFAULT_CSS = """
    QuestionScreen { align: center middle; }
    QuestionScreen > Vertical { width: auto; min-width: 40; max-width: 76; height: auto; max-height: 90%; padding: 0 1;
        border: round $primary; background: $surface; }
    QuestionScreen Label { width: auto; max-width: 72; margin-bottom: 1; }
    QuestionScreen Horizontal { width: auto; height: 1; }
    QuestionScreen Button { margin-right: 1; }
    """

    def __init__(self, text: str, answers: Mapping[str, str] = YES) -> None:
        super().__init__()
        self.text = text
        self.answers = answers

    def compose(self) -> ComposeResult:
        """Yield the question and its buttons."""
        with Vertical():
            yield Label(self.text, markup=False)
            with Horizontal():
                for key, label in self.answers.items():
                    yield Button(f"\\[{key}] {label}", id=f"answer-{key}", compact=True, variant="warning")
                yield Button("\\[esc] no" if self.answers == YES else "\\[esc] back", id="back", compact=True)

    def on_mount(self) -> None:
        """Focus the harmless answer."""
        self.query_one("#back").focus()

    def on_key(self, event: Key) -> None:
        """Answer with a key."""
        if event.key in self.answers:
            event.stop()
            self.dismiss(event.key)
        elif event.key in ("escape", "n", "q"):
            event.stop()
            self.dismiss(None)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer with a button."""
        name = event.button.id or ""
        self.dismiss(name.removeprefix("answer-") if name != "back" else None)


class InputScreen(ModalScreen[str | None]):
    """A question with a line for the answer. Returns None if the user goes back or leaves it empty."""

    DEFAULT_CSS = """
    InputScreen { align: center middle; }
    InputScreen > Vertical { width: 60; height: auto; border: round $primary; background: $surface; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "back")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        """Yield the question and the input."""
        with Vertical():
            yield Label(self.text, markup=False)
            yield Input(compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the answer."""
        self.dismiss(event.value.strip() or None)

    def action_back(self) -> None:
        """Close without an answer."""
        self.dismiss(None)


class PageScreen(ModalScreen[None]):
    """A text with a title, above the current screen."""

    DEFAULT_CSS = """
    PageScreen { align: center middle; }
    PageScreen > VerticalScroll { width: 90%; max-width: 100; height: auto; max-height: 90%; padding: 0 1;
        border: round $primary; background: $surface; }
    PageScreen Label { width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "back", "back")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self.heading = title
        self.text = text

    def compose(self) -> ComposeResult:
        """Yield the text in a box."""
        with VerticalScroll() as box:
            box.border_title = Content(printable(self.heading))
            box.border_subtitle = "esc back"
            yield Label(printable(self.text.expandtabs(4), keep="\n"), markup=False)

    def action_back(self) -> None:
        """Close the page."""
        self.dismiss()


class ChoiceScreen(ModalScreen[str | None]):
    """A list of choices, each a name and a line of text. Returns a name, or None if the user goes back."""

    DEFAULT_CSS = """
    ChoiceScreen { align: center middle; }
    ChoiceScreen > Vertical { width: 90%; max-width: 100; height: auto; max-height: 90%; padding: 0 1;
        border: round $primary; background: $surface; }
    ChoiceScreen OptionList { height: auto; max-height: 18; text-wrap: nowrap; text-overflow: ellipsis; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "back", "back")]

    def __init__(self, title: str, choices: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.heading = title
        self.choices = tuple(choices)

    def compose(self) -> ComposeResult:
        """Yield the list."""
        options = [
            Option(Text(printable(line), no_wrap=True, overflow="ellipsis"), id=f"choice-{number}")
            for number, (_, line) in enumerate(self.choices)
        ]
        with Vertical() as box:
            box.border_title = Content(printable(self.heading))
            box.border_subtitle = "enter choose · esc back"
            yield OptionList(*options, compact=True)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the choice."""
        self.dismiss(self.choices[event.option_index][0])

    def action_back(self) -> None:
        """Close without a choice."""
        self.dismiss(None)
