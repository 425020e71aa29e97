"""BranchContext: a Python function run in a sandboxed child of this very process, with its result handed back as data.

Nothing the child sends is unpickled or executed: it writes JSON into memory shared with the parent, which reads it when
the child is gone. The child is a fork, so in a program with threads it must not need a lock another thread held.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from pydantic_core import PydanticSerializationError, from_json, to_json

from forkwise.errors import ForkError, NamespaceError, ProcessBranchError
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.jail import Jail, clone, confine, move_in, write_maps
from forkwise.sandbox.plan import plan_jail

__all__ = ["BranchContext", "Result"]

_contexts: weakref.WeakSet[BranchContext] = weakref.WeakSet()

to_json([0])  # the first call loads modules; here it does so once, and not in every child


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a target: its ``value``, or its exception as text (``error`` is the type's name)."""

    value: Any = None
    error: str | None = None
    message: str = ""
    traceback: str = ""

    @property
    def ok(self) -> bool:
        """Whether the target returned."""
        return self.error is None


class BranchContext:
    """A function that runs in a sandbox of its own, with one directory it may write to.

    ``target`` is called with the directory as a ``Path``; returning is success, raising is failure. What it returns
    must be expressible as JSON. With ``close_fds`` the child keeps no descriptor but stdin, stdout and stderr.
    """

    def __init__(
        self,
        target: Callable[[Path], Any],
        workspace: str | os.PathLike[str],
        *,
        close_fds: bool = False,
        confinement: str | Confinement = "standard",
    ) -> None:
        self._target = target
        self._workspace = os.path.realpath(workspace)
        self._close_fds = close_fds
        self._confinement = Confinement.preset(confinement)
        self._pid: int | None = None
        self._pidfd = -1
        self._lifeline = -1
        self._answer = -1
        self._ended: int | None = None
        self._result: Result | None = None
        _contexts.add(self)

    @classmethod
    @contextmanager
    def create(
        cls,
        targets: Sequence[Callable[[Path], Any]],
        workspaces: Sequence[str | os.PathLike[str]],
        *,
        close_fds: bool = False,
        confinement: str | Confinement = "standard",
    ) -> Iterator[list[BranchContext]]:
        """Start one child for each target in its workspace; none of them is left when the block ends."""
        if len(targets) != len(workspaces):
            raise ValueError(f"{len(targets)} targets need as many workspaces, not {len(workspaces)}")
        made = [
            cls(t, w, close_fds=close_fds, confinement=confinement) for t, w in zip(targets, workspaces, strict=True)
        ]
        try:
            for context in made:
                context.start()
            yield made
        finally:
            for context in made:
                context.abort()

    @property
    def pid(self) -> int | None:
        """The child's process number; None before it was started."""
        return self._pid

    @property
    def alive(self) -> bool:
        """Whether the child, or anything it started, still runs."""
        return self._pid is not None and not self._reap(0)

    @property
    def result(self) -> Result:
        """What came of the target; ask when it is done."""
        if self._result is None:
            if self._pid is None or not self._reap(0):
                raise ProcessBranchError("the target is not done yet: wait() first")
            self._result = self._read_answer()
        return self._result

    def start(self) -> None:
        """Start the child; entering the context does that."""
        if self._pid is not None:
            return
        jail = plan_jail(self._workspace, self._workspace, None, self._confinement, os.environ)
        gate, opener = os.pipe()
        lifeline, self._lifeline = os.pipe()
        self._answer = os.memfd_create("forkwise-answer", os.MFD_CLOEXEC)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = clone(jail.flags)
        except OSError as error:
            for fd in (gate, opener, lifeline, self._lifeline, self._answer):
                os.close(fd)
            if error.errno in (errno.EPERM, errno.ENOSPC, errno.EINVAL):
                raise NamespaceError(
                    f"no namespaces could be made for a sandbox: {error.strerror}; forkwise doctor says what is missing"
                ) from error
            raise ForkError(f"no process could be made: {error.strerror}") from error
        if pid == 0:
            os.close(opener)
            self._be_child(jail, gate, lifeline)
        self._pid = pid
        self._pidfd = os.pidfd_open(pid)
        os.close(gate)
        os.close(lifeline)
        try:
            write_maps(pid, jail)
            os.write(opener, b"1")
        except OSError as error:
            self.abort()
            raise NamespaceError(f"the users of a new namespace could not be set: {error.strerror}") from error
        finally:
            os.close(opener)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the child; ProcessBranchError where the target failed, TimeoutError where it takes too long."""
        self.start()
        if not self._reap(timeout):
            raise TimeoutError(f"the target was not done within {timeout} seconds")
        result = self.result
        if result.error is not None:
            told = f"{result.error}: {result.message}\n{result.traceback}".rstrip()
            raise ProcessBranchError(f"the target failed: {told}")

    def abort(self, timeout: float = 5.0) -> None:
        """End the child and all its descendants, whatever they do about it."""
        if self._pid is None or self._ended is not None:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if not self._reap(timeout):
            raise ProcessBranchError(f"process {self._pid} did not end within {timeout} seconds of being killed")

    def __enter__(self) -> BranchContext:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abort()

    def __del__(self) -> None:
        with suppress(Exception):
            self.abort()

    def _reap(self, timeout: float | None) -> bool:
        if self._ended is None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(None if timeout is None else max(0, timeout) * 1000):
                return False
            try:
                self._ended = os.waitstatus_to_exitcode(os.waitpid(self._pid or 0, 0)[1])
            except ChildProcessError:
                self._ended = -signal.SIGKILL  # somebody else in this process reaped it
            self._result = self._read_answer()
            for fd in (self._pidfd, self._lifeline, self._answer):
                os.close(fd)
            self._pidfd = self._lifeline = self._answer = -1
        return True

    def _read_answer(self) -> Result:
        if self._result is not None:
            return self._result
        size = os.fstat(self._answer).st_size
        os.lseek(self._answer, 0, os.SEEK_SET)
        with open(os.dup(self._answer), "rb") as file:
            content = file.read(size)
        if content:
            try:
                said = from_json(content)
                if "value" in said:
                    return Result(value=said["value"])
                return Result(None, str(said["error"]), str(said["message"]), str(said["traceback"]))
            except (ValueError, TypeError, KeyError) as error:
                return Result(None, "ProcessBranchError", f"the child's answer could not be read: {error}")
        return Result(None, "ProcessBranchError", self._how_it_died())

    def _how_it_died(self) -> str:
        code = self._ended or 0
        if code > 128:
            return f"killed by {signal.Signals(code - 128).name}"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code} before the target returned"

    # In the child

    def _be_child(self, jail: Jail, gate: int, lifeline: int) -> NoReturn:
        """The first process of the sandbox: sets it up, runs the target in another one, and ends when that does."""
        code = 1
        try:
            for other in list(_contexts):
                if other._lifeline >= 0:
                    os.close(other._lifeline)  # held here as well, it would outlive the parent
                    other._lifeline = -1
            if os.read(gate, 1) != b"1":
                os._exit(1)
            os.close(gate)
            move_in(jail)
            target = os.fork()
            if target == 0:
                os.close(lifeline)
                self._run_target(jail)
            code = _watch(target, lifeline)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told, and this process ends
            self._tell_failure(error)
        finally:
            os._exit(code)

    def _run_target(self, jail: Jail) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            if self._close_fds:
                os.closerange(3, self._answer)
                os.closerange(self._answer + 1, 1 << 16)
            confine(jail)
            value = self._target(Path(self._workspace))
            self._tell(_as_json(value))
            code = 0
        except BaseException as error:  # noqa: BLE001
            self._tell_failure(error)
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _tell_failure(self, error: BaseException) -> None:
        told = {
            "error": type(error).__name__,
            "message": str(error),
            "traceback": "".join(traceback.format_exception(error)),
        }
        self._tell(to_json(told, inf_nan_mode="strings"))

    def _tell(self, content: bytes) -> None:
        view = memoryview(content)
        os.ftruncate(self._answer, 0)
        os.lseek(self._answer, 0, os.SEEK_SET)
        while view:
            view = view[os.write(self._answer, view) :]


def _as_json(value: object) -> bytes:
    try:
        return b'{"value":' + to_json(value, inf_nan_mode="constants") + b"}"
    except PydanticSerializationError as error:
        raise TypeError(
            f"what the target returned, a {type(value).__name__}, cannot be handed to the parent: {error}. "
            "Return what JSON can express, or write it to the workspace"
        ) from None


def _watch(target: int, lifeline: int) -> int:
    """Wait for the target, reaping whatever else ends, until it is done or the parent is gone."""
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(alarm)
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(lifeline, select.POLLIN)
    while True:
        while True:
            try:
                pid, how = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == 0:
                break
            if pid == target:
                code = os.waitstatus_to_exitcode(how)
                return code if code >= 0 else 128 - code
        for fd, _ in poll.poll():
            if fd == lifeline:
                return 1
            os.read(wake, 4096)
