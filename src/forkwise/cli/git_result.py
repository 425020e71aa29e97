"""Attempts as git branches and patches: what each changed, read from its branch or from the ledger, and who made it."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forkwise.errors import BranchNotFoundError, GitError
from forkwise.git.result import ResultRepository, build_message, read_own_messages
from forkwise.ledger.stored_changes import load_changes
from forkwise.linux.trees import closing_fd, copy_entry, open_beneath, open_root
from forkwise.testing.report import TestReport
from forkwise.text.redaction import redact

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord

__all__ = ["GitExport", "GitResult", "trailers_of"]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


@dataclass(frozen=True, slots=True)
class GitResult:
    """An attempt as git: the commit and its branch, and the file of its patch; None for what was not requested.

    ``has_cr`` says that lines of the patch end with a carriage return, which ``git am`` removes without ``--keep-cr``.
    """

    attempt: str
    commit: str | None
    branch: str | None
    patch: str | None
    has_cr: bool = False

    @property
    def command(self) -> str:
        """The command that applies the patch as it is."""
        return f"git am {'--keep-cr ' if self.has_cr else ''}{shlex.quote(self.patch or '')}"


@dataclass(frozen=True, slots=True)
class _Changes:
    changed: Sequence[str]
    deleted: Sequence[str]
    write: Callable[[str], None]
    own: Sequence[str] = ()


def trailers_of(attempt: AttemptRecord) -> dict[str, str]:
    """Return the trailers of a git commit that say where it comes from."""
    tests = "" if attempt.tests is None else TestReport.from_json(attempt.tests).summary
    cost = ", ".join(f"{name} {value}" for name, value in (attempt.cost or {}).items())
    return {
        "Forkwise-Fork": attempt.fork,
        "Forkwise-Attempt": attempt.id,
        "Forkwise-Tests": tests,
        "Forkwise-Cost": cost,
    }


class GitExport:
    """Exports attempts of one workspace. Creating it, and ``check``, raise GitError before anything is spent."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._repository = ResultRepository(workspace.path)

    def check(self, branch: str | None, prefix: str | None, patch: str | None) -> None:
        """Raise GitError if a branch or a patch could not be made."""
        if branch is not None:
            self._repository.check_new_branch(branch)
        if prefix is not None:
            self._repository.check_new_branch(f"{prefix.rstrip('/')}/1")
        if patch and patch != "-" and not Path(patch).absolute().parent.is_dir():
            raise GitError(
                f"--as-patch {patch}: there is no directory {Path(patch).absolute().parent}; create it first"
            )

    def export(
        self,
        ledger: Ledger,
        attempt: AttemptRecord,
        *,
        branch: str | None = None,
        patch: str | None = None,
        message: str | None = None,
        base: str | None = None,
    ) -> tuple[GitResult, bytes]:
        """Make the branch and the patch of an attempt; return the content of the patch too.

        An empty ``patch`` stands for a file named after the attempt, ``-`` for none. Raises GitError if git sees no
        change, or if the ledger does not have all content.
        """
        fork = ledger.fork(attempt.fork)
        text = message or " ".join(redact(word) for word in (attempt.label or "").split()) or f"Attempt {attempt.id}"
        content = b""
        for parent in self._repository.find_bases(fork.started, fork.head, base):
            changes = self._read(ledger, attempt, parent)
            whole = build_message(text, () if message else changes.own, trailers_of(attempt))
            with self._repository.commit(
                parent, changes.changed, changes.deleted, changes.write, whole, is_kept=branch is not None
            ) as commit:
                if commit is None:
                    continue
                if patch is not None:
                    content = self._repository.format_patch(commit)
                if branch is not None:
                    self._repository.create_branch(branch, commit)
            file = None if patch is None or patch == "-" else patch or f"{attempt.id}.patch"
            if file is not None:
                Path(file).write_bytes(content)
            result = GitResult(attempt.id, commit if branch is not None else None, branch, file, b"\r\n" in content)
            return result, content
        raise GitError(f"attempt {attempt.id} changed nothing that git sees; there is nothing to export")

    def _read(self, ledger: Ledger, attempt: AttemptRecord, base: str | None) -> _Changes:
        from forkwise.fork.stored_fork import StoredFork

        live = StoredFork(ledger, self._workspace, attempt.fork).branch(attempt.branch)
        if live is not None:
            with suppress(BranchNotFoundError):  # it was dropped meanwhile
                return _read_branch(live, base)
        return _read_stored(ledger, attempt)


def _read_branch(branch: Branch, base: str | None) -> _Changes:
    delta = branch.delta()
    top = str(branch.path)
    changed = [change.path for change in delta if change.kind != "deleted" and ".git" not in change.path.split("/")]
    files = [path for path in changed if _is_leaf(f"{top}/{path}")]

    def write(directory: str) -> None:
        with closing_fd(open_root(top)) as source, closing_fd(open_root(directory)) as target:
            for path in files:
                above, name = os.path.split(path)
                os.makedirs(f"{directory}/{above}", exist_ok=True)
                with (
                    closing_fd(open_beneath(source, above or ".", _DIRECTORY)) as old,
                    closing_fd(open_beneath(target, above or ".", _DIRECTORY)) as new,
                ):
                    copy_entry(old, name, new, name)

    deleted = [change.path for change in delta if change.kind == "deleted"]
    # What became another type, such as a directory where a file was, is not in the index under its old type.
    return _Changes(files, deleted, write, read_own_messages(top, base))


def _is_leaf(path: str) -> bool:
    mode = os.lstat(path).st_mode
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _read_stored(ledger: Ledger, attempt: AttemptRecord) -> _Changes:
    stored = load_changes(ledger.directory, attempt.id)
    if stored is None:
        raise GitError(f"what {attempt.id} changed is not in the ledger: it never ran, or its records were removed")
    files = [file for file in stored.files if ".git" not in file.path.split("/")]
    lost = [file.path for file in files if file.new is not None and file.new.content is None]
    if lost or stored.unlisted or stored.is_redacted:
        reason = "secrets in it were replaced" if stored.is_redacted and not lost else "it is binary, or too large"
        which = ", ".join(lost[:3]) or "the content"
        raise GitError(
            f"attempt {attempt.id} cannot be exported any more: its branch is gone, and the ledger has not all of "
            f"it ({which}: {reason}); run it again with --branches-prefix or --keep"
        )

    def write(directory: str) -> None:
        for file in files:
            if file.new is None or file.new.content is None:
                continue
            path = f"{directory}/{file.path}"
            if ".." in file.path.split("/") or file.path.startswith("/"):
                raise GitError(f"the ledger names a path outside the workspace: {file.path!r}")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.realpath(os.path.dirname(path)) != os.path.normpath(os.path.dirname(path)):
                raise GitError(f"the ledger has {file.path!r} below a symbolic link, which no attempt can have made")
            if stat.S_ISLNK(file.new.mode):
                os.symlink(os.fsdecode(file.new.content), path)
                continue
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(path, flags, 0o700 if file.new.mode & 0o100 else 0o600), "wb") as target:
                target.write(file.new.content)

    changed = [file.path for file in files if file.new is not None]
    deleted = [change.path for change in stored.delta if change.kind == "deleted"]
    return _Changes(changed, deleted, write)
