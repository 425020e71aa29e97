"""Ignore rules: which changed paths are ignored or generated, such as caches, byte code and build results.

In a git repository git itself decides, by the rules of the workspace: an attempt cannot hide its changes by adding a
rule in its branch, and a tracked file is never ignored. Elsewhere a short list of caches and byte code decides.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from forkwise.errors import ForkwiseWarning, GitError

if TYPE_CHECKING:
    from forkwise.git.repository import Repository

__all__ = [
    "GENERATED",
    "Ignore",
    "IgnoreRules",
    "check_ignore",
    "is_litter_glob",
    "is_matched",
    "remember_answers",
    "select_ignored",
]


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """Git's rules, and globs of ``litter``: files that an agent leaves behind, ignored as well unless git tracks them.

    The globs are those of ``is_matched``.
    """

    litter: tuple[str, ...] = ()


#: What to leave out: ``git`` for git's rules (outside of a repository ``GENERATED``), ``IgnoreRules`` for more than
#: these, a function that is called with a path relative to the workspace, or globs.
Ignore = Literal["git"] | IgnoreRules | Callable[[str], Any] | Sequence[str]

#: Names of generated files and directories, as globs, where there is no git repository: caches and byte code only.
GENERATED = (
    "__pycache__",
    "*.py[cod]",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    ".tox",
    ".nox",
    ".coverage",
    ".coverage.*",
    "node_modules/.cache",
    "node_modules/.vite",
    "node_modules/.vitest",
    ".eslintcache",
    ".stylelintcache",
    ".parcel-cache",
    "*.tsbuildinfo",
    ".gradle",
    ".sass-cache",
    ".ipynb_checkpoints",
    ".DS_Store",
    "Thumbs.db",
)

_QUESTION = ("check-ignore", "--stdin", "-z", "-v")
_MAX_SPLITS = 24


def check_ignore(ignore: object) -> None:
    """Raise ValueError or TypeError unless ``ignore`` is a valid value of Ignore, or None."""
    if isinstance(ignore, str):
        if ignore != "git":
            raise ValueError(f"ignore takes 'git', a function or a list of globs, not {ignore!r}")
    elif isinstance(ignore, IgnoreRules | list | tuple):
        globs: Any = ignore.litter if isinstance(ignore, IgnoreRules) else ignore
        if not isinstance(globs, list | tuple) or not all(isinstance(glob, str) and glob.strip("/") for glob in globs):
            raise TypeError(f"the globs of ignore are strings that are not empty, not {globs!r}")
        if isinstance(ignore, IgnoreRules) and not all(map(is_litter_glob, globs)):
            raise ValueError(
                f"the globs of litter have printable characters, but no brackets or backslashes: {globs!r}"
            )
    elif ignore is not None and not callable(ignore):
        raise TypeError(f"ignore takes 'git', a function or a list of globs, not {ignore!r}")


def is_litter_glob(glob: str) -> bool:
    """Return whether a litter glob is valid: git, which lists the tracked files, has to read it the same way."""
    return glob.isprintable() and not set(glob) & set("[]\\")


def select_ignored(root: str | os.PathLike[str], paths: Iterable[str], ignore: Ignore = "git") -> set[str]:
    """Return the ``paths`` that are ignored in the workspace ``root``. A directory's path ends with a slash.

    A directory is in the result only if everything in it is ignored. Paths in ``.git`` never are. If git cannot run,
    ForkwiseWarning is issued and ``GENERATED`` decides.
    """
    asked = [path for path in dict.fromkeys(paths) if ".git" not in path.split("/")]
    if not asked:
        return set()
    if isinstance(ignore, IgnoreRules):
        found = select_ignored(root, asked, "git")
        return found | _select_litter(root, [path for path in asked if path not in found], ignore.litter)
    if callable(ignore):
        return {path for path in asked if ignore(path.rstrip("/"))}
    if ignore != "git":
        return {path for path in asked if is_matched(path, ignore)}
    try:
        answers = _find_answers(os.path.realpath(root))
        if answers is not None:
            return answers.select(asked)
    except (GitError, OSError) as error:
        warnings.warn(
            f"git's ignore rules are not used for {os.fspath(root)}, only a list of caches and byte code: {error}",
            ForkwiseWarning,
            stacklevel=2,
        )
    return {path for path in asked if is_matched(path, GENERATED)}


def is_matched(path: str, globs: Iterable[str]) -> bool:
    """Return whether a path, or a directory above it, matches one of the globs.

    A glob without a slash matches a name at any depth. One with a slash matches names that follow each other: from the
    workspace's directory if the glob begins with a slash, else at any depth.

    >>> is_matched("src/__pycache__/a.pyc", ["__pycache__"]), is_matched("a/b", ["/b"]), is_matched("a/b/c", ["a/b"])
    (True, False, True)
    """
    names = path.strip("/").split("/")
    return any(_is_matched_by(names, glob) for glob in globs)


def _is_matched_by(names: Sequence[str], glob: str) -> bool:
    patterns = glob.strip("/").split("/")
    starts = range(1 if glob.startswith("/") else max(len(names) - len(patterns) + 1, 0))
    return any(
        len(names) - start >= len(patterns)
        and all(fnmatchcase(name, pattern) for name, pattern in zip(names[start:], patterns, strict=False))
        for start in starts
    )


def _select_litter(root: str | os.PathLike[str], paths: Sequence[str], globs: Sequence[str]) -> set[str]:
    """Return the untracked paths that match ``globs``; a directory only if nothing in it is tracked."""
    matched = {path for path in paths if is_matched(path, globs)}
    if not matched:
        return set()
    try:
        tracked = _list_tracked(os.path.realpath(root), globs)
    except (GitError, OSError) as error:
        warnings.warn(
            f"files that an agent left in {os.fspath(root)} count as changes, because git cannot be asked whether it "
            f"tracks them: {error}",
            ForkwiseWarning,
            stacklevel=3,
        )
        return set()
    above = {path[: i + 1] for path in tracked for i, character in enumerate(path) if character == "/"}
    return matched - tracked - above


def _list_tracked(root: str, globs: Sequence[str]) -> set[str]:
    """Return the tracked files of a workspace that match ``globs``."""
    from forkwise.git.repository import find_repository  # noqa: PLC0415 - loaded on use

    repository = find_repository(root)
    if repository is None:
        return set()
    starts = [glob.strip("/") if glob.startswith("/") else f"**/{glob.strip('/')}" for glob in globs]
    patterns = [f":(glob){start}{end}" for start in starts for end in ("", "/**")]
    done = repository.run("ls-files", "-z", "--cached", "--", *patterns, directory=root)
    if done.returncode:
        raise GitError(f"git ls-files failed: {os.fsdecode(done.stderr).strip()[:200]}")
    return set(os.fsdecode(done.stdout).split("\0")[:-1])


class _Answers:
    """Git's answers about paths of a workspace, cached."""

    def __init__(self, repository: Repository, root: str) -> None:
        self._repository = repository
        self._root = root
        self._known: dict[str, bool] = {}

    def select(self, paths: Sequence[str]) -> set[str]:
        """Return the ignored ones among ``paths``; git is asked only about paths without a cached answer."""
        if new := [path for path in paths if path not in self._known]:
            ignored = _ask_git(self._repository, self._root, new)
            self._known.update((path, path in ignored) for path in new)
        return {path for path in paths if self._known[path]}


_remembered: ContextVar[dict[str, _Answers | None] | None] = ContextVar("forkwise_ignore_answers", default=None)


@contextmanager
def remember_answers() -> Iterator[None]:
    """Ask git only once about each path while the block runs, also in the threads and tasks that it starts.

    The rules and the index are then those of the first question. A nested block shares the answers of the outer one.
    """
    if _remembered.get() is not None:
        yield
        return
    token = _remembered.set({})
    try:
        yield
    finally:
        _remembered.reset(token)


def _find_answers(root: str) -> _Answers | None:
    """Return the cached answers for a workspace; None if it is not in a repository."""
    from forkwise.git.repository import find_repository  # noqa: PLC0415 - loaded on use

    remembered = _remembered.get()
    if remembered is not None and root in remembered:
        return remembered[root]
    repository = find_repository(root)
    found = None if repository is None else _Answers(repository, root)
    if remembered is not None:
        remembered[root] = found
    return found


def _ask_git(repository: Repository, root: str, paths: Sequence[str]) -> set[str]:
    tops = {path: _find_askable(root, path) for path in paths}
    # Ask about the rules alone first: matching each path against the index is the slow part.
    asked = list(dict.fromkeys(tops.values()))
    ignored = _run(repository, root, asked, "--no-index")
    if ignored:
        ignored = _run(repository, root, [path for path in asked if path in ignored])
    return {path for path in paths if tops[path] in ignored}


def _find_askable(root: str, path: str) -> str:
    """Return the path, or the symlink or nested repository above it: git refuses paths beyond one of these."""
    names = path.rstrip("/").split("/")
    here = root
    for index, name in enumerate(names[:-1]):
        here = f"{here}/{name}"
        try:
            if not stat.S_ISDIR(os.lstat(here).st_mode) or os.path.lexists(f"{here}/.git"):
                return "/".join(names[: index + 1])
        except OSError:
            break  # the workspace has no such directory
    return path


def _run(repository: Repository, root: str, paths: Sequence[str], *options: str) -> set[str]:
    """Ask git which paths are ignored. Git rejects a whole list for one bad path: then ask about parts of it."""
    found: set[str] = set()
    pending = [list(paths)]
    splits = 0
    while pending:
        part = pending.pop()
        # Without the dot, git would take a name that starts with a colon for a pattern.
        content = b"".join(b"./" + os.fsencode(path) + b"\0" for path in part)
        done = repository.run(*_QUESTION, *options, directory=root, stdin=content)
        if done.returncode in (0, 1):
            found |= _parse_answers(done.stdout)
        elif len(part) > 1 and splits < _MAX_SPLITS:
            splits += 1
            pending += [part[: len(part) // 2], part[len(part) // 2 :]]
        elif len(part) > 1:
            raise GitError(f"git check-ignore failed: {os.fsdecode(done.stderr).strip()[:200]}")
    return found


def _parse_answers(output: bytes) -> set[str]:
    fields = os.fsdecode(output).split("\0")[:-1]
    found = set()
    for pattern, path in zip(fields[2::4], fields[3::4], strict=True):
        if pattern.startswith("!"):
            continue
        # With a trailing slash, git matches "d/" against "d/*", which does not ignore the directory itself.
        last = pattern.rstrip("/").rpartition("/")[2]
        if path.endswith("/") and not last.strip("*"):
            continue
        found.add(path.removeprefix("./"))
    return found
