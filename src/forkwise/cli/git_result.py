"""Results in git: attempts as git branches and patches, with their origin as trailers, and the commit of a winner.

What an attempt changed is read from its branch or from the ledger.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.errors import BranchNotFoundError, GitError
from forkwise.files.undo import note_repository
from forkwise.git.repository import find_repository
from forkwise.git.result import (
    ResultRepository,
    build_message,
    find_filtered,
    read_identity,
    read_own_messages,
    warn_unsigned,
)
from forkwise.ledger.stored_changes import load_changes
from forkwise.linux.scratch_directory import scratch_directory
from forkwise.linux.trees import closing_fd, copy_entry, open_beneath, open_root
from forkwise.testing.report import TestReport
from forkwise.text.phrases import join_first
from forkwise.text.redaction import redact

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord

__all__ = ["GitCommit", "GitExport", "GitRepository", "GitResult", "trailers_of"]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_UPDATE_INDEX = ("update-index", "-z", "--add", "--remove", "--replace", "--stdin")


@dataclass(frozen=True, slots=True)
class GitResult:
    """An attempt exported to git: its commit, its branch and its patch file; None for what was not requested.

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
    """Return the trailers of a git commit that record its origin."""
    tests = "" if attempt.tests is None else TestReport.from_json(attempt.tests).summary
    cost = ", ".join(f"{name} {value}" for name, value in (attempt.cost or {}).items())
    return {
        "Forkwise-Fork": attempt.fork,
        "Forkwise-Attempt": attempt.id,
        "Forkwise-Tests": tests,
        "Forkwise-Cost": cost,
    }


class GitExport:
    """Exports attempts of one workspace. The constructor and ``check`` raise GitError before anything is run."""

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
            with suppress(BranchNotFoundError):  # another process dropped it
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
    stored = load_changes(ledger.fetch_files(attempt.id), attempt.id)
    if stored is None:
        raise GitError(f"what {attempt.id} changed is not in the ledger: it never ran, or its records were removed")
    files = [file for file in stored.files if ".git" not in file.path.split("/")]
    lost = [file.path for file in files if file.new is not None and file.new.content is None]
    if lost or stored.unlisted or stored.is_redacted:
        reason = "secrets in it were replaced" if stored.is_redacted and not lost else "it is binary, or too large"
        which = join_first(lost, 3) or "the content"
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


@dataclass(frozen=True, slots=True)
class GitCommit:
    """A git commit and its branch, which is None for a detached HEAD."""

    id: str
    branch: str | None


class GitRepository:
    """The git repository of a workspace. Creating it raises GitError if a commit would fail later.

    With ``branch``, the commit starts that branch, and neither the index nor the checked-out files are touched.
    """

    def __init__(self, directory: Path, branch: str | None = None) -> None:
        self._directory = directory
        self._branch = branch
        self._moved: list[str | None] = []
        self._staged: list[list[Any]] = []
        results = ResultRepository(directory)
        self._repository = results.repository
        if branch is not None:
            results.check_new_branch(branch)

    def commit(self, paths: Sequence[str], message: str) -> GitCommit | None:
        """Commit these paths of the workspace and nothing else; return None if git sees no change in them."""
        self._refuse_another_repository()
        head = self._query("rev-parse", "--verify", "--quiet", "HEAD")
        with scratch_directory("git") as directory:
            tree = self._write_tree(head, [p for p in paths if not _is_in_git(p)], f"{directory}/index")
        if head is not None and tree == self._query("rev-parse", f"{head}^{{tree}}"):
            return None
        warn_unsigned(self._repository)
        commit_id = self._do("commit-tree", tree, *(("-p", head) if head else ()), input=message)
        reference = f"refs/heads/{self._branch}" if self._branch is not None else self._repository.head
        self._repository.check_reference(reference or "refs/heads")
        self._repository.prepare_logs()
        if self._branch is not None:
            self._do("update-ref", f"refs/heads/{self._branch}", commit_id, "0" * len(commit_id))
            self._moved = [reference, None, commit_id]
            return GitCommit(commit_id, self._branch)
        subject = message.partition("\n")[0]
        self._do("update-ref", "-m", f"commit: {subject}", "HEAD", commit_id, head or "0" * len(commit_id))
        self._moved = [reference or "HEAD", head, commit_id]
        self._stage(commit_id)
        return GitCommit(commit_id, self._query("symbolic-ref", "--quiet", "--short", "HEAD"))

    def record(self, workspace: Workspace, number: int) -> None:
        """Add the git commit to the record of the workspace's commit, so that an undo reverts both."""
        top = os.fspath(workspace.path)
        directory = os.path.relpath(self._repository.git_directory, top)
        if self._moved and directory.split("/")[0] != "..":  # undo does not cover a repository above the workspace
            note_repository(workspace, number, directory, self._moved, self._staged)

    def _stage(self, commit_id: str) -> None:
        """Put the paths of a commit into the index, so that git does not show them as changed."""
        changed = _split(self._do("diff-tree", "-r", "-z", "--root", "--no-commit-id", "--no-renames", commit_id))
        rows = [
            f"{new} {blob} 0\t{path}\0" if new != "000000" else f"0 {blob} 0\t{path}\0"
            for (_, new, _, blob, _), path in zip((row.split() for row in changed[::2]), changed[1::2], strict=True)
        ]
        facts = [(row.split(), path) for row, path in zip(changed[::2], changed[1::2], strict=True)]
        self._staged = [
            [path, *(None if set(mode) <= {"0", ":"} else [mode.lstrip(":"), blob] for mode, blob in sides)]
            for (old_mode, new_mode, old, new, _), path in facts
            for sides in [((old_mode, old), (new_mode, new))]
        ]
        self._do("update-index", "-z", "--index-info", input="".join(rows), directory=self._repository.work_tree)
        self._query("update-index", "-q", "--refresh", directory=self._repository.work_tree)

    def _write_tree(self, head: str | None, paths: list[str], index: str) -> str:
        """Write the tree of ``head`` with these paths as they are in the workspace, using a separate index."""
        self._do("read-tree", *((head,) if head else ("--empty",)), index=index)
        deleted = [p for p in paths if not os.path.lexists(self._directory / p)]
        tracked = _split(self._do("ls-files", "-z", index=index)) if deleted else []
        names = {p for p in paths if not _is_directory(self._directory / p)}
        names |= {name for name in tracked for p in deleted if name.startswith(f"{p}/")}
        names -= self._find_ignored(names, index)
        self._refuse_filters([name for name in names if (self._directory / name).is_file()], index)
        self._do(*_UPDATE_INDEX, index=index, input=_join(names))
        return self._do("write-tree", index=index)

    def _find_ignored(self, paths: Iterable[str], index: str) -> set[str]:
        """Return the paths that git ignores and does not track."""
        # The prefix ./ keeps git from reading a name that begins with a colon as a pathspec with magic.
        done = self._run(("check-ignore", "-z", "--stdin"), index, _join(f"./{path}" for path in paths))
        if done.returncode not in (0, 1):  # 1: none of the paths is ignored
            raise _git_error("check-ignore", done)
        return {name.removeprefix("./") for name in _split(_decode(done.stdout))}

    def _refuse_filters(self, paths: Iterable[str], index: str) -> None:
        """Raise ClickException if git would filter a path, as Git LFS does: forkwise does not start such programs."""
        found = self._do("check-attr", "-z", "--stdin", "filter", index=index, input=_join(paths))
        if filtered := find_filtered(os.fsencode(found).split(b"\0")):
            raise click.ClickException(f"{filtered}: commit it with git")

    def _refuse_another_repository(self) -> None:
        """Raise ClickException if the winner replaced or moved the repository."""
        found = find_repository(self._directory)
        if found is None or (found.git_directory, found.common_directory) != (
            self._repository.git_directory,
            self._repository.common_directory,
        ):
            raise click.ClickException(
                f"the winner changed which git repository {self._directory} belongs to: check it and commit by hand"
            )

    def _query(self, *words: str, index: str | None = None, input: str = "", directory: str = "") -> str | None:  # noqa: A002
        """Return the output of git, or None if it fails."""
        done = self._run(words, index, input, directory)
        return _decode(done.stdout) if done.returncode == 0 else None

    def _do(self, *words: str, index: str | None = None, input: str = "", directory: str = "") -> str:  # noqa: A002
        """Return the output of git, or raise ClickException if it fails."""
        done = self._run(words, index, input, directory)
        if done.returncode != 0:
            raise _git_error(words[0], done)
        return _decode(done.stdout)

    def _run(
        self, words: Sequence[str], index: str | None, text: str, directory: str = ""
    ) -> subprocess.CompletedProcess[bytes]:
        return self._repository.run(
            *words,
            directory=directory or self._directory,
            index=index,
            stdin=os.fsencode(text),
            identity=read_identity(),
        )


def _git_error(command: str, done: subprocess.CompletedProcess[bytes]) -> click.ClickException:
    reason = " ".join(_decode(done.stderr).split()) or f"exit code {done.returncode}"
    return click.ClickException(f"git {command} failed: {reason}")


def _is_in_git(path: str) -> bool:
    return path == ".git" or path.startswith(".git/")


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _join(names: Iterable[str]) -> str:
    return "".join(f"{name}\0" for name in sorted(names))


def _split(text: str) -> list[str]:
    return [name for name in text.split("\0") if name]


def _decode(data: bytes) -> str:
    return os.fsdecode(data).removesuffix("\n")
