"""Forks: the open fork of a chat: made by the person or by the agent, followed, spoken to, ended, left for later."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from forkwise.chat.events import BranchChanged, ForkAdopted, ForkLeft, ForkOpened, ForkResolved, Notice, TurnBegan
from forkwise.chat.services import ChatServices
from forkwise.chat.settings import ForkForm
from forkwise.chat.storage import FORK, OVER
from forkwise.conversation.node import Node
from forkwise.live.branch_runtime import BranchRuntime
from forkwise.live.coordinator import ForkCoordinator
from forkwise.live.values import BranchCost, BranchSpec, MergeResult, MergeStrategy

__all__ = ["BranchView", "Forks", "resolved"]

By = Literal["user", "agent"]


@dataclass(frozen=True, slots=True)
class BranchView:
    """Where a branch stands, as a face shows it."""

    id: str
    label: str
    state: str
    turn: int
    steer: str
    model: str | None
    preview: str | None
    error: str | None
    usd: float | None
    budget_usd: float | None
    tokens: int
    requests: int
    is_waiting: bool


class Forks:
    """The fork that is open, if one is: ``coordinator`` is then what runs it, ``by`` who made it. ``decided`` ran the
    last one, whose other branches may be there still, for somebody who decides otherwise."""

    def __init__(self, desk: ChatServices) -> None:
        self._desk = desk
        self._known: ForkCoordinator | None = None
        self.decided: ForkCoordinator | None = None
        self._following: dict[asyncio.Task[object], asyncio.Task[None]] = {}
        self._told: dict[str, BranchChanged] = {}
        self.by: By = "user"

    # What there is

    @property
    def coordinator(self) -> ForkCoordinator | None:
        """What runs the open fork; None where none is open."""
        return None if self._known is None or self._known.is_resolved else self._known

    @property
    def is_open(self) -> bool:
        """Whether a fork is to be decided."""
        return self.coordinator is not None

    @property
    def current(self) -> ForkCoordinator:
        """The same; RuntimeError where no fork is open."""
        if self.coordinator is None:
            raise RuntimeError("no fork is open: /fork makes one")
        return self.coordinator

    @property
    def labels(self) -> tuple[str, ...]:
        """What the branches are called."""
        return tuple(r.spec.label for r in self._known.branches.values()) if self._known is not None else ()

    @property
    def labels_by_id(self) -> dict[str, str]:
        """The same by their ids, also when the fork was just decided."""
        return {} if self._known is None else {name: r.spec.label for name, r in self._known.branches.items()}

    @property
    def overruled(self) -> tuple[str, ...]:
        """What branches are called that lost the fork that was decided last, while that can be decided otherwise."""
        decided = self.decided
        result = None if decided is None else decided.merge_result
        if decided is None or result is None:
            return ()
        return tuple(decided.branches[name].spec.label for name in result.discarded_branches)

    def find(self, label: str) -> BranchRuntime:
        """A branch of the open fork by its label or its id; ValueError where there is none."""
        for runtime in self.current.branches.values():
            if label in (runtime.spec.label, runtime.id):
                return runtime
        raise ValueError(f"there is no branch {label!r}; there are {', '.join(self.labels)}")

    def views(self) -> list[BranchView]:
        """Where the branches stand."""
        coordinator = self.coordinator
        if coordinator is None:
            return []
        costs = coordinator.fork_cost().per_branch
        return [_view(runtime, costs[name]) for name, runtime in coordinator.branches.items()]

    # Making one

    async def open(self, form: ForkForm) -> str:
        """Split the conversation where it is; gives the fork's id."""
        desk, here = self._desk, self._desk.kept.here
        await self.let_go()
        coordinator = desk.forking.coordinator_for(desk.agent, desk.deps)
        coordinator.model, coordinator.usage_limits = desk.model, desk.limits
        strategy = MergeStrategy(judge_model=desk.settings.judge or desk.model_name)
        for row in form.rows:
            if row.model is not None:
                desk.models.open(row.model)  # says now what a branch would say
        specs = [
            BranchSpec(row.label, row.steer, row.model, row.budget_usd, row.instructions or None) for row in form.rows
        ]
        history = desk.kept.conversation.path(here)
        with desk.feed.buffered():  # a branch may speak before all of them are there
            handle = await coordinator.fork(
                specs, parent_history=history, strategy=strategy, aggregate_budget_usd=form.budget_usd
            )
            desk.deps.fork_coordinator = coordinator
            self._begin(coordinator, here, "user")
            desk.feed.tell_first(ForkOpened(handle.fork_id, self.labels, "user"))
        self._follow_all()
        return handle.fork_id

    def _begin(self, coordinator: ForkCoordinator, at: Node, by: By) -> None:
        self._known, self.by = coordinator, by
        self._desk.kept.mark(FORK, coordinator.fork_id or "", at)
        self._desk.kept.save()

    def agent_forked(self, at: Node) -> None:
        """The agent has forked itself, at a node: its branches are shown from now on."""
        coordinator = self._desk.forking.coordinator
        if coordinator is None or coordinator.is_resolved or coordinator is self.coordinator:
            return
        self._begin(coordinator, at, "agent")
        self._desk.feed.publish(ForkOpened(coordinator.fork_id or "", self.labels, "agent"))
        self._follow_all()

    def agent_decided(self) -> str | None:
        """The agent may have decided its fork itself; gives the fork where it has merged."""
        known = self._known
        if known is None or not known.is_resolved or self.by != "agent":
            return None
        self.graft_all()
        result = known.merge_result
        self.forget()
        if result is None:
            self.over(known.fork_id or "", "abort", "agent")
            return None
        labels = {name: runtime.spec.label for name, runtime in known.branches.items()}
        self._desk.feed.publish(resolved(result, labels, "combine" if result.combined_branches else "pick", "agent"))
        return result.fork_id

    def turn_ended(self) -> None:
        """A turn of the agent is over: a fork that it left open is to be decided here."""
        if self.is_open and self.by == "agent":
            self._desk.feed.publish(ForkAdopted(self.current.fork_id or "", self.labels, "agent"))
        elif self._known is not None and self.by == "agent":
            self.agent_decided()

    async def resume(self, fork: str) -> None:
        """Go on with a fork that a process left. One that was decided is carried out: see ``merge_result``."""
        desk = self._desk
        coordinator = desk.forking.coordinator_for(desk.agent, desk.deps)
        coordinator.model, coordinator.usage_limits = desk.model, desk.limits
        with desk.feed.buffered():
            await coordinator.resume(fork)
            if coordinator.merge_result is not None:
                self._known = None
                return
            desk.deps.fork_coordinator = coordinator
            self._known, self.by = coordinator, "user"
            desk.feed.tell_first(ForkAdopted(coordinator.fork_id or fork, self.labels, "resumed"))
        self._follow_all()

    # Following it

    def _follow_all(self) -> None:
        for runtime in self.current.branches.values():
            self.follow(runtime)

    def follow(self, runtime: BranchRuntime) -> None:
        """Tell where a branch stands, now and when its turn is over."""
        task = runtime.task
        self._tell(runtime)
        if task not in self._following:
            self._following[task] = asyncio.create_task(self._wait(runtime, task))

    async def _wait(self, runtime: BranchRuntime, task: asyncio.Task[object]) -> None:
        await asyncio.wait([task])
        self._following.pop(task, None)
        if runtime.coordinator is not self._known or runtime.coordinator.fork_id is None:
            return
        self.graft(runtime)
        self._desk.kept.save()
        self._tell(runtime)
        self._desk.feed.publish(self._desk.costs.now())
        left = "\n".join(runtime.steering)
        if left and runtime.status.state == "done" and self.is_open:
            runtime.steering.clear()  # it was told too late: it is told now
            await self._go_on(runtime, left)

    def _tell(self, runtime: BranchRuntime) -> None:
        status, fork, label = runtime.status, runtime.coordinator.fork_id or "", runtime.spec.label
        stands = BranchChanged(fork, label, runtime.id, status.state, status.current_turn, status.error)
        if self._told.get(runtime.id) != stands:
            self._told[runtime.id] = stands
            self._desk.feed.publish(stands)

    async def followed(self) -> None:
        """Wait until all that is over was told."""
        ending = [watch for task, watch in self._following.items() if task.done()]
        if ending:
            await asyncio.wait(ending)

    def graft(self, runtime: BranchRuntime) -> None:
        """Put what a branch said into the conversation, behind the place where it was forked."""
        kept, fork = self._desk.kept, runtime.coordinator.fork_id or ""
        at = kept.marked(FORK, fork)
        if at is not None:
            own = runtime.thread.history()[runtime.thread.start.depth :]
            kept.conversation.label(f"{fork}/{runtime.spec.label}", kept.graft(own, at))

    def graft_all(self) -> None:
        """Put what all branches said into the conversation."""
        for runtime in self._known.branches.values() if self._known is not None else ():
            self.graft(runtime)

    # Speaking to it

    async def say(self, label: str, message: str) -> None:
        """Tell a branch something: one that runs hears it with its next request, one that is done begins a new turn."""
        runtime = self.find(label)
        if runtime.is_running:
            self.current.steer_branch(runtime.id, message)
            self._desk.feed.publish(Notice(f"told {runtime.spec.label}: it hears that with its next request"))
            return
        await self._go_on(runtime, message)

    async def _go_on(self, runtime: BranchRuntime, message: str) -> None:
        await self.current.run_on_branch(runtime.id, message)
        self._desk.feed.publish(TurnBegan(message, runtime.spec.label))
        self.follow(runtime)

    def addressed(self, text: str) -> tuple[str, str]:
        """Whom ``>>`` is for, and what they are told; ValueError where that is no branch."""
        for label in sorted(self.labels, key=len, reverse=True):
            rest = text.removeprefix(label)
            if rest != text and (not rest or rest[0] in " :"):
                return label, rest.lstrip(" :")
        name = text.split(maxsplit=1)[0]
        raise ValueError(f"there is no branch {name!r}; there are {', '.join(self.labels) or 'none'}")

    async def terminate(self, label: str) -> None:
        """End one branch; it can still be merged with what it did."""
        await self.current.terminate_branch(self.find(label).id)
        await self.followed()

    # Its end

    async def abort(self) -> None:
        """Drop the fork with all its branches."""
        fork = self.current.fork_id or ""
        await self.current.abort_fork()
        await self.followed()
        self.graft_all()
        self.over(fork, "abort", "user")
        self._known = None

    def over(self, fork: str, how: str, by: By) -> None:
        """Note that a fork came to nothing."""
        kept = self._desk.kept
        kept.mark(OVER, fork, kept.marked(FORK, fork) or kept.here)
        kept.save()
        self._desk.feed.publish(ForkResolved(fork, how, by=by))

    async def leave(self) -> None:
        """Keep the open fork for the next chat, and let nothing of it run."""
        await self.let_go()
        coordinator = self.coordinator
        if coordinator is None:
            return
        labels = self.labels
        self._known = None
        handle = await coordinator.leave()
        with suppress(ValueError):
            await asyncio.wait(list(self._following.values()))
        if handle is not None:
            self._desk.feed.publish(ForkLeft(handle.fork_id, labels))

    def forget(self) -> None:
        """The fork is decided."""
        self.decided, self._known = self._known, None

    async def let_go(self) -> None:
        """Nobody decides otherwise any more."""
        if self.decided is not None:
            decided, self.decided = self.decided, None
            await decided.aclose()


def resolved(result: MergeResult, labels: Mapping[str, str], how: str, by: By = "user") -> ForkResolved:
    """What is told of a merge; ``labels`` are those of the branches by their ids."""
    names = result.combined_branches or [result.winner_branch_id]
    return ForkResolved(
        fork=result.fork_id,
        how=how,
        winners=tuple(labels.get(name, name) for name in names),
        paths=tuple(result.applied_paths),
        deleted=tuple(result.deleted_paths),
        conflicts=tuple(result.conflicts),
        errors=tuple(error.message for error in result.errors),
        commit=result.commit_id,
        by=by,
    )


def _view(runtime: BranchRuntime, cost: BranchCost) -> BranchView:
    status, spec = runtime.status, runtime.spec
    return BranchView(
        id=runtime.id,
        label=spec.label,
        state=status.state,
        turn=status.current_turn,
        steer=spec.steer,
        model=spec.model,
        preview=status.last_message_preview,
        error=status.error,
        usd=cost.cumulative_usd,
        budget_usd=cost.budget_usd,
        tokens=cost.tokens,
        requests=cost.requests,
        is_waiting=runtime.pending_approval is not None,
    )
