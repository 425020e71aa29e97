"""Exchange: a directory beside a branch through which a command in it and forkwise hand each other files.

It lies in the branch's home, so it is no part of what is committed, and goes when the branch goes. What a command left
there is not to be trusted: it is opened without following links, and read no further than a limit.
"""

from __future__ import annotations

import os
import stat

from forkwise.files.branch import Branch

__all__ = ["exchange", "read_left"]


def exchange(branch: Branch) -> str:
    """The directory, made if it is not there."""
    path = f"{branch.home}/exchange"
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def read_left(path: str, most: int) -> bytes | None:
    """What a command left in a file; None where that is no plain file, or larger than ``most`` bytes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        with open(fd, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(fd)
    return content if len(content) <= most else None
