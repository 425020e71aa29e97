"""PreviewListener: one HTTP listener on the host's loopback for the servers inside branches.

The head of each request is read, checked, and passed on over a connection of its own; after the heads, bytes are
relayed. WebSockets and server-sent events therefore work, and no part of one request can be mistaken for another. It
speaks HTTP/1.1 only.

A request names the label in ``Host`` and has its token: in the URL of the first request, which sets a cookie and
redirects to the URL without it, or in the field ``Forkwise-Token``. Neither reaches the server, which is not trusted.
Requests that change something, and WebSockets, must not come from a page of another origin.
"""

from __future__ import annotations

import errno
import html
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from urllib.parse import parse_qsl, urlencode

from forkwise.preview.address import DOMAIN, TokenBook, format_address, parse_host, split_label
from forkwise.preview.http_head import MAX_HEAD, HeadError, HttpHead, parse_request, parse_response

__all__ = ["DEFAULT_PORT", "Connect", "PreviewListener", "TargetError"]

DEFAULT_PORT = 7390
"""The port that is tried first, so that addresses stay the same across restarts."""

#: Connects to a port of the branch with a label; without a port, to its only one. Raises TargetError.
Connect = Callable[[str, int | None], socket.socket]

TOKEN = "forkwise-token"
"""The name of the token in a URL and, ignoring case, in a header field."""

_HEAD_TIMEOUT_S = 20.0
_MAX_CONNECTIONS = 256
_IDLE_THREADS = 8
_PIECE = 256 << 10
_SAFE = ("GET", "HEAD", "OPTIONS")
_TRIED_PORTS = 20
_DOMAIN_OF_COOKIE = re.compile(r";[ \t]*domain[ \t]*(?:=[^;]*)?", re.IGNORECASE)  # would reach other branches
_DRAINED = 1 << 20  # bytes of a refused request that are read
_DRAIN_TIMEOUT_S = 1.0
_BACKLOG = 128
_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
}


class TargetError(Exception):
    """A server in a branch cannot be reached; the text says why, and ``status`` is the answer to the client."""

    def __init__(self, message: str, status: int = 502) -> None:
        super().__init__(message)
        self.status = status


class PreviewListener:
    """Serves every label for which ``connect`` finds a server, from threads of its own, until it is closed.

    ``port`` is the port to listen on; None takes the default, or one of the next that are free. Raises OSError if the
    port is taken.
    """

    def __init__(self, connect: Connect, *, port: int | None = None) -> None:
        self._connect = connect
        self._tokens = TokenBook()
        self._sockets, self.port = _listen(port)
        self._cookie = f"forkwise-preview-{self.port}"
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._idle = dict.fromkeys(self._sockets, 0)
        for listening in self._sockets:
            self._add_thread(listening)

    def __enter__(self) -> PreviewListener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and end all connections."""
        for listening in self._sockets:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
            listening.close()
        with self._lock:
            for opened in self._open:
                with suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)

    def format_url(self, label: str) -> str:
        """Return the URL to open in a browser, with its token."""
        query = urlencode({TOKEN: self._tokens.make("url", label)})
        return format_address(label, self.port, f"/?{query}")

    def make_token(self, label: str) -> str:
        """Return the token of a label, for the field ``Forkwise-Token`` of programs that take no cookies."""
        return self._tokens.make("url", label)

    def _add_thread(self, listening: socket.socket) -> None:
        with self._lock:
            self._idle[listening] += 1
        threading.Thread(target=self._accept, args=(listening,), name="preview", daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        """Accept connections and serve them. Several threads do this, each from accept to close."""
        while True:
            try:
                client, _ = listening.accept()
            except OSError as error:
                if error.errno in (errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    select.select([], [], [], 0.05)  # out of file descriptors: retry when a connection has ended
                    continue
                return  # the listener was closed
            if not self._slots.acquire(blocking=False):
                _answer(client, 503, "too many connections are open; close some pages")
                client.close()
                continue
            with self._lock:
                self._idle[listening] -= 1
                is_last = self._idle[listening] == 0
            if is_last:
                self._add_thread(listening)
            self._serve(client)
            with self._lock:
                if self._idle[listening] >= _IDLE_THREADS:
                    return
                self._idle[listening] += 1

    def _serve(self, client: socket.socket) -> None:
        try:
            with self._tracked(client), suppress(OSError):
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    self._exchange(client)
                except HeadError as error:
                    _answer(client, error.status, f"the request was refused: {error}")
                except TimeoutError:
                    _answer(client, 408, "the request did not arrive in time")
                except TargetError as error:
                    _answer(client, error.status, str(error))
        finally:
            self._slots.release()

    @contextmanager
    def _tracked(self, opened: socket.socket) -> Iterator[None]:
        with self._lock:
            self._open.add(opened)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(opened)
            opened.close()

    def _exchange(self, client: socket.socket) -> None:
        """Serve one request."""
        data, rest = _read_head(_Hurried(client, _HEAD_TIMEOUT_S))
        if not data:
            return
        request = parse_request(data)
        label = self._check(client, request)
        if label is None:
            return
        client.settimeout(None)
        found = split_label(label)
        assert found is not None
        is_websocket = request.upgrades_to_websocket
        self._clean_request(request, label, is_websocket=is_websocket)
        with closing(self._connect(*found)) as server, self._tracked(server), suppress(OSError):
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._relay(client, server, request, rest, is_websocket=is_websocket)

    def _check(self, client: socket.socket, request: HttpHead) -> str | None:
        """Return the label if the request is allowed; otherwise answer it and return None."""
        host = request.get("host")
        label = parse_host(host, self.port)
        if label is None:
            _answer(client, 403, f"this listener serves only names such as k3f9ab-2--3000.{DOMAIN}:{self.port}")
            return None
        origin = request.get("origin")
        is_own = origin in ("", f"http://{host.lower()}")
        if not is_own and (request.method not in _SAFE or request.upgrades_to_websocket):
            _answer(client, 403, "the request comes from a page of another origin")
            return None
        path, _, query = request.target.partition("?")
        given = request.get(TOKEN)
        if given and self._tokens.check("url", label, given):
            return label
        if TOKEN in query and request.method in ("GET", "HEAD"):
            words = parse_qsl(query, keep_blank_values=True, max_num_fields=1000)
            tokens = [value for name, value in words if name == TOKEN]
            if any(self._tokens.check("url", label, one) for one in tokens):
                kept = urlencode([(name, value) for name, value in words if name != TOKEN])
                is_from_page = request.get("sec-fetch-site") not in ("", "none", "same-origin")
                self._redirect(client, label, f"{path}?{kept}" if kept else path, is_from_page=is_from_page)
                return None
        if any(self._tokens.check("cookie", label, value) for value in _read_cookies(request, self._cookie)):
            return label
        _answer(
            client,
            403,
            "this address needs a token: open the URL that forkwise open prints, in this browser. A token is valid "
            "for one address, as long as that command runs",
        )
        return None

    def _redirect(self, client: socket.socket, label: str, target: str, *, is_from_page: bool) -> None:
        """Set the cookie, and redirect to the URL without the token.

        If the link was on a page of another site, a browser would not send the cookie after a redirect. In that case, a
        page of this origin leads to the URL.
        """
        location = format_address(label, self.port, target)
        body = f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(location)}">\n'.encode()
        cookie = f"{self._cookie}={self._tokens.make('cookie', label)}; Path=/; HttpOnly; SameSite=Strict"
        fields = [
            ("Content-Type", "text/html; charset=utf-8"),
            ("Set-Cookie", cookie),
            ("Referrer-Policy", "no-referrer"),
            ("Content-Security-Policy", "default-src 'none'"),
            ("Cache-Control", "no-store"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        if is_from_page:
            client.sendall(HttpHead(status=200, reason="OK", fields=fields).dump() + body)
        else:
            fields.append(("Location", location))
            client.sendall(HttpHead(status=303, reason="See Other", fields=fields).dump() + body)

    def _clean_request(self, request: HttpHead, label: str, *, is_websocket: bool) -> None:
        """Remove what the server must not see, and what belongs only to the client's connection."""
        request.remove_hop_by_hop()
        cookies = [part.strip() for value in request.get_all("cookie") for part in value.split(";")]
        cookies = [part for part in cookies if part and part.partition("=")[0].strip() != self._cookie]
        request.remove("cookie", TOKEN, "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto")
        if cookies:
            request.fields.append(("Cookie", "; ".join(cookies)))
        request.fields += [
            ("X-Forwarded-Host", f"{label}.{DOMAIN}:{self.port}"),
            ("X-Forwarded-Proto", "http"),
            ("Connection", "Upgrade" if is_websocket else "close"),
        ]
        if is_websocket:
            request.fields.append(("Upgrade", "websocket"))

    def _clean_response(self, response: HttpHead, *, is_websocket: bool) -> None:
        response.remove_hop_by_hop()
        response.remove("alt-svc")  # Alt-Svc: the server must not move this origin elsewhere
        own = f"{self._cookie}="
        response.fields = [
            (name, _DOMAIN_OF_COOKIE.sub("", value) if name.lower() == "set-cookie" else value)
            for name, value in response.fields
            if name.lower() != "set-cookie" or not value.lstrip().startswith(own)
        ]
        if response.status >= 200:
            response.fields.append(("Connection", "close"))
        elif is_websocket and response.status == 101:
            response.fields += [("Connection", "Upgrade"), ("Upgrade", "websocket")]

    def _relay(
        self, client: socket.socket, server: socket.socket, request: HttpHead, rest: bytes, *, is_websocket: bool
    ) -> None:
        length = 0 if is_websocket else request.body_length
        body = _ChunkedBody() if length is None else _SizedBody(length)
        ready = body.take(rest)
        with suppress(OSError):  # the server may already have answered and closed
            server.sendall(request.dump() + ready)
        if not body.is_over:
            threading.Thread(target=_send_body, args=(client, server, body), name="preview", daemon=True).start()
        watched = client if length == 0 else None
        found = self._read_response(client, _Source(server, watched), is_websocket=is_websocket)
        if found is None:
            return
        response, beginning = found
        client.sendall(response.dump() + beginning)
        if response.status == 101:
            server.sendall(rest)
            thread = threading.Thread(target=_copy, args=(client, server), name="preview", daemon=True)
            thread.start()
            _copy(server, client)
            thread.join()
        else:
            source = _Source(server, watched)
            while piece := source.recv(_PIECE):
                client.sendall(piece)

    def _read_response(
        self, client: socket.socket, server: _Source, *, is_websocket: bool
    ) -> tuple[HttpHead, bytes] | None:
        """Pass on interim responses; return the final one and the beginning of its body, or None if the client left."""
        rest = b""
        while True:
            try:
                data, rest = _read_head(server, rest)
                if server.is_abandoned:
                    return None
                if not data:
                    raise HeadError("it closed the connection")
                response = parse_response(data)
                if response.status == 101 and not (is_websocket and response.upgrades_to_websocket):
                    raise HeadError("it switched protocols without being asked to")
            except HeadError as error:
                raise TargetError(f"the server in the branch gave no valid answer: {error}") from error
            except OSError as error:
                raise TargetError(f"the server in the branch gave no answer: {error.strerror}") from error
            self._clean_response(response, is_websocket=is_websocket)
            if response.status >= 200 or response.status == 101:
                return response, rest
            client.sendall(response.dump())


def _listen(port: int | None) -> tuple[list[socket.socket], int]:
    """Listen on both loopback addresses: a browser may try either, and another user could listen on the other one."""
    ports = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + _TRIED_PORTS), 0]
    for number, tried in enumerate(ports):
        opened: list[socket.socket] = []
        try:
            opened.append(socket.create_server(("127.0.0.1", tried), backlog=_BACKLOG))
            tried = opened[0].getsockname()[1]
            if _has_ipv6():
                opened.append(socket.create_server(("::1", tried), family=socket.AF_INET6, backlog=_BACKLOG))
        except OSError as error:
            for one in opened:
                one.close()
            if error.errno != errno.EADDRINUSE or number == len(ports) - 1:
                raise
        else:
            return opened, tried
    raise AssertionError


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


class _Hurried:
    """A client with a limit on its total time, however slowly it sends."""

    def __init__(self, client: socket.socket, timeout_s: float) -> None:
        self._client = client
        self._deadline = time.monotonic() + timeout_s

    def recv(self, size: int) -> bytes:
        """Receive bytes; none at the end. Raises TimeoutError."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._client.settimeout(left)
        return self._client.recv(size)


class _Source:
    """The server's side of a connection. It ends when the client leaves: an event stream may never end by itself."""

    def __init__(self, server: socket.socket, client: socket.socket | None) -> None:
        self._server = server
        self._poll = select.poll()
        self._poll.register(server, select.POLLIN)
        if client is not None:
            self._poll.register(client, select.POLLRDHUP)
        self.is_abandoned = False

    def recv(self, size: int) -> bytes:
        """Receive bytes; none at the end."""
        ready = [fd for fd, _ in self._poll.poll()]
        self.is_abandoned = self._server.fileno() not in ready
        return b"" if self.is_abandoned else self._server.recv(size)


def _read_head(source: _Hurried | _Source, data: bytes = b"") -> tuple[bytes, bytes]:
    """Read up to the empty line; return the head and what followed it. An empty head means that it was closed."""
    while (end := data.find(b"\r\n\r\n")) < 0:
        if len(data) > MAX_HEAD:
            raise HeadError("the head is too large", 431)
        piece = source.recv(MAX_HEAD)
        if not piece:
            if data:
                raise HeadError("the connection ended within the head")
            return b"", b""
        data += piece
    if end > MAX_HEAD:
        raise HeadError("the head is too large", 431)
    return data[: end + 4], data[end + 4 :]


def _read_cookies(request: HttpHead, name: str) -> list[str]:
    pairs = [part.strip().partition("=") for value in request.get_all("cookie") for part in value.split(";")]
    return [value for key, _, value in pairs if key == name]


def _answer(client: socket.socket, status: int, message: str) -> None:
    """Answer a request with a page of text that cannot be framed and loads nothing."""
    body = f"<!doctype html><meta charset=utf-8><title>forkwise</title><p>forkwise: {html.escape(message)}.\n".encode()
    fields = [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Length", str(len(body))),
        ("Content-Security-Policy", "default-src 'none'"),
        ("Cache-Control", "no-store"),
        ("Connection", "close"),
    ]
    with suppress(OSError):
        client.settimeout(_DRAIN_TIMEOUT_S)
        client.sendall(HttpHead(status=status, reason=_REASONS.get(status, "Error"), fields=fields).dump() + body)
        client.shutdown(socket.SHUT_WR)
        # With unread data, the kernel would reset the connection, and the client would never see the answer.
        rest, left = _Hurried(client, _DRAIN_TIMEOUT_S), _DRAINED
        while left > 0 and (piece := rest.recv(_PIECE)):
            left -= len(piece)


class _SizedBody:
    """The rest of a body of known length."""

    def __init__(self, left: int) -> None:
        self._left = left

    @property
    def is_over(self) -> bool:
        return self._left == 0

    def take(self, piece: bytes) -> bytes:
        """Return the part of a piece that belongs to the body."""
        taken = piece[: self._left]
        self._left -= len(taken)
        return taken


class _ChunkedBody:
    """A chunked body, parsed only to find its end; its bytes are passed on unchanged."""

    def __init__(self) -> None:
        self._line = b""  # the part of a line that has arrived
        self._left = 0  # bytes left of the current chunk, including its line end
        self._is_last = False
        self.is_over = False

    def take(self, piece: bytes) -> bytes:
        """Return the part of a piece that belongs to the body. Raises HeadError if it is malformed."""
        position = 0
        while position < len(piece) and not self.is_over:
            if self._left:
                step = min(self._left, len(piece) - position)
                self._left -= step
                position += step
                continue
            end = piece.find(b"\n", position)
            stop = len(piece) if end < 0 else end + 1
            self._line += piece[position:stop]
            position = stop
            if len(self._line) > MAX_HEAD:
                raise HeadError("a line of a chunked body is too long")
            if end >= 0:
                self._read_line(self._line)
                self._line = b""
        return piece[:position]

    def _read_line(self, line: bytes) -> None:
        if not line.endswith(b"\r\n"):
            raise HeadError("a line of a chunked body is malformed")
        if self._is_last:  # a trailer, or the empty line after them
            self.is_over = line == b"\r\n"
            return
        size = line.partition(b";")[0].strip()
        if not size or len(size) > 15 or size.strip(b"0123456789abcdefABCDEF"):
            raise HeadError("the size of a chunk is malformed")
        length = int(size, 16)
        self._is_last = length == 0
        self._left = length + 2 if length else 0


def _send_body(client: socket.socket, server: socket.socket, body: _SizedBody | _ChunkedBody) -> None:
    """Pass on the rest of a request's body, while the answer may already arrive."""
    try:
        while not body.is_over:
            piece = client.recv(_PIECE)
            taken = body.take(piece)
            if not piece:
                raise HeadError("the connection ended within the body")
            server.sendall(taken)
    except (OSError, HeadError):
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until the end of the source, then end the target's side of the connection as well."""
    try:
        while piece := source.recv(_PIECE):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
