"""Who in this process holds descriptors that lead to sandboxes: the forkserver's socket, pipes, answers.

A function's process is a fork, and must have none of them: with the socket it could have anything started outside.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Protocol

__all__ = ["Holder", "hold", "let_go"]


class Holder(Protocol):
    """Something with descriptors."""

    def descriptors(self) -> list[int]:
        """Those it holds now; numbers below zero are none."""
        ...


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()


def hold(holder: Holder) -> None:
    """Note that its descriptors are not for functions' processes."""
    _holders.add(holder)


def let_go(*, but: int) -> None:
    """In a function's process: close all of them but one."""
    for holder in list(_holders):
        for fd in holder.descriptors():
            if fd >= 0 and fd != but:
                with suppress(OSError):
                    os.close(fd)
