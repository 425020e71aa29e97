"""Plain text out of what a sandbox printed: no escape codes, nothing a database refuses, never more than asked for.

Everything that a test run says passes through here before it is read, shown or kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["clean_text", "sections", "truncate_middle"]

_CUT = "\n[…]\n"
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z^_])")
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)]) | {ord("\n"): "\n", ord("\t"): "\t"}


def clean_text(text: bytes | str) -> str:
    r"""The text without colours, control characters, carriage returns and what is not valid Unicode.

    >>> plain(b"\x1b[31mcaf\xe9\x1b[0m\r\n")
    'caf\ufffd\n'
    """
    # A string may hold half a character (JSON can escape one), which no file and no database takes.
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    return _ESCAPES.sub("", data.decode("utf-8", "replace")).translate(_CONTROLS)


def truncate_middle(text: str, limit: int) -> str:
    """At most ``limit`` characters: all of the text, or its beginning and, twice as long, its end.

    >>> clipped("beginning, middle and end", 14)
    'beg\\n[…]\\nnd end'
    """
    if len(text) <= limit:
        return text
    kept = max(limit - len(_CUT), 0)
    head = kept // 3
    return (text[:head] + _CUT + text[len(text) - (kept - head) :])[:limit]


def sections(text: str, heading: re.Pattern[str], stop: re.Pattern[str]) -> Iterator[tuple[re.Match[str], str]]:
    """The parts of a text that begin with a line like ``heading``, each up to the next such line or one like ``stop``.

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
