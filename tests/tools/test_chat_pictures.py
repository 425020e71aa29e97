"""The pictures of a chat in the docs show its screens as they are, in any terminal."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tools.screenshots.__main__ import THEMES
from tools.screenshots.chat_scene import CHAT_SCENES, draw_chat

IMAGES = Path(__file__).parents[2] / "docs/images"


def test_screens_look_like_their_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NO_COLOR": "1", "COLORTERM": "24bit", "TERM": "dumb", "LC_ALL": "C", "COLUMNS": "50"}.items():
        monkeypatch.setenv(name, value)
    drawn = asyncio.run(draw_chat(THEMES))
    assert list(drawn) == [f"{scene}-{theme}" for scene in CHAT_SCENES for theme in THEMES]
    hint = "make screenshots draws them again; look at the difference before you commit them"
    different = [name for name, picture in drawn.items() if picture != (IMAGES / f"{name}.svg").read_text()]
    assert different == [], hint
