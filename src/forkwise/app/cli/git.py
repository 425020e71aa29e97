"""A winner as a git commit, beside the commit into the workspace.

Nothing that an attempt wrote is run: no hooks, no helpers of a configuration it changed. What the user has staged stays
as it is, but for the paths that are committed.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

__all__ = ["GitCommit", "Repository"]

_OBEYED = (".git", ".git/config", ".git/config.worktree", ".git/commondir")
_UPDATE = ("update-index", "-z", "--add", "--remove", "--replace", "--stdin")
_SAFE = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")


@dataclass(frozen=True, slots=True)
class GitCommit:
    """A git commit, and the branch it is on; None where no branch is checked out."""

    id: str
    branch: str | None


class Repository:
    """The git repository that a workspace is in, found before anything is run, so that nothing is run for nothing.

    With a ``branch`` the commit starts that branch, and what is checked out and staged stays untouched.
    """

    def __init__(self, directory: Path, branch: str | None = None) -> None:
        self._directory = directory
        self._branch = branch
        if self._ask("rev-parse", "--is-inside-work-tree") != "true":
            raise click.ClickException(f"{directory} is in no git repository; git init makes one")
        if self._ask("var", "GIT_COMMITTER_IDENT") is None:
            raise click.ClickException("git does not know who commits; git config user.name and user.email say it")
        if branch is not None:
            if self._ask("check-ref-format", "--branch", branch) is None:
                raise click.ClickException(f"{branch!r} is no name for a git branch")
            if self._ask("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}") is not None:
                raise click.ClickException(f"there is a git branch {branch!r} already; give another name")

    def commit(self, paths: Sequence[str], message: str) -> GitCommit | None:
        """Commit what is in the workspace at these paths, and nothing else; None where git sees no change there."""
        self._refuse_what_git_obeys(paths)
        head = self._ask("rev-parse", "--verify", "--quiet", "HEAD")
        with tempfile.TemporaryDirectory(prefix="forkwise-git-") as room:
            tree = self._tree(head, [p for p in paths if not _is_in_git(p)], f"{room}/index")
        if head is not None and tree == self._ask("rev-parse", f"{head}^{{tree}}"):
            return None
        made = self._do("commit-tree", tree, *(("-p", head) if head else ()), input=message)
        if self._branch is not None:
            self._do("update-ref", f"refs/heads/{self._branch}", made, "0" * len(made))
            return GitCommit(made, self._branch)
        subject = message.partition("\n")[0]
        self._do("update-ref", "-m", f"commit: {subject}", "HEAD", made, head or "0" * len(made))
        changed = self._do("diff-tree", "-r", "-z", "--root", "--no-commit-id", "--name-only", "--relative", made)
        self._do(
            "--literal-pathspecs", "reset", "--quiet", "--pathspec-from-file=-", "--pathspec-file-nul", input=changed
        )
        return GitCommit(made, self._ask("symbolic-ref", "--quiet", "--short", "HEAD"))

    def _tree(self, head: str | None, paths: list[str], index: str) -> str:
        """The tree of a commit with these paths as they are in the workspace, made in an index of its own."""
        self._do("read-tree", *((head,) if head else ("--empty",)), index=index)
        gone = [p for p in paths if not os.path.lexists(self._directory / p)]
        known = _split(self._do("ls-files", "-z", index=index)) if gone else []
        wanted = {p for p in paths if not _is_directory(self._directory / p)}
        wanted |= {name for name in known for p in gone if name.startswith(f"{p}/")}
        wanted -= self._ignored(wanted, index)
        self._do(*_UPDATE, index=index, input=_join(wanted))
        return self._do("write-tree", index=index)

    def _ignored(self, paths: Iterable[str], index: str) -> set[str]:
        """Which of the paths git is told to ignore, and does not know already."""
        # By ./name, because a name that begins with a colon would be more than a name.
        done = self._run(("check-ignore", "-z", "--stdin"), index, _join(f"./{path}" for path in paths))
        if done.returncode not in (0, 1):  # 1: none of them
            raise _failed("check-ignore", done)
        return {name.removeprefix("./") for name in _split(_text(done.stdout))}

    def _refuse_what_git_obeys(self, paths: Sequence[str]) -> None:
        """A configuration that an attempt wrote could have git run anything, and forkwise runs git."""
        configuration = self._configured_by()
        for path in paths:
            if path in _OBEYED or (self._directory / path) in configuration:
                raise click.ClickException(f"the winner changed {path}, which git obeys: look at it and commit by hand")

    def _configured_by(self) -> set[Path]:
        """The files that git is configured by; some may lie in the workspace. To ask is safe: it only reads."""
        told = _split(self._ask("config", "--list", "--show-origin", "--name-only", "-z") or "")
        names = [name.removeprefix("file:") for name in told if name.startswith("file:")]
        return {Path(os.path.normpath(self._directory / name)) for name in names}

    def _ask(self, *words: str, index: str | None = None, input: str = "") -> str | None:  # noqa: A002
        """What git says; None where it fails."""
        done = self._run(words, index, input)
        return _text(done.stdout) if done.returncode == 0 else None

    def _do(self, *words: str, index: str | None = None, input: str = "") -> str:  # noqa: A002
        """What git says; ClickException where it fails."""
        done = self._run(words, index, input)
        if done.returncode != 0:
            raise _failed(words[0], done)
        return _text(done.stdout)

    def _run(self, words: Sequence[str], index: str | None, given: str) -> subprocess.CompletedProcess[bytes]:
        environment = dict(os.environ) if index is None else {**os.environ, "GIT_INDEX_FILE": index}
        try:
            return subprocess.run(
                ["git", "-C", str(self._directory), *_SAFE, *words],
                env=environment,
                input=os.fsencode(given),
                capture_output=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise click.ClickException("git is not installed") from error


def _failed(what: str, done: subprocess.CompletedProcess[bytes]) -> click.ClickException:
    said = " ".join(_text(done.stderr).split()) or f"exit code {done.returncode}"
    return click.ClickException(f"git {what} failed: {said}")


def _is_in_git(path: str) -> bool:
    return path == ".git" or path.startswith(".git/")


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _join(names: Iterable[str]) -> str:
    return "".join(f"{name}\0" for name in sorted(names))


def _split(text: str) -> list[str]:
    return [name for name in text.split("\0") if name]


def _text(said: bytes) -> str:
    return os.fsdecode(said).removesuffix("\n")
