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
import stat
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[2])  # started by path, without the packages of its user

from forkwise.sandbox.first import failure, tell, watch
from forkwise.sandbox.jail import (
    CLONE_NEWPID,
    Jail,
    adopt_orphans,
    be_looked_into,
    clone,
    confine,
    die_with_parent,
    hand_on_no_descriptors,
    join_groups,
    move_in,
    write_maps,
)

__all__ = ["main"]

_NULL = os.makedev(1, 3)
_OURS = (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE)  # signals that a command finds as any program does
_DESCRIPTORS = 6  # the request itself, stdin, stdout, stderr, where the outcome is told, and what to wait for


def main(control_fd: int, parent: int) -> None:
    """Serve requests until the other side is gone.

    It is the process that is watched, and not the thread that started us, which the kernel's death signal would mean;
    and not the socket alone, of which a fork of the other side holds a copy.
    """
    other_side = os.pidfd_open(parent)
    if os.getppid() != parent:
        return
    gc.disable()  # it makes no cycles, and a look at all objects would cost every child a copy of them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel; who cares holds a pidfd
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that started us, which tells us
    control = socket.socket(fileno=control_fd)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(other_side, select.POLLIN)
    while other_side not in dict(poll.poll()):
        message, fds, _, _ = socket.recv_fds(control, 16, _DESCRIPTORS)
        if not message:
            return
        request = json.loads(os.pread(fds[0], os.fstat(fds[0]).st_size, 0))
        os.close(fds[0])
        jail = Jail.load(request["jail"])
        gate, opener = os.pipe()
        try:
            pid = clone(jail.flags)
        except OSError as error:
            control.send(json.dumps({"errno": error.errno}).encode())
        else:
            if pid == 0:
                os.close(opener)
                os.close(other_side)
                control.close()
                _become_init(jail, request, gate, fds[1:])
            try:
                write_maps(pid, jail)
            except OSError as error:
                os.kill(pid, signal.SIGKILL)
                control.send(json.dumps({"errno": error.errno, "maps": True}).encode())
            else:
                pidfd = os.pidfd_open(pid)
                os.write(opener, b"1")
                socket.send_fds(control, [json.dumps({"pid": pid}).encode()], [pidfd])
                os.close(pidfd)
        finally:
            for fd in (gate, opener, *fds[1:]):
                os.close(fd)


def _become_init(jail: Jail, request: dict[str, Any], gate: int, fds: list[int]) -> NoReturn:
    """The first process of a sandbox: sets it up, starts the command, reaps, watches the clock, tells the outcome."""
    status = fds[3]
    try:
        # With process numbers of its own, its end is the end of all. Without, it has to see to that itself.
        has_own = bool(jail.flags & CLONE_NEWPID)
        if not has_own:
            adopt_orphans()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A first process gets of its own children's signals only those it blocks or handles: then not SIGTERM.
        awaited = {signal.SIGCHLD} if has_own else {signal.SIGCHLD, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        die_with_parent(signal.SIGKILL if has_own else signal.SIGTERM)
        if os.read(gate, 1) != b"1":
            os._exit(1)
        os.close(gate)
        if not request["terminal"]:
            os.setsid()
        join_groups(jail)
        move_in(jail)
        if os.read(fds[4], 1) != b"1":
            os._exit(1)  # whoever was to say that all is ready is gone
        os.close(fds[4])
        be_looked_into(False)
        started = time.monotonic()
        # A spawn costs a fraction of a fork, and confines this process too, but for its capabilities. That does no harm
        # to one that only waits from now on, other than limits, or having to end others itself.
        command = _spawn(jail, request, fds) if has_own and not jail.limits else _fork(jail, request, fds)
        for fd in fds[:3]:
            os.close(fd)
        outcome = watch(command, started, request["wall"], awaited=awaited)
        if not has_own:
            _end_descendants()
        tell(status, outcome)
    except _CommandError as error:
        tell(status, error.told)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told, and this process ends
        tell(status, failure(error))
    os._exit(0)


def _end_descendants() -> None:
    """Kill all that is left, generation by generation: whoever loses its parent becomes a child of this process."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = [int(pid) for pid in file.read().split()]
        if not children:
            return
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


class _CommandError(Exception):
    """All is set up, and the command could not be started."""

    def __init__(self, error: OSError, name: str) -> None:
        self.told = {**failure(error, name), "is_command": True}


def _spawn(jail: Jail, request: dict[str, Any], fds: list[int]) -> int:
    """Start the command on the first three descriptors, with no others; it is looked for as execvpe does."""
    hand_on_no_descriptors()
    confine(jail, fds[:3], starting=True)
    actions = [
        (os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) if _is_null(fd) else (os.POSIX_SPAWN_DUP2, fd, number)
        for number, fd in enumerate(fds[:3])
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


def _fork(jail: Jail, request: dict[str, Any], fds: list[int]) -> int:
    """Start the command in a process that sets its own limits before it is replaced by it."""
    pid = os.fork()
    if pid:
        return pid
    status = fds[3]
    try:
        be_looked_into(True)
        for number, fd in enumerate(fds[:3]):
            os.dup2(fd if not _is_null(fd) else os.open("/dev/null", os.O_RDWR), number)
        hand_on_no_descriptors()
        for signal_number in _OURS:
            signal.signal(signal_number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        confine(jail)
        try:
            os.execvpe(request["argv"][0], request["argv"], request["env"])
        except OSError as error:
            raise _CommandError(error, request["argv"][0]) from None
    except _CommandError as error:
        tell(status, error.told)
    except BaseException as error:  # noqa: BLE001
        tell(status, failure(error))
    os._exit(127)


def _is_null(fd: int) -> bool:
    """Whether it is the host's null device, whose mode a root in here could change by the descriptor: to be replaced
    by the same from the sandbox's own /dev."""
    held = os.fstat(fd)
    return stat.S_ISCHR(held.st_mode) and held.st_rdev == _NULL


if __name__ == "__main__":
    with suppress(ProcessLookupError, BrokenPipeError, ConnectionResetError):  # the other side was killed meanwhile
        main(int(sys.argv[1]), int(sys.argv[3]))
