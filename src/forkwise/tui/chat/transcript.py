"""Transcript: what was said, as it is said. Only the line that grows is wrapped anew, and only what is in sight is
drawn, so that a token costs the same in a long conversation as in a short one."""

from __future__ import annotations

import re
from typing import Any, ClassVar, NamedTuple

from rich.cells import cell_len, chop_cells
from rich.style import Style
from rich.text import Text
from textual.events import Resize
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from forkwise.display.output import printable

__all__ = ["Transcript", "wrapped"]

_LINES = 10_000
_NARROWEST = 10
_PREFIX = {"user": "> ", "tool": "  tool: ", "result": "  ", "note": "· ", "error": "✗ "}
_APART = ("user", "text")  # what an empty line is left before
_WORDS = re.compile(r"\S+\s*|\s+")
_MARKS = re.compile(r"`[^`]+`|\*\*[^*]+\*\*")
_HEADING = re.compile(r"#{1,6} ")


class _Line(NamedTuple):
    """A line as it was said."""

    kind: str
    text: str
    is_code: bool


class _Row(NamedTuple):
    """A line as it is shown."""

    style: str
    text: str


class Transcript(ScrollView, can_focus=True):
    """A conversation. It follows its end until somebody scrolls up, and does so again at the end.

    What is ``feed`` waits until ``flush``: whoever shows the transcript calls that as often as it wants it drawn.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "chat--user",
        "chat--tool",
        "chat--thought",
        "chat--note",
        "chat--error",
        "chat--code",
        "chat--heading",
    }
    DEFAULT_CSS = """
    Transcript { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    Transcript > .chat--user { color: $text-primary; text-style: bold; }
    Transcript > .chat--tool { color: $text-secondary; }
    Transcript > .chat--thought { color: $text-muted; text-style: italic; }
    Transcript > .chat--note { color: $text-muted; }
    Transcript > .chat--error { color: $text-error; }
    Transcript > .chat--code { color: $text-accent; }
    Transcript > .chat--heading { text-style: bold; }
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._lines: list[_Line] = []
        self._rows: list[_Row] = []
        self._tail = 0  # where the rows of the last line begin
        self._pending: list[tuple[str, str, bool]] = []
        self._is_stale = False  # whether lines were taken that are not shown yet
        self._open = ""  # the kind of text that goes on where it stopped
        self._follows = True
        self._width = 80

    # What is said

    def feed(self, kind: str, text: str) -> None:
        """More of a text of some kind, which goes on where the last of its kind stopped."""
        if self._open == kind and self._pending:
            _, before, is_new = self._pending[-1]
            self._pending[-1] = (kind, before + text, is_new)
        else:
            self._pending.append((kind, text, self._open != kind))
        self._open = kind

    def say(self, kind: str, text: str) -> None:
        """Something whole, on lines of its own."""
        self._pending.append((kind, text, True))
        self._open = ""

    def end(self) -> None:
        """What comes next begins on a line of its own."""
        self._open = ""

    def begin(self) -> None:
        """Forget everything."""
        self._lines, self._rows, self._tail, self._pending = [], [], 0, []
        self._open, self._follows = "", True
        self._resized()

    @property
    def is_behind(self) -> bool:
        """Whether something was said that is not shown yet."""
        return bool(self._pending) or self._is_stale

    @property
    def text(self) -> str:
        """All that was said."""
        self._take()
        return "\n".join(row.text for row in self._lines)

    @property
    def last(self) -> list[str]:
        """The last few lines that were said, without those that are empty."""
        self._take()
        return [row.text for row in self._lines[-30:] if row.text.strip()]

    # What is shown

    def flush(self) -> None:
        """Show what was said since."""
        self._take()
        if self._is_stale:
            self._resized()

    def _take(self) -> None:
        pending, self._pending = self._pending, []
        self._is_stale = self._is_stale or bool(pending)
        for kind, text, is_new in pending:
            prefix = _PREFIX.get(kind, "")
            first, *more = (printable(line.expandtabs(4).rstrip("\r")) for line in text.split("\n"))
            if is_new:
                if self._lines and kind in _APART and self._lines[-1].text:
                    self._put(_Line("gap", "", False))
                self._put(_Line(kind, prefix + first, False))
            else:
                self._lines[-1] = self._lines[-1]._replace(text=self._lines[-1].text + first)
                self._wrap()
            for line in more:
                self._put(_Line(kind, " " * len(prefix) + line, self._is_code))
        if len(self._lines) > _LINES:
            self._lines = self._lines[-_LINES * 9 // 10 :]
            self._rewrap()

    @property
    def _is_code(self) -> bool:
        """Whether the line after the last is in a block of code."""
        kind, text, is_code = self._lines[-1]
        return kind == "text" and is_code != text.lstrip().startswith("```")

    def _put(self, line: _Line) -> None:
        self._lines.append(line)
        self._tail = len(self._rows)
        self._wrap()

    def _wrap(self) -> None:
        kind, text, is_code = self._lines[-1]
        if kind == "text":
            is_code = is_code or text.lstrip().startswith("```")
            kind = "code" if is_code else "heading" if _HEADING.match(text) else "text"
        self._rows[self._tail :] = [_Row(kind, row) for row in wrapped(text, self._width)]

    def _rewrap(self) -> None:
        lines, self._lines, self._rows, self._tail = self._lines, [], [], 0
        for line in lines:
            self._put(line)

    def _resized(self) -> None:
        """Have as many rows as there are, for the width there is; where nobody looks there is none."""
        follows = self._follows
        there = self.scrollable_content_region.width
        width = max(there, _NARROWEST) if there else self._width
        if width != self._width:
            self._width = width
            self._rewrap()
        self.virtual_size = Size(self._width, len(self._rows))
        if follows:
            self.scroll_end(animate=False, immediate=True, force=True, x_axis=False)
        self._follows = follows  # nobody has scrolled
        self._is_stale = False
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Follow the end from the moment that it is in sight."""
        super().watch_scroll_y(old_value, new_value)
        self._follows = new_value >= self.max_scroll_y - 1

    def on_resize(self, _: Resize) -> None:
        """The width may be another."""
        self._resized()

    def render_line(self, y: int) -> Strip:
        """Draw one line."""
        number = round(self.scroll_offset.y) + y
        width = self.size.width
        if number >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        row = self._rows[number]
        line = self._drawn(row)
        selected = self.text_selection
        span = None if selected is None else selected.get_span(number)
        if span is not None:
            end = len(row.text) if span[1] == -1 else span[1]
            line.stylize(self.screen.get_component_rich_style("screen--selection"), span[0], end)
        strip = Strip(line.render(self.app.console), cell_len(row.text))
        return strip.crop_extend(0, width, self.rich_style).apply_offsets(0, number)

    def _drawn(self, row: _Row) -> Text:
        style, text = row
        line = Text(text, style=self._style(style), no_wrap=True, end="")
        if style == "text":
            for mark in _MARKS.finditer(text):
                line.stylize(self._style("code" if mark[0].startswith("`") else "heading"), mark.start(), mark.end())
        return line

    def _style(self, kind: str) -> Style:
        name = f"chat--{'tool' if kind == 'result' else kind}"
        return self.get_component_rich_style(name) if name in self.COMPONENT_CLASSES else self.rich_style

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """What was marked with the mouse."""
        return selection.extract("\n".join(row.text for row in self._rows)), "\n"


def wrapped(text: str, width: int) -> list[str]:
    """A line as lines that are no wider, broken between words where that can be.

    >>> wrapped("to be or not", 6)
    ['to be ', 'or not']
    >>> wrapped("incomprehensible", 10)
    ['incomprehe', 'nsible']
    """
    if len(text) <= width and (text.isascii() or cell_len(text) <= width):
        return [text]
    rows, row, room = [], "", width
    for word in _WORDS.findall(text):
        size = cell_len(word.rstrip()) if word.strip() else 0
        if size > room and row:
            rows.append(row)
            row, room = "", width
        while cell_len(word.rstrip()) > width:
            piece = chop_cells(word, width)[0]
            rows.append(piece)
            word = word[len(piece) :]
        row += word
        room = width - cell_len(row)
    return [*rows, row] if row or not rows else rows
