"""A branch and a record belong to one directory, not to whatever is at its path."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from forkwise import CommitError, Workspace
from tests.files.sample import picture

ENDS = pytest.mark.parametrize("view", ["overlay", "copy"])


def project(path: Path, text: str) -> Path:
    path.mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (path / name).write_text(text)
    (path / "d").mkdir()
    return path


def replace(workspace: Path, how: str) -> None:
    """Put another directory in the place of a workspace."""
    if how == "moved":
        other = project(workspace.with_name("other"), "other")
        workspace.rename(workspace.with_name("old"))
        other.rename(workspace)
    else:
        shutil.rmtree(workspace)
        project(workspace, "other")


@ENDS
@pytest.mark.parametrize("how", ["moved", "created"])
@pytest.mark.parametrize("on_conflict", ["refuse", "ours"])
def test_nothing_is_committed_to_another_directory(tmp_path: Path, view: str, how: str, on_conflict: str) -> None:
    path = project(tmp_path / "ws", "mine")
    workspace = Workspace(path, view=view)
    branch = workspace.branch("b")
    (branch.path / "a.txt").write_text("changed")
    (branch.path / "b.txt").unlink()
    (branch.path / "new.txt").write_text("new")
    replace(path, how)
    before = picture(path)
    with pytest.raises(CommitError, match="is not the directory that the branch was forked from"):
        branch.commit(on_conflict=on_conflict)  # type: ignore[arg-type]
    assert picture(path) == before
    branch.abort()


def test_a_workspace_that_is_moved_back_is_the_same(tmp_path: Path) -> None:
    path = project(tmp_path / "ws", "mine")
    branch = Workspace(path, view="copy").branch("b")
    (branch.path / "a.txt").write_text("changed")
    path.rename(tmp_path / "away")
    project(path, "other")
    with pytest.raises(CommitError):
        branch.commit()
    path.rename(tmp_path / "other")
    (tmp_path / "away").rename(path)
    branch.commit(on_conflict="ours")
    assert (path / "a.txt").read_text() == "changed"


@pytest.mark.parametrize("number", range(4))
def test_a_prepared_home_belongs_to_the_directory_at_the_time_of_the_fork(tmp_path: Path, number: int) -> None:
    """The second branch and later ones may come from the pool, which was filled before the directory was replaced."""
    path = project(tmp_path / "ws", "mine")
    workspace = Workspace(path)
    for n in range(number):
        workspace.branch(f"b{n}")
    replace(path, "moved")
    with workspace.branch("last") as branch:
        (branch.path / "a.txt").write_text("changed")
    assert (path / "a.txt").read_text() == "changed"
    for n in range(number):
        with pytest.raises(CommitError):
            workspace.open(f"b{n}").commit()


def test_nothing_is_undone_in_another_directory(tmp_path: Path) -> None:
    path = project(tmp_path / "ws", "mine")
    workspace = Workspace(path)
    with workspace.branch("b") as branch:
        (branch.path / "b.txt").unlink()
    replace(path, "moved")
    (path / "b.txt").unlink()
    before = picture(path)
    with pytest.raises(CommitError, match="is not the directory that was committed to"):
        workspace.undo()
    assert picture(path) == before


def test_an_interrupted_commit_is_not_rolled_back_in_another_directory(tmp_path: Path) -> None:
    path = project(tmp_path / "ws", "mine")
    workspace = Workspace(path)
    with workspace.branch("b") as branch:
        (branch.path / "b.txt").unlink()
    (workspace.state / "head/1").rename(workspace.state / "head/0+")  # as if it had been killed just before the end
    replace(path, "moved")
    (path / "b.txt").unlink()
    with pytest.raises(CommitError, match="not rolled back"):
        Workspace(path)
    assert not (path / "b.txt").exists()
    path.rename(tmp_path / "other")
    (tmp_path / "old").rename(path)
    Workspace(path)
    assert (path / "b.txt").read_text() == "mine"


def test_a_branch_of_version_0_1_0_has_no_identity(tmp_path: Path) -> None:
    path = project(tmp_path / "ws", "mine")
    workspace = Workspace(path)
    branch = workspace.branch("b")
    (branch.path / "a.txt").write_text("changed")
    file = workspace.state / "branches/b/branch.json"
    document = json.loads(file.read_text())
    assert document.pop("root")[1] == os.stat(path).st_ino
    times = file.stat()
    file.write_text(json.dumps(document))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    branch.commit()
    assert (path / "a.txt").read_text() == "changed"
