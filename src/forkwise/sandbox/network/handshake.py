"""What a client of the proxy asks for: HTTP with an absolute URI, CONNECT, or SOCKS5. Pure functions on bytes.

Requests are hostile input. Anything that two servers could read differently is refused: line endings other than CRLF,
folded headers, two lengths.
"""

from __future__ import annotations

import re
import socket
from typing import NamedTuple

__all__ = [
    "LARGEST_HEAD",
    "SOCKS_ACCEPT",
    "BadRequestError",
    "Target",
    "format_refusal",
    "parse_http",
    "parse_socks",
    "split_host_port",
]

#: The largest head of a request, in bytes.
LARGEST_HEAD = 64 << 10

#: The answer to a SOCKS5 greeting: no authentication.
SOCKS_ACCEPT = b"\x05\x00"

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) HTTP/1\.[01]\Z")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*)\Z")
_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/?#@]+))(?::([0-9]{1,5}))?\Z")
_HOP_BY_HOP = (b"connection", b"proxy-connection", b"keep-alive", b"proxy-authorization", b"host", b"te", b"upgrade")
_HTTP_PORT = 80
_SOCKS_CONNECT = 1
_REASONS = {400: "Bad Request", 403: "Forbidden", 431: "Request Header Fields Too Large", 502: "Bad Gateway"}


class BadRequestError(Exception):
    """A request that is not forwarded. ``status`` is the status of the HTTP answer."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Target(NamedTuple):
    """What a client asks for: a host and a port, what is sent there first, and what the client gets first.

    ``kind`` is ``http``, ``connect`` or ``socks``.
    """

    kind: str
    host: str
    port: int
    forwarded: bytes = b""
    greeting: bytes = b""


def parse_http(data: bytes) -> Target | None:
    """Parse the head of an HTTP request; None if it is not complete. Raises BadRequestError."""
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        if len(data) > LARGEST_HEAD:
            raise BadRequestError(f"the head of the request has more than {LARGEST_HEAD} bytes", 431)
        return None
    lines = head.split(b"\r\n")
    line = _LINE.match(lines[0])
    if line is None:
        raise BadRequestError("this is a proxy for HTTP, HTTPS and SOCKS5, and the request is none of these")
    method, uri = line[1], line[2].decode("ascii")
    headers = _parse_headers(lines[1:])
    if method == b"CONNECT":
        host, port = split_host_port(uri, None)
        return Target("connect", host, port, rest, b"HTTP/1.1 200 Connection established\r\n\r\n")
    scheme, separator, address = uri.partition("://")
    if not separator or scheme.lower() != "http":
        raise BadRequestError("this is a proxy: the request needs an absolute URI that begins with http://, or CONNECT")
    authority, path = re.match(r"([^/?#]*)(.*)\Z", address).groups()  # type: ignore[union-attr]
    host, port = split_host_port(authority.rpartition("@")[2], _HTTP_PORT)
    path = path.partition("#")[0]
    origin = path if path.startswith("/") else f"/{path}"
    return Target("http", host, port, _build_head(method, origin, host, port, headers) + rest)


def _parse_headers(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    headers = []
    for line in lines:
        found = _HEADER.match(line)
        if found is None:
            raise BadRequestError("a header of the request is malformed")
        headers.append((found[1], found[2]))
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    encodings = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    if len(lengths) + len(encodings) > 1 or not all(re.fullmatch(rb"[0-9]{1,18}", value) for value in lengths):
        raise BadRequestError("the request has more than one length, or a malformed one")
    return headers


def _build_head(method: bytes, path: str, host: str, port: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Build the head for the server itself: one request per connection, its host as in the URI."""
    by_name = {name.lower(): value for name, value in headers}
    named = {option.strip().lower() for option in by_name.get(b"connection", b"").split(b",")}
    dropped = {*_HOP_BY_HOP, *(option for option in named if option not in (b"content-length", b"transfer-encoding"))}
    shown = f"[{host}]" if ":" in host else host
    authority = shown if port == _HTTP_PORT else f"{shown}:{port}"
    kept = [(name, value) for name, value in headers if name.lower() not in dropped]
    kept.insert(0, (b"Host", authority.encode()))
    if b"upgrade" in by_name and b"upgrade" in named:
        kept += [(b"Connection", b"Upgrade"), (b"Upgrade", by_name[b"upgrade"])]
    else:
        kept.append((b"Connection", b"close"))
    lines = [b"%s %s HTTP/1.1" % (method, path.encode()), *(b"%s: %s" % pair for pair in kept)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def split_host_port(authority: str, default_port: int | None) -> tuple[str, int]:
    """Split ``host:port`` or ``[address]:port``. Raises BadRequestError."""
    found = _AUTHORITY.match(authority)
    if found is None or (found[3] is None and default_port is None):
        raise BadRequestError("the request names no host and port, such as example.org:443")
    port = default_port if found[3] is None else int(found[3])
    assert port is not None
    return found[1] or found[2], port


def parse_socks(data: bytes) -> tuple[int, Target | None]:
    """Parse a SOCKS5 greeting and request. Return how many bytes the greeting has, 0 if incomplete, and the request.

    The client sends the request once it has read ``SOCKS_ACCEPT``. Raises BadRequestError.
    """
    if len(data) < 2 or len(data) < (greeting := 2 + data[1]):
        return 0, None
    if 0 not in data[2:greeting]:
        raise BadRequestError("the proxy takes SOCKS5 without authentication")
    request = data[greeting:]
    if len(request) < 5:
        return greeting, None
    version, command, _, kind, first = request[:5]
    if version != 5 or command != _SOCKS_CONNECT:
        raise BadRequestError("the proxy takes only CONNECT of SOCKS5")
    size = {1: 4, 3: 1 + first, 4: 16}.get(kind)
    if size is None:
        raise BadRequestError("the kind of address is not one of SOCKS5")
    if len(request) < 4 + size + 2:
        return greeting, None
    raw, port = request[4 : 4 + size], int.from_bytes(request[4 + size : 6 + size], "big")
    if kind == 3:
        host = raw[1:].decode("ascii", "replace")
    else:
        host = socket.inet_ntop(socket.AF_INET if kind == 1 else socket.AF_INET6, raw)
    return greeting, Target("socks", host, port, request[6 + size :], _answer_socks(0))


def format_refusal(kind: str, status: int, message: str) -> bytes:
    """Build the answer to a request that is not carried out, in the protocol of its client."""
    if kind == "socks":
        return _answer_socks({403: 2, 502: 4}.get(status, 1))
    if kind not in ("http", "connect"):
        return b""
    body = f"forkwise: {message}\n".encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\nProxy-Agent: forkwise\r\n\r\n"
    )
    return head.encode() + body


def _answer_socks(code: int) -> bytes:
    return b"\x05" + bytes((code,)) + b"\x00\x01\x00\x00\x00\x00\x00\x00"
