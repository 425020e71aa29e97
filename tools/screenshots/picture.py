"""Picture: a screen as an SVG with the same bytes on every machine.

A picture is taken when no message waits and nothing is left to draw. It contains no time, no random id, no colour of
the terminal that runs it, and loads no font.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Footer

__all__ = ["SIZE", "drop_fonts", "ignore_terminal_colours", "temporary_state", "wait_for", "wait_until_settled"]

SIZE = (120, 36)
"""The columns and lines of a picture."""

_POLL_S = 0.02
_MOST_POLLS = 3000
_SAME = 3  # consecutive pictures that must be the same
_VARIABLES = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "COLORTERM", "COLUMNS", "LINES")
_FONTS = '"DejaVu Sans Mono", Menlo, Consolas, monospace'


async def wait_for(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    for _ in range(_MOST_POLLS):
        if condition():
            return
        await pilot.pause(_POLL_S)
    raise TimeoutError(f"{pilot.app.screen} did not show what the scene waits for")


async def wait_until_settled(pilot: Pilot[Any]) -> str:
    """Return the picture once it stays the same while the app is idle."""
    last, count = "", 0

    def is_settled() -> bool:
        nonlocal last, count
        if not _is_idle(pilot.app):
            count = 0
            return False
        drawn = pilot.app.export_screenshot(title="forkwise")
        last, count = drawn, count + 1 if drawn == last else 0
        return count >= _SAME

    await wait_for(pilot, is_settled)
    return drop_fonts(last)


def drop_fonts(svg: str) -> str:
    """Remove the web fonts of an SVG that Rich exported; a font of the reader's system takes their place."""
    svg = re.sub(r" *@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
    return svg.replace("font-family: Fira Code, monospace", f"font-family: {_FONTS}")


def _is_idle(app: App[Any]) -> bool:
    """Return whether no message waits, nothing is animated or left to draw, and the footer lists its keys."""
    screen = app.screen
    waits = any(pump.message_queue_size for pump in (app, screen, *screen.walk_children(with_self=False)))
    to_draw = screen._layout_required or screen._repaint_required or screen._dirty_widgets
    lacks_keys = any(not footer.children for footer in screen.query(Footer))
    return not (waits or to_draw or lacks_keys or app.animator._animations or app.animator._scheduled)


@contextmanager
def ignore_terminal_colours() -> Iterator[None]:
    """Unset the variables that change the colours and the size of an app."""
    held = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)


@contextmanager
def temporary_state() -> Iterator[Path]:
    """Create a temporary directory, and use ``state`` in it as the state directory of forkwise for the block."""
    held = os.environ.get("FORKWISE_STATE")
    # After an error branches may still be mounted; that must not hide the error.
    with tempfile.TemporaryDirectory(prefix="forkwise-scenes-", ignore_cleanup_errors=True) as scratch:
        os.environ["FORKWISE_STATE"] = f"{scratch}/state"
        try:
            yield Path(scratch)
        finally:
            if held is None:
                del os.environ["FORKWISE_STATE"]
            else:
                os.environ["FORKWISE_STATE"] = held
