"""The open fork of a chat, opened by the user or by the agent: watch it, prompt its branches, abort or leave it.

`forkwise.chat.merges` merges it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from forkwise.chat.events import BranchChanged, ForkAdopted, ForkLeft, ForkOpened, ForkResolved, Notice, TurnBegan
from forkwise.chat.services import is_chat_model
from forkwise.chat.storage import FORK, OVER
from forkwise.live.values import BranchSpec, MergeStrategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forkwise.chat.services import ChatServices
    from forkwise.chat.settings import ForkForm
    from forkwise.conversation.node import Node
    from forkwise.live.branch_runtime import BranchRuntime
    from forkwise.live.coordinator import ForkCoordinator
    from forkwise.live.values import BranchCost, MergeResult

__all__ = ["BranchView", "Forks", "build_resolved_event"]

By = Literal["user", "agent"]


@dataclass(frozen=True, slots=True)
class BranchView:
    """The state of a branch, as a user interface shows it."""

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
    """The open fork of a chat, if there is one. ``opener`` is the user or the agent.

    ``last_resolved`` is the coordinator of the last fork; it still has the other branches, so that the user can
    override the judges.
    """

    def __init__(self, services: ChatServices) -> None:
        self._services = services
        self._coordinator: ForkCoordinator | None = None  # resolved or not
        self.last_resolved: ForkCoordinator | None = None
        self._watchers: dict[asyncio.Task[object], asyncio.Task[None]] = {}
        self._last_changes: dict[str, BranchChanged] = {}
        self.opener: By = "user"

    # State

    @property
    def coordinator(self) -> ForkCoordinator | None:
        """The coordinator of the open fork; None if no fork is open."""
        return None if self._coordinator is None or self._coordinator.is_resolved else self._coordinator

    @property
    def is_open(self) -> bool:
        """Whether a fork is open."""
        return self.coordinator is not None

    @property
    def current(self) -> ForkCoordinator:
        """The coordinator of the open fork. Raises RuntimeError if no fork is open."""
        if self.coordinator is None:
            raise RuntimeError("no fork is open: /fork opens one")
        return self.coordinator

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the branches."""
        return tuple(r.spec.label for r in self._coordinator.branches.values()) if self._coordinator is not None else ()

    @property
    def labels_by_id(self) -> dict[str, str]:
        """The labels by branch id, also if the fork was just resolved."""
        return (
            {} if self._coordinator is None else {name: r.spec.label for name, r in self._coordinator.branches.items()}
        )

    @property
    def overruled(self) -> tuple[str, ...]:
        """The labels of the losers of the last fork, while it can be overridden."""
        coordinator = self.last_resolved
        result = None if coordinator is None else coordinator.merge_result
        if coordinator is None or result is None:
            return ()
        return tuple(coordinator.branches[name].spec.label for name in result.discarded_branches)

    def find(self, label: str) -> BranchRuntime:
        """Find a branch of the open fork by its label or id. Raises ValueError if there is none."""
        for runtime in self.current.branches.values():
            if label in (runtime.spec.label, runtime.id):
                return runtime
        raise ValueError(f"there is no branch {label!r}; there are {', '.join(self.labels)}")

    def list_views(self) -> list[BranchView]:
        """List the states of the branches."""
        coordinator = self.coordinator
        if coordinator is None:
            return []
        costs = coordinator.fork_cost().per_branch
        views = [_build_view(runtime, costs[name]) for name, runtime in coordinator.branches.items()]
        return [self._complete_price(view) for view in views]

    def _complete_price(self, view: BranchView) -> BranchView:
        """Return a branch with its cost, which is nothing if its model runs on this machine."""
        is_free = self._services.is_free if view.model is None else is_chat_model(str(view.model))
        return replace(view, usd=0.0) if view.usd is None and is_free else view

    # Opening

    async def open(self, form: ForkForm) -> str:
        """Fork the conversation at its current node. Return the fork's id."""
        services, here = self._services, self._services.chat.here
        await self.close_resolved()
        coordinator = self._build_coordinator()
        strategy = MergeStrategy(judge_model=services.settings.judge or services.model_name)
        for row in form.rows:
            if row.model is not None:
                services.models.open(row.model)  # raises here, before any branch starts
        specs = [
            BranchSpec(row.label, row.steer, row.model, row.budget_usd, row.instructions or None) for row in form.rows
        ]
        history = services.chat.conversation.path(here)
        with services.feed.buffered():  # a branch may publish text before ForkOpened is published
            handle = await coordinator.fork(
                specs, parent_history=history, strategy=strategy, aggregate_budget_usd=form.budget_usd
            )
            services.deps.fork_coordinator = coordinator
            self._register(coordinator, here, "user")
            services.feed.publish_first(ForkOpened(handle.fork_id, self.labels, "user"))
        self._watch_all()
        return handle.fork_id

    def _build_coordinator(self) -> ForkCoordinator:
        services = self._services
        coordinator = services.fork_capability.coordinator_for(services.agent, services.deps)
        coordinator.model, coordinator.usage_limits = services.model, services.usage_limits
        return coordinator

    def _register(self, coordinator: ForkCoordinator, node: Node, opener: By) -> None:
        self._coordinator, self.opener = coordinator, opener
        self._services.chat.mark(FORK, coordinator.fork_id or "", node)
        self._services.chat.save()

    def register_agent_fork(self, node: Node) -> None:
        """Register a fork that the agent opened at ``node``, and watch its branches."""
        coordinator = self._services.fork_capability.coordinator
        if coordinator is None or coordinator.is_resolved or coordinator is self.coordinator:
            return
        self._register(coordinator, node, "agent")
        self._services.feed.publish(ForkOpened(coordinator.fork_id or "", self.labels, "agent"))
        self._watch_all()

    def record_agent_resolution(self) -> str | None:
        """Record the resolution of a fork by the agent itself. Return the fork's id if the agent merged it."""
        coordinator = self._coordinator
        if coordinator is None or not coordinator.is_resolved or self.opener != "agent":
            return None
        self.graft_all()
        result, labels = coordinator.merge_result, self.labels_by_id
        self.release_resolved()
        if result is None:
            self._record_abort(coordinator.fork_id or "", "agent")
            return None
        how = "combine" if result.combined_branches else "pick"
        self._services.feed.publish(build_resolved_event(result, labels, how, "agent"))
        return result.fork_id

    def adopt_agent_fork(self) -> None:
        """After a turn of the agent: hand a fork that the agent left open to the user."""
        if self.is_open and self.opener == "agent":
            self._services.feed.publish(ForkAdopted(self.current.fork_id or "", self.labels, "agent"))
        else:
            self.record_agent_resolution()

    async def resume(self, fork: str) -> None:
        """Resume a fork that another process left. If it was resolved but not committed, commit it."""
        services = self._services
        coordinator = self._build_coordinator()
        with services.feed.buffered():
            await coordinator.resume(fork)
            if coordinator.merge_result is not None:
                self._coordinator = None
                return
            services.deps.fork_coordinator = coordinator
            self._coordinator, self.opener = coordinator, "user"
            services.feed.publish_first(ForkAdopted(coordinator.fork_id or fork, self.labels, "resumed"))
        self._watch_all()

    # Watching

    def _watch_all(self) -> None:
        for runtime in self.current.branches.values():
            self._watch(runtime)

    def _watch(self, runtime: BranchRuntime) -> None:
        """Publish the state of a branch, now and when its turn ends."""
        task = runtime.task
        self._publish_state(runtime)
        if task not in self._watchers:
            self._watchers[task] = asyncio.create_task(self._wait_for_turn(runtime, task))

    async def _wait_for_turn(self, runtime: BranchRuntime, task: asyncio.Task[object]) -> None:
        await asyncio.wait([task])
        self._watchers.pop(task, None)
        if runtime.coordinator is not self._coordinator or runtime.coordinator.fork_id is None:
            return
        self.graft(runtime)
        self._services.chat.save()
        self._publish_state(runtime)
        self._services.feed.publish(self._services.costs.update())
        unread = "\n".join(runtime.steering)
        if unread and runtime.status.state == "done" and self.is_open:
            runtime.steering.clear()  # sent after the branch's last request: it starts a new turn
            await self._start_turn(runtime, unread)

    def _publish_state(self, runtime: BranchRuntime) -> None:
        status, fork, label = runtime.status, runtime.coordinator.fork_id or "", runtime.spec.label
        event = BranchChanged(fork, label, runtime.id, status.state, status.current_turn, status.error)
        if self._last_changes.get(runtime.id) != event:
            self._last_changes[runtime.id] = event
            self._services.feed.publish(event)

    async def wait_for_watchers(self) -> None:
        """Wait until the events of all finished turns are published."""
        watchers = [watcher for task, watcher in self._watchers.items() if task.done()]
        if watchers:
            await asyncio.wait(watchers)

    def graft(self, runtime: BranchRuntime) -> None:
        """Add the messages of a branch to the conversation, below the node where it was forked."""
        chat, fork = self._services.chat, runtime.coordinator.fork_id or ""
        parent = chat.find_mark(FORK, fork)
        if parent is not None:
            messages = runtime.thread.history()[runtime.thread.start.depth :]
            chat.conversation.label(f"{fork}/{runtime.spec.label}", chat.graft(messages, parent))

    def graft_all(self) -> None:
        """Add the messages of all branches to the conversation."""
        for runtime in self._coordinator.branches.values() if self._coordinator is not None else ():
            self.graft(runtime)

    # Prompting

    async def prompt(self, label: str, message: str) -> None:
        """Prompt a branch: with its next request if it runs, else in a new turn."""
        runtime = self.find(label)
        if runtime.is_running:
            self.current.steer_branch(runtime.id, message)
            self._services.feed.publish(Notice(f"{runtime.spec.label} gets the message with its next request"))
            return
        await self._start_turn(runtime, message)

    async def _start_turn(self, runtime: BranchRuntime, message: str) -> None:
        await self.current.run_on_branch(runtime.id, message)
        self._services.feed.publish(TurnBegan(message, runtime.spec.label))
        self._watch(runtime)

    def parse_address(self, text: str) -> tuple[str, str]:
        """Split the text after ``>>`` into label and message. Raises ValueError if no branch has the label."""
        for label in sorted(self.labels, key=len, reverse=True):
            rest = text.removeprefix(label)
            if rest != text and (not rest or rest[0] in " :"):
                return label, rest.lstrip(" :")
        name = text.split(maxsplit=1)[0]
        raise ValueError(f"there is no branch {name!r}; there are {', '.join(self.labels) or 'none'}")

    async def terminate(self, label: str) -> None:
        """Terminate a branch; its changes can still be merged."""
        await self.current.terminate_branch(self.find(label).id)
        await self.wait_for_watchers()

    # Ending

    async def abort(self) -> None:
        """Drop the fork with all its branches."""
        fork = self.current.fork_id or ""
        await self.current.abort_fork()
        await self.wait_for_watchers()
        self.graft_all()
        self._record_abort(fork, "user")
        self._coordinator = None

    def _record_abort(self, fork: str, by: By) -> None:
        chat = self._services.chat
        chat.mark(OVER, fork, chat.find_mark(FORK, fork) or chat.here)
        chat.save()
        self._services.feed.publish(ForkResolved(fork, "abort", by=by))

    async def leave(self) -> None:
        """Stop the branches of the open fork, and keep it for the next chat."""
        await self.close_resolved()
        coordinator = self.coordinator
        if coordinator is None:
            return
        labels = self.labels
        self._coordinator = None
        handle = await coordinator.leave()
        with suppress(ValueError):
            await asyncio.wait(list(self._watchers.values()))
        if handle is not None:
            self._services.feed.publish(ForkLeft(handle.fork_id, labels))

    def release_resolved(self) -> None:
        """Release the fork that was just resolved; its losers stay until `close_resolved`."""
        self.last_resolved, self._coordinator = self._coordinator, None

    async def close_resolved(self) -> None:
        """Drop the losers of the last fork, which cannot be overridden any more."""
        if self.last_resolved is not None:
            coordinator, self.last_resolved = self.last_resolved, None
            await coordinator.aclose()


def build_resolved_event(result: MergeResult, labels: Mapping[str, str], how: str, by: By = "user") -> ForkResolved:
    """Build the event of a merge; ``labels`` are the branches' labels by id."""
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


def _build_view(runtime: BranchRuntime, cost: BranchCost) -> BranchView:
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
