"""Dropping: what becomes of attempts that did not win, and how it is written down, also on a disk that they filled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence

from forkwise.errors import BranchingError, BranchNotFoundError, ForkwiseWarning, LedgerError
from forkwise.files import trash
from forkwise.fork.attempt import Attempt
from forkwise.ledger.output import remove_output
from forkwise.sandbox.threads import in_thread

__all__ = ["drop", "hide", "keep_winner", "write_ends", "write_surely"]


async def drop(attempts: Iterable[Attempt], *, keep: bool) -> None:
    """Have the branches of attempts vanish, or be kept. One that cannot is warned of, and the others go."""
    for attempt in attempts:
        if attempt.branch is None:
            continue
        try:
            await in_thread(attempt.branch.keep if keep else attempt.branch.abort)
        except BranchNotFoundError:
            continue
        except BranchingError as error:
            warnings.warn(f"the branch of {attempt.id} is left: {error}", ForkwiseWarning, stacklevel=2)


async def hide(attempts: Iterable[Attempt]) -> None:
    """Have the branches of attempts stay, and their views taken down."""
    for attempt in attempts:
        if attempt.branch is not None:
            await in_thread(attempt.branch.hide)


def keep_winner(winner: Attempt) -> str:
    """Keep the branch of a winner that was not committed; gives what to tell."""
    try:
        winner.place.keep()
    except BranchingError as error:
        return f"The winner, {winner.id}, could not be kept: {error}"
    return f"The winner, {winner.id}, is kept as the branch {winner.place.branch_path}"


def write_ends(attempts: Sequence[Attempt]) -> None:
    """Write down what could not be written when an attempt ended."""
    for attempt in attempts:
        if not attempt.fork.ledger.attempt(attempt.id).is_over:
            attempt.write_end()


async def write_surely(write: Callable[[], object], attempts: Sequence[Attempt]) -> None:
    """Write to the ledger: on a full disk as soon as what was dropped is really gone, or else in the place of what the
    attempts printed."""

    def forget_output() -> None:
        for attempt in attempts:
            remove_output(attempt.fork.ledger.directory, attempt.id)

    for make_room in (trash.wait, forget_output):
        try:
            write()
            return
        except LedgerError:
            await in_thread(make_room)
    write()
