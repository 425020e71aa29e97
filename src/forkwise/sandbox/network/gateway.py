"""Connecting a network space with the outside: through the proxy, or through an uplink of its own.

This process starts one proxy, when it is first needed, for all its networks.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import re
import select
import socket
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forkwise.errors import ForkwiseWarning, NamespaceError, ProcessBranchError
from forkwise.linux import fds
from forkwise.sandbox.launcher import use_forkserver
from forkwise.sandbox.network.redirect import REDIRECT_NEEDS, redirect_to
from forkwise.sandbox.network.space import NetworkSpace, listen_on
from forkwise.sandbox.network.uplink import Uplink

if TYPE_CHECKING:
    from forkwise.sandbox.confinement import Confinement
    from forkwise.sandbox.launcher import ForkserverConnection

__all__ = ["NetworkLog", "explain_refusal", "open_logged_network", "open_network", "resolve_network", "share_network"]

#: Opens the file in which the connections of a network are logged; it returns a descriptor, or -1 for no log.
NetworkLog = Callable[[], int]

_MODULE = "forkwise.sandbox.network.proxy"
_NAMES_PORT = 53
_LARGEST_PORT = 65535
_SERVED_TIMEOUT_S = 0.5
_REFUSED = re.compile(
    r"ECONNREFUSED|connection ?refused|connect call failed|could not connect|can't connect|failed to connect",
    re.IGNORECASE,
)
_LOOPBACK_PORT = re.compile(
    r"(?:localhost|127\.0\.0\.1|\[?::1\]?|0\.0\.0\.0)['\"]?\)?(?:[:,]|,? port[ =]+)['\" ]*(\d{1,5})\b", re.IGNORECASE
)
_BACKLOG = 512
_ANSWER_TIMEOUT_MS = 10_000
_LONGEST_ANSWER = 4096
_TCP = (socket.AF_INET, socket.SOCK_STREAM, 0)
#: The proxy's socket, and those of the redirection: its TCP socket, names, and netlink for routes and nftables.
_PROXY_SOCKETS = (
    _TCP,
    _TCP,
    (socket.AF_INET, socket.SOCK_DGRAM, 0),
    (16, socket.SOCK_RAW, 0),
    (16, socket.SOCK_RAW, 12),
)
_NOT_PROXIED = "localhost,127.0.0.1,::1,.localhost"
#: Variables that name a proxy, in the spelling of each program.
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")

_lock = fds.ForkSafeLock()
_connection: _ProxyConnection | None = None
_problem: tuple[object, str] | None = None  # the process that tried, and why it failed
_spare: NetworkSpace | None = None  # the one that was opened to find that out
_numbers = itertools.count(1)


def resolve_network(confinement: Confinement) -> Confinement:
    """Return a confinement with a network that is not ``auto``: ``proxy``, or with a warning the host's.

    The host's is used only if this machine has no network namespaces for this user, which is tried once per process.
    """
    if confinement.network != "auto":
        _check_rules(confinement)
        return confinement
    problem = _find_problem()
    if problem:
        _check_rules(replace(confinement, network="host"), problem)
        share_network(problem)
    return replace(confinement, network="host" if problem else "proxy")


def share_network(problem: str) -> None:
    """Warn that a command with the network ``auto`` gets the host's, and why."""
    message = f"attempts share the network of this machine, and its ports: {problem}"
    warnings.warn(message, ForkwiseWarning, stacklevel=3)


def _check_rules(confinement: Confinement, problem: str = "") -> None:
    """Raise NamespaceError if there are rules that the network cannot enforce."""
    network, cause = confinement.network, f": {problem}" if problem else ""
    if (confinement.allowed_hosts or confinement.denied_hosts) and network != "proxy":
        raise NamespaceError(
            f"hosts can be allowed or denied only in the network 'proxy', and this one is {network!r}{cause}. Use "
            "--network proxy, or leave out --allow-host and --deny-host"
        )
    if confinement.host_ports and network == "none":
        raise NamespaceError(
            "the network 'none' reaches no port of this machine: use 'proxy' or 'private', on the command line "
            "--network proxy, or leave out --host-port"
        )


def _find_problem() -> str:
    """Try to open a network namespace, once per process. Return why that failed."""
    global _problem, _spare
    with _lock.hold():
        if _problem is None or _problem[0] is not fds.process_token():
            try:
                _spare = NetworkSpace()
                _problem = fds.process_token(), ""
            except NamespaceError as error:
                _problem = fds.process_token(), str(error)
        return _problem[1]


def explain_refusal(confinement: Confinement, printed: str) -> str:
    """Explain why a command could not connect to a port: this machine's loopback serves it, the command's does not.

    ``printed`` is what the command printed. Returns an empty text if that is not the reason. Use it only for what the
    user's own files printed, such as the baseline: an attempt must not learn which ports are in use.
    """
    if confinement.network in ("host", "none"):
        return ""
    for line in printed.splitlines():
        if _REFUSED.search(line):
            for port in map(int, _LOOPBACK_PORT.findall(line)):
                if port not in confinement.host_ports and _is_served(port):
                    return (
                        f"a connection to port {port} was refused in the sandbox, which has ports of its own, and this "
                        f"machine serves that port: --host-port {port} lets the tests and the attempts reach it"
                    )
    return ""


def _is_served(port: int) -> bool:
    if not 0 < port <= _LARGEST_PORT:
        return False
    try:
        socket.create_connection(("127.0.0.1", port), timeout=_SERVED_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def open_network(
    confinement: Confinement, *, log_fd: int = -1, client: ForkserverConnection | None = None
) -> NetworkSpace:
    """Open the network of a confinement for one or several sandboxes: ``none``, ``private`` or ``proxy``.

    The proxy writes one line of JSON to ``log_fd`` for each connection. Closing the space ends everything that belongs
    to it; then the log is complete. Raises NamespaceError if the machine does not allow it.
    """
    mode = confinement.network
    if mode in ("host", "auto"):
        raise ValueError(f"the network {mode!r} has no namespace of its own")
    space = (None if client is not None else _take_spare()) or NetworkSpace(client=client)
    try:
        if mode == "private":
            space.on_close.append(Uplink(space.pid).close)
        if mode == "proxy" or confinement.host_ports:
            _connect_to_proxy(space, confinement, log_fd)
    except BaseException:
        space.close()
        raise
    return space


def _take_spare() -> NetworkSpace | None:
    """Return the network that was opened as a trial, if it is still unused."""
    global _spare
    with _lock.hold():
        space, _spare = _spare, None
    if space is None or not space.client.is_own:
        return None
    if space.process.alive:
        return space
    space.close()  # its forkserver was killed
    return None


def open_logged_network(
    confinement: Confinement, network_log: NetworkLog | None, *, client: ForkserverConnection | None = None
) -> NetworkSpace:
    """Open the network of a confinement, and the log of the connections through its proxy."""
    log_fd = -1 if network_log is None else network_log()
    try:
        return open_network(confinement, log_fd=log_fd, client=client)
    finally:
        if log_fd >= 0:
            os.close(log_fd)


def _connect_to_proxy(space: NetworkSpace, confinement: Confinement, log_fd: int) -> None:
    """Open the sockets inside, and pass them to the proxy."""
    is_proxied = confinement.network == "proxy"
    ports = list(dict.fromkeys(confinement.host_ports))
    with ExitStack() as stack:
        wanted = _PROXY_SOCKETS if is_proxied else ()
        opened = [stack.enter_context(one) for one in space.open_sockets(*wanted, *([_TCP] * len(ports)))]
        listeners: list[tuple[socket.socket, str, int]] = []
        if is_proxied:
            listen_on(opened[0], backlog=_BACKLOG)
            listeners.append((opened[0], "proxy", 0))
            _set_variables(space, opened[0].getsockname()[1])
            listeners += _redirect(space, *opened[1 : len(wanted)])
        for port, listener in zip(ports, opened[len(wanted) :], strict=True):
            listen_on(listener, port, backlog=_BACKLOG)
            listeners.append((listener, "forward", port))
        number = next(_numbers)
        order = {
            "add": number,
            "allowed": confinement.allowed_hosts,
            "denied": confinement.denied_hosts,
            "host_ports": confinement.host_ports,
            "listeners": [[kind, port] for _, kind, port in listeners],
            "has_log": log_fd >= 0,
            "upstreams": _read_upstreams() if is_proxied else None,
        }
        passed_fds = [listener.fileno() for listener, _, _ in listeners] + ([log_fd] if log_fd >= 0 else [])
        connection = _use_proxy(order, passed_fds)
    space.on_close.append(lambda: connection.remove(number, waits=log_fd >= 0))


def _read_upstreams() -> dict[str, Any] | None:
    """Return the proxies that this process's environment names; forkwise's own proxy connects through them."""
    if not any(os.environ.get(name) for name in _PROXY_VARIABLES):
        return None
    from forkwise.sandbox.network.upstream import read_upstreams  # noqa: PLC0415 - few environments name one

    return read_upstreams(os.environ).dump()


def _set_variables(space: NetworkSpace, port: int) -> None:
    # Not socks5://, which the same port speaks: Python's httpx fails on it if an optional package is not installed.
    url = f"http://127.0.0.1:{port}"
    space.variables |= dict.fromkeys(_PROXY_VARIABLES, url)
    space.variables |= {"NO_PROXY": _NOT_PROXIED, "no_proxy": _NOT_PROXIED, "NODE_USE_ENV_PROXY": "1"}


def _redirect(
    space: NetworkSpace,
    redirected: socket.socket,
    names: socket.socket,
    route: socket.socket,
    netfilter: socket.socket,
) -> list[tuple[socket.socket, str, int]]:
    """Redirect clients that ignore the variables, if the kernel can. Return the listeners for that."""
    listen_on(redirected, backlog=_BACKLOG)
    try:
        redirect_to(redirected.getsockname()[1], route, netfilter)
        names.bind(("127.0.0.1", _NAMES_PORT))
    except OSError as error:
        space.redirect_problem = f"{error.strerror or error}; it needs {REDIRECT_NEEDS}"
        return []
    space.answers_names = True
    return [(names, "names", 0), (redirected, "redirect", 0)]


def _use_proxy(order: dict[str, object], passed_fds: list[int]) -> _ProxyConnection:
    """Send an order to this process's proxy, and start one if there is none or it was killed."""
    global _connection
    with _lock.hold():
        if _connection is not None and _connection.is_own:
            with suppress(ConnectionError):
                _connection.send(order, passed_fds)
                return _connection
            _connection.close()
        _connection = _ProxyConnection()
        try:
            _connection.send(order, passed_fds)
        except ConnectionError as error:
            raise ProcessBranchError("the proxy of the network ended as soon as it was started") from error
        return _connection


class _ProxyConnection:
    """The connection to a proxy process, which ends with it."""

    def __init__(self) -> None:
        self._owner = fds.process_token()
        own_fd, proxy_fd = fds.socketpair()
        try:
            self._pid, self._pidfd = use_forkserver(lambda own: own.start_program(_MODULE, (proxy_fd,)))
        except BaseException:
            fds.close(own_fd)
            raise
        finally:
            fds.close(proxy_fd)
        self._socket = socket.socket(fileno=own_fd)
        self._lock = threading.Lock()
        atexit.register(self.close)

    @property
    def is_own(self) -> bool:
        """Whether this process opened it, and not the one this process was forked from."""
        return self._owner is fds.process_token()

    def send(self, order: dict[str, object], passed_fds: list[int]) -> None:
        """Send an order. Raises ConnectionError if the proxy has ended."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(order).encode()], passed_fds)

    def remove(self, number: int, *, waits: bool) -> None:
        """Remove a network, and with ``waits`` wait until its connections are closed and its log is complete."""
        if not self.is_own or self._socket.fileno() < 0:
            return
        with self._lock, suppress(ConnectionError):
            wanted = json.dumps({"remove": number, "answers": waits}).encode()
            self._socket.send(wanted)
            if not waits:
                return
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            while poll.poll(_ANSWER_TIMEOUT_MS):
                answer = self._socket.recv(_LONGEST_ANSWER)
                if not answer or answer == wanted:
                    break

    def close(self) -> None:
        """Close the connection: the proxy ends."""
        if self.is_own and self._socket.fileno() >= 0:
            fds.close(self._socket.detach(), self._pidfd)
