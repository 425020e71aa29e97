"""BranchHost: the branches of one fork while they are there: run, shown, spoken to, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import UsageLimits

from forkwise.agents.live.branch_marks import checkpoints_of, mark_branch_now, rewind_branch_to
from forkwise.agents.live.branch_turn import BranchRunner, open_files, run_agent, take_turn
from forkwise.agents.live.checkpoint import Checkpoint
from forkwise.agents.live.cost import ForkCostSummary
from forkwise.agents.live.diff_report import BranchDiffReport
from forkwise.agents.live.diffing import build_diff_report
from forkwise.agents.live.left_inside import look_inside
from forkwise.agents.live.live_fork import LiveFork, state_of
from forkwise.agents.live.manifest import Manifest
from forkwise.agents.live.materializer import ForkMaterializer
from forkwise.agents.live.rewinding import Rewound
from forkwise.agents.live.runtime import BranchRuntime, current_branch
from forkwise.agents.live.settling import costs_of
from forkwise.agents.live.status import BranchState, BranchStatus, ForkHandle, PendingApprovalRequest
from forkwise.agents.live.verdict import JudgeVerdict, ResolveOutcome
from forkwise.errors import BudgetExceededError
from forkwise.sandbox.threads import in_thread, to_its_end

__all__ = ["BranchHost"]

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
            runtime.left = await in_thread(look_inside, live, runtime)
        runner = self.branch_runner or run_agent
        runtime.result = await take_turn(runtime, self.agent, runner, self.usage_limits)
        return runtime.result

    async def _open_files(self, runtime: BranchRuntime) -> None:
        live = self._known()
        await in_thread(open_files, runtime, live.ground, live.plan, self.parent_deps, self.materializer)
        runtime.ready.set()

    def _watch(self, live: LiveFork, runtime: BranchRuntime) -> None:
        """Have ``task`` tell how the first turn of a branch ends."""

        async def told() -> Any:
            try:
                await live.ended(runtime.attempt)
            except asyncio.CancelledError:
                await to_its_end(asyncio.ensure_future(live.fork.cancel([runtime.attempt], "terminated")))
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
