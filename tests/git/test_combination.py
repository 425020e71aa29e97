"""Combinations of attempts that worked with git: files are combined, and a repository is taken as a whole or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkwise.files.combine import combine
from forkwise.files.selection import align_branches, build_selection
from tests.git.checkout import Checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout.create(tmp_path / "w")


def test_the_repository_of_none_is_taken_if_several_gave_files(checkout: Checkout) -> None:
    head = checkout.git("rev-parse", "HEAD")
    one, two = checkout.workspace.branch("one"), checkout.workspace.branch("two")
    checkout.commit(one, "one.txt", "1\n")
    (two.path / "two.txt").write_text("2\n")
    made = combine(checkout.workspace, [one, two], "both")
    assert {name: [*map(str, found)] for name, found in made.left_repositories.items()} == {
        "one": ["1 commit on main, index changed"]
    }
    one.abort()
    two.abort()
    commit = made.branch.commit()
    assert (commit.added, commit.repository) == (("one.txt", "two.txt"), ())
    assert checkout.git("rev-parse", "HEAD") == head
    assert checkout.git("status", "--porcelain") == "?? one.txt\n?? two.txt\n"
    checkout.check()


@pytest.mark.parametrize("does_user_commit", [False, True])
def test_the_repository_of_the_one_that_gave_all_files_is_taken(checkout: Checkout, does_user_commit: bool) -> None:
    one, two = checkout.workspace.branch("one"), checkout.workspace.branch("two")
    tip = checkout.commit(one, "one.txt", "1\n")
    checkout.git("tag", "done", at=one.path)
    checkout.git("checkout", "-qb", "side", at=two.path)
    if does_user_commit:
        mine = checkout.commit(None, "mine.txt", "m\n")
    made = combine(checkout.workspace, [two, one], "both")
    assert (list(made.left_repositories), dict(made.taken)) == (["two"], {"one.txt": "one"})
    one.abort()
    two.abort()
    commit = made.branch.commit()
    assert commit.added == ("one.txt",)
    checkout.git("merge-base", "--is-ancestor", tip, "main")
    if does_user_commit:
        checkout.git("merge-base", "--is-ancestor", mine, "main")
    assert checkout.git("tag").split() == ["done"]
    assert checkout.git("branch", "--format=%(refname)").split() == ["refs/heads/main"]
    assert checkout.git("status", "--porcelain") == ""
    checkout.check()


def test_a_choice_of_everything_takes_the_repository(checkout: Checkout) -> None:
    one, two = checkout.workspace.branch("one"), checkout.workspace.branch("two")
    tip = checkout.commit(one, "a.txt", "A\n")
    checkout.commit(two, "a.txt", "other\n")
    both = {"first": one, "second": two}
    [aligned] = align_branches(checkout.workspace, both)
    assert aligned.alignment is not None
    hunks = frozenset(hunk for region in aligned.alignment.regions for hunk in region.of("first"))
    made = build_selection(checkout.workspace, both, "chosen", {"a.txt": hunks})
    assert list(made.left_repositories) == ["second"]
    one.abort()
    two.abort()
    assert made.branch.commit().repository == ("1 commit on main",)
    assert checkout.git("rev-parse", "HEAD").strip() == tip
    assert checkout.git("status", "--porcelain") == ""
    checkout.check()


def test_a_choice_of_a_part_takes_only_files(checkout: Checkout) -> None:
    head = checkout.git("rev-parse", "HEAD")
    one = checkout.workspace.branch("one")
    checkout.commit(one, "one.txt", "1\n")
    checkout.commit(one, "two.txt", "2\n")
    made = build_selection(checkout.workspace, {"first": one}, "chosen", {"two.txt": "first"})
    assert list(made.left_repositories) == ["first"]
    one.abort()
    assert made.branch.commit().added == ("two.txt",)
    assert checkout.git("rev-parse", "HEAD") == head
    checkout.check()
