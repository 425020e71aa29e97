"""Draw the main screens, dark and light: ``python -m tools.screenshots docs/images``.

The bytes are always the same, so that a test notices when a screen no longer looks like its picture.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from textual.app import App
from textual.pilot import Pilot

from forkwise.conversation.walker import Walker
from forkwise.tui.decide import DecisionScreen, PreviewScreen
from forkwise.tui.diff_view import DiffScreen, NwayScreen
from forkwise.tui.transcript import Transcript
from forkwise.tui.walk import WalkApp, WalkScreen
from forkwise.tui.watch import WatchApp, WatchScreen
from forkwise.tui.widgets import QuestionScreen
from tools.screenshots.chat_scene import draw_chat
from tools.screenshots.fork_scene import ScriptedFork, scripted_talk
from tools.screenshots.picture import Play, take_picture, wait_for

__all__ = ["SCENES", "THEMES", "draw", "main"]

THEMES = {"dark": "textual-dark", "light": "textual-light"}


async def _watch(pilot: Pilot[Any]) -> None:
    def is_shown() -> bool:
        screen = pilot.app.screen
        return isinstance(screen, WatchScreen) and screen.table.row_count == 6 and screen.output.line_count > 1

    await wait_for(pilot, is_shown)


async def _pick(pilot: Pilot[Any]) -> None:
    await _watch(pilot)
    await pilot.press("p")
    await wait_for(pilot, lambda: isinstance(pilot.app.screen, QuestionScreen))


async def _diff(pilot: Pilot[Any]) -> None:
    await _watch(pilot)
    await pilot.press("d")
    await wait_for(pilot, lambda: isinstance(pilot.app.screen, DiffScreen))


async def _nway(pilot: Pilot[Any]) -> None:
    await _watch(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, DecisionScreen)
    screen.decide(screen.choose(()))
    await wait_for(pilot, lambda: isinstance(pilot.app.screen, NwayScreen))
    await pilot.press("n", "space", "down", "space", "down", "right", "space")


async def _preview(pilot: Pilot[Any]) -> None:
    await _nway(pilot)
    await pilot.press("enter")
    await wait_for(pilot, lambda: isinstance(pilot.app.screen, PreviewScreen) and pilot.app.screen.prepared is not None)


async def _tree(pilot: Pilot[Any]) -> None:
    def is_shown() -> bool:
        screen = pilot.app.screen
        if not isinstance(screen, WalkScreen) or not screen.query(Transcript):
            return False
        return (
            screen.tree_panel.current is screen.walker.here
            and "24 tests" in screen.messages.text
            and not screen.messages.is_behind
        )

    await wait_for(pilot, is_shown)


def _build_watch() -> App[None]:
    return WatchApp(ScriptedFork())


def _build_walk() -> App[None]:
    return WalkApp(WalkScreen(Walker(scripted_talk())))


#: The app of each scene, and what to do on it.
SCENES: dict[str, tuple[Callable[[], App[None]], Play]] = {
    "watch": (_build_watch, _watch),
    "pick": (_build_watch, _pick),
    "diff": (_build_watch, _diff),
    "nway": (_build_watch, _nway),
    "preview": (_build_watch, _preview),
    "tree": (_build_walk, _tree),
}


async def draw(scene: str, theme: str) -> str:
    """Draw one scene as an SVG. ``draw_chat`` draws all scenes of a chat at once."""
    build, play = SCENES[scene]
    return await take_picture(build, play, THEMES[theme])


def main(directory: Path) -> Iterator[Path]:
    """Write all pictures; yield their paths."""
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
