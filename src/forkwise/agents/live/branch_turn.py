"""One turn of a branch: its agent run where the branch stands, with what the branch has, until it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from pydantic_ai import Agent
from pydantic_ai.exceptions import RunTimedOut, UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolResults
from pydantic_ai.usage import UsageLimits
from pydantic_ai.workspaces import ReadOnlyWorkspace
from pydantic_ai.workspaces import Workspace as AgentWorkspace

from forkwise.agents.live.branch_run import BranchRun, limits_of
from forkwise.agents.live.deps import DeepAgentDeps, clone_for_branch
from forkwise.agents.live.fork_plan import ForkPlan
from forkwise.agents.live.ground import Ground
from forkwise.agents.live.left_inside import give_up_left
from forkwise.agents.live.materializer import ForkMaterializer
from forkwise.agents.live.overlay_files import FilesOverlay
from forkwise.agents.live.runtime import BranchRuntime, entered
from forkwise.errors import BudgetExceededError
from forkwise.fork.agent_workspace import agent_workspace

__all__ = ["BranchRunner", "open_files", "run_agent", "take_turn", "workspace_for"]


class BranchRunner(Protocol):
    """Runs an agent in a branch instead of ``Agent.run``, such as to show what it says as it says it.

    With ``steer`` None the history ends with what is to be answered. ``runtime.options`` has all else that the run is
    to be given: model, workspace, limits, capabilities.
    """

    def __call__(
        self,
        agent: Agent[Any, Any],
        steer: str | None,
        message_history: Sequence[ModelMessage],
        deps: Any,
        deferred_results: DeferredToolResults | None,
        runtime: BranchRuntime,
    ) -> Awaitable[AgentRunResult[Any]]:
        """Run it to its end."""
        ...


async def run_agent(
    agent: Agent[Any, Any],
    steer: str | None,
    message_history: Sequence[ModelMessage],
    deps: Any,
    deferred_results: DeferredToolResults | None,
    runtime: BranchRuntime,
) -> AgentRunResult[Any]:
    """Run an agent in a branch as it is run where nobody looks on."""
    return await agent.run(
        steer, message_history=message_history, deps=deps, deferred_tool_results=deferred_results, **runtime.options
    )


async def take_turn(
    runtime: BranchRuntime, agent: Agent[Any, Any], runner: BranchRunner, limits: UsageLimits | None
) -> AgentRunResult[Any] | None:
    """Have the agent answer what was said last in a branch; None where it had answered already. Stopped by a budget,
    this raises BudgetExceededError. Whatever it said is in the conversation, however it ends."""
    entered(runtime)
    thread = runtime.thread
    if thread.is_answered:
        await give_up_left(runtime)
        return None
    run = BranchRun(runtime=runtime)
    runtime.options = _options(runtime, run, limits)
    steer, history = _asked(thread.request())
    try:
        with runtime.purse.closing():
            return await runner(agent, steer, history, runtime.deps, None, runtime)
    except (UsageLimitExceeded, RunTimedOut) as error:
        raise BudgetExceededError(str(error).partition(". Consider ")[0]) from error
    finally:
        await runtime.close_inner()
        await give_up_left(runtime)
        run.keep()


def workspace_for(runtime: BranchRuntime, share: str) -> AgentWorkspace | None:
    """What the agent has as its workspace: its branch, or the parent's files where those are shared."""
    overlay = runtime.overlay
    if not isinstance(overlay, FilesOverlay):
        return None
    shown = overlay if share == "copy" else overlay.parent
    found = agent_workspace(shown.place, shown.files.confinement)
    return AgentWorkspace(ReadOnlyWorkspace(found)) if share == "share_readonly" else found


def open_files(
    runtime: BranchRuntime, ground: Ground, plan: ForkPlan, deps: Any, materializer: ForkMaterializer | None
) -> None:
    """Give a branch its files, and deps that know of them. Its attempt has made its branch by now."""
    isolation, label = plan.isolation, runtime.spec.label
    runtime.overlay = ground.overlay(runtime.attempt.place, label, plan.strategy.conflict_policy)
    if materializer is not None:
        runtime.overlay.attach_materializer(materializer, label)
    runtime.workspace = workspace_for(runtime, isolation.backend)
    runtime.deps = deps
    if isinstance(deps, DeepAgentDeps):
        apart = isolation.backend == "copy"
        own = clone_for_branch(deps, replace(isolation, backend="share") if apart else isolation, label)
        runtime.deps = replace(own, branch_id=runtime.id, backend=runtime.overlay if apart else own.backend)


def _options(runtime: BranchRuntime, run: BranchRun, limits: UsageLimits | None) -> dict[str, Any]:
    spec = runtime.spec
    options: dict[str, Any] = {
        "capabilities": [run],
        "usage": runtime.purse.usage,
        "usage_limits": limits_of(runtime, limits),
    }
    if runtime.workspace is not None:
        options["workspace"] = runtime.workspace
    if (model := spec.model or runtime.coordinator.model) is not None:
        options["model"] = model
    if spec.extra_instructions:
        options["instructions"] = spec.extra_instructions
    if spec.spending.seconds is not None:
        options["timeout"] = spec.spending.seconds
    return options


def _asked(messages: list[ModelMessage]) -> tuple[str | None, list[ModelMessage]]:
    """What an agent is run with. A conversation that begins here is begun by a prompt, so that the agent's system
    prompt is in it."""
    first = messages[0]
    if len(messages) == 1 and isinstance(first, ModelRequest) and len(first.parts) == 1:
        [part] = first.parts
        if isinstance(part, UserPromptPart) and isinstance(part.content, str):
            return part.content, []
    return None, messages
