"""BranchShell: a branch's files and commands with answers that fit a model's context; all adapters work through it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forkwise.files.file_tree import FileTree
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.run import arun_in_branch, run_in_branch
from forkwise.text.clean import clean_text

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.sandbox.process import Finished

__all__ = ["TIMEOUT_S", "BranchShell", "ShellAnswer"]

TIMEOUT_S = 600
"""The default limit of a command, in seconds."""

_MAX_OUTPUT = 1 << 20  # bytes of a command's output


@dataclass(frozen=True, slots=True)
class ShellAnswer:
    """The output of a command, truncated and without control codes, and how the command ended."""

    output: str
    exit_code: int
    is_cut: bool


class BranchShell:
    """The files and the shell of one branch, addressed by the workspace's own paths.

    Commands run in a sandbox and by default get no variables that look like secrets. ``timeout_s`` is their default
    limit; 0 is none.
    """

    def __init__(
        self, branch: Branch, confinement: str | Confinement | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.branch = branch
        self.confinement = Confinement.preset(confinement or Confinement.standard(drops_secrets=True))
        self.timeout_s = timeout_s
        if self.confinement.read_only:
            branch.mark_confined()  # because a model decides what is written

    @property
    def files(self) -> FileTree:
        """The files, for reading and writing; paths that lead outside are refused."""
        return FileTree(os.fspath(self.branch.path), os.fspath(self.branch.workspace.path))

    def run(self, command: str, timeout_s: float | None = None) -> ShellAnswer:
        """Run a command with ``sh``; keep the first mebibyte of its output."""
        kept = _Output()
        limit = self.timeout_s if timeout_s is None else timeout_s
        return kept.answer(run_in_branch(self.branch, ["sh", "-c", command], **self._options(kept, limit)), limit)

    async def arun(self, command: str, timeout_s: float | None = None) -> ShellAnswer:
        """Run a command without blocking the event loop. Cancelling the coroutine kills the command."""
        kept = _Output()
        limit = self.timeout_s if timeout_s is None else timeout_s
        done = await arun_in_branch(self.branch, ["sh", "-c", command], **self._options(kept, limit))
        return kept.answer(done, limit)

    def _options(self, kept: _Output, limit: float) -> dict[str, Any]:
        return {
            "confinement": self.confinement,
            "timeout": limit or None,
            "capture": False,
            "on_output": kept.add,
        }


class _Output:
    """The beginning of a command's output."""

    def __init__(self) -> None:
        self.size = 0
        self.content = bytearray()

    def add(self, _stream: str, piece: bytes) -> None:
        self.size += len(piece)
        if len(self.content) < _MAX_OUTPUT:
            self.content += piece

    def answer(self, done: Finished, limit: float) -> ShellAnswer:
        text = clean_text(bytes(self.content[:_MAX_OUTPUT]))
        if done.ending == "timeout":
            text += f"\n[the command was ended after {limit:g} seconds]"
        return ShellAnswer(text, done.returncode, self.size > _MAX_OUTPUT)
