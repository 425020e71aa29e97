"""Choosing: a fork decided for some of what its attempts changed, path by path and hunk by hunk.

In two steps, because a person looks in between: what was chosen is prepared as a branch, with its diff and what the
tests say of it, and then that is committed, or dropped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forkwise.errors import ForkResolvedError, LedgerError
from forkwise.files.branch import Branch
from forkwise.files.choosing import Choice, Lineup, choose, line_up
from forkwise.files.commit import Commit
from forkwise.files.conflict import OnConflict
from forkwise.files.workspace import Workspace
from forkwise.fork.landing import ConflictPolicy
from forkwise.fork.picking import conclude
from forkwise.fork.remains import Remains
from forkwise.fork.testing.report import TestReport
from forkwise.fork.tests import Tests
from forkwise.ledger.opening import open_ledger
from forkwise.ledger.protocol import Ledger
from forkwise.sandbox.threads import before_leaving, in_thread, to_its_end

__all__ = ["Prepared", "commit_choice", "line_up_attempts", "prepare_choice"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was chosen of some attempts of a fork, in a branch of its own: how it differs from the parent, and what the
    tests say of it (None: there are none). ``commit_choice`` commits it; to give it up, abort the branch."""

    fork: str
    attempts: tuple[str, ...]
    branch: Branch
    diff: str
    tests: TestReport | None

    @property
    def is_good(self) -> bool:
        """Whether nothing speaks against it."""
        return self.tests is None or self.tests.is_pass


def line_up_attempts(
    workspace: Workspace | str | os.PathLike[str], fork: str, attempts: Sequence[str] | None = None
) -> list[Lineup]:
    """What attempts of a fork changed, each called by its id: those that are named, or all that are over and whose
    branches are there. What can be chosen from it is told to ``prepare_choice``."""
    where = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
    with open_ledger(where) as ledger:
        remains = _undecided(ledger, where, fork)
        return line_up(remains.origin, _branches(remains, attempts))


async def prepare_choice(
    workspace: Workspace | str | os.PathLike[str], fork: str, choice: Mapping[str, Choice], *, tests: Tests | None
) -> Prepared:
    """Make a branch of what was chosen, by path: an attempt's version, or hunks of any of them; and test it.

    Nothing is decided by that. BranchError where it cannot be had, such as because what was chosen overlaps. Cancelled,
    it leaves nothing.
    """
    where = workspace if isinstance(workspace, Workspace) else await in_thread(Workspace, workspace)
    with open_ledger(where) as ledger:
        remains = _undecided(ledger, where, fork)
        attempts = _chosen(choice)
        making = in_thread(_make, remains, attempts, choice)
        try:
            made = await before_leaving(making)
            report = None if tests is None else await tests.test(made)
            return Prepared(remains.id, attempts, made, await in_thread(made.diff), report)
        except BaseException:
            if making.exception() is None:
                await to_its_end(in_thread(making.result().abort))
            raise


def commit_choice(
    prepared: Prepared,
    *,
    on_conflict: OnConflict = "refuse",
    policy: ConflictPolicy | None = None,
    keep: bool = False,
) -> Commit:
    """Decide the fork for what was prepared, commit that, and drop all attempts (``keep``: keep them).

    Raises ForkResolvedError where the fork was decided meanwhile. After a ConflictError the fork is decided and nothing
    is committed: called again with an ``on_conflict`` that decides, this commits it. With a ``policy`` conflicts are
    decided at once, and none of the versions is lost.
    """
    where = prepared.branch.workspace
    with open_ledger(where) as ledger:
        remains = Remains(ledger, where, prepared.fork)
        detail = {
            "attempts": list(prepared.attempts),
            "branch": prepared.branch.name,
            "keep": keep,
            "tests": None if prepared.tests is None else prepared.tests.as_json(),
        }
        is_new = ledger.resolve(remains.id, how="choice", detail=detail)
        if not is_new and (remains.outcome() != prepared.branch.name or remains.record.commit is not None):
            raise ForkResolvedError(f"fork {remains.id} was decided meanwhile", fork=remains.id)
        return conclude(remains, keep=keep, policy=policy, on_conflict=on_conflict).commit


def _undecided(ledger: Ledger, workspace: Workspace, fork: str) -> Remains:
    remains = Remains(ledger, workspace, fork)
    remains.must_be_outermost()
    record = remains.record
    if record.is_over:
        raise ForkResolvedError(f"fork {record.id} is {record.state}, and is decided only once", fork=record.id)
    return remains


def _branches(fork: Remains, attempts: Sequence[str] | None) -> dict[str, Branch]:
    wanted = None if attempts is None else {fork.ledger.attempt(name).id for name in attempts}
    found = {}
    for attempt in fork.attempts:
        if attempt.is_over and (wanted is None or attempt.id in wanted):
            branch = fork.branch(attempt.branch)
            if branch is not None:
                found[attempt.id] = branch
    if missing := (wanted or set()) - set(found):
        raise LedgerError(f"{', '.join(sorted(missing))}: still at it, or gone", subject=min(missing))
    if not found:
        raise LedgerError(f"no attempt of fork {fork.id} is over and has a branch", subject=fork.id)
    return found


def _chosen(choice: Mapping[str, Choice]) -> tuple[str, ...]:
    """The attempts that a choice is made from. A hunk that several made alike is any of theirs: the first counts."""
    names = set()
    for chosen in choice.values():
        names |= {chosen} if isinstance(chosen, str) else {hunk.versions[0] for hunk in chosen}
    if not names:
        raise LedgerError("nothing was chosen of any attempt")
    return tuple(sorted(names))


def _make(fork: Remains, attempts: Sequence[str], choice: Mapping[str, Choice]) -> Branch:
    name = f"{fork.id}-choice"
    if (left := fork.branch(name)) is not None and not left.owner_alive:
        left.abort()
    return choose(fork.origin, _branches(fork, attempts), name, choice)
