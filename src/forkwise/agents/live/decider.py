"""ForkDecider: how the fork of a coordinator comes to its one outcome: picked, combined, judged, overridden, dropped.

Apart from the making of forks, which is the coordinator's own, because either can be read without the other.
"""

from __future__ import annotations

import asyncio
import secrets
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import UsageLimits

from forkwise.agents.live.branch_host import BranchHost
from forkwise.agents.live.checkpoint import Checkpoint, CheckpointStore
from forkwise.agents.live.confidence import Signal
from forkwise.agents.live.left_inside import give_up_inside
from forkwise.agents.live.live_fork import LiveFork
from forkwise.agents.live.merging import MergeResult
from forkwise.agents.live.resolving import judged, strategy_key
from forkwise.agents.live.rewinding import mark_files
from forkwise.agents.live.runtime import BranchRuntime
from forkwise.agents.live.settling import check_mergeable, commit_branch, override_winner
from forkwise.agents.live.specs import MergeStrategy
from forkwise.agents.live.status import ForkHandle
from forkwise.agents.live.together import combine_branches
from forkwise.agents.live.verdict import ResolveOutcome
from forkwise.errors import ForkResolvedError, ForkwiseWarning
from forkwise.sandbox.threads import in_thread, to_its_end

__all__ = ["ForkDecider"]


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
            return await to_its_end(asyncio.ensure_future(self._carry_out(live, chosen, how, detail, prefer)))

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
            return await to_its_end(asyncio.ensure_future(self._override(live, runtime)))

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
            await to_its_end(asyncio.ensure_future(self._drop(self._live)))
        async with self._lock:
            await self._let_losers_go()

    async def _let_losers_go(self) -> None:
        if self._live is not None and self._live.losers is not None:
            losers, self._live.losers = self._live.losers, None
            await to_its_end(in_thread(losers.let_go))

    async def leave(self) -> ForkHandle | None:
        """Let go of the fork undecided, for ``resume`` to go on with, here or in another process; gives what names it.
        Branches that run are ended, and are running again when it is resumed. None where nothing is undecided, or where
        there is nothing that could be resumed: files in memory are dropped."""
        if self._live is None or self._is_over:
            return None
        if self.is_in_memory:
            await self.aclose()
            return None
        return await to_its_end(asyncio.ensure_future(self._leave(self._live)))

    async def _leave(self, live: LiveFork) -> ForkHandle | None:
        async with self._lock:
            if self._is_over:
                return None
            handle = live.handle
            for runtime in live.branches.values():
                if runtime.is_running and runtime.status.current_turn:
                    runtime.task.cancel("the fork was left")
            await live.fork.leave()
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
            await in_thread(self.materializer.cleanup)
        if live.is_resumed:
            for name in live.branches:
                await in_thread(give_up_inside, live.fork.ledger, live.ground.parent.workspace, name)
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
            outcome = await judged(self, live, strategy)
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
            files = await in_thread(mark_files, live.ground.backend)
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
