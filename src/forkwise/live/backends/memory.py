"""`StateBackend`, files in memory, and helpers that the overlay in memory shares.

A logical clock (`next_tick`) orders the changes of all backends in memory, so that a branch can tell which files of its
parent changed after the fork.
"""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count

from forkwise.linux.trees import list_above
from forkwise.live.backends.backend import Backend, FileInfo

__all__ = ["DatedBackend", "StateBackend", "list_directory", "next_tick", "normalize_name"]

_ticks = count(1)


def next_tick() -> int:
    """Advance the logical clock: return a number greater than all before."""
    return next(_ticks)


class DatedBackend(Backend):
    """A backend that records the tick of each file's last change."""

    @abstractmethod
    def changed_at(self, name: str) -> int:
        """Return the tick at which a file was last written or removed; 0 if never."""


class StateBackend(DatedBackend):
    """Files in memory. ``/notes.txt`` and ``notes.txt`` are the same path; a directory exists while it has files.

    >>> backend = StateBackend({"src/a.py": "import os"})
    >>> backend.edit("/src/a.py", "os", "sys").occurrences, backend.read("src/a.py")
    (1, '     1\\timport sys')
    """

    def __init__(self, files: Mapping[str, str | bytes] | None = None) -> None:
        self._files: dict[str, bytes] = {}
        self._directories: Counter[str] = Counter()  # the number of files below each
        self._changed: dict[str, int] = {}
        for path, content in (files or {}).items():
            self.put(self.name_of(path), content.encode() if isinstance(content, str) else content)

    @property
    def files(self) -> dict[str, bytes]:
        """A copy of all files."""
        return dict(self._files)

    def name_of(self, path: str) -> str:
        """Return the canonical name of a path."""
        return normalize_name(path)

    def get(self, name: str) -> bytes:
        """Return the content of a file."""
        if name in self._files:
            return self._files[name]
        if not name or self._directories[name]:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def put(self, name: str, content: bytes) -> None:
        """Write a file."""
        with self.lock:
            _put(self._files, self._directories, name, content)
            self._changed[name] = next_tick()

    def remove(self, name: str) -> None:
        """Remove a file, or all files below a directory."""
        with self.lock:
            self.replace(dict.fromkeys([name] if name in self._files else [info["path"] for info in self.walk(name)]))

    def replace(self, contents: Mapping[str, bytes | None]) -> None:
        """Write and remove several files atomically: a concurrent reader sees all changes or none."""
        with self.lock:
            files, directories = dict(self._files), Counter(self._directories)
            for name in [name for name, content in contents.items() if content is None and name in files]:
                del files[name]
                directories.subtract(list_above(name))
            for name, content in contents.items():
                if content is not None:
                    _put(files, directories, name, content)
            self._changed.update(dict.fromkeys(contents, next_tick()))
            self._files, self._directories = files, directories

    def names(self, name: str = "") -> Iterator[FileInfo]:
        """List a directory, sorted by name."""
        return list_directory(((path, len(content)) for path, content in self.files.items()), name)

    def walk(self, name: str = "") -> Iterator[FileInfo]:
        """Iterate over all files below a directory. Raise OSError if there is no such directory."""
        next(iter(self.names(name)), None)
        for path, content in sorted(self.files.items()):
            if not name or path.startswith(f"{name}/"):
                yield FileInfo(name=os.path.basename(path), path=path, is_dir=False, size=len(content))

    def changed_at(self, name: str) -> int:
        """Return the tick at which a file was last written or removed; 0 if never."""
        return self._changed.get(name, 0)


def normalize_name(path: str) -> str:
    """Return the canonical name of a file in memory. Raise PermissionError if it is outside the root.

    >>> normalize_name("/src/./a.py"), normalize_name("src/../b"), normalize_name("/")
    ('src/a.py', 'b', '')
    """
    name = os.path.normpath(path.strip("/") or ".")
    if name.split("/")[0] == "..":
        raise PermissionError(errno.EACCES, "the path is outside the root", path)
    return "" if name == "." else name


def list_directory(files: Iterator[tuple[str, int]], name: str) -> Iterator[FileInfo]:
    """List a directory, given the paths and sizes of all files. Raise OSError if there is no such directory."""
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


def _put(files: dict[str, bytes], directories: Counter[str], name: str, content: bytes) -> None:
    """Add a file. Raise OSError if its path is a directory, or below another file."""
    if not name or directories[name]:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if name not in files:
        parents = list_above(name)
        if any(directory in files for directory in parents):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        directories.update(parents)
    files[name] = content
