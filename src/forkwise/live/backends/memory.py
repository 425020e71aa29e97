"""StateBackend: files that are in memory only, and a clock that tells which of them changed since a moment."""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count

from forkwise.live.backends.backend import Backend, FileInfo

__all__ = ["Dated", "StateBackend", "above", "listed", "moment", "plain_name"]

_moments = count(1)


def moment() -> int:
    """A number above all that were given before: what changes from now on is dated above it."""
    return next(_moments)


class Dated(Backend):
    """A backend that knows when each of its files was last written or removed."""

    @abstractmethod
    def changed_at(self, name: str) -> int:
        """The moment of a file's last change; 0 where it never changed."""


class StateBackend(Dated):
    """Files in memory, by their paths: ``/notes.txt`` and ``notes.txt`` are the same one. A directory is there as long
    as there is a file in it.

    >>> backend = StateBackend({"src/a.py": "import os"})
    >>> backend.edit("/src/a.py", "os", "sys").occurrences, backend.read("src/a.py")
    (1, '     1\\timport sys')
    """

    def __init__(self, files: Mapping[str, str | bytes] | None = None) -> None:
        self._files: dict[str, bytes] = {}
        self._directories: Counter[str] = Counter()  # how many files are beneath each
        self._changed: dict[str, int] = {}
        for path, content in (files or {}).items():
            self.put(self.name_of(path), content.encode() if isinstance(content, str) else content)

    @property
    def files(self) -> dict[str, bytes]:
        """All files, as a copy."""
        return dict(self._files)

    def name_of(self, path: str) -> str:
        """A path without what does not change where it leads."""
        return plain_name(path)

    def get(self, name: str) -> bytes:
        """The content of a file."""
        if name in self._files:
            return self._files[name]
        if not name or self._directories[name]:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def put(self, name: str, content: bytes) -> None:
        """Write a file."""
        with self.lock:
            _put(self._files, self._directories, name, content)
            self._changed[name] = moment()

    def remove(self, name: str) -> None:
        """Remove a file, or all beneath a directory."""
        with self.lock:
            self.replace(dict.fromkeys([name] if name in self._files else [info["path"] for info in self.walk(name)]))

    def replace(self, contents: Mapping[str, bytes | None]) -> None:
        """Write and remove several files at once: whoever reads meanwhile finds all or nothing of it."""
        with self.lock:
            files, directories = dict(self._files), Counter(self._directories)
            for name in [name for name, content in contents.items() if content is None and name in files]:
                del files[name]
                directories.subtract(above(name))
            for name, content in contents.items():
                if content is not None:
                    _put(files, directories, name, content)
            self._changed.update(dict.fromkeys(contents, moment()))
            self._files, self._directories = files, directories

    def names(self, name: str = "") -> Iterator[FileInfo]:
        """What a directory holds."""
        return listed(((path, len(content)) for path, content in self.files.items()), name)

    def walk(self, name: str = "") -> Iterator[FileInfo]:
        """All files beneath a directory."""
        next(iter(self.names(name)), None)
        for path, content in sorted(self.files.items()):
            if not name or path.startswith(f"{name}/"):
                yield FileInfo(name=os.path.basename(path), path=path, is_dir=False, size=len(content))

    def changed_at(self, name: str) -> int:
        """When a file was last written or removed."""
        return self._changed.get(name, 0)


def plain_name(path: str) -> str:
    """The name of a file in memory; PermissionError for a path that leads above the top.

    >>> plain_name("/src/./a.py"), plain_name("src/../b"), plain_name("/")
    ('src/a.py', 'b', '')
    """
    name = os.path.normpath(path.strip("/") or ".")
    if name.split("/")[0] == "..":
        raise PermissionError(errno.EACCES, "it leads above the top", path)
    return "" if name == "." else name


def listed(files: Iterator[tuple[str, int]], name: str) -> Iterator[FileInfo]:
    """A directory's content, from the paths of all files; raises where there is no such directory."""
    prefix = f"{name}/" if name else ""
    found: dict[str, FileInfo] = {}
    for path, size in files:
        if path == name:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        if path.startswith(prefix):
            first, slash, _ = path[len(prefix) :].partition("/")
            found[first] = FileInfo(name=first, path=prefix + first, is_dir=bool(slash), size=None if slash else size)
    if name and not found:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return iter([found[first] for first in sorted(found)])


def above(name: str) -> list[str]:
    """The directories that a path lies in.

    >>> above("src/deep/a.py")
    ['src', 'src/deep']
    """
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _put(files: dict[str, bytes], directories: Counter[str], name: str, content: bytes) -> None:
    """Raises where a file cannot be: in the place of a directory, or beneath another file."""
    if not name or directories[name]:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if name not in files:
        directories_of = above(name)
        if any(directory in files for directory in directories_of):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        directories.update(directories_of)
    files[name] = content
