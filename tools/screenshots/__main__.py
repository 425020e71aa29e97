"""Screenshots: ``python -m tools.screenshots.__main__ docs/images`` draws the main screens, dark and light, at 80x24.

They are always the same, byte for byte, so that a test can tell when a screen looks different from its picture."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Static

from forkwise.conversation.walker import Walker
from forkwise.tui.decide import DecidingScreen, PreviewScreen
from forkwise.tui.diff_view import DiffScreen, NwayScreen
from forkwise.tui.walk import WalkApp, WalkScreen
from forkwise.tui.watch import WatchApp, WatchScreen
from forkwise.tui.widgets import Question
from tools.screenshots.chat_scene import draw_chat
from tools.screenshots.fork_scene import ScriptedFork, scripted_talk
from tools.screenshots.picture import Play, comes, picture

__all__ = ["SCENES", "THEMES", "draw", "main"]

THEMES = {"dark": "textual-dark", "light": "textual-light"}


async def _watch(pilot: Pilot[Any]) -> None:
    def is_shown() -> bool:
        screen = pilot.app.screen
        return isinstance(screen, WatchScreen) and screen.table.row_count == 6 and screen.output.line_count > 1

    await comes(pilot, is_shown)


async def _pick(pilot: Pilot[Any]) -> None:
    await _watch(pilot)
    await pilot.press("p")
    await comes(pilot, lambda: isinstance(pilot.app.screen, Question))


async def _diff(pilot: Pilot[Any]) -> None:
    await _watch(pilot)
    await pilot.press("d")
    await comes(pilot, lambda: isinstance(pilot.app.screen, DiffScreen))


async def _nway(pilot: Pilot[Any]) -> None:
    await _watch(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, DecidingScreen)
    screen.decide(screen.choose(()))
    await comes(pilot, lambda: isinstance(pilot.app.screen, NwayScreen))
    await pilot.press("n", "space", "down", "space", "down", "right", "space")


async def _preview(pilot: Pilot[Any]) -> None:
    await _nway(pilot)
    await pilot.press("enter")
    await comes(pilot, lambda: isinstance(pilot.app.screen, PreviewScreen) and pilot.app.screen.prepared is not None)


async def _tree(pilot: Pilot[Any]) -> None:
    def is_shown() -> bool:
        screen = pilot.app.screen
        if not isinstance(screen, WalkScreen) or not screen.query(Static):
            return False
        return screen.tree_panel.current is screen.walker.here and "24 tests" in str(screen.said.content)

    await comes(pilot, is_shown)


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
    """One screen as an SVG; those of a chat are drawn all at once, by ``draw_chat``."""
    make, play = SCENES[scene]
    return await picture(make, play, THEMES[theme])


def main(directory: Path) -> Iterator[Path]:
    """Write all of them; gives what was written."""
    directory.mkdir(parents=True, exist_ok=True)
    for scene in SCENES:
        for theme in THEMES:
            path = directory / f"{scene}-{theme}.svg"
            path.write_text(asyncio.run(draw(scene, theme)))
            yield path
    for name, drawn in asyncio.run(draw_chat(THEMES)).items():
        path = directory / f"{name}.svg"
        path.write_text(drawn)
        yield path


if __name__ == "__main__":
    for written in main(Path(sys.argv[1])):
        print(written)
