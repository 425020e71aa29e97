"""What a branch was forked from, looked up without mounting anything: a workspace, or layers stacked on one.

The rules are overlayfs's own: the nearest layer that has a name decides, a whiteout hides it, an opaque directory
hides all directories below it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from types import TracebackType

from forkwise.files.beneath import join, open_directory, open_root, proc_path
from forkwise.files.marks import is_opaque, is_whiteout

__all__ = ["Lower", "LowerDirectory"]

_NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class LowerDirectory:
    """One directory of the parent, open in every layer that adds to it, nearest first; in none where the parent has no
    directory, or another filesystem's."""

    __slots__ = ("fds", "is_mounted")

    def __init__(self, fds: list[int], *, is_mounted: bool = False) -> None:
        self.fds = fds
        self.is_mounted = is_mounted

    def lookup(self, name: str) -> os.stat_result | None:
        """What the parent has under a name."""
        for fd in self.fds:
            try:
                entry = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            return None if is_whiteout(entry) else entry
        return None

    def names(self) -> set[str]:
        """Every name the parent shows here."""
        shown: set[str] = set()
        hidden: set[str] = set()
        for fd in self.fds:
            with os.scandir(fd) as entries:
                found = [(e.name, is_whiteout(e.stat(follow_symlinks=False))) for e in entries]
            shown.update(n for n, gone in found if not gone and n not in hidden)
            hidden.update(n for n, gone in found if gone)
        return shown

    def holder(self, name: str) -> int | None:
        """The descriptor of the directory that really holds a name."""
        for fd in self.fds:
            try:
                entry = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            return None if is_whiteout(entry) else fd
        return None

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def __enter__(self) -> LowerDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Lower:
    """The parent of a branch; ``lowers`` are directories, nearest first, the last of them a plain one."""

    def __init__(self, lowers: Sequence[str]) -> None:
        self._roots: list[int] = []
        try:
            for path in lowers:
                self._roots.append(open_root(path))
        except OSError:
            self.close()
            raise

    def directory(self, path: str) -> LowerDirectory:
        """Open one directory; where the parent has none there, it is empty."""
        try:
            return LowerDirectory(self._open_merged(path))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return LowerDirectory([], is_mounted=True)  # a mount point is not part of the parent

    def _open_merged(self, path: str) -> list[int]:
        if len(self._roots) == 1:
            fd = _open(self._roots[0], path)
            return [] if fd is None else [fd]
        fds: list[int] = []
        for root, is_last in zip(self._roots, [False] * (len(self._roots) - 1) + [True], strict=True):
            reach = _reach(root, path) if not is_last else "beneath"
            if reach in ("beneath", "opaque"):
                fd = _open(root, path)
                if fd is not None:
                    fds.append(fd)
            if reach in ("hidden", "opaque"):
                break
        return fds

    def walk(self, path: str) -> Iterator[tuple[str, str, os.stat_result]]:
        """Everything beneath a directory as (directory, name, entry), parents before children."""
        pending = [path]
        while pending:
            here = pending.pop()
            with self.directory(here) as directory:
                for name in sorted(directory.names()):
                    entry = directory.lookup(name)
                    if entry is None:
                        continue
                    yield here, name, entry
                    if stat.S_ISDIR(entry.st_mode):
                        pending.append(join(here, name))

    def close(self) -> None:
        for fd in self._roots:
            os.close(fd)
        self._roots = []

    def __enter__(self) -> Lower:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _open(root: int, path: str) -> int | None:
    try:
        return open_directory(root, path)
    except OSError as error:
        if error.errno in _NO_DIRECTORY:
            return None
        raise


def _reach(root: int, path: str) -> str:
    """How a layer bears on a directory: it is ``absent`` here, ``beneath`` it, ``opaque``, or ``hidden`` by a whiteout
    or a file on the way."""
    outcome = "beneath"
    here = ""
    for name in path.split("/") if path else ():
        fd = open_directory(root, here)
        try:
            entry = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not stat.S_ISDIR(entry.st_mode):
                return "hidden"
            beneath = proc_path(fd, name)
            if is_opaque(beneath, os.listxattr(beneath, follow_symlinks=False)):
                outcome = "opaque"
        except FileNotFoundError:
            # Above the gap an opaque directory hides whatever the layers below hold.
            return "hidden" if outcome == "opaque" else "absent"
        finally:
            os.close(fd)
        here = join(here, name)
    return outcome
