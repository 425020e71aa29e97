"""`Backend`, the base class of the files that an agent's tools work on, and the results of its methods.

A concrete backend implements five primitives; reading with line numbers, editing, globbing and searching are built on
them here, once for all backends.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypedDict

from forkwise.live.backends.expression import Expression, ExpressionError, compile_glob
from forkwise.live.values import FileOperation

__all__ = ["Backend", "EditResult", "ExecuteResponse", "FileInfo", "GrepMatch", "WriteResult"]

_BINARY_PROBE_BYTES = 8192  # a NUL in these makes the content binary
_MAX_LINE = 2000


class FileInfo(TypedDict):
    """A file or a directory in a listing; ``path`` is relative to the backend's root."""

    name: str
    path: str
    is_dir: bool
    size: int | None


class GrepMatch(TypedDict):
    """A line that matches a pattern."""

    path: str
    line_number: int
    line: str


@dataclass(frozen=True)
class WriteResult:
    """The result of a write: the path, or an error."""

    path: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class EditResult:
    """The result of an edit: the path and the number of replacements, or an error."""

    path: str | None = None
    error: str | None = None
    occurrences: int | None = None


@dataclass(frozen=True)
class ExecuteResponse:
    """The output and the exit code of a command; 124 means that it timed out."""

    output: str
    exit_code: int | None = None
    truncated: bool = False


class Backend(ABC):
    """Files, addressed by paths relative to a root, or absolute paths below it.

    A subclass implements the five abstract methods; all others are built on them. A ``name`` argument is always a
    result of `name_of`. Failures are raised as OSError. An agent may call several tools at once, in threads: ``lock``
    is held from reading a file to writing it, so that no change is lost.
    """

    lock: threading.RLock

    def __new__(cls, *_: Any, **__: Any) -> Self:
        backend = super().__new__(cls)
        backend.lock = threading.RLock()
        return backend

    @abstractmethod
    def name_of(self, path: str) -> str:
        """Return the canonical name of a path, relative to the root. Raise PermissionError if it is outside."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """Return the content of a file."""

    @abstractmethod
    def put(self, name: str, content: bytes) -> None:
        """Write a file, and create its parent directories."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, or a directory with its content."""

    @abstractmethod
    def names(self, name: str = "") -> Iterator[FileInfo]:
        """List a directory, sorted by name."""

    def walk(self, name: str = "") -> Iterator[FileInfo]:
        """Iterate over all files below a directory."""
        for info in self.names(name):
            if info["is_dir"]:
                yield from self.walk(info["path"])
            else:
                yield info

    def replace(self, contents: Mapping[str, bytes | None]) -> None:
        """Write or remove (None) several files; if one fails, restore those already changed."""
        before: dict[str, bytes | None] = {}
        with self.lock:
            try:
                for name, content in contents.items():
                    before[name] = self.get(name) if self.exists(name) else None
                    self._set(name, content)
            except BaseException:
                for name, content in before.items():
                    self._set(name, content)
                raise

    def _set(self, name: str, content: bytes | None) -> None:
        if content is not None:
            self.put(name, content)
        elif self.exists(name):
            self.remove(name)

    def record_change(self, name: str, operation: FileOperation) -> None:  # noqa: B027 - optional to override
        """Do nothing; subclasses override this hook, which runs after each `write`, `edit` and `delete`."""

    # Methods for tools

    def exists(self, path: str) -> bool:
        """Return whether there is a file or a directory."""
        try:
            self.get(self.name_of(path))
        except IsADirectoryError:
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read_bytes(self, path: str) -> bytes:
        """Return the content of a file. Raise FileNotFoundError if there is none."""
        return self.get(self.name_of(path))

    def read(self, path: str, offset: int = 0, limit: int = 2000) -> str:
        """Return at most ``limit`` lines of a file from ``offset`` on, with their numbers.

        If the file cannot be read, the result starts with ``Error:``.
        """
        try:
            content = self.read_bytes(path)
        except OSError as error:
            return f"Error: {_format_error(path, error)}"
        if b"\0" in content[:_BINARY_PROBE_BYTES]:
            return f"Error: {path!r} is binary ({len(content)} bytes)"
        lines = content.decode(errors="replace").splitlines()
        if offset and offset >= len(lines):
            return f"Error: {path!r} has {len(lines)} lines: offset {offset} is past the end"
        selected = lines[offset : offset + limit]
        text = "\n".join(f"{n:>6}\t{line[:_MAX_LINE]}" for n, line in enumerate(selected, offset + 1))
        rest = len(lines) - offset - len(selected)
        return text + (f"\n... {rest} more lines; continue with offset={offset + len(selected)}" if rest > 0 else "")

    def write(self, path: str, content: str | bytes) -> WriteResult:
        """Write a file, and report an OSError in the result."""
        try:
            with self.lock:
                name = self.name_of(path)
                self.put(name, content.encode() if isinstance(content, str) else content)
                self.record_change(name, "write")
        except OSError as error:
            return WriteResult(error=_format_error(path, error))
        return WriteResult(name)

    def edit(self, path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Replace a text in a file; without ``replace_all`` it must occur exactly once.

        Bytes that are not valid UTF-8 stay unchanged. Errors are reported in the result.
        """
        try:
            with self.lock:
                name = self.name_of(path)
                content = self.get(name)
                old, new = old_string.encode(), new_string.encode()
                found = content.count(old) if old else 0
                if not found:
                    return EditResult(error=f"{path!r} does not contain the text to replace")
                if found > 1 and not replace_all:
                    return EditResult(
                        error=f"{path!r} contains that text {found} times: give more context, or replace all"
                    )
                self.put(name, content.replace(old, new))
                self.record_change(name, "edit")
        except OSError as error:
            return EditResult(error=_format_error(path, error))
        return EditResult(name, occurrences=found)

    def delete(self, path: str) -> bool:
        """Remove a file, or a directory with its content. Return False if there was nothing."""
        name = self.name_of(path)
        with self.lock:
            try:
                self.remove(name)
            except (FileNotFoundError, NotADirectoryError):
                return False
            self.record_change(name, "delete")
        return True

    def ls_info(self, path: str = "/") -> list[FileInfo]:
        """List a directory; an empty list if there is none."""
        try:
            return list(self.names(self.name_of(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def glob_info(self, pattern: str, path: str = "/") -> list[FileInfo]:
        """Return the files below a directory whose path matches; ``**`` matches any number of directories."""
        top = self.name_of(path)
        is_match = compile_glob(pattern.lstrip("/"))
        try:
            return [i for i in self.walk(top) if is_match(i["path"][len(top) :].lstrip("/"))]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def grep_raw(
        self, pattern: str, path: str | None = None, glob: str | None = None, ignore_hidden: bool = True
    ) -> list[GrepMatch] | str:
        """Return the lines that match a regular expression, in all text files below a path.

        ``glob`` selects files by name, or by path if it contains a slash. If ``pattern`` is invalid, or takes too much
        time, the result is an error message.
        """
        top = self.name_of(path or "/")
        names = self._select_files(top, glob, ignore_hidden=ignore_hidden)
        try:
            with Expression(pattern) as expression:
                return [
                    GrepMatch(path=name, line_number=number, line=line[:_MAX_LINE])
                    for name, lines in expression.search(self._iter_texts(names))
                    for number, line in lines
                ]
        except ExpressionError as error:
            return f"Error: {error}"

    def _select_files(self, top: str, glob: str | None, *, ignore_hidden: bool) -> Iterator[str]:
        is_match = None if glob is None else compile_glob(glob)
        for name in self._list_files(top):
            below = name[len(top) :].lstrip("/") or os.path.basename(name)
            if ignore_hidden and any(part.startswith(".") for part in below.split("/")):
                continue
            if is_match is None or is_match(below if "/" in (glob or "") else os.path.basename(below)):
                yield name

    def _list_files(self, top: str) -> list[str]:
        try:
            return [info["path"] for info in self.walk(top)]
        except NotADirectoryError:
            return [top]
        except FileNotFoundError:
            return []

    def _iter_texts(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the names and the contents of text files."""
        for name in names:
            try:
                content = self.get(name)
            except OSError:
                continue  # removed in the meantime, or a link that leads outside
            if b"\0" not in content[:_BINARY_PROBE_BYTES]:
                yield name, content

    # Commands

    @property
    def execute_enabled(self) -> bool:
        """Whether commands can be run here."""
        return False

    def execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command in the directory of the files."""
        return ExecuteResponse("Error: commands cannot run here, because these files are in memory", 126)

    async def async_execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """Run `execute` for asyncio programs; cancelling kills the command and its descendants."""
        return self.execute(command, timeout)


def _format_error(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"File {path!r} not found"
    return f"{path!r}: {error.strerror or error}"
