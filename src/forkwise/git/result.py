"""Results as git: changed files as a commit on a new branch, or as a patch; the checkout is not touched.

The commit is built in an index of its own, from a directory that holds only the changed files. ``HEAD``, the user's
index and the checked-out files are neither read nor written for it.
"""

from __future__ import annotations

import os
import re
import subprocess
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from forkwise.errors import ForkwiseWarning, GitError
from forkwise.git.linked_worktree import check_branch_name
from forkwise.git.repository import Repository, find_repository, locate_repository
from forkwise.linux.scratch_directory import scratch_directory
from forkwise.text.clean import clean_text, truncate

__all__ = ["ResultRepository", "build_message", "find_filtered", "read_identity", "read_own_messages", "warn_unsigned"]

_IDENTITY = tuple(f"GIT_{who}_{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL", "DATE"))
_OWN_TRAILER = re.compile(r"^Forkwise-\w+:.*\n?", re.MULTILINE | re.IGNORECASE)
_MAX_SUBJECT = 72
_MAX_MESSAGE = 20_000
_MAX_COMMITS = 50


class ResultRepository:
    """The repository of a workspace, for commits of results. Raises GitError when created if a commit would fail."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        repository = find_repository(directory)
        if repository is None:
            raise GitError(f"{os.path.abspath(directory)} is not in a git repository; create one with git init")
        self._repository = self.repository = repository
        prefix = os.path.relpath(os.path.realpath(directory), repository.work_tree)
        self._prefix = "" if prefix == "." else f"{prefix}/"
        if self._run("var", "GIT_COMMITTER_IDENT").returncode != 0:
            raise GitError("git does not know who commits; set user.name and user.email with git config")

    def check_new_branch(self, name: str) -> None:
        """Raise GitError unless ``name`` is valid for a branch, and free."""
        check_branch_name(name)
        if self._run("rev-parse", "--verify", "--quiet", f"refs/heads/{name}").returncode == 0:
            raise GitError(
                f"the git branch {name!r} already exists; give another name, or delete it with git branch -D"
            )

    def find_bases(self, started: float, head: str | None, revision: str | None = None) -> list[str | None]:
        """Return ``revision``, or ``head`` if that is known, or the commits that ``HEAD`` may have been at ``started``.

        The likeliest comes first: git's logs count whole seconds, so a commit in the same second may have been made
        before or after. None is the state before the first commit.
        """
        if revision is None and head is not None and (found_head := self._repository.find_commit(head)) is not None:
            return [found_head]
        second = int(started)
        asked = [revision] if revision is not None else [f"HEAD@{{{at} +0000}}" for at in (second, second - 1)]
        found = dict.fromkeys(filter(None, map(self._repository.find_commit, asked)))
        if not found and revision is not None:
            raise GitError(f"{revision!r} names no commit; list them with git log --all")
        return [*found] or [self._repository.find_commit()]

    @contextmanager
    def commit(
        self,
        base: str | None,
        changed: Iterable[str],
        deleted: Iterable[str],
        write: Callable[[str], None],
        message: str,
        *,
        is_kept: bool,
    ) -> Iterator[str | None]:
        """Make a commit on ``base``, and yield its id; None if git sees no change.

        ``changed`` and ``deleted`` are paths of the workspace; ``write`` writes the changed ones into a directory.
        Unless ``is_kept``, the commit is in no repository and exists only inside the block, for ``format_patch``.
        """
        with scratch_directory("git") as scratch:
            tree, index, objects = f"{scratch}/tree", f"{scratch}/index", f"{scratch}/objects"
            os.makedirs(f"{tree}/{self._prefix}")
            os.mkdir(objects)
            variables = {"GIT_WORK_TREE": tree} | ({} if is_kept else self._private_objects(objects))
            self._variables = variables
            self._do("read-tree", *((base,) if base else ("--empty",)), index=index)
            write(f"{tree}/{self._prefix}".rstrip("/"))
            names = self._select(changed, deleted, index)
            self._refuse_filters(names, index, tree)
            self._do(
                *("update-index", "-z", "--add", "--remove", "--replace", "--stdin"),
                index=index,
                stdin=_join(names),
                directory=tree,
            )
            written = self._do("write-tree", index=index)
            if base is not None and written == self._do("rev-parse", f"{base}^{{tree}}"):
                yield None
                return
            if is_kept:
                warn_unsigned(self._repository)
            parents = ("-p", base) if base else ()
            yield self._do("commit-tree", written, *parents, stdin=message.encode("utf-8", "replace"))

    def create_branch(self, name: str, commit: str) -> None:
        """Create a branch at a commit. Raises GitError if it exists."""
        reference = f"refs/heads/{name}"
        self._repository.check_reference(reference)
        self._repository.prepare_logs()
        words = ("update-ref", "--create-reflog", "-m", "branch: Created by forkwise", reference, commit)
        done = self._run(*words, "0" * len(commit))
        if done.returncode != 0:
            raise GitError(f"the git branch {name!r} could not be created: {_reason(done)}; give another name")

    def format_patch(self, commit: str) -> bytes:
        """Return a commit as a patch for ``git am`` and ``git apply``. Called inside the block of ``commit``."""
        words = ("format-patch", "--stdout", "--root", "--binary", "--full-index", "-M", "-1", commit)
        done = self._run(*words, variables=self._variables)
        if done.returncode != 0:
            raise GitError(f"git format-patch failed: {_reason(done)}")
        return done.stdout

    _variables: Mapping[str, str] = {}

    def _private_objects(self, directory: str) -> dict[str, str]:
        real = f"{self._repository.common_directory}/objects"
        if re.search(r"[:\"\\]", real):
            real = '"' + real.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return {"GIT_OBJECT_DIRECTORY": directory, "GIT_ALTERNATE_OBJECT_DIRECTORIES": real}

    def _select(self, changed: Iterable[str], deleted: Iterable[str], index: str) -> list[str]:
        """Return the paths that the commit changes, from the top of the repository, without those in submodules."""
        rows = [row.partition(b"\t") for row in self._list("ls-files", "--stage", "-z", index=index)]
        modules = [os.fsdecode(path) for facts, _, path in rows if facts.startswith(b"160000 ")]
        tracked = [os.fsdecode(path) for _, _, path in rows]
        gone = [f"{self._prefix}{path}" for path in deleted]
        names = {f"{self._prefix}{path}" for path in changed} | set(gone)
        inside = tuple(f"{path}/" for path in gone)
        names |= {path for path in tracked if inside and path.startswith(inside)}
        own = {path for path in names if ".git" not in path.split("/")}
        return sorted(path for path in own if not any(path.startswith(f"{module}/") for module in modules))

    def _refuse_filters(self, names: Sequence[str], index: str, tree: str) -> None:
        """Raise GitError if git would filter a path, as Git LFS does: forkwise does not start such programs."""
        present = [name for name in names if os.path.isfile(f"{tree}/{name}") and not os.path.islink(f"{tree}/{name}")]
        found = self._list("check-attr", "-z", "--stdin", "filter", index=index, stdin=_join(present), directory=tree)
        if filtered := find_filtered(found):
            raise GitError(f"{filtered}: apply it to the workspace with forkwise pick, and commit it with git")

    def _list(self, *words: str, index: str, stdin: bytes = b"", directory: str | None = None) -> list[bytes]:
        done = self._run(*words, index=index, stdin=stdin, variables=self._variables, directory=directory)
        if done.returncode != 0:
            raise GitError(f"git {words[0]} failed: {_reason(done)}")
        return done.stdout.split(b"\0")[:-1]

    def _do(self, *words: str, index: str | None = None, stdin: bytes = b"", directory: str | None = None) -> str:
        done = self._run(*words, index=index, stdin=stdin, variables=self._variables, directory=directory)
        if done.returncode != 0:
            raise GitError(f"git {words[0]} failed: {_reason(done)}")
        return os.fsdecode(done.stdout).strip()

    def _run(
        self,
        *words: str,
        index: str | None = None,
        stdin: bytes = b"",
        variables: Mapping[str, str] | None = None,
        directory: str | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        given = {**read_identity(), **(variables or {})}
        return self._repository.run(*words, directory=directory or "/", index=index, stdin=stdin, identity=given)


def read_identity() -> dict[str, str]:
    """Return the variables that say who commits, and when, as the user has set them."""
    return {name: os.environ[name] for name in _IDENTITY if name in os.environ}


def warn_unsigned(repository: Repository) -> None:
    """Warn if the user's configuration asks for a signed commit."""
    if repository.signs:
        warnings.warn(
            "the git commit is not signed, although commit.gpgSign is set: forkwise starts no program for git; "
            "sign it with git commit --amend --no-edit -S",
            ForkwiseWarning,
            stacklevel=4,
        )


def find_filtered(attributes: Sequence[bytes]) -> str:
    """Return the start of a message if git filters a path, by the output of ``check-attr -z``; otherwise nothing."""
    for path, value in zip(attributes[::3], attributes[2::3], strict=False):
        if value not in (b"unspecified", b"unset", b""):
            name, program = os.fsdecode(path), os.fsdecode(value)
            return f"git filters {name} through {program!r} (.gitattributes), which forkwise does not run"
    return ""


def build_message(text: str, own: Sequence[str], trailers: Mapping[str, str]) -> str:
    """Build the message of a commit: the agent's own messages if there are any, else ``text``, and trailers."""
    parts = [_OWN_TRAILER.sub("", clean_text(part)).strip() for part in (own or [text])]
    body = "\n\n".join(part for part in parts if part)[:_MAX_MESSAGE].strip()
    subject, newline, rest = body.partition("\n")
    if len(subject) > _MAX_SUBJECT:
        rest = f"\n{subject}\n{rest}"
        newline = "\n"
    lines = [f"{name}: {' '.join(clean_text(value).split())}" for name, value in trailers.items() if value]
    head = truncate(subject, _MAX_SUBJECT) or "Result of forkwise"
    return f"{head}{newline}{rest}".rstrip() + "\n\n" + "\n".join(lines) + "\n"


def read_own_messages(directory: str | os.PathLike[str], base: str | None) -> list[str]:
    """Return the messages of the commits that an agent made in its branch since ``base``, oldest first.

    ``directory`` is the branch's. If its repository is unusable, there are no messages; nothing is raised.
    """
    try:
        repository = locate_repository(directory)
        if base is None or repository is None or not _is_inside(repository, directory):
            return []
        words = ("log", "--reverse", f"--max-count={_MAX_COMMITS}", "--no-merges", "--format=%B%x00", f"{base}..HEAD")
        done = repository.run(*words, directory="/")
    except (GitError, OSError):
        return []
    if done.returncode != 0:
        return []
    return [text for part in done.stdout.split(b"\0") if (text := clean_text(part).strip())]


def _is_inside(repository: Repository, directory: str | os.PathLike[str]) -> bool:
    """Return whether a repository is in a branch itself, and not one that the branch merely points to."""
    top = os.path.realpath(directory)
    return repository.work_tree == top and repository.git_directory == repository.common_directory == f"{top}/.git"


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    return " ".join(clean_text(done.stderr).split()) or f"exit code {done.returncode}"


def _join(names: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)
