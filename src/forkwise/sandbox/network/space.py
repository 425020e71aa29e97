"""NetworkSpace: a network namespace with its own loopback and ports, which several sandboxes of one branch share.

A forkserver inside holds it. Everything that this forkserver starts is inside too, and a socket that it opens belongs
to the namespace wherever it is used: so this process can connect to a server in a branch, or listen there, without
entering the namespace itself.

The namespace is owned by a user namespace of its own. Those of the sandboxes are its children: a process in a sandbox
has no rights over the network it is in.

While a space is registered for a branch, the file ``network`` in the branch's home names the forkserver by its process
number and start time, as ``ProcessId.dump``, with the variables that commands need in it. Another process of the same
user can enter it that way (``find``), unless it is in a user namespace of its own (``forkwise.linux.namespace``), which
would have no rights over this one.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from forkwise.errors import NamespaceError, ProcessBranchError
from forkwise.linux import fds
from forkwise.linux.process_id import ProcessId
from forkwise.sandbox.jail import JAIL_FLAGS, map_ids
from forkwise.sandbox.launcher import ForkserverConnection, use_forkserver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forkwise.files.branch import Branch

__all__ = ["NetworkSpace", "find_process", "listen_on"]

_NS_GET_USERNS = 0xB701
_RECORD = "network"  # in a branch's home
_LONGEST_RECORD = 4096  # bytes
_BACKLOG = 128


class NetworkSpace:
    """A network namespace whose loopback is up. ``close``, or the end of this process, ends everything in it.

    ``client`` is the forkserver that starts it, for sandboxes on this process's terminal. A space that was attached
    is only left by ``close``; what other processes started in it keeps running.
    """

    def __init__(self, *, client: ForkserverConnection | None = None) -> None:
        self._start((), client)

    @classmethod
    def attach(cls, process: ProcessId, *, client: ForkserverConnection | None = None) -> NetworkSpace:
        """Enter the network namespace of another process of this user, such as ``space.process`` of another program.

        Raises ProcessBranchError if that process has ended. Its number may belong to another process by then, which is
        never entered.
        """
        space = cls.__new__(cls)
        network_fd = owner_fd = -1
        try:
            try:
                network_fd = fds.track(lambda: os.open(f"/proc/{process.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))
                owner_fd = fds.track(lambda: fcntl.ioctl(network_fd, _NS_GET_USERNS))
            except (FileNotFoundError, ProcessLookupError):
                pass
            except PermissionError as error:
                raise NamespaceError(
                    f"the network of process {process.label} cannot be entered: {error.strerror}. It belongs to "
                    "another user, or this process is in a user namespace of its own",
                    errno=error.errno,
                ) from error
            # Checked after the open: only if the process is still alive do the descriptors belong to it.
            if owner_fd < 0 or process.is_elsewhere or process.space != ProcessId.current().space or not process.alive:
                raise ProcessBranchError(f"the network cannot be entered: its process {process.label} has ended")
            space._start((owner_fd, network_fd), client)
        finally:
            fds.close(network_fd, owner_fd)
        return space

    @classmethod
    def find(cls, branch: Branch, *, client: ForkserverConnection | None = None) -> NetworkSpace | None:
        """Enter the space that a running program registered for a branch. Return None if there is none."""
        found = _find_record(branch)
        if found is None:
            return None
        process, variables, answers_names = found
        try:
            space = cls.attach(process, client=client)
            space.variables, space.answers_names = variables, answers_names
            return space
        except ProcessBranchError as error:
            if isinstance(error, NamespaceError):
                raise
            return None  # it has ended meanwhile

    def _start(self, entered_fds: Sequence[int], client: ForkserverConnection | None) -> None:
        own_fd, server_fd = fds.socketpair()
        try:
            namespaces, passed_fds = (JAIL_FLAGS, *map_ids()), (server_fd, *entered_fds)
            if client is not None:
                pid, pidfd = client.start_server(namespaces, passed_fds)
            else:
                pid, pidfd = use_forkserver(lambda own: own.start_server(namespaces, passed_fds))
        except BaseException:
            fds.close(own_fd)
            raise
        finally:
            fds.close(server_fd)
        self._pidfd = pidfd
        self._records: list[str] = []
        #: What ends when the space is closed: an uplink, its place in the proxy.
        self.on_close: list[Callable[[], None]] = []
        #: Variables that every command in it gets: where its proxy is.
        self.variables: dict[str, str] = {}
        #: Whether names are answered inside, on port 53.
        self.answers_names = False
        #: Why clients that ignore the variables are not redirected to the proxy.
        self.redirect_problem = ""
        #: The forkserver inside. Sandboxes that it starts are in this network.
        self.client = ForkserverConnection(own_fd)
        #: The process that holds the namespace.
        self.process = ProcessId.of(pid)

    @property
    def pid(self) -> int:
        """The number of the process that holds the namespace."""
        return self.process.pid

    def open_socket(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> socket.socket:
        """Open a socket inside. It is used here like any other."""
        return self.open_sockets((family, kind, 0))[0]

    def open_sockets(self, *sockets: tuple[int, int, int]) -> list[socket.socket]:
        """Open several sockets inside, each of a family, a kind and a protocol."""
        try:
            opened_fds = self.client.open_sockets(*sockets)
        except (EOFError, ConnectionError) as error:
            raise ProcessBranchError("the network of the branch has ended") from error
        # From now on the objects close them; a forked child may have them, as any other socket of the program.
        return [socket.socket(fileno=_untrack(fd)) for fd in opened_fds]

    def connect(self, port: int, host: str = "127.0.0.1", *, timeout: float | None = None) -> socket.socket:
        """Connect to a server inside. Raises OSError, such as ConnectionRefusedError, if that fails."""
        opened = self.open_socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            opened.settimeout(timeout)
            opened.connect((host, port))
            opened.settimeout(None)
        except BaseException:
            opened.close()
            raise
        return opened

    def listen(self, port: int = 0, host: str = "127.0.0.1", *, backlog: int = _BACKLOG) -> socket.socket:
        """Listen on a port inside, 0 for any, and return the socket, on which this process accepts connections."""
        opened = self.open_socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            listen_on(opened, port, host, backlog)
        except BaseException:
            opened.close()
            raise
        return opened

    def register(self, branch: Branch) -> None:
        """Record this space as the network of a branch, so that other processes find it until it is closed."""
        path = f"{branch.home}/{_RECORD}"
        fresh = f"{path}.{secrets.token_hex(4)}"
        with open(fresh, "x") as file:
            json.dump([self.process.dump(), self.variables, self.answers_names], file)
        os.rename(fresh, path)
        self._records.append(path)

    def close(self) -> None:
        """Leave the network. If this object created it, every sandbox that was started through ``client`` ends."""
        if not self.client.is_own:
            return
        for path in self._records:
            with suppress(OSError):
                found = _read_record(path)
                if found is not None and found[0] == self.process:
                    os.unlink(path)
        self._records = []
        while self.on_close:
            self.on_close.pop()()
        self.client.close()
        fds.close(self._pidfd)

    def __enter__(self) -> NetworkSpace:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def listen_on(opened: socket.socket, port: int = 0, host: str = "127.0.0.1", backlog: int = _BACKLOG) -> None:
    """Bind a socket to a port, 0 for any, and listen."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.bind((host, port))
    opened.listen(backlog)


def find_process(branch: Branch) -> ProcessId | None:
    """Return the process that holds the network which is registered for a branch, if it is alive."""
    found = _find_record(branch)
    return None if found is None else found[0]


def _find_record(branch: Branch) -> tuple[ProcessId, dict[str, str], bool] | None:
    """Return the record of a branch's network, if the process that holds the network is alive."""
    try:
        found = _read_record(f"{branch.home}/{_RECORD}")
    except OSError:
        return None
    return found if found is not None and found[0].alive else None


def _read_record(path: str) -> tuple[ProcessId, dict[str, str], bool] | None:
    """Read a record; None if it is truncated or invalid."""
    with open(path, "rb") as file:
        text = file.read(_LONGEST_RECORD)
    try:
        dumped, variables, answers_names = json.loads(text)
        process = ProcessId.load(dumped)
        environment = {str(name): str(value) for name, value in variables.items()}
    except (ValueError, TypeError, AttributeError):
        return None
    return (process, environment, bool(answers_names)) if process.pid > 0 else None


def _untrack(fd: int) -> int:
    """Replace a registered descriptor with an unregistered duplicate, which a socket object may close; return that."""
    duplicate = os.dup(fd)
    fds.close(fd)
    return duplicate
