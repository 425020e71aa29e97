"""ReadOnlyBackend: files of somebody else, to be looked at."""

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
    "LocalBackend",
    "PlaceBackend",
    "ReadOnlyBackend",
]


_PATIENCE = 120.0  # seconds a command may take where nobody says
_MOST_OUTPUT = 100_000  # characters
_TIMED_OUT, _NOT_STARTED = 124, 126


class PlaceBackend(Backend):
    """A backend over a workspace or a branch: its paths are the workspace's own, commands run in a sandbox."""

    files: AgentFiles

    @property
    def place(self) -> Workspace | Branch:
        """What the files are of."""
        return self.files.source

    @property
    def workspace(self) -> AgentWorkspace:
        """The same files for toolsets that are written for pydantic-ai's workspaces."""
        return AgentWorkspace(BranchWorkspaceBackend(self.files))

    def name_of(self, path: str) -> str:
        """A path relative to the workspace, wherever links lead; ``/`` is the workspace itself."""
        return self.files.tree().resolve("" if path == "/" else path)

    def exists(self, path: str) -> bool:
        """Whether there is a file or a directory."""
        return self.files.tree().exists("" if path == "/" else path)

    def get(self, name: str) -> bytes:
        """The content of a file."""
        return self.files.tree().read(name)

    def put(self, name: str, content: bytes) -> None:
        """Write a file; one that was there keeps its mode."""
        with self.files.edit() as tree:
            tree.write(name, content)

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all it holds."""
        with self.files.edit() as tree:
            tree.remove(name)

    def delete(self, path: str) -> bool:
        """Remove a file, or a directory with all it holds; of a link only itself. False where there was nothing."""
        with self.lock:
            try:
                name = self.files.tree().resolve(path, follow=False)
                self.remove(name)
            except (FileNotFoundError, NotADirectoryError):
                return False
            self.changed(name, "delete")
        return True

    def replace(self, contents: Mapping[str, bytes | None]) -> None:
        """Write and remove several files; where changes are recorded that is one commit."""
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
        """What a directory holds."""
        for entry, found in self.files.tree().list_directory(name):
            is_dir = stat.S_ISDIR(found.st_mode)
            size = None if is_dir else found.st_size
            yield FileInfo(name=entry, path=join(name, entry), is_dir=is_dir, size=size)

    def walk(self, name: str = "") -> Iterator[FileInfo]:
        """All files beneath a directory; links to directories are not entered."""
        tree = self.files.tree()
        pending = tree.list_entries(name)[::-1]
        while pending:
            path, found = pending.pop()
            if stat.S_ISDIR(found.st_mode):
                with suppress(OSError):  # a command has removed it since, or another filesystem is mounted there
                    pending += tree.list_entries(path)[::-1]
            else:
                yield FileInfo(name=os.path.basename(path), path=path, is_dir=False, size=found.st_size)

    @property
    def execute_enabled(self) -> bool:
        """Commands can be run."""
        return True

    def execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command in a sandbox, at the workspace's own path, for 120 seconds if nothing else is said."""
        output = _Output()
        try:
            return output.response(self.files.run(["sh", "-c", command], **output.options(timeout)))
        except ProcessBranchError as error:
            return ExecuteResponse(f"Error: {error}", _NOT_STARTED)

    async def async_execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """The same for asyncio programs; cancelled, it ends the command with all its descendants."""
        output = _Output()
        try:
            return output.response(await self.files.arun(["sh", "-c", command], **output.options(timeout)))
        except ProcessBranchError as error:
            return ExecuteResponse(f"Error: {error}", _NOT_STARTED)


class LocalBackend(PlaceBackend):
    """The files of a directory, and commands in it.

    Each write, edit and deletion, and all that a command does, is a commit of its own, so that it can be undone
    (``Workspace.undo``, or a rewind to a checkpoint); where branches are whole copies (`AgentFiles`) it is not, with a
    warning. Commands are confined: they can read what the user can, but for credentials, and write to the directory
    only.
    """

    def __init__(
        self, root: str | os.PathLike[str] | Workspace, *, confinement: str | Confinement | None = None
    ) -> None:
        workspace = root if isinstance(root, Workspace) else Workspace(root)
        self.files = AgentFiles(workspace) if confinement is None else AgentFiles(workspace, confinement)

    def __repr__(self) -> str:
        return f"<LocalBackend {self.files.workspace_path}>"

    @property
    def root_dir(self) -> str:
        """The directory."""
        return self.files.workspace_path


class _Output:
    """What a command prints, both streams as they come, up to the most that is kept."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._length = 0

    def options(self, timeout: float | None) -> dict[str, Any]:
        """How a command is run so that its output is had."""
        return {"timeout": _PATIENCE if timeout is None else timeout, "capture": False, "on_output": self._add}

    def _add(self, _stream: str, piece: bytes) -> None:
        if self._length <= 4 * _MOST_OUTPUT:  # no character has more bytes
            self._pieces.append(piece)
        self._length += len(piece)

    def response(self, done: Finished) -> ExecuteResponse:
        """What a tool is told."""
        text = b"".join(self._pieces).decode(errors="replace")
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        if done.ending == "timeout":
            text += f"\nthe command was ended after {done.wall:.0f} s, with all it had started\n"
            code = _TIMED_OUT
        return ExecuteResponse(text[:_MOST_OUTPUT], code, len(text) > _MOST_OUTPUT)


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
