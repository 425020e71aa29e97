"""Rebase: a branch brought from the parent it was forked from onto the parent as it is now."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from forkwise.errors import BranchError
from forkwise.files.branch import Parent
from forkwise.files.old_versions import active_commits, chains_since, find_merge_base, mode_at_fork
from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.changes import Conflict
from forkwise.files.store.commit_plan import find_conflicts, unresolved
from forkwise.files.store.journal import Meta, directory_facts, set_metas
from forkwise.files.store.overlayfs import Lower, mark_origins, unmark_origins
from forkwise.files.store.record import Record
from forkwise.files.store.scan import Entry, Scan, Touched
from forkwise.files.store.state import Lock, locked
from forkwise.files.store.trash import discard
from forkwise.files.undo import Restored, records_of
from forkwise.files.versions import Versions
from forkwise.linux.syscalls import RENAME_EXCHANGE, renameat2
from forkwise.linux.trees import copy_entry, join, open_directory, open_root, remove_tree, writable
from forkwise.text.merge3 import is_text, merge

if TYPE_CHECKING:
    from forkwise.files.branch import Branch

__all__ = [
    "Rebase",
    "merge_conflicts",
    "rebase_branch",
]


def merge_conflicts(
    conflicts: Iterable[Conflict], entries: Mapping[str, Entry], versions: Versions, parent: Parent, birth: BranchInfo
) -> tuple[dict[str, bytes], list[Conflict]]:
    """The merged content of every path that could be merged, and the conflicts that could not."""
    merged: dict[str, bytes] = {}
    left = []
    for conflict in conflicts:
        entry = entries.get(conflict.path)
        outcome = _merge(entry, versions, parent, birth) if entry else "it is a directory's metadata"
        if isinstance(outcome, bytes):
            merged[conflict.path] = outcome
        else:
            left.append(Conflict(conflict.path, "unmerged", f"{conflict.detail}; {outcome}"))
    return merged, left


def _merge(entry: Entry, versions: Versions, parent: Parent, birth: BranchInfo) -> bytes | str:
    new, old = entry.new, entry.old
    if new is None or old is None or not (stat.S_ISREG(new.st_mode) and stat.S_ISREG(old.st_mode)):
        return "only the text of files can be merged"
    base = find_merge_base(parent, entry.path, birth.generation, birth.forked)
    if base is None:
        return "what it was when the branch was made is not known"
    ours, theirs = versions.new(entry), versions.old(entry)
    if not (is_text(base) and is_text(ours) and is_text(theirs)):
        return "it is not text"
    result = merge(base, ours, theirs)
    if not result.clean:
        lines = ", ".join(str(h.start + 1) for h in result.conflicts)
        return f"both changed the same lines (of the common version: {lines})"
    return result.content


@dataclass(frozen=True, slots=True)
class Rebase:
    """What a rebase did: the paths it merged, and the conflicts that are left for somebody to decide."""

    merged: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


def rebase_branch(branch: Branch, *, merge: bool = True) -> Rebase:
    """Bring a branch onto its parent's present state; without ``merge`` whatever both changed is left to decide."""
    parent = branch.parent
    with locked(branch.place.state) as lock:
        branch.recover()
        birth = BranchInfo.load(branch.home)
        if names := branch.place.names():
            raise BranchError(
                f"{branch.branch_path} has branches of its own: {', '.join(names)}; they come first", branch=branch.name
            )
        branch.view_kind.hide(branch.home)
        now = lock.now()
        scan = branch.scan()
        entries = {e.path: e for e in scan.entries}
        with Versions(branch.target, parent.lowers) as versions:
            old = unresolved(birth, scan)
            found = [c for c in find_conflicts(scan, birth.forked) if c.path not in {o.path for o in old}]
            found, old = (
                [c for c in some if c.path not in entries or not versions.is_same(entries[c.path])]
                for some in (found, old)
            )
            if branch.commits_into_layer:
                found = _of_commits(found, active_commits(parent.place, birth.generation))
            else:
                found = _not_brought_back(found, parent, birth)
            found, settled = _settle_directories(found, scan, parent, birth.generation)
            contents, left = merge_conflicts(found, entries, versions, parent, birth) if merge else ({}, found)
            left += old  # what it was forked from is no longer known of those
        merged = {p: _Merged(c, _merged_mode(entries[p], parent, birth.generation)) for p, c in contents.items()}
        birth.generation = parent.place.head
        birth.forked = now
        birth.unmerged = left
        if branch.view_kind.whole:
            _replay(branch, birth, scan, merged, settled, lock)
        else:
            _rework(branch, birth, scan, merged, settled, lock)
    return Rebase(tuple(sorted(merged)), tuple(left))


def _of_commits(found: list[Conflict], records: list[Record] | None) -> list[Conflict]:
    """Of a branch's branch: the conflicts with what was committed into that. What third parties did to the workspace
    concerns who is committed there, and is found then."""
    if records is None:
        return found
    paths = _paths(records)
    metas = {m.path or "." for r in records for m in r.metas if m.before[:3] != m.after[:3] or m.attributes_after}
    return [c for c in found if c.path in metas or _is_about(c.path, paths)]


def _not_brought_back(found: list[Conflict], parent: Parent, birth: BranchInfo) -> list[Conflict]:
    """The conflicts without those with what a commit changed since the fork and its undo brought back: that is as it
    was, if nobody else changed it."""
    chains = (chains_since(parent.place, birth.generation) or []) if found else []
    back, stands = ([r for chain in chains if len(chain) % 2 == odd for r in chain] for odd in (0, 1))
    if not back:
        return found
    restored = Restored(parent.place, records_of(parent.place), birth.generation)
    brought_back, held_by_commits = _paths(back), _paths(stands)
    left = []
    with Lower([parent.target]) as lower:
        for conflict in found:
            directory, _, name = conflict.path.rpartition("/")
            with lower.directory(directory) as held:
                there = held.lookup(name)
            is_as_it_was = there is not None and restored.changed(conflict.path, there) < birth.forked
            is_of_them = _is_about(conflict.path, brought_back) and not _is_about(conflict.path, held_by_commits)
            if not (is_as_it_was and is_of_them):
                left.append(conflict)
    return left


def _paths(records: Iterable[Record]) -> set[str]:
    """All that commits took a step on."""
    return {join(run.directory, step.name) for r in records for run in r.runs for step in run.steps}


def _is_about(path: str, paths: set[str]) -> bool:
    """Whether a path is one of those, or above or below one."""
    return any(path == p or path.startswith(f"{p}/") or p.startswith(f"{path}/") for p in paths)


class _Merged(NamedTuple):
    content: bytes
    mode: int


def _merged_mode(entry: Entry, parent: Parent, generation: int) -> int:
    """The branch's mode, unless only the parent's was changed."""
    assert entry.new is not None
    assert entry.old is not None
    ours, theirs = stat.S_IMODE(entry.new.st_mode), stat.S_IMODE(entry.old.st_mode)
    return theirs if ours == mode_at_fork(parent, entry.path, generation) else ours


def _settle_directories(
    found: list[Conflict], scan: Scan, parent: Parent, generation: int
) -> tuple[list[Conflict], list[Meta]]:
    """Of directories whose metadata is not the parent's: those that both changed are conflicts, those that only the
    parent changed get the parent's. What they were when the branch was forked is in the records of the commits since.
    """
    clashing = {c.path for c in found if c.kind == "metadata"}
    records = active_commits(parent.place, generation) or []
    settled = []
    for touched in scan.touched:
        metas = [m for r in records for m in r.metas if m.path == touched.path]
        theirs = directory_facts(touched.old)[:3], _hex(touched.old_attributes)
        if (touched.path or ".") not in clashing or not metas or metas[-1].after[:3] != theirs[0]:
            continue  # somebody else changed it, and nobody knows how
        attributes = [m.attributes_before for m in metas if m.attributes_before is not None]
        base = metas[0].before[:3], attributes[0] if attributes else theirs[1]
        if base == (directory_facts(touched.new)[:3], _hex(touched.new_attributes)):
            clashing.discard(touched.path or ".")
            settled.append(_meta(touched, reverse=True))
        elif base == theirs:
            clashing.discard(touched.path or ".")
    return [c for c in found if c.kind != "metadata" or c.path in clashing], settled


def _hex(attributes: dict[str, bytes]) -> dict[str, str]:
    return {name: value.hex() for name, value in attributes.items()}


def _meta(touched: Touched, *, reverse: bool = False) -> Meta:
    """From the parent's metadata to the branch's, or the other way and without the time."""
    if reverse:
        new, old = touched.new_attributes, touched.old_attributes
        return Meta.change(touched.path, touched.new, touched.old, new, old, keeps_time=True)
    return Meta.change(touched.path, touched.old, touched.new, touched.old_attributes, touched.new_attributes)


def _rework(
    branch: Branch, birth: BranchInfo, scan: Scan, merged: dict[str, _Merged], settled: list[Meta], lock: Lock
) -> None:
    """Change a layer where it lies. Whoever is killed leaves conflicts that can be decided, or be found once more."""
    layer = branch.target
    for path, result in merged.items():
        _replace(layer, path, result)
    root = open_root(layer)
    try:
        set_metas(settled, root, "after")
    finally:
        os.close(root)
    birth.rebased = sys.maxsize  # until the marks are right, which touches the files too
    birth.save(branch.home)
    mark_origins(layer, [*merged, *scan.appeared])
    # A directory keeps its mark: without it overlayfs would show the whiteouts inside.
    unmark_origins(
        layer, [e.path for e in scan.entries if e.copied and e.old is None and e.new and stat.S_ISREG(e.new.st_mode)]
    )
    birth.rebased = lock.now()
    birth.save(branch.home)


def _replace(layer: str, path: str, result: _Merged) -> None:
    """Give a file new content by a rename, so that whoever is killed leaves the old one or the new one."""
    directory, _, name = path.rpartition("/")
    root = open_root(layer)
    fd = open_directory(root, directory, os.O_PATH)
    beside = f".{secrets.token_hex(8)}"
    try:
        with writable(fd):
            copy_entry(fd, name, fd, beside)
            os.chmod(beside, 0o600, dir_fd=fd)
            flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(beside, flags, dir_fd=fd), "wb") as file:
                file.write(result.content)
                os.fchmod(file.fileno(), result.mode)
            os.rename(beside, name, src_dir_fd=fd, dst_dir_fd=fd)
    finally:
        os.close(fd)
        os.close(root)


def _replay(
    branch: Branch, birth: BranchInfo, scan: Scan, merged: dict[str, _Merged], settled: list[Meta], lock: Lock
) -> None:
    """A whole tree is made anew from the parent and given the branch's changes; one exchange puts it in place."""
    view, parent = branch.view_kind, branch.parent
    home = f"{parent.place.path}/branches/.new-rebase-{secrets.token_hex(4)}"
    os.mkdir(home, 0o700)
    try:
        view.make(home, parent.lowers)
        birth.made = lock.now()
        _write_changes(branch.target, f"{home}/layer", scan)
        for path, result in merged.items():
            _replace(f"{home}/layer", path, result)
        root = open_root(f"{home}/layer")
        try:
            taken = {m.path for m in settled}
            set_metas([_meta(t) for t in scan.touched if t.path not in taken], root, "after")
        finally:
            os.close(root)
        birth.rebased = lock.now()
        birth.save(home)
        if os.path.exists(f"{branch.home}/frozen"):
            os.close(os.open(f"{home}/frozen", os.O_CREAT | os.O_CLOEXEC, 0o600))
        root = open_root(parent.place.path)
        try:
            renameat2(root, os.path.relpath(home, parent.place.path), root, f"branches/{branch.name}", RENAME_EXCHANGE)
        finally:
            os.close(root)
    finally:
        view.release(home)
        discard(parent.place, home)


def _write_changes(source: str, target: str, scan: Scan) -> None:
    old, new = open_root(source), open_root(target)
    try:
        for entry in scan.entries:
            if not entry.unit:
                continue
            there = open_directory(new, entry.directory, os.O_PATH)
            try:
                with writable(there):
                    remove_tree(there, entry.name)
                    if entry.new is not None:
                        here = open_directory(old, entry.directory, os.O_PATH)
                        try:
                            copy_entry(here, entry.name, there, entry.name)
                        finally:
                            os.close(here)
            finally:
                os.close(there)
    finally:
        os.close(old)
        os.close(new)
