"""Resolve a stored fork: commit its winner, pick another attempt, or override a decision.

The decision is in the ledger before any file changes, so a fork whose process is killed in between is decided but not
committed, and ``commit_resolved`` finishes it. To allow an override, losers are shelved while their process lives.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from forkwise.errors import (
    BranchingError,
    BranchNotFoundError,
    CommitError,
    ForkResolvedError,
    ForkwiseWarning,
    LedgerError,
    RetestError,
)
from forkwise.files.rebase import compare_with_parent
from forkwise.files.shelf import ShelvedBranch, shelve
from forkwise.files.undo import commits_to_undo
from forkwise.files.workspace import Workspace
from forkwise.fork.agent_paths.sessions import conclude_agent_paths
from forkwise.fork.evaluation import Retest
from forkwise.fork.land import Landed, check_executables, commit_winner, land, rebase_over_reverted
from forkwise.fork.stored_fork import StoredFork, branch_gone_error, reconcile, warn_if_unrecorded
from forkwise.ledger.sqlite import open_ledger
from forkwise.testing.report import TestReport

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.store.changes import Commit, ConflictPolicy, OnConflict
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.evaluation import Evaluator
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord

__all__ = [
    "commit_resolved",
    "conclude",
    "pick",
    "replace_winner",
    "shelve_losers",
    "unshelve_loser",
]


def pick(
    workspace: Workspace | str | os.PathLike[str],
    attempt: str,
    *,
    on_conflict: OnConflict = "refuse",
    keep: bool = False,
    trust: bool = False,
    force: bool = False,
    tests: Evaluator | None = None,
    allow_executable_config: bool | None = None,
    include_ignored: bool = False,
) -> Commit:
    """Resolve a fork with one of its attempts: commit its changes, and drop the others (``keep``: keep them).

    The id of a fork instead of an attempt picks the attempt that was judged best. The fork may wait for a pick, be
    interrupted, still run (its other attempts are ended), or be decided for this attempt but not committed, for example
    because of a conflict. An attempt that did not succeed is refused unless ``force`` is set. ``on_conflict`` and
    ``trust`` are those of ``Branch.commit``.

    ``tests`` are those that the attempt passed: if the workspace changed since, the attempt is rebased and has to pass
    them again. If it fails, RetestError is raised, nothing is committed and the fork stays undecided.

    Raises ForkResolvedError if the fork was decided differently before, and ExecutableConfigError, with the fork
    undecided, as ``Branch.commit`` does.
    """
    workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
    with open_ledger(workspace) as ledger:
        if include_ignored:
            _include_ignored(ledger, workspace, attempt)
        if "." not in attempt and ledger.fork(attempt).stored == "resolved":
            return commit_resolved(
                ledger,
                workspace,
                attempt,
                on_conflict=on_conflict,
                trust=trust,
                keep=keep,
                tests=tests,
                allow_executable_config=allow_executable_config,
            ).commit
        chain = _list_enclosing(
            ledger, ledger.attempt(attempt) if "." in attempt else _find_verdict_winner(ledger, attempt)
        )
        innermost, fork = (StoredFork(ledger, workspace, one.fork) for one in (chain[0], chain[-1]))
        if fork.record.is_over:
            _decide(fork, chain[-1], {})
        else:
            _require_committable(innermost, chain[0], force=force)
            if (branch := fork.branch(chain[-1].branch)) is not None:
                check_executables(branch, allow_executable_config)
            # From the inside out: an inner decision has no effect until the outermost fork is decided.
            detail = {"keep": keep} if chain[0].state == "succeeded" else {"keep": keep, "force": True}
            for one in chain:
                _decide(StoredFork(ledger, workspace, one.fork), one, detail)
        return conclude(
            fork,
            keep=keep,
            on_conflict=on_conflict,
            trust=trust,
            tests=tests,
            allow_executable_config=allow_executable_config,
        ).commit


def _include_ignored(ledger: Ledger, workspace: Workspace, name: str) -> None:
    """Let the commit of an attempt, or of a fork's winner, take everything."""
    winner = name if "." in name else ledger.fork(name).winner
    found = _find_verdict_winner(ledger, name) if winner is None else ledger.attempt(winner)
    outermost = _list_enclosing(ledger, found)[-1]
    branch = StoredFork(ledger, workspace, outermost.fork).branch(outermost.branch)
    if branch is not None:
        branch.set_ignore(None)


def commit_resolved(
    ledger: Ledger,
    workspace: Workspace,
    fork: str,
    *,
    policy: ConflictPolicy | None = None,
    on_conflict: OnConflict = "refuse",
    trust: bool = False,
    keep: bool = False,
    tests: Evaluator | None = None,
    allow_executable_config: bool | None = None,
) -> Landed:
    """Commit a fork that was resolved but not committed, because of a conflict or because its process was killed.

    For ``tests`` see ``pick``.
    """
    stored = StoredFork(ledger, workspace, fork)
    record = stored.record
    if record.stored != "resolved" or record.commit is not None:
        how = record.state if record.commit is None else f"committed as {record.commit} already"
        raise ForkResolvedError(f"fork {record.id} has nothing to commit: it is {how}", fork=record.id)
    return conclude(
        stored,
        keep=keep,
        policy=policy,
        on_conflict=on_conflict,
        trust=trust,
        tests=tests,
        allow_executable_config=allow_executable_config,
    )


def conclude(
    fork: StoredFork,
    *,
    keep: bool = False,
    policy: ConflictPolicy | None = None,
    on_conflict: OnConflict = "refuse",
    trust: bool = False,
    tests: Evaluator | None = None,
    allow_executable_config: bool | None = None,
) -> Landed:
    """Commit a resolved fork and drop its other branches; ``policy`` (see ``land``) overrides ``on_conflict``.

    If the outcome has to pass ``tests`` again and fails, the decision is withdrawn and RetestError is raised.
    """
    fork.wait_until_idle()
    name = fork.outcome()
    commit = None if name is None else fork.find_commit(name)
    if commit is None:
        _undo_replaced(fork)
        retest = _build_retest(fork, tests)
        try:
            landed = _commit_outcome(fork, name, policy, on_conflict, trust, retest, allow_executable_config)
        except RetestError as error:
            if "replaces" in (fork.record.resolution or {}):
                _restore_replaced(fork, error)
            else:
                _withdraw(fork, error)
            raise
    else:
        landed = Landed(commit, commit.conflicts)
    with warn_if_unrecorded(f"fork {fork.id} was committed as {landed.commit.id}"):
        if commit is None:
            fork.ledger.record_commit(fork.id, landed.commit.id, landed.commit.paths)
        else:
            reconcile(fork.ledger, fork.workspace)  # records the commit, and an undo that followed it
        fork.abort_inside("the fork around it was decided")
        fork.drop(keep=keep, exclude=landed.kept)
    return landed


def _build_retest(fork: StoredFork, tests: Evaluator | None) -> Retest | None:
    """Return the retest of a fork's outcome; None if the outcome had not passed the tests before."""
    record = fork.record
    if tests is None or not tests.has_tests:
        return None
    report = (record.resolution or {}).get("tests")
    if record.winner is not None:
        winner = fork.ledger.attempt(record.winner)
        report = winner.tests
        if winner.state != "succeeded":
            return None
    return None if report is None or not TestReport.from_json(report).is_pass else Retest(tests)


_BY_HAND = ("pick", "combination", "choice")


def _withdraw(fork: StoredFork, error: RetestError) -> None:
    """Withdraw a decision whose outcome failed its tests. A fork that a person decided waits for another pick."""
    record = fork.record
    is_by_hand = (record.resolution or {}).get("how") in _BY_HAND
    fork.ledger.withdraw(fork.id, error.reason, "open" if is_by_hand else "running")
    if not is_by_hand and record.winner is not None:
        fork.ledger.reject_attempt(record.winner, error.reason, error.tests)


def _undo_replaced(fork: StoredFork) -> None:
    """Undo the commit that an override replaces. If that fails, reinstate the earlier decision."""
    number = (fork.record.resolution or {}).get("replaces")
    chain = _list_replaced(fork)
    if number is None or (chain and chain[-1].kind == "undo"):
        return
    try:
        fork.workspace.undo(chain[-1] if chain else number)  # raises if its record was collected
    except CommitError:
        fork.ledger.reinstate(fork.id)
        raise


def _restore_replaced(fork: StoredFork, error: RetestError) -> None:
    """Commit the earlier winner again, whose replacement failed its tests, and reinstate the earlier decision."""
    try:
        fork.workspace.undo(_list_replaced(fork)[-1])
    except CommitError as problem:
        error.add_note(f"the earlier winner is undone, and could not be committed again: {problem}")
    else:
        fork.ledger.reinstate(fork.id)


def _pass_over_replaced(fork: StoredFork, branch: Branch) -> None:
    """Rebase a replacement without a test, if only the winner's commit and its undo happened since its tests."""
    since = set(compare_with_parent(branch, scan=False).commits)
    if since and since <= {commit.id for commit in _list_replaced(fork)}:
        rebase_over_reverted(branch)


def _list_replaced(fork: StoredFork) -> list[Commit]:
    """List the commit that an override replaces with its undos and redos, the oldest first."""
    number = (fork.record.resolution or {}).get("replaces")
    chain: list[Commit] = []
    for commit in reversed(fork.workspace.history()):
        if number is not None and (commit.undoes == chain[-1].id if chain else commit.id == number):
            chain.append(commit)
    return chain


def _commit_outcome(
    fork: StoredFork,
    name: str | None,
    policy: ConflictPolicy | None,
    on_conflict: OnConflict,
    trust: bool,
    retest: Retest | None,
    allow: bool | None,
) -> Landed:
    branch = None if name is None else fork.branch(name)
    if branch is None:
        raise BranchNotFoundError(
            f"fork {fork.id} was decided, but the branch of its winner no longer exists: {name}", branch=name
        )
    winner = fork.record.winner
    if winner is not None:
        _commit_nested(fork, winner, branch, on_conflict, trust)
    try:
        if retest is not None and not branch.view_kind.native:
            _pass_over_replaced(fork, branch)
        with conclude_agent_paths(branch):
            if policy is not None:
                return land(branch, policy, retest=retest, allow_executable_config=allow)
            commit = commit_winner(branch, on_conflict, trust=trust, retest=retest, allow_executable_config=allow)
            return Landed(commit)
    except BranchingError:
        with suppress(BranchNotFoundError):
            branch.keep()
        raise


def _commit_nested(fork: StoredFork, winner: str, branch: Branch, on_conflict: OnConflict, trust: bool) -> None:
    """Commit the forks that were resolved inside the winner into its branch, and drop all other branches inside it."""
    for inner in fork.inside(winner):
        name = inner.outcome()
        if inner.record.stored == "resolved" and name is not None and inner.branch(name) is not None:
            conclude(inner, on_conflict=on_conflict, trust=trust)
        else:
            fork.ledger.abort_fork(inner.id, "the fork around it was decided")
            inner.abort_inside("the fork around it was decided")
            inner.drop()
    for left in branch.children():
        if not left.kept and not left.owner_alive:
            left.abort()


def _find_verdict_winner(ledger: Ledger, fork: str) -> AttemptRecord:
    """Find the attempt that was judged best in a fork. Raises LedgerError if there is none."""
    record = ledger.fork(fork)
    name = (record.verdict or {}).get("winner")
    if isinstance(name, str):
        return ledger.attempt(name)
    names = [attempt.id for attempt in ledger.attempts(record.id)]
    raise LedgerError(
        f"no attempt of fork {record.id} was judged best: name an attempt ({', '.join(names) or 'it has none'})",
        subject=record.id,
        near=names,
    )


def _list_enclosing(ledger: Ledger, attempt: AttemptRecord) -> list[AttemptRecord]:
    """List an attempt, the attempt around its fork, and so on to the outermost."""
    chain = [attempt]
    while parent := ledger.fork(chain[-1].fork).parent:
        chain.append(ledger.attempt(parent))
    return chain


def _decide(fork: StoredFork, attempt: AttemptRecord, detail: Mapping[str, Any]) -> None:
    """Decide a fork for an attempt. Raises ForkResolvedError if the fork was decided differently before."""
    if fork.ledger.resolve(fork.id, how="pick", winner=attempt.id, detail=detail):
        return
    record = fork.record
    if record.stored == "resolved" and record.commit is None and record.winner == attempt.id:
        return
    how = record.state if record.commit is None else f"committed as {record.commit}"
    winner = f" (for {record.winner})" if record.winner else ""
    raise ForkResolvedError(f"fork {record.id} was {how}{winner} already; a fork is decided only once", fork=record.id)


def _require_committable(fork: StoredFork, attempt: AttemptRecord, *, force: bool) -> None:
    """Raise LedgerError or BranchNotFoundError unless an attempt can be committed."""
    if fork.record.state == "running" and not attempt.is_over:
        raise LedgerError(f"attempt {attempt.id} is {attempt.state}: wait until it is over", subject=attempt.id)
    if attempt.state != "succeeded" and not force:
        why = f"{attempt.state}: {attempt.reason}" if attempt.reason else attempt.state
        raise LedgerError(
            f"attempt {attempt.id} did not succeed ({why}): use force=True (--force) to commit it anyway",
            subject=attempt.id,
        )
    if fork.branch(attempt.branch) is None:
        raise branch_gone_error(attempt)


def shelve_losers(attempts: Iterable[Attempt]) -> dict[str, ShelvedBranch]:
    """Shelve the branches of finished attempts; return them by the attempts' ids."""
    shelved = {}
    for attempt in attempts:
        if attempt.branch is not None:
            try:
                shelved[attempt.id] = shelve(attempt.branch)
            except BranchingError as error:
                warnings.warn(
                    f"an override for {attempt.id} will not be possible: {error}", ForkwiseWarning, stacklevel=2
                )
    return shelved


def unshelve_loser(workspace: Workspace, fork: str, loser: ShelvedBranch) -> Branch:
    """Restore the shelved branch of a loser. Raises CommitError if the winner's commit is not the workspace's last."""
    with open_ledger(workspace) as ledger:
        commit = ledger.fork(fork).commit
    if commit is None or commits_to_undo(workspace.history(), commit):
        raise CommitError(
            f"fork {fork} cannot be overridden: {workspace.path} has commits after the winner's commit {commit}, or "
            "that was undone. Undo the later commits first"
        )
    return loser.unshelve()


def replace_winner(
    workspace: Workspace,
    fork: str,
    attempt: str,
    policy: ConflictPolicy,
    *,
    tests: Evaluator | None = None,
    allow_executable_config: bool | None = None,
) -> Landed:
    """Override a fork's decision: undo the winner's commit and commit an unshelved attempt's branch instead.

    Raises CommitError, with nothing changed, if the files of the winner's commit were changed since, and
    ExecutableConfigError. For ``tests`` see ``pick``: after RetestError the winner is committed again.
    """
    with open_ledger(workspace) as ledger:
        stored = StoredFork(ledger, workspace, fork)
        if (branch := stored.branch(ledger.attempt(attempt).branch)) is not None:
            check_executables(branch, allow_executable_config)  # now: the winner is undone before the commit
        ledger.override(fork, attempt)
        return conclude(stored, policy=policy, tests=tests, allow_executable_config=allow_executable_config)
