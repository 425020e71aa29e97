"""The merge of a live fork: one branch committed, several combined, or the winner replaced by another branch.

In a combination, the files are merged and the conversations are joined. Branches that a budget stopped, that were
terminated, or that failed after their first response, take part with what they did until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage, ModelResponse

from forkwise.concurrency import finish, run_in_thread
from forkwise.errors import ConflictError, ForkResolvedError, RetestError
from forkwise.files.store.changes import Conflict
from forkwise.files.workspace import Workspace
from forkwise.fork.combine import combine_attempts
from forkwise.fork.evaluators.tests import Tests
from forkwise.fork.stored_fork import warn_if_unrecorded
from forkwise.git.repository_change import format_left_repositories
from forkwise.ledger.sqlite import open_ledger
from forkwise.live.backends.branch_overlay import FilesOverlay, conflict_contents, content_of, replay
from forkwise.live.branch_runtime import BranchRuntime, Thread, concatenate, own_turns
from forkwise.live.values import FlushReport, MergeResult
from forkwise.text.merge3 import is_text, merge
from forkwise.text.phrases import join_first

if TYPE_CHECKING:
    from forkwise.live.live_fork import LiveFork
    from forkwise.testing.report import TestReport

__all__ = [
    "check_mergeable",
    "combine_branches",
    "commit_branch",
    "detach_history",
    "is_mergeable",
    "join_threads",
    "override_winner",
]


def is_mergeable(runtime: BranchRuntime) -> bool:
    """Return whether a branch can be merged: it is done, or was stopped after its first response."""
    state = runtime.status.state
    return state == "done" or (state != "failed" and (bool(runtime.partial_history) or runtime.thread.has_response))


def check_mergeable(branches: Sequence[BranchRuntime], *, together: bool = False) -> None:
    """Raise RuntimeError if one of the branches cannot be merged.

    A branch that failed after its first response cannot be picked, but it can be combined (``together``) with others.
    """
    for runtime in branches:
        if not is_mergeable(runtime) and not (together and runtime.thread.has_response):
            error = f": {runtime.status.error}" if runtime.status.error else ""
            raise RuntimeError(f"branch {runtime.id} cannot be merged, it is {runtime.status.state}{error}")


async def commit_branch(live: LiveFork, winner: BranchRuntime, kind: str, detail: Mapping[str, Any]) -> MergeResult:
    """Resolve the fork for one branch."""
    forced = {} if winner.attempt.success else {"force": True}
    report = await live.commit(winner, kind, {**detail, **forced})
    history = detach_history(winner.thread.history(), winner.thread.start.depth)
    return _build_result(live, [winner], history, report)


async def override_winner(
    live: LiveFork, runtime: BranchRuntime, *, tests: Tests | None, allow_executable_config: bool | None
) -> MergeResult:
    """Replace the winner that a judge chose by another branch."""
    rejected = live.rejected
    if rejected is None:
        raise RuntimeError(
            f"fork {live.fork.id} cannot be overridden: no judge decided it, or it was decided inside a branch. Only a "
            "merge by auto or vote into the agent's own files can be overridden"
        )
    if runtime.id not in rejected.ids or not is_mergeable(runtime):
        raise RuntimeError(f"branch {runtime.id} ({runtime.spec.label}) is the winner already, or has nothing to merge")
    report = await run_in_thread(
        rejected.replace_winner,
        runtime.id,
        runtime.spec.label,
        live.plan.strategy.conflict_policy,
        tests=tests,
        allow_executable_config=allow_executable_config,
    )
    history = detach_history(runtime.thread.history(), runtime.thread.start.depth)
    return _build_result(live, [runtime], history, report)


def _build_result(
    live: LiveFork, chosen: Sequence[BranchRuntime], history: list[ModelMessage], report: FlushReport
) -> MergeResult:
    """Build the result of a merge of the ``chosen`` branches."""
    names = {runtime.id for runtime in chosen}
    commit = None
    if not live.source.is_in_memory and isinstance(live.source.parent, Workspace):
        with warn_if_unrecorded(f"fork {live.fork.id} was committed"), open_ledger(live.source.parent) as ledger:
            commit = ledger.fork(live.fork.id).commit
    return MergeResult(
        fork_id=live.fork.id,
        winner_branch_id=chosen[0].id,
        discarded_branches=[name for name in live.branches if name not in names],
        history_after_merge=history,
        applied_paths=report.applied_paths,
        applied_changes=report.applied_changes,
        conflicts=report.conflicts,
        errors=report.errors,
        deleted_paths=report.deleted_paths,
        blocked_commands=[command for runtime in chosen for command in runtime.blocked_commands],
        conflict_contents=report.conflict_contents,
        kept_branch=report.kept_branch,
        combined_branches=[runtime.id for runtime in chosen] if len(chosen) > 1 else [],
        commit_id=None if commit is None else str(commit),
        left_repositories=report.left_repositories,
    )


def detach_history(history: Sequence[ModelMessage], before: int) -> list[ModelMessage]:
    """Return a branch's history for the parent: messages from ``before`` on no longer name the branch's workspace.

    A request has the run id of its response: the tree stores the request before the run has an id.
    """
    detached: list[ModelMessage] = []
    run_id: str | None = None
    for number in reversed(range(len(history))):
        message = history[number]
        if isinstance(message, ModelResponse):
            run_id = message.run_id
            if number >= before and message.workspace_ref is not None:
                message = replace(message, workspace_ref=None)
        elif number >= before and message.run_id is None and run_id is not None:
            message = replace(message, run_id=run_id)
        detached.append(message)
    return detached[::-1]


async def combine_branches(
    live: LiveFork, chosen: Sequence[BranchRuntime], prefer: Mapping[str, str], favourites: Sequence[str]
) -> MergeResult:
    """Resolve the fork for the combined work of several branches.

    ``prefer`` maps paths to the branch whose version wins a conflict; without an entry, the first of ``favourites``
    that changed the path wins. Raises ConflictError with the paths, and resolves nothing, if conflicts remain.
    """
    if len({runtime.id for runtime in chosen}) < 2:
        raise ValueError("a combination needs at least two branches")
    if live.source.is_in_memory:
        report = await finish(run_in_thread(_combine_in_memory, live, chosen, prefer, favourites))
    else:
        report = await _combine_files(live, chosen, prefer, favourites)
    return _build_result(live, chosen, join_threads([runtime.thread for runtime in chosen]), report)


def join_threads(threads: Sequence[Thread]) -> list[ModelMessage]:
    """Join the history from before the fork and the messages of one branch after the other."""
    first, *others = threads
    return concatenate(detach_history(first.history(), first.start.depth), *map(own_turns, others))


async def _combine_files(
    live: LiveFork, chosen: Sequence[BranchRuntime], prefer: Mapping[str, str], favourites: Sequence[str]
) -> FlushReport:
    overlays = [runtime.overlay for runtime in chosen if isinstance(runtime.overlay, FilesOverlay)]
    changes = [change for overlay in overlays for change in await run_in_thread(overlay.changes)]
    ids = {name: runtime.id for runtime in chosen for name in (runtime.id, runtime.spec.label)}
    tests = live.fork.settings.retest
    assert tests is None or isinstance(tests, Tests)
    done = await combine_attempts(
        live.source.parent.workspace,
        [runtime.id for runtime in chosen],
        tests=tests,
        prefer={path: ids.get(name, name) for path, name in prefer.items()},
        favour=[name for name in favourites if name in ids],
        partial=True,
        policy=live.fork.settings.policy,
        allow_executable_config=live.fork.settings.allow_executable_config,
    )
    if done.landed is None and not done.conflicts:
        raise _build_test_error(chosen, done.tests)
    if done.landed is None:
        raise _unmerged_error([Conflict(found.path, "unmerged", found.detail) for found in done.conflicts])
    parent, landed = live.source.parent, done.landed
    await run_in_thread(lambda: parent.path)  # the commit unmounted the view: mount it again for processes that use it
    touched = set(landed.commit.paths)
    return FlushReport(
        applied_paths=sorted([*landed.commit.added, *landed.commit.changed]),
        applied_changes=sum(change.path in touched for change in changes),
        conflicts=sorted(conflict.path for conflict in landed.conflicts),
        errors=[],
        deleted_paths=sorted(landed.commit.deleted),
        conflict_contents=await run_in_thread(conflict_contents, landed),
        kept_branch=landed.kept.branch_path if landed.kept else None,
        left_repositories=format_left_repositories(done.left_repositories),
    )


def _combine_in_memory(
    live: LiveFork, chosen: Sequence[BranchRuntime], prefer: Mapping[str, str], favourites: Sequence[str]
) -> FlushReport:
    touched = {runtime.id: set(runtime.overlay.touched()) for runtime in chosen}
    merged: dict[str, bytes | None] = {}
    base: dict[str, bytes | None] = {}
    conflicts = []
    for path in sorted(frozenset[str]().union(*touched.values())):
        writers = [runtime for runtime in chosen if path in touched[runtime.id]]
        base[path] = writers[0].overlay.old(path)
        versions = {runtime.id: runtime.overlay.new(path) for runtime in writers}
        preferred = [r.id for r in writers if prefer.get(path) in (r.id, r.spec.label)] + [*favourites]
        winner = next((name for name in preferred if name in versions), None)
        if winner is not None or len(set(versions.values())) == 1:
            merged[path] = versions[winner or writers[0].id]
            continue
        merged[path] = _merge_texts(base[path], list(versions.values()))
        if merged[path] is None:
            conflicts.append(Conflict(path, "unmerged", f"{' and '.join(versions)} changed it differently"))
    if conflicts:
        raise _unmerged_error(conflicts)
    backend, fork = live.source.backend, live.fork
    if not fork.ledger.resolve(fork.id, how="combination", detail={"attempts": [r.id for r in chosen]}):
        raise ForkResolvedError(f"another process resolved fork {fork.id} meanwhile", fork=fork.id)
    changes = [change for runtime in chosen for change in runtime.overlay.changes()]
    policy = live.plan.strategy.conflict_policy
    return replay(merged, changes, backend, lambda path: content_of(backend, path) != base[path], policy)


def _merge_texts(base: bytes | None, versions: Sequence[bytes | None]) -> bytes | None:
    """Merge all versions of a text into one; return None if that leaves conflicts."""
    if base is None or not is_text(base):
        return None
    content = base
    for version in versions:
        if version is None or not is_text(version) or not (merged := merge(base, content, version)).clean:
            return None
        content = merged.content
    return content


def _build_test_error(chosen: Sequence[BranchRuntime], report: TestReport | None) -> RetestError:
    labels = " and ".join(runtime.spec.label for runtime in chosen)
    reason = "tests failed" if report is None else report.doubt or report.summary
    return RetestError(
        f"nothing was merged: {labels} passed their tests alone, and fail them together: {reason}. Fix one of them, "
        "pick one branch, or merge without a retest (retest=False)",
        reason=reason,
        tests=None if report is None else report.as_json(),
    )


def _unmerged_error(conflicts: Sequence[Conflict]) -> ConflictError:
    shown = join_first(conflicts, 5, "; ")
    return ConflictError(
        f"nothing was merged: {shown}. Pass prefer={{path: branch}} for these paths, or pick one branch",
        conflicts=conflicts,
    )
