"""Land a branch: commit it into its parent, whatever changed there since the fork.

A branch whose parent has newer commits is rebased first; a policy decides conflicts. With a retest, a winner is
committed only if its tests passed on exactly the files that the commit results in: if the parent was changed since the
fork, by another commit or by edits that a commit notices, the winner is rebased, tested again, and committed only if
the parent did not change meanwhile; otherwise that is repeated a few times.
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkwise.errors import BranchStaleError, CommitError, ConflictError, ForkwiseWarning, RetestError
from forkwise.files.executable_config import check_executable_config
from forkwise.files.file_tree import FileTree
from forkwise.files.rebase import Standing, compare_with_parent
from forkwise.files.store.branch_info import DataDirectories
from forkwise.files.store.changes import Conflict
from forkwise.linux.file_write import replace_file
from forkwise.text.phrases import join_first

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.rebase import Rebase
    from forkwise.files.store.changes import Commit, ConflictPolicy, OnConflict
    from forkwise.fork.evaluation import Evaluation, Retest

__all__ = [
    "Landed",
    "check_executables",
    "commit_winner",
    "decide_conflicts",
    "land",
    "prepare_commit",
    "rebase_over_reverted",
]

_MAX_ROUNDS = 5  # how often a winner is rebased and tested again before the commit fails
_SHOWN = 3
_FILE = "tested"  # in the branch's home: the rebase after which the tests passed


def check_executables(branch: Branch, allow_executable_config: bool | None = None) -> None:
    """Raise ExecutableConfigError if committing the branch would, for callers that must know before they decide.

    ``allow_executable_config`` is that of the commit.
    """
    allow = branch.workspace.allow_executable_config if allow_executable_config is None else allow_executable_config
    is_checked = not allow and branch.parent is branch.workspace and not branch.view_kind.native
    if is_checked and branch.is_confined:
        check_executable_config(branch, dict(branch.delta().executable_config))


def commit_winner(
    branch: Branch,
    on_conflict: OnConflict,
    *,
    trust: bool = False,
    retest: Retest | None = None,
    allow_executable_config: bool | None = None,
) -> Commit:
    """Commit a branch, after rebasing it if its parent has newer commits.

    A path that both sides changed is a conflict: ConflictError unless ``on_conflict`` decides. The branch then holds
    both changes if they could be merged as text, otherwise its own. With ``retest``, a branch whose parent changed is
    tested again: RetestError if it fails.
    """
    if retest is not None and not branch.view_kind.native:
        return _commit_retested(
            branch, on_conflict, retest, trust=trust, allow_executable_config=allow_executable_config
        )
    while True:
        try:
            return branch.commit(on_conflict=on_conflict, trust=trust, allow_executable_config=allow_executable_config)
        except BranchStaleError:
            if branch.view_kind.native:
                raise
            done = branch.rebase()
        _require_accepted(branch, done, on_conflict)


@dataclass(frozen=True, slots=True)
class Landed:
    """A committed winner, with the conflicts that were decided.

    ``kept`` is the branch with the winner's versions of the conflicting paths, if the parent's versions were used.
    """

    commit: Commit
    conflicts: tuple[Conflict, ...] = ()
    kept: Branch | None = None


def land(
    branch: Branch,
    policy: ConflictPolicy = "keep_newer",
    *,
    retest: Retest | None = None,
    allow_executable_config: bool | None = None,
) -> Landed:
    """Commit a branch atomically; ``policy`` decides every conflict, and neither version is lost.

    Versions that the winner replaces are in the commit's undo record. If the parent's versions are used, the winner's
    are kept in a branch of the workspace, which the user can inspect, commit or abort. With ``retest``, a branch whose
    parent changed is tested again: RetestError if it fails.
    """
    if retest is not None and not branch.view_kind.native:
        return _land_retested(branch, policy, retest, allow_executable_config)
    while True:
        try:
            try:
                return Landed(branch.commit(allow_executable_config=allow_executable_config))
            except BranchStaleError:
                raise
            except ConflictError as error:
                return _land_with_conflicts(branch, policy, error.conflicts, allow_executable_config)
        except BranchStaleError:
            if branch.view_kind.native:
                raise
            branch.rebase(merge=False)


def decide_conflicts(policy: ConflictPolicy) -> OnConflict:
    """Return the ``on_conflict`` of a commit that decides conflicts as a policy says."""
    return "ours" if policy == "last_write_wins" else "theirs"


def _land_retested(branch: Branch, policy: ConflictPolicy, retest: Retest, allow: bool | None) -> Landed:
    on_conflict = decide_conflicts(policy)
    for _ in range(_MAX_ROUNDS):
        prepare_commit(branch, on_conflict, retest, merges=False)
        left = [c.path for c in compare_with_parent(branch).unresolved if c.kind != "metadata"]
        kept = _keep_versions(branch, left) if on_conflict == "theirs" else None
        try:
            commit = branch.commit(on_conflict=on_conflict, rebased=True, allow_executable_config=allow)
            return Landed(commit, commit.conflicts, kept)
        except BaseException as error:
            if kept is not None:
                kept.abort()
            if not isinstance(error, ConflictError):  # a ConflictError means that the parent changed after the test
                raise
    raise _build_busy_error(branch)


def _land_with_conflicts(
    branch: Branch, policy: ConflictPolicy, conflicts: Sequence[Conflict], allow: bool | None
) -> Landed:
    if policy == "last_write_wins":
        commit = branch.commit(on_conflict="ours", allow_executable_config=allow)
        return Landed(commit, commit.conflicts)
    kept = _keep_versions(branch, [c.path for c in conflicts if c.kind != "metadata"])
    try:
        commit = branch.commit(on_conflict="theirs", allow_executable_config=allow)
    except BaseException:
        if kept is not None:
            kept.abort()
        raise
    return Landed(commit, commit.conflicts, kept)


def _keep_versions(branch: Branch, paths: Sequence[str]) -> Branch | None:
    data = branch.data_directories if not branch.view_kind.native else DataDirectories()
    mixed = [] if branch.view_kind.whole else [path for path in paths if path in data.whole]
    if mixed:
        # A layer has only the files that the branch changed, and the parent has changed others of the same database.
        warnings.warn(
            f"{branch.branch_path}: its version of the database {', '.join(mixed)} was dropped, because the parent's "
            "was changed since the fork: the parent's is kept",
            ForkwiseWarning,
            stacklevel=4,
        )
        paths = [path for path in paths if path not in mixed]
    if not paths:
        return None
    kept = branch.workspace.branch(f"{branch.name[:150]}-conflicts-{secrets.token_hex(2)}", None, None)
    try:
        if branch.is_confined:
            kept.mark_confined()
        if data != DataDirectories():
            kept.set_data_directories(data)
        ours, theirs = (FileTree(os.fspath(b.path), os.fspath(b.workspace.path)) for b in (branch, kept))
        for path in paths:
            theirs.copy_from(ours, path)
        return kept.keep()
    except BaseException:
        kept.abort()
        raise


def _commit_retested(
    branch: Branch,
    on_conflict: OnConflict,
    retest: Retest,
    *,
    trust: bool = False,
    merges: bool = True,
    allow_executable_config: bool | None = None,
) -> Commit:
    """Commit a branch after ``prepare_commit``; prepare it again if the parent changes in between.

    Raises RetestError if the tests fail, ConflictError if ``on_conflict`` does not decide, and CommitError if the
    parent changes every time. Nothing is committed then.
    """
    for _ in range(_MAX_ROUNDS):
        prepare_commit(branch, on_conflict, retest, merges=merges)
        try:
            return branch.commit(
                on_conflict=on_conflict, trust=trust, rebased=True, allow_executable_config=allow_executable_config
            )
        except BranchStaleError:
            continue
        except ConflictError:
            if on_conflict == "refuse" or not compare_with_parent(branch).has_moved:
                raise
    raise _build_busy_error(branch)


def prepare_commit(branch: Branch, on_conflict: OnConflict, retest: Retest, *, merges: bool = True) -> None:
    """Rebase a branch and test it again, if its parent was changed or it was rebased since its tests passed.

    ``on_conflict`` says how the commit will resolve conflicts, so that the result of that is tested. With ``merges``,
    text that commits changed as well is merged, which only ``on_conflict`` other than ``refuse`` accepts. Raises as
    ``commit_winner`` does; the branch then holds what was tested.
    """
    together: list[str] = []
    for _ in range(2 * _MAX_ROUNDS + 1):  # a rebase and a test each time, and a final check
        standing = compare_with_parent(branch, scan=on_conflict != "refuse")
        if standing.has_moved:
            _rebase(branch, standing, on_conflict, merges=merges)
            together += _describe(standing)
            continue
        stamp = f"{standing.rebased} {on_conflict if standing.unresolved else ''}"
        if (standing.rebased == 0 and not standing.unresolved) or _read_stamp(branch) == stamp:
            return
        replaced = [c.path for c in standing.unresolved if c.kind != "metadata"] if on_conflict == "theirs" else []
        _require_pass(branch, retest.run(branch, replaced), together)
        _write_stamp(branch, stamp)
    raise _build_busy_error(branch)


def rebase_over_reverted(branch: Branch) -> None:
    """Rebase a branch over commits that cancel each other out; its tests count, unless others edited its paths."""
    done = branch.rebase(merge=False)
    standing = compare_with_parent(branch)
    if not (done.conflicts or standing.has_moved or standing.unresolved):
        _write_stamp(branch, f"{standing.rebased} ")


def _require_accepted(branch: Branch, done: Rebase, on_conflict: OnConflict) -> None:
    """Raise ConflictError if a rebase merged text and ``on_conflict`` does not accept that unseen."""
    if done.merged and on_conflict == "refuse":
        raise ConflictError(
            f"{branch.branch_path} was not committed: other commits changed {join_first(done.merged, 5)} in the "
            "meantime. The branch now holds both changes: review and commit it, or use on_conflict='merge'",
            branch=branch.name,
            conflicts=[Conflict(path, "changed", "committed to by others") for path in done.merged],
        )


def _rebase(branch: Branch, standing: Standing, on_conflict: OnConflict, *, merges: bool) -> None:
    done = branch.rebase(merge=merges if standing.commits else on_conflict == "merge")
    _require_accepted(branch, done, on_conflict)
    if done.conflicts and on_conflict in ("refuse", "merge"):
        shown = join_first(done.conflicts, 5, "; ")
        raise ConflictError(
            f"{branch.branch_path} was not committed, nothing was changed: {shown}. Choose on_conflict='ours' or "
            "'theirs'",
            branch=branch.name,
            conflicts=done.conflicts,
        )


def _require_pass(branch: Branch, evaluation: Evaluation, together: Sequence[str]) -> None:
    if evaluation.success:
        return
    found = list(dict.fromkeys(together))
    others = join_first(found, _SHOWN)
    reason = f"passed alone, fails together with {others or 'what was committed since'}: {evaluation.reason}"
    raise RetestError(
        f"{branch.branch_path} was not committed, nothing was changed: it {reason}. Fix it in the branch, pick another "
        "attempt, or commit it without a retest (retest=False, --no-retest)",
        branch=branch.name,
        reason=reason,
        tests=None if evaluation.tests is None else evaluation.tests.as_json(),
    )


def _describe(standing: Standing) -> list[str]:
    """Describe what changed in the parent."""
    commits = [f"commit {number}{f' ({name})' if name else ''}" for number, name in standing.commits.items()]
    return commits + [f"edits of {conflict.path}" for conflict in standing.edited]


def _build_busy_error(branch: Branch) -> CommitError:
    """Build the error for a branch whose parent changed every time the branch was tested."""
    return CommitError(
        f"{branch.branch_path} was not committed, nothing was changed: {branch.parent.branch_path} changed each of the "
        f"{_MAX_ROUNDS} times that the branch was tested. Commit it once fewer commits are made, or without a retest "
        "(retest=False, --no-retest)",
        branch=branch.name,
    )


def _read_stamp(branch: Branch) -> str:
    with suppress(OSError, UnicodeDecodeError), open(f"{branch.home}/{_FILE}") as file:
        return file.read(100)
    return ""


def _write_stamp(branch: Branch, stamp: str) -> None:
    """Record that the tests passed. A lost record only costs another test."""
    replace_file(f"{branch.home}/{_FILE}", stamp, beside=f"{branch.home}/.{_FILE}")
