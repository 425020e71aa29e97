"""Output: what an attempt prints, as it prints it. Bytes go in as they come; no byte of them can drive the terminal."""

from __future__ import annotations

from typing import Any

from textual.widgets import Log

from forkwise.app.cli.voice import Plain

__all__ = ["OutputLog", "Plain"]

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
