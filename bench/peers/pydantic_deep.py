"""pydantic-deep, in a virtual environment of its own: PYDANTIC_DEEP_PYTHON names the interpreter there.

``python -m bench --peer pydantic-deep`` creates that environment. If it is not installed, rows are compared with
figures that were measured on the machine where they were written.
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


def install(directory: Path) -> None:
    """Create the environment if it does not exist, and use it."""
    python = directory / "bin/python"
    if not (directory / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", NAME], check=True)
        (directory / "installed").touch()
    os.environ[_PYTHON] = str(python)


def measure(row: str, *, unit: Unit = "s", **arguments: Any) -> Figure | None:
    """Measure a row of `bench.peers.pydantic_deep_rows`; None if pydantic-deep is not installed."""
    python = os.environ.get(_PYTHON)
    if not python:
        return None
    words = [python, "-m", "bench.peers.pydantic_deep_rows", row, json.dumps(arguments)]
    env = {**os.environ, "PYDANTIC_AI_NO_BANNER": "1"}
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=env, cwd=_ROOT)
    return Figure(tuple(json.loads(done.stdout.splitlines()[-1])), unit)
