"""Heeding: what the process that runs a fork hears from others through the ledger, and how another tells it.

A fork belongs to the process that runs it, and only that can end what it started. Whoever else wants the fork decided,
or one attempt of it ended, writes so; the process looks several times a second.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from forkwise.errors import BranchError, BranchNotFoundError, ForkResolvedError, LedgerError
from forkwise.files.workspace import Workspace
from forkwise.fork.remains import PATIENCE, Remains
from forkwise.ledger.opening import open_ledger
from forkwise.ledger.protocol import Ledger

if TYPE_CHECKING:
    from forkwise.fork.fork import Fork

__all__ = ["abort_attempt", "heed", "is_decided"]

_PACE = 0.25  # seconds between two looks at what others want
_WAITING = 0.05


async def heed(fork: Fork) -> None:
    """End all attempts of a fork as soon as somebody else decides it, and each one that somebody asks to be ended."""
    unwanted: dict[str, str] = {}
    seen = 0
    while True:
        await asyncio.sleep(_PACE)
        if fork.is_over:
            return
        if is_decided(fork):
            await fork.give_way()
            return
        with suppress(LedgerError):  # it cannot be asked now: the next look will tell
            for event in fork.ledger.events(after=seen, fork=fork.id):
                seen = event.seq
                if event.kind == "unwanted" and event.attempt is not None:
                    unwanted[event.attempt] = event.data["unwanted"]
        going = [attempt for attempt in fork.attempts if attempt.id in unwanted]
        await asyncio.gather(*(fork.cancel([attempt], unwanted[attempt.id]) for attempt in going))


def is_decided(fork: Fork) -> bool:
    """Whether somebody has decided a fork."""
    with suppress(LedgerError):  # it cannot be asked now: whoever has to write to it will say so
        return fork.ledger.fork(fork.id).is_over
    return False


def abort_attempt(
    workspace: Workspace | str | os.PathLike[str], attempt: str, reason: str = "ended by hand"
) -> tuple[str, ...]:
    """End one attempt, with all that it started, whoever runs its fork; the others go on. Gives the branches that were
    dropped here.

    It is ended by the process that runs the fork, which is waited for. Where that was killed it is written down as
    cancelled, and resuming the fork does not run it again. LedgerError where it is over already.
    """
    workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
    with open_ledger(workspace) as ledger:
        record = ledger.attempt(attempt)
        fork = Remains(ledger, workspace, record.fork)
        if fork.record.is_over:
            raise ForkResolvedError(f"fork {fork.id} is {fork.record.state}: nothing of it runs", fork=fork.id)
        ledger.ask_to_end(record.id, reason)
        _await_end(ledger, fork, record.id)
        if ledger.attempt(record.id).is_over:
            return ()
        fork.abort_inside(reason, record.id)
        ledger.end_attempt(record.id, "cancelled", reason=reason)
        branch = fork.branch(record.branch)
        if branch is None:
            return ()
        with suppress(BranchNotFoundError):
            branch.abort()
        return (branch.branch_path,)


def _await_end(ledger: Ledger, fork: Remains, attempt: str) -> None:
    """Wait until an attempt is over, or whoever ran it is dead."""
    deadline = time.monotonic() + PATIENCE
    while not ledger.attempt(attempt).is_over and fork.record.owner.alive:
        if time.monotonic() > deadline:
            raise BranchError(
                f"attempt {attempt} is to be ended, but process {fork.record.owner.told}, which runs it, has not done "
                "so yet: look again, or abort the fork"
            )
        time.sleep(_WAITING)
