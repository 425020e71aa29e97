"""The raw floor: only the system calls that a branch, a commit or an abort cannot do without."""

from __future__ import annotations

import os
from collections.abc import Iterable

from forkwise.linux.syscalls import MNT_DETACH, mount, umount2

__all__ = ["drop", "make", "read", "replace", "write_durably"]

_OPTIONS = "userxattr,volatile,index=off"  # the options that forkwise mounts with


def make(directory: str, lower: str) -> str:
    """Create the directories of a branch in ``directory``, and mount it. Return the path of the mount."""
    upper, work, view = f"{directory}/upper", f"{directory}/work", f"{directory}/view"
    os.mkdir(upper)
    os.mkdir(work)
    os.mkdir(view)
    mount("bench", view, "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work},{_OPTIONS}")
    return view


def read(path: str) -> None:
    """Read the beginning of a file."""
    fd = os.open(path, os.O_RDONLY)
    os.read(fd, 65536)
    os.close(fd)


def replace(moves: Iterable[tuple[str, str, str]]) -> None:
    """Replace files: for each (new, target, undo), link ``target`` to ``undo``, then rename ``new`` to ``target``."""
    for new, target, undo in moves:
        os.link(target, undo)
        os.rename(new, target)


def write_durably(moves: Iterable[tuple[str, str]], content: bytes) -> None:
    """Replace files durably: for each (new, target), write and sync ``new``, rename it, sync the directory."""
    for new, target in moves:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.write(fd, content)
        os.fsync(fd)
        os.close(fd)
        os.rename(new, target)
        fd = os.open(os.path.dirname(target), os.O_RDONLY | os.O_CLOEXEC)
        os.fsync(fd)
        os.close(fd)


def drop(directory: str, trash: str) -> None:
    """Unmount a branch, and rename its directory to ``trash``."""
    umount2(f"{directory}/view", MNT_DETACH)
    os.rename(directory, trash)
