"""The examples of pydantic-deep's guide to live run forking, and the paths of its API page.

The models that the examples name are played by a script: the class of their provider sends no request.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pydantic_ai_backends
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import AgentInfo, FunctionModel

import forkwise
from forkwise import BranchSpec, DeepAgentDeps, InMemoryCheckpointStore, create_deep_agent
from tests.seeds.page import WORKSPACE, Example, Page

__all__ = ["page"]

page = Page("pydantic_deep", package="pydantic_deep")

_SPECS = [{"label": "A", "steer": "a whimsical name"}, {"label": "B", "steer": "a technical name"}]
_BUDGETED = [{"label": name, "steer": f"approach {n}", "budget_usd": 2.0} for n, name in enumerate("abc", 1)]


def _play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Do as the prompt of an example says; a branch writes files that are named in its steer."""
    prompts = [str(p.content) for m in messages for p in m.parts if isinstance(p, UserPromptPart)]
    has_prompt = any(isinstance(part, UserPromptPart) for part in messages[-1].parts)
    returns = [] if has_prompt else [p for p in messages[-1].parts if isinstance(p, ToolReturnPart)]
    results = {part.tool_name: str(part.content) for part in returns}
    if "fork_run" in results:
        return _call("inspect_branches")
    if "inspect_branches" in results:
        if "running" in results["inspect_branches"]:
            return _call("inspect_branches")
        return _call("merge_or_select", action=f"pick:{results['inspect_branches'].split()[1]}")
    if results or "Merged" in prompts[-1]:
        return ModelResponse(parts=[TextPart(f"after {', '.join(results) or 'the merge'}")])
    if prompts[-1].startswith("Use `fork_run`"):
        return _call("fork_run", specs=_SPECS)
    if prompts[-1].startswith("Try three approaches"):
        return _call("fork_run", specs=_BUDGETED, aggregate_budget_usd=5.0)
    if prompts[-1].startswith("write "):
        calls = [ToolCallPart("write", {"path": p, "content": prompts[-1]}) for p in prompts[-1].split()[1:]]
        return ModelResponse(parts=calls)
    return ModelResponse(parts=[TextPart(f"answer to {prompts[-1]}")])


def _call(tool: str, **arguments: Any) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart(tool, arguments)])


@contextmanager
def _played() -> Iterator[None]:
    """Have a script play the models of the examples."""
    script = FunctionModel(_play)

    async def request(self: Any, *args: Any, **options: Any) -> ModelResponse:
        response = await script.request(*args, **options)
        return replace(response, model_name="claude-sonnet-4-6", provider_name="anthropic")  # which has a price

    os.environ["ANTHROPIC_API_KEY"] = "not used"
    with patch.object(AnthropicModel, "request", request):
        yield


@contextmanager
def _warned() -> Iterator[None]:
    """Expect the warning of a fork without checkpoints."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    [warning] = caught
    assert issubclass(warning.category, UserWarning)
    assert "checkpoint" in str(warning.message)


@page.example("Quick start")
def quick_start(example: Example) -> None:
    with _played():
        example.run()
    assert example.printed == "after the merge\n"


@page.example("Per-branch budgets")
def budgets(example: Example) -> None:
    async def check() -> None:
        agent = create_deep_agent(model="anthropic:claude-sonnet-4-6", forking=True)
        deps = DeepAgentDeps(checkpoint_store=InMemoryCheckpointStore())
        await example.arun(agent=agent, deps=deps)
        costs = deps.fork_coordinator.fork_cost()
        assert costs.aggregate_budget_usd == 5.0
        assert [cost.budget_usd for cost in costs.per_branch.values()] == [2.0, 2.0, 2.0]
        assert {status.label for status in deps.fork_coordinator.inspect_branches()} == {"a", "b", "c"}
        assert deps.fork_coordinator.is_resolved

    with _played():
        asyncio.run(check())


def _with_fork(
    use: Callable[[Any], Awaitable[None]],
    backend: Any,
    steers: tuple[str, ...] = ("write cat.md dog.md", "write cat.md"),
) -> None:
    """Run ``use`` with a coordinator whose branches are done, over a backend of the library that the guide names."""

    async def run() -> None:
        agent = create_deep_agent(model="anthropic:claude-sonnet-4-6", forking=True)
        deps = DeepAgentDeps(backend=backend, checkpoint_store=InMemoryCheckpointStore())
        await agent.run("warm up", deps=deps)
        coordinator = deps.fork_coordinator
        specs = [BranchSpec(f"b{n}", steer) for n, steer in enumerate(steers)]
        await coordinator.fork(specs, parent_history=[])
        await asyncio.wait([runtime.task for runtime in coordinator.branches.values()])
        await use(coordinator)
        await coordinator.aclose()

    with _played():
        asyncio.run(run())


@page.example("Diff explorer")
def diff_explorer(example: Example) -> None:
    async def use(coordinator: Any) -> None:
        await example.arun(coordinator=coordinator)
        first, second = coordinator.branches
        assert example.printed.startswith("0.5\ncat.md split\n")
        assert f"  {first} created\n" in example.printed
        assert f"dog.md unique\n  {first} created\n" in example.printed
        assert f"  {second} untouched\n" in example.printed
        assert "+write cat.md dog.md" in example.printed

    _with_fork(use, forkwise.StateBackend())


@page.example("Apply on merge")
def apply_on_merge(example: Example) -> None:
    for backend in (
        forkwise.StateBackend(),
        forkwise.LocalBackend(root_dir=WORKSPACE),
        pydantic_ai_backends.StateBackend(),
        pydantic_ai_backends.LocalBackend(root_dir=WORKSPACE / "other"),
    ):

        async def use(coordinator: Any) -> None:
            await example.arun(coordinator=coordinator, winner_id=next(iter(coordinator.branches)))
            assert example.printed == "['cat.md', 'dog.md']\n2\n[]\n[]\n"

        _with_fork(use, backend)
        assert "write cat.md dog.md" in backend.read("dog.md")


@page.example("Autonomous merge")
def autonomous_merge(example: Example) -> None:
    strategy = example.run()["MergeStrategy"]()
    assert (strategy.kind, strategy.confidence_threshold) == ("auto_with_fallback", 0.80)
    assert strategy.judge_model == "anthropic:claude-haiku-4-5-20251001"


@page.example("Test-runner hook")
def test_runner_hook(example: Example) -> None:
    with _played():
        agent = example.run()["agent"]
    assert agent.model.model_name == "claude-sonnet-4-6"


@page.example("Programmatic fork")
def programmatic_fork(example: Example) -> None:
    with _played(), _warned():
        names = example.run()
    assert example.printed == f"{names['handle'].branches[0]} 4\n"
    assert names["handle"].parent_checkpoint_id is None
    assert isinstance(names["fork_cap"].store, forkwise.InMemoryForkStateStore)


@page.example("Inspecting overlay writes")
def overlay_writes(example: Example) -> None:
    async def use(coordinator: Any) -> None:
        await example.arun(coordinator=coordinator)
        first, second = coordinator.branches
        found = [tuple(line.split()[:3]) for line in example.printed.splitlines()]
        assert sorted(found) == [(first, "write", "cat.md"), (first, "write", "dog.md"), (second, "write", "cat.md")]

    for backend in (forkwise.StateBackend(), forkwise.LocalBackend(root_dir=WORKSPACE)):
        _with_fork(use, backend)


@page.example("Documented paths")
def documented_paths(example: Example) -> None:
    names = example.run()
    for name in ("ForkCoordinator", "BranchOverlay", "ForkMaterializer", "MergeStrategy", "EditorDetector"):
        assert names[name] is getattr(forkwise, name)
