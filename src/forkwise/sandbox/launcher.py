"""The client of the forkserver: one per process, started when it is first needed, usable from any thread."""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from forkwise.errors import NamespaceError
from forkwise.linux import fds
from forkwise.sandbox import forkserver
from forkwise.sandbox.jail import JAIL_FLAGS, map_ids
from forkwise.sandbox.process import LANDLOCK_HINT

if TYPE_CHECKING:
    from forkwise.sandbox.jail import Jail

__all__ = ["ForkserverClient", "ForkserverConnection", "prepare_forkserver", "start_sandbox", "use_forkserver"]

_T = TypeVar("_T")

# Only what the interpreter needs: the init process of a sandbox has the forkserver's environment in its memory.
_PASSED_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH")
_MAX_FDS = 16  # in one answer
_lock = fds.ForkSafeLock()
_client: ForkserverClient | None = None


def start_sandbox(
    jail: Jail, request: dict[str, Any], passed_fds: Sequence[int], client: ForkserverConnection | None = None
) -> tuple[int, int]:
    """Start a sandbox, by this process's forkserver or by that of ``client``. Return its process number and a pidfd.

    ``passed_fds`` are, if ``jail.has_home_fd``, the detached mount of the home directory's view; a command's stdin,
    stdout and stderr, or a socket to a function's process; then the pipe for the outcome, and the pipe from which the
    go-ahead is read.
    """
    if client is not None:
        return client.start_sandbox(jail, request, passed_fds)
    return use_forkserver(lambda own: own.start_sandbox(jail, request, passed_fds))


def use_forkserver(call: Callable[[ForkserverConnection], _T]) -> _T:
    """Call a function with this process's forkserver, and again with a new one if the first was killed."""
    global _client
    with _lock.hold():
        if _client is None or not _client.is_own:
            _client = ForkserverClient()
        try:
            return call(_client)
        except (ConnectionError, EOFError):
            _client.close()  # it was killed, and its sandboxes with it: use a new one
            _client = ForkserverClient()
            try:
                return call(_client)
            except (ConnectionError, EOFError) as error:
                raise NamespaceError("a sandbox could not be started: its forkserver ended twice") from error


def prepare_forkserver() -> None:
    """Start this process's forkserver, with a network for the first sandbox, and do not wait until it is ready."""
    global _client
    with _lock.hold():
        if _client is None or not _client.is_own:
            _client = ForkserverClient()
            with suppress(ConnectionError):  # reported when it is needed
                _client.prepare_server((JAIL_FLAGS, *map_ids()))


class ForkserverConnection:
    """The connection to a forkserver, on the descriptor ``fd`` of a socket. Any thread may use it."""

    def __init__(self, fd: int) -> None:
        self.owner = fds.process_token()
        self.serial = 0
        self.socket = socket.socket(fileno=fd)
        self._request_lock = threading.Lock()

    @property
    def is_own(self) -> bool:
        """Whether this process opened it, and not the one this process was forked from."""
        return self.owner is fds.process_token()

    def start_sandbox(self, jail: Jail, request: dict[str, Any], passed_fds: Sequence[int]) -> tuple[int, int]:
        """Start a sandbox. Return the number of its init process and a pidfd."""
        request_fd = fds.track(lambda: os.memfd_create("forkwise-request", os.MFD_CLOEXEC))
        try:
            os.write(request_fd, json.dumps({**request, "jail": jail.dump()}).encode())
            namespaces = [jail.flags, jail.uid_map, jail.gid_map]
            wanted = {"kind": "sandbox", "namespaces": namespaces}
            answer, (pidfd,) = self._ask(wanted, (request_fd, *passed_fds), _build_error)
        finally:
            fds.close(request_fd)
        return int(answer["pid"]), pidfd

    def start_server(self, namespaces: tuple[int, str, str], passed_fds: Sequence[int]) -> tuple[int, int]:
        """Start a forkserver in a network namespace, and return its process number and a pidfd.

        ``passed_fds`` are a socket to it and, to enter an existing namespace, descriptors of the user namespace that
        owns it and of the network namespace. Otherwise both are new. ``namespaces`` are those that the sandboxes in it
        will have: flags, and the maps of users and groups, which are also those of the new user namespace.
        """
        wanted = {"kind": "server", "namespaces": namespaces}
        answer, (pidfd,) = self._ask(wanted, passed_fds, _build_network_error)
        return int(answer["pid"]), pidfd

    def prepare_server(self, namespaces: tuple[int, str, str]) -> None:
        """Have it prepare what the first ``start_server`` needs, without waiting for that."""
        with self._request_lock:
            self.socket.send(json.dumps({"kind": "prepare", "namespaces": namespaces, "serial": self.serial}).encode())

    def start_program(self, module: str, passed_fds: Sequence[int]) -> tuple[int, int]:
        """Call ``main`` of a module of forkwise in a fork of the forkserver. Return its process number and a pidfd."""
        answer, (pidfd,) = self._ask({"kind": "program", "module": module}, passed_fds, _build_program_error)
        return int(answer["pid"]), pidfd

    def open_sockets(self, *sockets: tuple[int, int, int]) -> list[int]:
        """Open sockets in the forkserver's network namespace: family, kind, protocol. Return their descriptors."""
        return self._ask({"kind": "sockets", "sockets": sockets}, (), _build_socket_error)[1]

    def _ask(
        self,
        wanted: dict[str, Any],
        passed_fds: Sequence[int],
        build_error: Callable[[dict[str, Any]], Exception],
    ) -> tuple[dict[str, Any], list[int]]:
        """Send a request and return its answer with the descriptors that came along."""
        with self._request_lock:
            self.serial += 1
            serial = self.serial
            socket.send_fds(self.socket, [json.dumps({**wanted, "serial": serial}).encode()], passed_fds)
            while True:
                answer, received_fds = self._receive()
                if answer["serial"] == serial and "errno" not in answer:
                    return answer, received_fds
                fds.close(*received_fds)  # an answer to a call that was interrupted while it waited
                if answer["serial"] == serial:
                    raise build_error(answer)

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        """Return the next answer and the descriptors that come with it."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.poll()
        message, received = fds.receive(self.socket, 4096, _MAX_FDS)
        if not message:
            raise EOFError
        return json.loads(message), received

    def close(self) -> None:
        """Close the connection: the forkserver ends, and with it every sandbox it made."""
        if self.is_own:
            fds.close(self.socket.detach())


class ForkserverClient(ForkserverConnection):
    """One forkserver that this process starts.

    With ``own_session`` False it stays in this process's session, so that its sandboxes can use this process's
    terminal.
    """

    def __init__(self, *, own_session: bool = True) -> None:
        client_fd, server_fd = fds.socketpair()
        super().__init__(client_fd)
        program = os.path.abspath(forkserver.__file__)
        root = os.path.dirname(os.path.dirname(os.path.dirname(program)))
        try:
            with fds.fork_lock():  # Popen waits until all copies of its own descriptors are closed
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", program, str(server_fd), root, str(os.getpid())],
                    pass_fds=[server_fd],
                    cwd="/",  # so that it keeps no mount of the caller busy
                    env={name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ},
                    stdin=subprocess.DEVNULL,
                    start_new_session=own_session,
                )
        finally:
            fds.close(server_fd)
        atexit.register(self.close)

    def close(self) -> None:
        """Stop the forkserver, and with it every sandbox it made."""
        if self.is_own:
            super().close()
            self.process.wait()


def _build_error(answer: dict[str, Any]) -> NamespaceError:
    """Build the error for a refusal of the forkserver."""
    reason = os.strerror(answer["errno"])
    if answer.get("at"):
        return NamespaceError(
            f"the users of a new user namespace could not be mapped: {reason} ({answer['at']}). {LANDLOCK_HINT}",
            errno=answer["errno"],
        )
    return NamespaceError(
        f"the namespaces of a sandbox could not be created: {reason} ({_find_cause()}). {LANDLOCK_HINT}",
        errno=answer["errno"],
    )


def _build_network_error(answer: dict[str, Any]) -> NamespaceError:
    reason = os.strerror(answer["errno"])
    return NamespaceError(
        f"a network namespace could not be created or entered: {reason} ({_find_cause()}). Allow that, or use the "
        "network 'host', on the command line --network host",
        errno=answer["errno"],
    )


def _build_program_error(answer: dict[str, Any]) -> NamespaceError:
    reason = os.strerror(answer["errno"])
    return NamespaceError(f"a helper of the sandbox could not be forked: {reason}", errno=answer["errno"])


def _build_socket_error(answer: dict[str, Any]) -> OSError:
    return OSError(answer["errno"], os.strerror(answer["errno"]))


def _find_cause() -> str:
    """Return the kernel setting that forbids namespaces, as far as it can be seen."""
    for setting, forbidding in (
        ("user/max_user_namespaces", "0"),
        ("kernel/unprivileged_userns_clone", "0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
    ):
        try:
            with open(f"/proc/sys/{setting}") as file:
                if file.read().strip() == forbidding:
                    return f"{setting.replace('/', '.')} is {forbidding}"
        except OSError:
            continue
    return "a security policy or a container's filter forbids them; forkwise doctor says more"
