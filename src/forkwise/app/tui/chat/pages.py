"""Pages: texts that a command found, and lists to choose one thing from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from forkwise.app.cli.output import printable

__all__ = ["ChoiceScreen", "PageScreen"]


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
