"""Undos after undos, after failures and after changes to a directory by a third party."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.errors import BranchingError, ConflictError
from tests.files.sample import alter, alter_again, grow, picture
from tests.files.steps import Steps, in_child
from tests.need import need

IN_MEMORY = True


@pytest.fixture
def workspace(tmp_path: Path, open_workspace: Callable[..., Workspace]) -> Workspace:
    need(os.geteuid() == 0, "the sample has files of other users")
    grow(tmp_path / "project")
    return open_workspace(tmp_path / "project")


def test_several_commits_are_undone_one_after_the_other(workspace: Workspace) -> None:
    """Two commits changed the same files: the next undo does not count restored files as changed."""
    seen = [picture(workspace.path)]
    for change in (alter, alter_again):
        with workspace.branch("b") as branch:
            change(branch.path)
        seen.append(picture(workspace.path))
    workspace.undo()
    assert picture(workspace.path) == seen[1]
    workspace.undo()
    assert picture(workspace.path) == seen[0]
    redone = [c for c in workspace.history() if c.kind == "undo"]
    for commit, wanted in zip(redone, seen[1:], strict=True):
        workspace.undo(commit)
        assert picture(workspace.path) == wanted
    workspace.undo()
    assert picture(workspace.path) == seen[1]


def test_commits_that_were_undone_leave_no_trace_for_the_undo_of_an_earlier_one(workspace: Workspace) -> None:
    """The files may have been changed and restored any number of times; but a change by the user counts."""
    before = picture(workspace.path)
    with workspace.branch("first") as branch:
        alter(branch.path)
    first, after = workspace.history()[0], picture(workspace.path)
    for number in range(3):
        with workspace.branch(f"again-{number}") as branch:
            alter_again(branch.path)
        workspace.undo()
        assert picture(workspace.path) == after
    taken = workspace.undo(first)
    assert picture(workspace.path) == before
    redone = workspace.undo(taken)
    changed = next(path for path in first.changed if (workspace.path / path).is_file())
    (workspace.path / changed).write_text("edited")
    for number in range(2):
        with workspace.branch(f"over-{number}") as branch:
            (branch.path / changed).write_text("a branch's")
        workspace.undo()
    with pytest.raises(ConflictError, match=changed):
        workspace.undo(redone)


def test_undo_can_be_tried_again(workspace: Workspace) -> None:
    before = picture(workspace.path)
    with workspace.branch("b") as branch:
        alter(branch.path)
    after = picture(workspace.path)
    for step in (20, 40, 60):
        outcome = in_child(workspace.undo, Steps(step, errno.EIO))
        assert isinstance(outcome.raised, BranchingError)
        assert picture(workspace.path) == after
    workspace.undo()
    assert picture(workspace.path) == before


def test_a_change_after_a_failed_commit_is_still_seen(workspace: Workspace) -> None:
    """Only the changes of the rollback itself are ignored."""
    branch = workspace.branch("b")
    alter(branch.path)
    assert in_child(branch.commit, Steps(path="+")).killed
    assert [b.name for b in Workspace(workspace.path).branches()] == ["b"]
    (workspace.path / "change/03").write_text("a third party's\n")
    os.chmod(workspace.path / "change/04", 0o600)
    with pytest.raises(ConflictError) as caught:
        branch.commit()
    assert {c.path for c in caught.value.conflicts} == {"change/03", "change/04"}


def test_siblings_of_a_failed_commit_meet_no_conflicts(workspace: Workspace) -> None:
    branch, sibling = workspace.branch("b"), workspace.branch("sibling")
    for each in (branch, sibling):
        alter(each.path)
    after = picture(sibling.path)
    assert in_child(branch.commit, Steps(path="+")).killed
    sibling.commit()
    assert picture(workspace.path) == after


def test_access_lists_of_directories_are_undone(workspace: Workspace) -> None:
    need(shutil.which("setfacl") is not None, "setfacl is not installed")
    before = picture(workspace.path)
    with workspace.branch("b") as branch:
        subprocess.run(["setfacl", "-m", "u:7:rwx", branch.path / "modes"], check=True)
        subprocess.run(["setfacl", "-d", "-m", "u:7:rx", branch.path / "change"], check=True)
        after = picture(branch.path)
    assert picture(workspace.path) == after
    assert after != before
    workspace.undo()
    assert picture(workspace.path) == before


def test_attributes_that_were_set_since_stay(workspace: Workspace) -> None:
    with workspace.branch("b") as branch:
        os.setxattr(branch.path / "attributes", "user.of-directory", b"after")
    os.setxattr(workspace.path / "attributes", "user.third-party", b"else")
    workspace.undo()
    assert os.getxattr(workspace.path / "attributes", "user.third-party") == b"else"
