"""A workspace to run commands in, and a check that no process and no mount is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkwise import Branch, Workspace
from forkwise.linux.mountinfo import mounts


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check after each test that no process and no mount refers to the test's directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg-state"))
    monkeypatch.delenv("FORKWISE_STATE", raising=False)
    yield
    assert [m.point for m in mounts() if m.point.startswith(f"{tmp_path}/")] == []
    assert processes_about(str(tmp_path)) == []


def processes_about(text: str) -> list[str]:
    """Return the command lines of other processes that mention a text."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and int(pid) != os.getpid():
            found.append(line)
    return found


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    """Return the workspace of a small project."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("one\n")
    opened = Workspace(project, durable=False)
    yield opened
    for branch in reversed(opened.branches()):
        branch.abort()


@pytest.fixture
def branch(workspace: Workspace) -> Branch:
    """Return a branch of it."""
    return workspace.branch("attempt", on_success=None, on_error=None)
