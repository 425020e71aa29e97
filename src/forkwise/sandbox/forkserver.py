"""The forkserver: a small process with one thread, started early, whose children become sandboxes.

A program with threads cannot safely run Python between fork and exec; this one has none. It is told what to make
over a socket and ends, with everything it made, when that socket does.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[2])  # started by path, without the packages of its user

from forkwise.linux.syscalls import CLONE_NEWNS, CLONE_NEWUSER, unshare
from forkwise.sandbox.init import failure, kill_descendants, report, supervise
from forkwise.sandbox.jail import (
    CLONE_NEWPID,
    Jail,
    adopt_orphans,
    apply_restrictions,
    clone,
    confine,
    die_with_parent,
    enter_root,
    hosts_null,
    join_groups,
    set_cloexec_on_all,
    set_dumpable,
    write_maps,
)

__all__ = ["main"]

_OURS = (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE)  # signals that a command finds as any program does
# The request itself; a command's stdin, stdout and stderr, or a socket to a function's process; where the outcome is
# told; from where the word to begin is taken.
_DESCRIPTORS = 6
_LONGEST = 4096  # of a message, beside its descriptors
_PAUSE = 3  # milliseconds without a request before something is made ahead


def main(control_fd: int, parent: int) -> None:
    """Serve requests until the other side is gone.

    It is the process that is watched, and not the thread that started us, which the kernel's death signal would mean;
    and not the socket alone, of which a fork of the other side holds a copy.
    """
    other_side, this_side = os.pidfd_open(parent), os.pidfd_open(os.getpid())
    if os.getppid() != parent:
        return
    gc.disable()  # it makes no cycles, and a look at all objects would cost every child a copy of them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel; who cares holds a pidfd
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that started us, which tells us
    control = socket.socket(fileno=control_fd)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(other_side, select.POLLIN)
    ahead: _First | None = None
    used: _Space | None = None
    while other_side not in (ready := dict(poll.poll(_PAUSE if used is not None else None))):
        if not ready and used is not None:
            with suppress(OSError):  # then it is told when one is wanted
                ahead = _First(used, this_side, (control_fd, other_side))
            used = None
            continue
        message, fds, _, _ = socket.recv_fds(control, _LONGEST, _DESCRIPTORS)
        if not message:
            return
        wanted = json.loads(message)
        first, used = ahead, _Space(*wanted["space"])
        ahead = None
        try:
            if first is None or not first.is_for(used):
                first = _First(used, this_side, (control_fd, other_side))
            first.begin(fds)
            told = json.dumps({"serial": wanted["serial"], "pid": first.pid})
            socket.send_fds(control, [told.encode()], [first.pidfd])
            first.close()
        except OSError as error:
            told = json.dumps({"serial": wanted["serial"], "errno": error.errno, "at": error.filename})
            control.send(told.encode())
            used = None
        finally:
            for fd in fds:
                os.close(fd)


class _Space(NamedTuple):
    """What has to be known of a sandbox before its first process can be made."""

    flags: int
    uid_map: str
    gid_map: str


class _First:
    """The first process of a sandbox that is not told yet what to do. One is made ahead, of the kind that was wanted
    last, when there is nothing else to do. Its mounts are not: it is to have those of the moment it begins."""

    def __init__(self, space: _Space, maker: int, ours: Sequence[int]) -> None:
        self.space = space
        self._near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            self.pid = clone(space.flags & ~CLONE_NEWNS)
            if self.pid == 0:
                self._near.close()
                for fd in ours:
                    os.close(fd)
                _become_init(far, maker, has_own_numbers=bool(space.flags & CLONE_NEWPID))
        self.pidfd = os.pidfd_open(self.pid)
        if space.flags & CLONE_NEWUSER:
            try:
                write_maps(self.pid, space.uid_map, space.gid_map)
            except OSError as error:
                self.close()
                raise OSError(error.errno, error.strerror, f"/proc/{self.pid}/uid_map") from None

    def is_for(self, space: _Space) -> bool:
        """Whether it is of that kind, and lives; if not, it goes."""
        if self.space == space and not _is_gone(self.pidfd):
            return True
        self.close()
        return False

    def begin(self, fds: list[int]) -> None:
        """Tell it what to do."""
        socket.send_fds(self._near, [b"1"], fds)

    def close(self) -> None:
        """Let go of it: if it was not told anything yet, it ends."""
        self._near.close()
        os.close(self.pidfd)


def _is_gone(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _become_init(far: socket.socket, maker: int, *, has_own_numbers: bool) -> NoReturn:
    """The first process of a sandbox: sets it up, starts the command, reaps, watches the clock, tells the outcome."""
    # With process numbers of its own, its end is the end of all. Without, it has to see to that itself.
    die_with_parent(signal.SIGKILL if has_own_numbers else signal.SIGTERM)
    if _is_gone(maker):  # before it could be known to this one by its end
        os._exit(0)
    os.close(maker)
    message, fds, _, _ = socket.recv_fds(far, 1, _DESCRIPTORS)
    if not message:
        os._exit(0)
    far.close()
    letter, *given, status, word = fds
    try:
        request = json.loads(os.pread(letter, os.fstat(letter).st_size, 0))
        os.close(letter)
        jail = Jail.load(request["jail"])
        if not has_own_numbers:
            adopt_orphans()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A first process gets of its own children's signals only those it blocks or handles: then not SIGTERM.
        awaited = {signal.SIGCHLD} if has_own_numbers else {signal.SIGCHLD, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        if not request["terminal"]:
            os.setsid()
        join_groups(jail)
        if jail.flags & CLONE_NEWNS:
            unshare(CLONE_NEWNS)
        is_function = len(given) == 1
        if is_function:
            os.write(given[0], b"1")  # now it may come in: before, it would have come into the host's mounts
        enter_root(jail)
        if is_function:
            report(status, _watch_over_function(jail, request, given[0], word, awaited))
            os._exit(0)
        _wait_for(word)
        set_dumpable(False)
        started = time.monotonic()
        # A spawn costs a fraction of a fork, and confines this process too, but for its capabilities. That does no harm
        # to one that only waits from now on, other than limits, or having to end others itself.
        spawns = has_own_numbers and not jail.limits
        command = _spawn(jail, request, given) if spawns else _fork(jail, request, given, status)
        for fd in given:
            os.close(fd)
        outcome = supervise(command, started, request["wall"], awaited=awaited)
        if not has_own_numbers:
            kill_descendants()
        report(status, outcome)
    except _CommandError as error:
        report(status, error.told)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told, and this process ends
        report(status, failure(error))
    os._exit(0)


def _wait_for(word: int) -> None:
    if os.read(word, 1) != b"1":
        os._exit(1)  # whoever was to say that all is ready is gone
    os.close(word)


def _watch_over_function(
    jail: Jail, request: dict[str, Any], meeting: int, word: int, awaited: set[signal.Signals]
) -> dict[str, Any]:
    """A function's process comes in from outside, as a child of the program that wanted it. It tells its number when it
    is here, which it must be before this process is not to be looked into, and is told again when all is ready."""
    started = time.monotonic()
    number = os.read(meeting, 32)
    if not number:  # it did not come to be, or not in here; then it tells of that itself
        return {"cause": "exit", "code": None, "wall": time.monotonic() - started, "cpu": 0.0, "memory": 0}
    function = os.pidfd_open(int(number))
    _wait_for(word)
    set_dumpable(False)
    started = time.monotonic()
    os.write(meeting, b"1")
    os.close(meeting)
    apply_restrictions(jail, starting=True)
    return supervise(None, started, request["wall"], awaited=awaited, until={function: "exit"})


class _CommandError(Exception):
    """All is set up, and the command could not be started."""

    def __init__(self, error: OSError, name: str) -> None:
        self.told = {**failure(error, name), "is_command": True}


def _spawn(jail: Jail, request: dict[str, Any], fds: list[int]) -> int:
    """Start the command on three descriptors, with no others; it is looked for as execvpe does."""
    set_cloexec_on_all()
    confine(jail, fds, starting=True)
    null = hosts_null(fds)
    actions = [
        (os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) if fd in null else (os.POSIX_SPAWN_DUP2, fd, number)
        for number, fd in enumerate(fds)
    ]
    argv, environment = request["argv"], request["env"]
    problem: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for place in [""] if "/" in argv[0] else environment.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(place, argv[0])
        try:
            os.stat(path)  # a look costs less than a process that finds nothing
            return os.posix_spawn(path, argv, environment, file_actions=actions, setsigmask=(), setsigdef=_OURS)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problem = error
    raise _CommandError(problem, argv[0])


def _fork(jail: Jail, request: dict[str, Any], fds: list[int], status: int) -> int:
    """Start the command in a process that sets its own limits before it is replaced by it."""
    pid = os.fork()
    if pid:
        return pid
    try:
        set_dumpable(True)
        null = hosts_null(fds)
        for number, fd in enumerate(fds):
            os.dup2(os.open("/dev/null", os.O_RDWR) if fd in null else fd, number)
        set_cloexec_on_all()
        for signal_number in _OURS:
            signal.signal(signal_number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        confine(jail)
        try:
            os.execvpe(request["argv"][0], request["argv"], request["env"])
        except OSError as error:
            raise _CommandError(error, request["argv"][0]) from None
    except _CommandError as error:
        report(status, error.told)
    except BaseException as error:  # noqa: BLE001
        report(status, failure(error))
    os._exit(127)


if __name__ == "__main__":
    with suppress(ProcessLookupError, BrokenPipeError, ConnectionResetError):  # the other side was killed meanwhile
        main(int(sys.argv[1]), int(sys.argv[3]))
