"""Explorations in a process of their own, which is killed at a chosen point, and what is found of it afterwards."""

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

#: Where a process is killed: before or after it writes something into the ledger.
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
    """A workspace, and a directory outside of it in which attempts note that they ran."""

    workspace: Workspace
    outside: Path

    def recipe(self, *bodies: str, **options: Any) -> dict[str, Any]:
        """Lines for the shell, tried side by side and all of them waited for; each notes its number when it runs."""
        lines = [["sh", "-c", f"echo {n} >> {self.outside}/ran; {body}"] for n, body in enumerate(bodies)]
        given = {"kind": "speculate", "first_wins": False, "writable": [str(self.outside)]}
        return {"format": 1, "commands": lines, **given, **options}

    def start(self, recipe: dict[str, Any], point: str | None = None) -> subprocess.Popen[str]:
        """Carry a recipe out in a process of its own, which is killed at that point."""
        words = [str(self.workspace.path), json.dumps(recipe), *(POINTS[point] if point else ("", ""))]
        return subprocess.Popen([sys.executable, "-c", DRIVER, *words], stderr=subprocess.PIPE, text=True)

    def drive(self, recipe: dict[str, Any], point: str | None = None) -> str:
        """The same, and wait for the end of it; gives the fork."""
        with self.start(recipe, point) as process:
            _, said = process.communicate(timeout=60)
        assert process.returncode == (-signal.SIGKILL if point else 0), said
        assert becomes_so(lambda: not self.is_busy()), "what it started ends with it"
        return self.fork.id

    def hold(self, *bodies: str, **options: Any) -> str:
        """Try lines, in this process, and leave the choice to somebody; gives the fork."""
        recipe = self.recipe(*bodies, commit=False, keep=True, **options)
        outcome = Recipe.from_json(recipe).pattern(self.workspace)(self.workspace)
        assert outcome.fork is not None
        return outcome.fork

    def leave(self, name: str, parent: str | None = None) -> None:
        """Have a process make a branch, write into it, and die."""
        words = [str(self.workspace.path), name, parent or ""]
        subprocess.run([sys.executable, "-c", LEAVER, *words], check=True)

    def is_busy(self) -> bool:
        """Whether a command of it still runs."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if f"{self.outside}/ran; ".encode() in path.read_bytes() and path.parent.name != "self":
                    return True
        return False

    @property
    def fork(self) -> ForkRecord:
        """The newest outermost fork."""
        with open_ledger(self.workspace) as ledger:
            return ledger.summaries(1, outermost=True)[0].fork

    @property
    def attempts(self) -> list[AttemptRecord]:
        """Its attempts."""
        with open_ledger(self.workspace) as ledger:
            return ledger.attempts(self.fork.id)

    @property
    def ran(self) -> list[int]:
        """Which lines ran, as often as they did, sorted."""
        return sorted(map(int, (self.outside / "ran").read_text().split()))

    @property
    def branches(self) -> list[str]:
        """The names of the branches there are, without the fork's own id."""
        return [branch.name.removeprefix(f"{self.fork.id}-") for branch in self.workspace.branches()]

    def text(self, name: str) -> str | None:
        """What a file of the workspace holds, if it is there."""
        path = self.workspace.path / name
        return path.read_text() if path.exists() else None


def becomes_so(question: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether something becomes so before long."""
    end = time.monotonic() + seconds
    while not question():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
