"""Repositories of unusual forms: LFS pointers, shallow clones, SHA-256, a split index."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forkwise import Workspace
from tests.git.checkout import Checkout
from tests.need import need

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 5\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout.create(tmp_path / "w")


def test_an_lfs_pointer_stays_a_pointer_and_no_filter_runs(checkout: Checkout, tmp_path: Path) -> None:
    (checkout.path / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    (checkout.path / "big.bin").write_text(POINTER.format("0" * 64))
    checkout.git("add", ".")
    checkout.git("commit", "-qm", "pointer")
    ran = tmp_path / "ran"
    for name in ("clean", "smudge", "process"):
        checkout.git("config", f"filter.lfs.{name}", f"touch {ran}; cat")
    checkout.git("config", "merge.lfs.driver", f"touch {ran}; false")
    branch = checkout.workspace.branch("try")
    quiet = ("-c", "filter.lfs.clean=", "-c", "filter.lfs.process=", "-c", "filter.lfs.smudge=")
    (branch.path / "big.bin").write_text(POINTER.format("1" * 64))
    checkout.git(*quiet, "commit", "-qam", "new content", at=branch.path)
    checkout.commit(None, "mine.txt", "m\n")
    (branch.path / "other.bin").write_text(POINTER.format("2" * 64))
    checkout.git(*quiet, "add", "other.bin", at=branch.path)
    ran.unlink(missing_ok=True)
    branch.commit()
    assert not ran.exists()
    assert checkout.git("cat-file", "blob", ":big.bin") == POINTER.format("1" * 64)
    assert checkout.git("cat-file", "blob", "HEAD:big.bin") == POINTER.format("1" * 64)
    assert checkout.git("cat-file", "blob", ":other.bin") == POINTER.format("2" * 64)
    assert checkout.git(*quiet, "status", "--porcelain") == "A  other.bin\n"
    assert (checkout.path / "big.bin").read_text() == POINTER.format("1" * 64)
    checkout.workspace.undo()
    assert not ran.exists()
    assert checkout.git("cat-file", "blob", ":big.bin") == POINTER.format("0" * 64)
    checkout.check()


@pytest.mark.parametrize("does_user_commit", [False, True])
def test_a_shallow_clone(checkout: Checkout, tmp_path: Path, does_user_commit: bool) -> None:
    for number in range(3):
        checkout.commit(None, "a.txt", f"{number}\n")
    checkout.git("clone", "-q", "--depth", "1", f"file://{checkout.path}", str(tmp_path / "clone"))
    clone = Checkout(tmp_path / "clone", Workspace(tmp_path / "clone", durable=False))
    clone.git("config", "user.name", "User")
    clone.git("config", "user.email", "user@example.org")
    branch = clone.workspace.branch("try")
    tip = clone.commit(branch, "one.txt", "1\n")
    if does_user_commit:
        mine = clone.commit(None, "mine.txt", "m\n")
    commit = branch.commit()
    assert commit.repository[0].startswith("1 commit ")
    clone.git("merge-base", "--is-ancestor", tip, "HEAD")
    if does_user_commit:
        clone.git("merge-base", "--is-ancestor", mine, "HEAD")
    assert clone.git("rev-parse", "--is-shallow-repository") == "true\n"
    assert clone.git("status", "--porcelain") == ""
    clone.check()
    clone.workspace.undo(commit)
    assert clone.git("status", "--porcelain") == ""
    clone.check()


def test_a_branch_that_fetches_the_rest_of_a_shallow_clone(checkout: Checkout, tmp_path: Path) -> None:
    for number in range(3):
        checkout.commit(None, "a.txt", f"{number}\n")
    checkout.git("clone", "-q", "--depth", "1", f"file://{checkout.path}", str(tmp_path / "clone"))
    clone = Checkout(tmp_path / "clone", Workspace(tmp_path / "clone", durable=False))
    clone.git("config", "user.name", "User")
    clone.git("config", "user.email", "user@example.org")
    branch = clone.workspace.branch("try")
    clone.git("fetch", "-q", "--unshallow", at=branch.path)
    tip = clone.commit(branch, "one.txt", "1\n")
    branch.commit()
    assert clone.git("rev-parse", "HEAD").strip() == tip
    assert clone.git("status", "--porcelain") == ""
    clone.check()


def create_with_sha256(path: Path) -> Checkout:
    path.mkdir()
    checkout = Checkout(path, Workspace(path, durable=False))
    need(checkout.run("init", "-q", "-b", "main", "--object-format=sha256").returncode == 0, "git with SHA-256")
    checkout.git("config", "user.name", "User")
    checkout.git("config", "user.email", "user@example.org")
    checkout.commit(None, "a.txt", "a\n")
    return checkout


def test_a_repository_with_sha256(tmp_path: Path) -> None:
    checkout = create_with_sha256(tmp_path / "w")
    before = checkout.git("rev-parse", "HEAD")
    branch = checkout.workspace.branch("try")
    os.utime(branch.path / "a.txt", (1, 1))
    checkout.git("status", at=branch.path)
    assert branch.delta().repository == ()
    tip = checkout.commit(branch, "one.txt", "1\n")
    (branch.path / "a.txt").unlink()
    checkout.git("rm", "-q", "--cached", "a.txt", at=branch.path)
    assert [str(one) for one in branch.delta().repository] == ["1 commit on main, index changed"]
    (checkout.path / "staged.txt").write_text("s\n")
    checkout.git("add", "staged.txt")
    commit = branch.commit()
    assert commit.repository == ("1 commit on main", "index changed")
    assert checkout.git("rev-parse", "HEAD").strip() == tip
    assert checkout.git("status", "--porcelain") == "D  a.txt\nA  staged.txt\n"
    checkout.check()
    checkout.workspace.undo(commit)
    assert checkout.git("rev-parse", "HEAD") == before
    assert checkout.git("status", "--porcelain") == "A  staged.txt\n"
    checkout.check()


def test_commits_of_both_sides_with_sha256_are_merged(tmp_path: Path) -> None:
    checkout = create_with_sha256(tmp_path / "w")
    branch = checkout.workspace.branch("try")
    tip = checkout.commit(branch, "one.txt", "1\n")
    mine = checkout.commit(None, "mine.txt", "m\n")
    branch.commit()
    checkout.git("merge-base", "--is-ancestor", tip, "HEAD")
    checkout.git("merge-base", "--is-ancestor", mine, "HEAD")
    assert checkout.git("status", "--porcelain") == ""
    checkout.check()


@pytest.mark.parametrize("who", ["both", "branch", "user"])
def test_a_split_index(checkout: Checkout, who: str) -> None:
    for number in range(30):
        (checkout.path / f"f{number}.txt").write_text(f"{number}\n")
    checkout.git("add", ".")
    checkout.git("commit", "-qm", "many")
    if who == "both":
        checkout.git("update-index", "--split-index")
    branch = checkout.workspace.branch("try")
    if who == "branch":
        checkout.git("update-index", "--split-index", at=branch.path)
    if who == "user":
        checkout.git("update-index", "--split-index")
    tip = checkout.commit(branch, "one.txt", "1\n")
    (branch.path / "f3.txt").write_text("new\n")
    checkout.git("add", "f3.txt", at=branch.path)
    (checkout.path / "staged.txt").write_text("s\n")
    checkout.git("add", "staged.txt")
    commit = branch.commit()
    assert checkout.git("rev-parse", "HEAD").strip() == tip
    assert checkout.git("status", "--porcelain") == "M  f3.txt\nA  staged.txt\n"
    checkout.check()
    checkout.workspace.undo(commit)
    assert checkout.git("status", "--porcelain") == "A  staged.txt\n"
    checkout.check()
