"""A call: what a function's process does, from being born to its last system call, and the answer it leaves.

Nothing of an answer is unpickled or executed by who reads it: it is JSON in memory that both processes share, and is
read when the function's is gone.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import starmap
from operator import call
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pydantic_core import from_json, to_json

from forkwise.errors import NamespaceError
from forkwise.linux import fds
from forkwise.linux.syscalls import CLONE_NEWNS, CLONE_NEWUSER
from forkwise.sandbox.init import failure, kill_descendants, report, supervise
from forkwise.sandbox.jail import (
    CLONE_NEWPID,
    Jail,
    adopt_orphans,
    clone,
    confine,
    die_with_parent,
    hosts_null,
    join_groups,
    set_dumpable,
)

__all__ = [
    "Call",
    "Entrance",
    "ForkedChild",
    "Result",
    "enter",
    "read_answer",
    "undisturbed",
]


_MOUNTS = "/proc/self/ns/mnt"
_CLONE_PARENT = 0x00008000
_ALL_SIGNALS = signal.valid_signals()

# None of these lets go of the interpreter's lock: in a child it would be held for ever by a thread that is not there.
_libc = ctypes.PyDLL(None, use_errno=True)
_fork, _setns = _libc.fork, _libc.setns
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_in_child = ctypes.pythonapi.PyOS_AfterFork_Child
_after_fork_in_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
_Turn = tuple[Any, ...]  # something to call, and with what
_NOTHING: _Turn = (int,)


@contextmanager
def undisturbed() -> Iterator[set[int]]:
    """With all signals of this thread kept for later; gives those that were kept before."""
    before: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS))
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def enter(first: int, flags: int) -> None:
    """Go into namespaces of the process that a pidfd stands for. Whoever has no mounts of its own is no sandbox's."""
    before = os.stat(_MOUNTS).st_ino
    if _setns(first, flags):
        raise _failure("the sandbox's namespaces")
    if flags & CLONE_NEWNS and os.stat(_MOUNTS).st_ino == before:
        raise OSError(errno.EXDEV, "these mounts are not the sandbox's own", _MOUNTS)


class ForkedChild:
    """A child of this process: ``pid`` is 0 in that itself, and below zero before it is born. Its ``code`` is there
    when it was reaped, below zero for a signal; None where somebody else in this program did that."""

    def __init__(self) -> None:
        self.pid = -1
        self.pidfd = -1
        self.code: int | None = None
        self.is_reaped = False
        self._reaping = threading.RLock()  # a signal's handler may want it too

    def fork(self) -> None:
        """fork(2), with Python told."""
        self._fork(_NOTHING, _NOTHING)
        self._be_held()

    def fork_into(self, first: int, flags: int) -> int:
        """fork(2) into the sandbox whose first process is ``first``, a pidfd; gives the namespaces that are left to be
        entered by the child.

        To be called ``undisturbed``, and while nobody else makes descriptors.
        """
        own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _setns(own, CLONE_NEWPID) == 0:  # changes nothing, and tells who may
                # Children of this thread are born there, for as long as it takes to make one.
                self._fork((_setns, first, CLONE_NEWPID), (_setns, own, CLONE_NEWPID))
                left = flags & ~CLONE_NEWPID
            else:
                self._be_born_of_another(first, flags & (CLONE_NEWPID | CLONE_NEWUSER))
                left = flags & ~(CLONE_NEWPID | CLONE_NEWUSER)
        finally:
            os.close(own)
        self._be_held()
        return left

    def end(self) -> None:
        """Kill it, and reap it."""
        if self.pid > 0 and not self.is_reaped:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.reap()

    def reap(self) -> None:
        """Take in its end, waiting for it: until then the end of its sandbox waits for it too."""
        with self._reaping:
            if not self.is_reaped:
                with suppress(ChildProcessError):
                    self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                self.is_reaped = True
                fds.close(self.pidfd)
                self.pidfd = -1

    def _be_held(self) -> None:
        if self.pid > 0:
            self.pidfd = fds.track(lambda: os.pidfd_open(self.pid))

    def _fork(self, there: _Turn, back: _Turn) -> None:
        """With something done right before it, and something after it, in the parent and the child.

        All of it happens without an instruction of Python's own in between, after which a signal's handler might run,
        or another thread be given the interpreter: in the child, that thread is not there to take it.
        """
        _, went, self.pid, _ = starmap(call, ((_before_fork,), there, (_fork,), back))
        if self.pid == 0:
            _after_fork_in_child()
            if went:
                os._exit(1)
        else:
            _after_fork_in_parent()
            if self.pid < 0:
                raise _failure()
            if went:  # whose sandbox it was to be is dead
                raise OSError(errno.ESRCH, os.strerror(errno.ESRCH), "the sandbox's first process")

    def _be_born_of_another(self, first: int, flags: int) -> None:
        """For who may not have children elsewhere: a fork of this process may, once it is in the sandbox's user
        namespace. It gives this process a child, not itself, and is gone at once."""
        reader, writer = os.pipe()
        between = ForkedChild()
        try:
            between.fork()
            if between.pid == 0:
                self.pid = _give_birth(first, flags, writer)
            else:
                self._hear_of(between, reader)
        except BaseException:
            with suppress(OSError):
                self._hear_of(between, reader)
            raise
        finally:
            os.close(reader)
            os.close(writer)

    def _hear_of(self, between: ForkedChild, reader: int) -> None:
        between.reap()
        os.set_blocking(reader, False)
        try:
            said = int(os.read(reader, 32))
        except BlockingIOError:
            said = -errno.EAGAIN  # it was killed
        if said < 0:
            raise OSError(-said, os.strerror(-said))
        self.pid = said


def _give_birth(first: int, flags: int, writer: int) -> int:
    """Make the child, of which the parent of this process is the parent; only the child comes back from here."""
    said = -errno.EAGAIN
    try:
        enter(first, flags)
        said = clone(_CLONE_PARENT)
    except OSError as error:
        said = -(error.errno or errno.EAGAIN)
    finally:
        if said != 0:
            os.write(writer, str(said).encode())
            os._exit(0)
    return said


def _failure(*at: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), *at)


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
            fds.close_all_except(but={self.answer, told, parent})
            adopt_orphans()
            os.setsid()
            join_groups(self.jail)
            set_dumpable(False)
            started = time.monotonic()
            pid = os.fork()
            if pid == 0:
                os.close(told)
                os.close(parent)
                die_with_parent()
                self.run(None, signals)
            awaited = {signal.SIGCHLD, signal.SIGTERM}
            outcome = supervise(pid, started, wall, awaited=awaited, until={parent: "killed"})
            kill_descendants()
            report(told, outcome)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told, and this process ends
            report(told, failure(error))
        finally:
            os._exit(0)

    def _go_in(self, sandbox: Entrance | None) -> None:
        is_collecting = gc.isenabled()
        gc.disable()  # a look at all objects would cost a copy of them
        signal.set_wakeup_fd(-1)
        fds.close_all_except(but={self.answer} if sandbox is None else {self.answer, sandbox.first, sandbox.meeting})
        os.setsid()  # else kill(0) would reach the parent's process group
        if sandbox is not None:
            _wait_for_word(sandbox.meeting)
            enter(sandbox.first, sandbox.flags)
            os.close(sandbox.first)
        set_dumpable(True)  # which it is not any more, having come by capabilities
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
