"""Offspring: a fork of this process that is born inside a sandbox which the forkserver has made.

It is this process's own child, and yet numbered, and ended, with all others of that sandbox. Apart from the rest
because it is the one place that forks a program which may have threads.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import starmap
from operator import call
from typing import Any

from forkwise.files import ends
from forkwise.files.syscalls import CLONE_NEWNS, CLONE_NEWUSER
from forkwise.sandbox.jail import CLONE_NEWPID, clone

__all__ = ["Offspring", "enter", "undisturbed"]

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


class Offspring:
    """A child of this process: ``pid`` is 0 in that itself, and below zero before it is born. Its ``code`` is there
    when it was reaped, below zero for a signal; None where somebody else in this program did that."""

    def __init__(self) -> None:
        self.pid = -1
        self.pidfd = -1
        self.code: int | None = None
        self.is_reaped = False
        self._reaping = threading.RLock()  # a signal's handler may want it too

    def be_born(self) -> None:
        """fork(2), with Python told."""
        self._fork(_NOTHING, _NOTHING)
        self._be_held()

    def be_born_in(self, first: int, flags: int) -> int:
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
                ends.close(self.pidfd)
                self.pidfd = -1

    def _be_held(self) -> None:
        if self.pid > 0:
            self.pidfd = ends.descriptor(lambda: os.pidfd_open(self.pid))

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
        between = Offspring()
        try:
            between.be_born()
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

    def _hear_of(self, between: Offspring, reader: int) -> None:
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
