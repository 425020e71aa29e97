"""Fixtures of all tests of files: a separate state directory, and a check that no mount is left."""

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
from tests.need import need


@pytest.fixture(scope="session")
def memory_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory on a tmpfs, if the tests run as root; otherwise an ordinary one."""
    directory = tmp_path_factory.mktemp("memory") / "tmpfs.mnt"
    directory.mkdir()
    if os.geteuid() != 0:
        yield directory
        return
    with mounted_tmpfs(directory), ExitStack() as instead:
        try:
            os.setxattr(directory, "user.forkwise", b"")
        except OSError:  # a kernel before 6.6: tmpfs has no user attributes, so no layers
            directory = Path(instead.enter_context(tempfile.TemporaryDirectory(dir=directory.parent)))
        yield directory


@pytest.fixture(scope="module", params=["overlay", "copy"])
def view(request: pytest.FixtureRequest) -> str:
    """A view with a layer and one with a whole tree; ``test_views`` runs on all of them."""
    need(request.param != "overlay" or os.geteuid() == 0, "mounting an overlay needs root")
    return str(request.param)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory on a tmpfs for modules with ``IN_MEMORY = True``, otherwise on disk.

    Those modules create thousands of files and behave the same on any filesystem.
    """
    if not getattr(request.module, "IN_MEMORY", False):
        return tmp_path
    return Path(tempfile.mkdtemp(dir=request.getfixturevalue("memory_directory")))


@pytest.fixture(autouse=True)
def mounts_unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Check that a test leaves no mount behind, except the images that a whole run shares."""
    beneath = f"{tmp_path_factory.getbasetemp().resolve()}/"

    def mounted() -> set[tuple[str, str]]:
        found = {(m.point, m.fstype) for m in mounts() if m.point.startswith(beneath)}
        return {(point, kind) for point, kind in found if not point.endswith(".mnt")}

    before = mounted()
    yield
    assert mounted() == before


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a temporary state directory instead of the user's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg-state"))
    monkeypatch.delenv("FORKWISE_STATE", raising=False)


@pytest.fixture
def open_workspace(mounts_unchanged: None, own_state: None) -> Iterator[Callable[..., Workspace]]:
    """A function that opens workspaces, by default without syncs; afterwards all their branches are aborted."""
    opened: list[Workspace] = []

    def open_one(path: Path, **options: Any) -> Workspace:
        opened.append(Workspace(path, **{"durable": False, **options}))
        return opened[-1]

    yield open_one
    for workspace in opened:
        for branch in workspace.branches():
            with suppress(BranchNotFoundError):  # its parent was aborted before
                branch.abort()
