"""Live forks whose branches commit to git: merged, combined and overridden."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkwise import BranchSpec, ForkCoordinator, MergeStrategy
from tests.git.checkout import Checkout
from tests.live.test_resolution import Judge
from tests.live.worker import BEFORE, all_over, worker

pytestmark = pytest.mark.anyio

#: Branches that each commit one file, and one that commits nothing.
X = BranchSpec("x", "write x.txt x; run git add x.txt; run git commit -qm x")
Y = BranchSpec("y", "write y.txt y; run git add y.txt; run git commit -qm y")
PLAIN = BranchSpec("plain", "write z.txt z")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout.create(tmp_path / "w")


def subjects(checkout: Checkout) -> list[str]:
    return checkout.git("log", "--format=%s").splitlines()


async def test_the_commits_of_a_picked_branch_are_merged(checkout: Checkout) -> None:
    coordinator = ForkCoordinator(worker(), workspace=checkout.workspace)
    await coordinator.fork([X, Y], parent_history=BEFORE)
    await all_over(coordinator)
    mine = checkout.commit(None, "mine.txt", "m\n")
    result = await coordinator.merge_or_select(f"pick:{next(iter(coordinator.branches))}")
    assert result.applied_paths == ["x.txt"]
    assert {"x", "mine.txt", "initial"} < set(subjects(checkout))
    checkout.git("merge-base", "--is-ancestor", mine, "HEAD")
    assert checkout.git("status", "--porcelain") == ""
    checkout.check()


async def test_a_combination_says_whose_commits_it_does_not_take(checkout: Checkout) -> None:
    coordinator = ForkCoordinator(worker(), workspace=checkout.workspace)
    await coordinator.fork([X, PLAIN], parent_history=BEFORE)
    await all_over(coordinator)
    first = next(iter(coordinator.branches))
    result = await coordinator.merge_or_select("combine:x,plain")
    assert result.applied_paths == ["x.txt", "z.txt"]
    [sentence] = result.left_repositories
    assert sentence.startswith(f"the commits of {first} are not taken, because a combination takes files: 1 commit")
    assert subjects(checkout) == ["initial"]
    assert checkout.git("status", "--porcelain") == "?? x.txt\n?? z.txt\n"
    checkout.check()


@pytest.mark.parametrize("does_user_commit", [False, True])
async def test_an_override_takes_the_commits_back_and_merges_the_others(
    checkout: Checkout, does_user_commit: bool
) -> None:
    strategy = MergeStrategy(kind="vote")
    coordinator = ForkCoordinator(worker(), workspace=checkout.workspace, judge=Judge("x"))
    await coordinator.fork([X, Y], parent_history=BEFORE, strategy=strategy)
    assert (await coordinator.resolve()).committed
    assert subjects(checkout) == ["x", "initial"]
    if does_user_commit:
        mine = checkout.commit(None, "mine.txt", "m\n")
    result = await coordinator.override("y")
    assert result.applied_paths == ["y.txt"]
    assert sorted(path.name for path in checkout.path.glob("[xyz].txt")) == ["y.txt"]
    if does_user_commit:
        checkout.git("merge-base", "--is-ancestor", mine, "HEAD")
        assert "y" in subjects(checkout)
    else:
        assert subjects(checkout) == ["y", "initial"]
        assert checkout.git("status", "--porcelain") == ""
    checkout.check()
