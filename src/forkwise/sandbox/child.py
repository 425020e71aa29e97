"""The process of a function: forking it into a sandbox, confining it, calling the function, and reading its answer.

The parent neither unpickles nor executes anything of an answer: it is JSON in memory that both processes share, and the
parent reads it after the function's process has ended.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import mmap
import os
import resource
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
from forkwise.linux.syscalls import CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER
from forkwise.sandbox.init import describe_failure, kill_descendants, report, supervise
from forkwise.sandbox.jail import (
    Jail,
    adopt_orphans,
    clone,
    confine,
    die_with_parent,
    find_host_null,
    join_groups,
    set_dumpable,
)
from forkwise.text.clean import escape_invalid

__all__ = [
    "Entrance",
    "ForkedChild",
    "FunctionCall",
    "Result",
    "block_signals",
    "enter_namespaces",
    "make_answer_memory",
    "read_answer",
]


_MOUNT_NAMESPACE = "/proc/self/ns/mnt"
_CLONE_PARENT = 0x00008000
_ALL_SIGNALS = signal.valid_signals()
_MAX_ANSWER_SIZE = 256 << 20  # bytes
_LENGTH_SIZE = 8  # bytes at the beginning of the answer's memory: the length of the answer
_MAX_FD = 0x7FFFFFFF
_MAX_CONTAINERS = 8_000_000  # lists and objects: an empty one is two bytes of JSON and some sixty in memory

# PyDLL keeps the GIL: if it were released, a thread that does not exist in the child could hold it for ever.
_libc = ctypes.PyDLL(None, use_errno=True)
_fork, _setns = _libc.fork, _libc.setns
_mmap, _mremap = _libc.mmap, _libc.mremap
_mmap.restype = _mremap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value
_MREMAP_MAYMOVE = 1
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_in_child = ctypes.pythonapi.PyOS_AfterFork_Child
_after_fork_in_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
_Step = tuple[Any, ...]  # a function and its arguments
_NO_STEP: _Step = (int,)

to_json([0])  # the first call imports modules: do it once here, not in every child


@contextmanager
def block_signals() -> Iterator[set[int]]:
    """Block all signals of this thread during the block. Yield those that were blocked before."""
    before: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    try:
        # Python may run the handler of a signal that arrived just before only now, and the handler may raise.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def enter_namespaces(init_pidfd: int, flags: int) -> None:
    """Enter the namespaces in ``flags`` of the process behind ``init_pidfd``.

    Raise OSError if its mount namespace is this process's own: then it is not the init of a sandbox.
    """
    before = os.stat(_MOUNT_NAMESPACE).st_ino
    if _setns(init_pidfd, flags):
        raise _build_os_error("the sandbox's namespaces")
    if flags & CLONE_NEWNS and os.stat(_MOUNT_NAMESPACE).st_ino == before:
        raise OSError(errno.EXDEV, "the process has no mount namespace of its own", _MOUNT_NAMESPACE)


class ForkedChild:
    """A child of this process, possibly inside a sandbox.

    ``pid`` is 0 in the child itself, and negative before the fork. ``code`` is its exit code once it was reaped,
    negative for a signal, or None if other code in this program reaped it.
    """

    def __init__(self) -> None:
        self.pid = -1
        self.pidfd = -1
        self.code: int | None = None
        self.is_reaped = False
        self._reap_lock = threading.RLock()  # a signal handler may take it too

    def fork(self) -> None:
        """Call fork(2) and Python's hooks around it."""
        self._fork(_NO_STEP, _NO_STEP)
        self._open_pidfd()

    def fork_into(self, init_pidfd: int, flags: int) -> int:
        """Fork into the sandbox whose init is ``init_pidfd``. Return the namespaces that the child still has to enter.

        Call it inside ``block_signals`` and ``fds.fork_lock``.
        """
        own_fd = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _setns(own_fd, CLONE_NEWPID) == 0:  # changes nothing; it fails without CAP_SYS_ADMIN
                # setns(2) moves the next children of this thread there; it is reverted right after the fork.
                self._fork((_setns, init_pidfd, CLONE_NEWPID), (_setns, own_fd, CLONE_NEWPID))
                left = flags & ~CLONE_NEWPID
            else:
                self._fork_through_helper(init_pidfd, flags & (CLONE_NEWPID | CLONE_NEWUSER))
                left = flags & ~(CLONE_NEWPID | CLONE_NEWUSER)
        finally:
            os.close(own_fd)
        self._open_pidfd()
        return left

    def kill_and_reap(self) -> None:
        """Kill the child and reap it."""
        if self.pid > 0 and not self.is_reaped:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.reap()

    def reap(self) -> None:
        """Wait for the child and reap it.

        The kernel ends the init of a PID namespace only when every process in it is reaped, so the sandbox ends after
        this.
        """
        with self._reap_lock:
            if not self.is_reaped:
                with suppress(ChildProcessError):
                    self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                self.is_reaped = True
                fds.close(self.pidfd)
                self.pidfd = -1

    def _open_pidfd(self) -> None:
        if self.pid > 0:
            self.pidfd = fds.track(lambda: os.pidfd_open(self.pid))

    def _fork(self, before: _Step, after: _Step) -> None:
        """Fork, with ``before`` called right before it and ``after`` right after it, in the parent and the child.

        No Python bytecode runs in between: a signal handler might run there, or the GIL pass to another thread, which
        does not exist in the child.
        """
        _, setns_result, self.pid, _ = starmap(call, ((_before_fork,), before, (_fork,), after))
        if self.pid == 0:
            _after_fork_in_child()
            if setns_result:
                os._exit(1)
        else:
            _after_fork_in_parent()
            if self.pid < 0:
                raise _build_os_error()
            if setns_result:  # the sandbox's init is dead
                raise OSError(errno.ESRCH, os.strerror(errno.ESRCH), "the sandbox's init process")

    def _fork_through_helper(self, init_pidfd: int, flags: int) -> None:
        """Fork into a PID namespace without the right to do so directly.

        A helper, a fork of this process, gains that right by entering the sandbox's user namespace. It makes the child
        with CLONE_PARENT, as a child of this process, and exits.
        """
        reader, writer = os.pipe()
        helper = ForkedChild()
        try:
            helper.fork()
            if helper.pid == 0:
                self.pid = _fork_sibling(init_pidfd, flags, writer)
            else:
                self._read_child_pid(helper, reader)
        except BaseException:
            with suppress(OSError):
                self._read_child_pid(helper, reader)
            raise
        finally:
            os.close(reader)
            os.close(writer)

    def _read_child_pid(self, helper: ForkedChild, reader: int) -> None:
        helper.reap()
        os.set_blocking(reader, False)
        try:
            pid = int(os.read(reader, 32))
        except BlockingIOError:
            pid = -errno.EAGAIN  # the helper was killed
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        self.pid = pid


def _fork_sibling(init_pidfd: int, flags: int, writer: int) -> int:
    """Fork a child of this process's parent and exit. Only the child returns."""
    pid = -errno.EAGAIN
    try:
        enter_namespaces(init_pidfd, flags)
        pid = clone(_CLONE_PARENT)
    except OSError as error:
        pid = -(error.errno or errno.EAGAIN)
    finally:
        if pid != 0:
            os.write(writer, str(pid).encode())
            os._exit(0)
    return pid


def _build_os_error(*filename: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), *filename)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a target: its ``value``, or its exception as text (``error`` is the name of the type)."""

    value: Any = None
    error: str | None = None
    message: str = ""
    traceback: str = ""

    @property
    def ok(self) -> bool:
        """Whether the target returned."""
        return self.error is None


class Entrance(NamedTuple):
    """The way into a sandbox: a pidfd of its init, a socket to init, and the namespaces still to be entered."""

    init_pidfd: int
    init_socket: int
    flags: int


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function with a directory, in a process that is confined by then.

    The answer is written through a mapping of ``answer_fd``, so that the function finds no open descriptor of it. If
    ``environment`` is None, the process keeps that of this program.
    """

    target: Callable[[Path], Any]
    directory: str
    jail: Jail
    environment: Mapping[str, str] | None
    closes_fds: bool
    answer_fd: int

    def run(self, sandbox: Entrance | None, signals: Collection[int]) -> NoReturn:
        """Run in the new process: enter the sandbox, confine the process, call the function, answer, exit.

        All signals are blocked until the call, and ``signals`` from then on.
        """
        code = 1
        try:
            answer = _AnswerMapping(self.answer_fd)
            try:
                self._enter_sandbox(sandbox)
                signal.pthread_sigmask(signal.SIG_SETMASK, signals)
            except BaseException as error:
                answer.write(to_json({"failed": escape_invalid(f"{type(error).__name__}: {error}")}))
                raise
            try:
                answer.write(_encode_value(self.target(Path(self.directory))))
                code = 0
            except BaseException as error:  # noqa: BLE001 - any exception becomes the answer
                answer.write(_encode_error(error))
        finally:
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def run_without_namespaces(
        self, status_fd: int, parent_pidfd: int, wall: float | None, signals: Collection[int]
    ) -> NoReturn:
        """Run in the new process if namespaces are not available: act as the sandbox's init, with the call in a child.

        The outcome is written to ``status_fd``. The end of the process behind ``parent_pidfd`` ends this one.
        """
        try:
            fds.close_all_except(but={self.answer_fd, status_fd, parent_pidfd})
            adopt_orphans()
            os.setsid()
            join_groups(self.jail)
            set_dumpable(False)
            started = time.monotonic()
            pid = os.fork()
            if pid == 0:
                os.close(status_fd)
                os.close(parent_pidfd)
                die_with_parent()
                self.run(None, signals)
            signals_awaited = {signal.SIGCHLD, signal.SIGTERM}
            outcome = supervise(pid, started, wall, signals=signals_awaited, end_pidfds={parent_pidfd: "killed"})
            kill_descendants()
            report(status_fd, outcome)
        except BaseException as error:  # noqa: BLE001 - any exception is reported, and this process ends
            report(status_fd, describe_failure(error))
        finally:
            os._exit(0)

    def _enter_sandbox(self, sandbox: Entrance | None) -> None:
        had_gc = gc.isenabled()
        gc.disable()  # a collection would touch, and so copy, the pages of all objects
        signal.set_wakeup_fd(-1)
        fds.close_all_except(but=set() if sandbox is None else {sandbox.init_pidfd, sandbox.init_socket})
        os.setsid()  # otherwise kill(0) would reach the parent's process group
        if sandbox is not None:
            _wait_for_init(sandbox.init_socket)
            enter_namespaces(sandbox.init_pidfd, sandbox.flags)
            os.close(sandbox.init_pidfd)
        set_dumpable(True)  # the kernel cleared it when setns(2) gained capabilities
        if sandbox is not None:
            os.write(sandbox.init_socket, str(os.getpid()).encode())
        self._set_environment()
        confine(self.jail, wait_for_mounts=lambda: self._wait_until_ready(sandbox))
        if self.closes_fds:
            os.closerange(3, _MAX_FD)  # close_range(2)
        if had_gc:
            gc.enable()

    def _wait_until_ready(self, sandbox: Entrance | None) -> None:
        """Wait until init reports that the mounts are made, then change into the directory."""
        if sandbox is not None:
            _wait_for_init(sandbox.init_socket)
            os.close(sandbox.init_socket)
        os.chdir(self.jail.cwd)
        if sandbox is not None and self.jail.read_only:
            for fd in find_host_null((0, 1, 2)):
                null_fd = os.open("/dev/null", os.O_RDWR)
                os.dup2(null_fd, fd)
                os.close(null_fd)

    def _set_environment(self) -> None:
        if self.environment is not None:
            os.environ.clear()
            _wipe_environment()
            os.environ.update(self.environment)
            if "tempfile" in sys.modules:
                vars(sys.modules["tempfile"])["tempdir"] = None  # it may remember a directory that is hidden here


def _wait_for_init(init_socket: int) -> None:
    """Wait for the next go-ahead of the sandbox's init. Exit if init failed."""
    if os.read(init_socket, 1) != b"1":
        os._exit(1)  # init failed, and reports that itself


def make_answer_memory() -> int:
    """Create the memory for an answer and return its descriptor. Pages that are not written take no space."""
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)  # of this program; it applies to memory files as well
    size = _LENGTH_SIZE + _MAX_ANSWER_SIZE
    answer_fd = os.memfd_create("forkwise-answer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(answer_fd, size if most == resource.RLIM_INFINITY else min(size, most))
    fcntl.fcntl(answer_fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return answer_fd


class _AnswerMapping:
    """The answer's memory, mapped into the function's process, which then needs no descriptor of it.

    One page is mapped until the answer is written: the size of a mapping counts for RLIMIT_AS.
    """

    def __init__(self, answer_fd: int) -> None:
        self._size = mmap.PAGESIZE
        self._capacity = _read_capacity(answer_fd)
        shared = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED
        # The module mmap would keep a duplicate of the descriptor open.
        self._address = _mmap(None, self._size, *shared, answer_fd, 0)
        if self._address == _MAP_FAILED:
            raise _build_os_error("the memory of the answer")

    def write(self, content: bytes) -> None:
        """Write the answer, or its size alone if it is too large."""
        ctypes.memmove(self._address, bytes(_LENGTH_SIZE), _LENGTH_SIZE)
        if len(content) <= self._capacity:
            size = _LENGTH_SIZE + len(content)
            address = _mremap(self._address, self._size, size, _MREMAP_MAYMOVE)
            if address == _MAP_FAILED:
                raise MemoryError(
                    f"the answer of {len(content)} bytes could not be written: {os.strerror(ctypes.get_errno())}"
                )
            self._address, self._size = address, size
            ctypes.memmove(address + _LENGTH_SIZE, content, len(content))
        ctypes.memmove(self._address, len(content).to_bytes(_LENGTH_SIZE, "little"), _LENGTH_SIZE)


def _read_capacity(answer_fd: int) -> int:
    """Return the size of the largest answer."""
    return os.fstat(answer_fd).st_size - _LENGTH_SIZE


def read_answer(answer_fd: int) -> Result | None:
    """Read the answer that a function's process left, which may be anything. Return None if it is empty."""
    size = int.from_bytes(os.pread(answer_fd, _LENGTH_SIZE, 0), "little")
    if not size:
        return None
    if size > (capacity := _read_capacity(answer_fd)):
        return _build_unreadable(f"it has {size} bytes, more than {capacity}; write it to the workspace")
    content = os.pread(answer_fd, size, _LENGTH_SIZE)
    if content.count(b"[") + content.count(b"{") > _MAX_CONTAINERS:
        return _build_unreadable(f"it has more than {_MAX_CONTAINERS} lists and objects; write it to the workspace")
    try:
        document = from_json(content)
        if "failed" in document:
            raise NamespaceError(f"the sandbox could not be entered: {document['failed']}")
        if "value" in document:
            return Result(value=document["value"])
        return Result(None, str(document["error"]), str(document["message"]), str(document["traceback"]))
    except (ValueError, TypeError, KeyError) as error:
        return _build_unreadable(str(error))


def _wipe_environment() -> None:
    """Overwrite the variables this program was started with: /proc/self/environ shows that memory."""
    with open("/proc/self/stat", "rb") as file:
        begin, end = file.read().rpartition(b")")[2].split()[47:49]
    ctypes.memset(int(begin), 0, int(end) - int(begin))


def _encode_value(value: object) -> bytes:
    try:
        return b'{"value":' + to_json(value, inf_nan_mode="constants") + b"}"
    except Exception as error:  # noqa: BLE001 - the target's own classes may raise anything
        raise TypeError(
            f"the target returned a {type(value).__name__}, which cannot be handed to the parent: {error}. "
            "Return a value that JSON can express, or write it to the workspace"
        ) from None


def _encode_error(error: BaseException) -> bytes:
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the target's own exception class may raise in __str__
        message = "(no message: str() of it failed)"
    document = {
        "error": type(error).__name__,
        "message": message,
        "traceback": "".join(traceback.format_exception(error)),
    }
    return to_json({key: escape_invalid(text) for key, text in document.items()})


def _build_unreadable(reason: str) -> Result:
    return Result(None, "ProcessBranchError", f"the child's answer could not be read: {reason}")
