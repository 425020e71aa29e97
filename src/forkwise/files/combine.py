"""Combination: the changes of several sibling branches together, as a new branch of what they were made from."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from forkwise.errors import BranchError, BranchStaleError, ConflictError, ForkwiseWarning
from forkwise.files.branch import Branch, Parent
from forkwise.files.commit import check_trust
from forkwise.files.mounted import MountedWorkspace
from forkwise.files.path_merge import Clash, MergedPath, Metadata, Version, merge_path
from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.changes import Conflict
from forkwise.files.store.commit_plan import find_conflicts, unresolved
from forkwise.files.store.overlayfs import mark_origins
from forkwise.files.store.scan import Scan
from forkwise.files.store.state import Lock, locked
from forkwise.files.versions import Versions
from forkwise.linux.trees import NOT_THERE, copy_entry, join, open_directory, open_root, remove_tree

__all__ = [
    "Combination",
    "Combining",
    "Side",
    "combine",
    "scan_sibling",
    "siblings",
]


def siblings(parent: Parent, branches: Sequence[Branch]) -> dict[str, Branch]:
    """The branches by their names, if what they changed can be combined; BranchError where not."""
    if not branches:
        raise ValueError("there is no branch to combine")
    if isinstance(parent.workspace, MountedWorkspace):
        raise BranchError(f"{parent.workspace.fstype} cannot tell what a branch changed, so nothing can be combined")
    for branch in branches:
        if branch.parent.place.path != parent.place.path:
            raise BranchError(
                f"{branch.branch_path} is not a branch of {parent.branch_path}: only siblings can be combined",
                branch=branch.name,
            )
    return {branch.name: branch for branch in branches}


def scan_sibling(branch: Branch) -> Scan:
    """What a branch changed, if that can be taken as it is. Called under the lock.

    Raises BranchStaleError for one that has to be rebased first, ConflictError for one that clashes with what somebody
    else changed in the parent.
    """
    branch.recover()
    birth = BranchInfo.load(branch.home)
    if birth.generation != branch.parent.place.head:
        raise BranchStaleError(
            f"{branch.branch_path} is stale and cannot be combined: {branch.parent.branch_path} was committed to since "
            "it was forked; rebase() brings it onto what is there now",
            branch=branch.name,
        )
    scan = branch.scan()
    check_trust(branch, birth, scan)
    found = unresolved(birth, scan)
    if not branch.commits_into_layer:
        found += find_conflicts(scan, birth.forked)
    if found:
        entries = {e.path: e for e in scan.entries}
        with Versions(branch.target, branch.parent.lowers) as versions:
            found = [c for c in found if c.path not in entries or not versions.is_same(entries[c.path])]
    if found:
        shown = "; ".join(str(c) for c in found[:5]) + ("; …" if len(found) > 5 else "")
        raise ConflictError(
            f"{branch.branch_path} cannot be combined: {shown}. rebase() merges what can be merged; "
            "change in the branch what is left, then combine it",
            branch=branch.name,
            conflicts=found,
        )
    return scan


class Side:
    """One of the branches, where it is not as the parent: what it has there, and which names lead there."""

    def __init__(self, name: str, root: int, scan: Scan) -> None:
        self.name = name
        self.root = root
        self.found = {e.path: e.new for e in scan.entries} | {t.path: t.new for t in scan.touched}
        self.names = _names(self.found)

    def leads_to(self, path: str) -> bool:
        """Whether it has something of its own at a path or beneath it."""
        return path in self.found or path in self.names

    def version(self, base: Version) -> Version:
        """What it has where the parent has ``base``."""
        if base.path in self.found:
            return Version(self.name, self.root, base.path, self.found[base.path])
        return base._replace(branch=self.name)

    def beneath(self, path: str) -> Iterator[str]:
        """The paths beneath one at which it has something of its own."""
        pending = [path]
        while pending:
            here = pending.pop()
            for name in self.names.get(here, ()):
                path = join(here, name)
                pending.append(path)
                if path in self.found:
                    yield path


class Combining:
    """One combination under way, from the top down. ``view`` is the new branch's own, open: where nothing was written
    yet it shows the parent, which is the base of every merge."""

    def __init__(self, view: int, sides: Sequence[Side], prefer: Mapping[str, Side]) -> None:
        self.view = view
        self.sides = sides
        self.prefer = prefer
        self.decided = _names(prefer)
        self.merged: list[str] = []
        self.taken: dict[str, str] = {}
        self.clashes: list[Clash] = []
        self.replaced: list[str] = []
        self._directories: list[tuple[str, Metadata, int]] = []
        self._links: dict[tuple[int, int], str] = {}

    def run(self) -> None:
        pending = [("", self.sides)]
        while pending:
            path, sides = pending.pop()
            pending += self._settle(path, sides)
        # Last, because every name put into a directory changes its times, and its mode may forbid that.
        for path, looks, mtime in self._directories:
            with self._directory(path) as fd:
                looks.apply_to(fd)
                found = os.fstat(fd)
                if found.st_mtime_ns != mtime:
                    os.utime(f"/proc/self/fd/{fd}", ns=(found.st_atime_ns, mtime))

    def paths_of(self, clash: Clash) -> list[str]:
        """The changed paths a clash is about: its own, or, where that is a directory that stayed, those inside."""
        if clash.path in self.taken:
            return [clash.path]
        return sorted(p for p in (*self.taken, *self.merged) if p.startswith(f"{clash.path}/"))

    # What becomes of a path

    def _settle(self, path: str, sides: Sequence[Side]) -> list[tuple[str, Sequence[Side]]]:
        """Decide one path and write it; gives what is to be settled next."""
        base = self._base(path)
        versions = [side.version(base) for side in sides]
        if preferred := self.prefer.get(path):
            outcome: MergedPath | Clash = MergedPath(preferred.version(base))
        else:
            outcome = merge_path(base, self._counting(base, sides, versions))
        if isinstance(outcome, Clash):
            self.clashes.append(outcome)
            outcome = MergedPath(next(v for v in versions if v.branch == outcome.branches[0]))
        if outcome.source.type != "directory":
            self._put(base, outcome)
            return []
        self._put_directory(base, outcome, [v for v in versions if v.type == "directory"])
        inside = [side for side, version in zip(sides, versions, strict=True) if version.type == "directory"]
        names = self.decided.get(path, set()).union(*(side.names.get(path, ()) for side in inside))
        beneath = [join(path, name) for name in sorted(names, reverse=True)]
        return [(p, [side for side in inside if side.leads_to(p)]) for p in beneath]

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

    def _counting(self, base: Version, sides: Sequence[Side], versions: Sequence[Version]) -> Sequence[Version]:
        """The versions that say something: not one that is as it was, such as a directory of which only the inside is
        changed; unless others have no directory there, and more than deletions are to be lost with it."""
        if len(versions) < 2:
            return versions or [base]
        is_mixed = any(v.type != "directory" for v in versions)
        counting = [
            version
            for side, version in zip(sides, versions, strict=True)
            if not version.is_same_as(base) or (is_mixed and self._is_changed(side, version))
        ]
        return counting or versions[:1]

    def _is_changed(self, side: Side, version: Version) -> bool:
        """Whether a branch has something in a directory that the parent has not."""
        if version.type != "directory":
            return False
        bases = (self._base(path) for path in side.beneath(version.path))
        inside = ((side.version(base), base) for base in bases)
        return any(v.found is not None and not v.is_same_as(base) for v, base in inside)

    # What is written

    def _put(self, base: Version, outcome: MergedPath) -> None:
        source = outcome.source
        if source.root == self.view:
            return
        self._note(base, outcome)
        directory, _, name = base.path.rpartition("/")
        with self._directory(directory) as there:
            remove_tree(there, name)
            if outcome.content is not None:
                _write(there, name, outcome.content)
            elif source.found is not None:
                self._copy(source, source.found, there, name, outcome)
        if outcome.looks is not None:
            with base.opened() as fd:
                outcome.looks.apply_to(fd)

    def _copy(self, source: Version, found: os.stat_result, there: int, name: str, outcome: MergedPath) -> None:
        """A copy of a file or symlink; names of one file stay names of one file, unless only one of them is merged."""
        link = (source.root, found.st_ino)
        if found.st_nlink > 1 and not outcome.is_merged:
            if link in self._links:
                directory, _, first = self._links[link].rpartition("/")
                with self._directory(directory) as fd:
                    os.link(first, name, src_dir_fd=fd, dst_dir_fd=there, follow_symlinks=False)
                return
            self._links[link] = source.path
        directory, _, _ = source.path.rpartition("/")
        with _opened(source.root, directory) as here:
            copy_entry(here, name, there, name)

    def _put_directory(self, base: Version, outcome: MergedPath, versions: Sequence[Version]) -> None:
        source = outcome.source
        looks = outcome.looks or source.looks
        if base.type != "directory" or looks != base.looks:
            self._note(base, outcome)
        began = base.found.st_mtime_ns if base.found else 0
        times = [v.found.st_mtime_ns for v in versions if v.found and v.found.st_mtime_ns != began]
        self._directories.append((base.path, looks, max(times, default=began)))
        directory, _, name = base.path.rpartition("/")
        if base.type != "directory":
            with self._directory(directory) as there:
                remove_tree(there, name)
                os.mkdir(name, 0o700, dir_fd=there)
        elif base.looks.mode & 0o700 != 0o700:
            with base.opened() as fd:
                os.chmod(f"/proc/self/fd/{fd}", base.looks.mode | 0o700)  # until it is filled

    def _note(self, base: Version, outcome: MergedPath) -> None:
        """Remember where a path came from, and what went with it."""
        shown, source = base.path or ".", outcome.source
        if outcome.is_merged:
            self.merged.append(shown)
        else:
            self.taken[shown] = source.branch
        if base.type == source.type == "file":
            self.replaced.append(base.path)
        if base.type == "directory" and source.type != "directory":
            side = next(s for s in self.sides if s.name == source.branch)
            self.taken |= dict.fromkeys((p for p in side.beneath(base.path) if side.found[p] is None), side.name)

    @contextmanager
    def _directory(self, path: str) -> Iterator[int]:
        with _opened(self.view, path) as fd:
            yield fd


def _names(paths: Iterable[str]) -> dict[str, set[str]]:
    """For every directory on the way to some paths the names that lead on."""
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
def _opened(root: int, directory: str) -> Iterator[int]:
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
    """A branch that holds the changes of several: the paths that were ``merged`` from more than one of them, for all
    others that differ from the parent the branch each was ``taken`` from, and what did not go together."""

    branch: Branch
    merged: tuple[str, ...]
    taken: Mapping[str, str]
    conflicts: tuple[Clash, ...]

    @property
    def clean(self) -> bool:
        """Whether every change of every branch found its place, or was decided."""
        return not self.conflicts


def combine(
    parent: Parent, branches: Sequence[Branch], name: str, *, prefer: Mapping[str, str] | None = None
) -> Combination:
    """Make a branch ``name`` of ``parent`` that holds what several of its branches changed. Those stay as they are.

    Changes of different paths go together, and so do changes of different lines, of a file's mode and its content, and
    changes that are the same. Where they do not, ``prefer`` decides, by path, whose version it is to be; a directory's
    own, and whether there is one: what is inside has paths of its own. Undecided, the path is as the first of the
    branches involved has it, it is among the ``conflicts``, and a commit of the new branch refuses until the file is
    changed or ``on_conflict`` decides.

    Raises BranchStaleError for a branch that has to be rebased first, ConflictError for one that clashes with what
    somebody else changed in the parent. Whatever is raised, no new branch is left.

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
    several = siblings(parent, branches)
    decided = _decided(prefer or {}, several)
    branch = parent.branch(name, on_success=None, on_error=None)
    try:
        view = str(branch.path)
        with locked(parent.place.state) as lock:
            scans = [(b, scan_sibling(b)) for b in several.values()]
            _begin(branch, [scan for _, scan in scans])
            combining = _combine(view, scans, decided)
            _finish(branch, combining, lock)
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
        branch, tuple(sorted(combining.merged)), dict(sorted(combining.taken.items())), tuple(combining.clashes)
    )


def _decided(prefer: Mapping[str, str], branches: Mapping[str, Branch]) -> dict[str, str]:
    """The same with paths as they are met; the parent's own directory is the empty one."""
    decided = {os.path.normpath(path): name for path, name in prefer.items()}
    if outside := [path for path in decided if path.startswith("/") or path.split("/")[0] == ".."]:
        raise ValueError(f"prefer takes paths inside the parent, not {', '.join(outside)}")
    if unknown := sorted(set(decided.values()) - set(branches)):
        raise ValueError(f"prefer names {', '.join(unknown)}, but what is combined is {', '.join(branches)}")
    return {"" if path == "." else path: name for path, name in decided.items()}


def _combine(view: str, scans: Sequence[tuple[Branch, Scan]], prefer: Mapping[str, str]) -> Combining:
    with ExitStack() as held:

        def root(path: str) -> int:
            fd = open_root(path)
            held.callback(os.close, fd)
            return fd

        sides = {b.name: Side(b.name, root(b.target), scan) for b, scan in scans}
        combining = Combining(root(view), list(sides.values()), {p: sides[name] for p, name in prefer.items()})
        combining.run()
        return combining


def _begin(branch: Branch, scans: Sequence[Scan]) -> None:
    """Have a commit refuse all that is going to be written, in case this process is killed before all of it is."""
    paths = {e.path for scan in scans for e in scan.entries} | {t.path or "." for scan in scans for t in scan.touched}
    birth = BranchInfo.load(branch.home)
    birth.unmerged = [Conflict(path, "unmerged", "the combination was interrupted") for path in sorted(paths)]
    birth.rebased = sys.maxsize
    birth.save(branch.home)


def _finish(branch: Branch, combining: Combining, lock: Lock) -> None:
    """Have a commit of the new branch know as much as one of the others would."""
    if combining.replaced and not branch.view_kind.whole:
        # A file that was put in the place of the parent's began as that: should somebody delete it there, it is seen.
        branch.view_kind.hide(branch.home)
        mark_origins(branch.target, combining.replaced)
    birth = BranchInfo.load(branch.home)
    birth.unmerged = [Conflict(p, "unmerged", c.detail) for c in combining.clashes for p in combining.paths_of(c)]
    birth.rebased = lock.now()
    birth.save(branch.home)
