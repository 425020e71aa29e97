"""pydantic-deep, in a virtual environment of its own: PYDANTIC_DEEP_PYTHON names the interpreter there.

``python -m bench --peer pydantic-deep`` makes that environment. Where it is not installed, its rows are held against
what was seen of it on the machine they were written on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.figure import Figure, Unit

__all__ = ["NAME", "install", "measure"]

NAME = "pydantic-deep"
_PYTHON = "PYDANTIC_DEEP_PYTHON"
_ROOT = Path(__file__).parents[2]


def install(place: Path) -> None:
    """Make the environment, unless it is there, and have it used."""
    python = place / "bin/python"
    if not (place / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", NAME], check=True)
        (place / "installed").touch()
    os.environ[_PYTHON] = str(python)


def measure(row: str, *, unit: Unit = "s", **given: Any) -> Figure | None:
    """A row of `bench.peers.pydantic_deep_rows`; None where it is not installed."""
    python = os.environ.get(_PYTHON)
    if not python:
        return None
    words = [python, "-m", "bench.peers.pydantic_deep_rows", row, json.dumps(given)]
    env = {**os.environ, "PYDANTIC_AI_NO_BANNER": "1"}
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=env, cwd=_ROOT)
    return Figure(tuple(json.loads(done.stdout.splitlines()[-1])), unit)
