"""Combined branches: also inside a branch, and with branches that were stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext

from forkwise import (
    BranchSpec,
    Budget,
    ConflictError,
    DeepAgentDeps,
    ForkCoordinator,
    InMemoryCheckpointStore,
    LiveForkCapability,
    StateBackend,
    Workspace,
    create_deep_agent,
    open_ledger,
)
from forkwise.conversation.conversation import Conversation
from tests.live.worker import BEFORE, all_over, driver, last_results, work, worker
from tests.modules.brain import Asked, Brain, call

pytestmark = pytest.mark.anyio

#: Branches that are stopped in every way, each after a write: the branch, and its final state.
STOPPED = {
    "failed": (BranchSpec("s", "write s.txt some; fail"), "failed"),
    "out of budget": (BranchSpec("s", "write s.txt some; write t.txt more", budget=Budget(requests=1)), None),
    "terminated": (BranchSpec("s", "write s.txt some; run sleep 100"), "terminated"),
}
OTHER = BranchSpec("o", "write o.txt other")


def in_memory(asked: Any) -> Any:
    """Work like a worker, with the tools of a ready-made agent."""
    said = work(asked)
    if getattr(said, "tool_name", "") == "write_file":
        return call("write", path=said.args["path"], content=said.args["text"])
    return call("wait") if getattr(said, "tool_name", "") == "shell" else said


def deep(brain: Brain) -> tuple[Agent[Any, Any], DeepAgentDeps]:
    agent = create_deep_agent(brain, forking=True)

    @agent.tool_plain
    async def wait() -> str:
        """Wait for a long time."""
        await asyncio.sleep(100)
        return "waited"

    return agent, DeepAgentDeps(StateBackend({"a.txt": "one\n"}), checkpoint_store=InMemoryCheckpointStore())


async def stopped(coordinator: ForkCoordinator, how: str) -> None:
    """Wait until the first branch has ended; terminate it if that is its expected end."""
    runtime = next(iter(coordinator.branches.values()))
    if how == "terminated":
        while len(runtime.partial_history) < len(runtime.thread.conversation.path(runtime.thread.start)) + 3:
            await asyncio.sleep(0.01)
        await coordinator.terminate_branch(runtime.id)
    await all_over(coordinator)
    assert runtime.status.state == STOPPED[how][1] or "budget" in runtime.status.state


@pytest.mark.parametrize("how", STOPPED)
@pytest.mark.parametrize("where", ["directory", "memory"])
async def test_a_branch_that_was_stopped_is_combined_with_what_it_did(
    workspace: Workspace, where: str, how: str
) -> None:
    agent, deps = (worker(), None) if where == "directory" else deep(Brain(decide=in_memory))
    coordinator = ForkCoordinator(agent, deps, workspace=workspace if where == "directory" else None)
    await coordinator.fork([STOPPED[how][0], OTHER], parent_history=BEFORE)
    await stopped(coordinator, how)
    result = await coordinator.merge_or_select("combine:s,o")
    assert result.applied_paths == ["o.txt", "s.txt"]
    Conversation().extend(result.history_after_merge)
    said = str(result.history_after_merge)
    assert "write s.txt some" in said
    assert "done: write o.txt other" in said
    await Agent(Brain("continued")).run("and now", message_history=result.history_after_merge)
    if deps is None:
        assert (workspace.path / "s.txt").read_text() == "some"
        assert (workspace.path / "o.txt").read_text() == "other"
    else:
        assert deps.backend.read_bytes("s.txt") == b"some"


async def test_a_branch_that_failed_before_it_spoke_has_nothing_to_combine(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    await coordinator.fork([BranchSpec("bad", "fail"), OTHER], parent_history=BEFORE)
    await all_over(coordinator)
    with pytest.raises(RuntimeError, match="out of order"):
        await coordinator.merge_or_select("combine:bad,o")
    assert not coordinator.is_resolved
    await coordinator.aclose()


async def test_what_others_changed_meanwhile_is_not_taken_from_them(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    await coordinator.fork([BranchSpec("s", "write a.txt mine"), OTHER], parent_history=BEFORE)
    await all_over(coordinator)
    with workspace.branch("other") as branch:
        (branch.path / "b.txt").write_text("beside it")
    (workspace.path / "a.txt").write_text("newer\n")
    with pytest.raises(ConflictError, match=r"a\.txt"):
        await coordinator.merge_or_select("combine:s,o")
    assert not coordinator.is_resolved
    (workspace.path / "a.txt").write_text("mine")
    result = await coordinator.merge_or_select("combine:s,o")
    assert "o.txt" in result.applied_paths
    assert sorted(p.name for p in workspace.path.iterdir()) == ["a.txt", "b.txt", "o.txt"]


# Inside a branch


def forking_inside(agent: Agent[Any, Any], make: Callable[[Any], ForkCoordinator], how: str) -> list[Any]:
    """Add a tool that forks the current branch and combines its branches. Return the list of results."""
    results: list[Any] = []

    @agent.tool
    async def split(ctx: RunContext[Any]) -> str:
        """Fork inside."""
        inner = make(ctx.deps)
        assert inner.depth == 1
        await inner.fork([STOPPED[how][0], OTHER], parent_history=BEFORE)
        await stopped(inner, how)
        results.append(await inner.merge_or_select("combine:s,o"))
        return "combined"

    return results


def splitting(rest: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Fork on the prompt ``split``, then write one more file."""

    def think(asked: Asked) -> Any:
        if asked.prompts[-1] != "split":
            return rest(asked)
        if "split" in last_results(asked):
            said = call("write_file", path="after.txt", text="after")
            return said if rest is work else call("write", path="after.txt", content="after")
        return "ready" if last_results(asked) else call("split")

    return think


@pytest.mark.parametrize("how", STOPPED)
async def test_inside_a_branch_on_disk(workspace: Workspace, how: str) -> None:
    agent = worker(Brain(decide=splitting(work)))
    results = forking_inside(agent, lambda _deps: ForkCoordinator(agent, workspace=workspace), how)
    outer = ForkCoordinator(agent, workspace=workspace)
    await outer.fork([BranchSpec("in", "split"), BranchSpec("out", "write out.txt out")], parent_history=BEFORE)
    await all_over(outer)
    assert [status.state for status in outer.inspect_branches()] == ["done", "done"], outer.inspect_branches()
    [inner] = results
    assert (inner.applied_paths, inner.commit_id) == (["o.txt", "s.txt"], None)
    Conversation().extend(inner.history_after_merge)
    assert not (workspace.path / "o.txt").exists()
    result = await outer.merge_or_select("combine:in,out")
    assert result.applied_paths == ["after.txt", "o.txt", "out.txt", "s.txt"]
    assert {p.name: p.read_text() for p in workspace.path.iterdir()} == {
        "a.txt": "one\n", "after.txt": "after", "o.txt": "other", "out.txt": "out", "s.txt": "some"
    }  # fmt: skip
    with open_ledger(workspace) as ledger:
        assert {(fork.resolution or {})["how"] for fork in ledger.forks()} == {"combination"}
    assert result.commit_id is not None
    workspace.undo(int(result.commit_id))
    assert [p.name for p in workspace.path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("how", STOPPED)
async def test_inside_a_branch_in_memory(how: str) -> None:
    agent, deps = deep(Brain(decide=splitting(in_memory)))
    results = forking_inside(agent, lambda inner: ForkCoordinator(agent, inner), how)
    outer = ForkCoordinator(agent, deps)
    await outer.fork([BranchSpec("in", "split"), BranchSpec("out", "write out.txt out")], parent_history=BEFORE)
    await all_over(outer)
    assert [status.state for status in outer.inspect_branches()] == ["done", "done"], outer.inspect_branches()
    assert results[0].applied_paths == ["o.txt", "s.txt"]
    assert deps.backend.ls_info() == [{"name": "a.txt", "path": "a.txt", "is_dir": False, "size": 4}]
    result = await outer.merge_or_select("combine:in,out")
    assert result.applied_paths == ["after.txt", "o.txt", "out.txt", "s.txt"]
    assert [info["path"] for info in deps.backend.ls_info()] == ["a.txt", "after.txt", "o.txt", "out.txt", "s.txt"]


async def test_an_agent_that_combines_continues_with_both_conversations(workspace: Workspace) -> None:
    """Also if the conversation of a branch ends with tool results without a response."""
    specs = [{"label": "s", "steer": "write s.txt some; fail"}, {"label": "o", "steer": OTHER.steer}]
    brain = Brain(decide=driver(specs, lambda ids: f"combine:{ids['s']},{ids['o']}"))
    agent = worker(brain, capabilities=[LiveForkCapability(workspace=workspace)])
    result = await agent.run("task")
    assert result.output == "continued"
    assert "write s.txt some" in str(result.all_messages())
    assert "done: write o.txt other" in str(result.all_messages())
    assert (workspace.path / "s.txt").exists()


async def test_a_fork_that_a_branch_leaves_open_goes_with_its_turn(workspace: Workspace) -> None:
    agent = worker(Brain(decide=splitting(work)))
    left: list[Callable[[], Awaitable[None]]] = []

    @agent.tool
    async def split(ctx: RunContext[Any]) -> str:
        """Fork inside, and leave the fork open."""
        inner = ForkCoordinator(agent, workspace=workspace)
        left.append(inner.aclose)
        await inner.fork([BranchSpec("slow", "run sleep 100")], parent_history=BEFORE)
        with pytest.raises(Exception, match="Read-only"):  # a branch that was forked is frozen
            await ctx.workspace.write_text("meanwhile.txt", "x")
        return "left it open"

    outer = ForkCoordinator(agent, workspace=workspace)
    await outer.fork([BranchSpec("in", "split")], parent_history=BEFORE)
    await all_over(outer)
    with open_ledger(workspace) as ledger:
        inner, _ = ledger.forks()
        assert inner.state == "aborted"
    await outer.aclose()
    await left[0]()
