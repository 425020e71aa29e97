"""Making sure that something is on the disk. When that is needed is the journal's docstring; here is only how."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence

from forkwise.files.beneath import NOT_THERE, open_directory, open_root
from forkwise.files.journal import Meta, Run, Slots
from forkwise.files.syscalls import syncfs

__all__ = ["sync_content", "sync_directories", "sync_filesystem", "sync_steps"]

_SINGLY = 16  # so many files or directories are synced one by one; more, and their filesystem is synced at once


def sync_directories(paths: Iterable[str]) -> None:
    """Sync the names in some directories."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_filesystem(path: str) -> None:
    """Sync all of the filesystem that holds a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syncfs(fd)
    finally:
        os.close(fd)


def sync_content(runs: Sequence[Run], layer: str | None, side: str) -> None:
    """Sync everything that steps will bring into their target, with the names under which it lies in its slots."""
    entering = [(r.directory, s) for r in runs for s in r.steps if s.code in ("put", "swap")]
    if len(entering) <= _SINGLY:
        root = open_root(layer or side)
        try:
            if all(_sync_slot(root, side, d, s.slot, s.name) for d, s in entering):
                return
        finally:
            os.close(root)
    for path in {layer or side, side}:
        sync_filesystem(path)


def sync_steps(runs: Sequence[Run], metas: Sequence[Meta], slots: Slots) -> None:
    """Sync every directory that steps touched, once they and the directories' metadata are done."""
    layers = {r.directory for r in runs for s in r.steps if not s.slot and s.code not in ("rmdir", "mkdir")}
    targets = {m.path for m in metas} | {r.directory for r in runs}
    touched = [(slots.side, ""), *((slots.layer, d) for d in layers), *((slots.target, d) for d in targets)]
    fd = open_directory(slots.target, "")
    try:
        if len(touched) > _SINGLY or not all(_sync_directory(root, path) for root, path in touched):
            syncfs(fd)
    finally:
        os.close(fd)


def _sync_directory(root: int, path: str) -> bool:
    """Sync one directory, if it is there; False where this user may not read it."""
    try:
        fd = open_directory(root, path)
    except OSError as error:
        if error.errno == errno.EACCES:
            return False
        if error.errno not in NOT_THERE:
            raise
        return True
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return True


def _sync_slot(root: int, side: str, directory: str, slot: str, name: str) -> bool:
    """Sync one slot; False where it holds a directory, which may hold anything."""
    fd = open_directory(root, directory) if not slot else os.open(side, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        held = slot or name
        mode = os.stat(held, dir_fd=fd, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            return False
        if stat.S_ISREG(mode):
            file = os.open(held, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
            try:
                os.fsync(file)
            finally:
                os.close(file)
        os.fsync(fd)
    finally:
        os.close(fd)
    return True
