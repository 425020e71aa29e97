"""A commit in the making: its slots filled, its steps carried out or taken back, and its one moment of truth.

The journal knows single steps; here they are bound to a place, whose history grows by one, and to a target directory.
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal

from forkwise.errors import CommitError, ForkwiseWarning
from forkwise.files.store.commit_plan import Plan
from forkwise.files.store.journal import (
    Meta,
    Slots,
    apply_steps,
    revert_steps,
    set_metas,
    sync_content,
    sync_directories,
    sync_steps,
)
from forkwise.files.store.overlayfs import write_marks
from forkwise.files.store.record import Record, is_taken_back, keep_rolled_back, mark_rolled_back
from forkwise.files.store.state import StateDir, same_mount
from forkwise.files.store.trash import discard
from forkwise.linux.trees import copy_entry, open_directory, open_root, remove_tree

__all__ = ["Transaction", "as_commit_error", "recover"]

_STAGE = ".forkwise-stage-"


class Transaction:
    """The next commit of a place into its target directory. Made and used under the place's exclusive lock.

    As a context manager it takes back all it did when the block raises, and makes an OSError a CommitError. ``side`` is
    where its side slots lie while the steps run: in the state, or, where that is another filesystem than the target's
    (``stage``), in a directory inside the target, because only there a rename can reach them. ``room`` is where a
    directory for its record may lie ready.
    """

    def __init__(
        self, place: StateDir, target: str, branch: str, *, side: str | None = None, room: str | None = None
    ) -> None:
        self.place = place
        self.target = target
        self.branch = branch
        self.number = place.head + 1
        self.history = place.history(self.number)
        self.side = side or self.history
        self.room = room
        self.stage: str | None = None

    def __enter__(self) -> Transaction:
        try:
            self.place.begin()
            self._make_history()
            if not same_mount(self.place.path, self.target):
                self._make_stage()
        except OSError as error:
            self.__exit__(OSError, error, None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            return
        left = recover(self.place, self.target)
        if isinstance(error, OSError):
            at_path = f" at {error.filename!r}" if error.filename else ""
            kept = f" (except what somebody else changed meanwhile: {', '.join(left)})" if left else ""
            raise CommitError(
                f"{self.branch} was not committed, everything is as before{kept}: {error.strerror}{at_path}",
                branch=self.branch,
                paths=left,
            ) from error

    def _make_history(self) -> None:
        if self.room is not None:
            try:
                os.rename(self.room, self.history)
            except FileNotFoundError:
                pass  # it was used up by a commit that was taken back, or never made
            else:
                return
        os.makedirs(self.history, mode=0o700)

    def _make_stage(self) -> None:
        self.stage = f"{_STAGE}{secrets.token_hex(4)}"
        self.side = f"{self.target}/{self.stage}"
        self.root = Meta.change("", found := os.stat(self.target), found)
        # Written first: whoever finds it removes the stage, and sets back the time that making and removing it set.
        os.symlink(f"{self.stage}:{found.st_mtime_ns}", f"{self.place.path}/stage")
        os.mkdir(self.side, 0o700)

    def fill(self, plan: Plan, layer: str, merged: dict[str, bytes]) -> None:
        """Copy aside what cannot be moved, and tell the steps under which inode numbers it lies there."""
        if not plan.staged:
            return
        source, side = open_root(layer), open_root(self.side)
        try:
            for slot, entry in plan.staged.items():
                fd = open_directory(source, entry.directory, os.O_PATH)
                try:
                    copy_entry(fd, entry.name, side, slot)
                finally:
                    os.close(fd)
                if entry.path in merged:
                    _rewrite(side, slot, merged[entry.path])
            for run in plan.runs:
                for step in run.steps:
                    if step.slot in plan.staged:
                        step.enters = os.stat(step.slot, dir_fd=side, follow_symlinks=False).st_ino
        finally:
            os.close(source)
            os.close(side)

    def fetch(self, kept: str, slots: Iterable[str]) -> dict[str, int]:
        """For an undo from another filesystem: bring kept content beside the target; gives its inode numbers there."""
        source, side = open_root(kept), open_root(self.side)
        try:
            inodes = {}
            for slot in slots:
                copy_entry(source, slot, side, slot)
                inodes[slot] = os.stat(slot, dir_fd=side, follow_symlinks=False).st_ino
            return inodes
        finally:
            os.close(source)
            os.close(side)

    def run(self, record: Record, layer: str | None, strip: Callable[[], None] | None = None) -> None:
        """Carry the record out. ``strip`` takes off the layer's marks, which a roll back restores."""
        self._carry_out(record, layer, strip)
        try:
            if record.durable:
                sync_directories([f"{self.place.path}/head"])
            if self.stage:
                _remove_stage(self.place, self.target, record, "after")
                self.place.rest()
        except OSError as error:
            # It has happened, and nothing may say otherwise; what is left to do is done by whoever comes next.
            warnings.warn(f"{self.branch} was committed, but then: {error}", ForkwiseWarning, stacklevel=6)

    def _carry_out(self, record: Record, layer: str | None, strip: Callable[[], None] | None) -> None:
        sync = record.durable
        if self.stage and _root_meta(record.metas) is None:
            record.metas.append(self.root)  # making and removing the stage must not show in the target's own mtime
        if sync:
            sync_content(record.runs, layer, self.side)
        record.save(self.history, sync=sync)
        if sync:
            sync_directories([self.history, f"{self.place.path}/history", self.place.path])
        if strip:
            strip()
        slots = Slots(self.target, layer, self.side)
        try:
            apply_steps(record.runs, record.metas, slots)
            if sync:
                sync_steps(record.runs, record.metas, slots)
        finally:
            slots.close()
        if self.stage:
            self._keep_slots(sync)
        if record.home:
            os.rename(self.place.home(record.home), f"{self.history}/home")
        record.finish(self.history)
        if sync:
            sync_directories([self.history, f"{self.place.path}/branches"])
        self.place.advance(self.number, rests=self.stage is None)

    def _keep_slots(self, sync: bool) -> None:
        """Keep what came out of the target with the record, for undo."""
        source, kept = open_root(self.side), open_root(self.history)
        try:
            for name in os.listdir(self.side):
                copy_entry(source, name, kept, name, sync=sync)
            if sync:
                sync_directories([self.history])
        finally:
            os.close(source)
            os.close(kept)


def recover(place: StateDir, target: str) -> list[str]:
    """Take back a commit that was begun and not finished. Called under the exclusive lock.

    Gives the paths that somebody else replaced since, which are left as they are.
    """
    with as_commit_error("a commit that was interrupted could not be taken back yet, the next to come tries again"):
        number = place.head + 1
        history = place.history(number)
        if not os.path.isdir(history):
            _remove_stage(place, target, Record.load(place.history(number - 1)), "after")
            place.rest()
            return []
        record = Record.load(history)
        left = []
        if record and not is_taken_back(history):
            left = _take_back(place, target, history, record)
            mark_rolled_back(history)  # from here on its slots may go
        _remove_stage(place, target, record, "before")
        if record:
            keep_rolled_back(history)
        discard(place, history)
        place.rest()
        return left


@contextmanager
def as_commit_error(what: str) -> Iterator[None]:
    """Let no OSError out that is not a CommitError."""
    try:
        yield
    except OSError as error:
        raise CommitError(f"{what}: {error}") from error


def _take_back(place: StateDir, target: str, history: str, record: Record) -> list[str]:
    if record.home:
        if os.path.isdir(f"{history}/home"):
            os.rename(f"{history}/home", place.home(record.home))
        layer: str | None = f"{place.home(record.home)}/layer"
    else:
        layer = f"{place.path}/{record.layer}"
        if not os.path.isdir(layer):
            layer = None  # of a whole view: its commit went without
    slots = Slots(target, layer, f"{target}/{record.stage}" if record.stage else f"{place.path}/{record.side}")
    try:
        left = revert_steps(record.runs, record.metas, slots)
        if record.durable:
            sync_steps(record.runs, record.metas, slots)
    finally:
        slots.close()
    if layer:
        write_marks(layer, record.marks)
    return left


def _rewrite(side: int, slot: str, content: bytes) -> None:
    with open(os.open(slot, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=side), "wb") as file:
        file.write(content)


def _root_meta(metas: Iterable[Meta]) -> Meta | None:
    """What becomes of the target directory itself."""
    return next((m for m in metas if not m.path), None)


def _remove_stage(place: StateDir, target: str, record: Record | None, side: Literal["before", "after"]) -> None:
    """Remove the stage, if there is one, and give the target the time it then has to have."""
    try:
        stage, _, mtime = os.readlink(f"{place.path}/stage").rpartition(":")
    except FileNotFoundError:
        return
    root = open_root(target)
    try:
        remove_tree(root, stage)
        meta = _root_meta(record.metas) if record and record.stage == stage else None
        if meta is not None:
            set_metas([meta], root, side)
        else:
            os.utime(".", ns=(os.stat(".", dir_fd=root).st_atime_ns, int(mtime)), dir_fd=root)
    finally:
        os.close(root)
    os.unlink(f"{place.path}/stage")
