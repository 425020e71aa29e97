"""The near end of the forkserver: one for this process, started when first needed, asked by any thread."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from typing import Any

from forkwise.errors import NamespaceError
from forkwise.sandbox import zygote
from forkwise.sandbox.holders import hold
from forkwise.sandbox.jail import Jail

__all__ = ["Server", "start"]

# It needs no more than its interpreter does: what it knows, the first process of a sandbox knows.
_ITS_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH")
_lock = threading.Lock()
_server: Server | None = None


def start(
    jail: Jail, request: dict[str, Any], fds: tuple[int, int, int, int, int], server: Server | None = None
) -> tuple[int, int]:
    """Have a sandbox made, by the process's own forkserver unless another is given; gives its number and a pidfd.

    ``fds`` are stdin, stdout, stderr, where it tells its outcome, and from where it takes the word to begin.
    """
    global _server
    content = json.dumps({**request, "jail": jail.dump()}).encode()
    if server is not None:
        return server.ask(content, fds)
    with _lock:
        if _server is None or not _server.is_mine:
            _server = Server()
        try:
            return _server.ask(content, fds)
        except (ConnectionError, EOFError):
            _server = Server()  # it was killed; its sandboxes went with it, this one is made by a new one
            return _server.ask(content, fds)


class Server:
    """One forkserver. With ``own_session`` False it stays in this process's session, and its sandboxes have the
    terminal that this process has."""

    def __init__(self, *, own_session: bool = True) -> None:
        self.owner = os.getpid()
        self.near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(zygote.__file__))))
        with far:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", zygote.__file__, str(far.fileno()), root, str(self.owner)],
                pass_fds=[far.fileno()],
                env={name: os.environ[name] for name in _ITS_VARIABLES if name in os.environ},
                stdin=subprocess.DEVNULL,
                start_new_session=own_session,
            )
        hold(self)
        atexit.register(self.close)

    def descriptors(self) -> list[int]:
        """Those that are not for functions' processes."""
        return [self.near.fileno()]

    @property
    def is_mine(self) -> bool:
        """Whether this process started it, and not the one this process was forked from."""
        return self.owner == os.getpid()

    def ask(self, content: bytes, fds: tuple[int, int, int, int, int]) -> tuple[int, int]:
        letter = os.memfd_create("forkwise-request", os.MFD_CLOEXEC)
        try:
            os.write(letter, content)
            os.lseek(letter, 0, os.SEEK_SET)
            socket.send_fds(self.near, [b"start"], [letter, *fds])
        finally:
            os.close(letter)
        answer, received, _, _ = socket.recv_fds(self.near, 4096, 1)
        if not answer:
            raise EOFError
        said = json.loads(answer)
        if "errno" in said:
            raise _refusal(said)
        return int(said["pid"]), received[0]

    def close(self) -> None:
        """End it, and with it every sandbox it made."""
        if self.is_mine:
            self.near.close()
            self.process.wait()


def _refusal(said: dict[str, Any]) -> NamespaceError:
    reason = os.strerror(said["errno"])
    if said.get("maps"):
        return NamespaceError(f"the users of a new namespace could not be set: {reason}")
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
