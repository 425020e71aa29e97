"""Git repositories in workspaces: what an attempt does with git is a value of its own, and is merged by git's rules."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forkwise import Workspace
from forkwise.errors import CommitError, ConflictError
from forkwise.files.branch import Branch
from forkwise.git.repository_change import read_head_commit
from tests.counts import rounds
from tests.files.steps import Steps, in_child
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


def test_the_commit_that_is_checked_out_is_read_without_git(checkout: Checkout, tmp_path: Path) -> None:
    head = checkout.git("rev-parse", "HEAD").strip()
    assert read_head_commit(str(checkout.path)) == head
    checkout.git("branch", "main-too")
    checkout.git("pack-refs", "--all")
    assert read_head_commit(str(checkout.path)) == head
    checkout.git("checkout", "-q", "--detach")
    assert read_head_commit(str(checkout.path)) == head
    checkout.git("checkout", "-q", "--orphan", "empty")
    assert read_head_commit(str(checkout.path)) is None
    (checkout.path / ".git/HEAD").write_text("ref: refs/heads/../../../../etc/passwd\n")
    assert read_head_commit(str(checkout.path)) is None
    (tmp_path / "none").mkdir()
    assert read_head_commit(str(tmp_path / "none")) is None


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


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("verb", ["add", "status", "checkout"])
def test_what_the_user_committed_meanwhile_is_not_staged_as_deleted(
    checkout: Checkout, verb: str, is_first: bool
) -> None:
    branch = checkout.workspace.branch("try")
    if is_first:
        checkout.commit(None, "early.txt", "e\n")
    (branch.path / "one.txt").write_text("1\n")
    if verb == "status":
        os.utime(branch.path / "a.txt", (1, 1))
        checkout.git("status", at=branch.path)
    elif verb == "checkout":
        checkout.git("checkout", "-q", "-b", "side", at=branch.path)
        checkout.git("checkout", "-q", "main", at=branch.path)
    if verb != "status":
        checkout.git("add", "one.txt", at=branch.path)
    checkout.commit(None, "mine.txt", "m\n")
    checkout.commit(None, "a.txt", "mine\n")
    branch.commit(on_conflict="theirs")
    assert checkout.git("status", "--porcelain") == ("?? one.txt\n" if verb == "status" else "A  one.txt\n")
    checkout.check()


@pytest.mark.parametrize("is_detached", [False, True])
@pytest.mark.parametrize("words", [("reset", "-q", "--hard", "HEAD~1"), ("commit", "-q", "--amend", "-m", "other")])
def test_a_commit_of_the_user_that_the_branch_took_back_stays(
    checkout: Checkout, words: tuple[str, ...], is_detached: bool
) -> None:
    if is_detached:
        checkout.git("checkout", "-q", "--detach")
    branch = checkout.workspace.branch("try")
    mine = checkout.commit(None, "mine.txt", "m\n")
    checkout.git(*words, at=branch.path)
    checkout.commit(branch, "one.txt", "1\n")
    branch.commit(on_conflict="theirs")
    checkout.git("merge-base", "--is-ancestor", mine, "HEAD")
    assert checkout.git("log", "--all", "--format=%s").count("one.txt") == 1
    checkout.check()


def test_a_commit_from_before_the_fork_may_be_amended(checkout: Checkout) -> None:
    branch = checkout.workspace.branch("try")
    checkout.git("commit", "-q", "--amend", "-m", "better", at=branch.path)
    branch.commit()
    assert checkout.git("log", "--format=%s") == "better\n"
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


def test_a_repository_in_a_directory_and_one_of_a_submodule(checkout: Checkout, tmp_path: Path) -> None:
    inner = checkout.path / "inner"
    inner.mkdir()
    checkout.git("init", "-q", "-b", "main", at=inner)
    checkout.git("-c", "user.name=U", "-c", "user.email=u@e", "commit", "-qm", "i", "--allow-empty", at=inner)
    other = Checkout.create(tmp_path / "other")
    checkout.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.path), "sub")
    checkout.git("commit", "-qm", "submodule")
    for name in ("inner", "sub"):
        checkout.git("config", "user.name", "U", at=checkout.path / name)
        checkout.git("config", "user.email", "u@e", at=checkout.path / name)
    branch = checkout.workspace.branch("try")
    for name in ("inner", "sub"):
        (branch.path / name / "new.txt").write_text("new\n")
        checkout.git("add", "new.txt", at=branch.path / name)
        checkout.git("commit", "-qm", "new", at=branch.path / name)
        (checkout.path / name / "mine.txt").write_text("mine\n")
        checkout.git("add", "mine.txt", at=checkout.path / name)
        checkout.git("commit", "-qm", "mine", at=checkout.path / name)
    assert {str(one) for one in branch.delta().repository} == {
        ".git/modules/sub: 1 commit on main, index changed",
        "inner: 1 commit on main, index changed",
    }
    branch.commit()
    for name in ("inner", "sub"):
        files = checkout.git("ls-tree", "--name-only", "HEAD", at=checkout.path / name).split()
        assert {"new.txt", "mine.txt"} <= set(files)
        assert checkout.git("status", "--porcelain", at=checkout.path / name) == ""
        checkout.git("fsck", "--full", at=checkout.path / name)


def test_a_workspace_that_is_a_linked_work_tree(checkout: Checkout, tmp_path: Path) -> None:
    """Its repository is outside of the workspace, so that no branch has a part of it."""
    checkout.git("worktree", "add", "-q", "-b", "linked", str(tmp_path / "linked"))
    branch = Workspace(tmp_path / "linked", durable=False).branch("try")
    (branch.path / "new.txt").write_text("new\n")
    assert branch.delta().repository == ()
    commit = branch.commit()
    assert (commit.added, commit.repository) == (("new.txt",), ())
    assert checkout.git("status", "--porcelain", at=tmp_path / "linked") == "?? new.txt\n"


def test_the_directory_that_git_dir_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = Checkout.create(tmp_path / "w")
    os.rename(checkout.path / ".git", checkout.path / "store")
    monkeypatch.setenv("GIT_DIR", str(checkout.path / "store"))
    branch = checkout.workspace.branch("try")
    (branch.path / "new.txt").write_text("new\n")
    for words in (("add", "new.txt"), ("commit", "-qm", "new")):
        checkout.git(f"--git-dir={branch.path}/store", f"--work-tree={branch.path}", *words, at=branch.path)
    assert [str(one) for one in branch.delta().repository] == ["store: 1 commit on main, index changed"]
    commit = branch.commit()
    assert commit.added == ("new.txt",)
    assert checkout.git("--git-dir=store", "log", "--format=%s") == "new\ninitial\n"


def test_a_sparse_checkout_stays_sparse(checkout: Checkout) -> None:
    for name in ("in", "out"):
        (checkout.path / name).mkdir()
        checkout.commit(None, f"{name}/x.txt", "x\n")
    checkout.git("sparse-checkout", "set", "in")
    branch = checkout.workspace.branch("try")
    checkout.commit(branch, "in/x.txt", "y\n")
    blob = checkout.git("rev-parse", "HEAD:in/x.txt", at=branch.path).strip()
    checkout.git("update-index", "--cacheinfo", f"100644,{blob},out/x.txt", at=branch.path)
    checkout.git("commit", "-qm", "both", at=branch.path)
    branch.commit()
    assert checkout.git("status", "--porcelain") == ""
    assert not (checkout.path / "out").exists()
    checkout.check()


@pytest.mark.parametrize("setting", ["extensions.refStorage=reftable", "extensions.unheardOf=1"])
def test_a_format_that_cannot_be_read_is_reported_and_not_merged(checkout: Checkout, setting: str) -> None:
    branch = checkout.workspace.branch("try")
    checkout.commit(branch, "one.txt", "1\n")
    name, _, value = setting.partition("=")
    checkout.git("config", name, value)
    head = (checkout.path / ".git/refs/heads/main").read_text()
    commit = branch.commit()
    assert commit.added == ("one.txt",)
    assert "left out" in commit.repository[0]
    assert name.lower() in commit.repository[0].lower()
    assert (checkout.path / ".git/refs/heads/main").read_text() == head


def test_a_merge_in_progress_is_not_moved_away(checkout: Checkout) -> None:
    checkout.git("branch", "other")
    checkout.commit(None, "a.txt", "main\n")
    checkout.git("checkout", "-q", "other")
    checkout.commit(None, "a.txt", "other\n")
    branch = checkout.workspace.branch("try")
    checkout.commit(branch, "one.txt", "1\n")
    assert checkout.run("merge", "main").returncode == 1
    stages = checkout.git("ls-files", "-u")
    commit = branch.commit()
    assert "a merge is in progress" in commit.repository[0]
    assert checkout.git("ls-files", "-u") == stages
    assert (checkout.path / ".git/MERGE_HEAD").exists()
    assert checkout.git("log", "-1", "--format=%s", "forkwise/try") == "one.txt\n"
    checkout.check()


def _begin_merge(checkout: Checkout) -> Branch:
    """Return a branch with a merge that stopped at a conflict."""
    checkout.git("branch", "other")
    checkout.commit(None, "a.txt", "main\n")
    branch = checkout.workspace.branch("try")
    checkout.git("checkout", "-q", "other", at=branch.path)
    checkout.commit(branch, "a.txt", "other\n")
    checkout.git("checkout", "-q", "main", at=branch.path)
    assert checkout.run("merge", "other", at=branch.path).returncode == 1
    return branch


def test_an_unfinished_merge_of_the_branch_is_taken_over(checkout: Checkout) -> None:
    branch = _begin_merge(checkout)
    commit = branch.commit()
    assert "unfinished merge was taken over" in commit.repository[1]
    assert checkout.git("status", "--porcelain") == "UU a.txt\n"
    checkout.check()
    checkout.workspace.undo()
    assert checkout.git("status", "--porcelain") == ""
    assert not (checkout.path / ".git/MERGE_HEAD").exists()
    checkout.workspace.undo(checkout.workspace.history()[0])
    assert checkout.git("status", "--porcelain") == " M a.txt\n"
    checkout.check()


def test_an_unfinished_merge_that_was_taken_over_can_be_finished(checkout: Checkout) -> None:
    _begin_merge(checkout).commit()
    (checkout.path / "a.txt").write_text("both\n")
    checkout.git("add", "a.txt")
    checkout.git("commit", "-q", "--no-edit")
    assert checkout.git("log", "-1", "--format=%s %P").split()[:3] == ["Merge", "branch", "'other'"]
    assert len(checkout.git("log", "-1", "--format=%P").split()) == 2
    merged = checkout.git("rev-parse", "HEAD")
    undone = checkout.workspace.undo
    with pytest.raises(ConflictError):
        undone()
    assert checkout.git("rev-parse", "HEAD") == merged
    checkout.check()


@pytest.mark.parametrize("user", ["commits", "stages", "merges"])
def test_an_unfinished_merge_is_not_put_over_work_of_the_user(checkout: Checkout, user: str) -> None:
    branch = _begin_merge(checkout)
    tip = checkout.git("rev-parse", "MERGE_HEAD", at=branch.path).strip()
    checkout.git("branch", "-qD", "other", at=branch.path)
    if user == "commits":
        checkout.commit(None, "mine.txt", "m\n")
    elif user == "stages":
        (checkout.path / "mine.txt").write_text("m\n")
        checkout.git("add", "mine.txt")
    else:
        checkout.git("checkout", "-q", "-b", "side")
        checkout.commit(None, "a.txt", "side\n")
        checkout.git("checkout", "-q", "main")
        checkout.commit(None, "a.txt", "main again\n")
        checkout.run("merge", "side")
    before = checkout.git("status", "--porcelain", "--", "mine.txt"), checkout.git("ls-files", "-u")
    commit = branch.commit(on_conflict="theirs")
    assert "unfinished command" in str(commit.repository)
    assert "not taken over" in str(commit.repository)
    assert (checkout.git("status", "--porcelain", "--", "mine.txt"), checkout.git("ls-files", "-u")) == before
    assert checkout.git("for-each-ref", "--contains", tip)
    checkout.check()


def test_an_unfinished_rebase_leaves_head_where_it_is(checkout: Checkout) -> None:
    checkout.git("branch", "other")
    checkout.commit(None, "a.txt", "main\n")
    branch = checkout.workspace.branch("try")
    checkout.git("checkout", "-q", "other", at=branch.path)
    checkout.commit(branch, "x.txt", "x\n")
    checkout.commit(branch, "a.txt", "other\n")
    assert checkout.run("rebase", "main", at=branch.path).returncode == 1
    rebased = checkout.git("rev-parse", "HEAD", at=branch.path).strip()
    commit = branch.commit()
    assert checkout.git("symbolic-ref", "HEAD") == "refs/heads/main\n"
    assert not (checkout.path / ".git/rebase-merge").exists()
    assert "the branch did not finish what it began" in str(commit.repository)
    assert checkout.git("for-each-ref", "--format=%(refname:short)", "--contains", rebased) == "forkwise/try-log\n"
    checkout.check()


def test_a_bisection_leaves_no_references(checkout: Checkout) -> None:
    good = checkout.git("rev-parse", "HEAD").strip()
    for number in range(4):
        checkout.commit(None, f"{number}.txt", "1\n")
    branch = checkout.workspace.branch("try")
    checkout.git("bisect", "start", "HEAD", good, at=branch.path)
    branch.commit()
    assert checkout.git("for-each-ref", "--format=%(refname)") == "refs/heads/main\n"
    assert checkout.git("symbolic-ref", "HEAD") == "refs/heads/main\n"
    checkout.check()


def test_commits_in_a_worktree_that_the_branch_added_are_kept(checkout: Checkout) -> None:
    branch = checkout.workspace.branch("try")
    checkout.git("worktree", "add", "-q", "--detach", "wt", at=branch.path)
    (branch.path / "wt/b.txt").write_text("b\n")
    checkout.git("add", "b.txt", at=branch.path / "wt")
    checkout.git("commit", "-qm", "detached", at=branch.path / "wt")
    commit = branch.commit()
    assert "worktree wt was not taken over" in str(commit.repository)
    assert checkout.git("log", "-1", "--format=%s", "forkwise/try-log") == "detached\n"
    assert not (checkout.path / ".git/worktrees").exists()
    checkout.check()


def test_a_shallow_repository(checkout: Checkout, tmp_path: Path) -> None:
    checkout.commit(None, "b.txt", "1\n")
    checkout.git("clone", "-q", "--depth", "1", f"file://{checkout.path}", str(tmp_path / "shallow"))
    shallow = Checkout(tmp_path / "shallow", Workspace(tmp_path / "shallow", durable=False))
    for name, value in (("user.name", "User"), ("user.email", "user@example.org")):
        shallow.git("config", name, value)
    branch = shallow.workspace.branch("try")
    shallow.commit(branch, "one.txt", "1\n")
    shallow.commit(None, "mine.txt", "1\n")
    assert branch.commit().repository == ("1 commit merged into main, which was moved meanwhile",)
    shallow.check()


def test_a_shallow_fetch_of_the_branch_is_named(checkout: Checkout, tmp_path: Path) -> None:
    other = Checkout.create(tmp_path / "other")
    other.commit(None, "a.txt", "2\n")
    other.commit(None, "a.txt", "3\n")
    branch = checkout.workspace.branch("try")
    checkout.git("fetch", "-q", "--depth", "1", f"file://{other.path}", "main:refs/remotes/o/main", at=branch.path)
    checkout.commit(branch, "one.txt", "1\n")
    commit = branch.commit()
    assert "shallow fetch" in str(commit.repository)
    assert "1 commit on main" in commit.repository
    assert not (checkout.path / ".git/shallow").exists()
    checkout.check()


def test_stashes_of_both_sides_are_kept(checkout: Checkout) -> None:
    branch = checkout.workspace.branch("try")
    for at in (checkout.path, branch.path):
        (at / "a.txt").write_text(f"{at}\n")
        checkout.git("stash", "push", "-qm", at.name, at=at)
    commit = branch.commit()
    assert commit.repository == ("1 stash added",)
    assert len(checkout.git("stash", "list").splitlines()) == 2
    checkout.check()
    checkout.workspace.undo(commit)
    assert len(checkout.git("stash", "list").splitlines()) == 1
    checkout.check()


def test_a_first_commit_on_an_unborn_branch(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.mkdir()
    checkout = Checkout(path, Workspace(path, durable=False))
    checkout.git("init", "-q", "-b", "main")
    checkout.git("config", "user.name", "U")
    checkout.git("config", "user.email", "u@e")
    branch = checkout.workspace.branch("try")
    checkout.commit(branch, "one.txt", "1\n")
    commit = branch.commit()
    assert checkout.git("log", "--format=%s") == "one.txt\n"
    assert checkout.git("status", "--porcelain") == ""
    checkout.check()
    checkout.workspace.undo(commit)
    assert checkout.run("rev-parse", "--verify", "HEAD").returncode != 0
    assert checkout.git("status", "--porcelain") == ""
    checkout.check()


def test_an_attempt_that_collects_garbage_removes_nothing(checkout: Checkout) -> None:
    lost = checkout.commit(None, "lost.txt", "lost\n")
    branch = checkout.workspace.branch("try")
    checkout.git("reset", "-q", "--hard", "HEAD~1", at=branch.path)
    checkout.git("reflog", "expire", "--expire=now", "--all", at=branch.path)
    checkout.git("gc", "-q", "--prune=now", at=branch.path)
    checkout.commit(branch, "one.txt", "1\n")
    branch.commit()
    assert checkout.git("cat-file", "-t", lost) == "commit\n"
    assert lost in checkout.git("rev-list", "--all", "--reflog")
    checkout.check()


def test_a_deleted_repository_stays(checkout: Checkout) -> None:
    branch = checkout.workspace.branch("try")
    shutil.rmtree(branch.path / ".git")
    (branch.path / "new.txt").write_text("new\n")
    assert [str(one) for one in branch.delta().repository] == ["repository deleted"]
    commit = branch.commit()
    assert commit.added == ("new.txt",)
    assert "stays as it is" in commit.repository[0]
    assert checkout.git("log", "--format=%s") == "initial\n"
    checkout.check()


def test_a_new_repository_is_taken_over(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, durable=False)
    branch = workspace.branch("try")
    subprocess.run(["git", "init", "-q", branch.path / "new"], check=True)
    assert [str(one) for one in branch.delta().repository] == ["new: new repository"]
    assert [change.path for change in branch.delta()] == ["new"]
    branch.commit()
    assert (tmp_path / "new/.git/HEAD").exists()


def test_hostile_content_is_neither_run_nor_followed(checkout: Checkout, tmp_path: Path) -> None:
    """Names that lead out, logs with control codes, references that are links, objects that are none."""
    branch = checkout.workspace.branch("try")
    git = branch.path / ".git"
    tip = checkout.commit(branch, "one.txt", "1\n")
    marker = tmp_path / "ran"
    outside = tmp_path / "outside"
    outside.write_text("as it was\n")
    with open(git / "logs/HEAD", "a") as log:
        log.write(f"{tip} {'1' * 40} \x1b[31mA <a> 1 +0000\tx\n{tip} {tip} A <a@b> 1 +0000\tcommit: \x07bell\n")
    (git / "refs/heads/link").symlink_to(outside)
    (git / "refs/heads/none").write_text(f"{'2' * 40}\n")
    (git / "refs/heads/text").write_text("ref: ../../../outside\n")
    (git / "packed-refs").write_text(f"{tip} refs/heads/../../../outside\n{tip} refs/heads/a.lock\n{tip} refs/x\x01\n")
    (git / "objects/info").mkdir(exist_ok=True)
    (git / "objects/info/alternates").write_text(f"{tmp_path}/elsewhere\n")
    (git / "objects/pack").mkdir(exist_ok=True)
    (git / "objects/pack/pack-00.idx").write_bytes(b"no index")
    (git / "objects/pack/pack-00.pack").write_bytes(b"no pack")
    checkout.git("config", "core.fsmonitor", f"touch {marker}", at=branch.path)
    checkout.git("config", "uploadpack.packObjectsHook", f"touch {marker}", at=branch.path)
    commit = branch.commit()
    assert not marker.exists()
    assert outside.read_text() == "as it was\n"
    checkout.git("config", "--unset", "core.fsmonitor")
    assert checkout.git("for-each-ref", "--format=%(refname)") == "refs/heads/main\n"
    assert checkout.git("rev-parse", "main").strip() == tip
    assert not (checkout.path / ".git/objects/info/alternates").exists()
    assert "\x1b" not in (checkout.path / ".git/logs/HEAD").read_text()
    assert commit.repository[-1] == "1 commit on main"
    checkout.check()


def test_a_damaged_commit_is_not_taken(checkout: Checkout) -> None:
    branch = checkout.workspace.branch("try")
    tip = checkout.commit(branch, "one.txt", "1\n")
    tree = checkout.git("rev-parse", "HEAD^{tree}", at=branch.path).strip()
    (branch.path / f".git/objects/{tree[:2]}/{tree[2:]}").unlink()
    head = checkout.git("rev-parse", "HEAD")
    commit = branch.commit()
    assert commit.added == ("one.txt",)
    assert tip in commit.repository[0]
    assert checkout.git("rev-parse", "HEAD") == head
    checkout.check()


def test_a_running_git_command_is_waited_for_or_reported(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkwise.files.store.transaction._LOCK_PAUSE_S", 0)
    branch = checkout.workspace.branch("try")
    checkout.commit(branch, "one.txt", "1\n")
    (checkout.path / ".git/index.lock").write_text("")
    with pytest.raises(CommitError, match=r"index\.lock exists"):
        branch.commit()
    assert not (checkout.path / "one.txt").exists()
    (checkout.path / ".git/index.lock").unlink()
    branch.commit()
    assert checkout.git("log", "--format=%s") == "one.txt\ninitial\n"
    checkout.check()


@pytest.mark.crash
@pytest.mark.parametrize("undoes", [False, True])
def test_a_kill_at_any_step_is_recovered(tmp_path: Path, undoes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # for what killed processes leave
    steps = Steps()
    number, taken = 0, 0
    stride = rounds(31, 1)
    while number <= len(steps.seen) or not number:
        checkout = Checkout.create(tmp_path / f"w{number}")
        branch = checkout.workspace.branch("try")
        tip = checkout.commit(branch, "one.txt", "1\n")
        checkout.git("branch", "side/topic", at=branch.path)
        before = _picture(checkout)
        if undoes:
            done = branch.commit()
            before, job = _picture(checkout), lambda: checkout.workspace.undo(done)  # noqa: B023 - runs at once
        else:
            job = branch.commit
        if not number:
            with steps.watched():
                job()
        else:
            outcome = in_child(job, Steps(number))
            assert outcome is not None
        Workspace(checkout.path).history()
        after = _picture(checkout)
        is_done = (checkout.git("rev-parse", "HEAD").strip() == tip) != undoes
        assert is_done == ((checkout.path / "one.txt").exists() != undoes)
        assert is_done or after == before, number
        taken += is_done
        checkout.check()
        assert checkout.git("status", "--porcelain") == ""
        for left in checkout.workspace.branches():
            left.abort()
        number += stride if number else 1
    assert taken


def _picture(checkout: Checkout) -> str:
    words = ("for-each-ref", "ls-files -s", "reflog", "status --porcelain")
    return "\n".join(checkout.run(*line.split()).stdout for line in words)


@pytest.mark.parametrize("uses_git", [False, True])
def test_the_cost_depends_on_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses_git: bool) -> None:
    """Neither git nor forkwise walks the tree, and git is not even started for a branch that did not use it."""
    counts = []
    for size in (20, 1000):
        checkout = Checkout.create(tmp_path / str(size))
        for number in range(size):
            (checkout.path / f"f{number}.txt").write_text("x\n")
        checkout.git("add", ".")
        checkout.git("commit", "-qm", "many")
        branch = checkout.workspace.branch("try")
        if uses_git:
            checkout.commit(branch, "one.txt", "1\n")
        else:
            (branch.path / "one.txt").write_text("1\n")
        calls: list[str] = []
        with monkeypatch.context() as patch:
            for name in ("stat", "lstat", "scandir", "listdir", "open"):
                patch.setattr(os, name, _counted(name, getattr(os, name), calls))
            patch.setattr(subprocess, "run", _counted("git", subprocess.run, calls))
            branch.delta()
            branch.diff()
            branch.commit()
        counts.append({name: calls.count(name) for name in set(calls)})
    assert ("git" in counts[0]) == uses_git
    # Few directories of objects more or less, because these are spread over 256 of them.
    assert all(abs(counts[1][name] - count) <= 30 for name, count in counts[0].items()), counts


def _counted(name: str, function: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return function(*args, **kwargs)

    return call


@pytest.mark.parametrize("on_conflict", ["ours", "theirs"])
def test_commits_of_two_branches_of_a_branch_are_all_kept(checkout: Checkout, on_conflict: str) -> None:
    outer = checkout.workspace.branch("outer")
    first, second = outer.branch("first"), outer.branch("second")
    tips = [checkout.commit(first, "one.txt", "1\n"), checkout.commit(second, "two.txt", "2\n")]
    for branch in (first, second):
        (branch.path / "a.txt").write_text(f"{branch.name}\n")
        checkout.git("stash", "push", "-qm", f"of {branch.name}", at=branch.path)
        tips.append(checkout.git("rev-parse", "refs/stash", at=branch.path).strip())
    first.commit()
    assert {".git/index", ".git/refs/heads/main"} <= {conflict.path for conflict in second.rebase().conflicts}
    with pytest.raises(ConflictError, match=r"\.git/index"):
        second.commit()
    commit = second.commit(on_conflict=on_conflict)  # type: ignore[arg-type]
    lost = tips[0] if on_conflict == "ours" else tips[1]
    assert f"commits are in forkwise/second-{lost[:10]}" in str(commit.repository)
    log = "two.txt\ninitial\n" if on_conflict == "ours" else "one.txt\ninitial\n"
    assert checkout.git("log", "--format=%s", at=outer.path) == log
    assert (outer.path / "two.txt").read_text() == "2\n"
    outer.commit()
    assert checkout.git("log", "--format=%s") == log
    for tip in tips:
        assert checkout.git("for-each-ref", "--contains", tip), tip
    checkout.check()


@pytest.mark.parametrize(("does_user_commit", "most"), [(False, 15), (True, 16)])
def test_git_processes_of_a_commit(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, does_user_commit: bool, most: int
) -> None:
    branch = checkout.workspace.branch("try")
    for name in ("one.txt", "two.txt", "three.txt"):
        checkout.commit(branch, name, "1\n")
    if does_user_commit:
        checkout.commit(None, "mine.txt", "m\n")
    run, ran = subprocess.run, []

    def count(words: Any, **options: Any) -> Any:
        ran.append(words)
        return run(words, **options)

    monkeypatch.setattr(subprocess, "run", count)
    branch.commit()
    assert len(ran) <= most
