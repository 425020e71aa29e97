"""The proxy: a program beside the sandboxes, through which those without the host's network reach the outside.

One process serves all networks of a forkwise process. It accepts on sockets that were opened inside the networks, and
moves data with splice(2) between two sockets, through a pipe, without reading it. It is a fork of the forkserver, with
few imports, and has one thread besides those that resolve names.

Everything that a client sends is hostile input. One network can use up only its own share: connections, names being
resolved, records in its log. A client or a server that hangs delays nobody else.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import resource
import select
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from forkwise.linux.landlock import abi, restrict
from forkwise.sandbox.network.handshake import (
    LARGEST_HEAD,
    SOCKS_ACCEPT,
    BadRequestError,
    Target,
    format_refusal,
    parse_http,
    parse_socks,
)
from forkwise.sandbox.network.names import Names
from forkwise.sandbox.network.policy import HostPolicy

if TYPE_CHECKING:
    from forkwise.sandbox.network.upstream import Dialog, Upstream, Upstreams

__all__ = ["main"]

_MOST_CONNECTIONS = 512  # of one network; further ones wait in the kernel's queue
_MOST_RECORDS = 5000  # in the log of one network
_MOST_LOOKUPS = 8  # of one network at a time
_MOST_RESOLVERS = 32  # threads
_MOST_ADDRESSES = 4  # to try for one name
_SETUP_S = 30.0  # each, to receive the request, to resolve the name, and to connect to the server
_WITHOUT_NAMES_S = 60.0  # after names could not be resolved, an upstream proxy gets them unresolved
_DRAIN_S = 5.0  # for a client to read a refusal
_ACCEPT_PAUSE_S = 0.1  # if this process has no descriptors left
_MOST_DRAINED = 1 << 20  # bytes of a refused request that are read
_READ_SIZE = 1 << 16
_PIPE_SIZE = 1 << 18
_SPLICE_FLAGS = 3  # SPLICE_F_MOVE | SPLICE_F_NONBLOCK
_TURNS = 16  # splices of one direction before the next connection is served
_MOST_FREE_PIPES = 64
_MOST_CONTROL_FDS = 128
_MOST_CONTROL_BYTES = 1 << 17
_SO_ORIGINAL_DST = 80
_EDGE = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_SHORT_OF_FDS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def main(passed_fds: list[int]) -> None:
    """Serve until the client is gone: ``passed_fds`` are its pidfd and a socket to it."""
    client_pidfd, control_fd = passed_fds
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    if abi() >= 1:
        restrict(writable=[])  # it writes only to logs, through descriptors that are already open
    _Proxy(client_pidfd, socket.socket(fileno=control_fd)).run()


class _Proxy:
    """The event loop. All events are edge-triggered, except those of sockets that accept or receive datagrams."""

    def __init__(self, client_pidfd: int, control: socket.socket) -> None:
        self.epoll = select.epoll()
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.resolver = _Resolver(self)
        self.pipes = _Pipes()
        self.unfinished: deque[_Connection] = deque()  # relays that used up their turns
        self._spaces: dict[int, _Space] = {}
        self._timers: deque[tuple[float, Callable[[], None]]] = deque()
        self._late_timers: deque[tuple[float, Callable[[], None]]] = deque()
        self._control = control
        self._is_running = True
        self.watch(client_pidfd, select.EPOLLIN, lambda _events: self._stop())
        self.watch(control.fileno(), select.EPOLLIN, self._on_control)

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        self.handlers[fd] = handler
        self.epoll.register(fd, events)

    def forget(self, fd: int) -> None:
        if self.handlers.pop(fd, None) is not None:
            self.epoll.unregister(fd)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call a function after ``_SETUP_S`` or after a shorter time, which needs a queue of its own."""
        timers = self._late_timers if delay_s >= _SETUP_S else self._timers
        timers.append((time.monotonic() + delay_s, call))

    def run(self) -> None:
        while self._is_running:
            for fd, events in self.epoll.poll(self._find_timeout(), 256):
                handler = self.handlers.get(fd)
                if handler is not None:
                    handler(events)
            for _ in range(len(self.unfinished)):
                self.unfinished.popleft().relay()
            now = time.monotonic()
            for timers in (self._timers, self._late_timers):
                while timers and timers[0][0] <= now:
                    timers.popleft()[1]()

    def _find_timeout(self) -> float:
        if self.unfinished:
            return 0
        due = [timers[0][0] for timers in (self._timers, self._late_timers) if timers]
        return max(0.0, min(due) - time.monotonic()) + 0.001 if due else -1

    def _stop(self) -> None:
        self._is_running = False

    def _on_control(self, _events: int) -> None:
        try:
            message, received, _, _ = socket.recv_fds(self._control, _MOST_CONTROL_BYTES, _MOST_CONTROL_FDS)
        except ConnectionError:
            message, received = b"", []
        if not message:
            self._stop()
            return
        order = json.loads(message)
        if "add" in order:
            self._spaces[order["add"]] = _Space(self, order, list(received))
        else:
            space = self._spaces.pop(order["remove"], None)
            if space is not None:
                space.close()
            if order["answers"]:
                with suppress(OSError):
                    self._control.send(message)


def _load_upstreams(document: dict[str, Any]) -> Upstreams:
    from forkwise.sandbox.network.upstream import Upstreams  # noqa: PLC0415 - few environments name one

    return Upstreams.load(document)


class _Space:
    """One network: its rules, its listeners, its connections, its log."""

    def __init__(self, proxy: _Proxy, order: dict[str, Any], received: list[int]) -> None:
        self.proxy = proxy
        self.policy = HostPolicy(tuple(order["allowed"]), tuple(order["denied"]), tuple(order["host_ports"]))
        self.upstreams = None if order["upstreams"] is None else _load_upstreams(order["upstreams"])
        self.names = Names()
        self.connections: set[_Connection] = set()
        self.lookups = 0
        self.waiting_lookups: deque[_Connection] = deque()
        self._log_fd = received.pop() if order["has_log"] else -1
        self._records = self._left_out = 0
        self._listeners: dict[socket.socket, Callable[[int], None]] = {}
        self._is_paused = False
        for fd, (kind, port) in zip(received, order["listeners"], strict=True):
            opened = socket.socket(fileno=fd)
            opened.setblocking(False)
            self._listeners[opened] = self._build_handler(opened, kind, port)
        self._resume()

    def _build_handler(self, listener: socket.socket, kind: str, port: int) -> Callable[[int], None]:
        if kind == "names":
            return lambda _events: self._answer_names(listener)
        return lambda _events: self._accept(listener, kind, port)

    def _answer_names(self, listener: socket.socket) -> None:
        for _ in range(_TURNS):
            try:
                query, sender = listener.recvfrom(_READ_SIZE)
            except OSError:
                return
            if (answer := self.names.answer(query)) is not None:
                with suppress(OSError):
                    listener.sendto(answer, sender)

    def _accept(self, listener: socket.socket, kind: str, port: int) -> None:
        for _ in range(_TURNS):
            if len(self.connections) >= _MOST_CONNECTIONS:
                self._pause()
                return
            try:
                accepted, _ = listener.accept()
            except OSError as error:
                if error.errno in _SHORT_OF_FDS:
                    self._pause()
                    self.proxy.call_later(_ACCEPT_PAUSE_S, self._resume)
                return
            _Connection(self, accepted, kind, port)

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            for listener in self._listeners:
                self.proxy.forget(listener.fileno())

    def _resume(self) -> None:
        self._is_paused = False
        for listener, handler in self._listeners.items():
            if listener.fileno() not in self.proxy.handlers:
                self.proxy.watch(listener.fileno(), select.EPOLLIN, handler)

    def remove(self, connection: _Connection) -> None:
        self.connections.discard(connection)
        if self._is_paused:
            self._resume()

    def record(self, entry: dict[str, Any]) -> None:
        """Append to the log, a line of JSON each."""
        if self._records >= _MOST_RECORDS:
            self._left_out += 1
            return
        self._records += 1
        self._write(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        if self._log_fd >= 0:
            with suppress(OSError):  # a full disk must not end the proxy of other networks
                os.write(self._log_fd, json.dumps(entry).encode() + b"\n")

    def close(self) -> None:
        for listener in self._listeners:
            self.proxy.forget(listener.fileno())
            listener.close()
        self._listeners = {}
        self.waiting_lookups.clear()
        for connection in list(self.connections):
            connection.close()
        if self._left_out:
            self._write({"left_out": self._left_out})
        if self._log_fd >= 0:
            os.close(self._log_fd)
            self._log_fd = -1


class _Connection:
    """One connection of a client: its request, the server's socket, and the two directions of data."""

    def __init__(self, space: _Space, client: socket.socket, kind: str, port: int) -> None:
        client.setblocking(False)
        self.space = space
        self.proxy = space.proxy
        self.client = client
        self.server: socket.socket | None = None
        self.kind = kind
        self.target: Target | None = None
        self.flows: tuple[_Flow, _Flow] | None = None
        self._state = "request"  # then lookup, upstream lookup, connect, dialog, relay, refused, closed
        self.lookup: tuple[str, int] = ("", 0)
        self._upstream: Upstream | None = None
        self._dialog: Dialog | None = None
        self._address: str | None = None  # of the server, if an upstream proxy is used and the name could be resolved
        self._data = b""
        self._has_greeted = False
        self._addresses: list[tuple[int, tuple[Any, ...]]] = []
        self._problem = ""
        self._drained = 0
        self._is_denied = False
        self._started = time.time()
        space.connections.add(self)
        with suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.proxy.watch(client.fileno(), _EDGE, self._on_client)
        self._limit_state(_SETUP_S)
        if kind == "redirect":
            self._start_redirected()
        elif kind == "forward":
            self._start(Target("forward", "127.0.0.1", port))

    def _limit_state(self, time_s: float) -> None:
        """Give up after a time if the state is still the same."""
        state, reference = self._state, weakref.ref(self)  # many short connections must not stay in memory until then

        def check() -> None:
            connection = reference()
            if connection is not None and connection._state == state:
                connection.close()

        self.proxy.call_later(time_s, check)

    def _start_redirected(self) -> None:
        try:
            raw = self.client.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
        except OSError:  # it was not redirected: a client connected to this port itself
            self.close()
            return
        _, port, packed = struct.unpack_from(">HH4s", raw)
        address = socket.inet_ntoa(packed)
        host = self.space.names.find_name(address)
        if host is None:
            self.close()
        else:
            self._start(Target("redirect", host, port))

    def _on_client(self, events: int) -> None:
        if self._state == "relay":
            self.relay()
        elif self._state == "request":
            self._read_request()
        elif self._state == "refused":
            self._drain()
        elif events & (select.EPOLLERR | select.EPOLLHUP):
            self.close()

    def _receive(self) -> bytes | None:
        """Return what the client sent: None if nothing yet, empty at its end."""
        try:
            return self.client.recv(_READ_SIZE)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _read_request(self) -> None:
        while self._state == "request":
            piece = self._receive()
            if piece is None:
                return
            if not piece:
                self.close()
                return
            self._data += piece
            try:
                target = self._parse()
            except BadRequestError as error:
                self._refuse(error.status, str(error))
                return
            if target is not None:
                self._data = b""
                self._start(target)

    def _parse(self) -> Target | None:
        if self._data[0] != 5:
            return parse_http(self._data)
        self.kind = "socks"
        greeting, target = parse_socks(self._data)
        if greeting and not self._has_greeted:
            self._has_greeted = True
            with suppress(OSError):
                self.client.send(SOCKS_ACCEPT)
        if target is None and len(self._data) > LARGEST_HEAD:
            raise BadRequestError("the request is too long")
        return target

    def _start(self, target: Target) -> None:
        """Check the requested host, and look up its name."""
        self.target, self.kind = target, target.kind
        decision = self.space.policy.check(target.host, target.port)
        if target.kind == "forward" or decision.host_port is not None:
            self._connect_to([(socket.AF_INET, ("127.0.0.1", target.port)), (socket.AF_INET6, ("::1", target.port))])
        elif not decision.is_allowed:
            self._deny(decision.reason)
        else:
            if self.space.upstreams is not None and not self.space.policy.is_local(target.host):
                self._upstream = self.space.upstreams.find(target.kind, target.host, target.port)
            if self._upstream is not None and self.proxy.resolver.is_without_names:
                self._find_upstream(self._upstream)
            else:
                self._look_up("lookup", target.host, target.port)

    def _look_up(self, state: str, host: str, port: int) -> None:
        self._state = state
        self.lookup = host, port
        self._limit_state(_SETUP_S)
        self.proxy.resolver.add(self)

    def _find_upstream(self, upstream: Upstream) -> None:
        """Look up the upstream proxy of the connection. Its address is not checked, because the user chose it."""
        self._look_up("upstream lookup", upstream.host, upstream.port)

    def on_resolved(self, found: list[tuple[int, tuple[Any, ...]]], problem: str) -> None:
        if self._state == "upstream lookup":
            if problem:
                self._refuse(502, f"the upstream proxy {self._upstream} cannot be resolved: {problem}")
            else:
                self._connect_to(found[:_MOST_ADDRESSES])
            return
        if self._state != "lookup":
            return
        if self._upstream is not None:
            # The upstream resolves the name itself, so every address has to be allowed. A name that only it can resolve
            # is left to it.
            decisions = [(entry, self.space.policy.check_address(entry[1][0])) for entry in found]
            denied = [decision for _, decision in decisions if not decision.is_allowed]
            if denied:
                self._deny(denied[0].reason)
            else:
                self._address = found[0][1][0] if found else None
                self._find_upstream(self._upstream)
            return
        if problem:
            assert self.target is not None
            self._refuse(502, f"{self.target.host} cannot be resolved: {problem}")
            return
        decisions = [(entry, self.space.policy.check_address(entry[1][0])) for entry in found]
        allowed = [entry for entry, decision in decisions if decision.is_allowed]
        if allowed:
            self._connect_to(allowed[:_MOST_ADDRESSES])
        else:
            self._deny(decisions[0][1].reason)

    def _connect_to(self, addresses: list[tuple[int, tuple[Any, ...]]]) -> None:
        self._addresses = addresses
        self._try_next("")

    def _try_next(self, problem: str) -> None:
        """Connect to the next address, or refuse the request with the problem of the last one."""
        self._close_server()
        self._problem = problem or self._problem
        while self._addresses:
            family, address = self._addresses.pop(0)
            try:
                self.server = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
                self.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                self.proxy.watch(self.server.fileno(), _EDGE, self._on_server)
                failed = self.server.connect_ex(address)
            except OSError as error:
                failed = error.errno or errno.EIO
            if failed in (0, errno.EINPROGRESS):
                self._state = f"connect {len(self._addresses)}"
                self._limit_connect()
                return
            self._problem = os.strerror(failed)
            self._close_server()
        assert self.target is not None
        where = f"{self.target.host}:{self.target.port}"
        if self._upstream is not None:
            where = f"the upstream proxy {self._upstream}"
        self._refuse(502, f"{where} cannot be reached: {self._problem}")

    def _limit_connect(self) -> None:
        state, reference = self._state, weakref.ref(self)

        def check() -> None:
            connection = reference()
            if connection is not None and connection._state == state:
                connection._try_next("timed out")

        self.proxy.call_later(_SETUP_S, check)

    def _on_server(self, events: int) -> None:
        if self._state == "relay":
            self.relay()
        elif self._state == "dialog":
            self._continue_dialog()
        elif self._state.startswith("connect") and events & (select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP):
            assert self.server is not None
            failed = self.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed:
                self._try_next(os.strerror(failed))
            elif not events & select.EPOLLHUP:
                if self._upstream is None:
                    self._start_relay()
                else:
                    self._start_dialog(self._upstream)

    def _start_dialog(self, upstream: Upstream) -> None:
        """Ask an upstream proxy for the server."""
        from forkwise.sandbox.network.upstream import build_absolute_request, build_dialog  # noqa: PLC0415

        assert self.target is not None
        host, port = self.target.host, self.target.port
        if self.target.kind == "http":
            request = build_absolute_request(upstream, host, port, self.target.forwarded)
            if request is not None:
                forwarded, left = request
                self.target = self.target._replace(forwarded=forwarded)
                self._start_relay(most_sent=left)
                return
        self._dialog = build_dialog(upstream, host, port, self._address)
        self._state = "dialog"
        self._limit_state(_SETUP_S)
        self._continue_dialog()

    def _continue_dialog(self) -> None:
        """Send pending data to the upstream proxy, and read its answers, until the tunnel is open."""
        from forkwise.sandbox.network.upstream import UpstreamError  # noqa: PLC0415

        assert self._dialog is not None
        assert self.server is not None
        try:
            while True:
                while self._dialog.to_send:
                    sent = self.server.send(self._dialog.to_send)
                    self._dialog.to_send = self._dialog.to_send[sent:]
                piece = self.server.recv(_READ_SIZE)
                if not piece:
                    raise UpstreamError("it closed the connection")
                if self._dialog.receive(piece):
                    break
        except BlockingIOError:
            return
        except (OSError, UpstreamError) as error:
            problem = getattr(error, "strerror", None) or str(error)
            self._refuse(502, f"the upstream proxy {self._upstream} does not connect: {problem}")
            return
        self._start_relay(self._dialog.rest)

    def _start_relay(self, received: bytes = b"", most_sent: int | None = None) -> None:
        assert self.server is not None
        assert self.target is not None
        self._state = "relay"
        self.flows = (
            _Flow(self.client, self.server, self.target.forwarded, most_sent),
            _Flow(self.server, self.client, self.target.greeting + received),
        )
        self.flows[1].moved = -len(self.target.greeting)  # sent by the proxy itself, not by the server
        self.relay()

    def relay(self) -> None:
        """Move what can be moved in both directions."""
        if self._state != "relay" or self.flows is None:
            return
        try:
            turns_left = [flow.move(self.proxy.pipes) for flow in self.flows]
        except OSError:  # one of the two has reset its connection, or there are no descriptors left for a pipe
            self.close()
            return
        if self.flows[0].is_done and self.flows[1].is_done:
            if self.flows[0].is_limited:
                self._close_server()
                self._state = "refused"  # then read and drop what the client sends beyond its request
                self._limit_state(_DRAIN_S)
                self._drain()
            else:
                self.close()
        elif not all(turns_left):
            self.proxy.unfinished.append(self)

    def _deny(self, reason: str) -> None:
        self._is_denied = True
        self._problem = reason
        self._refuse(403, reason)

    def _refuse(self, status: int, message: str) -> None:
        """Tell the client why the request is refused, then close the connection once the client has closed it."""
        self._problem = message
        self._close_server()
        assert self.target is not None or self.kind in ("proxy", "socks")
        kind = "http" if self.kind == "proxy" else self.kind
        if kind == "redirect" and self.target is not None and self.target.port == 80:
            kind = "http"
        answer = format_refusal(kind, status, message)
        if not answer:  # the protocol has no error answer: reset the connection
            with suppress(OSError):
                self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close()
            return
        try:
            self.client.send(answer)
            self.client.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        self._state = "refused"
        self._limit_state(_DRAIN_S)
        self._drain()

    def _drain(self) -> None:
        """Read what the client still sends: closing a socket with unread data would reset it, and lose the answer."""
        while self._drained < _MOST_DRAINED:
            piece = self._receive()
            if piece is None:
                return
            if not piece:
                break
            self._drained += len(piece)
        self.close()

    def _close_server(self) -> None:
        if self.server is not None:
            self.proxy.forget(self.server.fileno())
            self.server.close()
            self.server = None

    def close(self) -> None:
        if self._state == "closed":
            return
        self._state = "closed"
        self._record()
        self.proxy.forget(self.client.fileno())
        self.client.close()
        self._close_server()
        for flow in self.flows or ():
            flow.close()
        self.space.remove(self)

    def _record(self) -> None:
        if self.target is None:
            return
        sent, received = (0, 0) if self.flows is None else (self.flows[0].moved, max(self.flows[1].moved, 0))
        entry = {
            "at": round(self._started, 3),
            "host": self.target.host.lower()[:255],
            "port": self.target.port,
            "kind": self.target.kind,
            "allowed": not self._is_denied,
            "sent": sent,
            "received": received,
        }
        if self._problem and self.flows is None:
            entry["problem"] = self._problem[:500]
        self.space.record(entry)


class _Flow:
    """One direction of a connection. ``prefix`` is sent first, and then at most ``limit`` bytes, if that is given.

    It has a pipe only while data is in it, so that a connection that waits costs nothing but its two sockets.
    """

    __slots__ = ("_is_at_end", "_left", "_pending", "_pipe", "_prefix", "_source", "_target", "is_done", "moved")

    def __init__(self, source: socket.socket, target: socket.socket, prefix: bytes, limit: int | None = None) -> None:
        self._source = source
        self._target = target
        self._prefix = prefix
        self._left = limit
        self._pipe: tuple[int, int] | None = None
        self._pending = 0
        self._is_at_end = False
        self.is_done = False
        self.moved = 0

    @property
    def is_limited(self) -> bool:
        """Whether it ends after a number of bytes, and not with its source."""
        return self._left is not None

    def move(self, pipes: _Pipes) -> bool:
        """Move data until one side blocks. Return False if there may be more, but its turns are used up."""
        source_fd, target_fd = self._source.fileno(), self._target.fileno()
        for _ in range(_TURNS):
            if self.is_done:
                return True
            try:
                if self._prefix:
                    sent = self._target.send(self._prefix)
                    self._prefix = self._prefix[sent:]
                    self.moved += sent
                elif self._pending:
                    assert self._pipe is not None
                    count = os.splice(self._pipe[0], target_fd, self._pending, flags=_SPLICE_FLAGS)
                    self.moved += count
                    self._pending -= count
                    if not self._pending:
                        pipes.give(self._pipe)
                        self._pipe = None
                elif self._is_at_end:
                    self._target.shutdown(socket.SHUT_WR)
                    self.is_done = True
                elif self._left == 0:
                    self.is_done = True
                else:
                    self._read(source_fd, pipes)
            except BlockingIOError:
                return True
        return False

    def _read(self, source_fd: int, pipes: _Pipes) -> None:
        pipe = pipes.take()
        try:
            most = _PIPE_SIZE if self._left is None else min(_PIPE_SIZE, self._left)
            self._pending = os.splice(source_fd, pipe[1], most, flags=_SPLICE_FLAGS)
        except BaseException:
            pipes.give(pipe)
            raise
        if self._pending:
            self._pipe = pipe
            if self._left is not None:
                self._left -= self._pending
        else:
            self._is_at_end = True
            pipes.give(pipe)

    def close(self) -> None:
        """Close the pipe with what is left in it."""
        if self._pipe is not None:
            for fd in self._pipe:
                os.close(fd)
            self._pipe = None


class _Pipes:
    """Empty pipes, reused."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []

    def take(self) -> tuple[int, int]:
        if self._free:
            return self._free.pop()
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(OSError):  # larger than an unprivileged user may set
            _set_pipe_size(writer)
        return reader, writer

    def give(self, pipe: tuple[int, int]) -> None:
        if len(self._free) < _MOST_FREE_PIPES:
            self._free.append(pipe)
        else:
            for fd in pipe:
                os.close(fd)


def _set_pipe_size(fd: int) -> None:
    import fcntl  # noqa: PLC0415

    fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)


class _Resolver:
    """Threads that resolve names, started when they are needed."""

    def __init__(self, proxy: _Proxy) -> None:
        self._jobs: queue.SimpleQueue[tuple[_Connection, str, int]] = queue.SimpleQueue()
        self._answers: deque[tuple[_Connection, list[tuple[int, tuple[Any, ...]]], str]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._threads = self._busy = 0
        self._without_names_until = 0.0
        proxy.watch(self._wake_fd, select.EPOLLIN, self._on_answers)

    @property
    def is_without_names(self) -> bool:
        """Whether no name server answered lately, as behind an upstream proxy: another query would only cause delay."""
        return time.monotonic() < self._without_names_until

    def add(self, connection: _Connection) -> None:
        """Resolve the name that a connection needs, or queue it if its network already has too many lookups."""
        space = connection.space
        if space.lookups >= _MOST_LOOKUPS:
            space.waiting_lookups.append(connection)
            return
        space.lookups += 1
        self._busy += 1
        if self._busy > self._threads and self._threads < _MOST_RESOLVERS:
            self._threads += 1
            threading.Thread(target=self._work, daemon=True).start()
        self._jobs.put((connection, *connection.lookup))

    def _work(self) -> None:
        while True:
            connection, host, port = self._jobs.get()
            found: list[tuple[int, tuple[Any, ...]]] = []
            problem = ""
            try:
                entries = socket.getaddrinfo(host.removeprefix("[").removesuffix("]"), port, type=socket.SOCK_STREAM)
                found = [(family, address) for family, _, _, _, address in entries]
                problem = "" if found else "no address"
            except (OSError, UnicodeError) as error:
                problem = getattr(error, "strerror", None) or str(error)
                if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
                    self._without_names_until = time.monotonic() + _WITHOUT_NAMES_S
            self._answers.append((connection, found, problem))
            os.eventfd_write(self._wake_fd, 1)

    def _on_answers(self, _events: int) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        while self._answers:
            connection, found, problem = self._answers.popleft()
            space = connection.space
            space.lookups -= 1
            self._busy -= 1
            connection.on_resolved(found, problem)
            while space.waiting_lookups and space.lookups < _MOST_LOOKUPS:
                waiting = space.waiting_lookups.popleft()
                if waiting.target is not None and waiting in space.connections:
                    self.add(waiting)
