"""A user overrides a judge: the winner is undone, and another branch is merged."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import TextPart

from forkwise import (
    BranchSpec,
    CommitError,
    ConflictError,
    DeepAgentDeps,
    ForkCoordinator,
    InMemoryCheckpointStore,
    MergeStrategy,
    StateBackend,
    Workspace,
    create_deep_agent,
    open_ledger,
    rewind,
)
from forkwise.conversation.conversation import Conversation
from forkwise.files.gc import collect
from forkwise.live.backends.local import LocalBackend
from forkwise.live.judging.confidence import judged_forks
from tests.live.test_resolution import Judge
from tests.live.worker import BEFORE, all_over, last_results, work, worker
from tests.modules.brain import Brain, call

pytestmark = pytest.mark.anyio

THREE = [
    BranchSpec("x", "write both.txt x; write x.txt x"),
    BranchSpec("y", "write both.txt y; run rm a.txt"),
    BranchSpec("bad", "fail"),
]
VOTE = MergeStrategy(kind="vote")


async def decided(coordinator: ForkCoordinator, strategy: MergeStrategy = VOTE) -> None:
    """Run a fork whose judge picks x."""
    await coordinator.fork(THREE, parent_history=BEFORE, strategy=strategy)
    assert (await coordinator.resolve()).committed


def files(workspace: Workspace) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(workspace.path.iterdir())}


AS_X = {"a.txt": "one\n", "both.txt": "x", "x.txt": "x"}
AS_Y = {"both.txt": "y"}


@pytest.mark.parametrize("kind", ["auto", "vote"])
async def test_the_winner_is_undone_and_the_other_is_there(workspace: Workspace, kind: Any) -> None:
    store = InMemoryCheckpointStore()
    judge = Judge("x")
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=judge, checkpoint_store=store)
    await decided(coordinator, MergeStrategy(kind=kind, confidence_threshold=0.0))
    assert files(workspace) == AS_X
    assert workspace.branches() == []  # shelved branches are hidden
    result = await coordinator.override("y")
    assert files(workspace) == AS_Y
    assert (result.applied_paths, result.deleted_paths, result.applied_changes) == (["both.txt"], ["a.txt"], 2)
    assert coordinator.merge_result is result
    assert coordinator.branches[result.winner_branch_id].spec.label == "y"
    assert result.history_after_merge[-1].parts == [TextPart("done: run rm a.txt")]
    Conversation().extend(result.history_after_merge)
    with open_ledger(workspace) as ledger:
        [fork] = ledger.forks()
        assert (fork.winner, str(fork.commit), fork.undone) == (result.winner_branch_id, result.commit_id, None)
        assert (fork.resolution or {})["before"]["resolution"]["how"] == kind
        assert [pick.was_overridden for pick in judged_forks(ledger)] == [True]
        ledger.rebuild()
        assert ledger.forks() == [fork]
    after = await store.get_by_label(f"post-fork:{result.fork_id}")
    assert after is not None
    assert after.messages == result.history_after_merge
    await rewind(store, f"fork:{result.fork_id}", LocalBackend(workspace))
    assert files(workspace) == {"a.txt": "one\n"}
    await coordinator.aclose()


async def test_it_can_be_undone_like_any_other_merge_and_the_rest_goes(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=Judge("x"))
    await decided(coordinator)
    result = await coordinator.override("y")
    with pytest.raises(RuntimeError, match="is the winner already"):
        await coordinator.override("y")
    with pytest.raises(RuntimeError, match="nothing to merge"):
        await coordinator.override("bad")
    with pytest.raises(ValueError, match="no branch"):
        await coordinator.override("nobody")
    workspace.undo(int(result.commit_id or 0))
    assert files(workspace) == {"a.txt": "one\n"}
    assert [p for p in (workspace.state / "branches").iterdir() if p.name.startswith(".aside")]
    await coordinator.aclose()
    assert not [p for p in (workspace.state / "branches").iterdir() if p.name.startswith(".aside")]
    with pytest.raises(RuntimeError, match="by auto or vote"):
        await coordinator.override("y")


async def test_a_file_that_was_there_before_and_that_both_changed(workspace: Workspace) -> None:
    """Files that the undo restored equal those at the fork, so they are no conflict."""
    (workspace.path / "d").mkdir()
    (workspace.path / "d" / "e.txt").write_text("deep")
    (workspace.path / "gone.txt").write_text("once")
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=Judge("x"))
    specs = [
        BranchSpec("x", "write a.txt x; run rm -r d gone.txt; run chmod 700 ."),
        BranchSpec("y", "write a.txt y; write d/e.txt y; write gone.txt y"),
    ]
    await coordinator.fork(specs, parent_history=BEFORE, strategy=VOTE)
    await coordinator.resolve()
    assert (workspace.path / "a.txt").read_text() == "x"
    result = await coordinator.override("y")
    assert (result.conflicts, result.kept_branch) == ([], None)
    assert (workspace.path / "a.txt").read_text() == "y"
    assert (workspace.path / "d" / "e.txt").read_text() == "y"
    assert (workspace.path / "gone.txt").read_text() == "y"
    workspace.undo(int(result.commit_id or 0))
    assert (workspace.path / "a.txt").read_text() == "one\n"
    assert (workspace.path / "d" / "e.txt").read_text() == "deep"
    await coordinator.aclose()


@pytest.mark.usefixtures("recorded_changes")
async def test_nothing_is_changed_after_later_commits(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=Judge("x"))
    await decided(coordinator)
    (workspace.path / "both.txt").write_text("a user's own")
    with pytest.raises(ConflictError, match=r"both\.txt"):
        await coordinator.override("y")
    assert files(workspace) == AS_X | {"both.txt": "a user's own"}
    with open_ledger(workspace) as ledger:
        [fork] = ledger.forks()
        assert (fork.winner, fork.commit) == (f"{fork.id}.1", 1)
    (workspace.path / "other.txt").write_text("beside it")
    LocalBackend(workspace).write("later.txt", "committed since")
    with pytest.raises(CommitError, match="cannot be overridden"):
        await coordinator.override("y")
    assert (workspace.path / "later.txt").exists()
    await coordinator.aclose()


@pytest.mark.usefixtures("recorded_changes")
async def test_after_a_refusal_it_may_still_be_done(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=Judge("x"))
    await decided(coordinator)
    LocalBackend(workspace).write("later.txt", "committed since")
    with pytest.raises(CommitError, match="cannot be overridden"):
        await coordinator.override("y")
    workspace.undo()
    await coordinator.override("y")
    assert files(workspace) == AS_Y
    await coordinator.aclose()


async def test_what_a_person_picked_is_not_overridden(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    with pytest.raises(RuntimeError, match="no fork"):
        await coordinator.override("x")
    await coordinator.fork(THREE, parent_history=BEFORE)
    await all_over(coordinator)
    with pytest.raises(RuntimeError, match="not resolved"):
        await coordinator.override("x")
    await coordinator.merge_or_select("pick:x")
    with pytest.raises(RuntimeError, match="by auto or vote"):
        await coordinator.override("y")


async def test_the_next_fork_lets_the_losers_go(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=Judge("x"))
    await decided(coordinator)
    await coordinator.fork([BranchSpec("z", "say hi")], parent_history=BEFORE)
    assert not [p for p in (workspace.state / "branches").iterdir() if p.name.startswith(".aside")]
    await coordinator.aclose()


def test_what_a_dead_process_set_aside_is_collected(workspace: Workspace) -> None:
    left = workspace.state / "branches" / ".aside-4194305-00"  # a pid that no process has
    left.mkdir()
    collect(workspace, force=False, keep=50, dry_run=False)
    assert not left.exists()


async def test_files_in_memory() -> None:
    def think(asked: Any) -> Any:
        said = work(asked)
        if getattr(said, "tool_name", "") == "write_file":
            return call("write", path=said.args["path"], content=said.args["text"])
        return call("delete", path="a.txt") if getattr(said, "tool_name", "") == "shell" else said

    deps = DeepAgentDeps(StateBackend({"a.txt": "one\n"}), checkpoint_store=InMemoryCheckpointStore())
    coordinator = ForkCoordinator(create_deep_agent(Brain(decide=think)), deps, judge=Judge("x"))
    await decided(coordinator)
    backend = deps.backend
    assert isinstance(backend, StateBackend)
    assert backend.files == {"a.txt": b"one\n", "both.txt": b"x", "x.txt": b"x"}
    backend.write("x.txt", "changed since")
    with pytest.raises(CommitError, match=r"x\.txt changed since"):
        await coordinator.override("y")
    backend.write("x.txt", "x")
    result = await coordinator.override("y")
    assert backend.files == {"both.txt": b"y"}
    assert (result.applied_paths, result.deleted_paths, result.conflicts) == (["both.txt"], ["a.txt"], [])
    await coordinator.aclose()


async def test_a_decision_inside_a_branch_is_not_overridden(workspace: Workspace) -> None:
    agent: Agent[Any, Any] = worker(
        Brain(decide=lambda asked: "ready" if last_results(asked) else call("split") if _splits(asked) else work(asked))
    )
    report: list[str] = []

    @agent.tool
    async def split(_ctx: RunContext[Any]) -> str:
        """Fork inside."""
        inner = ForkCoordinator(agent, workspace=workspace, judge=Judge("x"))
        await inner.fork([BranchSpec("x", "say one"), BranchSpec("y", "say two")], parent_history=BEFORE, strategy=VOTE)
        assert (await inner.resolve()).committed
        with pytest.raises(RuntimeError, match="inside a branch") as error:
            await inner.override("y")
        report.append(str(error.value))
        return "done"

    outer = ForkCoordinator(agent, workspace=workspace)
    await outer.fork([BranchSpec("in", "split")], parent_history=BEFORE)
    await outer.merge_or_select("pick:in")
    assert report


def _splits(asked: Any) -> bool:
    return bool(asked.prompts[-1] == "split")
