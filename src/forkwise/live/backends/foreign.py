"""Backends of other libraries, and users' own: `ForeignBackend` makes a `Backend` of any object with the usual methods.

There are two families. The objects of ``pydantic_ai_backends`` have ``exists``, ``read_bytes``, ``write`` and
``ls_info``, and return errors as values. Workspaces have ``read_bytes``, ``write_bytes`` and ``list_dir``, and raise.
The methods may be async.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import shutil
import threading
from collections.abc import Awaitable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from forkwise.concurrency import run_in_thread, run_sync
from forkwise.errors import BranchError
from forkwise.live.backends.backend import Backend, ExecuteResponse, FileInfo
from forkwise.live.backends.local import DiskBackend, LocalBackend
from forkwise.live.backends.memory import normalize_name

__all__ = ["ForeignBackend", "adapt_backend", "find_directory"]

T = TypeVar("T")

_READ = ("read_bytes", "_read_bytes")  # the second name is that of old releases
_WRITE = ("write", "write_bytes")
_LIST = ("ls_info", "list_dir")
_DELETE = ("delete", "remove", "delete_file")
_MAX_DEPTH = 100  # of directories: a link may lead to a directory above it

# The adapters in use, by the id of the object, which an adapter keeps alive: all users of an object share one lock.
_adapters: WeakValueDictionary[int, ForeignBackend] = WeakValueDictionary()
_guard = threading.Lock()


def adapt_backend(backend: Any) -> Backend:
    """Return a backend of any kind as a `Backend`.

    Raises BranchError if it lacks a method that a branch needs. If its methods are async, call this on the event loop
    that they belong to.
    """
    if isinstance(backend, Backend):
        return backend
    with _guard:
        adapter = _adapters.get(id(backend)) or ForeignBackend(backend)
        _adapters[id(backend)] = adapter
    with suppress(RuntimeError):  # no event loop runs in this thread
        adapter.loop = asyncio.get_running_loop()
    return adapter


def find_directory(backend: Any) -> DiskBackend | None:
    """Return a backend as the files of a directory, so that its branches are directories; None if it is something else.

    The `LocalBackend` of pydantic_ai_backends is such a backend, unless it has permission rules or several directories,
    which only its own methods can follow.
    """
    if isinstance(backend, DiskBackend):
        return backend
    kind = type(backend)
    if kind.__name__ != "LocalBackend" or kind.__module__.partition(".")[0] != "pydantic_ai_backends":
        return None
    root = Path(backend.root_dir)
    allowed = getattr(backend, "_allowed_directories", None) or [root]
    if getattr(backend, "permissions", None) is not None or [*allowed] != [root] or not root.is_dir():
        return None
    return _Directory(root, can_execute=bool(getattr(backend, "execute_enabled", True)))


class _Directory(LocalBackend):
    """The directory of another library's backend, in which commands may be disabled."""

    def __init__(self, root: Path, *, can_execute: bool) -> None:
        super().__init__(root)
        self._can_execute = can_execute

    @property
    def execute_enabled(self) -> bool:
        """Whether commands can be run here."""
        return self._can_execute


class _Entry(NamedTuple):
    """An entry of a listing; ``path`` is the backend's own spelling of it, if it reports one."""

    name: str
    is_dir: bool
    size: int | None = None
    path: str | None = None


class ForeignBackend(Backend):
    """A backend of another library, ``wrapped``, whose files are read and written through its own methods.

    Only ``wrapped`` knows how it spells paths (``a.txt``, ``/a.txt`` or an absolute path on disk), so a file keeps the
    spelling from its listing, or else the one that a caller used. ``loop`` is the event loop of async methods: a thread
    waits for it, and calls from that loop itself are run in another thread.
    """

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        self.loop: asyncio.AbstractEventLoop | None = None
        self._spelling: dict[str, str] = {}
        self._read = self._find(_READ)
        self._write = self._find(_WRITE)
        self._list = self._find(_LIST)
        found = {_READ[0]: self._read, _WRITE[0]: self._write, _LIST[0]: self._list}
        missing = [method for method, own in found.items() if own is None]
        if self._list != "list_dir" and self._find(("exists",)) is None:
            missing.append("exists")  # read_bytes of the other family returns b"" for a file that is missing
        if missing:
            raise BranchError(
                f"{type(wrapped).__name__} cannot be branched: it has no method {', '.join(sorted(missing))}. A "
                "backend needs exists, read_bytes, write and ls_info, or read_bytes, write_bytes and list_dir"
            )
        self._root: str | None = None
        self._has_root = False

    def __repr__(self) -> str:
        return f"<ForeignBackend {self.wrapped!r}>"

    def _find(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if callable(getattr(self.wrapped, name, None))), None)

    # Calls

    def _call(self, method: str, name: str, *args: Any) -> Any:
        """Call a method; convert any exception to an OSError for the file ``name``."""
        try:
            result = getattr(self.wrapped, method)(*args)
            return self._wait(result) if inspect.isawaitable(result) else result
        except OSError:
            raise
        except Exception as error:
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}", name) from error

    def _wait(self, awaitable: Awaitable[T]) -> T:
        if self.loop is not None and self.loop.is_running():
            return run_sync(_await(awaitable), self.loop)
        return run_sync(_await(awaitable), alone=True)

    # Paths

    @property
    def root(self) -> str | None:
        """The directory on disk, or in a sandbox, that relative paths belong to; None if there is none."""
        if not self._has_root:
            found = getattr(self.wrapped, "root_dir", None)
            if found is None and self._find(("working_dir",)):
                found = self._call("working_dir", "")
            self._root = None if found is None else os.path.normpath(os.fspath(found))
            self._has_root = True
        return self._root

    def name_of(self, path: str) -> str:
        """Return the canonical name of a path, relative to the root. Raise PermissionError if it is outside."""
        root = self.root
        if root is not None and path.startswith("/") and path != "/":
            relative = os.path.relpath(os.path.normpath(path), root)
            if relative.split("/")[0] == "..":
                raise PermissionError(errno.EACCES, "the path is outside the root", path)
            name = normalize_name(relative)
        else:
            name = normalize_name(path)
        self._spelling.setdefault(name, path)
        return name

    def _spell(self, name: str) -> str:
        """Return a path as ``wrapped`` spells it."""
        root = self.root
        if root is not None:
            return os.path.join(root, name) if name else root
        return f"/{name}"

    def _spell_file(self, name: str) -> str:
        """Return the path of a file: of the possible spellings, that of the file that exists, or of its siblings."""
        if self._list == "list_dir":
            return self._spell(name)
        given = self._spelling.get(name, self._spell(name))
        for path in dict.fromkeys((given, self._spell(name), name)):
            if self._call("exists", name, path):
                return path
        if self.root is None:
            known = [entry.path for entry in self._entries("") if entry.path is not None]
            if known:
                return self._spell(name) if known[0].startswith("/") else name
        return given

    # The primitives

    def get(self, name: str) -> bytes:
        """Return the content of a file."""
        if self._list == "ls_info":
            path = self._spell_file(name)
            if not name or not self._call("exists", name, path):
                raise self._missing(name)
        else:
            path = self._spell(name)
        self._check_readable(name, path)
        content = self._call(str(self._read), name, path)
        return content.encode() if isinstance(content, str) else bytes(content)

    def _check_readable(self, name: str, path: str) -> None:
        """Raise PermissionError if the backend's rules forbid reading a file; only its ``read`` enforces them."""
        if getattr(self.wrapped, "permissions", None) is not None and self._find(("read",)):
            text = str(self._call("read", name, path, 0, 1))
            if text.startswith(("Error", "[Error")) and "ermission" in text:
                raise PermissionError(errno.EACCES, text, name)

    def _missing(self, name: str) -> OSError:
        is_directory = not name or bool(self._entries(name))
        number = errno.EISDIR if is_directory else errno.ENOENT
        kind = IsADirectoryError if is_directory else FileNotFoundError
        return kind(number, os.strerror(number), name)

    def put(self, name: str, content: bytes) -> None:
        """Write a file. Raise OSError if the backend refuses it, or does not have the content afterwards."""
        path = self._spell_file(name)
        given = content if self._write == "write_bytes" else _as_text(content)
        error = getattr(self._call(str(self._write), name, path, given), "error", None)
        if error:
            raise OSError(errno.EIO, str(error), name)
        if self.get(name) != content:
            raise OSError(errno.EIO, "the backend does not have the content that was written", name)

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with its content."""
        files = [info["path"] for info in self._walk_below(name)]
        for path in files:
            self._remove_file(path)

    def _walk_below(self, name: str) -> Iterator[FileInfo]:
        try:
            yield from self.walk(name)
        except NotADirectoryError:
            yield FileInfo(name=os.path.basename(name), path=name, is_dir=False, size=None)

    def _remove_file(self, name: str) -> None:
        path = self._spell_file(name)
        files = getattr(self.wrapped, "files", None)
        if method := self._find(_DELETE):
            self._call(method, name, path)
        elif isinstance(files, MutableMapping) and path in files:
            del files[path]
        elif isinstance(files, MutableMapping) and f"/{name}" in files:
            del files[f"/{name}"]
        elif isinstance(getattr(self.wrapped, "root_dir", None), str | os.PathLike):
            _unlink_below(str(self.root), name)
        else:
            raise OSError(errno.ENOTSUP, "the backend cannot delete files", name)
        if self._has_file(name):
            raise OSError(errno.EIO, "the backend still has the file after its deletion", name)

    def _has_file(self, name: str) -> bool:
        try:
            self.get(name)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return False
        return True

    def _entries(self, name: str) -> list[_Entry]:
        path = self._spell(name)
        found = [_read_entry(entry) for entry in self._call(str(self._list), name, path)]
        return [entry for entry in found if entry.name not in ("", ".", "..") and "/" not in entry.name]

    def names(self, name: str = "") -> Iterator[FileInfo]:
        """List a directory, sorted by name."""
        entries = self._entries(name)
        prefix = f"{name}/" if name else ""
        is_file = len(entries) == 1 and name and self._is_same(entries[0].path, name)
        if is_file or (name and not entries and self._has_file(name)):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        if name and not entries and self._list == "ls_info":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        for entry in entries:
            if entry.path is not None and not entry.is_dir:
                self._spelling[prefix + entry.name] = entry.path
        return iter(
            FileInfo(name=e.name, path=prefix + e.name, is_dir=e.is_dir, size=None if e.is_dir else e.size)
            for e in sorted(entries, key=lambda entry: entry.name)
        )

    def _is_same(self, path: str | None, name: str) -> bool:
        """Return whether a listed path is ``name`` itself: the listing of a file names the file."""
        try:
            return path is not None and self.name_of(path) == name
        except PermissionError:
            return False

    def walk(self, name: str = "") -> Iterator[FileInfo]:
        """Iterate over all files below a directory, without following links to directories."""
        if name.count("/") >= _MAX_DEPTH:
            return
        for info in self.names(name):
            if not info["is_dir"]:
                yield info
                continue
            with suppress(FileNotFoundError, NotADirectoryError):  # empty, or removed meanwhile
                if not self._is_link(info["path"]):
                    yield from self.walk(info["path"])

    def _is_link(self, name: str) -> bool:
        """Return whether a directory is a link: its listing has the paths of another directory."""
        listed = [entry.path for entry in self._entries(name)[:1] if entry.path is not None and self.root is not None]
        return any(not self._is_same(os.path.dirname(path), name) for path in listed)

    def apply(self, contents: Mapping[str, bytes | None]) -> dict[str, OSError]:
        """Write or remove (None) several files, one after the other. Return the error of each that failed.

        The backend has no transactions: a file that failed gets its old content back if that is possible, and the
        others are changed.
        """
        errors = {}
        with self.lock:
            for name, content in contents.items():
                before: bytes | None = None
                try:
                    before = self.get(name) if self._has_file(name) else None
                    self._set(name, content)
                except OSError as error:
                    errors[name] = error
                    with suppress(OSError):
                        self._set(name, before)
        return errors

    def exists(self, path: str) -> bool:
        """Return whether there is a file or a directory."""
        name = self.name_of(path)
        if not name or self._has_file(name):
            return True
        try:
            return bool(self._entries(name))
        except OSError:
            return False

    # Commands

    @property
    def execute_enabled(self) -> bool:
        """Whether commands can be run here."""
        return self._find(("execute", "async_execute")) is not None and bool(
            getattr(self.wrapped, "execute_enabled", True)
        )

    def execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command by the backend's own method."""
        if not self.execute_enabled:
            return super().execute(command, timeout)
        method = self._find(("execute", "async_execute"))
        try:
            done = self._call(str(method), command, command, timeout)
        except OSError as error:
            return ExecuteResponse(f"Error: {error}", 126)
        return ExecuteResponse(done.output, done.exit_code, done.truncated)

    async def async_execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command by the backend's own method, which also decides what cancelling does."""
        method = self._find(("async_execute", "execute"))
        if not self.execute_enabled or method is None:
            return await super().async_execute(command, timeout)
        if not inspect.iscoroutinefunction(getattr(self.wrapped, method)):
            return await run_in_thread(self.execute, command, timeout)
        try:
            done = await getattr(self.wrapped, method)(command, timeout)
        except Exception as error:  # noqa: BLE001 - of another library: the agent gets it as text
            return ExecuteResponse(f"Error: {type(error).__name__}: {error}", 126)
        return ExecuteResponse(done.output, done.exit_code, done.truncated)


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _as_text(content: bytes) -> str | bytes:
    """Return text as ``str``, which every backend accepts, and other content as it is."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _read_entry(entry: Any) -> _Entry:
    """Read an entry of a listing: a mapping, an object with attributes, or a pair of a name and a flag."""
    if isinstance(entry, Mapping):
        name = str(entry.get("name") or os.path.basename(str(entry["path"]).rstrip("/")))
        return _Entry(name, bool(entry.get("is_dir")), entry.get("size"), entry.get("path"))
    if isinstance(entry, tuple) and not hasattr(entry, "name"):
        return _Entry(entry[0], bool(entry[1]))
    return _Entry(entry.name, entry.is_dir, getattr(entry, "size", None), getattr(entry, "path", None))


def _unlink_below(root: str, name: str) -> None:
    """Remove a file below a directory, but nothing outside that a link leads to."""
    directory = os.path.realpath(os.path.join(root, os.path.dirname(name)))
    if os.path.commonpath([os.path.realpath(root), directory]) != os.path.realpath(root):
        raise PermissionError(errno.EACCES, "the path is outside the root", name)
    path = os.path.join(directory, os.path.basename(name))
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
