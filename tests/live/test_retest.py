"""Overrides and combinations in a workspace that has moved: tests run on what will be there, or nothing lands."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.usage import RunUsage

from forkwise import BranchSpec, ForkCoordinator, MergeStrategy, RetestError, Tests, Workspace, open_ledger
from forkwise.live.judging.verdict import JudgeVerdict
from tests.live.test_resolution import Judge
from tests.live.worker import BEFORE, all_over, worker

pytestmark = pytest.mark.anyio

XY = [BranchSpec("x", "write x.txt x"), BranchSpec("y", "write y.txt y"), BranchSpec("z", "write z.txt z")]
VOTE = MergeStrategy(kind="vote")
NOT_BOTH = "test ! -e y.txt -o ! -e other.txt"


class Late(Judge):
    """A judge that decides for x, after another run has committed a file."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__("x")
        self.workspace = workspace

    async def evaluate(self, *arguments: Any) -> tuple[JudgeVerdict, RunUsage]:
        with Workspace(self.workspace.path, durable=False).branch("other") as branch:
            (branch.path / "other.txt").write_text("")
        return await super().evaluate(*arguments)


def names(workspace: Workspace) -> list[str]:
    return sorted(path.name for path in workspace.path.iterdir())


@pytest.fixture
def test_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the branches that tests ran in."""
    runs: list[str] = []
    real = Tests.test

    async def test(self: Tests, branch: Any, *arguments: Any) -> Any:
        runs.append(branch.name)
        return await real(self, branch, *arguments)

    monkeypatch.setattr(Tests, "test", test)
    return runs


@pytest.mark.parametrize("retest", [True, False])
async def test_an_override_that_fails_together_with_another_commit(workspace: Workspace, retest: bool) -> None:
    coordinator = ForkCoordinator(
        worker(), workspace=workspace, judge=Late(workspace), test_command=NOT_BOTH, retest=retest
    )
    await coordinator.fork(XY, parent_history=BEFORE, strategy=VOTE)
    assert (await coordinator.resolve()).committed
    if not retest:
        await coordinator.override("y")
        assert names(workspace) == ["a.txt", "other.txt", "y.txt"]
        await coordinator.aclose()
        return
    with pytest.raises(RetestError, match="passed alone, fails together with"):
        await coordinator.override("y")
    assert names(workspace) == ["a.txt", "other.txt", "x.txt"]
    with open_ledger(workspace) as ledger:
        record = ledger.fork(str(coordinator.fork_id))
        assert record.winner is not None
        assert ledger.attempt(record.winner).label == "x"
    await coordinator.override("z")  # the others can still be kept
    assert names(workspace) == ["a.txt", "other.txt", "z.txt"]
    await coordinator.aclose()
    assert workspace.branches() == []


async def test_an_override_in_a_workspace_that_has_not_moved_is_not_tested_again(
    workspace: Workspace, test_runs: list[str]
) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=Judge("x"), test_command="true")
    await coordinator.fork(XY, parent_history=BEFORE, strategy=VOTE)
    assert (await coordinator.resolve()).committed
    before = len(test_runs)
    await coordinator.override("y")
    assert names(workspace) == ["a.txt", "y.txt"]
    assert len(test_runs) == before
    await coordinator.aclose()


async def test_an_override_of_a_path_that_a_person_edited(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=Judge("x"), test_command="! grep -qs mine y.txt")
    await coordinator.fork(XY, parent_history=BEFORE, strategy=VOTE)
    assert (await coordinator.resolve()).committed
    (workspace.path / "y.txt").write_text("mine")
    with pytest.raises(RetestError, match="passed alone, fails together"):
        await coordinator.override("y")
    assert names(workspace) == ["a.txt", "x.txt", "y.txt"]
    assert (workspace.path / "y.txt").read_text() == "mine"
    await coordinator.aclose()


@pytest.mark.parametrize("moved", [True, False])
async def test_a_combination_is_tested_on_what_will_be_there(workspace: Workspace, moved: bool) -> None:
    """It fails because of another commit, or because of the other branch."""
    check = NOT_BOTH if moved else "test ! -e x.txt -o ! -e y.txt"
    judge: Judge = Late(workspace) if moved else Judge("x")
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=judge, test_command=check)
    await coordinator.fork(XY, parent_history=BEFORE)
    await all_over(coordinator)
    await coordinator.resolve(MergeStrategy(kind="auto_with_fallback"))
    before = names(workspace)
    with pytest.raises(RetestError, match="x and y passed their tests alone, and fail them together"):
        await coordinator.merge_or_select("combine:x,y")
    assert names(workspace) == before
    assert not coordinator.is_resolved
    result = await coordinator.merge_or_select("combine:x,z")
    assert result.applied_paths == ["x.txt", "z.txt"]
    await coordinator.aclose()
