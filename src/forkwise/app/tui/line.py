"""Line: one line of text across the screen, drawn again only where it says something else."""

from __future__ import annotations

from typing import Any

from rich.text import Text
from textual.widgets import Static

__all__ = ["Line"]


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
