"""The pictures in the docs show the screens as they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tools.screenshots.__main__ import SCENES, THEMES, draw

IMAGES = Path(__file__).parents[2] / "docs/images"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("scene", SCENES)
def test_a_screen_looks_like_its_picture(scene: str, theme: str) -> None:
    drawn = asyncio.run(draw(scene, theme))
    hint = "make screenshots draws it again; look at the difference before you commit it"
    assert drawn == (IMAGES / f"{scene}-{theme}.svg").read_text(), hint
