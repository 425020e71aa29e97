"""Draw ``docs/images/best-of-*.svg``: run ``forkwise best-of 4 --agent claude`` for real and draw what it prints.

Run it with ``python -m tools.screenshots.best_of docs/images``. A scripted program named ``claude`` stands in for the
agent: each of its four runs edits the project in another way. Everything else is real: the branches, the sandboxes, the
tests, the commit.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI, TerminalTheme
from rich.text import Text

from tools.screenshots.picture import drop_fonts

__all__ = ["COMMAND", "draw", "run"]

COMMAND = ("forkwise", "best-of", "4", "--agent", "claude", "--test", "auto", "fix the failing test")
COLUMNS = 86

_PROJECT = {
    "pyproject.toml": '[project]\nname = "shop"\nversion = "1.0"\n',
    "shop.py": 'def total(prices, discount=0):\n    """Add up prices, less a discount in percent."""\n'
    "    return sum(prices) - discount\n",
    "test_shop.py": "from shop import total\n\n\ndef test_sum():\n    assert total([10, 20]) == 30\n\n\n"
    "def test_discount():\n    assert total([10, 20], discount=10) == 27\n",
}

_CLAUDE = r"""#!/bin/sh
case $FORKWISE_ATTEMPT in
1) sleep 0.4; sed -i 's/- discount/* discount/' shop.py; echo 'Multiplied by the discount.' ;;
2) sleep 0.8; sed -i 's/- discount/* (100 - discount) \/ 100/' shop.py; echo 'The discount is a percentage.' ;;
3) sleep 0.2; echo 'I could not find the cause.'; exit 1 ;;
4) sleep 0.6; sed -i 's/return.*/off = sum(prices) * discount \/ 100\n    return sum(prices) - off/' shop.py
   echo 'Computed the rebate first.' ;;
esac
"""

_DARK = DIMMED_MONOKAI
_LIGHT = TerminalTheme(
    (255, 255, 255),
    (36, 41, 47),
    [
        (36, 41, 47),
        (207, 34, 46),
        (17, 99, 41),
        (154, 103, 0),
        (9, 105, 218),
        (130, 80, 223),
        (27, 124, 131),
        (110, 119, 129),
    ],
)


def run(directory: Path) -> str:
    """Run the command in a project made in ``directory``. Return what it printed, colours included."""
    project, programs = directory / "shop", directory / "bin"
    project.mkdir()
    programs.mkdir()
    for name, text in _PROJECT.items():
        (project / name).write_text(text)
    (programs / "claude").write_text(_CLAUDE)
    (programs / "claude").chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ,
        "PATH": path,
        "HOME": str(directory),
        "FORKWISE_STATE": str(directory / "state"),
        "FORCE_COLOR": "1",
        "COLUMNS": str(COLUMNS),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        COMMAND, cwd=project, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(COMMAND)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.replace(str(project), "~/shop")


def draw(printed: str, theme: TerminalTheme) -> str:
    """Draw a terminal with the command and what it printed as an SVG that loads no font from elsewhere."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        line = " ".join((*COMMAND[:-1], f"'{COMMAND[-1]}'"))
        console.print(Text.assemble(("$ ", "bold green"), (line, "bold")))
        # Up to the first empty line are lines of progress; on a terminal a live table takes their place.
        for row in printed.partition("\n\n")[2].rstrip("\n").splitlines():
            # Object names in git's index line say nothing here and do not fit.
            if not re.match(r"(\x1b\[[\d;]*m)*index ", row):
                console.print(Text.from_ansi(row))
        svg = console.export_svg(title="", theme=theme, unique_id="best-of")
    return drop_fonts(svg)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="forkwise-picture-") as scratch:
        output = run(Path(scratch))
    for name, colours in {"dark": _DARK, "light": _LIGHT}.items():
        target = Path(sys.argv[1]) / f"best-of-{name}.svg"
        target.write_text(draw(output, colours))
        print(target)
