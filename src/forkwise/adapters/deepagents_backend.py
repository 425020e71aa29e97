"""A branch as the backend of a deepagents agent: its file tools and its shell work in the branch, in a sandbox.

deepagents is imported when a backend is made: forkwise does not require it.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from forkwise.files.file_tree import FileTree
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.run import run_in_branch
from forkwise.text.clean import clean_text

if TYPE_CHECKING:
    from forkwise.files.branch import Branch

__all__ = ["make_backend"]

_MAX_OUTPUT = 1 << 20  # bytes of a command's output
_TIMEOUT_S = 600
_ERRORS = {
    errno.ENOENT: "file_not_found",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EISDIR: "is_directory",
    errno.EINVAL: "invalid_path",
    errno.ENAMETOOLONG: "invalid_path",
}


def make_backend(branch: Branch, *, confinement: str | Confinement = "standard", timeout_s: int = _TIMEOUT_S) -> Any:
    """Return a ``SandboxBackendProtocol`` of deepagents on a branch: pass it to ``create_deep_agent(backend=...)``.

    Paths are those of the workspace, which the branch has inside its sandbox. ``timeout_s`` is the default limit of a
    command; 0 is none. Commit or abort the branch when the agent is done. Raises ImportError without deepagents.
    """
    from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
    from deepagents.backends.sandbox import BaseSandbox

    confined = Confinement.preset(confinement)
    if confined.read_only:
        branch.mark_confined()  # a model decides what is written

    class BranchBackend(BaseSandbox):  # type: ignore[misc]  # Any without the package
        """The files and the shell of one branch."""

        @property
        def id(self) -> str:
            return branch.branch_path

        def execute(self, command: str, *, timeout: int | None = None) -> Any:
            output = _Output()
            limit = timeout_s if timeout is None else timeout
            done = run_in_branch(
                branch,
                ["sh", "-c", command],
                confinement=confined,
                timeout=limit or None,
                capture=False,
                on_output=output.add,
            )
            text = clean_text(bytes(output.content[:_MAX_OUTPUT]))
            if done.ending == "timeout":
                text += f"\n[the command was ended after {limit} seconds]"
            return ExecuteResponse(output=text, exit_code=done.returncode, truncated=output.size > _MAX_OUTPUT)

        def upload_files(self, files: list[tuple[str, bytes]]) -> list[Any]:
            return [FileUploadResponse(path=path, error=_try(_write, path, content)) for path, content in files]

        def download_files(self, paths: list[str]) -> list[Any]:
            found = []
            for path in paths:
                contents: list[bytes] = []
                error = _try(lambda name, kept: kept.append(tree().read(name)), path, contents)
                found.append(FileDownloadResponse(path=path, content=contents[0] if contents else None, error=error))
            return found

    def tree() -> FileTree:
        return FileTree(os.fspath(branch.path), os.fspath(branch.workspace.path))

    def _write(path: str, content: bytes) -> None:
        tree().write(path, content)

    return BranchBackend()


class _Output:
    """The beginning of what a command prints."""

    def __init__(self) -> None:
        self.size = 0
        self.content = bytearray()

    def add(self, _stream: str, piece: bytes) -> None:
        self.size += len(piece)
        if len(self.content) < _MAX_OUTPUT:
            self.content += piece


def _try(operation: Any, path: str, argument: Any) -> str | None:
    """Do something with a path; return the error by deepagents' name for it, or None."""
    try:
        operation(path, argument)
    except OSError as error:
        return _ERRORS.get(error.errno or 0, str(error))
    except ValueError as error:
        return str(error)
    return None
