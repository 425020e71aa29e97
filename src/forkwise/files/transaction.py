"""A commit in the making: its slots filled, its steps carried out or taken back, and its one moment of truth.

The journal knows single steps; here they are bound to a place, whose history grows by one, and to a target directory.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from typing import Literal

from forkwise.errors import CommitError
from forkwise.files.beneath import open_directory, open_root
from forkwise.files.copying import copy_entry
from forkwise.files.durability import SINGLY, sync_content, sync_directories, sync_filesystem
from forkwise.files.journal import Meta, Slots, perform, revert, set_metas
from forkwise.files.marks import mark_opaque, mark_origins
from forkwise.files.plan import Plan
from forkwise.files.record import Record
from forkwise.files.removing import remove_tree
from forkwise.files.state import Lock, Place, same_mount
from forkwise.files.trash import discard

__all__ = ["Transaction", "recover"]

_STAGE = ".forkwise-stage-"


class Transaction:
    """The next commit of a place into its target directory. Made and used under the place's exclusive lock.

    ``side`` is where its side slots lie while the steps run: in the state, or, where that is another filesystem than
    the target's (``stage``), in a directory inside the target, because only there a rename can reach them.
    """

    def __init__(self, place: Place, target: str, *, side: str | None = None) -> None:
        self.place = place
        self.target = target
        self.number = place.head + 1
        self.history = place.history(self.number)
        self.stage: str | None = None
        os.makedirs(f"{self.history}/side", mode=0o700)
        self.side = side or f"{self.history}/side"
        if not same_mount(place.path, target):
            self.stage = f"{_STAGE}{secrets.token_hex(4)}"
            self.side = f"{target}/{self.stage}"
            self.root = Meta.change("", found := os.stat(target), found)
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

    def run(self, record: Record, lock: Lock, layer: str | None) -> None:
        """Carry the record out, or leave everything as it was and raise CommitError."""
        try:
            self._carry_out(record, lock, layer)
        except BaseException as error:
            left = self.roll_back()
            if not isinstance(error, OSError):
                raise
            at = f" at {error.filename!r}" if error.filename else ""
            kept = f" (except what somebody else changed meanwhile: {', '.join(left)})" if left else ""
            raise CommitError(
                f"{record.branch} was not committed, everything is as before{kept}: {error.strerror}{at}",
                branch=record.branch,
                paths=left,
            ) from error
        if record.durable:
            sync_directories([self.place.path])
        if self.stage:
            _remove_stage(self.target, self.stage, _root_meta(record.metas), "after")

    def roll_back(self) -> list[str]:
        """Undo whatever was done so far and forget the commit."""
        return recover(self.place, self.target, self)

    def _carry_out(self, record: Record, lock: Lock, layer: str | None) -> None:
        sync = record.durable
        if self.stage and _root_meta(record.metas) is None:
            record.metas.append(self.root)  # making and removing the stage must not show in the target's own mtime
        if sync:
            sync_content(record.runs, layer, self.side)
        record.save(self.history, sync=sync)
        if sync:
            sync_directories([self.history, f"{self.place.path}/history"])
        sync_singly = sync and len(record.runs) <= SINGLY
        slots = Slots(self.target, layer, self.side)
        try:
            perform(record.runs, record.metas, slots, sync=sync_singly)
        finally:
            slots.close()
        if sync and not sync_singly:
            sync_filesystem(self.target)
        if self.stage:
            self._keep_slots(sync)
        if record.home:
            os.rename(self.place.home(record.home), f"{self.history}/home")
        os.symlink(str(lock.now()), f"{self.history}/done")
        if sync:
            sync_directories([self.history, f"{self.place.path}/branches"])
        self.place.advance(self.number)

    def _keep_slots(self, sync: bool) -> None:
        """Keep what came out of the target with the record, for undo."""
        source, kept = open_root(self.side), open_root(f"{self.history}/side")
        try:
            for name in os.listdir(self.side):
                copy_entry(source, name, kept, name, sync=sync)
        finally:
            os.close(source)
            os.close(kept)


def recover(place: Place, target: str, transaction: Transaction | None = None) -> list[str]:
    """Take back a commit that was begun and not finished. Called under the exclusive lock.

    Gives the paths that somebody else replaced since, which are left as they are.
    """
    number = place.head + 1
    history = place.history(number)
    left: list[str] = []
    if os.path.isdir(history):
        record = Record.load(history)
        if record is not None:
            left = _take_back(place, target, history, record)
            if record.stage:
                _remove_stage(target, record.stage, _root_meta(record.metas), "before")
        elif transaction is not None and transaction.stage:
            _remove_stage(target, transaction.stage, transaction.root, "before")
        discard(place, history)
    elif number > 1 and not same_mount(place.path, target):
        finished = Record.load(place.history(number - 1))
        if finished is not None and finished.stage and os.path.isdir(f"{target}/{finished.stage}"):
            _remove_stage(target, finished.stage, _root_meta(finished.metas), "after")
    return left


def _take_back(place: Place, target: str, history: str, record: Record) -> list[str]:
    layer = None
    if record.home:
        if os.path.isdir(f"{history}/home"):
            os.rename(f"{history}/home", place.home(record.home))
        layer = f"{place.home(record.home)}/layer"
    elif record.layer and os.path.isdir(f"{place.path}/{record.layer}"):  # a whole view's commit went without
        layer = f"{place.path}/{record.layer}"
    side = f"{target}/{record.stage}" if record.stage else f"{place.path}/{record.side}"
    slots = Slots(target, layer, side)
    try:
        left = revert(record.runs, record.metas, slots, sync=record.durable)
    finally:
        slots.close()
    if layer:
        mark_origins(layer, record.origins)
        mark_opaque(layer, record.opaque)
    return left


def _rewrite(side: int, slot: str, content: bytes) -> None:
    with open(os.open(slot, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=side), "wb") as file:
        file.write(content)


def _root_meta(metas: Iterable[Meta]) -> Meta | None:
    """What becomes of the target directory itself."""
    return next((m for m in metas if not m.path), None)


def _remove_stage(target: str, stage: str, meta: Meta | None, side: Literal["before", "after"]) -> None:
    root = open_root(target)
    try:
        remove_tree(root, stage)
        if meta is not None:
            set_metas([meta], root, side)
    finally:
        os.close(root)
