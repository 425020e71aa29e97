"""A workspace for tests that explore it, with checks that the exploration left nothing behind.

Several test folders share it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.fork.fork import open_ledger
from forkwise.linux.mountinfo import mounts

__all__ = ["check_ledger", "check_nothing_left", "children", "processes_about", "workspace"]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """Yield a small project with its own state directory; check afterwards that nothing is left of the test.

    Nothing means no branch, mount, process or foreign state, and no attempt that the ledger lists as running.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg-state"))
    monkeypatch.delenv("FORKWISE_STATE", raising=False)
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("one\n")
    opened = Workspace(project, durable=False)
    before = children()
    yield opened
    assert children() <= before
    check_nothing_left(opened)


def check_nothing_left(workspace: Workspace) -> None:
    """Assert that an exploration left nothing behind: no branch, mount, process or foreign state."""
    directory = workspace.path.parent
    if workspace.path.exists():
        assert [b.branch_path for b in Workspace(workspace.path).branches()] == []
    assert [m.point for m in mounts() if m.point.startswith(f"{directory}/")] == []
    assert processes_about(str(directory)) == []
    assert [p.name for p in workspace.state.parent.iterdir()] == [workspace.state.name]
    check_ledger(workspace)


def check_ledger(workspace: Workspace) -> None:
    """Assert that no attempt of a finished fork is running, and that its winner succeeded."""
    with open_ledger(workspace) as ledger:
        for fork in ledger.forks():
            attempts = {a.id: a for a in ledger.attempts(fork.id)}
            assert fork.state in ("resolved", "aborted", "open")
            assert {a.state for a in attempts.values()} <= {"succeeded", "failed", "faulted", "cancelled"}
            assert all(a.reason for a in attempts.values() if a.state != "succeeded")
            if fork.winner is not None and not (fork.resolution or {}).get("force"):
                # A failed attempt wins only by what a fork inside it committed on top of it.
                is_completed = any(inner.commit is not None for inner in ledger.children(fork.winner))
                assert attempts[fork.winner].state == "succeeded" or is_completed
            if fork.state == "aborted":
                assert fork.commit is None


def children() -> set[int]:
    """Return this process's children, except the forkserver, which stays."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError):
            found |= set(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
    return {pid for pid in found if "forkserver" not in _command(pid)}


def processes_about(text: str) -> list[str]:
    """Return the command lines that contain ``text``, except of this process and its forks."""
    mine = _command(os.getpid())
    lines = map(_command, map(int, filter(str.isdigit, os.listdir("/proc"))))
    return [line for line in lines if text in line and line != mine]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
