"""A branch or a workspace as the workspace of a pydantic-ai agent (``ctx.workspace``, ``agent.run(workspace=…)``).

``AgentFiles`` reads, writes and runs commands; ``BranchWorkspaceBackend`` puts it behind pydantic-ai's protocol, so
that any toolset written for that protocol works in a branch.
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
from typing import TYPE_CHECKING, Any, TypeVar
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
from forkwise.errors import BranchNotFoundError, ForkwiseWarning, NamespaceError, ProcessBranchError
from forkwise.files.branch import Branch
from forkwise.files.file_tree import FileTree
from forkwise.files.workspace import Workspace
from forkwise.fork.land import land
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.run import arun_in_branch, run_in_branch
from forkwise.servers.data_branch import make_branch

if TYPE_CHECKING:
    from forkwise.sandbox.process import Finished

__all__ = [
    "PROVIDER",
    "AgentFiles",
    "BranchWorkspaceBackend",
    "agent_workspace",
    "open_ref",
]


_CONFINEMENT = Confinement.standard(drops_secrets=True)


class AgentFiles:
    """The files of a branch or a workspace, addressed by the workspace's own paths.

    Changes to a branch stay in the branch. In a workspace each change and each command is a separate, atomic commit
    that can be undone. If a branch would be a full copy of the files, or belongs to another filesystem, changes are
    applied directly, with a warning. Commands run in a sandbox at the workspace's own path; by default they get no
    variables that look like secrets.
    """

    def __init__(self, source: Workspace | Branch, confinement: str | Confinement = _CONFINEMENT) -> None:
        self.source = source
        self.confinement = Confinement.preset(confinement)
        self.workspace_path = os.fspath(source.workspace.path)
        self._tree: FileTree | None = None
        if isinstance(source, Branch):
            self._mark(source)

    def _mark(self, branch: Branch) -> None:
        """Record that a model decides what is written to a branch, unless commands there are unconfined anyway."""
        if self.confinement.read_only:
            branch.mark_confined()

    @cached_property
    def is_recorded(self) -> bool:
        """Whether each change is a separate commit."""
        if isinstance(self.source, Branch):
            return False
        if self.source.child_view().whole:
            warnings.warn(
                f"changes that an agent makes in {self.workspace_path} itself cannot be undone: with the view "
                f"{self.source.fstype} a branch for each change would cost too much; forkwise doctor has alternatives",
                ForkwiseWarning,
                stacklevel=3,
            )
            return False
        return True

    def tree(self) -> FileTree:
        """Return the files for reading; in a branch, also for writing."""
        root = os.fspath(self.source.path)
        if self._tree is None or self._tree.root != root:
            self._tree = FileTree(root, self.workspace_path)
        return self._tree

    @contextmanager
    def edit(self) -> Iterator[FileTree]:
        """Yield the files for writing. If changes are recorded, an exception in the block discards all of them."""
        if not self.is_recorded:
            yield self.tree()
            return
        with self._open_recorded_branch() as branch:
            yield FileTree(os.fspath(branch.path), self.workspace_path)

    def run(self, argv: Sequence[str], **options: Any) -> Finished:
        """Run a command and wait for it; ``options`` are those of forkwise.sandbox.run.RunOptions."""
        options = {"confinement": self.confinement, **options}
        if not self.is_recorded:
            return run_in_branch(self.source, argv, **options)
        with self._open_recorded_branch() as branch:
            return run_in_branch(branch, argv, **options)

    async def arun(self, argv: Sequence[str], **options: Any) -> Finished:
        """Run a command and await its end.

        Cancellation kills the command with all its descendants; if changes are recorded, those of the command are
        discarded.
        """
        options = {"confinement": self.confinement, **options}
        if isinstance(self.source, Branch) or not await run_in_thread(lambda: self.is_recorded):
            return await arun_in_branch(self.source, argv, **options)
        creation = run_in_thread(self._create_branch)
        try:
            branch = await finish_then_cancel(creation)
        except asyncio.CancelledError:
            if not creation.exception():
                await finish(run_in_thread(creation.result()._abort_if_open))
            raise
        try:
            done = await arun_in_branch(branch, argv, **options)
            await finish_then_cancel(run_in_thread(self._commit_branch, branch))
        except BaseException:
            await finish(run_in_thread(branch._abort_if_open))
            raise
        return done

    @contextmanager
    def _open_recorded_branch(self) -> Iterator[Branch]:
        branch = self._create_branch()
        try:
            yield branch
            self._commit_branch(branch)
        except BaseException:
            branch._abort_if_open()
            raise

    def _create_branch(self) -> Branch:
        branch = make_branch(self.source, f"agent-{secrets.token_hex(4)}")
        self._mark(branch)
        return branch

    def _commit_branch(self, branch: Branch) -> None:
        """Commit ``branch``, or drop it if it has no changes. The agent's write wins a conflict: it is the last."""
        if len(branch.delta()):
            land(branch, "last_write_wins")
        else:
            branch.abort()


#: The provider in the references (``WorkspaceRef``) that name branches.
PROVIDER = "forkwise"

_MAX_OUTPUT = 10 << 20  # bytes of both streams together; the limit of pydantic-ai's own backend
_MAX_SHOWN_OUTPUT = 64 << 10
_NOT_FOUND, _NOT_STARTED = 127, 126  # exit codes that a shell uses
T = TypeVar("T")


def agent_workspace(source: Workspace | Branch, confinement: str | Confinement | None = None) -> AgentWorkspace:
    """Build the workspace of an agent's run in a branch or a workspace: ``agent.run(workspace=…)``.

    In a workspace each change and each command is a separate commit, which can be undone.
    """
    files = AgentFiles(source) if confinement is None else AgentFiles(source, confinement)
    return AgentWorkspace(BranchWorkspaceBackend(files))


def open_ref(ref: WorkspaceRef) -> Workspace | Branch:
    """Open the branch or workspace that ``ref`` names. Raises WorkspaceUnavailableError if it no longer exists."""
    path, _, name = ref.id.partition("#")
    try:
        workspace = Workspace(os.fsdecode(unquote_to_bytes(path)))
        return workspace.open(os.fsdecode(unquote_to_bytes(name))) if name else workspace
    except (OSError, BranchNotFoundError) as error:
        raise WorkspaceUnavailableError(f"{ref.id} no longer exists: {error}") from error


class BranchWorkspaceBackend(WorkspaceBackend, SupportsCommands, SupportsFilesystem, SupportsRealpath):
    """The files and commands of a branch or a workspace behind pydantic-ai's protocol.

    The working directory is the workspace's own path in every branch, so an absolute path that an agent was given or
    derived stays in its branch. A path that leads outside raises PermissionError. When a command ends, its descendants
    are killed. No method blocks the event loop.

    ``ref`` overrides the reference: a conversation that started in a branch keeps that reference after the branch was
    committed, and continues in the branch's parent.
    """

    def __init__(self, files: AgentFiles, ref: WorkspaceRef | None = None) -> None:
        self.files = files
        self._ref = ref or _build_ref(files.source)

    @property
    def ref(self) -> WorkspaceRef:
        """The reference by which any process of this user can open the branch while it exists."""
        return self._ref

    async def working_dir(self) -> str:
        """Return the workspace's own path."""
        await self._call(self.files.tree)
        return self.files.workspace_path

    async def exists(self, path: str) -> bool:
        """Return whether a file or directory exists at ``path``."""
        return await self._call(lambda: self.files.tree().exists(path))

    async def read_bytes(self, path: str) -> bytes:
        """Read a file's contents."""
        return await self._call(lambda: self.files.tree().read(path))

    async def stat(self, path: str) -> FileEntry:
        """Return metadata for a file or directory."""
        found = await self._call(lambda: self.files.tree().stat(path))
        return _build_entry(path, os.path.basename(path.rstrip("/")), found)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """List the entries of a directory."""
        found = await self._call(lambda: self.files.tree().list_directory(path))
        return [_build_entry(os.path.join(path, name), name, entry) for name, entry in found]

    async def realpath(self, path: str) -> str:
        """Resolve the symlinks in ``path`` inside the branch."""
        return await self._call(lambda: self.files.tree().realpath(path))

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file, creating missing parents and writing through an existing symlink."""
        await self._change(lambda tree: tree.write(path, data))

    async def make_dir(self, path: str) -> None:
        """Create a directory, including missing parents."""
        await self._change(lambda tree: tree.make_directory(path))

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory and its contents. The working directory and its parents are refused."""
        await self._change(lambda tree: tree.remove(path))

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command in the branch's sandbox and wait for it; a timeout or cancellation kills all its processes."""
        argv = _build_argv(command, shell)
        if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
            raise ValueError("timeout must be a positive finite number or None")
        output = _CommandOutput()
        with _translate_errors():
            try:
                done = await self.files.arun(
                    argv, env={**os.environ, **(env or {})}, timeout=timeout, capture=False, on_output=output.add
                )
            except ProcessBranchError as error:
                if error.errno is None or isinstance(error, NamespaceError):
                    raise
                code = _NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else _NOT_STARTED
                return CommandResult(exit_code=code, stdout="", stderr=f"{error}\n")
        if done.ending == "timeout":
            raise WorkspaceTimeoutError(
                f"command timed out after {timeout:g}s and was killed with all its descendants",
                stdout=output.text("stdout"),
                stderr=output.text("stderr"),
            )
        if done.ending == "killed":
            await self.working_dir()  # raises if the branch was removed while the command ran
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return CommandResult(exit_code=code, stdout=output.text("stdout"), stderr=output.text("stderr"))

    async def _call(self, operation: Callable[[], T]) -> T:
        with _translate_errors():
            return await run_in_thread(operation)

    async def _change(self, operation: Callable[[FileTree], None]) -> None:
        def change() -> None:
            with self.files.edit() as tree:
                operation(tree)

        with _translate_errors():
            await finish_then_cancel(run_in_thread(change))


class _CommandOutput:
    """The output of a command so far, up to a size limit."""

    def __init__(self) -> None:
        self._buffers = {"stdout": bytearray(), "stderr": bytearray()}

    def add(self, stream: str, piece: bytes) -> None:
        self._buffers[stream] += piece
        if sum(map(len, self._buffers.values())) > _MAX_OUTPUT:
            raise WorkspaceOutputLimitError(
                f"command output exceeded {_MAX_OUTPUT >> 20} MiB; redirect it to a file and read part of that",
                limit=_MAX_OUTPUT,
                stdout=self.text("stdout", _MAX_SHOWN_OUTPUT),
                stderr=self.text("stderr", _MAX_SHOWN_OUTPUT),
            )

    def text(self, stream: str, max_bytes: int | None = None) -> str:
        return self._buffers[stream][:max_bytes].decode(errors="replace")


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise pydantic-ai's error if the block finds that the branch no longer exists."""
    try:
        yield
    except BranchNotFoundError as error:
        raise WorkspaceUnavailableError(str(error)) from error


def _build_ref(source: Workspace | Branch) -> WorkspaceRef:
    path = quote_from_bytes(os.fsencode(source.workspace.path))
    name = f"#{quote_from_bytes(os.fsencode(source.branch_path))}" if isinstance(source, Branch) else ""
    return WorkspaceRef(provider=PROVIDER, id=path + name)


def _build_argv(command: WorkspaceCommand, shell: bool) -> list[str]:
    if isinstance(command, str):
        if not shell:
            raise TypeError("a string command requires shell=True; pass an argv sequence otherwise")
        return ["sh", "-c", command]
    if shell:
        raise TypeError("an argv sequence cannot be combined with shell=True; pass a single command string")
    return list(command)


def _build_entry(path: str, name: str, status: os.stat_result) -> FileEntry:
    is_dir = stat.S_ISDIR(status.st_mode)
    return FileEntry(name=name, path=path, is_dir=is_dir, size=None if is_dir else status.st_size)
