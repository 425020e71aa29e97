"""Robustness of a chat: text with control characters, tiny terminals, very long input and many keys at once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from textual import events

from forkwise.tui.chat.approval import AcceptanceScreen
from forkwise.tui.chat.tree_screen import TreeScreen
from forkwise.tui.diff_view import NwayScreen
from tests.acceptance import write_accepted
from tests.chat.scripted_chat import call
from tests.tui.chat.chat_pilot import ChatScene, chatting, until

pytestmark = pytest.mark.integration

EVIL = "[red]x[/red] \x1b]0;owned\x07 [/] [@click=app.quit]z"
SHOWN = "[red]x[/red] \\x1b]0;owned\\x07 [/] [@click=app.quit]z"
NAMES = ("[red]", "日本")


def _rule(label: str) -> dict[str, Any]:
    write = call("write", path="[b]lib[.txt", content=f"{label}\n{EVIL}\n")
    return {"branch": label, "steps": [{"calls": [write]}, {"say": EVIL}]}


RULES: list[dict[str, Any]] = [
    {"when": "^hello", "say": EVIL},
    {"when": "^flood", "say": "flooded " * 5000},
    *map(_rule, NAMES),
    {"judge": True, "verdict": {"winner_branch_id": "[red]", "confidence": 0.95, "reasoning": EVIL}},
]


def test_labels_with_markup_and_tiny_terminals(project: Path) -> None:
    write_accepted(project / ".forkwise/config.toml", '[chat]\ntest = "true"\n')

    async def squeezed(scene: ChatScene, *keys: str) -> None:
        for size in ((40, 10), (8, 2), (80, 24)):
            await scene.pilot.resize_terminal(*size)
            await until(lambda size=size: scene.app.size == size)  # type: ignore[misc]
            await scene.press(*keys)
            assert scene.text is not None

    async def script(scene: ChatScene) -> None:
        await scene.write("hello")
        await scene.shows(SHOWN)
        await scene.write(f"/fork {NAMES[0]}: do [red]it | {NAMES[1]}: go[/]")
        await scene.branches()
        await scene.shows("[✓ [red]] [✓ 日本]", "> do [red]it", "> go[/]")
        await squeezed(scene, "tab", "tab", "tab")
        await scene.write("/tree")
        await scene.comes_to(TreeScreen)
        await scene.shows("‹[red]›", "‹日本›", f"→ {SHOWN[:12]}")
        await squeezed(scene, "down", "right", "space", "space")
        await scene.press("escape")
        await scene.write("/nway")
        await scene.comes_to(NwayScreen)
        await scene.shows("│[red]", "│日本", "[b]lib[.txt")
        await squeezed(scene, "right", "down", "space", "space")
        await scene.press("escape")
        await scene.write("/merge")
        await scene.comes_to(AcceptanceScreen)
        await scene.shows("keep [red]", "[@click=app.quit]z")
        await squeezed(scene)
        await scene.press("enter")
        await scene.shows("· Merged: kept branch [red] · 1 file")
        assert (project / "[b]lib[.txt").read_text() == f"[red]\n{EVIL}\n"

    chatting(project, script, RULES)


def test_a_pasted_megabyte_and_a_long_answer(project: Path) -> None:
    text = "flood " + "x" * 193 + "\n"

    async def script(scene: ChatScene) -> None:
        scene.app.post_message(events.Paste(text * 5000))
        prompt = scene.chat.prompt
        await until(lambda: len(prompt.text) >= 1_000_000)
        await scene.press("a", "enter")
        await until(lambda: prompt.text == "")
        await scene.shows("flooded flooded")
        await until(lambda: scene.chat.session is not None and not scene.chat.session.is_busy)
        await scene.press("up")
        assert prompt.text == (text * 5000 + "a").strip()
        prompt.text = ""

    chatting(project, script, RULES)


def test_keys_that_arrive_at_once_are_handled_in_order(project: Path) -> None:
    async def script(scene: ChatScene) -> None:
        keys = [*"hellx", "backspace", "o", "enter", *"/undo", "enter", *"left"]
        for key in keys:
            scene.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await until(lambda: scene.chat.prompt.text == "left", lambda: scene.text)
        assert scene.chat.prompt.sent_texts == ["hello", "/undo"]
        await until(lambda: f"> hello\n\n{EVIL}" in scene.chat.stage.talk.text, lambda: scene.chat.stage.talk.text)

    chatting(project, script, RULES)


def test_interrupted_again_and_again(project: Path) -> None:
    rules: list[dict[str, Any]] = [{"when": "^wait", "say": "never", "until": "never"}]

    async def script(scene: ChatScene) -> None:
        await scene.write("wait")
        await scene.shows("● answering")
        for _ in range(20):
            scene.app.post_message(events.Key("ctrl+c", None))
        deadline = time.monotonic() + 60
        while scene.app.is_running and time.monotonic() < deadline:
            await scene.pilot.pause(0.02)
        assert scene.chat.session is not None
        assert scene.chat.session.is_closed

    app = chatting(project, script, rules)
    assert app.failure is None
