"""Combination of sibling branches: a new branch of their parent that holds the changes of all of them.

This module checks the siblings, walks the changed paths and writes the result; ``path_merge`` decides a single path.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from forkwise.errors import BranchError, BranchStaleError, ConflictError, ForkwiseWarning
from forkwise.files.commit import check_trust
from forkwise.files.path_merge import Clash, MergedPath, Metadata, Version, merge_path
from forkwise.files.store.branch_info import BranchInfo, DataDirectories
from forkwise.files.store.changes import Conflict
from forkwise.files.store.commit_plan import find_conflicts, unresolved
from forkwise.files.store.overlayfs import mark_origins
from forkwise.files.store.state import Lock, locked
from forkwise.files.versions import Versions, read_repositories
from forkwise.linux.trees import NOT_THERE, copy_entry, join, open_directory, open_root, remove_tree
from forkwise.text.phrases import join_first

if TYPE_CHECKING:
    from forkwise.files.branch import Branch, Parent
    from forkwise.files.store.scan import Entry, Scan
    from forkwise.git.repository_change import RepositoryChange

__all__ = [
    "Combination",
    "combine",
    "copy_repositories",
    "mark_replaced",
    "scan_sibling",
    "siblings",
]


def siblings(parent: Parent, branches: Sequence[Branch]) -> dict[str, Branch]:
    """Return the branches by name. Raises BranchError if their changes cannot be combined."""
    if not branches:
        raise ValueError("there is no branch to combine")
    if parent.child_view().native:
        raise BranchError(
            f"branches cannot be combined on {parent.workspace.fstype}: it does not report what a branch changed"
        )
    for branch in branches:
        if branch.parent.state_dir.path != parent.state_dir.path:
            raise BranchError(
                f"{branch.branch_path} is not a branch of {parent.branch_path}: only siblings can be combined",
                branch=branch.name,
            )
    return {branch.name: branch for branch in branches}


def scan_sibling(branch: Branch) -> Scan:
    """Scan the changes of a branch that is to be combined. Called under the lock.

    Raises BranchStaleError if the branch has to be rebased first, ConflictError if the same paths were changed in the
    parent since the fork.
    """
    branch._recover()
    info = BranchInfo.load(branch.home)
    if info.generation != branch.parent.state_dir.head:
        raise BranchStaleError(
            f"{branch.branch_path} is stale and cannot be combined: another branch was committed to "
            f"{branch.parent.branch_path} since the fork; rebase() rebases it onto the current state",
            branch=branch.name,
        )
    scan = branch._scan_kept(None)
    check_trust(branch, info, scan)
    found = unresolved(info, scan)
    if not branch._commits_into_layer:
        found += find_conflicts(scan, info.forked_at_earliest)
    if found:
        entries = {e.path: e for e in scan.entries}
        with Versions.of(branch) as versions:
            found = [c for c in found if c.path not in entries or not versions.is_same(entries[c.path])]
    if found:
        shown = join_first(found, 5, "; ")
        raise ConflictError(
            f"{branch.branch_path} cannot be combined: {shown}. Call rebase(), which merges text, resolve the "
            "remaining conflicts in the branch, then combine again",
            branch=branch.name,
            conflicts=found,
        )
    return scan


class Side:
    """One branch of a combination: its entries at the paths it changed, and the names that lead to those paths."""

    def __init__(self, name: str, root: int, scan: Scan) -> None:
        self.name = name
        self.root = root
        self.found = {e.path: e.new for e in scan.entries} | {t.path: t.new for t in scan.touched}
        self.names = _names(self.found)

    def leads_to(self, path: str) -> bool:
        """Return whether the branch changed a path or anything below it."""
        return path in self.found or path in self.names

    def version(self, base: Version) -> Version:
        """Return the branch's version of the path of ``base``, the parent's version."""
        if base.path in self.found:
            return Version(self.name, self.root, base.path, self.found[base.path])
        return base._replace(branch=self.name)

    def changed_below(self, path: str) -> Iterator[str]:
        """Yield the changed paths below ``path``."""
        pending = [path]
        while pending:
            here = pending.pop()
            for name in self.names.get(here, ()):
                path = join(here, name)
                pending.append(path)
                if path in self.found:
                    yield path


class _Combiner:
    """A run of a combination, from the root directory down.

    ``view`` is a descriptor of the new branch's view: a path that is not written yet shows the parent's version, which
    is the base of every merge. ``whole`` are the data directories of servers, each of which is taken from one side.
    """

    def __init__(
        self, view: int, sides: Sequence[Side], prefer: Mapping[str, Side], whole: frozenset[str] = frozenset()
    ) -> None:
        self.view = view
        self.whole = whole
        self.sides = sides
        self.prefer = prefer
        self._preferred_names = _names(prefer)
        self.merged: list[str] = []
        self.taken: dict[str, str] = {}
        self.clashes: list[Clash] = []
        self.replaced: list[str] = []
        self._directories: list[tuple[str, Metadata, int]] = []
        self._links: dict[tuple[int, int], str] = {}

    def run(self) -> None:
        """Decide and write every path, then set the directories' metadata."""
        pending = [("", self.sides)]
        while pending:
            path, sides = pending.pop()
            pending += self._combine_path(path, sides)
        # Last, because every name added to a directory changes its mtime, and its final mode may forbid adding names.
        for path, metadata, mtime in self._directories:
            with self._directory(path) as fd:
                metadata.apply_to(fd)
                found = os.fstat(fd)
                if found.st_mtime_ns != mtime:
                    os.utime(f"/proc/self/fd/{fd}", ns=(found.st_atime_ns, mtime))

    def paths_of(self, clash: Clash) -> list[str]:
        """Return the changed paths that a clash concerns: its own, or those inside if it is a directory that stayed."""
        if clash.path in self.taken:
            return [clash.path]
        return sorted(p for p in (*self.taken, *self.merged) if p.startswith(f"{clash.path}/"))

    # Decide

    def _combine_path(self, path: str, sides: Sequence[Side]) -> list[tuple[str, Sequence[Side]]]:
        """Decide one path and write it. Return the changed paths directly below it, each with the sides involved."""
        if path in self.whole and len(sides) > 1:
            sides = [self._choose_whole(path, sides)]
        base = self._base(path)
        versions = [side.version(base) for side in sides]
        if preferred := self.prefer.get(path):
            outcome: MergedPath | Clash = MergedPath(preferred.version(base))
        else:
            outcome = merge_path(base, self._select_versions(base, sides, versions))
        if isinstance(outcome, Clash):
            self.clashes.append(outcome)
            outcome = MergedPath(next(v for v in versions if v.branch == outcome.branches[0]))
        if outcome.source.type != "directory":
            self._put(base, outcome)
            return []
        self._put_directory(base, outcome, [v for v in versions if v.type == "directory"])
        inside = [side for side, version in zip(sides, versions, strict=True) if version.type == "directory"]
        names = self._preferred_names.get(path, set()).union(*(side.names.get(path, ()) for side in inside))
        below = [join(path, name) for name in sorted(names, reverse=True)]
        return [(p, [side for side in inside if side.leads_to(p)]) for p in below]

    def _choose_whole(self, path: str, sides: Sequence[Side]) -> Side:
        """Return the side whose data directory is taken: files of two changed databases cannot be mixed."""
        preferred = self.prefer.get(path)
        if preferred is not None:
            return preferred
        names = tuple(side.name for side in sides)
        self.clashes.append(Clash(path, "binary", names, "it is the data of a server, which is taken from one branch"))
        return sides[0]

    def _base(self, path: str) -> Version:
        directory, _, name = path.rpartition("/")
        found = None
        try:
            with self._directory(directory) as fd:
                found = os.stat(name or ".", dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
        return Version("", self.view, path, found)

    def _select_versions(self, base: Version, sides: Sequence[Side], versions: Sequence[Version]) -> Sequence[Version]:
        """Return the versions that take part in the merge: those that differ from the base.

        An unchanged directory takes part only if another side has no directory there and the branch added or changed
        something inside it, which would be lost.
        """
        if len(versions) < 2:
            return versions or [base]
        is_mixed = any(v.type != "directory" for v in versions)
        selected = [
            version
            for side, version in zip(sides, versions, strict=True)
            if not version.is_same_as(base) or (is_mixed and self._is_changed(side, version))
        ]
        return selected or versions[:1]

    def _is_changed(self, side: Side, version: Version) -> bool:
        """Return whether a branch added or changed anything inside a directory; deletions do not count."""
        if version.type != "directory":
            return False
        bases = (self._base(path) for path in side.changed_below(version.path))
        inside = ((side.version(base), base) for base in bases)
        return any(v.found is not None and not v.is_same_as(base) for v, base in inside)

    # Write

    def _put(self, base: Version, outcome: MergedPath) -> None:
        """Replace a path with a file or a symlink, or remove it."""
        source = outcome.source
        if source.root == self.view:
            return
        self._record(base, outcome)
        directory, _, name = base.path.rpartition("/")
        with self._directory(directory) as there:
            remove_tree(there, name)
            if outcome.content is not None:
                _write(there, name, outcome.content)
            elif source.found is not None:
                self._copy(source, source.found, there, name, outcome)
        if outcome.metadata is not None:
            with base.open() as fd:
                outcome.metadata.apply_to(fd)

    def _copy(self, source: Version, found: os.stat_result, there: int, name: str, outcome: MergedPath) -> None:
        """Copy a file or symlink. Hard links to one file stay linked, except a name that was merged."""
        link = (source.root, found.st_ino)
        if found.st_nlink > 1 and not outcome.is_merged:
            if link in self._links:
                directory, _, first = self._links[link].rpartition("/")
                with self._directory(directory) as fd:
                    os.link(first, name, src_dir_fd=fd, dst_dir_fd=there, follow_symlinks=False)
                return
            self._links[link] = source.path
        directory, _, _ = source.path.rpartition("/")
        with _open_below(source.root, directory) as here:
            copy_entry(here, name, there, name)

    def _put_directory(self, base: Version, outcome: MergedPath, versions: Sequence[Version]) -> None:
        """Create a directory or make an existing one writable; its metadata is set at the end of the run."""
        source = outcome.source
        metadata = outcome.metadata or source.metadata
        if base.type != "directory" or metadata != base.metadata:
            self._record(base, outcome)
        began = base.found.st_mtime_ns if base.found else 0
        times = [v.found.st_mtime_ns for v in versions if v.found and v.found.st_mtime_ns != began]
        self._directories.append((base.path, metadata, max(times, default=began)))
        directory, _, name = base.path.rpartition("/")
        if base.type != "directory":
            with self._directory(directory) as there:
                remove_tree(there, name)
                os.mkdir(name, 0o700, dir_fd=there)
        elif base.metadata.mode & 0o700 != 0o700:
            with base.open() as fd:
                os.chmod(f"/proc/self/fd/{fd}", base.metadata.mode | 0o700)  # its final mode is set at the end

    def _record(self, base: Version, outcome: MergedPath) -> None:
        """Record the origin of a path, and of the deletions that a replaced directory implies."""
        shown, source = base.path or ".", outcome.source
        if outcome.is_merged:
            self.merged.append(shown)
        else:
            self.taken[shown] = source.branch
        if base.type == source.type == "file":
            self.replaced.append(base.path)
        if base.type == "directory" and source.type != "directory":
            side = next(s for s in self.sides if s.name == source.branch)
            self.taken |= dict.fromkeys((p for p in side.changed_below(base.path) if side.found[p] is None), side.name)

    @contextmanager
    def _directory(self, path: str) -> Iterator[int]:
        with _open_below(self.view, path) as fd:
            yield fd


def _names(paths: Iterable[str]) -> dict[str, set[str]]:
    """Map every directory above ``paths`` to the names in it that lead to one of them."""
    names: dict[str, set[str]] = {}
    for path in paths:
        while path:
            directory, _, name = path.rpartition("/")
            found = names.setdefault(directory, set())
            if name in found:
                break
            found.add(name)
            path = directory
    return names


@contextmanager
def _open_below(root: int, directory: str) -> Iterator[int]:
    fd = open_directory(root, directory, os.O_PATH)
    try:
        yield fd
    finally:
        os.close(fd)


def _write(there: int, name: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=there), "wb") as file:
        file.write(content)


@dataclass(frozen=True, slots=True)
class Combination:
    """The result of ``combine``: a branch that holds the changes of several.

    ``merged`` are the paths merged from more than one branch; ``taken`` maps every other changed path to the branch it
    was taken from; ``conflicts`` are the changes that exclude each other. ``left_repositories`` has, by branch, the
    work in git repositories that is not part of the combination.
    """

    branch: Branch
    merged: tuple[str, ...]
    taken: Mapping[str, str]
    conflicts: tuple[Clash, ...]
    left_repositories: Mapping[str, tuple[RepositoryChange, ...]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether there was no conflict, or ``prefer`` resolved them all."""
        return not self.conflicts


def combine(
    parent: Parent, branches: Sequence[Branch], name: str, *, prefer: Mapping[str, str] | None = None
) -> Combination:
    """Create a branch ``name`` of ``parent`` that holds the changes of several of its branches, which are not changed.

    Changes to different paths, to different lines of a file, and to a file's mode and its content are combined, and so
    are identical changes. The data directory of a server is taken from one branch. For other paths ``prefer`` maps the
    path to the branch whose version is taken; for a directory this covers its existence and its metadata, not the paths
    inside, unless it is a data directory. A path that is not in ``prefer`` gets the version of the first branch
    involved and is listed in ``conflicts``; a commit of the new branch refuses it until the file is changed or
    ``on_conflict`` resolves it.

    Raises BranchStaleError if a branch has to be rebased first, ConflictError if the same paths were changed in the
    parent since the fork. If it raises, no new branch is left.

    >>> import tempfile, pathlib
    >>> from forkwise import Workspace
    >>> project = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (project / "a.txt").write_text("one\\ntwo\\nthree\\n")
    >>> ws = Workspace(project)
    >>> first, second = ws.branch("first"), ws.branch("second")
    >>> _ = (first.path / "a.txt").write_text("1\\ntwo\\nthree\\n")
    >>> _ = (second.path / "a.txt").write_text("one\\ntwo\\n3\\n")
    >>> both = combine(ws, [first, second], "both")
    >>> both.clean, both.merged, (both.branch.path / "a.txt").read_text()
    (True, ('a.txt',), '1\\ntwo\\n3\\n')
    >>> for branch in ws.branches(): branch.abort()
    """
    by_name = siblings(parent, branches)
    preferred = _normalize_prefer(prefer or {}, by_name)
    branch = parent.branch(name, on_success=None, on_error=None)
    try:
        view = str(branch.path)
        if any(source.is_confined for source in by_name.values()):
            branch.mark_confined()
        if ignored := [source.ignore for source in by_name.values() if source.ignore]:
            branch.set_ignore(ignored[0])
        data = [source.data_directories for source in by_name.values()]
        whole = tuple(sorted({path for one in data for path in one.whole}))
        dropped = tuple(sorted({path for one in data for path in one.dropped}))
        if whole or dropped:
            branch.set_data_directories(DataDirectories(whole, dropped))
        with locked(parent.state_dir.state) as lock:
            scans = [(b, scan_sibling(b)) for b in by_name.values()]
            _mark_incomplete(branch, [scan for _, scan in scans])
            combiner = _run_combiner(view, scans, preferred, frozenset(whole))
            repositories = {b.name: found for b, scan in scans if (found := read_repositories(b, scan))}
            if (source := _find_repository_source(scans, combiner, repositories)) is not None:
                combiner.replaced += copy_repositories(view, *source)
                del repositories[source[0].name]
            _mark_complete(branch, combiner, lock)
    except BaseException as error:
        branch.abort()
        if isinstance(error, OSError):
            raise BranchError(f"{branch.branch_path} could not be combined: {error}", branch=name) from error
        raise
    if skipped := sorted({path for _, scan in scans for path in scan.specials}):
        warnings.warn(
            f"{branch.branch_path}: FIFOs, sockets and devices are not combined: {', '.join(skipped)}",
            ForkwiseWarning,
            stacklevel=2,
        )
    return Combination(
        branch,
        tuple(sorted(combiner.merged)),
        dict(sorted(combiner.taken.items())),
        tuple(combiner.clashes),
        repositories,
    )


def _find_repository_source(
    scans: Sequence[tuple[Branch, Scan]], combiner: _Combiner, repositories: Mapping[str, object]
) -> tuple[Branch, Scan] | None:
    """Return the only branch with work in git repositories, if exactly its changed files were taken; else None."""
    if combiner.merged or combiner.clashes:
        return None
    names, paths = set(combiner.taken.values()), set(combiner.taken)
    found = [
        (branch, scan)
        for branch, scan in scans
        if branch.name in repositories and names <= {branch.name} and {entry.path for entry in scan.entries} <= paths
    ]
    return found[0] if len(found) == 1 else None


def copy_repositories(view: str, source: Branch, scan: Scan) -> list[str]:
    """Copy what a branch did in git repositories to the view of another; return the files that it replaced there."""
    shown = {entry.path for entry in scan.entries}
    entries: list[Entry] = [entry for entry in scan.repository if entry.path not in shown]
    with ExitStack() as held:
        there, here = open_root(view), open_root(source.target)
        held.callback(os.close, there)
        held.callback(os.close, here)
        combiner = _Combiner(there, [Side(source.name, here, replace(scan, entries=entries, touched=[]))], {})
        combiner.run()
        return combiner.replaced


def _normalize_prefer(prefer: Mapping[str, str], branches: Mapping[str, Branch]) -> dict[str, str]:
    """Return ``prefer`` with normalized paths, the root being the empty one. Raises ValueError for a bad entry."""
    preferred = {os.path.normpath(path): name for path, name in prefer.items()}
    if outside := [path for path in preferred if path.startswith("/") or path.split("/")[0] == ".."]:
        raise ValueError(f"prefer takes paths inside the parent, not {', '.join(outside)}")
    if unknown := sorted(set(preferred.values()) - set(branches)):
        raise ValueError(f"prefer names {', '.join(unknown)}, but the combined branches are {', '.join(branches)}")
    return {"" if path == "." else path: name for path, name in preferred.items()}


def _run_combiner(
    view: str, scans: Sequence[tuple[Branch, Scan]], prefer: Mapping[str, str], whole: frozenset[str]
) -> _Combiner:
    with ExitStack() as held:

        def root(path: str) -> int:
            fd = open_root(path)
            held.callback(os.close, fd)
            return fd

        sides = {b.name: Side(b.name, root(b.target), scan) for b, scan in scans}
        combiner = _Combiner(root(view), list(sides.values()), {p: sides[name] for p, name in prefer.items()}, whole)
        combiner.run()
        return combiner


def _mark_incomplete(branch: Branch, scans: Sequence[Scan]) -> None:
    """Record every path about to be written as unmerged, so that a commit refuses them if this process is killed."""
    paths = {e.path for scan in scans for e in (*scan.entries, *scan.repository)}
    paths |= {t.path or "." for scan in scans for t in scan.touched}
    info = BranchInfo.load(branch.home)
    info.unmerged = [Conflict(path, "unmerged", "the combination was interrupted") for path in sorted(paths)]
    info.rebased = sys.maxsize
    info.save(branch.home)


def mark_replaced(branch: Branch, paths: Sequence[str]) -> None:
    """Mark files of a branch that replace one of the parent's, as a copy-up would; this hides the branch's view."""
    if paths and not branch.view_kind.whole:
        # Without the overlayfs origin mark, a commit would not notice a deletion of the file in the parent.
        branch.view_kind.hide(branch.home)
        mark_origins(branch.target, paths, branch.view_kind.mark_prefixes)


def _mark_complete(branch: Branch, combiner: _Combiner, lock: Lock) -> None:
    """Record the real conflicts, and mark which files replace one of the parent's, as a copy-up would."""
    mark_replaced(branch, combiner.replaced)
    info = BranchInfo.load(branch.home)
    info.unmerged = [Conflict(p, "unmerged", c.detail) for c in combiner.clashes for p in combiner.paths_of(c)]
    info.rebased = lock.now()
    info.save(branch.home)
