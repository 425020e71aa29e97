"""The near end of the forkserver: one for this process, started when first needed, asked by any thread."""

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
from typing import Any

from forkwise.errors import NamespaceError
from forkwise.linux import fds
from forkwise.sandbox import forkserver
from forkwise.sandbox.jail import Jail

__all__ = ["Server", "start"]

# It needs no more than its interpreter does: what it knows, the first process of a sandbox knows.
_ITS_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH")
_lock = threading.Lock()
_server: Server | None = None


def start(jail: Jail, request: dict[str, Any], passed: Sequence[int], server: Server | None = None) -> tuple[int, int]:
    """Have a sandbox made, by the process's own forkserver unless another is given; gives its number and a pidfd.

    ``passed`` are a command's stdin, stdout and stderr, or a socket to a function's process; then where the outcome is
    told, and from where the word to begin is taken.
    """
    global _server
    if server is not None:
        return server.ask(jail, request, passed)
    with _lock:
        if _server is None or not _server.is_mine:
            _server = Server()
        try:
            return _server.ask(jail, request, passed)
        except (ConnectionError, EOFError):
            _server.close()  # it was killed; its sandboxes went with it, this one is made by a new one
            _server = Server()
            return _server.ask(jail, request, passed)


class Server:
    """One forkserver. With ``own_session`` False it stays in this process's session, and its sandboxes have the
    terminal that this process has."""

    def __init__(self, *, own_session: bool = True) -> None:
        self.owner = fds.process_token()
        self.asked = 0
        near, far = fds.socketpair()
        self.near = socket.socket(fileno=near)
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(forkserver.__file__))))
        try:
            with fds.fork_lock():  # Popen has descriptors of its own, and waits until all copies are closed
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", forkserver.__file__, str(far), root, str(os.getpid())],
                    pass_fds=[far],
                    env={name: os.environ[name] for name in _ITS_VARIABLES if name in os.environ},
                    stdin=subprocess.DEVNULL,
                    start_new_session=own_session,
                )
        finally:
            fds.close(far)
        atexit.register(self.close)

    @property
    def is_mine(self) -> bool:
        """Whether this process started it, and not the one this process was forked from."""
        return self.owner is fds.process_token()

    def ask(self, jail: Jail, request: dict[str, Any], passed: Sequence[int]) -> tuple[int, int]:
        """Have a sandbox made; by one thread at a time."""
        self.asked += 1
        letter = fds.track(lambda: os.memfd_create("forkwise-request", os.MFD_CLOEXEC))
        try:
            os.write(letter, json.dumps({**request, "jail": jail.dump()}).encode())
            wanted = {"serial": self.asked, "space": [jail.flags, jail.uid_map, jail.gid_map]}
            socket.send_fds(self.near, [json.dumps(wanted).encode()], [letter, *passed])
        finally:
            fds.close(letter)
        while True:
            said, pidfd = self._answer()
            if said["serial"] == self.asked and "errno" not in said:
                return int(said["pid"]), pidfd
            fds.close(pidfd)  # for somebody who was interrupted while waiting for it, and let it go
            if said["serial"] == self.asked:
                raise _refusal(said)

    def _answer(self) -> tuple[dict[str, Any], int]:
        """The next one, and the descriptor that comes with it, or -1."""
        poll = select.poll()
        poll.register(self.near, select.POLLIN)
        poll.poll()
        said = b""

        def receive() -> int:
            nonlocal said
            said, received, _, _ = socket.recv_fds(self.near, 4096, 1)
            return received[0] if received else -1

        pidfd = fds.track(receive)
        if not said:
            raise EOFError
        return json.loads(said), pidfd

    def close(self) -> None:
        """End it, and with it every sandbox it made."""
        if self.is_mine:
            fds.close(self.near.detach())
            self.process.wait()


def _be_forked() -> None:
    """In a fork of this process: the lock may have been held by a thread that is not there."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_be_forked)


def _refusal(said: dict[str, Any]) -> NamespaceError:
    reason = os.strerror(said["errno"])
    if said.get("at"):
        return NamespaceError(f"the users of a new namespace could not be set: {reason} ({said['at']})")
    return NamespaceError(
        f"no namespaces could be made for a sandbox: {reason} ({_what_forbids()}). Allow them, or take "
        "Confinement(landlock_instead=True), which keeps writes to the branch without namespaces"
    )


def _what_forbids() -> str:
    """The setting of the kernel that is in the way, as far as it tells."""
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
    return "a security policy or a container's filter forbids them: forkwise doctor says more"
