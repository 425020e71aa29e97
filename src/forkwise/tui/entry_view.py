"""Widgets of a transcript: Markdown for the agent's messages, plain text and code blocks for all else.

They are in a module of their own because Textual's Markdown takes long to import: the transcript imports them with the
first entry, after the first frame.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeAlias

from markdown_it import MarkdownIt
from textual.content import Content
from textual.highlight import highlight
from textual.widget import MountError
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from forkwise.display.output import printable
from forkwise.tui.transcript_entry import TranscriptEntry

__all__ = ["EntryView", "MarkdownEntry", "PlainEntry", "build_view"]

_MOST_CHARACTERS = 20_000  # of a plain entry, such as a pasted file
_PREFIX = {"user": "> ", "note": "· ", "error": "✗ "}


class CodeFence(MarkdownFence):
    """A code block. One that names no language is plain text: to guess it, Pygments would load all of its lexers."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """Highlight ``code``."""
        return super().highlight(code, language or "text", ansi, dark)


class MarkdownEntry(Markdown):
    """A message of the agent.

    It is mounted empty and filled by ``catch_up``: after an initial text, Textual parses the next appended lines
    without the block that they belong to.
    """

    def __init__(self, entry: TranscriptEntry) -> None:
        # Textual omits HTML, and a click on a link opens a browser: show both as plain text.
        super().__init__(parser_factory=_build_parser, open_links=False)
        self.entry = entry
        self._length = 0

    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        """Return the widget class of a kind of block."""
        return CodeFence if block_name in ("fence", "code_block") else super().get_block_class(block_name)

    async def catch_up(self) -> None:
        """Show the text that was streamed since."""
        piece = self.entry.text[self._length :]
        if piece:
            self._length += len(piece)
            with suppress(MountError):  # the widget was removed or the screen closed during the drawing
                await self.append(_clean(piece))


class PlainEntry(Static):
    """Any other entry: literal text, or a tool call with its code."""

    def __init__(self, entry: TranscriptEntry) -> None:
        super().__init__(_build_content(entry), classes=entry.kind)
        self.entry = entry
        self._length = len(entry.text)

    async def catch_up(self) -> None:
        """Show the text that was streamed since."""
        if len(self.entry.text) != self._length:
            self._length = len(self.entry.text)
            self.update(_build_content(self.entry))


EntryView: TypeAlias = MarkdownEntry | PlainEntry


def build_view(entry: TranscriptEntry) -> EntryView:
    """Build the widget of an entry."""
    return MarkdownEntry(entry) if entry.kind == "text" else PlainEntry(entry)


def _build_parser() -> MarkdownIt:
    return MarkdownIt("gfm-like", {"html": False})


def _build_content(entry: TranscriptEntry) -> Content:
    if entry.kind == "tool":
        title = Content.styled(_clean(f"tool: {entry.text}"), "bold")
        code = entry.call.code
        return Content.assemble(title, "\n", highlight(_clean(code), language=entry.call.language)) if code else title
    text = _clean(entry.text.strip("\n"))
    if len(text) > _MOST_CHARACTERS:
        half = _MOST_CHARACTERS // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half:,} characters are not shown …\n{text[-half:]}"
    prefix = _PREFIX.get(entry.kind, "")
    return Content(prefix + text.replace("\n", "\n" + " " * len(prefix)))


def _clean(text: str) -> str:
    return printable(text.replace("\r\n", "\n").expandtabs(4), keep="\n")
