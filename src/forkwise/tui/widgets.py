"""Pages: texts that a command found, and lists to choose one thing from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TextIO, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Log, OptionList, Static
from textual.widgets.option_list import Option

from forkwise.display.board import Plain
from forkwise.display.output import printable

__all__ = [
    "SIGNS",
    "YES",
    "ChoiceScreen",
    "LastingDriver",
    "Line",
    "LineQuestion",
    "OutputLog",
    "PageScreen",
    "Plain",
    "Question",
    "chip",
    "tally",
]


class Line(Static):
    """A title or a status. It has its height and its width from the screen, so that nothing else moves with it."""

    DEFAULT_CSS = """
    Line { width: 100%; height: 1; padding: 0 1; background: $panel; text-style: bold; }
    Line.good { color: $text-success; }
    Line.bad { color: $text-error; }
    """

    def __init__(self, text: str = "", **options: Any) -> None:
        super().__init__(text, markup=False, **options)
        self.said = Text(text)

    def say(self, text: str | Text) -> None:
        """Have it say something, cut where there is no room for all of it."""
        line = Text(text) if isinstance(text, str) else text
        if line != self.said:
            self.said = line
            line.no_wrap, line.overflow = True, "ellipsis"
            self.update(line, layout=False)


#: The sign and the style of each state.
SIGNS: dict[str, tuple[str, str]] = {
    "won": ("★", "bold green"),
    "running": ("●", "cyan"),
    "succeeded": ("✓", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("⊘", "dim"),
    "pending": ("○", "dim"),
    "open": ("?", "yellow"),
    "interrupted": ("!", "yellow"),
    "resolved": ("✓", "green"),
    "aborted": ("⊘", "dim"),
}


def chip(state: str) -> Text:
    """A state with its sign.

    >>> chip("failed").plain
    '✗ failed'
    """
    sign, style = SIGNS.get(state, ("·", ""))
    return Text(f"{sign} {state}", style=style, no_wrap=True)


def tally(states: Sequence[str]) -> Text:
    """How many are in which state, in the order of the signs.

    >>> tally(["failed", "running", "running"]).plain
    '2● 1✗'
    """
    counts = [(states.count(state), sign, style) for state, (sign, style) in SIGNS.items()]
    return Text(" ").join(Text(f"{count}{sign}", style=style) for count, sign, style in counts if count)


_LINES = 10_000
_LONGEST = 2000  # characters of a line that is shown


class OutputLog(Log):
    """A log that is fed with bytes, follows its end until somebody scrolls up, and does so again at the end."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_lines=_LINES, auto_scroll=True, **options)
        self._plain = Plain()

    def begin(self) -> None:
        """Show another attempt's."""
        self._plain = Plain()
        self.clear()
        self.auto_scroll = True

    def feed(self, piece: bytes) -> None:
        """Show what came."""
        text = self._plain.feed(piece)
        if text:
            self.auto_scroll = self.is_vertical_scroll_end or not self.line_count
            self.write("\n".join(line[:_LONGEST] for line in text.split("\n")))


class _Lasting:
    """A file of which it does not matter whether it is there."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()


class LastingDriver(LinuxDriver):
    """Writes to the terminal as long as there is one; the app is told of its end by a signal."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._file = cast(Any, _Lasting(cast(TextIO, self._file)))


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


class PageScreen(ModalScreen[None]):
    """A text under a title, over what is there."""

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
        """The text in a box."""
        with VerticalScroll() as box:
            box.border_title = Content(printable(self.heading))
            box.border_subtitle = "esc back"
            yield Label(printable(self.text.expandtabs(4), keep="\n"), markup=False)

    def action_back(self) -> None:
        """Go back to where one was."""
        self.dismiss()


class ChoiceScreen(ModalScreen[str | None]):
    """Some things, each with its name and a line; gives the name of one, or None where it was escaped."""

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
        """One line each."""
        options = [
            Option(Text(printable(line), no_wrap=True, overflow="ellipsis"), id=f"choice-{number}")
            for number, (_, line) in enumerate(self.choices)
        ]
        with Vertical() as box:
            box.border_title = Content(printable(self.heading))
            box.border_subtitle = "enter chooses · esc back"
            yield OptionList(*options, compact=True)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Give the one that was chosen."""
        self.dismiss(self.choices[event.option_index][0])

    def action_back(self) -> None:
        """Choose none."""
        self.dismiss(None)
