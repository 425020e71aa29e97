"""What every test of files gets: state of its own, and a check that it leaves nothing mounted."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from forkwise import BranchNotFoundError, Workspace
from forkwise.linux.mountinfo import mounts
from tests.files.images import mounted_tmpfs


@pytest.fixture(scope="session")
def memory_room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that is kept in memory, where whoever runs the tests may mount one."""
    room = tmp_path_factory.mktemp("memory") / "room.mnt"
    room.mkdir()
    if os.geteuid() != 0:
        yield room
        return
    with mounted_tmpfs(room), ExitStack() as instead:
        try:
            os.setxattr(room, "user.forkwise", b"")
        except OSError:  # a kernel before 6.6: no layer can be kept there
            room = Path(instead.enter_context(tempfile.TemporaryDirectory(dir=room.parent)))
        yield room


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """In memory for modules that say ``IN_MEMORY = True``: they make thousands of files, and what they test is told by
    the same system calls on any filesystem. Others have the disk."""
    if not getattr(request.module, "IN_MEMORY", False):
        return tmp_path
    return Path(tempfile.mkdtemp(dir=request.getfixturevalue("memory_room")))


@pytest.fixture(autouse=True)
def mounts_unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test of this run leaves a mount behind. Those of others on the machine, and the images that a whole run
    shares, are not looked at."""
    beneath = f"{tmp_path_factory.getbasetemp().resolve()}/"

    def mounted() -> set[tuple[str, str]]:
        found = {(m.point, m.fstype) for m in mounts() if m.point.startswith(beneath)}
        return {(point, kind) for point, kind in found if not point.endswith(".mnt")}

    before = mounted()
    yield
    assert mounted() == before


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept in, or found in, the state directory of whoever runs the tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg-state"))
    monkeypatch.delenv("FORKWISE_STATE", raising=False)


@pytest.fixture
def open_workspace(mounts_unchanged: None, own_state: None) -> Iterator[Callable[..., Workspace]]:
    """Opens workspaces, without syncs unless told otherwise, and aborts whatever branches a test leaves in them."""
    opened: list[Workspace] = []

    def open_one(path: Path, **options: Any) -> Workspace:
        opened.append(Workspace(path, **{"durable": False, **options}))
        return opened[-1]

    yield open_one
    for workspace in opened:
        for branch in workspace.branches():
            with suppress(BranchNotFoundError):  # it went with the one it was made from
                branch.abort()
