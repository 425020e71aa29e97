"""Resume a fork whose process was killed, from its recipe and its attempts in the ledger."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from forkwise.concurrency import run_in_thread
from forkwise.errors import ForkResolvedError, LedgerError, RetestError
from forkwise.explore.pattern import Observer, SpeculationOutcome, SpeculationResult
from forkwise.explore.recipe import Recipe
from forkwise.files.workspace import Workspace
from forkwise.fork.evaluators.tests import Tests
from forkwise.fork.resolve import commit_resolved
from forkwise.fork.stored_fork import StoredFork
from forkwise.ledger.sqlite import open_ledger
from forkwise.progress import report
from forkwise.testing.report import TestReport

if TYPE_CHECKING:
    from forkwise.files.store.changes import Commit, OnConflict
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord, ForkRecord

__all__ = ["find_retest", "find_tests", "resume"]


async def resume(
    workspace: Workspace | str | os.PathLike[str],
    fork: str,
    *,
    on_conflict: OnConflict | None = None,
    observer: Observer | None = None,
) -> SpeculationOutcome:
    """Resume an interrupted fork: finished attempts are not run again, the others start over.

    A fork that was decided but not committed, because of a kill or a conflict, is committed. ``on_conflict`` overrides
    the fork's own. Raises ForkResolvedError if there is nothing to resume, and LedgerError for a fork that a program
    started: call its pattern with ``resume`` instead.
    """
    workspace = workspace if isinstance(workspace, Workspace) else await run_in_thread(Workspace, workspace)
    with open_ledger(workspace) as ledger:
        stored = StoredFork(ledger, workspace, fork)
        stored.require_outermost()
        record = stored.record
        if record.stored == "resolved":
            try:
                landed = await run_in_thread(
                    commit_resolved,
                    ledger,
                    workspace,
                    record.id,
                    on_conflict=on_conflict or "refuse",
                    keep=_should_keep(record),
                    tests=find_retest(workspace, record.id),
                )
            except RetestError:
                record = stored.record  # undecided again; if the pattern had decided, it now does without the winner
                if record.state != "interrupted":
                    raise
            else:
                if observer is not None:
                    observer.fork_started(record.id)
                return _load_outcome(ledger, record, landed.commit, workspace.child_view().limits)
        if record.state != "interrupted":
            hint = "; commit an attempt with forkwise pick, or abort it" if record.state == "open" else ""
            raise ForkResolvedError(f"fork {record.id} cannot be resumed: it is {record.state}{hint}", fork=record.id)
        recipe = Recipe.from_json(record.spec)
        with report("Dropping what the interrupted attempts left"):
            await run_in_thread(_drop_resolved, stored)
        if recipe.frozen:
            workspace = await run_in_thread(
                partial(Workspace, workspace.path, state=workspace.state.parent, frozen=True)
            )
            stored = StoredFork(ledger, workspace, record.id)
        origin = stored.origin
    if on_conflict is not None:
        recipe = replace(recipe, on_conflict=on_conflict)
    return await recipe.pattern(workspace).run(origin, resume=record.id, observer=observer)


def find_tests(workspace: Workspace, fork: ForkRecord, command: str | None = None) -> Tests | None:
    """Build the tests that judge a fork's attempts, with ``command`` instead of theirs if given; None without tests.

    Raises LedgerError for a fork that a program started if no command is given: its tests are not stored.
    """
    try:
        recipe = Recipe.from_json(fork.spec)
    except LedgerError as error:
        if command is not None:
            return Tests(command)
        raise LedgerError(
            f"fork {fork.id} was started by a program, and its tests are not stored: name a test command (--test), or "
            "do without tests (--no-test)",
            subject=fork.id,
        ) from error
    return replace(recipe, tests=command or recipe.tests).build_tests(recipe.read_servers(workspace))


def find_retest(workspace: Workspace, name: str) -> Tests | None:
    """Build the tests that a fork's winner has to pass again; ``name`` is the fork's id or that of an attempt.

    Returns None if the fork was started without tests or with ``retest=False``, or by a program: its tests are not
    stored.
    """
    with open_ledger(workspace) as ledger:
        fork = ledger.fork(ledger.attempt(name).fork if "." in name else name)
        while fork.parent is not None:
            fork = ledger.fork(ledger.attempt(fork.parent).fork)
    try:
        recipe = Recipe.from_json(fork.spec)
    except LedgerError:
        return None
    return recipe.build_tests(recipe.read_servers(workspace)) if recipe.retest else None


def _should_keep(fork: ForkRecord) -> bool:
    """Return whether the losers' branches should be kept."""
    return bool((fork.resolution or {}).get("keep", fork.spec.get("keep", False)))


def _drop_resolved(fork: StoredFork) -> None:
    """Drop the branches of decided forks inside the attempts: resuming runs those forks again."""
    for inner in fork.inside():
        if inner.record.is_over:
            inner.drop()
        else:
            _drop_resolved(inner)


def _load_outcome(ledger: Ledger, fork: ForkRecord, commit: Commit, note: str) -> SpeculationOutcome:
    """Load the outcome of a fork that another process decided."""
    results = {attempt.id: _load_result(attempt) for attempt in ledger.attempts(fork.id)}
    winner = None if fork.winner is None else results[fork.winner]
    return SpeculationOutcome(winner, list(results.values()), True, commit, fork.id, note)


def _load_result(attempt: AttemptRecord) -> SpeculationResult:
    return SpeculationResult(
        attempt.index,
        attempt.state == "succeeded",
        attempt.score or 0.0,
        attempt.value,
        reason=attempt.reason,
        tests=None if attempt.tests is None else TestReport.from_json(attempt.tests),
        wall=attempt.wall,
        attempt=attempt.id,
        fault=attempt.fault,
        no_change=bool(attempt.no_change),
    )
