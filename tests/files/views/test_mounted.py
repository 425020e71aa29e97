"""Workspaces on a branching filesystem: the public interface on imitated drivers, and on real ones if installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkwise import Branch, BranchError, BranchStaleError, Commit, MountError, Workspace
from forkwise.files import mounted
from forkwise.files.mounted import MountedWorkspace
from forkwise.files.views.branchfs import BranchFS, unmount_branchfs

BINARY = os.environ.get("FORKWISE_BRANCHFS")


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Imitate a BranchFS mount that accepts text commands; its control files contain the last command."""
    for directory in (tmp_path, tmp_path / "@one", tmp_path / "@two", tmp_path / "@inner"):
        directory.mkdir(exist_ok=True)
        (directory / ".branchfs_ctl").touch()
    monkeypatch.setattr(mounted, "find_driver", lambda path: ("branchfs", lambda: BranchFS(str(tmp_path))))
    return MountedWorkspace(tmp_path)


def said(workspace: Workspace, branch: str | None = None) -> str:
    return Path(workspace.path, f"@{branch}" if branch else "", ".branchfs_ctl").read_text()


def test_a_branch_is_made_committed_and_aborted_by_the_filesystem(words: Workspace) -> None:
    assert words.fstype == "branchfs"
    with words.branch("one") as one:
        assert isinstance(one, Branch)
        assert one.path == words.path / "@one"
        assert one.branch_path == "/main/one"
        assert said(words) == "create:one"
    assert said(words, "one") == "commit"
    assert one.status == "committed"
    with pytest.raises(RuntimeError), words.branch("two"):
        raise RuntimeError
    assert said(words, "two") == "abort"


def test_branches_nest(words: Workspace) -> None:
    one = words.branch("one")
    with one.branch("inner") as inner:
        assert said(words, "one") == "create:inner"
        assert inner.branch_path == "/main/one/inner"
    assert said(words, "inner") == "commit"
    one.abort()


def test_a_loser_is_refused_whatever_the_filesystem_would_do(words: Workspace) -> None:
    one, two = words.branch("one"), words.branch("two")
    commit = one.commit()
    assert isinstance(commit, Commit)
    assert two.status == "stale"
    with pytest.raises(BranchStaleError):
        two.commit()
    assert said(words, "two") == ""
    two.abort()


def test_unsupported_operations_are_errors(words: Workspace) -> None:
    branch = words.branch("one")
    for ask in (branch.delta, branch.diff, branch.rebase, branch.freeze, words.history, words.undo, words.branches):
        with pytest.raises(BranchError, match="branchfs cannot"):
            ask()
    with pytest.raises(MountError, match="has its own branches"):
        MountedWorkspace(words.path, view="copy")


def test_an_ordinary_directory_is_no_such_mount(tmp_path: Path) -> None:
    assert mounted.find_driver(str(tmp_path)) is None
    assert type(Workspace(tmp_path)) is Workspace


def test_mounting_needs_a_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORKWISE_BRANCHFS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MountError, match="no BranchFS binary") as caught:
        Workspace.mount(tmp_path)
    assert "FORKWISE_BRANCHFS" in caught.value.remedy


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Workspace]:
    if not BINARY:
        pytest.skip("FORKWISE_BRANCHFS names no BranchFS binary")
    for name in ("base", "mount", "storage"):
        (tmp_path / name).mkdir()
    (tmp_path / "base/a").write_text("one")
    yield Workspace.mount(tmp_path / "base", tmp_path / "mount", storage=tmp_path / "storage")
    unmount_branchfs(BINARY, str(tmp_path / "mount"), str(tmp_path / "storage"))


def test_a_real_branchfs(real: Workspace) -> None:
    assert real.fstype == "branchfs"
    with real.branch("attempt") as branch:
        (branch.path / "a").write_text("two")
        assert (real.path / "a").read_text() == "one"
    assert (real.path / "a").read_text() == "two"
    failed = real.branch("failed")
    (failed.path / "a").write_text("three")
    failed.abort()
    assert (real.path / "a").read_text() == "two"


def test_a_real_daxfs() -> None:
    with open("/proc/filesystems") as file:
        known = file.read().split()
    if "daxfs" not in known:
        pytest.skip("this kernel has no daxfs module loaded")
    place = os.environ.get("FORKWISE_DAXFS", "")
    if not place or not os.path.ismount(place):
        pytest.skip("FORKWISE_DAXFS names no DaxFS mount")
    workspace = Workspace(place)
    assert workspace.fstype == "daxfs"
    with workspace.branch("attempt") as branch:
        (branch.path / "forkwise-test").write_text("one")
    assert (workspace.path / "forkwise-test").read_text() == "one"
