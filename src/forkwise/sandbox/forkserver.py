"""The forkserver: a small process with one thread, started early, whose children become sandboxes.

A program with threads cannot safely run Python between fork and exec; the forkserver has none. It receives requests
over a socket, and ends with everything it made when that socket is closed or its client dies.

It also forks further forkservers, each in another network namespace; the sandboxes of these are in that namespace too.
And it opens sockets, which belong to its network namespace wherever they are used.
"""

from __future__ import annotations

import errno
import gc
import importlib
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
    sys.path.insert(0, sys.argv[2])  # started by path with -S: no site-packages

from forkwise.linux.syscalls import CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, setns, unshare
from forkwise.sandbox.init import describe_failure, kill_descendants, report, supervise
from forkwise.sandbox.jail import (
    Jail,
    adopt_orphans,
    apply_restrictions,
    bring_up_loopback,
    clone,
    confine,
    die_with_parent,
    enter_root,
    find_host_null,
    join_groups,
    outlive_parent,
    set_cloexec_on_all,
    set_dumpable,
    write_maps,
)

__all__ = ["main"]

_RESET_SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE)  # reset to the default for a command
# The request; a command's stdin, stdout and stderr, or a socket to a function's process; the pipe for the outcome; the
# pipe with the go-ahead. Before these, if the jail says so, the detached mount of the home directory's view.
_MAX_FDS = 7
_MAX_MESSAGE = 4096  # bytes, besides the descriptors
_IDLE_MS = 3  # time without a request before the next init process is prepared


def main(client_fd: int, parent: int) -> None:
    """Serve requests until the client is gone.

    The client process is watched by its pidfd. PR_SET_PDEATHSIG would watch only the thread that started us, and the
    socket alone is not enough: a fork of the client holds a copy of it.
    """
    client_pidfd = os.pidfd_open(parent)
    if os.getppid() != parent:
        return
    gc.disable()  # there are no cycles, and a collection would make every child copy pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps children; the client has a pidfd
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the client, which then closes the socket
    _Server(client_fd, client_pidfd).serve()


class _Server:
    """The loop that answers one client."""

    def __init__(self, client_fd: int, client_pidfd: int) -> None:
        self._socket = socket.socket(fileno=client_fd)
        self._client_pidfd = client_pidfd
        self._pidfd = os.pidfd_open(os.getpid())
        self._prepared: _InitProcess | None = None
        self._last_used: _Namespaces | None = None
        self._spare: _NetworkServer | None = None
        self._last_network: _Namespaces | None = None

    def prepare(self, namespaces: _Namespaces) -> None:
        """Prepare an init process before the first request."""
        with suppress(OSError):  # reported when a client requests one
            self._prepared = self._make_init(namespaces)

    def serve(self) -> None:
        """Answer requests until the client is gone."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._client_pidfd, select.POLLIN)
        while self._client_pidfd not in (ready := dict(poll.poll(_IDLE_MS if self._is_preparing else None))):
            if not ready and self._is_preparing:
                self._prepare_next()
                continue
            message, fds, _, _ = socket.recv_fds(self._socket, _MAX_MESSAGE, _MAX_FDS)
            if not message:
                return
            wanted = json.loads(message)
            if wanted["kind"] == "prepare":
                self._last_network = _Namespaces(*wanted["namespaces"])
                self._prepare_next()
                continue
            try:
                self._answer(wanted, fds)
            except OSError as error:
                answer = {"serial": wanted["serial"], "errno": error.errno, "at": error.filename}
                self._socket.send(json.dumps(answer).encode())
                self._last_used = self._last_network = None
            finally:
                for fd in fds:
                    os.close(fd)

    @property
    def _is_preparing(self) -> bool:
        return self._last_used is not None or self._last_network is not None

    def _prepare_next(self) -> None:
        """Prepare, while there is nothing else to do, what was requested last."""
        with suppress(OSError):  # reported when a client requests one
            if self._last_used is not None:
                self._prepared = self._make_init(self._last_used)
            elif self._last_network is not None:
                self._spare = _NetworkServer(self, self._last_network)
        if self._last_used is not None:
            self._last_used = None
        else:
            self._last_network = None

    def _answer(self, wanted: dict[str, Any], fds: list[int]) -> None:
        """Carry out one request and send the answer. Raises OSError if that fails."""
        answer, kind = {"serial": wanted["serial"]}, wanted["kind"]
        if kind == "sandbox":
            init = self._start_init(_Namespaces(*wanted["namespaces"]), fds)
            socket.send_fds(self._socket, [json.dumps({**answer, "pid": init.pid}).encode()], [init.pidfd])
            init.close()
        elif kind == "sockets":
            opened: list[socket.socket] = []
            try:
                opened += (socket.socket(*arguments) for arguments in wanted["sockets"])
                socket.send_fds(self._socket, [json.dumps(answer).encode()], [one.fileno() for one in opened])
            finally:
                for one in opened:
                    one.close()
        else:
            pid = self._start_program(wanted["module"], fds) if kind == "program" else self._start_server(wanted, fds)
            pidfd = os.pidfd_open(pid)
            try:
                socket.send_fds(self._socket, [json.dumps({**answer, "pid": pid}).encode()], [pidfd])
            finally:
                os.close(pidfd)

    def _start_init(self, namespaces: _Namespaces, fds: list[int]) -> _InitProcess:
        """Start a sandbox by its init process, the prepared one if it has these namespaces."""
        init, self._prepared, self._last_used = self._prepared, None, namespaces
        if init is None or not init.is_usable_for(namespaces):
            init = self._make_init(namespaces)
        init.start(fds)
        return init

    def _make_init(self, namespaces: _Namespaces) -> _InitProcess:
        return _InitProcess(namespaces, self._pidfd, (self._socket.fileno(), self._client_pidfd))

    def _start_server(self, wanted: dict[str, Any], fds: list[int]) -> int:
        """Start a forkserver in a network namespace: a new one, or ``fds[2]``, owned by the user namespace ``fds[1]``.

        ``fds[0]`` is the socket on which it serves. Raises OSError unless it is set up.
        """
        client_fd, *entered_fds = fds
        namespaces = _Namespaces(*wanted["namespaces"])
        server = None if entered_fds else self._spare
        if server is not None:
            self._spare = None
        if server is None or not server.is_usable_for(namespaces):
            server = _NetworkServer(self, namespaces, entered_fds)
        server.start(client_fd)
        if not entered_fds:
            self._last_network = namespaces
        return server.pid

    def become_server(self, server: _NetworkServer, entered_fds: Sequence[int], parent_socket: socket.socket) -> None:
        """Run a forkserver in a network namespace, in a fork of this process: enter it, report that, serve, exit."""
        try:
            self._detach()
            if parent_socket.recv(1) != b"1":
                return
            problem = _enter_network(entered_fds)
            for fd in entered_fds:
                os.close(fd)
            # Gaining capabilities in a user namespace cleared both.
            set_dumpable(True)  # another process of this user enters through /proc
            die_with_parent()
            parent_socket.send(str(problem).encode())
            inner = _Server(parent_socket.fileno(), self._client_pidfd)
            if not entered_fds:
                inner.prepare(server.namespaces)
            message, received, _, _ = socket.recv_fds(parent_socket, 1, 1)
            if message and received:
                inner.listen_on(received[0])
                with suppress(BrokenPipeError, ConnectionResetError):
                    inner.serve()
        finally:
            os._exit(0)

    def listen_on(self, client_fd: int) -> None:
        """Replace the current socket with the client's."""
        self._socket.close()
        self._socket = socket.socket(fileno=client_fd)

    def _start_program(self, module: str, fds: list[int]) -> int:
        """Start a module of forkwise as a program: call its ``main`` with the descriptors ``fds`` in a fork."""
        pid = os.fork()
        if pid == 0:
            try:
                self._detach()
                die_with_parent()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                importlib.import_module(module).main([self._client_pidfd, *fds])
            finally:
                os._exit(0)
        return pid

    def _detach(self) -> None:
        """Close, in a fork of this process, what belongs to the server and its client."""
        self._socket.close()
        os.close(self._pidfd)
        if self._prepared is not None:
            self._prepared.close()
        if self._spare is not None:
            self._spare.close()


class _NetworkServer:
    """A forkserver in a network namespace of its own, waiting for the socket of its client.

    The server keeps a spare one while it is idle, with an init process that has ``namespaces``. With ``entered_fds`` it
    enters the user and network namespaces behind these descriptors instead.
    """

    def __init__(self, server: _Server, namespaces: _Namespaces, entered_fds: Sequence[int] = ()) -> None:
        self.namespaces = namespaces
        self._socket, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_socket:
            self.pid = clone(0 if entered_fds else CLONE_NEWUSER | CLONE_NEWNET)
            if self.pid == 0:
                self._socket.close()
                server.become_server(self, entered_fds, child_socket)
        self._pidfd = os.pidfd_open(self.pid)
        try:
            if not entered_fds:
                write_maps(self.pid, namespaces.uid_map, namespaces.gid_map)
            self._socket.send(b"1")
            problem = int(self._socket.recv(32) or errno.ESRCH)
        except OSError as error:  # the child reads end-of-file and exits
            self.close()
            raise OSError(error.errno, error.strerror, f"/proc/{self.pid}/uid_map") from None
        if problem:
            self.close()
            raise OSError(problem, os.strerror(problem))

    def is_usable_for(self, namespaces: _Namespaces) -> bool:
        """Return whether it is meant for these namespaces and is alive. Close it if not."""
        if self.namespaces == namespaces and not _has_exited(self._pidfd):
            return True
        self.close()
        return False

    def start(self, client_fd: int) -> None:
        """Send it the socket of its client."""
        socket.send_fds(self._socket, [b"1"], [client_fd])
        self.close()

    def close(self) -> None:
        """Close the connection to it. If it has no client yet, it exits."""
        self._socket.close()
        os.close(self._pidfd)


def _enter_network(entered_fds: Sequence[int]) -> int:
    """Enter the user and network namespaces behind descriptors, or set up new ones. Return 0 or an error's number."""
    try:
        for fd, kind in zip(entered_fds, (CLONE_NEWUSER, CLONE_NEWNET), strict=False):
            setns(fd, kind)
        if not entered_fds:
            bring_up_loopback()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


class _Namespaces(NamedTuple):
    """The namespaces of a sandbox and their user maps, which must be known before its init process is created."""

    flags: int
    uid_map: str
    gid_map: str


class _InitProcess:
    """The init process of a sandbox, waiting for its request.

    While it is idle, the server prepares one of the kind that was used last. The mount namespace is created later, so
    that it has the mounts that exist when the sandbox starts.
    """

    def __init__(self, namespaces: _Namespaces, server_pidfd: int, server_fds: Sequence[int]) -> None:
        self.namespaces = namespaces
        self._socket, init_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with init_socket:
            self.pid = clone(namespaces.flags & ~CLONE_NEWNS)
            if self.pid == 0:
                self._socket.close()
                for fd in server_fds:
                    os.close(fd)
                _become_init(init_socket, server_pidfd, has_pid_namespace=bool(namespaces.flags & CLONE_NEWPID))
        self.pidfd = os.pidfd_open(self.pid)
        if namespaces.flags & CLONE_NEWUSER:
            try:
                write_maps(self.pid, namespaces.uid_map, namespaces.gid_map)
            except OSError as error:
                self.close()
                raise OSError(error.errno, error.strerror, f"/proc/{self.pid}/uid_map") from None

    def is_usable_for(self, namespaces: _Namespaces) -> bool:
        """Return whether it has these namespaces and is alive. Close it if not."""
        if self.namespaces == namespaces and not _has_exited(self.pidfd):
            return True
        self.close()
        return False

    def start(self, fds: list[int]) -> None:
        """Send it its request."""
        socket.send_fds(self._socket, [b"1"], fds)

    def close(self) -> None:
        """Close the connection to it. If it has no request yet, it exits."""
        self._socket.close()
        os.close(self.pidfd)


def _has_exited(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _die_with_server(number: signal.Signals, server_pidfd: int) -> None:
    """Have the kernel send this process a signal when the server ends. Exit if it has ended already."""
    die_with_parent(number)
    if _has_exited(server_pidfd):
        os._exit(0)


def _become_init(init_socket: socket.socket, server_pidfd: int, *, has_pid_namespace: bool) -> NoReturn:
    """Run the init process of a sandbox: set it up, start the command, reap, watch the clock, report the outcome."""
    # The end of a PID namespace's init kills everything in it. Without one, init kills its descendants itself.
    end_signal = signal.SIGKILL if has_pid_namespace else signal.SIGTERM
    _die_with_server(end_signal, server_pidfd)
    message, fds, _, _ = socket.recv_fds(init_socket, 1, _MAX_FDS)
    if not message:
        os._exit(0)
    init_socket.close()
    request_fd, *passed_fds, status_fd, start_fd = fds
    try:
        request = json.loads(os.pread(request_fd, os.fstat(request_fd).st_size, 0))
        os.close(request_fd)
        jail = Jail.load(request["jail"])
        home_fd = passed_fds.pop(0) if jail.has_home_fd else -1
        if not has_pid_namespace:
            adopt_orphans()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A PID namespace's init gets only the signals it blocks or handles: don't let the command send it SIGTERM.
        signals = {signal.SIGCHLD} if has_pid_namespace else {signal.SIGCHLD, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        if not request["terminal"]:
            os.setsid()
        join_groups(jail)
        if jail.flags & CLONE_NEWNS:
            unshare(CLONE_NEWNS)
        is_function = len(passed_fds) == 1
        if is_function:
            # Now the function's process may enter: before the unshare it would have entered the host's mounts.
            os.write(passed_fds[0], b"1")
        outlive_parent()  # killed right after a mount, it would leave directories that their owner cannot remove
        enter_root(jail, home_fd)
        _die_with_server(end_signal, server_pidfd)
        os.close(server_pidfd)
        if home_fd >= 0:
            os.close(home_fd)
        if request["reports_ready"]:
            report(status_fd, {"ready": True})
        if is_function:
            report(status_fd, _supervise_function(jail, request, passed_fds[0], start_fd, signals))
            os._exit(0)
        _wait_for_start(start_fd)
        set_dumpable(False)
        started = time.monotonic()
        # posix_spawn costs a fraction of a fork, but confines this process too, except for its capabilities. That is
        # harmless as it only waits from now on, unless there are limits or it has to kill descendants itself.
        spawns = has_pid_namespace and not jail.limits
        command = _spawn(jail, request, passed_fds) if spawns else _fork(jail, request, passed_fds, status_fd)
        for fd in passed_fds:
            os.close(fd)
        outcome = supervise(command, started, request["wall"], signals=signals)
        if not has_pid_namespace:
            kill_descendants()
        report(status_fd, outcome)
    except _CommandError as error:
        report(status_fd, error.outcome)
    except BaseException as error:  # noqa: BLE001 - any exception is reported, and this process ends
        report(status_fd, describe_failure(error))
    os._exit(0)


def _wait_for_start(start_fd: int) -> None:
    if os.read(start_fd, 1) != b"1":
        os._exit(1)  # the parent died before it was ready
    os.close(start_fd)


def _supervise_function(
    jail: Jail, request: dict[str, Any], function_socket: int, start_fd: int, signals: set[signal.Signals]
) -> dict[str, Any]:
    """Supervise a function's process, which enters from outside as a child of the client.

    It sends its process number once it is inside, which must be before this process stops being dumpable, and gets the
    go-ahead when everything is ready.
    """
    started = time.monotonic()
    number = os.read(function_socket, 32)
    if not number:  # it was not forked, or could not enter; then it reports that itself
        return {"cause": "exit", "code": None, "wall": time.monotonic() - started, "cpu": 0.0, "memory": 0}
    function_pidfd = os.pidfd_open(int(number))
    _wait_for_start(start_fd)
    set_dumpable(False)
    started = time.monotonic()
    os.write(function_socket, b"1")
    os.close(function_socket)
    apply_restrictions(jail, is_starter=True)
    return supervise(None, started, request["wall"], signals=signals, end_pidfds={function_pidfd: "exit"})


class _CommandError(Exception):
    """The sandbox is set up, but the command could not be started."""

    def __init__(self, error: OSError, name: str) -> None:
        self.outcome = {**describe_failure(error, name), "is_command": True}


def _spawn(jail: Jail, request: dict[str, Any], fds: list[int]) -> int:
    """Start the command with three descriptors and no others. Search PATH for it, as execvpe does."""
    set_cloexec_on_all()
    confine(jail, fds, is_starter=True)
    null = find_host_null(fds)
    actions = [
        (os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) if fd in null else (os.POSIX_SPAWN_DUP2, fd, number)
        for number, fd in enumerate(fds)
    ]
    argv, environment = request["argv"], request["env"]
    problem: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for directory in [""] if "/" in argv[0] else environment.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory, argv[0])
        try:
            os.stat(path)  # cheaper than a spawn that fails
            return os.posix_spawn(
                path, argv, environment, file_actions=actions, setsigmask=(), setsigdef=_RESET_SIGNALS
            )
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problem = error
    raise _CommandError(problem, argv[0])


def _fork(jail: Jail, request: dict[str, Any], fds: list[int], status_fd: int) -> int:
    """Start the command in a child that sets its own limits before the exec."""
    pid = os.fork()
    if pid:
        return pid
    try:
        set_dumpable(True)
        null = find_host_null(fds)
        for number, fd in enumerate(fds):
            os.dup2(os.open("/dev/null", os.O_RDWR) if fd in null else fd, number)
        set_cloexec_on_all()
        for signal_number in _RESET_SIGNALS:
            signal.signal(signal_number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        confine(jail)
        try:
            os.execvpe(request["argv"][0], request["argv"], request["env"])
        except OSError as error:
            raise _CommandError(error, request["argv"][0]) from None
    except _CommandError as error:
        report(status_fd, error.outcome)
    except BaseException as error:  # noqa: BLE001
        report(status_fd, describe_failure(error))
    os._exit(127)


if __name__ == "__main__":
    with suppress(ProcessLookupError, BrokenPipeError, ConnectionResetError):  # the client was killed meanwhile
        main(int(sys.argv[1]), int(sys.argv[3]))
    os._exit(0)  # the client waits for this exit, and freeing every object would take most of that time
