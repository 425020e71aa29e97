"""Rebase of a branch onto the current state of its parent, and the three-way merge of conflicting files."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from forkwise.errors import BranchError
from forkwise.files.old_versions import active_commits, chains_since, find_merge_base, mode_at_fork
from forkwise.files.store.branch_info import BASES, DATA, IGNORE, BranchInfo, read_clock
from forkwise.files.store.changes import Conflict
from forkwise.files.store.commit_plan import find_conflicts, unresolved
from forkwise.files.store.journal import Meta, directory_facts, set_metas, sync_filesystem
from forkwise.files.store.overlayfs import Lower, mark_origins, unmark_origins
from forkwise.files.store.record import Record
from forkwise.files.store.state import Lock, locked
from forkwise.files.store.trash import discard
from forkwise.files.undo import Restored, records_of
from forkwise.files.versions import Versions, find_ignored
from forkwise.git.repository_change import find_repository_paths, is_data, list_repositories
from forkwise.linux.process_id import boot_id
from forkwise.linux.syscalls import RENAME_EXCHANGE, renameat2
from forkwise.linux.trees import copy_entry, join, open_directory, open_root, remove_tree, writable
from forkwise.text.merge3 import is_text, merge

if TYPE_CHECKING:
    from forkwise.files.branch import Branch, Parent
    from forkwise.files.store.scan import Entry, Scan, Touched

__all__ = [
    "Rebase",
    "Standing",
    "compare_with_parent",
    "merge_conflicts",
    "rebase_branch",
]


def merge_conflicts(
    conflicts: Iterable[Conflict], entries: Mapping[str, Entry], versions: Versions, branch: Branch, info: BranchInfo
) -> tuple[dict[str, bytes], list[Conflict]]:
    """Merge the conflicts that can be merged. Return the merged content by path, and the remaining conflicts."""
    merged: dict[str, bytes] = {}
    left = []
    for conflict in conflicts:
        entry = entries.get(conflict.path)
        outcome = _merge(entry, versions, branch, info) if entry else "directories are not merged"
        if isinstance(outcome, bytes):
            merged[conflict.path] = outcome
        else:
            left.append(Conflict(conflict.path, "unmerged", f"{conflict.detail}; {outcome}"))
    return merged, left


def _merge(entry: Entry, versions: Versions, branch: Branch, info: BranchInfo) -> bytes | str:
    """Merge one file. Return its content, or the reason why it cannot be merged."""
    new, old = entry.new, entry.old
    if new is None or old is None or not (stat.S_ISREG(new.st_mode) and stat.S_ISREG(old.st_mode)):
        return "only text files can be merged"
    base = find_merge_base(branch, entry.path, info)
    if base is None:
        return "its content at the fork is not known"
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
    """The result of a rebase: the paths it merged, and the conflicts left to resolve."""

    merged: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """A branch compared with the current state of its parent.

    ``commits`` are the numbers of the commits into the parent since the fork or the last rebase, with the branches that
    they came from. ``edited`` are conflicts with edits since then, ``unresolved`` those that the last rebase left.
    ``rebased`` is the time of the last rebase by the filesystem's clock; 0 if there was none.
    """

    commits: Mapping[int, str] = field(default_factory=dict)
    edited: tuple[Conflict, ...] = ()
    unresolved: tuple[Conflict, ...] = ()
    rebased: int = 0

    @property
    def has_moved(self) -> bool:
        """Whether the parent was changed since then in a way that a commit would notice."""
        return bool(self.commits or self.edited)


def compare_with_parent(branch: Branch, *, scan: bool = True) -> Standing:
    """Compare a branch with its parent: the number of the last commit and, with ``scan``, the paths it changed.

    A branch that has to be rebased is not scanned.
    """
    parent = branch.parent
    with branch._lock():
        info = BranchInfo.load(branch.home)
        commits = {}
        for number in range(info.generation + 1, parent.state_dir.head + 1):
            record = Record.load(parent.state_dir.history(number))
            commits[number] = "" if record is None else record.branch
        if commits or not scan:
            return Standing(commits, rebased=info.rebased)
        found = branch._scan_kept(None)
        edited = [] if branch._commits_into_layer else find_conflicts(found, info.forked_at_earliest)
        entries = {e.path: e for e in found.entries}
        with Versions.of(branch) as versions:
            edited = [c for c in edited if c.path not in entries or not versions.is_same(entries[c.path])]
        return Standing({}, tuple(edited), tuple(unresolved(info, found)), info.rebased)


def rebase_branch(branch: Branch, *, merge: bool = True) -> Rebase:
    """Rebase a branch onto its parent's current state; with ``merge=False`` paths that both changed stay conflicts."""
    parent = branch.parent
    with locked(branch.state_dir.state) as lock:
        branch._recover()
        info = BranchInfo.load(branch.home)
        if names := branch.state_dir.names():
            raise BranchError(
                f"{branch.branch_path} has branches of its own: {', '.join(names)}; commit or abort those first",
                branch=branch.name,
            )
        branch.view_kind.hide(branch.home)
        now = lock.now()
        scan = branch._scan()
        ignored = find_ignored(branch, scan, branch.ignore)
        entries = {e.path: e for e in scan.entries}
        with Versions.of(branch) as versions:
            old = unresolved(info, scan)
            found = [c for c in find_conflicts(scan, info.forked_at_earliest) if c.path not in {o.path for o in old}]
            found, old = (
                [c for c in conflicts if c.path not in entries or not versions.is_same(entries[c.path])]
                for conflicts in (found, old)
            )
            if branch.parent is branch.workspace:
                found, old = (_without_git_data(branch, conflicts) for conflicts in (found, old))
            if branch._commits_into_layer:
                found = _with_commits(found, active_commits(parent.state_dir, info.generation))
            else:
                found = _without_restored(found, parent, info)
            found, settled = _settle_directories(found, scan, parent, info.generation)
            contents, left = merge_conflicts(found, entries, versions, branch, info) if merge else ({}, found)
            left += old  # an earlier rebase could not merge them, and their base is no longer known
        merged = {p: _Merged(c, _merged_mode(entries[p], parent, info.generation)) for p, c in contents.items()}
        info.generation = parent.state_dir.head
        info.forked, info.clock = now, read_clock()
        info.unmerged = left
        if branch.view_kind.whole:
            _rebase_tree(branch, info, scan, merged, settled, lock)
        else:
            _rebase_layer(branch, info, scan, merged, settled, lock)
    if branch.parent is branch.workspace:  # otherwise repositories are files like others, see ``_merge_repositories``
        ignored |= find_repository_paths(branch.workspace.target, (c.path for c in left))
    return Rebase(tuple(sorted(set(merged) - ignored)), tuple(c for c in left if c.path not in ignored))


def _without_git_data(branch: Branch, found: list[Conflict]) -> list[Conflict]:
    """Drop the conflicts on git's own data in repositories: the commit merges that, whatever both sides did."""
    repositories = list_repositories(branch.workspace.target, (c.path for c in found))
    data = {path for paths in repositories.values() for path, inside in paths.items() if not inside or is_data(inside)}
    return [c for c in found if c.path not in data]


def _with_commits(found: list[Conflict], records: list[Record] | None) -> list[Conflict]:
    """Return the conflicts of a nested branch with commits into its parent branch.

    Edits of the workspace itself are left out: the commit into the workspace finds those.
    """
    if records is None:
        return found
    paths = _paths(records)
    metas = {m.path or "." for r in records for m in r.metas if m.before[:3] != m.after[:3] or m.attributes_after}
    return [c for c in found if c.path in metas or _is_about(c.path, paths)]


def _without_restored(found: list[Conflict], parent: Parent, info: BranchInfo) -> list[Conflict]:
    """Drop the conflicts on paths that a commit changed since the fork and its undo restored.

    Unless another process edited it too, such a path is what it was at the fork.
    """
    chains = (chains_since(parent.state_dir, info.generation) or []) if found else []
    undone, active = ([r for chain in chains if len(chain) % 2 == odd for r in chain] for odd in (0, 1))
    if not undone:
        return found
    restored = Restored(parent.state_dir, records_of(parent.state_dir), info.generation)
    undone_paths, active_paths = _paths(undone), _paths(active)
    left = []
    with Lower([parent.target]) as lower:
        for conflict in found:
            directory, _, name = conflict.path.rpartition("/")
            with lower.directory(directory) as held:
                there = held.lookup(name)
            is_unedited = there is not None and restored.changed(conflict.path, there) < info.forked_at_earliest
            is_restored = _is_about(conflict.path, undone_paths) and not _is_about(conflict.path, active_paths)
            if not (is_unedited and is_restored):
                left.append(conflict)
    return left


def _paths(records: Iterable[Record]) -> set[str]:
    """Return the paths that commits changed."""
    return {join(run.directory, step.name) for r in records for run in r.runs for step in run.steps}


def _is_about(path: str, paths: set[str]) -> bool:
    """Return whether ``path`` is one of ``paths``, or above or below one."""
    return any(path == p or path.startswith(f"{p}/") or p.startswith(f"{path}/") for p in paths)


class _Merged(NamedTuple):
    content: bytes
    mode: int


def _merged_mode(entry: Entry, parent: Parent, generation: int) -> int:
    """Return the branch's mode, or the parent's if only the parent changed it."""
    assert entry.new is not None
    assert entry.old is not None
    ours, theirs = stat.S_IMODE(entry.new.st_mode), stat.S_IMODE(entry.old.st_mode)
    return theirs if ours == mode_at_fork(parent, entry.path, generation) else ours


def _settle_directories(
    found: list[Conflict], scan: Scan, parent: Parent, generation: int
) -> tuple[list[Conflict], list[Meta]]:
    """Resolve the metadata conflicts of directories that only one side changed.

    Return the remaining conflicts, and the changes that give a directory the parent's metadata if only the parent
    changed it. The metadata at the fork is in the records of the commits since.
    """
    clashing = {c.path for c in found if c.kind == "metadata"}
    records = active_commits(parent.state_dir, generation) or []
    settled = []
    for touched in scan.touched:
        metas = [m for r in records for m in r.metas if m.path == touched.path]
        theirs = directory_facts(touched.old)[:3], _hex(touched.old_attributes)
        if (touched.path or ".") not in clashing or not metas or metas[-1].after[:3] != theirs[0]:
            continue  # it was edited other than by a commit, so its metadata at the fork is not known
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
    """Build the change from the parent's metadata to the branch's; with ``reverse`` the opposite, without the time."""
    if reverse:
        new, old = touched.new_attributes, touched.old_attributes
        return Meta.change(touched.path, touched.new, touched.old, new, old, keeps_time=True)
    return Meta.change(touched.path, touched.old, touched.new, touched.old_attributes, touched.new_attributes)


def _rebase_layer(
    branch: Branch, info: BranchInfo, scan: Scan, merged: dict[str, _Merged], settled: list[Meta], lock: Lock
) -> None:
    """Rebase a layer in place. If killed, the next rebase or commit finds the remaining conflicts again."""
    layer = branch.target
    for path, result in merged.items():
        _replace(layer, path, result, sync=info.kept)
    root = open_root(layer)
    try:
        set_metas(settled, root, "after")
    finally:
        os.close(root)
    if os.path.isdir(f"{branch.home}/{BASES}"):
        discard(branch.parent.state_dir, f"{branch.home}/{BASES}")  # first: they belong to the fork before
    info.rebased = sys.maxsize  # until the marks are set, because that changes the files' ctime
    info.save(branch.home)
    prefixes = branch.view_kind.mark_prefixes
    mark_origins(layer, [*merged, *scan.appeared], prefixes)
    # A directory keeps its origin mark: without it overlayfs would show the whiteouts inside.
    lost = [e.path for e in scan.entries if e.copied and e.old is None and e.new and stat.S_ISREG(e.new.st_mode)]
    unmark_origins(layer, lost, prefixes)
    info.rebased = lock.now()
    info.save(branch.home)


def _replace(layer: str, path: str, result: _Merged, *, sync: bool = False) -> None:
    """Replace a file's content by a rename, so that a kill, or with ``sync`` a power cut, leaves the old or the new."""
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
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.rename(beside, name, src_dir_fd=fd, dst_dir_fd=fd)
    finally:
        os.close(fd)
        os.close(root)


def _rebase_tree(
    branch: Branch, info: BranchInfo, scan: Scan, merged: dict[str, _Merged], settled: list[Meta], lock: Lock
) -> None:
    """Rebase a whole tree: create it anew from the parent, apply the branch's changes, exchange the two homes."""
    view, parent = branch.view_kind, branch.parent
    home = f"{parent.state_dir.path}/branches/.new-rebase-{secrets.token_hex(4)}"
    os.mkdir(home, 0o700)
    try:
        view.make(home, parent.lowers)
        info.made = lock.now()
        _write_changes(branch.target, f"{home}/layer", scan)
        for path, result in merged.items():
            _replace(f"{home}/layer", path, result)
        root = open_root(f"{home}/layer")
        try:
            settled_paths = {m.path for m in settled}
            set_metas([_meta(t) for t in scan.touched if t.path not in settled_paths], root, "after")
        finally:
            os.close(root)
        info.rebased = lock.now()
        if info.kept and info.boot == boot_id():  # after a restart, what was copied may be incomplete
            info.synced = info.rebased  # the tree is synced before it gets its name
        info.save(home)
        for mark in ("frozen", "confined"):
            if os.path.exists(f"{branch.home}/{mark}"):
                os.close(os.open(f"{home}/{mark}", os.O_CREAT | os.O_CLOEXEC, 0o600))
        for name in (IGNORE, DATA):
            if os.path.exists(f"{branch.home}/{name}"):
                shutil.copyfile(f"{branch.home}/{name}", f"{home}/{name}")
        if info.kept:  # the tree that it replaces was synced
            sync_filesystem(home)
        root = open_root(parent.state_dir.path)
        try:
            renameat2(
                root, os.path.relpath(home, parent.state_dir.path), root, f"branches/{branch.name}", RENAME_EXCHANGE
            )
            if info.kept:
                sync_filesystem(home)  # before the old tree is removed
        finally:
            os.close(root)
    finally:
        view.release(home)
        discard(parent.state_dir, home)


def _write_changes(source: str, target: str, scan: Scan) -> None:
    """Copy the changed entries of a scan from one tree to another."""
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
