"""Git repositories in workspaces: what an attempt does with git is a value of its own, and is merged by git's rules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.git.checkout import Checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout.create(tmp_path / "w")


def test_the_diff_is_about_files_and_the_repository_is_a_value(checkout: Checkout) -> None:
    branch = checkout.workspace.branch("try")
    checkout.commit(branch, "one.txt", "1\n")
    checkout.commit(branch, "two.txt", "2\n")
    (branch.path / "three.txt").write_text("3\n")
    checkout.git("add", "three.txt", at=branch.path)
    delta = branch.delta()
    assert [change.path for change in delta] == ["one.txt", "three.txt", "two.txt"]
    assert ".git" not in branch.diff()
    assert [str(one) for one in delta.repository] == ["2 commits on main, index changed"]
    branch.abort()


def test_git_status_in_the_workspace_is_no_conflict(checkout: Checkout) -> None:
    branch = checkout.workspace.branch("try")
    checkout.commit(branch, "one.txt", "1\n")
    os.utime(checkout.path / "a.txt", (1, 1))
    checkout.git("status")
    commit = branch.commit()
    assert commit.added == ("one.txt",)
    assert commit.repository == ("1 commit on main",)
    assert checkout.git("log", "--format=%s") == "one.txt\ninitial\n"
    assert checkout.git("status", "--porcelain") == ""
    checkout.check()


@pytest.mark.parametrize("on_conflict", ["refuse", "ours"])
def test_a_commit_of_the_user_meanwhile_is_merged(checkout: Checkout, on_conflict: str) -> None:
    branch = checkout.workspace.branch("try")
    checkout.commit(branch, "one.txt", "1\n")
    checkout.commit(None, "mine.txt", "m\n")
    mine = checkout.git("rev-parse", "HEAD").strip()
    commit = branch.commit(on_conflict=on_conflict)  # type: ignore[arg-type]
    assert commit.repository == ("1 commit merged into main, which was moved meanwhile",)
    checkout.git("merge-base", "--is-ancestor", mine, "HEAD")
    assert {"one.txt", "mine.txt"} <= set(checkout.git("ls-tree", "--name-only", "HEAD").split())
    assert checkout.git("status", "--porcelain") == ""
    assert "forkwise: merge try" in checkout.git("reflog", "main")
    checkout.check()


def test_commits_that_cannot_be_merged_are_kept_beside(checkout: Checkout) -> None:
    branch = checkout.workspace.branch("try")
    checkout.commit(branch, "a.txt", "branch\n")
    theirs = checkout.git("rev-parse", "HEAD", at=branch.path).strip()
    checkout.commit(None, "a.txt", "mine\n")
    mine = checkout.git("rev-parse", "HEAD").strip()
    commit = branch.commit(on_conflict="ours")
    assert checkout.git("rev-parse", "main").strip() == mine
    assert checkout.git("rev-parse", "forkwise/try").strip() == theirs
    assert "The branch's is in forkwise/try" in commit.repository[0]
    assert (checkout.path / "a.txt").read_text() == "branch\n"
    checkout.check()


def test_what_the_user_staged_stays_staged(checkout: Checkout) -> None:
    branch = checkout.workspace.branch("try")
    checkout.commit(branch, "one.txt", "1\n")
    (checkout.path / "staged.txt").write_text("s\n")
    checkout.git("add", "staged.txt")
    branch.commit()
    assert checkout.git("status", "--porcelain") == "A  staged.txt\n"
    checkout.check()


def test_undo_and_redo_move_references_and_index(checkout: Checkout) -> None:
    before = checkout.git("rev-parse", "HEAD")
    branch = checkout.workspace.branch("try")
    checkout.commit(branch, "one.txt", "1\n")
    checkout.git("branch", "other", at=branch.path)
    after = checkout.git("rev-parse", "HEAD", at=branch.path)
    commit = branch.commit()
    checkout.git("status")
    undone = checkout.workspace.undo(commit)
    assert checkout.git("rev-parse", "HEAD") == before
    assert checkout.git("for-each-ref", "--format=%(refname)") == "refs/heads/main\n"
    assert checkout.git("status", "--porcelain") == ""
    assert "forkwise: undo try" in checkout.git("reflog", "HEAD")
    assert "branch main is back at" in "".join(undone.repository)
    checkout.check()
    checkout.workspace.undo(undone)
    assert checkout.git("rev-parse", "HEAD", "other") == after * 2
    assert checkout.git("status", "--porcelain") == ""
    checkout.check()


def test_undo_leaves_a_reference_that_moved_since(checkout: Checkout) -> None:
    branch = checkout.workspace.branch("try")
    checkout.commit(branch, "one.txt", "1\n")
    commit = branch.commit()
    checkout.commit(None, "mine.txt", "m\n")
    head = checkout.git("rev-parse", "HEAD")
    undone = checkout.workspace.undo(commit)
    assert checkout.git("rev-parse", "HEAD") == head
    assert undone.repository == ("branch main stays as it is: it was moved since",)
    assert checkout.git("status", "--porcelain") == " D one.txt\n"
    checkout.check()
