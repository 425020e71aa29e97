"""Voice: what an attempt prints, as lines of plain text while it prints them, for who reads lines and not panels."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

from forkwise.ledger.output import follow_output

__all__ = ["Plain", "Voice"]

_ALL = 1 << 30  # bytes at one look: a log is shorter
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


class Voice:
    """One attempt as it is heard: each line once, when it is whole; what is cut short at the end, when that is told."""

    def __init__(self, directory: Path, attempt: str) -> None:
        self._directory = directory
        self._attempt = attempt
        self._plain = Plain()
        self._heard = 0
        self._rest = ""

    def lines(self, *, is_over: bool = False) -> Iterator[str]:
        """The lines since the last look, without those that show nothing."""
        self._heard, piece = follow_output(self._directory, self._attempt, self._heard, tail=_ALL)
        *whole, self._rest = (self._rest + self._plain.feed(piece)).split("\n")
        if is_over:
            whole, self._rest = [*whole, self._rest], ""
        return (line.rstrip() for line in whole if line.strip())
