"""pydantic-deep, in a virtual environment of its own: PYDANTIC_DEEP_PYTHON names the interpreter there."""

from __future__ import annotations

import json
import os
import subprocess

from bench.figure import Figure

__all__ = ["diff_report", "is_installed"]

_DIFF_REPORT = """
import asyncio, inspect, json, sys, time
from pathlib import Path
from types import SimpleNamespace
from pydantic_ai.workspaces import LocalWorkspaceBackend, Workspace
from pydantic_deep import BranchOverlay, build_diff_report

async def main(root, branches, rounds):
    parent = Workspace(LocalWorkspaceBackend(Path(root)))
    runtimes = []
    for name, files in json.loads(Path(branches).read_text()).items():
        overlay = BranchOverlay(parent)
        for path, text in files.items():
            await overlay.write_bytes(path, text.encode())
        status = SimpleNamespace(id=name, label=name)
        runtimes.append(SimpleNamespace(status=status, spec=SimpleNamespace(label=name), overlay=overlay))
    taken = []
    for _ in range(rounds):
        begun = time.process_time()
        report = build_diff_report("fork", runtimes)
        if inspect.isawaitable(report):
            await report
        taken.append(time.process_time() - begun)
    print(json.dumps(taken))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def is_installed() -> bool:
    """Whether there is an interpreter that has it."""
    return bool(os.environ.get("PYDANTIC_DEEP_PYTHON"))


def diff_report(root: str, branches: str, rounds: int) -> Figure | None:
    """The CPU time of a report on branches over a directory; ``branches`` is a JSON file of their files."""
    if not is_installed():
        return None
    words = [os.environ["PYDANTIC_DEEP_PYTHON"], "-c", _DIFF_REPORT, root, branches, str(rounds)]
    env = {**os.environ, "PYDANTIC_AI_NO_BANNER": "1"}
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=env)
    return Figure(tuple(json.loads(done.stdout.splitlines()[-1])))
