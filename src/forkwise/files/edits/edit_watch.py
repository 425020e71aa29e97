"""Edits reported by the kernel: a thread that says which files of a workspace other programs change, as they do.

Only root may watch a filesystem. The cost is bounded, whatever happens on the filesystem: the thread reads at intervals
and uses a small share of a processor, and the kernel drops events that do not fit into its queue meanwhile.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from forkwise.errors import BranchingError
from forkwise.files.edits.edit_comparison import is_of_git, list_committed
from forkwise.files.edits.fanotify import FileWatch
from forkwise.linux import fds

if TYPE_CHECKING:
    from forkwise.files.workspace import Workspace

__all__ = ["EditWatch"]

_INTERVAL_S = 0.25
_MOST_CPU_S = 0.05  # at a time
_SHARE = 0.05  # of a processor
_MOST_PATHS = 1000


class EditWatch:
    """Calls ``report`` in a thread with paths of the workspace that another process has changed, until ``close``.

    What this process changes does not count, nor what commits after ``generation`` did. Each path is reported once, and
    no more than a thousand. Where the kernel reports nothing to this user, ``is_active`` is False.
    """

    def __init__(self, workspace: Workspace, generation: int, report: Callable[[Sequence[str]], None]) -> None:
        self._workspace = workspace
        self._generation = generation
        self._report = report
        self._known: set[str] = set()
        self._pending: dict[str, None] = {}
        self._watch: FileWatch | None = None
        self._thread: threading.Thread | None = None
        self._has_lost = False
        if os.geteuid() != 0:
            return
        with suppress(OSError, AttributeError):  # AttributeError: the C library has no such call
            self._watch = FileWatch(workspace.target)
        if self._watch is not None:
            self._wake_fd, self._stop_fd = fds.pipe()
            self._thread = threading.Thread(target=self._run, name="forkwise-edits", daemon=True)
            self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether changes are reported."""
        return self._thread is not None

    @property
    def is_complete(self) -> bool:
        """Whether changes are reported, and the kernel has dropped none so far."""
        return self.is_active and not self._has_lost

    def close(self) -> None:
        """Report what is left, and end the thread."""
        if self._thread is None or self._watch is None:
            return
        os.write(self._stop_fd, b"1")
        self._thread.join()
        self._watch.close()
        fds.close(self._wake_fd, self._stop_fd)
        self._thread = None

    def _run(self) -> None:
        assert self._watch is not None
        poll = select.poll()
        poll.register(self._watch, select.POLLIN)
        poll.register(self._wake_fd, select.POLLIN)
        pause = select.poll()
        pause.register(self._wake_fd, select.POLLIN)
        is_over = False
        pause_s = _INTERVAL_S
        while not is_over:
            ready = dict(poll.poll(_INTERVAL_S * 1000 if self._pending else None))
            # More events of the same edit follow at once, so wait before reading.
            is_over = self._wake_fd in ready or bool(pause.poll(pause_s * 1000))
            before = time.thread_time()
            self._read()
            pause_s = max(_INTERVAL_S, (time.thread_time() - before) / _SHARE)

    def _read(self) -> None:
        assert self._watch is not None
        found = self._pending
        until = time.thread_time() + _MOST_CPU_S
        while time.thread_time() < until:
            paths, is_incomplete = self._watch.read()
            self._has_lost = self._has_lost or is_incomplete
            for path in paths:
                if path and len(found) < _MOST_PATHS and not is_of_git(path):
                    found[path] = None
            if not paths and not is_incomplete and not self._is_readable():
                break
        with suppress(OSError, BranchingError):  # the workspace is being removed, or its history cannot be read now
            if not found or self._workspace.state_dir.settled_head() is None:
                return  # a commit is in progress, and may itself be what changes them
            committed = list_committed(self._workspace, self._generation)
            new = [path for path in found if path not in committed and path not in self._known]
            new = new[: _MOST_PATHS - len(self._known)]
            self._pending = {}
            self._known.update(new)
            if new:
                self._report(new)

    def _is_readable(self) -> bool:
        assert self._watch is not None
        poll = select.poll()
        poll.register(self._watch, select.POLLIN)
        return bool(poll.poll(0))
