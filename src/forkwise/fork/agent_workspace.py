"""A branch, or a workspace, as the workspace of a pydantic-ai agent (``ctx.workspace``, ``agent.run(workspace=…)``).

Any toolset written for those works in a branch: files are read and written there, commands run in its sandbox.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import secrets
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import quote_from_bytes, unquote_to_bytes

from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    SupportsCommands,
    SupportsFilesystem,
    SupportsRealpath,
    WorkspaceBackend,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)
from pydantic_ai.workspaces import Workspace as AgentWorkspace

from forkwise.concurrency import finish, finish_then_cancel, run_in_thread
from forkwise.errors import BranchNotFoundError, ForkwiseWarning, ProcessBranchError
from forkwise.files.branch import Branch
from forkwise.files.file_tree import FileTree
from forkwise.files.workspace import Workspace
from forkwise.fork.resolve import land
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.process import Finished
from forkwise.sandbox.run import arun_in_branch, run_in_branch

__all__ = [
    "PROVIDER",
    "AgentFiles",
    "BranchWorkspaceBackend",
    "agent_workspace",
    "open_ref",
]


_CONFINEMENT = Confinement.standard(drops_secrets=True)


class AgentFiles:
    """The files of a branch, or of a workspace, spoken of by the workspace's own paths.

    What is done in a branch stays there. In a workspace itself each change, and each command, is a commit of its own:
    all of it or nothing, and it can be undone. Where a branch is a whole copy of the files, or another filesystem's,
    changes are made as they are, with a warning. Commands run in a sandbox at the workspace's own path; unless told
    otherwise they get no variables that look like secrets.
    """

    def __init__(self, place: Workspace | Branch, confinement: str | Confinement = _CONFINEMENT) -> None:
        self.place = place
        self.confinement = Confinement.preset(confinement)
        self.where = os.fspath(place.workspace.path)
        self._tree: FileTree | None = None

    @cached_property
    def is_recorded(self) -> bool:
        """Whether each change is a commit of its own."""
        if isinstance(self.place, Branch):
            return False
        from forkwise.files.mounted import MountedWorkspace  # noqa: PLC0415 - few have such

        if isinstance(self.place, MountedWorkspace) or self.place.child_view().whole:
            warnings.warn(
                f"what an agent changes in {self.where} itself cannot be undone: with the view {self.place.fstype} a "
                "branch for each change would cost too much; forkwise doctor says what would help",
                ForkwiseWarning,
                stacklevel=3,
            )
            return False
        return True

    def tree(self) -> FileTree:
        """The files, to be read; in a branch also to be written."""
        seen = os.fspath(self.place.path)
        if self._tree is None or self._tree.root != seen:
            self._tree = FileTree(seen, self.where)
        return self._tree

    @contextmanager
    def changing(self) -> Iterator[FileTree]:
        """The files, to be written. Where changes are recorded, who raises has changed nothing."""
        if not self.is_recorded:
            yield self.tree()
            return
        with self._recorded() as branch:
            yield FileTree(os.fspath(branch.path), self.where)

    def run(self, argv: Sequence[str], **options: Any) -> Finished:
        """Run a command and wait for it; the options are those of forkwise.sandbox.run.RunOptions."""
        options = {"confinement": self.confinement, **options}
        if not self.is_recorded:
            return run_in_branch(self.place, argv, **options)
        with self._recorded() as branch:
            return run_in_branch(branch, argv, **options)

    async def arun(self, argv: Sequence[str], **options: Any) -> Finished:
        """The same for asyncio programs. Cancelled, it ends the command with all its descendants; where changes are
        recorded, what it did is gone."""
        options = {"confinement": self.confinement, **options}
        if isinstance(self.place, Branch) or not await run_in_thread(lambda: self.is_recorded):
            return await arun_in_branch(self.place, argv, **options)
        making = run_in_thread(self._begin)
        try:
            branch = await finish_then_cancel(making)
        except asyncio.CancelledError:
            if not making.exception():
                await finish(run_in_thread(_drop, making.result()))
            raise
        try:
            done = await arun_in_branch(branch, argv, **options)
            await finish_then_cancel(run_in_thread(self._end, branch))
        except BaseException:
            await finish(run_in_thread(_drop, branch))
            raise
        return done

    @contextmanager
    def _recorded(self) -> Iterator[Branch]:
        branch = self._begin()
        try:
            yield branch
            self._end(branch)
        except BaseException:
            _drop(branch)
            raise

    def _begin(self) -> Branch:
        return self.place.branch(f"agent-{secrets.token_hex(4)}", None, None)

    def _end(self, branch: Branch) -> None:
        """What is written last is what the agent wants; nothing is recorded where nothing was changed."""
        if len(branch.delta()):
            land(branch, "last_write_wins")
        else:
            branch.abort()


def _drop(branch: Branch) -> None:
    """Abort a branch that may have come to its end already."""
    if branch.status not in ("committed", "aborted"):
        branch.abort()


#: Who owns the references (``WorkspaceRef``) that name branches.
PROVIDER = "forkwise"

_MOST_OUTPUT = 10 << 20  # bytes of a command, both streams together, as pydantic-ai's own backend has it
_SHOWN_OUTPUT = 64 << 10
_NOT_FOUND, _NOT_STARTED = 127, 126  # as a shell says it
T = TypeVar("T")


def agent_workspace(place: Workspace | Branch, confinement: str | Confinement | None = None) -> AgentWorkspace:
    """What an agent's run is given to work in a branch, or in a workspace: ``agent.run(workspace=…)``.

    In a workspace itself each change and each command is a commit of its own, so that it can be undone.
    """
    files = AgentFiles(place) if confinement is None else AgentFiles(place, confinement)
    return AgentWorkspace(BranchWorkspaceBackend(files))


def open_ref(ref: WorkspaceRef) -> Workspace | Branch:
    """The branch or the workspace that a reference names; raises WorkspaceUnavailableError where it is gone."""
    path, _, name = ref.id.partition("#")
    try:
        workspace = Workspace(os.fsdecode(unquote_to_bytes(path)))
        return workspace.open(os.fsdecode(unquote_to_bytes(name))) if name else workspace
    except (OSError, BranchNotFoundError) as error:
        raise WorkspaceUnavailableError(f"{ref.id} is gone: {error}") from error


class BranchWorkspaceBackend(WorkspaceBackend, SupportsCommands, SupportsFilesystem, SupportsRealpath):
    """The files and commands of a branch, or of a workspace, behind pydantic-ai's protocol.

    The working directory is the workspace's own path, whichever branch this is: an agent that is told a full path, or
    makes one up from where it is, stays in its branch. A path that leads out of it is a PermissionError. A command's
    end is the end of all it has started. Nothing here keeps the event loop waiting.

    ``ref`` is a name under which a conversation knows it already: one that was in a branch goes on, once that was
    committed, in what it was committed to.
    """

    def __init__(self, files: AgentFiles, ref: WorkspaceRef | None = None) -> None:
        self.files = files
        self._ref = ref or _ref(files.place)

    @property
    def ref(self) -> WorkspaceRef:
        """Names the branch for any process of this user, as long as there is such a branch."""
        return self._ref

    async def working_dir(self) -> str:
        """The workspace's own path."""
        await self._do(self.files.tree)
        return self.files.where

    async def exists(self, path: str) -> bool:
        """Whether a file or directory exists at the path."""
        return await self._do(lambda: self.files.tree().exists(path))

    async def read_bytes(self, path: str) -> bytes:
        """Read a file's contents."""
        return await self._do(lambda: self.files.tree().read(path))

    async def stat(self, path: str) -> FileEntry:
        """Return metadata for a file or directory."""
        found = await self._do(lambda: self.files.tree().stat(path))
        return _entry(path, os.path.basename(path.rstrip("/")), found)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """List the entries of a directory."""
        found = await self._do(lambda: self.files.tree().list_directory(path))
        return [_entry(os.path.join(path, name), name, entry) for name, entry in found]

    async def realpath(self, path: str) -> str:
        """Where a path leads inside the branch."""
        return await self._do(lambda: self.files.tree().realpath(path))

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file, creating missing parents and writing through an existing symlink."""
        await self._change(lambda tree: tree.write(path, data))

    async def make_dir(self, path: str) -> None:
        """Create a directory, including missing parents."""
        await self._change(lambda tree: tree.make_directory(path))

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory and its contents; not the working directory, nor what that lies in."""
        await self._change(lambda tree: tree.remove(path))

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command in the sandbox of the branch and wait for it; timed out or cancelled, all of it is gone."""
        argv = _argv(command, shell)
        if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
            raise ValueError("timeout must be a positive finite number or None")
        output = _Output()
        with _told():
            try:
                done = await self.files.arun(
                    argv, env={**os.environ, **(env or {})}, timeout=timeout, capture=False, on_output=output.add
                )
            except ProcessBranchError as error:
                if error.errno is None:
                    raise
                code = _NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else _NOT_STARTED
                return CommandResult(exit_code=code, stdout="", stderr=f"{error}\n")
        if done.ending == "timeout":
            raise WorkspaceTimeoutError(
                f"command timed out after {timeout:g}s and was killed, with all it had started",
                stdout=output.text("stdout"),
                stderr=output.text("stderr"),
            )
        if done.ending == "killed":
            await self.working_dir()  # which says so where the branch was taken away meanwhile
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return CommandResult(exit_code=code, stdout=output.text("stdout"), stderr=output.text("stderr"))

    async def _do(self, operation: Callable[[], T]) -> T:
        with _told():
            return await run_in_thread(operation)

    async def _change(self, operation: Callable[[FileTree], None]) -> None:
        def change() -> None:
            with self.files.changing() as tree:
                operation(tree)

        with _told():
            await finish_then_cancel(run_in_thread(change))


class _Output:
    """What a command has written so far, as long as that is not too much."""

    def __init__(self) -> None:
        self._got = {"stdout": bytearray(), "stderr": bytearray()}

    def add(self, stream: str, piece: bytes) -> None:
        self._got[stream] += piece
        if sum(map(len, self._got.values())) > _MOST_OUTPUT:
            raise WorkspaceOutputLimitError(
                f"command output exceeded {_MOST_OUTPUT >> 20} MiB; redirect it to a file and read part of that",
                limit=_MOST_OUTPUT,
                stdout=self.text("stdout", _SHOWN_OUTPUT),
                stderr=self.text("stderr", _SHOWN_OUTPUT),
            )

    def text(self, stream: str, most: int | None = None) -> str:
        return self._got[stream][:most].decode(errors="replace")


@contextmanager
def _told() -> Iterator[None]:
    """Say in pydantic-ai's words that a branch is gone."""
    try:
        yield
    except BranchNotFoundError as error:
        raise WorkspaceUnavailableError(str(error)) from error


def _ref(place: Workspace | Branch) -> WorkspaceRef:
    path = quote_from_bytes(os.fsencode(place.workspace.path))
    name = f"#{quote_from_bytes(os.fsencode(place.branch_path))}" if isinstance(place, Branch) else ""
    return WorkspaceRef(provider=PROVIDER, id=path + name)


def _argv(command: WorkspaceCommand, shell: bool) -> list[str]:
    if isinstance(command, str):
        if not shell:
            raise TypeError("a string command requires shell=True; pass an argv sequence otherwise")
        return ["sh", "-c", command]
    if shell:
        raise TypeError("an argv sequence cannot be combined with shell=True; pass a single command string")
    return list(command)


def _entry(path: str, name: str, found: os.stat_result) -> FileEntry:
    is_dir = stat.S_ISDIR(found.st_mode)
    return FileEntry(name=name, path=path, is_dir=is_dir, size=None if is_dir else found.st_size)
