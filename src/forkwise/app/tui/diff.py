"""Diff: a unified diff of any length, coloured and scrolled, of which only the lines in sight are drawn."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer

from forkwise.app.cli.output import printable
from forkwise.app.tui.line import Line

__all__ = ["DiffScreen", "DiffView"]

_KINDS = {"+": "diff--added", "-": "diff--removed", "@": "diff--hunk"}
_HEADS = ("diff ", "--- ", "+++ ")


class DiffView(ScrollView, can_focus=True):
    """A diff. ``n`` and ``p`` go from file to file."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"diff--added", "diff--removed", "diff--hunk", "diff--head"}
    DEFAULT_CSS = """
    DiffView { height: 1fr; }
    DiffView > .diff--added { color: $text-success; }
    DiffView > .diff--removed { color: $text-error; }
    DiffView > .diff--hunk { color: $text-primary; }
    DiffView > .diff--head { text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "file(1)", "next file"),
        Binding("p", "file(-1)", "previous file"),
    ]

    def __init__(self, text: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._lines: list[str] = []
        self._files: list[int] = []
        self.text = text

    @property
    def text(self) -> str:
        """The diff that is shown."""
        return "\n".join(self._lines)

    @text.setter
    def text(self, text: str) -> None:
        self._lines = [printable(line.expandtabs(4)) for line in text.removesuffix("\n").split("\n")]
        self._files = [number for number, line in enumerate(self._lines) if line.startswith("diff ")]
        self.virtual_size = Size(max(map(cell_len, self._lines)), len(self._lines))
        self.refresh()

    def action_file(self, step: int) -> None:
        """Go to the next file, or to the one before."""
        here = round(self.scroll_offset.y)
        beside = [y for y in self._files if (y > here if step > 0 else y < here)]
        if beside:
            self.scroll_to(y=min(beside) if step > 0 else max(beside), animate=False)

    def render_line(self, y: int) -> Strip:
        """Draw one line."""
        left, top = self.scroll_offset
        width = self.size.width
        if top + y >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        line = self._lines[top + y]
        strip = Strip([Segment(line, self._style(line))], cell_len(line))
        return strip.crop_extend(left, left + width, self.rich_style)

    def _style(self, line: str) -> Style:
        kind = "diff--head" if line.startswith(_HEADS) else _KINDS.get(line[:1])
        return self.rich_style if kind is None else self.get_component_rich_style(kind)


class DiffScreen(Screen[None]):
    """A diff that fills the screen, under a title."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "back", "back")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self.heading = title
        self.text = text or "nothing was changed"

    def compose(self) -> ComposeResult:
        """The title, the diff, the keys."""
        yield Line(self.heading)
        yield DiffView(self.text)
        yield Footer(compact=True)

    def action_back(self) -> None:
        """Go back to where one was."""
        self.dismiss()
