"""ForkCoordinator: the forks of one agent, one at a time: made, gone on with, and resolved into one outcome."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import UsageLimits

from forkwise.agents.live.checkpoint import CheckpointStore
from forkwise.agents.live.confidence import Signal
from forkwise.agents.live.decider import ForkDecider
from forkwise.agents.live.estimate import CostProjection
from forkwise.agents.live.fork_plan import ForkPlan
from forkwise.agents.live.ground import Place, ground_for
from forkwise.agents.live.left_inside import give_up_left
from forkwise.agents.live.live_fork import LiveFork, begin
from forkwise.agents.live.manifest import Manifest
from forkwise.agents.live.materializer import FORKS_ROOT, ForkMaterializer
from forkwise.agents.live.planning import check_specs, plan_fork, projected
from forkwise.agents.live.recalling import recall
from forkwise.agents.live.resolving import goal_of
from forkwise.agents.live.specs import BranchIsolation, BranchSpec, Budget, MergeStrategy
from forkwise.agents.live.status import ForkHandle
from forkwise.agents.live.store import ForkStateStore, InMemoryForkStateStore, LedgerForkStore
from forkwise.agents.live.thread import Thread
from forkwise.errors import ForkDepthLimitError
from forkwise.sandbox.threads import in_thread

__all__ = ["ForkCoordinator"]


class ForkCoordinator(ForkDecider):
    """Forks an agent, and brings the fork to one outcome.

    A fork is a `Fork` in the ledger of ``workspace``, its branches are the attempts of that, and their ids are the
    attempts'. ``workspace`` is the directory the agent works in; without one, and without a directory in
    ``parent_deps``, files are those in memory. ``judge`` replaces the models that a strategy names; ``signals`` those
    that a merge goes by. ``usage_limits`` are those that each branch has beside its budget. ``model`` is what branches
    run on whose specs name none, where that is another than the agent's own.
    """

    def __init__(
        self,
        agent: Agent[Any, Any],
        parent_deps: Any = None,
        *,
        max_branches: int = 10,
        max_depth: int = 2,
        store: ForkStateStore | None = None,
        checkpoint_store: CheckpointStore | None = None,
        aggregate_budget_usd: float | None = None,
        keep_artifacts: bool = False,
        materializer_root: Path | None = None,
        test_command: str | None = None,
        test_timeout_s: float = 60.0,
        workspace: Place | None = None,
        usage_limits: UsageLimits | None = None,
        judge: Any = None,
        signals: Sequence[Signal] | None = None,
    ) -> None:
        super().__init__(agent, parent_deps, usage_limits)
        self.max_branches = max_branches
        self.max_depth = max_depth
        self.store = store
        self.checkpoint_store = checkpoint_store or getattr(parent_deps, "checkpoint_store", None)
        self.aggregate_budget_usd = aggregate_budget_usd
        self.keep_artifacts = keep_artifacts
        self.materializer_root = materializer_root
        self.test_command = test_command
        self.test_timeout_s = test_timeout_s
        self.workspace = workspace
        self.judge = judge
        self.signals = signals
        self.capability: Any = None

    # Making a fork

    def project_cost(
        self, specs: Sequence[BranchSpec], parent_history: Sequence[ModelMessage], *, requests: int = 5
    ) -> CostProjection:
        """What a fork would cost if each branch made so many requests, as far as prices are known."""
        return projected(self.model or self.agent.model, specs, parent_history, requests)

    async def fork(
        self,
        specs: Sequence[BranchSpec],
        *,
        parent_history: Sequence[ModelMessage],
        isolation: BranchIsolation | None = None,
        strategy: MergeStrategy | None = None,
        aggregate_budget_usd: float | None = None,
        aggregate_budget: Budget | None = None,
        share_unspent: bool = False,
    ) -> ForkHandle:
        """Split into branches, which begin to run. Each goes on from ``parent_history`` with its steer.

        ``aggregate_budget`` is what all may spend together, ``aggregate_budget_usd`` its dollars. With
        ``share_unspent`` what finished branches left of their own budgets is there for those that run. Raises
        ValueError where the specs make no sense, or where the budget does not even pay for the first requests;
        ForkBranchLimitError, ForkDepthLimitError; RuntimeError where the last fork is not resolved.
        """
        if self.depth >= self.max_depth:
            raise ForkDepthLimitError(
                f"forks are {self.depth} deep here already, and {self.max_depth} is the most",
                depth=self.depth,
                limit=self.max_depth,
            )
        check_specs(specs, self.max_branches)
        async with self._lock:
            if not self.is_resolved:
                raise RuntimeError(f"fork {self.fork_id} is not resolved: merge or abort it first")
            usd = self.aggregate_budget_usd if aggregate_budget_usd is None else aggregate_budget_usd
            plan = plan_fork(specs, isolation, strategy, aggregate_budget or Budget(), usd, share_unspent)
            plan.check_affordable(self.project_cost(plan.specs, parent_history, requests=1))
            return await self._begin(plan, parent_history)

    async def _begin(self, plan: ForkPlan, history: Sequence[ModelMessage]) -> ForkHandle:
        await self._let_losers_go()
        self._forget()
        left = None if self.inside is None else self.inside.left
        if left is not None and (known := left.same_as(plan)) is not None:
            return await self._take_up(known)
        if self.inside is not None:
            await give_up_left(self.inside)
        async with AsyncExitStack() as stack:
            ground = await in_thread(ground_for, self.workspace, self.parent_deps)
            stack.push_async_callback(in_thread, ground.close)
            above = self.inside.purse if self.inside is not None else None
            plan = plan.with_names(secrets.token_hex(6), goal_of(history))
            live, threads = await begin(ground, plan, history, above, stack)
            await self._anchor(live, f"fork:{live.fork.id}", list(history), plan.checkpoint)
            return await self.adopt(live, threads, stack)

    async def adopt(self, live: LiveFork, threads: Sequence[Thread], stack: AsyncExitStack) -> ForkHandle:
        """Take over a fork that was opened: its branches run from now on, and what is open is closed with it."""
        await self._open_mirror(live)
        self._live = live
        if self.inside is not None:
            self.inside.inner.append(self)
        for number, (spec, thread) in enumerate(zip(live.plan.specs, threads, strict=True)):
            runtime = live.add(spec, number, thread, self._first_turn, self)
            if runtime.attempt.branch is not None:
                await self._open_files(runtime)
            if runtime.status.state == "done" and not thread.is_answered:
                self._go_on(runtime)  # it was told more when its process was killed
            else:
                self._watch(live, runtime)
        if live.plan.budget.seconds is not None:
            stack.callback(asyncio.get_running_loop().call_later(live.plan.budget.seconds, self.stop_all).cancel)
        self._open = stack.pop_all()
        self.note_status()
        await self._opened(live)
        return live.handle

    def _forget(self) -> None:
        self._is_over = False
        self._live = None
        self._outcomes.clear()
        self._judge_usd = None
        self.merge_result = None

    async def _open_mirror(self, live: LiveFork) -> None:
        root = self.materializer_root or (
            FORKS_ROOT if live.ground.is_in_memory else live.ground.parent.workspace.state / "mirrors"
        )
        self.materializer = await in_thread(ForkMaterializer, root / live.fork.id, live.fork.id, self.keep_artifacts)
        self.manifest = Manifest(self.materializer, lambda: [runtime.status for runtime in live.branches.values()])
        if self.store is None:
            in_ledger = not live.ground.is_in_memory
            self.store = LedgerForkStore(live.ground.parent.workspace) if in_ledger else InMemoryForkStateStore()

    async def _opened(self, live: LiveFork) -> None:
        """Wait until each branch has its files, or has failed to get them."""
        for runtime in live.branches.values():
            ready = asyncio.ensure_future(runtime.ready.wait())
            await asyncio.wait([ready, runtime.task], return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
        assert self.store is not None
        await self.store.save(live.handle)

    async def resume(self, fork_id: str | None = None) -> ForkHandle:
        """Go on with a fork that a killed process left, by default the last one: branches that were over are as they
        were, the others go on from the last turn they completed. One that was decided and not committed is committed,
        see ``merge_result``. Raises ForkNotFoundError where there is none."""
        async with self._lock:
            if not self.is_resolved:
                raise RuntimeError(f"fork {self.fork_id} is not resolved: merge or abort it first")
            await self._let_losers_go()
            self._forget()
            return await recall(self, fork_id)

    async def take_up_left(self) -> None:
        """Go on with the fork that a killed process had open inside the branch that this runs in, if there is one."""
        left = None if self.inside is None else self.inside.left
        if left is not None and left.last is not None:
            async with self._lock:
                self._forget()
                await self._take_up(left.last)

    async def _take_up(self, fork_id: str) -> ForkHandle:
        """Go on with a fork that was left inside this branch; others that were are given up."""
        assert self.inside is not None
        left, self.inside.left = self.inside.left, None
        handle = await recall(self, fork_id)
        self.inside.left = left
        await give_up_left(self.inside)  # which is what is not adopted by now
        return handle
