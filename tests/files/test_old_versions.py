"""The diff of a commit, read from its undo record, against the diff that its branch had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forkwise import CommitError, Workspace
from forkwise.files.old_versions import commit_diff

IN_MEMORY = True


@pytest.fixture(params=["overlay", "copy"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path, open_workspace: Callable[..., Workspace]) -> Workspace:
    root = tmp_path / "project"
    (root / "sub/deep").mkdir(parents=True)
    (root / "a.txt").write_text("one\n")
    (root / "b.txt").write_text("two\n")
    (root / "sub/deep/c.txt").write_text("three\n")
    (root / "link").symlink_to("a.txt")
    return open_workspace(root, view=request.param)


def committed(workspace: Workspace, deed: Callable[[Path], object]) -> tuple[int, str]:
    """Commit something: the commit's number, and the diff of its branch."""
    branch = workspace.branch("try", None, None)
    deed(branch.path)
    diff = branch.diff()
    return branch.commit().id, diff


def much(root: Path) -> None:
    (root / "a.txt").write_text("uno\n")
    (root / "b.txt").unlink()
    (root / "sub/deep/c.txt").unlink()
    (root / "sub/deep").rmdir()
    (root / "sub").rmdir()
    (root / "link").unlink()
    (root / "link").symlink_to("new/n.txt")
    (root / "new").mkdir()
    (root / "new/n.txt").write_text("n\n")
    (root / "new/x").write_bytes(b"\0")
    (root / "new/x").chmod(0o755)


def test_it_is_the_diff_its_branch_had(workspace: Workspace) -> None:
    number, diff = committed(workspace, much)
    assert "+uno" in diff
    assert commit_diff(workspace, number) == diff


def test_commits_that_came_later_are_no_part_of_it(workspace: Workspace) -> None:
    number, diff = committed(workspace, much)
    later, other = committed(
        workspace, lambda root: [(root / "a.txt").write_text("due\n"), (root / "new/n.txt").unlink()]
    )
    assert commit_diff(workspace, number) == diff
    assert commit_diff(workspace, later) == other
    workspace.undo(later)
    assert commit_diff(workspace, number) == diff


def test_an_undone_commit_has_no_diff(workspace: Workspace) -> None:
    number, _ = committed(workspace, much)
    workspace.undo(number)
    with pytest.raises(CommitError, match="there is no diff of commit"):
        commit_diff(workspace, number)
    with pytest.raises(CommitError, match="there is no diff of commit"):
        commit_diff(workspace, 9)
