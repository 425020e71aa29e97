"""`ForkCoordinator`: forks an agent, one fork at a time, and resolves each fork into one outcome.

Its parts: `LiveFork` is the current fork and has its `ForkBudget`, `BranchTurns` runs the branches, `Verdicts` has what
judges said. The coordinator ties them together and serializes everything that opens, resolves or closes a fork.
"""

from __future__ import annotations

import asyncio
import secrets
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import UsageLimits

from forkwise.concurrency import finish, run_in_thread
from forkwise.errors import ForkDepthLimitError, ForkResolvedError, ForkwiseWarning
from forkwise.live.branch_runtime import BranchRuntime, Thread, current_branch
from forkwise.live.decision import JudgeSettings, Verdicts, build_tests, find_goal
from forkwise.live.diff.build import build_diff_report
from forkwise.live.diff.mirror import FORKS_ROOT, ForkMaterializer, ManifestWriter
from forkwise.live.fork_plan import ForkPlan, check_specs, plan_fork, project_fork_cost
from forkwise.live.judging.judge import is_supported
from forkwise.live.judging.verdict import JudgeVerdict, ResolveOutcome
from forkwise.live.live_fork import LiveFork, WorkspaceLike, find_source, reopen_fork, start_fork
from forkwise.live.merge import check_mergeable, combine_branches, commit_branch, override_winner
from forkwise.live.resume import (
    ForkStateStore,
    InMemoryForkStateStore,
    LedgerForkStore,
    abort_forks_inside,
    abort_orphans,
    load_unfinished,
)
from forkwise.live.turn import (
    BUDGET_STATES,
    BranchRunner,
    BranchTurns,
    checkpoint_branch,
    checkpoint_store_of,
    rewind_branch,
)
from forkwise.live.values import (
    BranchIsolation,
    BranchSpec,
    BranchStatus,
    Budget,
    ForkCostSummary,
    ForkHandle,
    MergeResult,
    MergeStrategy,
    PendingApprovalRequest,
)

if TYPE_CHECKING:
    from forkwise.live.budget import BudgetTracker, CostProjection
    from forkwise.live.checkpoints import Checkpoint, CheckpointStore, Rewound
    from forkwise.live.diff.diff_report import BranchDiffReport
    from forkwise.live.judging.confidence import Signal

__all__ = ["ForkCoordinator"]


class ForkCoordinator:
    """Forks an agent into branches, and resolves the fork into one outcome.

    A fork is a `Fork` in the ledger of ``workspace``; its branches are the attempts of that fork and have their ids.
    ``workspace`` is the agent's directory. Without it, and without a directory in ``parent_deps``, the files are in
    memory. ``judge`` replaces the models that a strategy names, ``signals`` the default signals of the merge
    confidence. ``test_command`` runs in each branch before it is judged, and again in a branch that passed if the
    directory changed before its merge, unless ``retest=False``. ``usage_limits`` apply to each branch in addition to
    its budget.

    A merge that changes what the user's machine will run, such as git hooks, raises ExecutableConfigError and leaves
    the fork open, unless ``allow_executable_config`` is set, here, in the call, or for the workspace.

    The attribute ``model`` is the model of branches whose specs name none; None is the agent's own. ``branch_runner``
    replaces ``Agent.run``. ``inside`` is the branch that the agent itself runs in, ``depth`` the number of branches
    around the agent. ``merge_result`` is the result of the last merge, ``last_inspection`` the last answer of the tool
    ``inspect_branches``.
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
        workspace: WorkspaceLike | None = None,
        usage_limits: UsageLimits | None = None,
        judge: Any = None,
        signals: Sequence[Signal] | None = None,
        retest: bool = True,
        allow_executable_config: bool = False,
    ) -> None:
        self.agent = agent
        self.parent_deps = parent_deps
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
        self.usage_limits = usage_limits
        self.judge = judge
        self.signals = signals
        self.retest = retest
        self.allow_executable_config = allow_executable_config
        self.model: Any = None
        self.branch_runner: BranchRunner | None = None
        self.capability: Any = None
        self.last_inspection = ""
        self.materializer: ForkMaterializer | None = None
        self.manifest: ManifestWriter | None = None
        self.inside = current_branch()
        self.depth: int = getattr(parent_deps, "fork_depth", 0) if self.inside is None else self.inside.depth
        self.merge_result: MergeResult | None = None
        self._live: LiveFork | None = None
        self._turns = BranchTurns(self)
        self._verdicts = Verdicts()
        self._lock = asyncio.Lock()

    # The current fork

    @property
    def branches(self) -> dict[str, BranchRuntime]:
        """The branches of the last fork, by id."""
        return self._live.branches if self._live is not None else {}

    @property
    def fork_id(self) -> str | None:
        """The id of the last fork; None before the first."""
        return None if self._live is None else self._live.fork.id

    @property
    def handle(self) -> ForkHandle | None:
        """The handle of the last fork; None before the first."""
        return None if self._live is None else self._live.handle

    @property
    def is_resolved(self) -> bool:
        """Whether no fork is open: there was none, or it was merged or aborted."""
        return self._live is None or self._live.is_over

    @property
    def is_in_memory(self) -> bool:
        """Whether the files of the last fork are in memory."""
        return self._live is not None and self._live.source.is_in_memory

    @property
    def last_verdict(self) -> JudgeVerdict | None:
        """The last verdict of judges on the fork; None if there is none."""
        return self._verdicts.last

    def inspect_branches(self) -> list[BranchStatus]:
        """Return copies of the status of each branch."""
        return [replace(runtime.status) for runtime in self.branches.values()]

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until one of the running branches ends, for ``seconds`` at most."""
        tasks = [runtime.task for runtime in self.branches.values() if runtime.is_running]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def iter_pending_approvals(self) -> list[tuple[str, PendingApprovalRequest]]:
        """Return the id and the request of each branch that waits for an approval."""
        return [(r.id, r.pending_approval) for r in self.branches.values() if r.pending_approval is not None]

    def diff_report(self, paths: Sequence[str] | None = None) -> BranchDiffReport:
        """Compare the changes of the branches, of all files or of ``paths``. Raises RuntimeError without a fork."""
        live = self._require_fork()
        return build_diff_report(live.fork.id, list(live.branches.values()), paths_filter=paths)

    def _require_fork(self) -> LiveFork:
        if self._live is None:
            raise RuntimeError("there is no fork: call fork() first")
        return self._live

    def _require_open_fork(self) -> LiveFork:
        live = self._require_fork()
        if live.is_over:
            raise RuntimeError(f"fork {live.fork.id} is resolved already")
        return live

    def _require_no_open_fork(self) -> None:
        if not self.is_resolved:
            raise RuntimeError(f"fork {self.fork_id} is not resolved: merge or abort it first")

    def _find_branch(self, name: str) -> BranchRuntime:
        """Find a branch by its id or its label."""
        found = self.branches.get(name) or next((r for r in self.branches.values() if r.spec.label == name), None)
        if found is None:
            known = ", ".join(f"{r.id} ({r.spec.label})" for r in self.branches.values()) or "none"
            raise ValueError(f"there is no branch {name!r}; the branches are: {known}")
        return found

    # Costs

    def project_cost(
        self, specs: Sequence[BranchSpec], parent_history: Sequence[ModelMessage], *, requests: int = 5
    ) -> CostProjection:
        """Project the cost of a fork whose branches make ``requests`` requests each, as far as prices are known."""
        return project_fork_cost(self.model or self.agent.model, specs, parent_history, requests)

    def fork_cost(self) -> ForkCostSummary:
        """Return what the fork has cost so far. Raises RuntimeError without a fork."""
        live = self._require_fork()
        return live.budget.summarize(live.fork.id, live.branches, self._verdicts.cost_usd)

    def record_cost(self, runtime: BranchRuntime) -> None:
        """Write what a branch has cost into the ledger."""
        if not self.is_resolved:
            runtime.live_fork.budget.record(runtime.id, runtime.cost_tracker)

    def stop_if_spent(self, except_for: BranchRuntime | None) -> None:
        """Stop the branches if their common budget is spent, except for one that has just given its answer."""
        if self._require_fork().budget.is_spent:
            self.stop_all(except_for)

    def stop_all(self, except_for: BranchRuntime | None = None) -> None:
        """Stop all branches because their common budget is spent."""
        if self._live is not None:
            others = [runtime for runtime in self._live.branches.values() if runtime is not except_for]
            self._turns.stop_soon(others, self._live.budget.tracker.state)

    # Start and resume

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
        """Start a branch for each spec. A branch continues ``parent_history`` with the spec's steer.

        ``aggregate_budget`` limits what all branches spend together, ``aggregate_budget_usd`` its dollars. With
        ``share_unspent``, what finished branches leave of their budgets flows to those that still run. Raises
        ValueError if a spec is invalid or the budget does not pay for the first requests, ForkBranchLimitError,
        ForkDepthLimitError, and RuntimeError if the last fork is not resolved.
        """
        if self.depth >= self.max_depth:
            raise ForkDepthLimitError(
                f"this agent runs {self.depth} forks deep, and the limit is {self.max_depth}: raise max_depth to fork",
                depth=self.depth,
                limit=self.max_depth,
            )
        check_specs(specs, self.max_branches)
        async with self._lock:
            self._require_no_open_fork()
            usd = self.aggregate_budget_usd if aggregate_budget_usd is None else aggregate_budget_usd
            plan = plan_fork(specs, isolation, strategy, aggregate_budget or Budget(), usd, share_unspent)
            if plan.budget.usd is not None:
                plan.check_affordable(self.project_cost(plan.specs, parent_history, requests=1))
            return await self._start(plan, parent_history)

    async def _start(self, plan: ForkPlan, history: Sequence[ModelMessage]) -> ForkHandle:
        await self._reset()
        orphans = None if self.inside is None else self.inside.orphans
        if orphans is not None and (same := orphans.same_as(plan)) is not None:
            return await self._resume_orphan(same)
        if self.inside is not None:
            await abort_orphans(self.inside)
        async with AsyncExitStack() as stack:
            source = await find_source(self.workspace, self.parent_deps)
            checkpoint = None if self.checkpoint_store is None else secrets.token_hex(6)
            plan = plan.with_names(checkpoint, find_goal(history))
            live, threads = await start_fork(source, plan, history, self._find_parent_tracker(), stack)
            if self.checkpoint_store is None:
                live.warn_without_checkpoints()
            await live.save_anchor(self.checkpoint_store, f"fork:{live.fork.id}", list(history), plan.checkpoint)
            return await self._adopt(live, threads, stack)

    async def resume(self, fork_id: str | None = None) -> ForkHandle:
        """Resume a fork that a killed process left, by default the last one.

        Branches that were done stay as they were; the others continue after the last turn they completed. A fork that
        was resolved but not committed is committed, see ``merge_result``. Raises ForkNotFoundError if there is none.
        """
        async with self._lock:
            self._require_no_open_fork()
            await self._reset()
            return await self._resume(fork_id)

    async def _resume(self, fork_id: str | None) -> ForkHandle:
        async with AsyncExitStack() as stack:
            source = await find_source(self.workspace, self.parent_deps)
            inside = None if self.inside is None else self.inside.id
            allow = self._allow_executable_config(None)
            record, handle, result = await run_in_thread(load_unfinished, source, fork_id, inside, allow)
            if result is not None:
                self.merge_result = result
                return handle
            plan = ForkPlan.from_json(record.spec, record.id)
            live, threads = await reopen_fork(source, plan, record.id, self._find_parent_tracker(), stack)
            return await self._adopt(live, threads, stack)

    def _find_parent_tracker(self) -> BudgetTracker | None:
        """Return the budget of the branch that the agent runs in, which its forks spend as well."""
        return None if self.inside is None else self.inside.cost_tracker

    async def resume_left_inside(self) -> None:
        """Resume the fork that a killed process left open inside the branch that the agent runs in, if any."""
        orphans = None if self.inside is None else self.inside.orphans
        if orphans is not None and orphans.last is not None:
            async with self._lock:
                await self._reset()
                await self._resume_orphan(orphans.last)

    async def _resume_orphan(self, fork_id: str) -> ForkHandle:
        """Resume one of the orphaned forks of the current branch, and abort the others."""
        assert self.inside is not None
        orphans, self.inside.orphans = self.inside.orphans, None
        handle = await self._resume(fork_id)
        self.inside.orphans = orphans
        await abort_orphans(self.inside)  # the resumed fork is owned by this process now, so it is not aborted
        return handle

    async def _adopt(self, live: LiveFork, threads: Sequence[Thread], stack: AsyncExitStack) -> ForkHandle:
        """Make an opened fork the current one, and start its branches. ``stack`` is closed with the fork.

        If this fails or is cancelled, a new fork is aborted, and a resumed one stays as the killed process left it.
        """
        self._live = live
        live.resources = stack.pop_all()
        try:
            return await self._run_adopted(live, threads)
        except BaseException as error:
            reason = str(error) or "it was interrupted while it started"
            work = self._detach_locked(live) if live.is_resumed else self._abort_locked(live, reason)
            await finish(asyncio.ensure_future(work))
            raise

    async def _run_adopted(self, live: LiveFork, threads: Sequence[Thread]) -> ForkHandle:
        live.hold()
        await self._open_mirror(live)
        live.mirror = self.materializer
        if self.inside is not None:
            self.inside.inner.append(self)
        for number, (spec, thread) in enumerate(zip(live.plan.specs, threads, strict=True)):
            runtime = live.add(spec, number, thread, self._turns.run_first, self)
            if live.source.is_in_memory or runtime.attempt.branch is not None:
                await self._turns.open_files(runtime)
            if runtime.status.state == "done" and not thread.is_answered:
                self._turns.start_next(runtime)  # its process was killed after run_on_branch
            else:
                self._turns.start_first(runtime)
        if live.plan.budget.seconds is not None:
            timer = asyncio.get_running_loop().call_later(live.plan.budget.seconds, self.stop_all)
            live.resources.callback(timer.cancel)
        self.update_manifest()
        await self._turns.wait_for_files([r for r in live.branches.values() if not r.ready.is_set()])
        assert self.store is not None
        await self.store.save(live.handle)
        return live.handle

    async def _open_mirror(self, live: LiveFork) -> None:
        root = self.materializer_root or (
            FORKS_ROOT if live.source.is_in_memory else live.source.parent.workspace.state / "mirrors"
        )
        directory, keep = root / live.fork.id, self.keep_artifacts
        self.materializer = self.manifest = None
        try:
            if live.source.is_in_memory:  # three small writes take less time than the start of a thread
                self.materializer = ForkMaterializer(directory, live.fork.id, keep)
            else:
                self.materializer = await run_in_thread(ForkMaterializer, directory, live.fork.id, keep)
            self.materializer.set_owner()
        except OSError as error:  # for example, the current directory is read-only: a fork works without a mirror
            warnings.warn(f"the branches are not mirrored: {error}", ForkwiseWarning, stacklevel=4)
        else:
            statuses = live.branches
            self.manifest = ManifestWriter(self.materializer, lambda: [r.status for r in statuses.values()])
        if self.store is None:
            is_on_disk = not live.source.is_in_memory
            self.store = LedgerForkStore(live.source.parent.workspace) if is_on_disk else InMemoryForkStateStore()

    def update_manifest(self) -> None:
        """Update the mirror's manifest with the current status of the branches."""
        if self.manifest is not None and not self.is_resolved:
            self.manifest.schedule()

    async def _reset(self) -> None:
        """Drop what is left of the last fork."""
        await self._discard_rejected()
        self._live = None
        self._verdicts = Verdicts()
        self.merge_result = None

    # Run branches

    async def run_on_branch(self, branch_id: str, user_message: str) -> asyncio.Task[Any]:
        """Send a message to a branch that is done. Return the task of the turn that answers it.

        Raises ValueError if there is no such branch, RuntimeError if it is not done.
        """
        runtime = self._find_branch(branch_id)
        if self.is_resolved or runtime.status.state != "done":
            raise RuntimeError(f"branch {runtime.id} is {runtime.status.state}: only a done branch can continue")
        runtime.thread.say(user_message)
        self.save()
        self._verdicts.invalidate()
        return self._turns.start_next(runtime)

    def steer_branch(self, branch_id: str, message: str) -> None:
        """Send a message to a running branch, with its next request."""
        self._find_branch(branch_id).steering.append(message)

    async def terminate_branch(self, branch_id: str, *, reason: str | None = None) -> None:
        """Stop a running branch; one that has ended stays as it is. ``reason`` may be a state of a spent budget."""
        runtime = self._find_branch(branch_id)
        await self._turns.stop(runtime, reason if reason in BUDGET_STATES else "terminated")

    async def branch_checkpoints(self, branch_id: str) -> list[Checkpoint]:
        """Return the checkpoints of a branch, the oldest first."""
        return await checkpoint_store_of(self._find_branch(branch_id)).list_all()

    async def checkpoint_branch(self, branch_id: str, label: str) -> Checkpoint:
        """Save a checkpoint of the conversation and the files of a branch that does not run."""
        return await checkpoint_branch(self._find_branch(branch_id), label)

    async def rewind_branch(self, branch_id: str, checkpoint: str) -> Rewound:
        """Rewind a branch and its files to a checkpoint, by id or label; it is done then, and can run again.

        ``before`` of the result is a checkpoint of the state before the rewind. Raises RuntimeError if the branch runs,
        LookupError if there is no such checkpoint, and BranchError, with nothing changed, if the files cannot be
        restored.
        """
        rewound = await rewind_branch(self._find_branch(branch_id), checkpoint)
        self.save()
        return rewound

    def capture_partial_history(self, branch_id: str, messages: Sequence[ModelMessage]) -> None:
        """Keep the messages of a branch so far; an unknown branch is ignored."""
        if branch_id in self.branches:
            self.branches[branch_id].partial_history = list(messages)

    def save(self) -> None:
        """Save the conversations of the branches in the ledger."""
        if self._live is not None and not self._live.is_over:
            self._live.save()

    # Resolve

    async def merge_or_select(
        self,
        action: str,
        *,
        prefer: Mapping[str, str] | None = None,
        allow_executable_config: bool | None = None,
    ) -> MergeResult:
        """Resolve the fork.

        ``pick:<id>`` merges one branch, ``combine:<id>,<id>`` several, ``auto`` the choice of a judge, ``abort`` none.
        A chosen branch that still runs is waited for. In a combination, ``prefer`` maps a path to the branch whose
        version wins a conflict. Raises ValueError for an unknown action or branch, RuntimeError if there is no open
        fork or nothing to merge, RetestError if branches that passed their tests fail them in a combination or after a
        change of the directory, and ExecutableConfigError, see the class.
        """
        kind, _, names = action.partition(":")
        live = self._require_open_fork()
        if kind == "abort":
            history = live.parent_history()
            return MergeResult(live.fork.id, "", await self.abort_fork(), history)
        if kind == "auto":
            outcome = await self._resolve_by_judge(live.plan.strategy, allow_executable_config)
            if outcome.merge_result is None:
                raise RuntimeError(_explain_unmerged(outcome))
            return outcome.merge_result
        if kind not in ("pick", "combine") or not names:
            raise ValueError(f"{action!r} is not an action: use pick:<id>, combine:<id>,<id>, auto or abort")
        chosen = [self._find_branch(name.strip()) for name in names.split(",")]
        return await self._merge(chosen, kind, prefer=prefer or {}, allow=allow_executable_config)

    async def _resolve_by_judge(self, strategy: MergeStrategy, allow: bool | None) -> ResolveOutcome:
        """Merge the choice of a judge; if the strategy may fall back to a manual pick, only with enough confidence."""
        if strategy.kind == "auto_with_fallback":
            outcome = await self.resolve(strategy)
            if not outcome.auto_eligible:
                return outcome
        decided = replace(strategy, kind="vote" if strategy.kind == "vote" else "auto")
        return await self.resolve(decided, allow_executable_config=allow)

    async def resolve(
        self, strategy: MergeStrategy | None = None, *, allow_executable_config: bool | None = None
    ) -> ResolveOutcome:
        """Have judges decide as a strategy says; branches that still run are waited for.

        ``manual`` asks no judge. ``auto`` and ``vote`` merge the judges' choice at once, whatever the confidence.
        ``auto_with_fallback`` returns whether the confidence is high enough, and leaves the merge to the caller. A
        verdict is kept until a branch runs again: to resolve again with the same strategy costs nothing. If no judge
        can be asked, for example because a key is missing, the outcome has no verdict and the caller picks;
        ``judge_failures`` says why. Raises ExecutableConfigError, see the class; the verdict is kept then as well.
        """
        live = self._require_open_fork()
        strategy = strategy or live.plan.strategy
        if strategy.kind == "manual":
            return ResolveOutcome(False, False, None, None, 0.0, None)
        await asyncio.wait([runtime.task for runtime in live.branches.values()])
        settings = JudgeSettings(self.judge, self.signals, self.test_command, self.test_timeout_s)
        outcome = await self._verdicts.judge(live, strategy, settings)
        if outcome.verdict is None or strategy.kind == "auto_with_fallback" or not is_supported(outcome.verdict):
            return outcome
        live.set_conflict_policy(strategy.conflict_policy)
        winner = self._find_branch(outcome.verdict.winner_branch_id)
        detail = {"confidence": outcome.merge_confidence}
        result = await self._merge([winner], strategy.kind, detail, allow=allow_executable_config)
        return replace(outcome, committed=True, auto_eligible=False, merge_result=result)

    async def _merge(
        self,
        chosen: Sequence[BranchRuntime],
        kind: str,
        detail: Mapping[str, Any] | None = None,
        prefer: Mapping[str, str] | None = None,
        *,
        allow: bool | None,
    ) -> MergeResult:
        for runtime in chosen:
            if runtime.is_running:
                await asyncio.wait([runtime.task])
        async with self._lock:
            live = self._require_open_fork()
            live.set_executable_config(self._allow_executable_config(allow))
            merge = self._merge_locked(live, chosen, kind, detail or {}, prefer or {})
            return await finish(asyncio.ensure_future(merge))

    async def _merge_locked(
        self,
        live: LiveFork,
        chosen: Sequence[BranchRuntime],
        kind: str,
        detail: Mapping[str, Any],
        prefer: Mapping[str, str],
    ) -> MergeResult:
        await self._check_unresolved(live)
        check_mergeable(chosen, together=kind == "combine")
        if kind != "combine":
            await live.check_executables(chosen[0])
        for runtime in live.branches.values():
            await self._turns.stop(runtime, "another branch won")
        tests = build_tests(self.test_command, self.test_timeout_s) if self.retest else None
        if tests is not None and not live.source.is_in_memory:
            live.set_retest(chosen, tests)
        if kind == "combine":
            result = await combine_branches(live, chosen, prefer, self._verdicts.winners)
        else:
            result = await commit_branch(live, chosen[0], kind, detail)
        await self._close(live)
        return await self._keep_result(live, result)

    def _allow_executable_config(self, allow: bool | None) -> bool | None:
        """Return the argument of a commit: that of the call, else this object's; None leaves it to the workspace."""
        return (self.allow_executable_config or None) if allow is None else allow

    async def _check_unresolved(self, live: LiveFork) -> None:
        """Close the fork and raise ForkResolvedError if another process, such as the command line, resolved it."""
        record = live.fork.ledger.fork(live.fork.id)
        if record.is_over:
            await live.fork.abort("it was decided elsewhere")
            await self._close(live)
            winner = f" for {record.winner}" if record.winner else ""
            raise ForkResolvedError(f"fork {record.id} was {record.state}{winner} by another process", fork=record.id)

    async def _keep_result(self, live: LiveFork, result: MergeResult) -> MergeResult:
        await live.save_anchor(self.checkpoint_store, f"post-fork:{live.fork.id}", result.history_after_merge)
        self.merge_result = result
        return result

    async def override(self, branch: str, *, allow_executable_config: bool | None = None) -> MergeResult:
        """Replace the winner of a judge or a vote by another branch.

        The winner's changes are undone and the other branch is merged. ``history_after_merge`` of the result is the
        conversation to continue with; the ledger records that the judge was overridden. Losing branches are shelved for
        this until the next fork, ``aclose``, or the end of the process. Raises CommitError, with nothing changed, if
        the files were changed since; RetestError if the other branch passed its tests, the directory changed since,
        and it fails them now; ExecutableConfigError, see the class; RuntimeError if no judge decided, or if the fork
        was started inside a branch; ValueError if there is no such branch.
        """
        async with self._lock:
            live, runtime = self._require_fork(), self._find_branch(branch)
            self._require_no_open_fork()
            allow = self._allow_executable_config(allow_executable_config)
            return await finish(asyncio.ensure_future(self._override_locked(live, runtime, allow)))

    async def _override_locked(self, live: LiveFork, runtime: BranchRuntime, allow: bool | None) -> MergeResult:
        tests = build_tests(self.test_command, self.test_timeout_s) if self.retest else None
        result = await override_winner(live, runtime, tests=tests, allow_executable_config=allow)
        return await self._keep_result(live, result)

    # Abort, detach and close

    async def abort_fork(self) -> list[str]:
        """Drop the fork with all its branches. Return their ids. Raises RuntimeError without a fork."""
        live = self._require_fork()
        if not live.is_over:
            await self.aclose()
        return list(live.branches)

    async def aclose(self) -> None:
        """Drop the fork if it is not resolved, and release everything. May be called more than once."""
        if self._live is not None and not self._live.is_over:
            await finish(asyncio.ensure_future(self._abort(self._live)))
        async with self._lock:
            await self._discard_rejected()

    async def _abort(self, live: LiveFork) -> None:
        async with self._lock:
            if not live.is_over:
                await self._abort_locked(live, "the fork was aborted")

    async def _abort_locked(self, live: LiveFork, reason: str) -> None:
        for runtime in live.branches.values():
            await self._turns.stop(runtime, reason)
        await live.fork.abort(reason)
        await self._close(live)

    async def leave(self) -> ForkHandle | None:
        """Detach from the fork without resolving it, and return its handle for ``resume``, here or in another process.

        Running branches are stopped, and run again once the fork is resumed. Returns None if no fork is open; a fork in
        memory cannot be resumed and is dropped.
        """
        if self._live is None or self._live.is_over:
            return None
        if self.is_in_memory:
            await self.aclose()
            return None
        return await finish(asyncio.ensure_future(self._detach(self._live)))

    async def _detach(self, live: LiveFork) -> ForkHandle | None:
        async with self._lock:
            if live.is_over:
                return None
            handle = live.handle
            await self._detach_locked(live)
            self._live = None
            return handle

    async def _detach_locked(self, live: LiveFork) -> None:
        for runtime in live.branches.values():
            if runtime.is_running and runtime.status.current_turn:
                runtime.task.cancel("the fork was left")
        await live.fork.detach()
        tasks = [runtime.task for runtime in live.branches.values() if hasattr(runtime, "task")]
        if tasks:
            await asyncio.wait(tasks)
        live.save()
        await self._close(live)

    async def _close(self, live: LiveFork) -> None:
        live.is_over = True
        for runtime in live.branches.values():
            runtime.close()
        if self.manifest is not None:
            await self.manifest.close()
        if self.materializer is not None:
            await run_in_thread(self.materializer.cleanup)
        live.release()
        if live.is_resumed:
            for branch_id in live.branches:
                await run_in_thread(abort_forks_inside, live.fork.ledger, live.source.parent.workspace, branch_id)
        await live.resources.aclose()

    async def _discard_rejected(self) -> None:
        if self._live is not None and self._live.rejected is not None:
            rejected, self._live.rejected = self._live.rejected, None
            await finish(run_in_thread(rejected.discard))


def _explain_unmerged(outcome: ResolveOutcome) -> str:
    if outcome.judge_failures and outcome.verdict is None:
        return f"nothing was merged: {'; '.join(outcome.judge_failures)}. Pick a branch yourself, or abort"
    if outcome.verdict is None:
        return "nothing was merged: no branch can be merged. Inspect the branches, pick one or abort"
    return (
        f"nothing was merged: the judge would pick {outcome.verdict.winner_branch_id} ({outcome.verdict.reasoning}), "
        f"but the confidence of {outcome.merge_confidence or 0.0:.2f} is too low. Pick a branch yourself, or abort"
    )
