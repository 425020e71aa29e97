"""ForkCoordinator: the forks of one agent, one at a time: made, gone on with, and resolved into one outcome."""

from __future__ import annotations

import asyncio
import secrets
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import UsageLimits

from forkwise.concurrency import finish, run_in_thread
from forkwise.errors import BudgetExceededError, ForkDepthLimitError, ForkResolvedError, ForkwiseWarning
from forkwise.live.branch_runtime import BranchRuntime, Thread, current_branch
from forkwise.live.budget import CostProjection
from forkwise.live.checkpoints import Checkpoint, CheckpointStore, Rewound, mark_files
from forkwise.live.decision import goal_of, judge_fork, strategy_key
from forkwise.live.diff.build import build_diff_report
from forkwise.live.diff.diff_report import BranchDiffReport
from forkwise.live.diff.mirror import FORKS_ROOT, ForkMaterializer, Manifest
from forkwise.live.fork_plan import ForkPlan, check_specs, plan_fork, projected
from forkwise.live.judging.confidence import Signal
from forkwise.live.judging.verdict import JudgeVerdict, ResolveOutcome
from forkwise.live.live_fork import LiveFork, Place, begin, source_for, state_of
from forkwise.live.merge import check_mergeable, combine_branches, commit_branch, costs_of, override_winner
from forkwise.live.resume import (
    ForkStateStore,
    InMemoryForkStateStore,
    LedgerForkStore,
    abort_orphans,
    find_orphans,
    give_up_inside,
    resume_fork,
)
from forkwise.live.turn import (
    BranchRunner,
    checkpoints_of,
    mark_branch_now,
    open_files,
    rewind_branch_to,
    run_agent,
    take_turn,
)
from forkwise.live.values import (
    BranchIsolation,
    BranchSpec,
    BranchState,
    BranchStatus,
    Budget,
    ForkCostSummary,
    ForkHandle,
    MergeResult,
    MergeStrategy,
    PendingApprovalRequest,
)

__all__ = [
    "BranchHost",
    "ForkCoordinator",
    "ForkDecider",
]


_BUDGETS: tuple[BranchState, ...] = ("budget_exhausted", "aggregate_budget_exhausted")


class BranchHost:
    """Runs the branches of a fork of an agent. ``inside`` is the branch in which the agent itself runs, ``depth`` how
    many there are around it; ``model`` is what branches run on whose specs name none, where that is another than the
    agent's own, ``last_look`` what the agent was told last of where the branches stand."""

    def __init__(self, agent: Agent[Any, Any], parent_deps: Any, usage_limits: UsageLimits | None) -> None:
        self.agent = agent
        self.parent_deps = parent_deps
        self.usage_limits = usage_limits
        self.model: Any = None
        self.branch_runner: BranchRunner | None = None
        self.materializer: ForkMaterializer | None = None
        self.manifest: Manifest | None = None
        self.inside = current_branch()
        self.depth: int = getattr(parent_deps, "fork_depth", 0) if self.inside is None else self.inside.depth
        self.last_look = ""
        self._live: LiveFork | None = None
        self._is_over = False
        self._outcomes: dict[str, ResolveOutcome] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._judge_usd: float | None = None

    # What there is

    @property
    def branches(self) -> dict[str, BranchRuntime]:
        """The branches of the last fork, by their ids."""
        return self._live.branches if self._live is not None else {}

    @property
    def fork_id(self) -> str | None:
        """The id of the last fork; None where there was none."""
        return None if self._live is None else self._live.fork.id

    @property
    def handle(self) -> ForkHandle | None:
        """What names the last fork."""
        return None if self._live is None else self._live.handle

    @property
    def is_resolved(self) -> bool:
        """Whether nothing is left to be decided: there was no fork, or it was merged or aborted."""
        return self._live is None or self._is_over

    @property
    def last_verdict(self) -> JudgeVerdict | None:
        """What judges said last of the fork, if any did."""
        outcomes = list(self._outcomes.values())
        return outcomes[-1].verdict if outcomes else None

    @property
    def is_in_memory(self) -> bool:
        """Whether the files of the last fork are in memory."""
        return self._live is not None and self._live.ground.is_in_memory

    def inspect_branches(self) -> list[BranchStatus]:
        """Where the branches stand."""
        return [runtime.status for runtime in self.branches.values()]

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until one of the branches that run has ended, for so many seconds at most."""
        going = [runtime.task for runtime in self.branches.values() if runtime.is_running]
        if going:
            await asyncio.wait(going, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def note_status(self) -> None:
        """A branch stands elsewhere: have the mirror say so."""
        if self.manifest is not None and not self._is_over:
            self.manifest.note()

    def fork_cost(self) -> ForkCostSummary:
        """What the fork has cost so far; RuntimeError where there is none."""
        return costs_of(self._known(), self._judge_usd)

    def iter_pending_approvals(self) -> list[tuple[str, PendingApprovalRequest]]:
        """The branches that wait for somebody to approve something, each with what it asks."""
        return [(r.id, r.pending_approval) for r in self.branches.values() if r.pending_approval is not None]

    def diff_report(self, paths: Sequence[str] | None = None) -> BranchDiffReport:
        """What the branches changed."""
        live = self._known()
        return build_diff_report(live.fork.id, list(live.branches.values()), paths_filter=paths)

    # Running branches

    async def _first_turn(self, runtime: BranchRuntime) -> tuple[bool, str]:
        await self._turn(runtime)
        return True, runtime.thread.last_text

    async def _turn(self, runtime: BranchRuntime) -> Any:
        if runtime.overlay is None:
            await self._open_files(runtime)
        live = self._known()
        if live.is_resumed and not runtime.is_looked_into:
            runtime.is_looked_into = True
            runtime.left = await run_in_thread(find_orphans, live, runtime)
        runner = self.branch_runner or run_agent
        runtime.result = await take_turn(runtime, self.agent, runner, self.usage_limits)
        return runtime.result

    async def _open_files(self, runtime: BranchRuntime) -> None:
        live = self._known()
        await run_in_thread(open_files, runtime, live.ground, live.plan, self.parent_deps, self.materializer)
        runtime.ready.set()

    def _watch(self, live: LiveFork, runtime: BranchRuntime) -> None:
        """Have ``task`` tell how the first turn of a branch ends."""

        async def told() -> Any:
            try:
                await live.ended(runtime.attempt)
            except asyncio.CancelledError:
                await finish(asyncio.ensure_future(live.fork.cancel([runtime.attempt], "terminated")))
                raise
            finally:
                attempt = runtime.attempt
                runtime.end(state_of(attempt.state, attempt.reason), attempt.reason)
            if runtime.status.state == "done":
                return runtime.result
            raise runtime.attempt.error or asyncio.CancelledError(runtime.attempt.reason)

        runtime.run(told())

    async def run_on_branch(self, branch_id: str, user_message: str) -> asyncio.Task[Any]:
        """Say something to a branch that is done; gives the task of the turn that this begins. ValueError for a branch
        that there is not, RuntimeError for one that is not done."""
        runtime = self._find(branch_id)
        if self._is_over or runtime.status.state != "done":
            raise RuntimeError(f"branch {runtime.id} is {runtime.status.state}: only one that is done is told more")
        runtime.thread.say(user_message)
        self.save()
        return self._go_on(runtime)

    def _go_on(self, runtime: BranchRuntime) -> asyncio.Task[Any]:
        self._outcomes.clear()  # judges saw another branch than it will be
        runtime.status.state = "running"
        runtime.status.current_turn += 1
        self.note_status()
        return runtime.run(self._further_turn(runtime))

    async def _further_turn(self, runtime: BranchRuntime) -> Any:
        runtime.attempt.begin()
        try:
            result = await self._turn(runtime)
        except BudgetExceededError as error:
            runtime.end("budget_exhausted" if error.state == _BUDGETS[0] else _BUDGETS[1], str(error))
            raise
        except asyncio.CancelledError as error:
            runtime.end(state_of("cancelled", str(error)), str(error) or "terminated")
            raise
        except Exception as error:
            runtime.end("failed", f"{type(error).__name__}: {error}")
            raise
        runtime.end("done", None)
        return result

    def steer_branch(self, branch_id: str, message: str) -> None:
        """Say something to a branch while it runs; it hears it with its next request."""
        self._find(branch_id).steering.append(message)

    async def terminate_branch(self, branch_id: str, *, reason: str | None = None) -> None:
        """End a branch that runs; one that is over stays as it is. ``reason`` may be that a budget is exhausted."""
        runtime = self._find(branch_id)
        if runtime.is_running:
            await self._end(runtime, reason if reason in _BUDGETS else "terminated")

    async def _end(self, runtime: BranchRuntime, reason: str) -> None:
        live = self._known()
        if runtime.status.current_turn:
            runtime.task.cancel(reason)
        else:
            await live.fork.cancel([runtime.attempt], reason)
        await asyncio.wait([runtime.task])

    def stop_spent(self, but: BranchRuntime | None) -> None:
        """End all branches whose common budget is spent; the one that has just come to its answer may say it."""
        if self._known().purse.is_empty:
            self.stop_all(but)

    def stop_all(self, but: BranchRuntime | None = None) -> None:
        """End all branches that run, because what they may spend together is spent."""
        for runtime in self.branches.values():
            if runtime is not but and runtime.is_running:
                task = asyncio.create_task(self.terminate_branch(runtime.id, reason=self._known().purse.state))
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    # Going back in a branch

    async def branch_checkpoints(self, branch_id: str) -> list[Checkpoint]:
        """The checkpoints that were saved in a branch, the oldest first."""
        return await checkpoints_of(self._find(branch_id)).list_all()

    async def checkpoint_branch(self, branch_id: str, label: str) -> Checkpoint:
        """Keep the conversation and the files of a branch that does not run, to go back to."""
        return await mark_branch_now(self._find(branch_id), label)

    async def rewind_branch(self, branch_id: str, checkpoint: str) -> Rewound:
        """Go back to a checkpoint of a branch, by its id or its label: its files and its conversation are there again,
        and it can be told to go on. ``before`` of what comes back is the way forth again. RuntimeError for a branch
        that runs, LookupError where there is no such checkpoint; BranchError, with nothing changed, where the files
        cannot be had back."""
        back = await rewind_branch_to(self._find(branch_id), checkpoint)
        self.save()
        return back

    def capture_partial_history(self, branch_id: str, messages: Sequence[ModelMessage]) -> None:
        """Keep what a branch has said so far; that of no known branch is ignored."""
        if branch_id in self.branches:
            self.branches[branch_id].partial_history = list(messages)

    def save(self) -> None:
        """Write what was said into the ledger."""
        live = self._live
        if live is not None and not self._is_over:
            live.saved.save()

    def record_cost(self, runtime: BranchRuntime) -> None:
        """Write what a branch has cost into the ledger."""
        live = self._live
        if live is not None and not self._is_over:
            live.record_cost(runtime)

    def _known(self) -> LiveFork:
        if self._live is None:
            raise RuntimeError("there is no fork: fork first")
        return self._live

    def _find(self, name: str) -> BranchRuntime:
        """A branch by its id, or by its label."""
        found = self.branches.get(name) or next((r for r in self.branches.values() if r.spec.label == name), None)
        if found is None:
            known = ", ".join(f"{r.id} ({r.spec.label})" for r in self.branches.values()) or "none"
            raise ValueError(f"there is no branch {name!r}; there are: {known}")
        return found


class ForkDecider(BranchHost):
    """Brings the fork of an agent to one outcome. ``judge`` and ``signals`` replace who judges and what a merge goes
    by, ``test_command`` is run in each branch for that; ``merge_result`` is what came of the last fork."""

    test_command: str | None
    test_timeout_s: float
    judge: Any
    signals: Sequence[Signal] | None
    checkpoint_store: CheckpointStore | None

    def __init__(self, agent: Agent[Any, Any], parent_deps: Any, usage_limits: UsageLimits | None) -> None:
        super().__init__(agent, parent_deps, usage_limits)
        self.merge_result: MergeResult | None = None
        self._open = AsyncExitStack()
        self._lock = asyncio.Lock()

    async def merge_or_select(self, action: str, *, prefer: Mapping[str, str] | None = None) -> MergeResult:
        """Resolve the fork: ``pick:<id>`` keeps one branch, ``combine:<id>,<id>`` the work of several, ``auto`` that of
        the branch a judge chooses, ``abort`` none. A branch that still runs is waited for.

        In a combination ``prefer`` says by path whose version it is where branches clash. Raises ValueError for what is
        no action or no branch, RuntimeError where there is nothing to resolve or nothing to merge.
        """
        kind, _, names = action.partition(":")
        if self._live is None or self._is_over:
            raise RuntimeError("there is no fork to resolve" if self._live is None else "the fork is resolved already")
        if kind == "abort":
            history = self._live.parent_history()
            return MergeResult(self._live.fork.id, "", await self.abort_fork(), history)
        if kind == "auto":
            outcome = await self.resolve(_as_auto(self._live.plan.strategy))
            if outcome.merge_result is None:
                raise RuntimeError(_unsure(outcome))
            return outcome.merge_result
        if kind not in ("pick", "combine") or not names:
            raise ValueError(f"{action!r} is no action: say pick:<id>, combine:<id>,<id>, auto or abort")
        chosen = [self._find(name.strip()) for name in names.split(",")]
        return await self._merge(chosen, kind, {}, prefer or {})

    async def _merge(
        self, chosen: Sequence[BranchRuntime], how: str, detail: Mapping[str, Any], prefer: Mapping[str, str]
    ) -> MergeResult:
        for runtime in chosen:
            if runtime.is_running:
                await asyncio.wait([runtime.task])
        async with self._lock:
            live = self._known()
            if self._is_over:
                raise RuntimeError("the fork is resolved already")
            return await finish(asyncio.ensure_future(self._carry_out(live, chosen, how, detail, prefer)))

    async def _carry_out(
        self,
        live: LiveFork,
        chosen: Sequence[BranchRuntime],
        how: str,
        detail: Mapping[str, Any],
        prefer: Mapping[str, str],
    ) -> MergeResult:
        await self._must_be_undecided(live)
        check_mergeable(chosen, together=how == "combine")
        for runtime in live.branches.values():
            if runtime.is_running:
                await self._end(runtime, "another branch won")
        if how == "combine":
            favourite = [o.verdict.winner_branch_id for o in self._outcomes.values() if o.verdict is not None]
            result = await combine_branches(live, chosen, prefer, favourite)
        else:
            result = await commit_branch(live, chosen[0], how, detail)
        await self._close()
        await self._anchor(live, f"post-fork:{live.fork.id}", result.history_after_merge)
        self.merge_result = result
        return result

    async def _must_be_undecided(self, live: LiveFork) -> None:
        """Let go of a fork that somebody else has decided, such as from the command line, and say so."""
        record = live.fork.ledger.fork(live.fork.id)
        if record.is_over:
            await live.fork.abort("it was decided elsewhere")
            await self._close()
            whom = f" for {record.winner}" if record.winner else ""
            raise ForkResolvedError(f"fork {record.id} was {record.state}{whom} by somebody else", fork=record.id)

    async def override(self, branch: str) -> MergeResult:
        """Decide otherwise after a judge or a vote did: what the winner put into the files is undone, and this branch
        is merged instead. The result has the conversation to go on with; the ledger has that the judge was overridden.

        The losers are there for that until the next fork, ``aclose``, or the end of the process. CommitError, with
        nothing changed, where the files have been changed since; RuntimeError where a person decided, or where the
        fork was made inside a branch; ValueError where there is no such branch.
        """
        async with self._lock:
            live, runtime = self._known(), self._find(branch)
            if not self._is_over:
                raise RuntimeError(f"fork {self.fork_id} is not resolved: merge or abort it first")
            return await finish(asyncio.ensure_future(self._override(live, runtime)))

    async def _override(self, live: LiveFork, runtime: BranchRuntime) -> MergeResult:
        result = await override_winner(live, runtime)
        await self._anchor(live, f"post-fork:{live.fork.id}", result.history_after_merge)
        self.merge_result = result
        return result

    async def abort_fork(self) -> list[str]:
        """Drop the fork with all its branches; gives their ids. RuntimeError where there is none to drop."""
        live = self._known()
        if not self._is_over:
            await self.aclose()
        return list(live.branches)

    async def aclose(self) -> None:
        """Drop the fork, if it is not resolved, and leave nothing of it behind. To be called as often as one likes."""
        if self._live is not None and not self._is_over:
            await finish(asyncio.ensure_future(self._drop(self._live)))
        async with self._lock:
            await self._let_losers_go()

    async def _let_losers_go(self) -> None:
        if self._live is not None and self._live.losers is not None:
            losers, self._live.losers = self._live.losers, None
            await finish(run_in_thread(losers.let_go))

    async def leave(self) -> ForkHandle | None:
        """Let go of the fork undecided, for ``resume`` to go on with, here or in another process; gives what names it.
        Branches that run are ended, and are running again when it is resumed. None where nothing is undecided, or where
        there is nothing that could be resumed: files in memory are dropped."""
        if self._live is None or self._is_over:
            return None
        if self.is_in_memory:
            await self.aclose()
            return None
        return await finish(asyncio.ensure_future(self._leave(self._live)))

    async def _leave(self, live: LiveFork) -> ForkHandle | None:
        async with self._lock:
            if self._is_over:
                return None
            handle = live.handle
            for runtime in live.branches.values():
                if runtime.is_running and runtime.status.current_turn:
                    runtime.task.cancel("the fork was left")
            await live.fork.detach()
            await asyncio.wait([runtime.task for runtime in live.branches.values()])
            live.saved.save()
            await self._close()
            self._live = None
            return handle

    async def _drop(self, live: LiveFork) -> None:
        async with self._lock:
            if not self._is_over:
                for runtime in live.branches.values():
                    if runtime.is_running:
                        await self._end(runtime, "the fork was aborted")
                await live.fork.abort("the fork was aborted")
                await self._close()

    async def _close(self) -> None:
        self._is_over = True
        live = self._known()
        for runtime in live.branches.values():
            runtime.close()
        if self.manifest is not None:
            await self.manifest.close()
        if self.materializer is not None:
            await run_in_thread(self.materializer.cleanup)
        if live.is_resumed:
            for name in live.branches:
                await run_in_thread(give_up_inside, live.fork.ledger, live.ground.parent.workspace, name)
        await self._open.aclose()

    async def resolve(self, strategy: MergeStrategy | None = None) -> ResolveOutcome:
        """Let judges decide, as the strategy says; branches that still run are waited for.

        ``manual`` leaves it to the caller. ``auto`` and ``vote`` merge what was chosen; ``auto`` only where that is
        sure enough. ``auto_with_fallback`` says whether it would be, and leaves the merge to the caller. What judges
        said is kept until a branch is told more: to ask again with the same strategy costs nothing.
        """
        live = self._known()
        if self._is_over:
            raise RuntimeError("the fork is resolved already")
        strategy = strategy or live.plan.strategy
        if strategy.kind == "manual":
            return ResolveOutcome(False, False, None, None, 0.0, None)
        await asyncio.wait([runtime.task for runtime in live.branches.values()])
        key = strategy_key(strategy)
        if key not in self._outcomes:
            outcome = await judge_fork(self, live, strategy)
            self._outcomes[key] = outcome
            if outcome.judge_cost_usd is not None:
                self._judge_usd = (self._judge_usd or 0.0) + outcome.judge_cost_usd
        outcome = self._outcomes[key]
        if outcome.verdict is None or strategy.kind == "auto_with_fallback":
            return outcome
        if strategy.kind == "auto" and not outcome.auto_eligible:
            return outcome
        live.decide_conflicts(strategy.conflict_policy)
        winner = self._find(outcome.verdict.winner_branch_id)
        result = await self._merge([winner], strategy.kind, {"confidence": outcome.merge_confidence}, {})
        return replace(outcome, committed=True, auto_eligible=False, merge_result=result)

    async def _anchor(self, live: LiveFork, label: str, messages: list[ModelMessage], id_: str | None = None) -> None:
        """Save a checkpoint to come back to."""
        if self.checkpoint_store is not None:
            files = await run_in_thread(mark_files, live.ground.backend)
            await self.checkpoint_store.save(Checkpoint(label, messages, files=files, id=id_ or secrets.token_hex(6)))
        elif live.ground.is_in_memory and id_ is not None:
            warnings.warn(
                "there is no checkpoint store: what is merged from this fork cannot be taken back", ForkwiseWarning, 4
            )


def _as_auto(strategy: MergeStrategy) -> MergeStrategy:
    return strategy if strategy.kind == "vote" else replace(strategy, kind="auto")


def _unsure(outcome: ResolveOutcome) -> str:
    if outcome.verdict is None:
        return "no branch is worth merging: look at them, pick one or abort"
    return (
        f"not merged: the judge would pick {outcome.verdict.winner_branch_id} ({outcome.verdict.reasoning}), with a "
        f"confidence of {outcome.merge_confidence or 0.0:.2f}, which is too little. Pick one yourself, or abort"
    )


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
            await abort_orphans(self.inside)
        async with AsyncExitStack() as stack:
            ground = await run_in_thread(source_for, self.workspace, self.parent_deps)
            stack.push_async_callback(run_in_thread, ground.close)
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
        self.materializer = await run_in_thread(
            ForkMaterializer, root / live.fork.id, live.fork.id, self.keep_artifacts
        )
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
            return await resume_fork(self, fork_id)

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
        handle = await resume_fork(self, fork_id)
        self.inside.left = left
        await abort_orphans(self.inside)  # which is what is not adopted by now
        return handle
