"""Sessions: the session files of a winner, which are kept when its branch is committed."""

from __future__ import annotations

import errno
import os
import re
import stat
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress

from forkwise.errors import ForkwiseWarning
from forkwise.files.branch import Branch
from forkwise.files.store.overlayfs import is_whiteout
from forkwise.fork.agent_paths.database import take_database
from forkwise.fork.agent_paths.logins import take_first_login, take_logins
from forkwise.fork.agent_paths.paths import load_recorded, relative_to
from forkwise.fork.agent_paths.replacement import (
    BLOCK,
    Replacement,
    SkippedError,
    create_directory,
    make_directories,
    open_own,
    open_regular,
)
from forkwise.linux.trees import closing_fd, join, open_directory, open_root, stat_entry
from forkwise.sandbox.path_view import PathView, matches, set_path_views_aside
from forkwise.text.phrases import join_first

__all__ = ["conclude_agent_paths"]

_LARGEST_SESSION = 256 << 20
_MOST_SESSION_BYTES = 1 << 30
_MOST_SESSIONS = 1000
_MOST_ENTRIES = 50_000
_DEEPEST = 32
_MOST_REASONS = 5


@contextmanager
def conclude_agent_paths(branch: Branch) -> Iterator[None]:
    """Keep the session files of a winner, whose branch the block commits, and drop its views.

    The views of an inner winner become part of the attempt around it. If the block raises, the branch keeps them.
    """
    take_logins(branch)
    aside = set_path_views_aside(branch)
    if aside is None:
        yield
        return
    try:
        yield
    except BaseException:
        aside.restore()
        raise
    if isinstance(branch.parent, Branch):
        aside.add_to(branch.parent)
        return
    for view, paths in load_recorded(aside.path):
        with nullcontext() if view.kind == "file" else _existing(view.path):
            _SessionCopy(view, paths.sessions).run()
            for database in paths.databases:
                take_database(view, database, paths.before.get(database))
            for login in paths.logins:
                take_first_login(view, login, paths.before.get(login.file))
    aside.discard()


@contextmanager
def _existing(path: str) -> Iterator[None]:
    """Create a directory for the block; afterwards remove the directories that are new and still empty."""
    new: list[str] = []
    with suppress(OSError):
        new = create_directory(path)
    try:
        yield
    finally:
        with suppress(OSError):
            for directory in new:
                os.rmdir(directory)


class _SessionCopy:
    """Copies the session files of one view to the directory that the view shows."""

    def __init__(self, view: PathView, patterns: Sequence[str]) -> None:
        self.view = view
        self.patterns = [p for pattern in patterns if (p := relative_to(pattern, view.given))]
        self.copied = 0
        self.bytes_left = _MOST_SESSION_BYTES
        self.entries = 0
        self.reasons: list[str] = []

    def run(self) -> None:
        if self.view.kind == "file" or not self.patterns:
            return
        try:
            with closing_fd(open_root(self.view.content)) as source, closing_fd(open_root(self.view.path)) as target:
                for start in sorted({_fixed_part(pattern) for pattern in self.patterns}):
                    self._copy_below(source, target, start)
        except SkippedError as error:
            self.reasons.append(str(error))
        except OSError as error:
            self.reasons.append(f"{error.filename or self.view.given}: {error.strerror}")
        if self.reasons:
            reasons = join_first(self.reasons, _MOST_REASONS, "; ")
            message = f"sessions of the winner in {self.view.given} were not kept: {reasons}"
            warnings.warn(message, ForkwiseWarning, stacklevel=3)

    def _copy_below(self, source: int, target: int, start: str) -> None:
        pending = [start]
        while pending:
            directory = pending.pop()
            try:
                with closing_fd(open_directory(source, directory)) as fd, os.scandir(fd) as entries:
                    found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in self._count(entries)]
            except OSError as error:
                if error.errno != errno.ENOENT:
                    self.reasons.append(f"{directory!a}: {error.strerror}")
                continue
            for name, status in sorted(found, key=lambda pair: pair[0]):
                path = join(directory, name)
                if stat.S_ISDIR(status.st_mode):
                    if path.count("/") < _DEEPEST:
                        pending.append(path)
                elif any(matches(path, pattern) for pattern in self.patterns) and not is_whiteout(status):
                    self._try_copy(source, target, path)

    def _count(self, entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        for entry in entries:
            self.entries += 1
            if self.entries > _MOST_ENTRIES:
                raise SkippedError(f"it has more than {_MOST_ENTRIES} files there")
            yield entry

    def _try_copy(self, source: int, target: int, path: str) -> None:
        if self.copied >= _MOST_SESSIONS:
            raise SkippedError(f"they are more than {_MOST_SESSIONS} files")
        try:
            if not path.isprintable():
                raise SkippedError("its name has control characters")
            self.bytes_left -= _copy_session(source, target, path, min(_LARGEST_SESSION, self.bytes_left))
            self.copied += 1
        except SkippedError as error:
            self.reasons.append(f"{path!a}: {error}")
        except OSError as error:
            self.reasons.append(f"{path!a}: {error.strerror}")


def _fixed_part(pattern: str) -> str:
    """Return the directory in which all matches of a pattern are.

    >>> _fixed_part("projects/**/*.jsonl"), _fixed_part("*.log")
    ('projects', '')
    """
    fixed: list[str] = []
    for part in pattern.split("/")[:-1]:
        if re.search(r"[*?\[]", part):
            break
        fixed.append(part)
    return "/".join(fixed)


def _copy_session(source: int, target: int, path: str, largest: int) -> int:
    """Copy a session file that is new, or that continues the user's. Return its size; 0 if it is the same."""
    directory, _, name = path.rpartition("/")
    with (
        closing_fd(open_regular(source, path, largest)) as fd,
        closing_fd(make_directories(target, directory)) as parent,
    ):
        before = stat_entry(parent, name)
        if before is not None and not _is_continued(parent, name, before, fd):
            return 0
        size = os.fstat(fd).st_size
        with Replacement(parent, name, before) as new:
            new.copy(fd, size)
            new.publish()
    return size


def _is_continued(parent: int, name: str, before: os.stat_result, fd: int) -> bool:
    """Return whether an attempt's file is longer than the user's and begins with it; False if both are the same."""
    if not stat.S_ISREG(before.st_mode):
        raise SkippedError("what has that name now is not a regular file")
    after = os.fstat(fd)
    if (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
        return False
    if after.st_size < before.st_size:
        raise SkippedError("it is shorter than the session was")
    with closing_fd(open_own(parent, name)) as own:
        offset = 0
        while offset < before.st_size:
            wanted = min(BLOCK, before.st_size - offset)
            block = os.pread(own, wanted, offset)
            if not block or block != os.pread(fd, len(block), offset):
                raise SkippedError("it does not begin with what the session was")
            offset += len(block)
    return after.st_size > before.st_size
