"""A workspace for tests that explore it, and a look at what is left of it afterwards: there is to be nothing.

Apart from the tests because several folders use it: explore, fork and runners.
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
    """A small project with a state of its own. After the test nothing is left in it: no branch, no mount, no process,
    no other workspace's state, and no attempt that the ledger believes to be running."""
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
    """What is true of a workspace when whoever explored it is done."""
    room = workspace.path.parent
    if workspace.path.exists():
        assert [b.branch_path for b in Workspace(workspace.path).branches()] == []
    assert [m.point for m in mounts() if m.point.startswith(f"{room}/")] == []
    assert processes_about(str(room)) == []
    assert [p.name for p in workspace.state.parent.iterdir()] == [workspace.state.name]
    check_ledger(workspace)


def check_ledger(workspace: Workspace) -> None:
    """In a fork that is over no attempt is going on, and its winner is one that succeeded."""
    with open_ledger(workspace) as ledger:
        for fork in ledger.forks():
            attempts = {a.id: a for a in ledger.attempts(fork.id)}
            assert fork.state in ("resolved", "aborted", "open")
            assert {a.state for a in attempts.values()} <= {"succeeded", "failed", "cancelled"}
            assert all(a.reason for a in attempts.values() if a.state != "succeeded")
            if fork.winner is not None and not (fork.resolution or {}).get("force"):
                assert attempts[fork.winner].state == "succeeded"
            if fork.state == "aborted":
                assert fork.commit is None


def children() -> set[int]:
    """This process's children, but for the forkserver, which stays."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError):
            found |= set(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
    return {pid for pid in found if "forkserver" not in _command(pid)}


def processes_about(text: str) -> list[str]:
    """The command lines that mention something, of all processes but this one and the forks that it made."""
    mine = _command(os.getpid())
    lines = map(_command, map(int, filter(str.isdigit, os.listdir("/proc"))))
    return [line for line in lines if text in line and line != mine]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
