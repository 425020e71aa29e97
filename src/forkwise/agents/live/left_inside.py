"""Left inside: forks that a killed process had open inside a branch, when the next process goes on with that branch.

A fork that was decided is carried out. One that was not waits for whoever made it: the agent's own tools find it open,
and a tool that forks the same way again goes on with it. Where nobody takes it up it is given up, because a branch that
is forked cannot be written to.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field

from forkwise.agents.live.fork_plan import KIND, ForkPlan
from forkwise.agents.live.live_fork import LiveFork
from forkwise.agents.live.runtime import BranchRuntime
from forkwise.errors import LedgerError
from forkwise.files.workspace import Workspace
from forkwise.fork.picking import complete
from forkwise.fork.remains import Remains
from forkwise.ledger.opening import open_ledger
from forkwise.ledger.protocol import Ledger
from forkwise.ledger.record import ForkRecord
from forkwise.sandbox.threads import in_thread, to_its_end

__all__ = ["LeftInside", "give_up_inside", "give_up_left", "look_inside"]

_FORGOTTEN = "its process was killed, and nobody went on with it"


@dataclass
class LeftInside:
    """The forks that are open inside a branch, by their ids. Of those that are ``known`` the agent was told."""

    workspace: Workspace
    attempt: str
    plans: dict[str, ForkPlan] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)

    def same_as(self, plan: ForkPlan) -> str | None:
        """The fork that was asked for in the same words, if there is one."""
        return next((name for name, made in self.plans.items() if made.specs == plan.specs), None)

    @property
    def last(self) -> str | None:
        """The one that the agent was told of last."""
        return next((name for name in reversed(self.plans) if name in self.known), None)

    def is_wanted_by(self, tools: Collection[str]) -> bool:
        """Whether a tool that made one of them is called again."""
        return any(plan.maker in tools for plan in self.plans.values())


def look_inside(live: LiveFork, runtime: BranchRuntime) -> LeftInside | None:
    """What is open inside a branch that goes on; None where nothing is. What was decided is carried out, and where the
    agent does not know that yet its branch is told."""
    ledger, workspace = live.fork.ledger, live.ground.parent.workspace
    inside = [fork for fork in ledger.children(runtime.id) if fork.kind == KIND]
    if not inside:
        return None
    said = str(runtime.thread.own_messages())
    left = LeftInside(workspace, runtime.id, known={fork.id for fork in inside if f"fork_id={fork.id}" in said})
    for fork in inside:
        plan = ForkPlan.from_json(fork.spec, fork.id)
        if fork.stored == "resolved" and fork.commit is None:
            complete(ledger, workspace, fork.id, policy=plan.strategy.conflict_policy)
        elif fork.state == "interrupted" and _has_begun(ledger, plan):
            left.plans[fork.id] = plan
        elif fork.state == "interrupted":
            _give_up(ledger, workspace, fork, _FORGOTTEN)
    last = ledger.fork(inside[-1].id)
    if last.stored == "resolved" and last.id in left.known and f"Merged fork {last.id}" not in said:
        winner = last.winner and f"winner={ledger.attempt(last.winner).label} ({last.winner})"
        runtime.merged_inside = f"Merged fork {last.id}: {winner or 'combined'}. Its files are yours."
    return left if left.plans else None


def give_up_inside(ledger: Ledger, workspace: Workspace, attempt: str, reason: str = _FORGOTTEN) -> None:
    """Drop the forks that a dead process had open inside an attempt, and those inside them."""
    for fork in ledger.children(attempt):
        if fork.state == "interrupted":
            _give_up(ledger, workspace, fork, reason)


def _give_up(ledger: Ledger, workspace: Workspace, fork: ForkRecord, reason: str) -> None:
    remains = Remains(ledger, workspace, fork.id)
    ledger.abort_fork(fork.id, reason)
    for attempt in remains.attempts:
        give_up_inside(ledger, workspace, attempt.id, reason)
        if not attempt.is_over:
            with suppress(LedgerError):  # it was written down meanwhile
                ledger.end_attempt(attempt.id, "cancelled", reason=reason)
    remains.drop()


def _has_begun(ledger: Ledger, plan: ForkPlan) -> bool:
    try:
        ledger.conversations.load(plan.conversation)
    except LedgerError:
        return False
    return True


async def give_up_left(runtime: BranchRuntime) -> None:
    """Give up what was left in a branch and nobody took up, so that the branch can be written to again."""
    left, runtime.left = runtime.left, None
    if left is not None:
        await to_its_end(in_thread(_give_up_all, left))


def _give_up_all(left: LeftInside) -> None:
    with open_ledger(left.workspace) as ledger:
        give_up_inside(ledger, left.workspace, left.attempt)
