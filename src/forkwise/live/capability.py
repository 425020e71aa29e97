"""`LiveForkCapability`: lets any pydantic-ai agent fork itself while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic_ai import Agent, FunctionToolset, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef

from forkwise.errors import ForkNotFoundError
from forkwise.files.branch import Branch
from forkwise.files.workspace import Workspace
from forkwise.fork.agent_workspace import PROVIDER, AgentFiles, BranchWorkspaceBackend
from forkwise.live.branch_runtime import current_branch
from forkwise.live.coordinator import ForkCoordinator
from forkwise.live.fork_tools import create_fork_toolset, register_coordinator
from forkwise.live.judging.confidence import Signal
from forkwise.live.live_fork import WorkspaceLike
from forkwise.live.resume import ForkStateStore, InMemoryForkStateStore

__all__ = ["LiveForkCapability"]


@dataclass
class LiveForkCapability(AbstractCapability[Any]):
    """Lets an agent fork itself: ``Agent(model, capabilities=[LiveForkCapability(workspace="project")])``.

    ``workspace`` is the directory of the agent, which branches get copies of; forks are recorded in its ledger and
    survive the process. By default it is the directory of the backend in the run's deps, if there is one.
    ``test_command`` runs in each branch before it is judged (``"auto"``: the project's own tests), and again before a
    merge if the directory changed meanwhile, unless ``retest=False``. ``judge`` replaces the models that a strategy
    names, ``signals`` the default signals of the merge confidence. ``keep_artifacts`` keeps the mirror of the branches'
    files. ``store`` gets the handle of each fork; without one it is in memory. ``allow_executable_config`` lets a merge
    change what the user's machine will run, such as git hooks, which it otherwise refuses.
    """

    max_branches: int = 10
    max_depth: int = 2
    store: ForkStateStore | None = None
    keep_artifacts: bool = False
    test_command: str | None = None
    test_timeout_s: float = 60.0
    workspace: WorkspaceLike | None = None
    judge: Any = None
    signals: Sequence[Signal] | None = None
    retest: bool = True
    allow_executable_config: bool = False
    _coordinators: dict[str, ForkCoordinator] = field(default_factory=dict, init=False, repr=False)
    _coordinator: ForkCoordinator | None = field(default=None, init=False, repr=False)
    _latest: tuple[ModelMessage, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.workspace is not None and not isinstance(self.workspace, Workspace | Branch):
            self.workspace = Workspace(self.workspace)
        if self.store is None:
            self.store = InMemoryForkStateStore()

    @property
    def coordinator(self) -> ForkCoordinator | None:
        """The coordinator of this run; on the capability that the agent was created with, that of its last run."""
        return self._coordinator

    @property
    def latest_messages(self) -> list[ModelMessage]:
        """The messages of the run before its last request."""
        return list(self._latest)

    def coordinator_for(
        self, agent: Agent[Any, Any], deps: Any = None, *, store: ForkStateStore | None = None
    ) -> ForkCoordinator:
        """Create a coordinator with these settings, to fork an agent that does not run."""
        return ForkCoordinator(
            agent,
            deps,
            max_branches=self.max_branches,
            max_depth=self.max_depth,
            store=store or self.store,
            keep_artifacts=self.keep_artifacts,
            test_command=self.test_command,
            test_timeout_s=self.test_timeout_s,
            workspace=self.workspace,
            judge=self.judge,
            signals=self.signals,
            retest=self.retest,
            allow_executable_config=self.allow_executable_config,
        )

    async def resume(self, agent: Agent[Any, Any], deps: Any = None) -> ForkCoordinator | None:
        """Resume the last fork that a killed process left in the workspace; return None if there is none."""
        coordinator = self.coordinator_for(agent, deps)
        with suppress(ForkNotFoundError):
            await coordinator.resume()
            return coordinator
        return None

    # The hooks of a run

    def get_toolset(self) -> FunctionToolset[Any]:
        """Return the seven tools."""
        return _toolset()

    def get_workspace(self, ctx: RunContext[Any], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        """Return the directory as the workspace of a run that has none, even if its history names a branch of it.

        A merged history names the branch that was merged, whose files are now the directory's.
        """
        if not isinstance(self.workspace, Workspace | Branch):
            return None
        own = BranchWorkspaceBackend(AgentFiles(self.workspace))
        if ref is None:
            return own
        is_own = ref.provider == PROVIDER and ref.id.partition("#")[0] == own.ref.id.partition("#")[0]
        return BranchWorkspaceBackend(own.files, ref) if is_own else None

    async def for_run(self, ctx: RunContext[Any]) -> LiveForkCapability:
        """Return a copy for this run, with a new coordinator or that of an earlier turn whose fork is not resolved."""
        own = copy(self)
        own._latest = ()
        own._coordinator = self._find_open(ctx) or self.coordinator_for(_require_agent(ctx), ctx.deps)
        own._coordinator.capability = own
        register_coordinator(ctx.run_id, own._coordinator)
        branch = current_branch()
        is_shared = branch is not None and branch.coordinator.parent_deps is ctx.deps
        if hasattr(ctx.deps, "fork_coordinator") and not is_shared:
            ctx.deps.fork_coordinator = own._coordinator
        if branch is None:
            self._coordinator = own._coordinator
        else:
            await own._coordinator.resume_left_inside()
        return own

    def _find_open(self, ctx: RunContext[Any]) -> ForkCoordinator | None:
        """Find the coordinator of an earlier turn of this conversation whose fork is not resolved."""
        known = getattr(ctx.deps, "fork_coordinator", None)
        if not isinstance(known, ForkCoordinator):
            known = self._coordinators.get(ctx.conversation_id or "")
        return known if known is not None and not known.is_resolved and known.inside is current_branch() else None

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Keep the messages so far; they are immutable, so a shallow copy is enough."""
        self._latest = tuple(ctx.messages)
        return request_context

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> AgentRunResult[Any]:
        """Run, and keep an unresolved fork for the next turn.

        If the run is cancelled, or is that of a branch, its fork is dropped.
        """
        try:
            result: AgentRunResult[Any] = await handler()
        except (asyncio.CancelledError, RunCancelled):
            await self._close()
            raise
        finally:
            if current_branch() is not None:
                await self._close()
            else:
                self._remember(ctx)
        return result

    async def after_run(self, ctx: RunContext[Any], *, result: AgentRunResult[Any]) -> AgentRunResult[Any]:
        """Return the result unchanged; an unresolved fork stays open for the next turn."""
        return result

    async def _close(self) -> None:
        if self._coordinator is not None:
            await self._coordinator.aclose()

    def _remember(self, ctx: RunContext[Any]) -> None:
        coordinator = self._coordinator
        if coordinator is None or ctx.conversation_id is None:
            return
        if coordinator.is_resolved:
            self._coordinators.pop(ctx.conversation_id, None)
        else:
            self._coordinators[ctx.conversation_id] = coordinator


def _require_agent(ctx: RunContext[Any]) -> Agent[Any, Any]:
    assert ctx.agent is not None
    return ctx.agent


@cache
def _toolset() -> FunctionToolset[Any]:
    return create_fork_toolset()
