"""What the scratch branch of a test run gets: the base's files that grade, and a channel for the runner's evidence."""

from __future__ import annotations

import os
import select
import stat
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from forkwise.files.branch import Branch
from forkwise.files.file_tree import FileTree
from forkwise.testing.seal import list_test_names
from forkwise.testing.tables import put_back

if TYPE_CHECKING:
    from forkwise.files.branch import Parent
    from forkwise.testing.evidence import Injection
    from forkwise.testing.seal import Seal, SealRole

__all__ = ["EvidencePipe", "Graders", "find_altered", "lay_files", "lay_held_out", "open_tree", "read_laid"]


@dataclass(frozen=True, slots=True)
class Graders:
    """The paths that grade and that an attempt changed, with their roles; ``added`` did not exist before."""

    roles: dict[str, SealRole]
    added: tuple[str, ...]

    @property
    def touched(self) -> tuple[str, ...]:
        """The paths that say something about the attempt."""
        return tuple(path for path, role in self.roles.items() if role != "generated")

    @classmethod
    def find(cls, branch: Branch, base: Parent, seal: Seal) -> Graders:
        """Find them among the changes of a branch, and of the branches between it and the base."""
        before, now = open_tree(base), open_tree(branch)
        roles = seal.select(_changed_paths(branch, base))
        for path, role in list(roles.items()):
            if role in ("module", "script") and (role == "module") == (before.entry(path) is not None):
                del roles[path]  # the project's own module of that name, or a script that only the attempt has
            elif role == "tables" and _is_same(path, now, before):
                del roles[path]  # the changed part of the file does not grade
        return cls(roles, tuple(path for path in roles if before.entry(path) is None))

    def find_own_tests(self, branch: Branch, base: Parent) -> list[str]:
        """Return the files with tests that the attempt added, as new files or inside those that the base has."""
        before, now = open_tree(base), open_tree(branch)
        return [
            path
            for path, role in self.roles.items()
            if role == "whole"
            and (
                path in self.added
                or list_test_names(path, now.content(path)) - list_test_names(path, before.content(path))
            )
        ]

    def lay(self, branch: Branch, base: Parent, *, own: Collection[str] = ()) -> None:
        """Put the base's versions into a scratch branch; what was added is removed.

        With ``own``, the attempt keeps those of its test files, and all that it added.
        """
        before, now = open_tree(base), open_tree(branch)
        done: set[str] = set()
        for path, role in sorted(self.roles.items()):
            if own and (path in self.added or path in own):
                continue
            if not done.isdisjoint(map(str, PurePosixPath(path).parents)):
                continue  # put back with a directory above it
            if role == "tables":
                merged = put_back(path, now.content(path), before.content(path))
                if merged is not None:
                    now.write(path, merged)
                    continue
            now.copy_from(before, path)
            done.add(path)


def _is_same(path: str, now: FileTree, before: FileTree) -> bool:
    """Return whether the grading tables of a file are those of the base; sources of Rust may also be removed."""
    content = now.content(path)
    if content is None:
        return path.endswith(".rs")
    return put_back(path, content, before.content(path)) == content


def find_altered(
    scratch: Branch, files: Parent, base: Parent, seal: Seal, laid: Mapping[str, bytes | None]
) -> frozenset[str]:
    """Return the paths that grade and that a run on a scratch branch changed, although they existed before.

    ``laid`` is the content of those that were written into the scratch branch before the run.
    """
    now, tested, before = open_tree(scratch), open_tree(files), open_tree(base)
    return frozenset(
        path
        for path, role in seal.select(change.path for change in scratch.delta()).items()
        if role != "generated"
        and before.content(path) is not None
        and now.content(path) != (laid[path] if path in laid else tested.content(path))
    )


def read_laid(scratch: Branch, seal: Seal) -> dict[str, bytes | None]:
    """Return the content of the paths that grade and that were written into a scratch branch so far."""
    now = open_tree(scratch)
    return {path: now.content(path) for path in seal.select(change.path for change in scratch.delta())}


def lay_files(branch: Branch, contents: Mapping[str, bytes]) -> None:
    """Write files into a scratch branch, replacing whatever is there."""
    tree = open_tree(branch)
    for path, content in contents.items():
        entry = tree.entry(path)
        if entry is not None and not stat.S_ISREG(entry.st_mode):
            tree.remove(path)
        tree.write(path, content)


def lay_held_out(branch: Branch, directory: str) -> None:
    """Lay all files of a held-out directory over a scratch branch."""
    held_out, now = FileTree(directory, os.fspath(branch.workspace.path)), open_tree(branch)
    for path, _ in held_out.list_entries(""):
        _overlay(held_out, now, path)


def _overlay(source: FileTree, target: FileTree, path: str) -> None:
    entry = source.entry(path)
    if entry is None or not stat.S_ISDIR(entry.st_mode):
        target.copy_from(source, path)
        return
    found = target.entry(path)
    if found is None or not stat.S_ISDIR(found.st_mode):
        target.copy_from(source, path)
        return
    for below, _ in source.list_entries(path):
        _overlay(source, target, below)


def open_tree(parent: Parent) -> FileTree:
    """Return the files of a workspace or branch."""
    directory = parent.path if isinstance(parent, Branch) else parent.workspace.path
    return FileTree(os.fspath(directory), os.fspath(parent.workspace.path))


def _changed_paths(branch: Branch, base: Parent) -> set[str]:
    paths: set[str] = set()
    current: Parent = branch
    while isinstance(current, Branch) and current is not base:
        paths |= {change.path for change in current.delta(ignore=())}
        current = current.parent
    return paths


_MAX_BYTES = 256 << 20
_BLOCK = 1 << 16


class EvidencePipe:
    """A FIFO that is read while the tests run, as a context manager. What was written to it cannot be changed later.

    The programs of ``injection`` are written into its directory.
    """

    def __init__(self, injection: Injection) -> None:
        self._injection = injection
        self._pieces: list[bytes] = []
        self._size = 0
        self._stop_fd = self._stop_writer_fd = self._fd = -1
        self._thread = threading.Thread(target=self._read, name="forkwise-evidence", daemon=True)

    def __enter__(self) -> EvidencePipe:
        os.makedirs(self._injection.directory, mode=0o755, exist_ok=True)
        for name, content in self._injection.files().items():
            with open(f"{self._injection.directory}/{name}", "w", encoding="utf-8") as file:
                file.write(content)
        os.mkfifo(self._injection.fifo, 0o600)
        self._fd = os.open(self._injection.fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # never at its end
        self._stop_fd, self._stop_writer_fd = os.pipe2(os.O_CLOEXEC)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._stop_writer_fd)
        self._thread.join()
        os.close(self._stop_fd)
        os.close(self._fd)

    @property
    def content(self) -> bytes | None:
        """Everything that arrived; None if it is too much to be genuine. Read it after the block."""
        return b"".join(self._pieces) if self._size <= _MAX_BYTES else None

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._stop_fd, 0)  # its end is always reported
        while True:
            is_stopped = any(fd == self._stop_fd for fd, _ in poll.poll())
            while piece := self._read_piece():
                self._size += len(piece)
                if self._size <= _MAX_BYTES:
                    self._pieces.append(piece)
                else:
                    self._pieces.clear()
            if is_stopped:
                return

    def _read_piece(self) -> bytes:
        try:
            return os.read(self._fd, _BLOCK)
        except BlockingIOError:
            return b""
