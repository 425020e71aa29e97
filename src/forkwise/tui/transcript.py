"""Transcript: a conversation as it is streamed, and the scrolling view of it.

Entries are collected as data at once and drawn in batches by ``flush``. Textual's Markdown takes several widgets for
each message, and the time of a layout grows with their number, so only the entries near the end are mounted; scrolling
to the top mounts the ones before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

from textual.containers import VerticalScroll
from textual.widget import MountError
from textual.widgets import Static

from forkwise.tui.tool_call import CallText
from forkwise.tui.transcript_entry import TranscriptEntry, strip_markdown

if TYPE_CHECKING:
    from forkwise.tui.entry_view import EntryView

__all__ = ["Transcript"]

_MOUNTED = 24  # entries that are mounted at first; twice as many are mounted at most while the end is in view
_LONGEST_PARAGRAPH = 2000  # characters
_PREVIEWED = 30
_REST = 4  # pause after a drawing, as a multiple of its duration
_APART = ("user", "text", "tool")  # kinds with an empty line before them


class Transcript(VerticalScroll):
    """A conversation that follows its end until the user scrolls up, and again once the end is back in view.

    ``stream``, ``add`` and ``load`` only collect entries; the owner calls ``flush`` as often as it wants them drawn.
    """

    DEFAULT_CSS = """
    Transcript { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    Transcript > * { height: auto; margin: 0 0 1 0; }
    Transcript > .user { color: $text-primary; text-style: bold; }
    Transcript > .tool { background: $boost; color: $text-secondary; border-left: outer $secondary; padding: 0 1;
        margin: 0; }
    Transcript > .result { color: $text-muted; border-left: outer $secondary; padding: 0 1; }
    Transcript > .thought { color: $text-muted; text-style: italic; }
    Transcript > .note, Transcript > .earlier { color: $text-muted; }
    Transcript > .error { color: $text-error; }
    Transcript > Markdown { padding: 0; margin: 0; }
    Transcript MarkdownH1 { content-align: left middle; }
    Transcript MarkdownHeader { margin: 0 0 1 0; }
    Transcript MarkdownFence { margin: 0 0 1 0; background: $boost; }
    Transcript MarkdownFence > Label { width: 1fr; padding: 0 1; }
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._entries: list[TranscriptEntry] = []
        self._views: list[EntryView] = []
        self._earlier = Static(classes="earlier")
        self._first = 0  # index of the first entry that is mounted
        self._streamed = ""  # kind of the entry that the next piece of text continues
        self._is_stale = False
        self._is_drawing = False
        self._next_drawing = 0.0

    def compose(self) -> Iterator[Static]:
        """Yield the line that counts the entries that are not mounted."""
        self._earlier.display = False
        yield self._earlier

    def on_mount(self) -> None:
        """Follow the end."""
        self.anchor()

    # Entries

    @property
    def is_empty(self) -> bool:
        """Whether there is no entry yet."""
        return not self._entries

    def stream(self, kind: str, text: str) -> None:
        """Append a piece of text to the entry that is being streamed, or begin one of this kind.

        A paragraph that gets very long is continued in a new entry: Markdown parses and lays out the last paragraph
        again for each piece.
        """
        if self._streamed == kind and self._entries:
            self._entries[-1].text += text
        else:
            self._entries.append(TranscriptEntry(kind, text))
        last = self._entries[-1].text
        is_long = kind == "text" and len(last) - last.rfind("\n") > _LONGEST_PARAGRAPH
        self._streamed = "" if is_long else kind
        self._is_stale = True

    def add(self, kind: str, text: str) -> None:
        """Add a complete entry."""
        self._append(TranscriptEntry(kind, text))

    def add_call(self, call: CallText) -> None:
        """Add a tool call."""
        self._append(TranscriptEntry("tool", call.title, call))

    def end_stream(self) -> None:
        """Begin a new entry with the next piece of text."""
        self._streamed = ""

    def load(self, entries: Iterable[TranscriptEntry]) -> None:
        """Replace all entries. The widgets of the leading entries that stay the same are kept."""
        loaded = [piece for entry in entries for piece in _split(entry)]
        same = 0
        for old, new in zip(self._entries, loaded, strict=False):
            if old != new:
                break
            same += 1
        self._entries[same:] = loaded[same:]
        self._first = max(0, min(self._first, len(self._entries) - _MOUNTED))
        self._streamed = ""
        self._is_stale = True
        self.anchor()

    def _append(self, entry: TranscriptEntry) -> None:
        self._entries += _split(entry)
        self._streamed = ""
        self._is_stale = True

    @property
    def text(self) -> str:
        """All entries as plain text."""
        parts: list[str] = []
        for entry in self._entries:
            parts.append("\n" if parts and entry.kind in _APART else "")
            parts.append(f"{entry.plain}\n")
            parts.append(f"{entry.call.code}\n" if entry.call.code else "")
        return "".join(parts).removesuffix("\n")

    @property
    def last_lines(self) -> list[str]:
        """The last non-empty lines, for the overview: Markdown without its marks, the code of tool calls indented."""
        lines: list[str] = []
        for entry in reversed(self._entries[-_PREVIEWED:]):
            text = entry.plain[-_LONGEST_PARAGRAPH:]
            text = strip_markdown(text) if entry.kind == "text" else text
            text += "".join(f"\n  {line}" for line in entry.call.code.split("\n"))
            lines[:0] = [line for line in text.split("\n") if line.strip()]
            if len(lines) >= _PREVIEWED:
                break
        return lines[-_PREVIEWED:]

    # Drawing

    @property
    def is_behind(self) -> bool:
        """Whether entries were added or have grown since the last drawing."""
        return self._is_stale or self._is_drawing

    def flush(self) -> None:
        """Draw the entries added since the last drawing, unless one is under way or has only just ended.

        After a drawing there is a pause of several times its duration, so that keys are handled however long the layout
        takes.
        """
        if self._is_stale and not self._is_drawing and self.is_attached and monotonic() >= self._next_drawing:
            self._is_drawing = True
            self.call_later(self._draw)

    async def _draw(self) -> None:
        started = monotonic()
        self._is_stale = False
        if self._is_following and len(self._entries) - self._first > 2 * _MOUNTED:
            self._first = len(self._entries) - _MOUNTED
        try:
            await self._update_views()
        except MountError:
            if self.is_attached:
                raise
            return  # the transcript was removed during the drawing, with its screen or its branch
        self._earlier.display = self._first > 0
        self._earlier.update(f"{self._first} earlier entries: scroll up to show them")
        self.call_after_refresh(self._finish_drawing, started)

    async def _update_views(self) -> None:
        """Remove widgets of entries that are not shown any more, update the last one, mount those of new entries."""
        from forkwise.tui.entry_view import build_view  # late: Markdown would delay the first frame

        wanted = self._entries[self._first :]
        known = {id(entry) for entry in wanted}
        removed = [view for view in self._views if id(view.entry) not in known]
        self._views = [view for view in self._views if id(view.entry) in known]
        if removed:
            await self.remove_children(removed)
        if self._views:
            await self._views[-1].catch_up()
        first = next((n for n, entry in enumerate(wanted) if self._views and entry is self._views[0].entry), 0)
        before = [build_view(entry) for entry in wanted[:first]]
        after = [build_view(entry) for entry in wanted[first + len(self._views) :]]
        with self.app.batch_update():
            if before:
                await self.mount(*before, before=self._views[0])
            if after:
                await self.mount(*after)
            for view in (*before, *after):
                await view.catch_up()
        self._views = [*before, *self._views, *after]

    def _finish_drawing(self, started: float) -> None:
        now = monotonic()
        self._next_drawing = now + _REST * (now - started)
        self._is_drawing = False

    # Scrolling

    @property
    def _is_following(self) -> bool:
        """Whether the end stays in view: Textual releases the anchor when the user scrolls away from it."""
        return not self._anchor_released

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Mount earlier entries when the user scrolls to the top."""
        super().watch_scroll_y(old_value, new_value)
        if new_value <= 0 < old_value and self._first > 0 and not self._is_following and not self._is_drawing:
            height = self.virtual_size.height
            self._first = max(0, self._first - _MOUNTED)
            self._is_stale = True
            self._is_drawing = True
            self.call_later(self._draw)
            self.call_later(self.call_after_refresh, self._keep_position, height)

    def _keep_position(self, height: int) -> None:
        self.scroll_to(y=self.virtual_size.height - height, animate=False, force=True)


def _split(entry: TranscriptEntry) -> list[TranscriptEntry]:
    """Split an entry whose text begins with a very long paragraph."""
    if entry.kind != "text":
        return [entry]
    pieces, text = [], entry.text
    while len(text) > _LONGEST_PARAGRAPH and "\n" not in text[:_LONGEST_PARAGRAPH]:
        cut = text.rfind(" ", 0, _LONGEST_PARAGRAPH) + 1 or _LONGEST_PARAGRAPH
        pieces.append(TranscriptEntry("text", text[:cut]))
        text = text[cut:]
    return [*pieces, TranscriptEntry("text", text)]
