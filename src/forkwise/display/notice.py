"""A notice on the terminal that something long is over: the bell, and OSC 9, which many terminals show on the desktop.

Its text consists of forkwise's own words and of ids, and of nothing from a workspace: terminals interpret the sequence,
so foreign text could inject commands.
"""

from __future__ import annotations

import os
import re
import sys
import time

__all__ = ["TerminalNotice"]

_UNABLE = ("", "dumb", "unknown", "linux")  # values of TERM; the kernel's console would print the text
_LONGEST = 100


class TerminalNotice:
    """A notice that is sent if at least ``delay_s`` seconds have passed since its creation; None means never."""

    def __init__(self, delay_s: float | None) -> None:
        self._due = None if delay_s is None else time.monotonic() + delay_s

    def send(self, text: str) -> None:
        """Write the notice to stdout, if that is a terminal; one that does not know OSC 9 only rings its bell."""
        if self._due is None or time.monotonic() < self._due or not sys.stdout.isatty():
            return
        clean = re.sub(r"[^A-Za-z0-9 .:,-]", "", text)[:_LONGEST]
        is_able = os.environ.get("TERM", "") not in _UNABLE
        sys.stdout.write(f"\x1b]9;forkwise: {clean}\x1b\\\x07" if is_able else "\x07")
        sys.stdout.flush()
