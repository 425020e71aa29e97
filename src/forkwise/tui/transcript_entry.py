"""Entries of a transcript, as values: messages, thoughts, tool calls, results and notes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from forkwise.tui.tool_call import CallText, format_call, format_result

__all__ = ["TranscriptEntry", "build_entry", "strip_markdown"]

_PREFIX = {"user": "> ", "tool": "tool: ", "result": "  ", "note": "· ", "error": "✗ "}
_MARKUP = re.compile(r"\*\*|`+(?:\w+$)?|^#{1,6} ", re.MULTILINE)


@dataclass(slots=True)
class TranscriptEntry:
    """One message, thought, tool call, result or note.

    ``kind`` is ``user``, ``text``, ``thought``, ``tool``, ``result``, ``note`` or ``error``. The last entry grows while
    it is streamed. ``call`` is the tool call of a ``tool`` entry.
    """

    kind: str
    text: str
    call: CallText = field(default_factory=lambda: CallText(""))

    @property
    def plain(self) -> str:
        """The entry as plain text, with the prefix of its kind."""
        prefix = _PREFIX.get(self.kind, "")
        return prefix + self.text.rstrip("\n").replace("\n", "\n" + " " * len(prefix))


def build_entry(speaker: str, text: str, tool: str = "") -> TranscriptEntry:
    """Build the entry of a stored message.

    ``speaker`` is ``user``, ``agent``, ``call`` or ``result``; ``tool`` is the tool that was called.
    """
    if speaker == "call":
        call = format_call(tool, text)
        return TranscriptEntry("tool", call.title, call)
    if speaker == "result":
        return TranscriptEntry("result", format_result(text))
    return TranscriptEntry("user" if speaker == "user" else "text", text)


def strip_markdown(text: str) -> str:
    """Remove the marks of headings, bold text and code, for a preview in one line.

    >>> strip_markdown("## Done: `get` is **fast**")
    'Done: get is fast'
    """
    return _MARKUP.sub("", text)
