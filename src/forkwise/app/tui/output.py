"""Output: what an attempt prints, as it prints it. Bytes go in as they come; no byte of them can drive the terminal."""

from __future__ import annotations

import codecs
import re
from typing import Any

from textual.widgets import Log

__all__ = ["OutputLog", "Plain"]

_LINES = 10_000
_LONGEST = 2000  # characters of a line that is shown
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
_BEGUN = re.compile(r"\x1b[^\x07]{0,80}\Z")
_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")


class Plain:
    r"""Turns what a program prints for a terminal into text, piece by piece: escapes go, what a carriage return prints
    over goes, and what a piece cuts in two waits for the rest.

    >>> plain = Plain()
    >>> plain.feed(b"\x1b[3"), plain.feed(b"1mred\x1b[0m caf\xc3"), plain.feed(b"\xa9\r\n10%\r20%\n")
    ('', 'red caf', 'é\n20%\n')
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, piece: bytes) -> str:
        """The text of a piece."""
        text = _ESCAPE.sub("", self._rest + self._decoder.decode(piece))
        begun = _BEGUN.search(text)
        if begun is None and text.endswith("\r"):
            text, self._rest = text[:-1], "\r"
        elif begun is not None:
            text, self._rest = text[: begun.start()], begun[0]
        else:
            self._rest = ""
        text = _OVERWRITTEN.sub("", text.replace("\r\n", "\n"))
        return "".join(c for c in text if c.isprintable() or c in "\n\t")


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
