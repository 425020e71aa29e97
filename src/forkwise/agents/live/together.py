"""Together: a fork decided for the work of several of its branches: their files merged, their conversations in a row.

Branches that were stopped by a budget, terminated, or failed after they had spoken, are taken with what they did until
then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic_ai.messages import ModelMessage

from forkwise.agents.live.live_fork import LiveFork
from forkwise.agents.live.merging import FlushReport, MergeResult
from forkwise.agents.live.overlay_files import FilesOverlay, conflict_contents
from forkwise.agents.live.replaying import content_of, replay
from forkwise.agents.live.runtime import BranchRuntime
from forkwise.agents.live.settling import as_parents, merged
from forkwise.agents.live.thread import Thread, own_turns, successive
from forkwise.errors import ConflictError, ForkResolvedError
from forkwise.files.conflict import Conflict
from forkwise.files.merge import is_text, merge
from forkwise.fork.combining import combine_attempts
from forkwise.sandbox.threads import in_thread

__all__ = ["combine_branches", "in_a_row"]


async def combine_branches(
    live: LiveFork, chosen: Sequence[BranchRuntime], prefer: Mapping[str, str], favourites: Sequence[str]
) -> MergeResult:
    """Decide for the work of several branches. Where they clash and nobody says whose version it is, the one that a
    judge chose counts; where none did, ConflictError names the paths, and nothing is decided."""
    if len({runtime.id for runtime in chosen}) < 2:
        raise ValueError("two branches at least are combined")
    if live.ground.is_in_memory:
        report = _combine_in_memory(live, chosen, prefer, favourites)
    else:
        report = await _combine_files(live, chosen, prefer, favourites)
    return merged(live, chosen, in_a_row([runtime.thread for runtime in chosen]), report)


def in_a_row(threads: Sequence[Thread]) -> list[ModelMessage]:
    """What was said before the fork, and then in one branch after the other, as providers take it."""
    first, *others = threads
    return successive(as_parents(first.history(), first.start.depth), *map(own_turns, others))


async def _combine_files(
    live: LiveFork, chosen: Sequence[BranchRuntime], prefer: Mapping[str, str], favourites: Sequence[str]
) -> FlushReport:
    overlays = [runtime.overlay for runtime in chosen if isinstance(runtime.overlay, FilesOverlay)]
    changes = [change for overlay in overlays for change in await in_thread(overlay.changes)]
    ids = {name: runtime.id for runtime in chosen for name in (runtime.id, runtime.spec.label)}
    done = await combine_attempts(
        live.ground.parent.workspace,
        [runtime.id for runtime in chosen],
        tests=None,
        prefer={path: ids.get(name, name) for path, name in prefer.items()},
        favour=[name for name in favourites if name in ids],
        partial=True,
        policy=live.fork.settings.policy,
    )
    if done.landed is None:
        raise _clash([Conflict(one.path, "unmerged", one.detail) for one in done.conflicts])
    parent, landed = live.ground.parent, done.landed
    await in_thread(lambda: parent.path)  # its view went down with the commit; whoever works there goes on
    touched = set(landed.commit.paths)
    return FlushReport(
        applied_paths=sorted([*landed.commit.added, *landed.commit.changed]),
        applied_changes=sum(change.path in touched for change in changes),
        conflicts=sorted(conflict.path for conflict in landed.conflicts),
        errors=[],
        deleted_paths=sorted(landed.commit.deleted),
        conflict_contents=await in_thread(conflict_contents, landed),
        kept_branch=landed.kept.branch_path if landed.kept else None,
    )


def _combine_in_memory(
    live: LiveFork, chosen: Sequence[BranchRuntime], prefer: Mapping[str, str], favourites: Sequence[str]
) -> FlushReport:
    touched = {runtime.id: set(runtime.overlay.touched()) for runtime in chosen}
    made: dict[str, bytes | None] = {}
    base: dict[str, bytes | None] = {}
    clashes = []
    for path in sorted(frozenset[str]().union(*touched.values())):
        those = [runtime for runtime in chosen if path in touched[runtime.id]]
        base[path] = those[0].overlay.old(path)
        versions = {runtime.id: runtime.overlay.new(path) for runtime in those}
        decided = [r.id for r in those if prefer.get(path) in (r.id, r.spec.label)] + [*favourites]
        whose = next((name for name in decided if name in versions), None)
        if whose is not None or len(set(versions.values())) == 1:
            made[path] = versions[whose or those[0].id]
            continue
        made[path] = _merged(base[path], list(versions.values()))
        if made[path] is None:
            clashes.append(Conflict(path, "unmerged", f"{' and '.join(versions)} changed it differently"))
    if clashes:
        raise _clash(clashes)
    backend, fork = live.ground.backend, live.fork
    if not fork.ledger.resolve(fork.id, how="combination", detail={"attempts": [r.id for r in chosen]}):
        raise ForkResolvedError(f"fork {fork.id} was decided meanwhile", fork=fork.id)
    changes = [change for runtime in chosen for change in runtime.overlay.changes()]
    policy = live.plan.strategy.conflict_policy
    return replay(made, changes, backend, lambda path: content_of(backend, path) != base[path], policy)


def _merged(base: bytes | None, versions: Sequence[bytes | None]) -> bytes | None:
    """All versions of a text in one; None where they do not go together."""
    if base is None or not is_text(base):
        return None
    whole = base
    for version in versions:
        if version is None or not is_text(version) or not (made := merge(base, whole, version)).clean:
            return None
        whole = made.content
    return whole


def _clash(conflicts: Sequence[Conflict]) -> ConflictError:
    """The error that says on what branches do not agree."""
    told = "; ".join(map(str, conflicts[:5]))
    return ConflictError(
        f"nothing was merged: {told}. Say whose version it is to be, or pick one branch", conflicts=conflicts
    )
