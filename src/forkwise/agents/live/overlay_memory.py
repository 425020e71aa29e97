"""MemoryOverlay: a branch of files that are in memory, or wherever their backend keeps them."""

from __future__ import annotations

import errno
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from forkwise.agents.live.backend import Backend, FileInfo
from forkwise.agents.live.merging import FlushReport
from forkwise.agents.live.overlay import BranchOverlay, Standing
from forkwise.agents.live.replaying import content_of, replay
from forkwise.agents.live.state_backend import Dated, above, listed, moment, plain_name
from forkwise.files.addressed import AddressedTree
from forkwise.files.workspace import Workspace
from forkwise.fork.landing import ConflictPolicy

__all__ = ["MemoryOverlay"]


class _Change(NamedTuple):
    """What a path became (None: removed), and when."""

    content: bytes | None
    changed: int
    at: datetime


class MemoryOverlay(BranchOverlay, Dated):
    """An overlay that keeps in memory what was changed."""

    def __init__(
        self, parent: Backend, label: str = "branch", *, conflict_policy: ConflictPolicy = "keep_newer"
    ) -> None:
        super().__init__(parent, label, conflict_policy=conflict_policy)
        self._forked = moment()
        self._layer: dict[str, _Change] = {}
        self._directories: Counter[str] = Counter()  # how many files were written beneath each
        self._base: dict[str, bytes | None] = {}  # what the parent had when a path was first changed

    # Files

    def name_of(self, path: str) -> str:
        """As the parent names it."""
        return self.parent.name_of(path)

    def get(self, name: str) -> bytes:
        """The branch's content, else the parent's."""
        change = self._layer.get(name)
        if change is not None and change.content is not None:
            return change.content
        if not name or self._directories[name]:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if change is not None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        try:
            return self.parent.get(name)
        except IsADirectoryError:
            self.names(name)  # which raises where all that was in it is gone
            raise

    def put(self, name: str, content: bytes) -> None:
        """Write a file here."""
        with self.lock:
            try:
                self.get(name)
            except FileNotFoundError:
                if any(content_of(self, directory) is not None for directory in above(name)):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from None
            self._set_here(name, content)

    def remove(self, name: str) -> None:
        """Hide a file, or all beneath a directory."""
        with self.lock:
            try:
                found = [info["path"] for info in self.walk(name)]
            except NotADirectoryError:
                found = [name]
            for path in found:
                self._set_here(path, None)

    def _set_here(self, name: str, content: bytes | None) -> None:
        before = self._layer.get(name)
        is_there, was_there = content is not None, before is not None and before.content is not None
        if is_there and not was_there:
            self._directories.update(above(name))
        elif was_there and not is_there:
            self._directories.subtract(above(name))
        if name not in self._base:
            self._base[name] = content_of(self.parent, name)
        self._layer[name] = _Change(content, moment(), datetime.now(UTC))

    @property
    def layer(self) -> dict[str, bytes | None]:
        """What was written here, and removed (None), as a copy."""
        return {path: change.content for path, change in dict(self._layer).items()}

    def restore(self, layer: Mapping[str, bytes | None]) -> None:
        """Have what was changed here be this, and no more."""
        with self.lock:
            for path in self._layer.keys() - layer.keys():
                if self._layer[path].content is not None:
                    self._directories.subtract(above(path))
                del self._layer[path], self._base[path]
            for path, content in layer.items():
                if path not in self._layer or self._layer[path].content != content:
                    self._set_here(path, content)

    def names(self, name: str = "") -> Iterator[FileInfo]:
        """The parent's and the branch's together."""
        return listed(((info["path"], info["size"] or 0) for info in self._all()), name)

    def walk(self, name: str = "") -> Iterator[FileInfo]:
        """All files beneath a directory."""
        self.names(name)  # which raises where there is no such directory
        return iter([info for info in self._all() if not name or info["path"].startswith(f"{name}/")])

    def _all(self) -> list[FileInfo]:
        found = {info["path"]: info for info in self.parent.walk()}
        for path, change in dict(self._layer).items():
            if change.content is None:
                found.pop(path, None)
            else:
                found[path] = FileInfo(name=os.path.basename(path), path=path, is_dir=False, size=len(change.content))
        return [found[path] for path in sorted(found)]

    def changed_at(self, name: str) -> int:
        """When a file last changed, here or in the parent."""
        here = self._layer[name].changed if name in self._layer else 0
        return max(here, self.parent.changed_at(name) if isinstance(self.parent, Dated) else 0)

    # What it changed

    def standing(self) -> Mapping[str, Standing]:
        """The paths whose content is another than the parent's was."""
        found = {}
        for path, change in sorted(dict(self._layer).items()):
            if change.content != self._base[path]:
                found[path] = Standing("delete" if change.content is None else "write", change.at, change.changed)
        return found

    def mark(self, name: str) -> object:
        """When a path was changed here."""
        return self._layer[name].changed if name in self._layer else None

    def old(self, path: str) -> bytes | None:
        """What the parent had when the path was first changed."""
        name = path if path in self._base else plain_name(path)
        return self._base[name] if name in self._base else content_of(self.parent, name)

    def new(self, path: str) -> bytes | None:
        """What the branch has."""
        change = self._layer.get(path)
        return content_of(self, plain_name(path)) if change is None else change.content

    @contextmanager
    def snapshot(self, parent_root: str | Path, *, include_venv: bool = False) -> Iterator[Path]:
        """A branch of a directory with this branch's files in it, gone when the block ends."""
        branch = Workspace(parent_root).branch(f"snapshot-{secrets.token_hex(4)}", None, None)
        try:
            tree = AddressedTree(os.fspath(branch.path), os.fspath(branch.workspace.path))
            for path, change in self._layer.items():
                if change.content is not None:
                    tree.write(path, change.content)
                elif tree.exists(path):
                    tree.remove(path)
            yield branch.path
        finally:
            branch.abort()

    # What becomes of it

    def flush_to(self, parent: Backend, pre_flush_snapshot: Mapping[str, bytes | None] | None = None) -> FlushReport:
        """Make what was changed here the parent's, all of it or nothing."""
        known = pre_flush_snapshot or {}

        def is_diverged(path: str) -> bool:
            if path not in known and parent is self.parent and isinstance(parent, Dated):
                return parent.changed_at(path) > self._forked
            return content_of(parent, path) != known.get(path, self._base[path])

        contents = {path: self._layer[path].content for path in self.standing()}
        return replay(contents, self.changes(), parent, is_diverged, self.conflict_policy)
