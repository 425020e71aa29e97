"""DiffPicker: which file is compared in a diff tool, and the versions of which branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from forkwise.app.cli.output import printable

__all__ = ["DiffPicker"]

_DIGITS = "1234567890"


class DiffPicker(ModalScreen[tuple[str, Sequence[str]] | None]):
    """Files, each with the branches that changed it; gives one with the branches that are not left out."""

    DEFAULT_CSS = """
    DiffPicker { align: center middle; }
    DiffPicker > Vertical { width: 90%; max-width: 100; height: auto; max-height: 90%; border: round $primary;
        background: $surface; padding: 0 1; }
    DiffPicker OptionList { height: auto; max-height: 16; text-wrap: nowrap; text-overflow: ellipsis; }
    DiffPicker Label { color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "back", "back"),
        *(Binding(digit, f"leave_out({n})", "in or out") for n, digit in enumerate(_DIGITS)),
    ]

    def __init__(self, touched: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.touched = touched
        self.branches = list(dict.fromkeys(label for labels in touched.values() for label in labels))
        self.left_out: set[str] = set()

    def compose(self) -> ComposeResult:
        """The files over the branches."""
        with Vertical() as box:
            box.border_title = "compare which file?"
            options = [Option(self._line(path), id=f"path-{n}") for n, path in enumerate(self.touched)]
            yield OptionList(*options, compact=True)
            yield Label("", id="branches", markup=False)

    def on_mount(self) -> None:
        """Say what the numbers are for."""
        self._tell()

    def _line(self, path: str) -> Text:
        shown = f"{printable(path)}  {', '.join(map(printable, self.touched[path]))}"
        return Text(shown, no_wrap=True, overflow="ellipsis")

    def _tell(self) -> None:
        marks = [
            f"{number} {'☐' if label in self.left_out else '☑'} {printable(label)}"
            for number, label in enumerate(self.branches, 1)
        ]
        self.query_one("#branches", Label).update(f"{'  '.join(marks)}\nenter compares · a number leaves one out · esc")

    def action_leave_out(self, number: int) -> None:
        """Have a branch in it, or no longer."""
        if number < len(self.branches):
            self.left_out ^= {self.branches[number]}
            self._tell()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Give the file, with the branches."""
        path = list(self.touched)[event.option_index]
        labels = [label for label in self.touched[path] if label not in self.left_out]
        if labels:
            self.dismiss((path, labels))
        else:
            self.notify("All that changed it are left out.", severity="warning")

    def action_back(self) -> None:
        """Compare nothing."""
        self.dismiss(None)
