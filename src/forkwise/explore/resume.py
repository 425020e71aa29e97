"""Resuming: an exploration whose process was killed, gone on with by another, from what the ledger says of it."""

from __future__ import annotations

import os
from dataclasses import replace

from forkwise.concurrency import run_in_thread
from forkwise.errors import ForkResolvedError, LedgerError
from forkwise.explore.pattern import Observer, SpeculationOutcome, SpeculationResult
from forkwise.explore.recipe import Recipe
from forkwise.files.store.changes import Commit, OnConflict
from forkwise.files.workspace import Workspace
from forkwise.fork.evaluation import Tests
from forkwise.fork.resolve import commit_resolved
from forkwise.fork.stored_fork import StoredFork
from forkwise.ledger.ledger import LedgerReader
from forkwise.ledger.records import AttemptRecord, ForkRecord
from forkwise.ledger.sqlite import open_ledger
from forkwise.testing.report import TestReport

__all__ = ["judging_tests", "resume"]


async def resume(
    workspace: Workspace | str | os.PathLike[str],
    fork: str,
    *,
    on_conflict: OnConflict | None = None,
    witness: Observer | None = None,
) -> SpeculationOutcome:
    """Go on with a fork that was interrupted: attempts that were over are not run again, the others start afresh.

    One that was decided but not committed, because of a kill or a conflict, is committed. ``on_conflict`` is used
    instead of what the fork was begun with. Raises ForkResolvedError where there is nothing to go on with, LedgerError
    for a fork that a program made: that has what it takes, and calls its pattern with ``resume``.
    """
    where = workspace if isinstance(workspace, Workspace) else await run_in_thread(Workspace, workspace)
    with open_ledger(where) as ledger:
        remains = StoredFork(ledger, where, fork)
        remains.require_outermost()
        record = remains.record
        if record.stored == "resolved":
            landed = await run_in_thread(
                commit_resolved, ledger, where, record.id, on_conflict=on_conflict or "refuse", keep=_keeps(record)
            )
            if witness is not None:
                witness.fork_started(record.id)
            return _recorded(ledger, record, landed.commit)
        if record.state != "interrupted":
            raise ForkResolvedError(f"fork {record.id} cannot be resumed: it is {record.state}", fork=record.id)
        recipe = Recipe.from_json(record.spec)
        await run_in_thread(_drop_what_is_over, remains)
        origin = remains.origin
    if on_conflict is not None:
        recipe = replace(recipe, on_conflict=on_conflict)
    return await recipe.pattern(where).run(origin, resume=record.id, witness=witness)


def judging_tests(fork: ForkRecord, command: str | None = None) -> Tests | None:
    """The tests that judge a fork's attempts, or this command run as those are; None where there are none.

    LedgerError for a fork that a program made, and no command: what its tests are is not written down.
    """
    try:
        recipe = Recipe.from_json(fork.spec)
    except LedgerError as error:
        if command is not None:
            return Tests(command)
        raise LedgerError(
            f"fork {fork.id} was made by a program, and which tests judge it is not written down: name them, or do "
            "without (--test, --no-test)",
            subject=fork.id,
        ) from error
    return replace(recipe, tests=command or recipe.tests).test()


def _keeps(fork: ForkRecord) -> bool:
    """Whether the branches of those that did not win were to be kept."""
    return bool((fork.resolution or {}).get("keep", fork.spec.get("keep", False)))


def _drop_what_is_over(fork: StoredFork) -> None:
    """Drop what forks inside the attempts left that were decided, and not brought to their end: they are made anew."""
    for inner in fork.inside():
        if inner.record.is_over:
            inner.drop()
        else:
            _drop_what_is_over(inner)


def _recorded(ledger: LedgerReader, fork: ForkRecord, commit: Commit) -> SpeculationOutcome:
    """The outcome of a fork that was decided by a process that is no more."""
    results = {attempt.id: _result(attempt) for attempt in ledger.attempts(fork.id)}
    winner = None if fork.winner is None else results[fork.winner]
    return SpeculationOutcome(winner, list(results.values()), True, commit, fork.id)


def _result(attempt: AttemptRecord) -> SpeculationResult:
    return SpeculationResult(
        attempt.index,
        attempt.state == "succeeded",
        attempt.score or 0.0,
        attempt.value,
        reason=attempt.reason,
        tests=None if attempt.tests is None else TestReport.from_json(attempt.tests),
        wall=attempt.wall,
        attempt=attempt.id,
    )
