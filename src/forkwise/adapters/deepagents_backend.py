"""A branch as the backend of a deepagents agent: its file tools and its shell work in the branch, in a sandbox.

deepagents is imported only when a backend is made, because forkwise does not require it.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from forkwise.adapters.branch_shell import TIMEOUT_S, BranchShell

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.sandbox.confinement import Confinement

__all__ = ["make_backend"]

_ERRORS = {
    errno.ENOENT: "file_not_found",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EISDIR: "is_directory",
    errno.EINVAL: "invalid_path",
    errno.ENAMETOOLONG: "invalid_path",
}


def make_backend(branch: Branch, *, confinement: str | Confinement | None = None, timeout_s: int = TIMEOUT_S) -> Any:
    """Return a ``SandboxBackendProtocol`` of deepagents on a branch: pass it to ``create_deep_agent(backend=...)``.

    Paths are the workspace's, because the sandbox mounts the branch at the workspace's path. ``timeout_s`` is the
    default limit of a command; 0 is none. Commit or abort the branch when the agent is done. Raises ImportError without
    deepagents.
    """
    from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
    from deepagents.backends.sandbox import BaseSandbox

    shell = BranchShell(branch, confinement, timeout_s)

    class BranchBackend(BaseSandbox):  # type: ignore[misc]  # Any without the package
        """The files and the shell of one branch."""

        @property
        def id(self) -> str:
            return branch.branch_path

        def execute(self, command: str, *, timeout: int | None = None) -> Any:
            answer = shell.run(command, timeout)
            return ExecuteResponse(output=answer.output, exit_code=answer.exit_code, truncated=answer.is_cut)

        def upload_files(self, files: list[tuple[str, bytes]]) -> list[Any]:
            return [
                FileUploadResponse(path=path, error=_try(shell.files.write, path, content)) for path, content in files
            ]

        def download_files(self, paths: list[str]) -> list[Any]:
            found = []
            for path in paths:
                contents: list[bytes] = []
                error = _try(lambda name, kept: kept.append(shell.files.read(name)), path, contents)
                found.append(FileDownloadResponse(path=path, content=contents[0] if contents else None, error=error))
            return found

    return BranchBackend()


def _try(operation: Any, path: str, argument: Any) -> str | None:
    """Run an operation on a path; return deepagents' name for its error, or None if there was none."""
    try:
        operation(path, argument)
    except OSError as error:
        return _ERRORS.get(error.errno or 0, str(error))
    except ValueError as error:
        return str(error)
    return None
