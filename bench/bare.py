"""The raw floor: the system calls without which no branch, commit or abort can be, in a loop and nothing around it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from forkwise.linux.syscalls import MNT_DETACH, mount, umount2

__all__ = ["drop", "make", "read", "replace"]

_OPTIONS = "userxattr,volatile,index=off"  # the ones forkwise mounts with


def make(home: str, lower: str) -> str:
    """Three directories and a mount; ``home`` exists already. Gives where the mount is."""
    upper, work, view = f"{home}/upper", f"{home}/work", f"{home}/view"
    os.mkdir(upper)
    os.mkdir(work)
    os.mkdir(view)
    mount("bench", view, "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work},{_OPTIONS}")
    return view


def read(path: str) -> None:
    """Open, read, close."""
    fd = os.open(path, os.O_RDONLY)
    os.read(fd, 65536)
    os.close(fd)


def replace(moves: Iterable[tuple[str, str, str]]) -> None:
    """For each (new, place, undo): keep what stands in the place under another name, put the new file there."""
    for new, place, undo in moves:
        os.link(place, undo)
        os.rename(new, place)


def drop(home: str, gone: str) -> None:
    """Take the mount down and the directories out of sight."""
    umount2(f"{home}/view", MNT_DETACH)
    os.rename(home, gone)
