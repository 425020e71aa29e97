"""A call: what a function's process does, from being born to its last system call, and the answer it leaves.

Nothing of an answer is unpickled or executed by who reads it: it is JSON in memory that both processes share, and is
read when the function's is gone.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pydantic_core import from_json, to_json

from forkwise.errors import NamespaceError
from forkwise.files import ends
from forkwise.sandbox.first import end_descendants, failure, tell, watch
from forkwise.sandbox.jail import Jail, adopt_orphans, be_looked_into, confine, die_with_parent, hosts_null, join_groups
from forkwise.sandbox.offspring import enter

__all__ = ["Call", "Entrance", "Result", "read_answer"]

_LARGEST = 256 << 20  # bytes of an answer that are read
_MOST_PARTS = 8_000_000  # lists and objects in it: an empty one takes two bytes there and thirty times that here

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


class Entrance(NamedTuple):
    """The way into a sandbox: a pidfd of its first process, a socket to that, and the namespaces to be entered yet."""

    first: int
    meeting: int
    flags: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function to be called with a directory, in a process that is confined by then. ``answer`` is where its answer
    goes; ``environment`` is None where it is that of this program."""

    target: Callable[[Path], Any]
    where: str
    jail: Jail
    environment: Mapping[str, str] | None
    closes_fds: bool
    answer: int

    def run(self, sandbox: Entrance | None, signals: Collection[int]) -> NoReturn:
        """In the new process: go in, be confined, call, answer, end. It has all signals blocked until it calls, and
        those of ``signals`` then."""
        code = 1
        try:
            try:
                self._go_in(sandbox)
                signal.pthread_sigmask(signal.SIG_SETMASK, signals)
            except BaseException as error:
                self._tell(to_json({"failed": _clean(f"{type(error).__name__}: {error}")}))
                raise
            try:
                self._tell(_as_json(self.target(Path(self.where))))
                code = 0
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
                self._tell(_as_failure(error))
        finally:
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def run_beneath(self, told: int, parent: int, wall: float | None, signals: Collection[int]) -> NoReturn:
        """In the new process, where there are no namespaces: be the first of what stands for a sandbox, and have the
        function called in a child. ``told`` is where the outcome is told, ``parent`` whose end is the end of this."""
        try:
            ends.let_go(but={self.answer, told, parent})
            adopt_orphans()
            os.setsid()
            join_groups(self.jail)
            be_looked_into(False)
            started = time.monotonic()
            pid = os.fork()
            if pid == 0:
                os.close(told)
                os.close(parent)
                die_with_parent()
                self.run(None, signals)
            awaited = {signal.SIGCHLD, signal.SIGTERM}
            outcome = watch(pid, started, wall, awaited=awaited, until={parent: "killed"})
            end_descendants()
            tell(told, outcome)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told, and this process ends
            tell(told, failure(error))
        finally:
            os._exit(0)

    def _go_in(self, sandbox: Entrance | None) -> None:
        is_collecting = gc.isenabled()
        gc.disable()  # a look at all objects would cost a copy of them
        signal.set_wakeup_fd(-1)
        ends.let_go(but={self.answer} if sandbox is None else {self.answer, sandbox.first, sandbox.meeting})
        os.setsid()  # else kill(0) would reach the parent's process group
        if sandbox is not None:
            _wait_for_word(sandbox.meeting)
            enter(sandbox.first, sandbox.flags)
            os.close(sandbox.first)
        be_looked_into(True)  # which it is not any more, having come by capabilities
        if sandbox is not None:
            os.write(sandbox.meeting, str(os.getpid()).encode())
        self._set_environment()
        confine(self.jail, furnished=lambda: self._move_in(sandbox))
        if self.closes_fds:
            os.closerange(3, self.answer)
            os.closerange(self.answer + 1, 1 << 20)
        if is_collecting:
            gc.enable()

    def _move_in(self, sandbox: Entrance | None) -> None:
        """Once all is ready, which is told by the sandbox's first process."""
        if sandbox is not None:
            _wait_for_word(sandbox.meeting)
            os.close(sandbox.meeting)
        os.chdir(self.jail.cwd)
        if sandbox is not None and self.jail.read_only:
            for fd in hosts_null((0, 1, 2)):
                own = os.open("/dev/null", os.O_RDWR)
                os.dup2(own, fd)
                os.close(own)

    def _set_environment(self) -> None:
        if self.environment is not None:
            os.environ.clear()
            _wipe_environment()
            os.environ.update(self.environment)

    def _tell(self, content: bytes) -> None:
        view = memoryview(content)
        os.ftruncate(self.answer, 0)
        os.lseek(self.answer, 0, os.SEEK_SET)
        while view:
            view = view[os.write(self.answer, view) :]


def _wait_for_word(meeting: int) -> None:
    """That of the sandbox's first process, which has come so far."""
    if os.read(meeting, 1) != b"1":
        os._exit(1)  # it has not, and tells of that itself


def read_answer(answer: int) -> Result | None:
    """What a function's process left, which may be anything; None where it left nothing."""
    size = os.fstat(answer).st_size
    if not size:
        return None
    if size > _LARGEST:
        return _unreadable(f"it has {size} bytes, more than {_LARGEST}; write it to the workspace")
    content = os.pread(answer, size, 0)
    if content.count(b"[") + content.count(b"{") > _MOST_PARTS:
        return _unreadable(f"it has more than {_MOST_PARTS} lists and objects; write it to the workspace")
    try:
        said = from_json(content)
        if "failed" in said:
            raise NamespaceError(f"the sandbox could not be entered: {said['failed']}")
        if "value" in said:
            return Result(value=said["value"])
        return Result(None, str(said["error"]), str(said["message"]), str(said["traceback"]))
    except (ValueError, TypeError, KeyError) as error:
        return _unreadable(str(error))


def _wipe_environment() -> None:
    """Overwrite the variables that this program was started with: /proc/self/environ shows that memory."""
    with open("/proc/self/stat", "rb") as file:
        begin, end = file.read().rpartition(b")")[2].split()[47:49]
    ctypes.memset(int(begin), 0, int(end) - int(begin))


def _as_json(value: object) -> bytes:
    try:
        return b'{"value":' + to_json(value, inf_nan_mode="constants") + b"}"
    except Exception as error:  # noqa: BLE001 - of many types, from a target's own classes too
        raise TypeError(
            f"what the target returned, a {type(value).__name__}, cannot be handed to the parent: {error}. "
            "Return what JSON can express, or write it to the workspace"
        ) from None


def _as_failure(error: BaseException) -> bytes:
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the target's own exception may not even have a text
        message = "(its text could not be had)"
    told = {
        "error": type(error).__name__,
        "message": message,
        "traceback": "".join(traceback.format_exception(error)),
    }
    return to_json({key: _clean(text) for key, text in told.items()})


def _clean(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _unreadable(why: str) -> Result:
    return Result(None, "ProcessBranchError", f"the child's answer could not be read: {why}")
