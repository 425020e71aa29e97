"""Screenshots: ``python -m forkwise.app.tui.screenshots docs/images`` draws the main screens, dark and light, at 80x24.

They are always the same, byte for byte, so that a test can tell when a screen looks different from its picture."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Footer, Tree

from forkwise.app.tui.deciding import DecidingScreen
from forkwise.app.tui.diff import DiffScreen
from forkwise.app.tui.nway import NwayScreen
from forkwise.app.tui.preview import PreviewScreen
from forkwise.app.tui.question import Question
from forkwise.app.tui.scripted import ScriptedFork, scripted_talk
from forkwise.app.tui.walk import WalkApp, WalkScreen
from forkwise.app.tui.watch import WatchApp, WatchScreen
from forkwise.conversation.walking import Walker

__all__ = ["SCENES", "THEMES", "draw", "main"]

THEMES = {"dark": "textual-dark", "light": "textual-light"}
_SIZE = (80, 24)
_LOOKS = 500

Play = Callable[[Pilot[Any]], Awaitable[None]]


async def _watch(pilot: Pilot[Any]) -> None:
    def is_shown() -> bool:
        screen = pilot.app.screen
        return isinstance(screen, WatchScreen) and screen.table.row_count == 6 and screen.output.line_count > 1

    await _until(pilot, is_shown)


async def _pick(pilot: Pilot[Any]) -> None:
    await _watch(pilot)
    await pilot.press("p")
    await _until(pilot, lambda: isinstance(pilot.app.screen, Question))


async def _diff(pilot: Pilot[Any]) -> None:
    await _watch(pilot)
    await pilot.press("d")
    await _until(pilot, lambda: isinstance(pilot.app.screen, DiffScreen))


async def _nway(pilot: Pilot[Any]) -> None:
    await _watch(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, DecidingScreen)
    screen.decide(screen.choose(()))
    await _until(pilot, lambda: isinstance(pilot.app.screen, NwayScreen))
    await pilot.press("n", "space", "down", "space", "down", "right", "space")


async def _preview(pilot: Pilot[Any]) -> None:
    await _nway(pilot)
    await pilot.press("enter")
    await _until(pilot, lambda: isinstance(pilot.app.screen, PreviewScreen) and pilot.app.screen.prepared is not None)


async def _tree(pilot: Pilot[Any]) -> None:
    await _until(pilot, lambda: bool(pilot.app.screen.query(Tree)))


def _forks() -> App[None]:
    return WatchApp(ScriptedFork())


def _talks() -> App[None]:
    return WalkApp(WalkScreen(Walker(scripted_talk())))


#: The screens: what shows each, and how one comes to it.
SCENES: dict[str, tuple[Callable[[], App[None]], Play]] = {
    "watch": (_forks, _watch),
    "pick": (_forks, _pick),
    "diff": (_forks, _diff),
    "nway": (_forks, _nway),
    "preview": (_forks, _preview),
    "tree": (_talks, _tree),
}


async def draw(scene: str, theme: str) -> str:
    """One screen as an SVG."""
    make, play = SCENES[scene]
    app = make()
    app.theme = THEMES[theme]
    async with app.run_test(size=_SIZE) as pilot:
        await play(pilot)
        await _until(pilot, lambda: bool(app.screen.query(Footer)) or isinstance(app.screen, Question))
        for _ in range(3):  # what is drawn after the next frame has then been drawn
            await pilot.pause()
        return app.export_screenshot(title="forkwise")


def main(directory: Path) -> Iterator[Path]:
    """Write all of them; gives what was written."""
    directory.mkdir(parents=True, exist_ok=True)
    for scene in SCENES:
        for theme in THEMES:
            path = directory / f"{scene}-{theme}.svg"
            path.write_text(asyncio.run(draw(scene, theme)))
            yield path


async def _until(pilot: Pilot[Any], is_so: Callable[[], bool]) -> None:
    for _ in range(_LOOKS):
        if is_so():
            return
        await pilot.pause(0.01)
    raise TimeoutError("the screen did not come up")


if __name__ == "__main__":
    for written in main(Path(sys.argv[1])):
        print(written)
