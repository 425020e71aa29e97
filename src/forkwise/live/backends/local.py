"""Backends on disk: `LocalBackend` for a directory, and `ReadOnlyBackend`, a read-only view of any backend.

`DiskBackend` is their common base with overlays of branches: it reads and writes the files of a workspace or a branch,
and runs commands in its sandbox.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from pydantic_ai.workspaces import Workspace as AgentWorkspace

from forkwise.errors import ProcessBranchError
from forkwise.files.branch import Branch
from forkwise.files.workspace import Workspace
from forkwise.fork.agent_workspace import AgentFiles, BranchWorkspaceBackend
from forkwise.linux.trees import join
from forkwise.live.backends.backend import Backend, ExecuteResponse, FileInfo
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.process import Finished

__all__ = [
    "DiskBackend",
    "LocalBackend",
    "ReadOnlyBackend",
]


_DEFAULT_TIMEOUT_S = 120.0
_MAX_OUTPUT = 100_000  # characters
_TIMED_OUT, _NOT_STARTED = 124, 126  # exit codes, as those of timeout(1) and the shell
_DISABLED = ExecuteResponse("Error: commands are disabled for these files", _NOT_STARTED)


class DiskBackend(Backend):
    """The files of a workspace or a branch, at the workspace's own paths. Commands run in a sandbox."""

    files: AgentFiles

    @property
    def source(self) -> Workspace | Branch:
        """The workspace or branch that the files belong to."""
        return self.files.source

    @property
    def workspace(self) -> AgentWorkspace:
        """The same files as a workspace of pydantic-ai, for toolsets written for those."""
        return AgentWorkspace(BranchWorkspaceBackend(self.files))

    def name_of(self, path: str) -> str:
        """Return a path relative to the workspace, with links resolved; ``/`` is the workspace itself."""
        return self.files.tree().resolve("" if path == "/" else path)

    def exists(self, path: str) -> bool:
        """Return whether there is a file or a directory."""
        return self.files.tree().exists("" if path == "/" else path)

    def get(self, name: str) -> bytes:
        """Return the content of a file."""
        return self.files.tree().read(name)

    def put(self, name: str, content: bytes) -> None:
        """Write a file; an existing one keeps its mode."""
        with self.files.edit() as tree:
            tree.write(name, content)

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with its content."""
        with self.files.edit() as tree:
            tree.remove(name)

    def delete(self, path: str) -> bool:
        """Remove a file, a link (not its target) or a directory. Return False if there was nothing."""
        with self.lock:
            try:
                name = self.files.tree().resolve(path, follow=False)
                self.remove(name)
            except (FileNotFoundError, NotADirectoryError):
                return False
            self.record_change(name, "delete")
        return True

    def replace(self, contents: Mapping[str, bytes | None]) -> None:
        """Write and remove several files, as one commit if changes are recorded."""
        if not self.files.is_recorded:
            return super().replace(contents)
        with self.lock, self.files.edit() as tree:
            for name, content in contents.items():
                if content is not None:
                    tree.write(name, content)
                elif tree.exists(name):
                    tree.remove(name)
        return None

    def names(self, name: str = "") -> Iterator[FileInfo]:
        """List a directory, sorted by name."""
        for entry, found in self.files.tree().list_directory(name):
            is_dir = stat.S_ISDIR(found.st_mode)
            size = None if is_dir else found.st_size
            yield FileInfo(name=entry, path=join(name, entry), is_dir=is_dir, size=size)

    def walk(self, name: str = "") -> Iterator[FileInfo]:
        """Iterate over all files below a directory, without following links to directories."""
        tree = self.files.tree()
        pending = tree.list_entries(name)[::-1]
        while pending:
            path, found = pending.pop()
            if stat.S_ISDIR(found.st_mode):
                with suppress(OSError):  # removed by a command in the meantime, or a mount point of another filesystem
                    pending += tree.list_entries(path)[::-1]
            else:
                yield FileInfo(name=os.path.basename(path), path=path, is_dir=False, size=found.st_size)

    @property
    def execute_enabled(self) -> bool:
        """True: commands can run here."""
        return True

    def execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command in a sandbox, at the workspace's own path; ``timeout`` defaults to 120 seconds."""
        if not self.execute_enabled:
            return _DISABLED
        output = _OutputCollector()
        try:
            return output.response(self.files.run(["sh", "-c", command], **output.options(timeout)))
        except ProcessBranchError as error:
            return ExecuteResponse(f"Error: {error}", _NOT_STARTED)

    async def async_execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """Run `execute` for asyncio programs; cancelling kills the command and its descendants."""
        if not self.execute_enabled:
            return _DISABLED
        output = _OutputCollector()
        try:
            return output.response(await self.files.arun(["sh", "-c", command], **output.options(timeout)))
        except ProcessBranchError as error:
            return ExecuteResponse(f"Error: {error}", _NOT_STARTED)


class LocalBackend(DiskBackend):
    """The files of a directory, and commands in it.

    Each write, edit, deletion and command is a commit of its own, so that it can be undone (``Workspace.undo``, or a
    rewind to a checkpoint). If branches are whole copies, which makes commits expensive, changes are not recorded, and
    a warning says so (`AgentFiles`). Commands are confined: they can read what the user can read, except credentials,
    and write only to the directory. ``root_dir`` is another name for ``root``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | Workspace | None = None,
        *,
        root_dir: str | os.PathLike[str] | Workspace | None = None,
        confinement: str | Confinement | None = None,
    ) -> None:
        given = [directory for directory in (root, root_dir) if directory is not None]
        if len(given) != 1:
            raise TypeError("LocalBackend takes one directory, as root_dir or as its first argument")
        workspace = given[0] if isinstance(given[0], Workspace) else Workspace(given[0])
        self.files = AgentFiles(workspace) if confinement is None else AgentFiles(workspace, confinement)

    def __repr__(self) -> str:
        return f"<LocalBackend {self.files.workspace_path}>"

    @property
    def root_dir(self) -> str:
        """The path of the directory."""
        return self.files.workspace_path


class _OutputCollector:
    """A collector of a command's output: both streams in the order of arrival, up to a limit."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._length = 0

    def options(self, timeout: float | None) -> dict[str, Any]:
        """Return the options that make a command write to this collector."""
        return {"timeout": _DEFAULT_TIMEOUT_S if timeout is None else timeout, "capture": False, "on_output": self._add}

    def _add(self, _stream: str, piece: bytes) -> None:
        if self._length <= 4 * _MAX_OUTPUT:  # a character has at most 4 bytes
            self._pieces.append(piece)
        self._length += len(piece)

    def response(self, done: Finished) -> ExecuteResponse:
        """Build the response for a finished command."""
        text = b"".join(self._pieces).decode(errors="replace")
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        if done.ending == "timeout":
            text += f"\nthe command was killed after {done.wall:.0f} s, with all its descendants\n"
            code = _TIMED_OUT
        return ExecuteResponse(text[:_MAX_OUTPUT], code, len(text) > _MAX_OUTPUT)


class ReadOnlyBackend(Backend):
    """A read-only view of another backend. It runs no commands, because they could change files."""

    def __init__(self, wrapped: Backend) -> None:
        self.wrapped = wrapped

    def name_of(self, path: str) -> str:
        """Return the name in the wrapped backend."""
        return self.wrapped.name_of(path)

    def get(self, name: str) -> bytes:
        """Return the content of a file."""
        return self.wrapped.get(name)

    def put(self, name: str, content: bytes) -> NoReturn:
        """Raise PermissionError."""
        raise PermissionError(errno.EROFS, "these files are read-only", name)

    def remove(self, name: str) -> NoReturn:
        """Raise PermissionError."""
        raise PermissionError(errno.EROFS, "these files are read-only", name)

    def names(self, name: str = "") -> Iterator[FileInfo]:
        """List a directory, sorted by name."""
        return self.wrapped.names(name)

    def walk(self, name: str = "") -> Iterator[FileInfo]:
        """Iterate over all files below a directory."""
        return self.wrapped.walk(name)

    def execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """Return an error: a command could change files."""
        return ExecuteResponse("Error: commands cannot run here, because these files are read-only", _NOT_STARTED)
