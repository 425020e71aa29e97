"""AddressedTree: the files beneath a directory, addressed as a process does for which that lies at another path.

An agent in a branch speaks of the workspace's own paths, absolute ones and those in symbolic links too. Here they are
led to the branch's files, and what leads out of it is refused. Every file is reached by descriptor with no link
followed, so that a command that swaps a directory for a link meanwhile gains nothing.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from forkwise.linux.trees import copy_entry, join, open_beneath, open_directory, open_root, remove_tree

__all__ = ["FileTree"]

_LINKS = 40  # as many as the kernel follows
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileTree:
    """The files of the directory ``root``, which are spoken of as lying at ``where``.

    Paths are absolute, or relative to ``where``. One that leads outside, by itself or through a link, is a
    PermissionError; all other failures are those of the operating system.

    >>> import tempfile
    >>> tree = AddressedTree(tempfile.mkdtemp(), "/project")
    >>> tree.write("/project/src/a.py", b"pass")
    >>> tree.read("src/a.py"), tree.realpath("src/../b"), tree.exists("src/a.py")
    (b'pass', '/project/b', True)
    >>> tree.read("/project/../etc/passwd")
    Traceback (most recent call last):
        ...
    PermissionError: [Errno 13] it leads out of /project: '/etc/passwd'
    """

    def __init__(self, root: str, where: str) -> None:
        self.root = root
        self.where = where
        self._content = threading.Lock()  # a file is written in place: nobody is to read half of it

    # Paths

    def resolve(self, path: str, *, follow: bool = True) -> str:
        """The path of a file relative to the root, with no link in it; the root's own is empty. With ``follow=False``
        a link that is the last name stays one."""
        real = self.realpath(path, follow=follow)
        inside = self._inside(real)
        if inside is None:
            raise PermissionError(errno.EACCES, f"it leads out of {self.where}", real)
        return inside

    def realpath(self, path: str, *, follow: bool = True) -> str:
        """Where a path leads, as ``os.path.realpath`` would tell a process that sees the root at ``where``."""
        path = os.path.join(self.where, path)
        lexical = self._inside(path)
        if lexical is not None and ".." not in lexical.split("/") and not self._has_link(lexical, follow):
            return os.path.normpath(path)
        return self._walk(path, follow)

    def _inside(self, path: str) -> str | None:
        """The part of an absolute path that lies below ``where``."""
        if path == self.where:
            return ""
        prefix = self.where.rstrip("/") + "/"
        return path.removeprefix(prefix).strip("/") if path.startswith(prefix) else None

    def _has_link(self, path: str, follow: bool) -> bool:
        """Whether a path leads through a link, or has no file at its end."""
        try:
            with self._rooted() as root:
                fd = open_beneath(root, os.path.normpath(path), os.O_PATH | os.O_NOFOLLOW)
        except OSError:
            return True
        try:
            return follow and stat.S_ISLNK(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def _walk(self, path: str, follow: bool) -> str:
        """Name by name: a link of the tree is followed as ``where`` would have it, one of elsewhere as the host has."""
        left = path.split("/")[::-1]
        done: list[str] = []
        links = 0
        while left:
            name = left.pop()
            if name in ("", "."):
                continue
            if name == "..":
                del done[-1:]
                continue
            done.append(name)
            target = self._target("/" + "/".join(done)) if follow or any(left) else None
            if target is None:
                continue
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            done = [] if target.startswith("/") else done[:-1]
            left += target.split("/")[::-1]
        return "/" + "/".join(done)

    def _target(self, path: str) -> str | None:
        """What a link says; None of anything that is not one, or not there."""
        inside = self._inside(path)
        try:
            if not inside:
                return None if inside == "" else os.readlink(path)
            with self._directory_of(inside) as (directory, name):
                return os.readlink(name, dir_fd=directory)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise

    @contextmanager
    def _rooted(self) -> Iterator[int]:
        root = open_root(self.root)
        try:
            yield root
        finally:
            os.close(root)

    @contextmanager
    def _directory_of(self, inside: str) -> Iterator[tuple[int, str]]:
        """The directory that holds a path, open, and the name in it."""
        above, _, name = inside.rpartition("/")
        with self._rooted() as root:
            directory = open_directory(root, above, os.O_PATH)
        try:
            yield directory, name
        finally:
            os.close(directory)

    # Files

    def exists(self, path: str) -> bool:
        """Whether there is anything at a path, and not just a link to nowhere."""
        try:
            self.stat(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return False
            raise
        return True

    def stat(self, path: str, *, follow: bool = True) -> os.stat_result:
        """What the operating system knows of a file or a directory."""
        with self._rooted() as root:
            fd = open_beneath(root, self.resolve(path, follow=follow), os.O_PATH | os.O_NOFOLLOW)
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def read(self, path: str) -> bytes:
        """The content of a file."""
        with self._content, self._rooted() as root:
            fd = open_beneath(root, self.resolve(path), os.O_RDONLY | os.O_NONBLOCK)
            with open(_regular(fd, path), "rb") as file:
                return file.read()

    def write(self, path: str, content: bytes, mode: int | None = None) -> None:
        """Give a file its content, and a mode if one is told; missing directories are made. A file that was there
        keeps its mode and its links."""
        inside = self.resolve(path)
        above, _, name = inside.rpartition("/")
        if not name:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._make(above, path)
        with self._content, self._directory_of(inside) as (directory, name):
            fd = os.open(name, _NEW_FILE, 0o666, dir_fd=directory)
            with open(_regular(fd, path), "wb") as file:
                file.write(content)
                if mode is not None:
                    os.fchmod(file.fileno(), mode)

    def make_directory(self, path: str) -> None:
        """Make a directory, and those it lies in; it may be there already."""
        inside = self.resolve(path)
        self._make(inside.rpartition("/")[0], path)
        with self._directory_of(inside) as (directory, name):
            if name and not _is_directory(directory, name):
                os.mkdir(name, dir_fd=directory)

    def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with all it holds; not the root, nor what that lies in."""
        wanted = os.path.normpath(os.path.join(self.where, path))
        if self.where == wanted or self.where.startswith(wanted.rstrip("/") + "/"):
            raise ValueError(f"{wanted} is the workspace, or holds it, and is not removed")
        with self._directory_of(self.resolve(path, follow=False)) as (directory, name):
            os.stat(name, dir_fd=directory, follow_symlinks=False)
            remove_tree(directory, name)

    def copy_from(self, other: FileTree, path: str) -> None:
        """Have at a path, which has no link in it, what another tree has there: content, mode and all, or nothing."""
        above, _, name = path.rpartition("/")
        self._make(above, path)
        with self._directory_of(path) as (directory, _):
            remove_tree(directory, name)
            try:
                with other._directory_of(path) as (source, _):
                    copy_entry(source, name, directory, name)
            except (FileNotFoundError, NotADirectoryError):
                return

    def list_directory(self, path: str = "") -> list[tuple[str, os.stat_result]]:
        """The names in a directory, sorted, each with what it leads to; a link that leads nowhere, or out of the tree,
        is told of itself."""
        inside = self.resolve(path)
        return [(os.path.basename(below), self._led(below, entry)) for below, entry in self.list_entries(inside)]

    def list_entries(self, path: str) -> list[tuple[str, os.stat_result]]:
        """The paths in a directory, itself one with no link in it, and what each of them is itself."""
        with self._rooted() as root:
            fd = open_directory(root, path)
        found = []
        try:
            for name in sorted(os.listdir(fd)):
                with suppress(FileNotFoundError):  # a command has removed it since
                    found.append((join(path, name), os.stat(name, dir_fd=fd, follow_symlinks=False)))
        finally:
            os.close(fd)
        return found

    def entry(self, path: str) -> os.stat_result | None:
        """What a path, which has no link in it, is itself; None where there is nothing."""
        try:
            with self._directory_of(path) as (directory, name):
                return os.stat(name or ".", dir_fd=directory, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def content(self, path: str) -> bytes | None:
        """What a path, which has no link in it, holds itself: a file's content or a link's target; None for anything
        else, and where there is nothing."""
        try:
            with self._content, self._directory_of(path) as (directory, name):
                mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
                if stat.S_ISLNK(mode):
                    return os.fsencode(os.readlink(name, dir_fd=directory))
                if not stat.S_ISREG(mode):
                    return None
                with open(os.open(name, _READ, dir_fd=directory), "rb") as file:
                    return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _led(self, path: str, entry: os.stat_result) -> os.stat_result:
        if not stat.S_ISLNK(entry.st_mode):
            return entry
        try:
            return self.stat(path)
        except OSError:
            return entry

    def _make(self, inside: str, wanted: str) -> None:
        """Make the directories of a path with no link in it."""
        with self._rooted() as root:
            here = os.dup(root)
        try:
            for name in inside.split("/") if inside else ():
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=here)
                try:
                    deeper = open_directory(here, name, os.O_PATH)
                except NotADirectoryError as error:
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), wanted) from error
                os.close(here)
                here = deeper
        finally:
            os.close(here)


def _is_directory(directory: int, name: str) -> bool:
    """Whether a name is a directory's; False where there is nothing, FileExistsError for anything else."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(found.st_mode):
        return True
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)


def _regular(fd: int, path: str) -> int:
    """The same descriptor, if it is of a file that has content."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is no file, directory or link", path)
