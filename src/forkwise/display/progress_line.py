"""The progress of long work: one line on the terminal, which disappears when the work is done.

It is shown only if stderr is a terminal, and only for work that takes a second or more. A thread draws the line, and
runs only while there is work: a process with a second thread cannot enter a namespace. rich is imported when the line
is drawn.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from forkwise.display.output import printable
from forkwise.progress import Work, listen

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["ProgressLine", "WorkList", "format_work"]

_SHOWN_AFTER_S = 1.0
_INTERVAL_S = 0.2
_BAR = 20  # characters


def format_work(work: Work, now: float) -> str:
    """Format a piece of work as a line: what, how far, how long.

    >>> work = Work("Copying files", total=2000)
    >>> work.started, work.done = 0.0, 500
    >>> format_work(work, 65.0)
    'Copying files  [=====               ]  500 of 2,000  1:05'
    """
    parts = [work.description]
    if work.total:
        share = min(work.done / work.total, 1.0)
        parts += [f"[{'=' * int(share * _BAR):{_BAR}}]", f"{work.done:,} of {work.total:,}"]
    elif work.done:
        parts.append(f"{work.done:,}")
    minutes, seconds = divmod(int(max(now - work.started, 0)), 60)
    return "  ".join([*parts, f"{minutes}:{seconds:02}"])


class WorkList:
    """Tracks pieces of work, and reports those that have been in progress for a while."""

    def __init__(self) -> None:
        self._active: list[Work] = []
        self._lock = threading.Lock()

    def begin(self, work: Work) -> None:
        """Add a piece of work."""
        with self._lock:
            self._active.append(work)

    def end(self, work: Work) -> None:
        """Remove a piece of work."""
        with self._lock:
            if work in self._active:
                self._active.remove(work)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in progress."""
        return not self._active

    def describe(self) -> str:
        """Return a line about the newest work that has taken a second or more; empty if there is none."""
        now = time.monotonic()
        with self._lock:
            shown = [work for work in self._active if now - work.started >= _SHOWN_AFTER_S]
        if not shown:
            return ""
        more = f"  (and {len(shown) - 1} more)" if len(shown) > 1 else ""
        return printable(f"{format_work(shown[-1], now)}{more}")


class ProgressLine(WorkList):
    """Shows the work of this process on a line of stderr while the block runs, if stderr is a terminal."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        super().__init__()
        is_terminal = sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        self._is_shown = is_terminal and not is_quiet
        self._stack = ExitStack()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._live: Live | None = None
        self._drawing = threading.Lock()

    def __enter__(self) -> ProgressLine:
        if self._is_shown:
            self._stack.enter_context(listen(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._active.clear()
        self._stop()

    def begin(self, work: Work) -> None:
        """Add a piece of work, and start to draw."""
        super().begin(work)
        with self._drawing:
            if self._thread is None:
                self._wake.clear()
                self._thread = threading.Thread(target=self._draw_until_stopped, name="progress", daemon=True)
                self._thread.start()

    def end(self, work: Work) -> None:
        """Remove a piece of work; after the last one, erase the line before anything else is printed."""
        super().end(work)
        if self.is_empty:
            self._stop()

    def _stop(self) -> None:
        with self._drawing:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._wake.set()
            thread.join()

    def _draw_until_stopped(self) -> None:
        try:
            while not self._wake.wait(_INTERVAL_S):
                if text := self.describe():
                    self._draw(text)
        finally:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _draw(self, text: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        line = Text(text, style="dim", no_wrap=True, overflow="ellipsis")
        if self._live is None:
            console = Console(stderr=True, highlight=False, markup=False, emoji=False)
            self._live = Live(line, console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._live.start()
            console.show_cursor(True)  # if the cursor were hidden, a killed process could not show it again
        self._live.update(line, refresh=True)
