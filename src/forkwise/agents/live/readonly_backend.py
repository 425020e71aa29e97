"""ReadOnlyBackend: files of somebody else, to be looked at."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import NoReturn

from forkwise.agents.live.backend import Backend, ExecuteResponse, FileInfo

__all__ = ["ReadOnlyBackend"]


class ReadOnlyBackend(Backend):
    """Another backend's files, none of which can be changed here; nor can commands be run, which might."""

    def __init__(self, wrapped: Backend) -> None:
        self.wrapped = wrapped

    def name_of(self, path: str) -> str:
        """As the other names it."""
        return self.wrapped.name_of(path)

    def get(self, name: str) -> bytes:
        """The content of a file."""
        return self.wrapped.get(name)

    def put(self, name: str, content: bytes) -> NoReturn:
        """Refused."""
        raise PermissionError(errno.EROFS, "these files are shared to be read only", name)

    def remove(self, name: str) -> NoReturn:
        """Refused."""
        raise PermissionError(errno.EROFS, "these files are shared to be read only", name)

    def names(self, name: str = "") -> Iterator[FileInfo]:
        """What a directory holds."""
        return self.wrapped.names(name)

    def walk(self, name: str = "") -> Iterator[FileInfo]:
        """All files beneath a directory."""
        return self.wrapped.walk(name)

    def execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """Refused."""
        return ExecuteResponse("Error: these files are shared to be read only, and commands might change them", 126)
