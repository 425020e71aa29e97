"""Standing: the program's working directory, which is the whole process's and which a candidate in a thread may change.

One that goes into its branch, and is then dropped or committed, would leave the program in a directory that is gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["standing"]


@contextmanager
def standing(state: str) -> Iterator[None]:
    """Have the program stand where it stood, if it would else stand in a branch beneath ``state`` or nowhere."""
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield
    finally:
        if _is_lost(state):
            with suppress(OSError):  # where it stood is gone, too
                os.fchdir(here)
        os.close(here)


def _is_lost(state: str) -> bool:
    try:
        return f"{os.getcwd()}/".startswith(f"{state}/branches/")
    except FileNotFoundError:
        return True
