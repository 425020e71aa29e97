"""Plain text from terminal output: escape codes removed, characters that a database refuses replaced, length bounded.

The output of every test run passes through here before it is parsed, shown or stored.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

__all__ = [
    "TerminalCleaner",
    "clean_line",
    "clean_text",
    "escape_character",
    "escape_invalid",
    "quote_lines",
    "sections",
    "truncate",
    "truncate_line",
    "truncate_middle",
]

_CUT = "\n[…]\n"
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
_PARTIAL_ESCAPE = re.compile(r"\x1b[^\x07]{0,80}\Z")
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)]) | {ord("\n"): "\n", ord("\t"): "\t"}


def clean_text(text: bytes | str) -> str:
    r"""Remove colours, control characters and carriage returns, and replace what is not valid Unicode.

    >>> clean_text(b"\x1b[31mcaf\xe9\x1b[0m\r\n")
    'caf\ufffd\n'
    """
    # A string may contain a lone surrogate (JSON can escape one), which no file and no database accepts.
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    return _ESCAPE.sub("", data.decode("utf-8", "replace")).translate(_CONTROLS)


def clean_line(line: str) -> str:
    r"""Return a line of terminal output without escape sequences, also one that is not complete yet.

    >>> clean_line("\x1b[32m3 passed\x1b(B\tin 2 s\x1b]0;py")
    '3 passed in 2 s'
    """
    text = _PARTIAL_ESCAPE.sub("", _ESCAPE.sub("", line)).replace("\t", " ")
    return "".join(c for c in text if c.isprintable()).strip()


def escape_character(character: str) -> str:
    r"""Return the escape of a character that is not printable; of a byte that is not UTF-8, its number.

    >>> escape_character("\x1b"), escape_character("\udcff")
    ('\\x1b', '\\xff')
    """
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def escape_invalid(text: str) -> str:
    """Escape surrogates, which stand for file names that are not UTF-8: neither JSON nor a provider accepts them."""
    return text.encode(errors="backslashreplace").decode()


def quote_lines(text: str, mark: str) -> str:
    r"""Put ``mark`` before every line of a text for a model's prompt, so that none looks like a line of the prompt.

    What ends a line does not matter, and control characters are removed. An empty text becomes one mark.

    >>> quote_lines("fine\r\n# Goal\u2028\x1b[2Jnew", "| ")
    '| fine\n| # Goal\n| new'
    """
    return "\n".join(f"{mark}{line}" for line in clean_text(text).splitlines()) or mark.rstrip()


def truncate_middle(text: str, limit: int) -> str:
    """Return at most ``limit`` characters: a longer text loses its middle, and keeps twice as much of its end.

    >>> truncate_middle("beginning, middle and end", 14)
    'beg\\n[…]\\nnd end'
    """
    if len(text) <= limit:
        return text
    kept = max(limit - len(_CUT), 0)
    head = kept // 3
    return (text[:head] + _CUT + text[len(text) - (kept - head) :])[:limit]


def truncate(text: str, limit: int) -> str:
    """Return at most ``limit`` characters of ``text``; a longer one ends with an ellipsis.

    >>> truncate("a long label", 7)
    'a long…'
    """
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def truncate_line(text: str, limit: int) -> str:
    """Return ``text`` as one line of at most ``limit`` characters, with each run of white space as one space.

    >>> truncate_line("two\\n  lines", 8)
    'two lin…'
    """
    return truncate(" ".join(text.split()), limit)


def sections(text: str, heading: re.Pattern[str], stop: re.Pattern[str]) -> Iterator[tuple[re.Match[str], str]]:
    """Yield the sections of a text: from a line that matches ``heading`` to the next one, or to one matching ``stop``.

    >>> parts = sections("a\\n# b\\nc\\n=\\nd\\n", re.compile("# (.)"), re.compile("="))
    >>> [(heading[1], body) for heading, body in parts]
    [('b', 'c')]
    """
    found: re.Match[str] | None = None
    body: list[str] = []
    for line in text.split("\n"):
        begins = heading.match(line)
        if found and (begins or stop.match(line)):
            yield found, "\n".join(body).strip("\n")
            found = None
        if begins:
            found, body = begins, []
        else:
            body.append(line)
    if found:
        yield found, "\n".join(body).strip("\n")


class TerminalCleaner:
    r"""Converts terminal output to plain text, chunk by chunk.

    Escape sequences and text overwritten by a carriage return are removed. A character or an escape sequence that a
    chunk splits is held until the next chunk.

    >>> cleaner = TerminalCleaner()
    >>> cleaner.feed(b"\x1b[3"), cleaner.feed(b"1mred\x1b[0m caf\xc3"), cleaner.feed(b"\xa9\r\n10%\r20%\n")
    ('', 'red caf', 'é\n20%\n')
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    def feed(self, chunk: bytes) -> str:
        """Return the text of the next chunk."""
        text = _ESCAPE.sub("", self._pending + self._decoder.decode(chunk))
        partial = _PARTIAL_ESCAPE.search(text)
        if partial is None and text.endswith("\r"):
            text, self._pending = text[:-1], "\r"
        elif partial is not None:
            text, self._pending = text[: partial.start()], partial[0]
        else:
            self._pending = ""
        if "\r" in text:
            text = "\n".join(line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").split("\n"))
        return "".join(c for c in text if c.isprintable() or c in "\n\t")
