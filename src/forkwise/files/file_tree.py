"""FileTree: the files of a directory, addressed by the paths of another one.

An agent in a branch uses the workspace's paths, absolute ones and symlink targets included. FileTree maps them to the
branch's files and refuses paths that lead outside. Files are opened by descriptor without following symlinks, so a
command that replaces a directory with a symlink at the same time cannot escape.
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

_MAX_LINKS = 40  # the kernel's own limit
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileTree:
    """The files of the directory ``root``, addressed as if it were at ``apparent_root``.

    Paths are absolute, or relative to ``apparent_root``. A path that leads outside, directly or through a symlink,
    raises PermissionError; other failures are the operating system's OSError.

    >>> import tempfile
    >>> tree = FileTree(tempfile.mkdtemp(), "/project")
    >>> tree.write("/project/src/a.py", b"pass")
    >>> tree.read("src/a.py"), tree.realpath("src/../b"), tree.exists("src/a.py")
    (b'pass', '/project/b', True)
    >>> tree.read("/project/../etc/passwd")
    Traceback (most recent call last):
        ...
    PermissionError: [Errno 13] path leads out of /project: '/etc/passwd'
    """

    def __init__(self, root: str, apparent_root: str) -> None:
        self.root = root
        self.apparent_root = apparent_root
        self._content_lock = threading.Lock()  # files are written in place: no other thread may read a partial one

    # Paths

    def resolve(self, path: str, *, follow: bool = True) -> str:
        """Resolve a path to one relative to the root and free of symlinks; the root itself is the empty path.

        With ``follow=False`` a symlink that is the last name is not followed.
        """
        real = self.realpath(path, follow=follow)
        inside = self._relative(real)
        if inside is None:
            raise PermissionError(errno.EACCES, f"path leads out of {self.apparent_root}", real)
        return inside

    def realpath(self, path: str, *, follow: bool = True) -> str:
        """Return what ``os.path.realpath`` would return for a process that sees the root at ``apparent_root``."""
        path = os.path.join(self.apparent_root, path)
        lexical = self._relative(path)
        if lexical is not None and ".." not in lexical.split("/") and not self._has_link(lexical, follow):
            return os.path.normpath(path)
        return self._walk(path, follow)

    def _relative(self, path: str) -> str | None:
        """Return the part of an absolute path below ``apparent_root``; None if it is outside."""
        if path == self.apparent_root:
            return ""
        prefix = self.apparent_root.rstrip("/") + "/"
        return path.removeprefix(prefix).strip("/") if path.startswith(prefix) else None

    def _has_link(self, path: str, follow: bool) -> bool:
        """Return whether a path contains a symlink, or does not exist."""
        try:
            with self._open_root() as root:
                fd = open_beneath(root, os.path.normpath(path), os.O_PATH | os.O_NOFOLLOW)
        except OSError:
            return True
        try:
            return follow and stat.S_ISLNK(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def _walk(self, path: str, follow: bool) -> str:
        """Resolve a path name by name: symlinks in the tree relative to ``apparent_root``, others as on the host."""
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
            target = self._read_link("/" + "/".join(done)) if follow or any(left) else None
            if target is None:
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            done = [] if target.startswith("/") else done[:-1]
            left += target.split("/")[::-1]
        return "/" + "/".join(done)

    def _read_link(self, path: str) -> str | None:
        """Return the target of a symlink; None if the path is something else or does not exist."""
        inside = self._relative(path)
        try:
            if not inside:
                return None if inside == "" else os.readlink(path)
            with self._open_parent(inside) as (directory, name):
                return os.readlink(name, dir_fd=directory)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise

    @contextmanager
    def _open_root(self) -> Iterator[int]:
        root = open_root(self.root)
        try:
            yield root
        finally:
            os.close(root)

    @contextmanager
    def _open_parent(self, inside: str) -> Iterator[tuple[int, str]]:
        """Open the directory that contains a path. Yield its descriptor and the name in it."""
        above, _, name = inside.rpartition("/")
        with self._open_root() as root:
            directory = open_directory(root, above, os.O_PATH)
        try:
            yield directory, name
        finally:
            os.close(directory)

    @contextmanager
    def _open_plain_parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the directory that contains a path. Raises NotADirectoryError also if a symlink takes its place."""
        try:
            with self._open_parent(path) as found:
                yield found
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from error
            raise

    # Files

    def exists(self, path: str) -> bool:
        """Return whether a path exists; a dangling symlink does not."""
        try:
            self.stat(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return False
            raise
        return True

    def stat(self, path: str, *, follow: bool = True) -> os.stat_result:
        """Return the ``os.stat_result`` of a path."""
        with self._open_root() as root:
            fd = open_beneath(root, self.resolve(path, follow=follow), os.O_PATH | os.O_NOFOLLOW)
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with self._content_lock, self._open_root() as root:
            fd = open_beneath(root, self.resolve(path), os.O_RDONLY | os.O_NONBLOCK)
            with open(_require_regular(fd, path), "rb") as file:
                return file.read()

    def write(self, path: str, content: bytes, mode: int | None = None) -> None:
        """Write a file, creating missing directories.

        An existing file is written in place: it keeps its hard links, and its mode unless ``mode`` is given.
        """
        inside = self.resolve(path)
        above, _, name = inside.rpartition("/")
        if not name:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._make_directories(above, path)
        with self._content_lock, self._open_parent(inside) as (directory, name):
            fd = os.open(name, _NEW_FILE, 0o666, dir_fd=directory)
            with open(_require_regular(fd, path), "wb") as file:
                file.write(content)
                if mode is not None:
                    os.fchmod(file.fileno(), mode)

    def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents; it may already exist."""
        inside = self.resolve(path)
        self._make_directories(inside.rpartition("/")[0], path)
        with self._open_parent(inside) as (directory, name):
            if name and not _is_directory(directory, name):
                os.mkdir(name, dir_fd=directory)

    def remove(self, path: str) -> None:
        """Remove a file, a symlink or a directory tree. Raises ValueError for the root and the directories above it."""
        wanted = os.path.normpath(os.path.join(self.apparent_root, path))
        if self.apparent_root == wanted or self.apparent_root.startswith(wanted.rstrip("/") + "/"):
            raise ValueError(f"{wanted} is or contains the workspace and cannot be removed")
        with self._open_parent(self.resolve(path, follow=False)) as (directory, name):
            os.stat(name, dir_fd=directory, follow_symlinks=False)
            remove_tree(directory, name)

    def copy_from(self, other: FileTree, path: str) -> None:
        """Replace a path, which contains no symlink, with a copy from another tree; remove it if that has none."""
        above, _, name = path.rpartition("/")
        self._make_directories(above, path)
        with self._open_parent(path) as (directory, _):
            remove_tree(directory, name)
            try:
                with other._open_plain_parent(path) as (source, _):
                    copy_entry(source, name, directory, name)
            except (FileNotFoundError, NotADirectoryError):
                return

    def list_directory(self, path: str = "") -> list[tuple[str, os.stat_result]]:
        """List the names in a directory, sorted, each with its stat result.

        Symlinks are followed, except those that are dangling or lead out of the tree.
        """
        inside = self.resolve(path)
        return [
            (os.path.basename(below), self._stat_target(below, entry)) for below, entry in self.list_entries(inside)
        ]

    def list_entries(self, path: str) -> list[tuple[str, os.stat_result]]:
        """List the paths in a directory, each with its lstat result; ``path`` contains no symlink."""
        with self._open_root() as root:
            fd = open_directory(root, path)
        found = []
        try:
            for name in sorted(os.listdir(fd)):
                with suppress(FileNotFoundError):  # a command removed it meanwhile
                    found.append((join(path, name), os.stat(name, dir_fd=fd, follow_symlinks=False)))
        finally:
            os.close(fd)
        return found

    def entry(self, path: str) -> os.stat_result | None:
        """Return the lstat result of a path that contains no symlink; None if there is nothing."""
        try:
            with self._open_plain_parent(path) as (directory, name):
                return os.stat(name or ".", dir_fd=directory, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def content(self, path: str) -> bytes | None:
        """Return a file's content or a symlink's target; None for anything else, or nothing.

        The directories of ``path`` must not be symlinks.
        """
        try:
            with self._content_lock, self._open_plain_parent(path) as (directory, name):
                mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
                if stat.S_ISLNK(mode):
                    return os.fsencode(os.readlink(name, dir_fd=directory))
                if not stat.S_ISREG(mode):
                    return None
                with open(os.open(name, _READ, dir_fd=directory), "rb") as file:
                    return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _stat_target(self, path: str, entry: os.stat_result) -> os.stat_result:
        if not stat.S_ISLNK(entry.st_mode):
            return entry
        try:
            return self.stat(path)
        except OSError:
            return entry

    def _make_directories(self, inside: str, wanted: str) -> None:
        """Create the directory ``inside``, which contains no symlink, and its parents; errors name ``wanted``."""
        with self._open_root() as root:
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
    """Return whether a name is a directory, False if it does not exist. Raises FileExistsError for anything else."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(found.st_mode):
        return True
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)


def _require_regular(fd: int, path: str) -> int:
    """Return the descriptor if it refers to a regular file; otherwise close it and raise OSError."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file", path)
