"""Picture: a screen as an SVG, the same bytes on every machine, however slow: it is taken when nothing is being drawn
any more, and it holds no clock, no colour of the terminal it was taken in and nobody's settings."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Footer

__all__ = ["SIZE", "Play", "comes", "no_colours_of_the_terminal", "picture", "settled"]

SIZE = (80, 24)
"""The columns and lines of a picture."""

Play = Callable[[Pilot[Any]], Awaitable[None]]

_PACE = 0.02
_LOOKS = 3000
_ALIKE = 3  # pictures in a row that are the same, with nothing under way at any of them
_COLOURS = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "COLORTERM", "COLUMNS", "LINES")


async def picture(make: Callable[[], App[Any]], play: Play, theme: str) -> str:
    """What an app shows once a play is over."""
    with no_colours_of_the_terminal():
        app = make()
    app.theme = theme
    app.animation_level = "none"
    async with app.run_test(size=SIZE) as pilot:
        await play(pilot)
        return await settled(pilot)


async def comes(pilot: Pilot[Any], is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    for _ in range(_LOOKS):
        if is_so():
            return
        await pilot.pause(_PACE)
    raise TimeoutError("the screen did not come up")


async def settled(pilot: Pilot[Any]) -> str:
    """The picture that stays the same while nobody has anything to do."""
    last, alike = "", 0

    def is_settled() -> bool:
        nonlocal last, alike
        if not _is_quiet(pilot.app):
            alike = 0
            return False
        drawn = pilot.app.export_screenshot(title="forkwise")
        last, alike = drawn, alike + 1 if drawn == last else 0
        return alike >= _ALIKE

    await comes(pilot, is_settled)
    return last


def _is_quiet(app: App[Any]) -> bool:
    """Whether no message waits, nothing moves, nothing is to be drawn, and the keys are listed."""
    screen = app.screen
    waits = any(pump.message_queue_size for pump in (app, screen, *screen.walk_children(with_self=False)))
    to_draw = screen._layout_required or screen._repaint_required or screen._dirty_widgets
    lacks_keys = any(not footer.children for footer in screen.query(Footer))
    return not (waits or to_draw or lacks_keys or app.animator._animations or app.animator._scheduled)


@contextmanager
def no_colours_of_the_terminal() -> Iterator[None]:
    """Without what makes an app look otherwise in one terminal than in another."""
    held = {name: os.environ.pop(name) for name in _COLOURS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)
