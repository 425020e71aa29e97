"""Jobs: the work of tool calls in threads. Each has a handle, by which a client finds it if it takes long."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, TextIO, TypeVar

from forkwise.concurrency import post
from forkwise.errors import BranchingError, ForkwiseWarning

__all__ = ["HANDLE_PREFIX", "CallJob", "CallJobs", "ToolError"]

HANDLE_PREFIX = "job-"
"""The prefix of a job's handle."""

_MAX_THREADS = 128
_MAX_WAITING = 2000
_MAX_FINISHED = 200  # jobs whose results are remembered
_MAX_WARNINGS = 20
_CLOSE_S = 10.0

T = TypeVar("T")


class ToolError(BranchingError):
    """A tool call cannot be carried out as requested; the message is for the client."""


class CallJob:
    """One piece of work: its state, its result or error, and how to cancel it.

    ``message`` describes its progress. ``text`` is output that can be read in pages.
    """

    def __init__(self, title: str, work: Callable[[CallJob], dict[str, Any]]) -> None:
        self.id = f"{HANDLE_PREFIX}{secrets.token_hex(4)}"
        self.title = title
        self.started = time.time()
        self.message = ""
        self.text = ""
        self.warnings: list[str] = []
        self.result: dict[str, Any] | None = None
        self.error: BaseException | None = None
        self.is_cancelled = threading.Event()
        self._work = work
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._callbacks: list[Callable[[CallJob], None]] = []
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has a result or an error."""
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; return whether the job is over."""
        return self._done.wait(timeout_s)

    def add_callback(self, callback: Callable[[CallJob], None]) -> None:
        """Call a function when the job is over, or immediately if it already is."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def await_(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in this thread; ``cancel`` cancels it."""

        async def run() -> T:
            task = asyncio.current_task()
            assert task is not None
            with self._lock:
                self._task = (asyncio.get_running_loop(), task)
            if self.is_cancelled.is_set():
                work.close()
                raise asyncio.CancelledError
            return await work

        try:
            return asyncio.run(run())
        finally:
            with self._lock:
                self._task = None

    def cancel(self) -> None:
        """Ask the job to end: what it awaits is cancelled, and a command is killed. A commit is not interrupted."""
        self.is_cancelled.set()
        with self._lock:
            if self._task is not None:
                loop, task = self._task
                post(loop, task.cancel)

    def run(self) -> None:
        """Do the work in this thread, and keep its result or its error."""
        try:
            if self.is_cancelled.is_set():
                raise asyncio.CancelledError
            self.result = self._work(self)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is the answer to the client
            self.error = ToolError(f"{self.title} was cancelled") if _is_cancellation(error) else error
        with self._lock:
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


def _is_cancellation(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError)


class CallJobs:
    """The jobs of a server and the threads that do them, as many as are needed up to a limit.

    Warnings that a job causes become part of its result. ``close`` cancels what still runs.
    """

    def __init__(self) -> None:
        self.heavy = threading.BoundedSemaphore((os.cpu_count() or 1) + 4)
        self._jobs: dict[str, CallJob] = {}
        self._queue: SimpleQueue[CallJob | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._running: dict[int, CallJob] = {}
        self._is_closed = False
        warnings.simplefilter("always", ForkwiseWarning)
        warnings.showwarning = self._keep_warning

    def start(self, title: str, work: Callable[[CallJob], dict[str, Any]]) -> CallJob:
        """Start a job. Raises ToolError if too many are waiting."""
        job = CallJob(title, work)
        with self._lock:
            waiting = sum(not one.is_over for one in self._jobs.values())
            if self._is_closed or waiting >= _MAX_WAITING:
                raise ToolError(f"the server has {waiting} calls in progress and takes no more: try again later")
            self._jobs[job.id] = job
            self._forget_oldest()
            self._queue.put(job)
            if self._idle <= self._queue.qsize() and len(self._threads) < _MAX_THREADS:
                thread = threading.Thread(target=self._work, name="forkwise-mcp", daemon=True)
                self._threads.append(thread)
                thread.start()
        return job

    def find(self, handle: str) -> CallJob:
        """Find a job by its handle. Raises ToolError."""
        with self._lock:
            found = self._jobs.get(handle)
        if found is None:
            raise ToolError(
                f"there is no job {handle!r}: it was started by another server, or its result has been discarded"
            )
        return found

    def list_open(self) -> list[CallJob]:
        """Return the jobs that are not over."""
        with self._lock:
            return [job for job in self._jobs.values() if not job.is_over]

    def close(self) -> None:
        """Cancel all jobs, and wait briefly for them to end."""
        with self._lock:
            self._is_closed = True
        deadline = time.monotonic() + _CLOSE_S
        left = self.list_open()
        for job in left:
            job.cancel()
        for job in left:
            job.wait(max(deadline - time.monotonic(), 0.0))
        for _ in self._threads:
            self._queue.put(None)

    def _forget_oldest(self) -> None:
        over = [job for job in self._jobs.values() if job.is_over]
        for job in over[: max(len(over) - _MAX_FINISHED, 0)]:
            del self._jobs[job.id]

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            job = self._queue.get()
            with self._lock:
                self._idle -= 1
            if job is None:
                return
            thread = threading.get_ident()
            self._running[thread] = job
            try:
                job.run()
            finally:
                del self._running[thread]

    def _keep_warning(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        del filename, lineno, file, line
        job = self._running.get(threading.get_ident())
        if job is not None and issubclass(category, ForkwiseWarning) and len(job.warnings) < _MAX_WARNINGS:
            job.warnings.append(str(message))
