"""Draw the main screens, dark and light: ``python -m tools.screenshots docs/images``.

The bytes are always the same, so that a test notices when a screen no longer looks like its picture.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path

from tools.screenshots.chat_scene import draw_chat
from tools.screenshots.fork_scene import draw_fork
from tools.screenshots.tree_scene import draw_tree

__all__ = ["RUNS", "THEMES", "main"]

THEMES = {"dark": "textual-dark", "light": "textual-light"}

Draw = Callable[[Mapping[str, str]], Coroutine[object, object, dict[str, str]]]

#: The functions that run something real and draw its scenes.
RUNS: tuple[Callable[[Mapping[str, str]], Coroutine[object, object, dict[str, str]]], ...] = (
    draw_fork,
    draw_tree,
    draw_chat,
)


def main(directory: Path) -> Iterator[Path]:
    """Write all pictures; yield their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    for run in RUNS:
        for name, drawn in asyncio.run(run(THEMES)).items():
            path = directory / f"{name}.svg"
            path.write_text(drawn)
            yield path


if __name__ == "__main__":
    for written in main(Path(sys.argv[1])):
        print(written)
