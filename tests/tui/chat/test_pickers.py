"""The screens that decide a fork, without a chat: every key, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.app import App
from textual.screen import Screen

from forkwise.chat.events import Judged
from forkwise.tui.chat.approval import AcceptanceScreen
from forkwise.tui.chat.pickers import MergePicker, MergeRow
from tests.tui.chat.chat_pilot import until
from tests.tui.pilot import Scene, play

pytestmark = pytest.mark.integration

ROWS = [MergeRow(label, "done", f"{label} said a [b]word[/b] that is long, " * 5) for label in ("a", "b", "[c]")]
VERDICT = Judged("f1", "b", 0.91, "It [red]is[/red] shorter.", True, ("no tests",))


class Asking(App[None]):
    """An app that asks again after each answer, and records the answers."""

    def __init__(self, question: Callable[[], Screen[Any]]) -> None:
        super().__init__()
        self.question = question
        self.answers: list[Any] = []

    def ask(self) -> None:
        self.push_screen(self.question(), self.answers.append)


async def answers(scene: Scene, *keys: str) -> Any:
    """Return the answers to a question after some keys."""
    app = scene.app
    assert isinstance(app, Asking)
    count = len(app.answers)
    app.ask()
    await until(lambda: len(app.screen_stack) == 2 and app.screen.focused is not None)
    await scene.pilot.pause()
    await scene.press(*keys)
    await until(lambda: len(app.answers) > count and len(app.screen_stack) == 1, lambda: scene.text)
    return app.answers[-1]


def test_the_merge_picker() -> None:
    opened: list[str] = []

    async def read(label: str) -> str:
        return "" if label == "[c]" else "\n".join([f"diff {label}", *(f"+{n} of {label}" for n in range(100))])

    async def open_outside(label: str) -> None:
        opened.append(label)

    async def script(scene: Scene) -> None:
        assert await answers(scene, "enter") == "b"
        assert await answers(scene, "up", "enter") == "a"
        assert await answers(scene, "3") == "[c]"
        assert await answers(scene, "j") == "auto"
        assert await answers(scene, "v") == "vote"
        assert await answers(scene, "up", "space", "space", "c") == "combine:a,b"
        assert await answers(scene, "o", "9", "escape") is None
        assert opened == ["b"]
        app = scene.app
        assert isinstance(app, Asking)
        app.ask()
        await until(lambda: "+0 of b" in scene.text, lambda: scene.text)
        assert " 2 b  ✓ done ← judge's choice  b said a [b]word[/b]" in scene.text
        assert "it is [bold]better" in scene.text
        await scene.press("pagedown")
        await until(lambda: "+0 of b" not in scene.text and "+20 of b" in scene.text, lambda: scene.text)
        await scene.press("pageup", "down")
        await until(lambda: "[c] changed no file" in scene.text, lambda: scene.text)
        await scene.press("q")

    picker = lambda: MergePicker(ROWS, read, open_outside, preferred="b", why="it is [bold]better")  # noqa: E731
    play(Asking(picker), script)


def test_a_verdict_is_accepted_or_rejected() -> None:
    async def script(scene: Scene) -> None:
        assert await answers(scene, "enter") == "accept"
        assert await answers(scene, "d") == "diff"
        assert await answers(scene, "o") == "override"
        assert await answers(scene, "escape") is None
        assert await answers(scene, "tab", "tab", "enter") == "override"
        app = scene.app
        assert isinstance(app, Asking)
        app.ask()
        await until(lambda: "keep b · confidence 0.91" in scene.text)
        assert "It [red]is[/red] shorter." in scene.text
        assert "caveat: no tests" in scene.text
        await scene.pilot.click("#cancel")
        await until(lambda: len(app.answers) == 6)
        assert app.answers[-1] is None

    play(Asking(lambda: AcceptanceScreen(VERDICT)), script)
