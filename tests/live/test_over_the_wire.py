"""The main examples over the real clients of Anthropic and OpenAI, with a provider that rejects invalid requests.

After every merge the conversation is continued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.workspaces import LocalWorkspaceBackend

from forkwise import (
    BranchSpec,
    Budget,
    DeepAgentDeps,
    ForkCoordinator,
    InMemoryCheckpointStore,
    JudgeAgent,
    LiveForkCapability,
    MergeStrategy,
    StateBackend,
    Workspace,
    create_deep_agent,
)
from tests.live.worker import BEFORE, all_over, driver, last_prompts, last_results, work, worker
from tests.modules.brain import call
from tests.modules.provider_brain import ProviderBrain
from tests.provider import Reply, Request, Usage, answer, structured
from tests.provider import call as tool_call
from tests.provider.fixtures import ModelOf, StartProvider

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

TWO = [BranchSpec("one", "write one.txt 1"), BranchSpec("two", "write two.txt 2")]
Think = Callable[[Callable[[Any], Any]], ProviderBrain]


@pytest.fixture
def brain(provider: StartProvider, model_of: ModelOf) -> Think:
    """Run the function behind each provider in turn."""
    return lambda decide: ProviderBrain(provider, model_of, decide)


async def goes_on(agent: Agent[Any, Any], history: Sequence[ModelMessage], place: Any = None) -> None:
    """Continue the merged conversation with a further prompt."""
    result = await agent.run("say fine", message_history=list(history), workspace=place)
    assert result.output == "fine"


async def test_fork_steer_follow_up_and_pick(brain: Think, workspace: Workspace) -> None:
    gate, is_there = asyncio.Event(), asyncio.Event()

    def think(asked: Any) -> Any:
        return call("wait") if last_prompts(asked) == ["wait for me"] else work(asked)

    thinking = brain(think)
    agent = worker(thinking)

    @agent.tool_plain
    async def wait() -> str:
        is_there.set()
        await gate.wait()
        return "waited"

    coordinator = ForkCoordinator(agent, workspace=workspace)
    specs = [BranchSpec("long", "wait for me"), TWO[1]]
    await coordinator.fork(specs, parent_history=BEFORE)
    await is_there.wait()
    coordinator.steer_branch("long", "write steered.txt yes")
    gate.set()
    await all_over(coordinator)
    await (await coordinator.run_on_branch("long", "write more.txt too"))
    result = await coordinator.merge_or_select("pick:long")
    assert result.applied_paths == ["more.txt", "steered.txt"]
    await goes_on(agent, result.history_after_merge)
    assert any("write steered.txt yes" in asked.prompts[-1] for asked in thinking.asked)


@pytest.mark.parametrize(
    ("budget", "requests"),
    [
        ({"budget_usd": 0.5}, 2),
        ({"budget": Budget(requests=2)}, 2),
        ({"budget": Budget(tokens=9_000)}, 1),  # the conversation is larger than the remaining budget
    ],
)
async def test_budgets_stop_a_branch_that_can_still_be_picked(
    provider: StartProvider, model_of: ModelOf, workspace: Workspace, budget: dict[str, Any], requests: int
) -> None:
    expensive = Usage(input=10, output=8_000 if "budget" in budget else 30_000)

    def respond(request: Request) -> Reply:
        if request.last_user_text == "say fine":
            return answer("fine")
        return answer(tool_call("write_file", path=f"{request.turn}.txt", text="paid for"), usage=expensive)

    agent = worker(SimpleNamespace(model=model_of(provider(respond))))
    coordinator = ForkCoordinator(agent, workspace=workspace)
    await coordinator.fork([BranchSpec("a", "write on and on", **budget)], parent_history=BEFORE)
    await all_over(coordinator)
    [status] = coordinator.inspect_branches()
    assert status.state == "budget_exhausted"
    [cost] = coordinator.fork_cost().per_branch.values()
    assert cost.requests == requests
    assert cost.cumulative_usd is not None  # the models have their real prices
    result = await coordinator.merge_or_select("pick:a")
    assert result.applied_paths == ["1.txt", "2.txt"][: len(result.applied_paths)]
    assert result.applied_paths
    await goes_on(agent, result.history_after_merge)


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_an_approval_raised_inside_a_branch(brain: Think, workspace: Workspace, is_allowed: bool) -> None:
    agent = worker(brain(work))
    coordinator = ForkCoordinator(agent, workspace=workspace)
    await coordinator.fork([BranchSpec("a", "ask it; write done.txt x"), TWO[1]], parent_history=BEFORE)
    async with asyncio.timeout(60):
        while not (waiting := coordinator.iter_pending_approvals()):
            await asyncio.sleep(0.01)
    await waiting[0][1].response.put(is_allowed)
    result = await coordinator.merge_or_select("pick:a")
    assert bool(result.blocked_commands) is not is_allowed
    assert ("did it" in str(result.history_after_merge)) is is_allowed
    await goes_on(agent, result.history_after_merge)


async def test_a_judge_decides(brain: Think, provider: StartProvider, model_of: ModelOf, workspace: Workspace) -> None:
    def judge(request: Request) -> Any:
        winner = next(word for word in request.last_user_text.split() if word.endswith(".2"))
        return structured(winner_branch_id=winner, confidence=0.95, reasoning="it has two")(request)

    bench = provider(judge)
    agent = worker(brain(work))
    coordinator = ForkCoordinator(
        agent, workspace=workspace, judge=JudgeAgent(model_of(bench), domain="code"), test_command="test -e two.txt"
    )
    await coordinator.fork(TWO, parent_history=BEFORE, strategy=MergeStrategy(kind="auto"))
    outcome = await coordinator.resolve()
    assert outcome.committed
    assert outcome.merge_result is not None
    assert outcome.merge_result.applied_paths == ["two.txt"]
    assert outcome.judge_usage is not None
    assert outcome.judge_usage.requests == 1
    assert (coordinator.fork_cost().judge_usd or 0) > 0
    assert "tests: " in bench.seen[0].last_user_text
    await goes_on(agent, outcome.merge_result.history_after_merge)


async def test_the_work_of_two_branches_is_combined(brain: Think, workspace: Workspace) -> None:
    agent = worker(brain(work))
    coordinator = ForkCoordinator(agent, workspace=workspace)
    await coordinator.fork(TWO, parent_history=BEFORE)
    await all_over(coordinator)
    result = await coordinator.merge_or_select("combine:one,two")
    assert result.applied_paths == ["one.txt", "two.txt"]
    await goes_on(agent, result.history_after_merge)


async def test_a_branch_ended_in_the_middle_of_a_call_is_picked(brain: Think, workspace: Workspace) -> None:
    agent = worker(brain(work))
    coordinator = ForkCoordinator(agent, workspace=workspace)
    await coordinator.fork([BranchSpec("a", "write w.txt kept; run sleep 600")], parent_history=BEFORE)
    [runtime] = coordinator.branches.values()
    async with asyncio.timeout(60):
        while len(runtime.thread.own_messages()) < 3:
            await asyncio.sleep(0.01)
    await coordinator.terminate_branch("a")
    result = await coordinator.merge_or_select("pick:a")
    assert result.applied_paths == ["w.txt"]
    await goes_on(agent, result.history_after_merge)


@pytest.mark.parametrize(
    ("decide", "files"),
    [
        (lambda ids: f"pick:{ids['one']}", ["one.txt"]),
        (lambda ids: f"combine:{ids['one']},{ids['two']}", ["one.txt", "two.txt"]),
        (lambda ids: "abort", []),
    ],
    ids=["pick", "combine", "abort"],
)
async def test_an_agent_forks_itself_in_its_first_turn(
    brain: Think, workspace: Workspace, decide: Callable[[dict[str, str]], str], files: list[str]
) -> None:
    specs = [{"label": spec.label, "steer": spec.steer} for spec in TWO]
    agent = worker(brain(driver(specs, decide)), capabilities=[LiveForkCapability(workspace=workspace)])
    result = await agent.run("task")
    assert sorted(path.name for path in workspace.path.glob("*.txt")) == sorted(["a.txt", *files])
    await goes_on(agent, result.all_messages())


async def test_a_fork_beside_other_calls_of_one_turn(brain: Think, workspace: Workspace) -> None:
    specs = [{"label": "one", "steer": "write one.txt 1"}]
    plain = driver(specs, lambda ids: f"pick:{ids['one']}")

    def think(asked: Any) -> Any:
        if last_prompts(asked) == ["task"]:
            return [
                "Two things at once.",
                call("write_file", path="beside.txt", text="b"),
                call("fork_run", specs=specs),
            ]
        return plain(asked)

    agent = worker(brain(think), capabilities=[LiveForkCapability(workspace=workspace)])
    place = LocalWorkspaceBackend(workspace.path)
    result = await agent.run("task", workspace=place)
    assert (workspace.path / "one.txt").exists()
    assert (workspace.path / "beside.txt").exists()
    await goes_on(agent, result.all_messages(), place)


async def test_the_quick_start(brain: Think) -> None:
    """The ready-made agent, with files in memory and checkpoints."""
    specs = [{"label": "whimsical", "steer": "pitch"}, {"label": "technical", "steer": "pitch"}]
    plain = driver(specs, lambda ids: f"pick:{ids['technical']}")

    def think(asked: Any) -> Any:
        if last_prompts(asked) == ["pitch"]:
            return call("write", path="pitch.md", content="Five sentences.")
        return "pitched" if "write" in last_results(asked) else plain(asked)

    agent = create_deep_agent(brain(think).model, forking=LiveForkCapability(), include_checkpoints=True)
    deps = DeepAgentDeps(backend=StateBackend(), checkpoint_store=InMemoryCheckpointStore())
    result = await agent.run("task", deps=deps)
    assert result.output == "continued"
    assert deps.backend.read_bytes("pitch.md") == b"Five sentences."
    labels = [checkpoint.label for checkpoint in await deps.checkpoint_store.list_all()]
    assert any(label.startswith("fork:") for label in labels)
    assert any(label.startswith("post-fork:") for label in labels)
    again = await agent.run("say fine", deps=deps, message_history=result.all_messages())
    assert again.output == "fine"
