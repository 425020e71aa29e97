"""The pictures in the docs show the screens as they are, in any terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools.screenshots.__main__ import THEMES
from tools.screenshots.chat_scene import CHAT_SCENES, draw_chat
from tools.screenshots.fork_scene import FORK_SCENES, draw_fork
from tools.screenshots.tree_scene import TREE_SCENES, draw_tree

IMAGES = Path(__file__).parents[2] / "docs/images"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("draw", "scenes"),
    [(draw_chat, CHAT_SCENES), (draw_fork, FORK_SCENES), (draw_tree, TREE_SCENES)],
    ids=["chat", "fork", "tree"],
)
def test_screens_look_like_their_pictures(
    draw: Callable[..., Any], scenes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"NO_COLOR": "1", "COLORTERM": "24bit", "TERM": "dumb", "LC_ALL": "C", "COLUMNS": "50"}.items():
        monkeypatch.setenv(name, value)
    drawn = asyncio.run(draw(THEMES))
    assert list(drawn) == [f"{scene}-{theme}" for scene in scenes for theme in THEMES]
    hint = "make screenshots draws them again; look at the difference before you commit them"
    different = [name for name, picture in drawn.items() if picture != (IMAGES / f"{name}.svg").read_text()]
    assert different == [], hint
