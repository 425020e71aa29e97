"""Backend: where the file tools of an agent read and write, and what they are told.

All that is text (numbered lines, edits, globs, greps) is made here once, out of the few things that a backend does
itself.
"""

from __future__ import annotations

import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypedDict

from forkwise.live.values import FileOperation

__all__ = ["Backend", "EditResult", "ExecuteResponse", "FileInfo", "GrepMatch", "WriteResult", "matcher"]

_SNIFFED = 8192  # where a NUL makes content binary
_LONGEST_LINE = 2000


class FileInfo(TypedDict):
    """A file or a directory in a listing; ``path`` is relative to the backend's top."""

    name: str
    path: str
    is_dir: bool
    size: int | None


class GrepMatch(TypedDict):
    """A line that a pattern was found in."""

    path: str
    line_number: int
    line: str


@dataclass(frozen=True)
class WriteResult:
    """A file that was written, or why it was not."""

    path: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class EditResult:
    """A file that was edited in so many places, or why it was not."""

    path: str | None = None
    error: str | None = None
    occurrences: int | None = None


@dataclass(frozen=True)
class ExecuteResponse:
    """What a command printed, and how it ended; 124 is a timeout."""

    output: str
    exit_code: int | None = None
    truncated: bool = False


class Backend(ABC):
    """Files, by paths relative to a top, or absolute ones that lie beneath it.

    A backend of one's own has five things to do; everything else comes from those. Wherever a ``name`` is taken it is
    one that ``name_of`` gave. What cannot be done is an OSError. An agent may call several tools at once, in
    threads: ``lock`` is held from reading a file to writing it, so that no change is lost.
    """

    lock: threading.RLock

    def __new__(cls, *_: Any, **__: Any) -> Self:
        made = super().__new__(cls)
        made.lock = threading.RLock()
        return made

    @abstractmethod
    def name_of(self, path: str) -> str:
        """The one name of a path: relative to the top, which is empty itself. PermissionError for what lies outside."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """The content of a file."""

    @abstractmethod
    def put(self, name: str, content: bytes) -> None:
        """Give a file its content; what it lies in is made."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all it holds."""

    @abstractmethod
    def names(self, name: str = "") -> Iterator[FileInfo]:
        """What a directory holds, sorted by name."""

    def walk(self, name: str = "") -> Iterator[FileInfo]:
        """All files beneath a directory."""
        for info in self.names(name):
            if info["is_dir"]:
                yield from self.walk(info["path"])
            else:
                yield info

    def replace(self, contents: Mapping[str, bytes | None]) -> None:
        """Give several files their content, or remove them (None): all of them, or in the end none."""
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

    def changed(self, name: str, operation: FileOperation) -> None:  # noqa: B027 - few want to know
        """Called after each write, edit and deletion that was asked for by path."""

    # What tools ask for

    def exists(self, path: str) -> bool:
        """Whether there is a file or a directory."""
        try:
            self.get(self.name_of(path))
        except IsADirectoryError:
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read_bytes(self, path: str) -> bytes:
        """The content of a file; FileNotFoundError where there is none."""
        return self.get(self.name_of(path))

    def read(self, path: str, offset: int = 0, limit: int = 2000) -> str:
        """Lines of a file with their numbers, from ``offset`` on; a text that begins with ``Error:`` where it cannot
        be read."""
        try:
            content = self.read_bytes(path)
        except OSError as error:
            return f"Error: {_said(path, error)}"
        if b"\0" in content[:_SNIFFED]:
            return f"Error: {path!r} is binary ({len(content)} bytes)"
        lines = content.decode(errors="replace").splitlines()
        if offset and offset >= len(lines):
            return f"Error: {path!r} has {len(lines)} lines, and none from {offset} on"
        shown = lines[offset : offset + limit]
        text = "\n".join(f"{n:>6}\t{line[:_LONGEST_LINE]}" for n, line in enumerate(shown, offset + 1))
        left = len(lines) - offset - len(shown)
        return text + (f"\n... {left} more lines; read on with offset={offset + len(shown)}" if left > 0 else "")

    def write(self, path: str, content: str | bytes) -> WriteResult:
        """Write a file."""
        try:
            with self.lock:
                name = self.name_of(path)
                self.put(name, content.encode() if isinstance(content, str) else content)
                self.changed(name, "write")
        except OSError as error:
            return WriteResult(error=_said(path, error))
        return WriteResult(name)

    def edit(self, path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Replace a text in a file. It has to be there, and only once unless all are meant. Bytes that are no text stay
        as they are."""
        try:
            with self.lock:
                name = self.name_of(path)
                content = self.get(name)
                old, new = old_string.encode(), new_string.encode()
                found = content.count(old) if old else 0
                if not found:
                    return EditResult(error=f"{path!r} does not hold the text that is to be replaced")
                if found > 1 and not replace_all:
                    return EditResult(error=f"{path!r} holds that text {found} times: give more of it, or replace all")
                self.put(name, content.replace(old, new))
                self.changed(name, "edit")
        except OSError as error:
            return EditResult(error=_said(path, error))
        return EditResult(name, occurrences=found)

    def delete(self, path: str) -> bool:
        """Remove a file, or a directory with all it holds; False where there was nothing."""
        name = self.name_of(path)
        with self.lock:
            try:
                self.remove(name)
            except (FileNotFoundError, NotADirectoryError):
                return False
            self.changed(name, "delete")
        return True

    def ls_info(self, path: str = "/") -> list[FileInfo]:
        """What a directory holds; nothing, where there is none."""
        try:
            return list(self.names(self.name_of(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def glob_info(self, pattern: str, path: str = "/") -> list[FileInfo]:
        """The files beneath a directory whose path matches; ``**`` stands for any number of directories."""
        top = self.name_of(path)
        is_match = matcher(pattern.lstrip("/"))
        try:
            return [i for i in self.walk(top) if is_match(i["path"][len(top) :].lstrip("/"))]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def grep_raw(
        self, pattern: str, path: str | None = None, glob: str | None = None, ignore_hidden: bool = True
    ) -> list[GrepMatch] | str:
        """The lines that hold a regular expression, in all files beneath a path that are text; a text that says why,
        where the expression is none. ``glob`` is a pattern for file names, or for paths where it has a slash."""
        try:
            wanted = re.compile(pattern)
        except re.error as error:
            return f"Error: {pattern!r} is no regular expression: {error}"
        top = self.name_of(path or "/")
        is_match = None if glob is None else matcher(glob)
        found: list[GrepMatch] = []
        for name in self._searched(top):
            below = name[len(top) :].lstrip("/") or os.path.basename(name)
            if ignore_hidden and any(part.startswith(".") for part in below.split("/")):
                continue
            if is_match and not is_match(below if "/" in (glob or "") else os.path.basename(below)):
                continue
            found += self._matches(name, wanted)
        return found

    def _searched(self, top: str) -> list[str]:
        try:
            return [info["path"] for info in self.walk(top)]
        except NotADirectoryError:
            return [top]
        except FileNotFoundError:
            return []

    def _matches(self, name: str, wanted: re.Pattern[str]) -> list[GrepMatch]:
        try:
            content = self.get(name)
        except OSError:
            return []  # gone meanwhile, or a link out of here
        if b"\0" in content[:_SNIFFED]:
            return []
        lines = content.decode(errors="replace").splitlines()
        return [
            GrepMatch(path=name, line_number=number, line=line[:_LONGEST_LINE])
            for number, line in enumerate(lines, 1)
            if wanted.search(line)
        ]

    # Commands

    @property
    def execute_enabled(self) -> bool:
        """Whether commands can be run here."""
        return False

    def execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command where the files are."""
        return ExecuteResponse("Error: these files are in memory, where no command can be run", 126)

    async def async_execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """The same for asyncio programs; cancelled, it ends the command with all its descendants."""
        return self.execute(command, timeout)


def matcher(pattern: str) -> Callable[[str], object]:
    """A test of paths against a shell pattern in which a star stays within a name, and two cross directories.

    >>> [bool(matcher(p)("src/deep/a.py")) for p in ("**/*.py", "src/*.py", "src/**", "*.py", "src/*/[ab].py")]
    [True, False, True, False, True]
    """
    parts = []
    for piece in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern):
        known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(piece)
        if known is None and re.fullmatch(r"\[[^\]]+\]", piece):
            known = "[" + piece[1:-1].replace("\\", r"\\").replace("!", "^", piece[1] == "!") + "]"
        parts.append(known or re.escape(piece))
    return re.compile("".join(parts), re.DOTALL).fullmatch


def _said(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"File {path!r} not found"
    return f"{path!r}: {error.strerror or error}"
