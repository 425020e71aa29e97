"""Patterns in a separate process that is killed at a chosen point, and the state that it leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkwise import Workspace
from forkwise.explore.recipe import Recipe
from forkwise.ledger.records import AttemptRecord, ForkRecord
from forkwise.ledger.sqlite import open_ledger

__all__ = ["POINTS", "Scene", "becomes_so"]

#: The point at which a process is killed: before or after a write to the ledger.
POINTS = {
    "running": ("end_attempt", "after"),
    "ended": ("resolve", "before"),
    "resolved": ("resolve", "after"),
    "committed": ("record_commit", "before"),
    "recorded": ("record_commit", "after"),
    "held": ("await_pick", "before"),
}

DRIVER = """
import json, os, signal, sys
from forkwise import Workspace
from forkwise.explore.recipe import Recipe
from forkwise.ledger.sqlite import SqliteLedger

workspace, recipe, name, when = sys.argv[1:]
if name:
    real = getattr(SqliteLedger, name)

    def deadly(*args, **options):
        if when == "after":
            real(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(SqliteLedger, name, deadly)
Recipe.from_json(json.loads(recipe)).pattern(Workspace(workspace))(Workspace(workspace))
"""


LEAVER = """
import os, sys
from forkwise import Workspace
workspace = Workspace(sys.argv[1])
branch = (workspace.open(sys.argv[3]) if sys.argv[3] else workspace).branch(sys.argv[2])
(branch.path / "left.txt").write_text("left")
os._exit(0)
"""


@dataclass
class Scene:
    """A workspace, and a directory outside of it in which attempts record that they ran."""

    workspace: Workspace
    outside: Path

    def recipe(self, *bodies: str, **options: Any) -> dict[str, Any]:
        """Build a recipe that runs shell lines side by side and waits for all; each records its number when it runs."""
        lines = [["sh", "-c", f"echo {n} >> {self.outside}/ran; {body}"] for n, body in enumerate(bodies)]
        given = {"kind": "speculate", "first_wins": False, "writable": [str(self.outside)]}
        return {"format": 1, "commands": lines, **given, **options}

    def start(self, recipe: dict[str, Any], point: str | None = None) -> subprocess.Popen[str]:
        """Run a recipe in a new process that is killed at ``point``."""
        words = [str(self.workspace.path), json.dumps(recipe), *(POINTS[point] if point else ("", ""))]
        return subprocess.Popen([sys.executable, "-c", DRIVER, *words], stderr=subprocess.PIPE, text=True)

    def drive(self, recipe: dict[str, Any], point: str | None = None) -> str:
        """Run a recipe in a process that is killed, and wait for its end; return the fork."""
        with self.start(recipe, point) as process:
            _, said = process.communicate(timeout=60)
        assert process.returncode == (-signal.SIGKILL if point else 0), said
        assert becomes_so(lambda: not self.is_busy()), "its children end with it"
        return self.fork.id

    def hold(self, *bodies: str, **options: Any) -> str:
        """Run shell lines in this process, and leave the fork waiting for a pick; return the fork."""
        recipe = self.recipe(*bodies, commit=False, keep=True, **options)
        outcome = Recipe.from_json(recipe).pattern(self.workspace)(self.workspace)
        assert outcome.fork is not None
        return outcome.fork

    def leave(self, name: str, parent: str | None = None) -> None:
        """Create a branch and write into it in a process that then dies."""
        words = [str(self.workspace.path), name, parent or ""]
        subprocess.run([sys.executable, "-c", LEAVER, *words], check=True)

    def is_busy(self) -> bool:
        """Return whether a command of the fork still runs."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if f"{self.outside}/ran; ".encode() in path.read_bytes() and path.parent.name != "self":
                    return True
        return False

    @property
    def fork(self) -> ForkRecord:
        """Return the newest outermost fork."""
        with open_ledger(self.workspace) as ledger:
            return ledger.summaries(1, outermost=True)[0].fork

    @property
    def attempts(self) -> list[AttemptRecord]:
        """Return the attempts of the newest fork."""
        with open_ledger(self.workspace) as ledger:
            return ledger.attempts(self.fork.id)

    @property
    def ran(self) -> list[int]:
        """Return the numbers of the lines that ran, sorted, with repetitions."""
        return sorted(map(int, (self.outside / "ran").read_text().split()))

    @property
    def branches(self) -> list[str]:
        """Return the names of the existing branches, without the fork's id."""
        return [branch.name.removeprefix(f"{self.fork.id}-") for branch in self.workspace.branches()]

    def text(self, name: str) -> str | None:
        """Read a file of the workspace; None if it does not exist."""
        path = self.workspace.path / name
        return path.read_text() if path.exists() else None


def becomes_so(question: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait for a condition; return whether it became true in time."""
    end = time.monotonic() + seconds
    while not question():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
