"""A fork from end to end on the small real model: it works in two branches, and judges them.

It takes no tools, so a branch writes through its output, which is held to a schema.
"""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import Field
from pydantic_ai import Agent, RunContext
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from forkwise import BranchSpec, ForkCoordinator, JudgeAgent, MergeStrategy, Workspace, open_ledger
from forkwise.fork.stored_fork import undo
from forkwise.live.judging.confidence import judged_forks
from forkwise.local_model import local_model
from tests.live.worker import BEFORE, all_over
from tests.local_model.requirements import need_local_model

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

# The bounds are in the pattern: the server samples by the pattern alone where a schema has one.
Words = Annotated[str, Field(pattern=r"^[A-Z][A-Za-z ]{1,23}$")]
SETTINGS = ModelSettings(temperature=0.0, seed=1)


async def name_it(ctx: RunContext[Any], name: Words) -> str:
    """Name the library."""
    await ctx.workspace.write_text("name.txt", f"{name}\n")
    counted = await ctx.workspace.run("wc -l < name.txt", shell=True)
    return f"{name}, {counted.stdout.strip()} line"


async def test_a_fork_that_the_local_model_works_in_and_judges(workspace: Workspace) -> None:
    need_local_model()
    async with local_model() as model:
        await forked_and_judged(workspace, model)


async def forked_and_judged(workspace: Workspace, model: Model) -> None:
    agent: Agent[Any, str] = Agent(
        model, output_type=name_it, instructions="You name software libraries.", model_settings=SETTINGS
    )
    judge = JudgeAgent("local", instructions="Choose the branch with the better name. Be brief.")
    judge.agent.model_settings = SETTINGS
    coordinator = ForkCoordinator(agent, workspace=workspace, judge=judge, test_command="grep -q . name.txt")
    specs = [BranchSpec("playful", "Give it a playful name."), BranchSpec("plain", "Give it a plain name.")]
    strategy = MergeStrategy(kind="auto", confidence_threshold=0.0)
    handle = await coordinator.fork(specs, parent_history=BEFORE, strategy=strategy)
    await all_over(coordinator)
    assert [(s.state, s.error) for s in coordinator.inspect_branches()] == [("done", None)] * 2
    costs = coordinator.fork_cost().per_branch
    assert all(cost.requests >= 1 and cost.tokens > 0 for cost in costs.values())
    written = {name: runtime.overlay.read_bytes("name.txt") for name, runtime in coordinator.branches.items()}
    outcome = await coordinator.resolve()
    assert outcome.verdict is not None
    winner = outcome.verdict.winner_branch_id
    assert winner in handle.branches
    assert outcome.signals is not None
    assert outcome.signals.test_pass_ratio == 1.0
    result = outcome.merge_result
    if not outcome.committed:  # a model as small as this one may fail to name a branch in three tries
        assert "no judge supports this pick" in outcome.verdict.caveats
        result = await coordinator.merge_or_select(f"pick:{winner}")
    assert (workspace.path / "name.txt").read_bytes() == written[winner]
    assert result is not None
    assert result.applied_paths == ["name.txt"]
    await coordinator.aclose()
    undo(workspace)
    assert not (workspace.path / "name.txt").exists()
    with open_ledger(workspace) as ledger:
        [pick] = judged_forks(ledger)
    assert pick.was_undone
    assert "local" in pick.judge
