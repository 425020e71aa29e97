"""A program that creates a snapshot or collects garbage, and kills itself with a chosen change of the store.

``python -m tests.snapshot.kill_at_call create|collect STORE WORKSPACE STATE NUMBER``: it dies with the change of that
number, before it or after it, and says ``survived`` if there are fewer changes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from obstore.store import LocalStore

from forkwise import ObjectStore, Snapshot, Workspace, collect_garbage


class _Killed:
    """A directory whose user is killed with a change; an odd number kills before it, an even one after it."""

    def __init__(self, directory: str, number: int) -> None:
        self._inner = LocalStore(directory)
        self._left = number
        self._lock = threading.Lock()

    def put(self, path: str, file: bytes, *, mode: Any = None) -> Any:
        return self._change(lambda: self._inner.put(path, file, mode=mode or "overwrite"))

    def delete(self, paths: Any) -> Any:
        return self._change(lambda: self._inner.delete(paths))

    def _change(self, action: Any) -> Any:
        with self._lock:
            self._left -= 2
            if self._left == -1:
                os.kill(os.getpid(), signal.SIGKILL)
            done = action()
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def main() -> None:
    action, directory, workspace, state, number = sys.argv[1:]
    store = ObjectStore(_Killed(directory, int(number)))
    if action == "create":
        Snapshot.create(Workspace(workspace, state=state), store)
    else:
        collect_garbage(store)
    print("survived")


if __name__ == "__main__":
    main()
