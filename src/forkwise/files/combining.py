"""How branches are combined: their trees walked side by side from the top down, and every path written as decided.

What is written goes through the new branch's own view, so that it becomes that branch's layer, whatever the view is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from forkwise.files.agreement import Agreed, Clash, Looks, Version, agree
from forkwise.files.beneath import NOT_THERE, join, open_directory
from forkwise.files.copying import copy_entry
from forkwise.files.layer import Scan
from forkwise.files.removing import remove_tree

__all__ = ["Combining", "Side"]


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
        self._directories: list[tuple[str, Looks, int]] = []
        self._links: dict[tuple[int, int], str] = {}

    def run(self) -> None:
        pending = [("", self.sides)]
        while pending:
            path, sides = pending.pop()
            pending += self._settle(path, sides)
        # Last, because every name put into a directory changes its times, and its mode may forbid that.
        for path, looks, mtime in self._directories:
            with self._directory(path) as fd:
                looks.give(fd)
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
            outcome: Agreed | Clash = Agreed(preferred.version(base))
        else:
            outcome = agree(base, self._counting(base, sides, versions))
        if isinstance(outcome, Clash):
            self.clashes.append(outcome)
            outcome = Agreed(next(v for v in versions if v.branch == outcome.branches[0]))
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

    def _put(self, base: Version, outcome: Agreed) -> None:
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
                outcome.looks.give(fd)

    def _copy(self, source: Version, found: os.stat_result, there: int, name: str, outcome: Agreed) -> None:
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

    def _put_directory(self, base: Version, outcome: Agreed, versions: Sequence[Version]) -> None:
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

    def _note(self, base: Version, outcome: Agreed) -> None:
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
