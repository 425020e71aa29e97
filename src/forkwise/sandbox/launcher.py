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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forkwise.errors import NamespaceError
from forkwise.linux import fds
from forkwise.sandbox import forkserver
from forkwise.sandbox.process import LANDLOCK_HINT

if TYPE_CHECKING:
    from forkwise.sandbox.jail import Jail

__all__ = ["ForkserverClient", "start_sandbox"]

# Only what the interpreter needs: the init process of a sandbox has the forkserver's environment in its memory.
_PASSED_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH")
_lock = threading.Lock()
_client: ForkserverClient | None = None


def start_sandbox(
    jail: Jail, request: dict[str, Any], passed_fds: Sequence[int], client: ForkserverClient | None = None
) -> tuple[int, int]:
    """Start a sandbox, by this process's forkserver or by that of ``client``. Return its process number and a pidfd.

    ``passed_fds`` are a command's stdin, stdout and stderr, or a socket to a function's process; then the pipe for the
    outcome, and the pipe from which the go-ahead is read.
    """
    global _client
    if client is not None:
        return client.start_sandbox(jail, request, passed_fds)
    with _lock:
        if _client is None or not _client.is_own:
            _client = ForkserverClient()
        try:
            return _client.start_sandbox(jail, request, passed_fds)
        except (ConnectionError, EOFError):
            _client.close()  # it was killed, and its sandboxes with it: use a new one
            _client = ForkserverClient()
            try:
                return _client.start_sandbox(jail, request, passed_fds)
            except (ConnectionError, EOFError) as error:
                raise NamespaceError("a sandbox could not be started: its forkserver ended twice") from error


class ForkserverClient:
    """One forkserver.

    With ``own_session`` False it stays in this process's session, so that its sandboxes can use this process's
    terminal.
    """

    def __init__(self, *, own_session: bool = True) -> None:
        self.owner = fds.process_token()
        self.serial = 0
        client_fd, server_fd = fds.socketpair()
        self.socket = socket.socket(fileno=client_fd)
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

    @property
    def is_own(self) -> bool:
        """Whether this process started it, and not the one this process was forked from."""
        return self.owner is fds.process_token()

    def start_sandbox(self, jail: Jail, request: dict[str, Any], passed_fds: Sequence[int]) -> tuple[int, int]:
        """Start a sandbox. Only one thread may call this at a time."""
        self.serial += 1
        request_fd = fds.track(lambda: os.memfd_create("forkwise-request", os.MFD_CLOEXEC))
        try:
            os.write(request_fd, json.dumps({**request, "jail": jail.dump()}).encode())
            wanted = {"serial": self.serial, "space": [jail.flags, jail.uid_map, jail.gid_map]}
            socket.send_fds(self.socket, [json.dumps(wanted).encode()], [request_fd, *passed_fds])
        finally:
            fds.close(request_fd)
        while True:
            answer, pidfd = self._receive()
            if answer["serial"] == self.serial and "errno" not in answer:
                return int(answer["pid"]), pidfd
            fds.close(pidfd)  # an answer to a call that was interrupted while it waited
            if answer["serial"] == self.serial:
                raise _build_error(answer)

    def _receive(self) -> tuple[dict[str, Any], int]:
        """Return the next answer and the descriptor that comes with it, or -1."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.poll()
        message = b""

        def receive() -> int:
            nonlocal message
            message, received, _, _ = socket.recv_fds(self.socket, 4096, 1)
            return received[0] if received else -1

        pidfd = fds.track(receive)
        if not message:
            raise EOFError
        return json.loads(message), pidfd

    def close(self) -> None:
        """Stop the forkserver, and with it every sandbox it made."""
        if self.is_own:
            fds.close(self.socket.detach())
            self.process.wait()


def _reset_lock() -> None:
    """Replace the lock in a fork of this process: a thread that does not exist there may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock)


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
