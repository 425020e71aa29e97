"""Recovery: what a chat that was killed, or ended with a fork open, has left to be done, done at the next start."""

from __future__ import annotations

from forkwise.agents.live.fork_plan import ForkPlan
from forkwise.agents.live.store import unfinished
from forkwise.app.chat.desk import Desk
from forkwise.app.chat.events import Failed, Notice
from forkwise.app.chat.failing import told
from forkwise.app.chat.forks import Forks
from forkwise.app.chat.keeping import FORK, LOADING, MERGED, OVER, UNDOING, Kept
from forkwise.app.chat.merges import Merges
from forkwise.app.chat.moves import Moves
from forkwise.conversation.saving import Saved
from forkwise.errors import BranchingError, ForkNotFoundError, LedgerError
from forkwise.ledger.record import ForkRecord

__all__ = ["recover"]


async def recover(desk: Desk, forks: Forks, merges: Merges, moves: Moves) -> None:
    """Finish what was begun, take over what is open, and tell of it."""
    kept = desk.kept
    for label in list(kept.conversation.labels):
        if label.startswith(LOADING):
            await moves.finish_load(label.removeprefix(LOADING))
        elif label.startswith(UNDOING):
            await merges.finish_undo(label.removeprefix(UNDOING))
    if not kept.is_new:
        _claim(kept)
    for fork in list(kept.forks()):
        if kept.marked(MERGED, fork) is None and kept.marked(OVER, fork) is None:
            try:
                await _settle(desk, forks, merges, fork)
            except (BranchingError, RuntimeError, OSError) as error:
                desk.feed.tell(Failed(f"fork {fork} cannot be gone on with: {told(error)}"))


async def _settle(desk: Desk, forks: Forks, merges: Merges, fork: str) -> None:
    """See what became of a fork of which the conversation does not know it."""
    kept = desk.kept
    try:
        record = kept.ledger.fork(fork)
    except ForkNotFoundError:
        kept.mark(OVER, fork, kept.here)
        kept.save()
        return
    if record.stored == "resolved" and record.commit is not None:
        if merges.find_lost(fork):
            desk.feed.tell(
                Notice(f"fork {fork} was merged when the chat was cut short; the conversation goes on there")
            )
            return
    elif record.id in {one.id for one in unfinished(kept.ledger)} and not forks.is_open:
        await forks.resume(record.id)
        if kept.ledger.fork(fork).is_over and merges.find_lost(fork):
            desk.feed.tell(Notice(f"fork {fork} was decided when the chat was cut short; it is merged now"))
        return
    elif not record.is_over:
        desk.feed.tell(Notice(f"fork {fork} of this conversation is {record.state}, and is left as it is"))
        return
    kept.mark(OVER, fork, kept.marked(FORK, fork) or kept.here)
    kept.save()


def _claim(kept: Kept) -> None:
    """Find a fork that was made here by a process that was killed before it could write that down."""
    known = {
        label.removeprefix(FORK)
        for record in kept.ledger.conversations.all()
        for label in record.labels
        if label.startswith(FORK)
    }
    own = [message.parts for message in kept.conversation.path()]
    for record in unfinished(kept.ledger) if own else ():
        if record.id not in known and _parent_parts(kept, record) == own:
            kept.mark(FORK, record.id, kept.here)
            kept.save()


def _parent_parts(kept: Kept, record: ForkRecord) -> list[object] | None:
    """What was said before a fork; None where that was not written down."""
    try:
        plan = ForkPlan.from_json(record.spec, record.id)
        talk = Saved.load(kept.ledger.conversations, plan.conversation).conversation
    except LedgerError:
        return None
    return [message.parts for message in talk.path()]
