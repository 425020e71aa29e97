"""Upstream: the proxy that the user's own environment names, through which forkwise's proxy connects.

``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` are read as curl reads them, in lower case first. This
module has the values, and the bytes that are exchanged with an upstream; the sockets are in ``proxy``.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from forkwise.errors import NamespaceError
from forkwise.sandbox.network.handshake import LARGEST_HEAD

__all__ = ["Upstream", "UpstreamError", "Upstreams", "build_absolute_request", "build_dialog", "read_upstreams"]

_SCHEMES = {"http": 80, "socks5": 1080, "socks5h": 1080}
_HTTP_PORT = 80
_LONGEST_SOCKS_TEXT = 255
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: ([\x20-\x7e]{0,200}))?")
_SOCKS_PROBLEMS = {1: "general failure", 2: "not allowed", 3: "network unreachable", 4: "host unreachable"}


class UpstreamError(Exception):
    """The upstream proxy refused a connection, or did not speak its protocol."""


class Upstream(NamedTuple):
    """One proxy: its protocol (``http``, ``socks5``, ``socks5h``), where it is, and the login for it."""

    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Upstreams:
    """The proxies of an environment: one for plain HTTP, one for everything else, and hosts that need none.

    >>> found = Upstreams(Upstream("http", "proxy.example", 3128), None, ("internal.example", "10.0.0.0/8"))
    >>> [str(found.find("http", host, 80)) for host in ("a.org", "www.internal.example", "10.1.2.3")]
    ['proxy.example:3128', 'None', 'None']
    """

    def __init__(self, http: Upstream | None, other: Upstream | None, exempt: tuple[str, ...] = ()) -> None:
        self._http = http
        self._other = other
        self._exempt = exempt

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> Upstreams:
        """Build them from what ``dump`` returned."""
        http, other = (None if document[name] is None else Upstream(*document[name]) for name in ("http", "other"))
        return cls(http, other, tuple(document["exempt"]))

    def dump(self) -> dict[str, Any]:
        """Convert to JSON types."""
        return {"http": self._http, "other": self._other, "exempt": self._exempt}

    def find(self, kind: str, host: str, port: int) -> Upstream | None:
        """Return the proxy for a request; None if the host is reached directly."""
        upstream = self._http if kind == "http" or (kind == "redirect" and port == _HTTP_PORT) else self._other
        return None if upstream is None or self._is_exempt(host.lower().strip("[]").rstrip("."), port) else upstream

    def _is_exempt(self, host: str, port: int) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            address = None
        for pattern in self._exempt:
            if pattern == "*":
                return True
            name, _, number = pattern.rpartition(":") if pattern.count(":") == 1 else (pattern, "", "")
            if number and number != str(port):
                continue
            if address is None:
                name = name.removeprefix("*").removeprefix(".")
                if name and (host == name or host.endswith(f".{name}")):
                    return True
                continue
            try:
                if address in ipaddress.ip_network(name.strip("[]"), strict=False):
                    return True
            except ValueError:
                continue
        return False


def read_upstreams(environment: Mapping[str, str]) -> Upstreams:
    """Read the proxies that an environment names. Raises NamespaceError if one of them cannot be used."""

    def find(*names: str) -> Upstream | None:
        for name in (*names, "ALL_PROXY"):
            for spelling in (name.lower(), name):
                if value := environment.get(spelling, "").strip():
                    return _parse(spelling, value)
        return None

    exempt = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    return Upstreams(
        find("HTTP_PROXY"),
        find("HTTPS_PROXY"),
        tuple(pattern.lower() for pattern in re.split(r"[\s,]+", exempt) if pattern),
    )


def _parse(variable: str, value: str) -> Upstream:
    # A message names the variable only: the value may have a password in it.
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        scheme, host, port = parts.scheme.lower(), parts.hostname, parts.port
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
    except ValueError:
        scheme = host = ""
        port, user, password = None, "", ""
    if scheme == "socks":
        scheme = "socks5"
    texts = (host or "", user, password)
    is_sound = value.isprintable() and all(len(text.encode()) <= _LONGEST_SOCKS_TEXT for text in texts)
    is_sound = is_sound and all(map(str.isprintable, texts))
    if scheme not in _SCHEMES or not host or port == 0 or not is_sound:
        what = f"a proxy with the protocol {scheme!r}" if scheme and host and is_sound else "no valid proxy"
        raise NamespaceError(
            f"the variable {variable} names {what}, and the network 'proxy' goes out through one of the form "
            "http://HOST:PORT, socks5://HOST:PORT or socks5h://HOST:PORT. Correct or unset the variable, or use "
            "--network host"
        )
    return Upstream(scheme, host, port or _SCHEMES[scheme], user, password)


# What is sent to an upstream, and how its answers are read


def build_absolute_request(upstream: Upstream, host: str, port: int, forwarded: bytes) -> tuple[bytes, int] | None:
    """Turn a request for a server into one for an HTTP proxy, which gets the whole URI.

    Returns the new request, as far as it was received, and how many bytes of its body follow. What the client sends
    after these must not be passed on: the proxy would take it for another request, to a host that was not checked.
    Returns None if the request has to go through a tunnel instead: to a SOCKS proxy, if the protocol is upgraded, or if
    its length is not known.
    """
    head, _, rest = forwarded.partition(b"\r\n\r\n")
    line, _, headers = head.partition(b"\r\n")
    fields = dict(_split_field(field) for field in headers.split(b"\r\n"))
    if upstream.scheme != "http" or b"upgrade" in fields or b"transfer-encoding" in fields:
        return None
    length = int(fields.get(b"content-length", b"0"))
    method, path, version = line.split(b" ", 2)
    uri = b"http://" + _format_authority(host, None if port == _HTTP_PORT else port) + path
    login = _format_login(upstream)
    request = b"%s %s %s\r\n%s%s\r\n\r\n%s" % (method, uri, version, login, headers, rest[:length])
    return request, max(0, length - len(rest))


def _split_field(field: bytes) -> tuple[bytes, bytes]:
    name, _, value = field.partition(b":")
    return name.strip().lower(), value.strip()


def _format_authority(host: str, port: int | None) -> bytes:
    shown = host.strip("[]")
    shown = f"[{shown}]" if ":" in shown else shown
    return (shown if port is None else f"{shown}:{port}").encode("ascii", "replace")


def _format_login(upstream: Upstream) -> bytes:
    if not upstream.user:
        return b""
    pair = f"{upstream.user}:{upstream.password}".encode()
    return b"Proxy-Authorization: Basic " + base64.b64encode(pair) + b"\r\n"


def build_dialog(upstream: Upstream, host: str, port: int, address: str | None) -> Dialog:
    """Build the dialog that asks an upstream for a tunnel. ``address`` is the host's, if it was resolved here."""
    if upstream.scheme == "http":
        return _ConnectDialog(upstream, host, port)
    return _SocksDialog(upstream, address if upstream.scheme == "socks5" and address else host, port)


class Dialog(ABC):
    """The exchange with an upstream until the tunnel is open.

    ``to_send`` is what has to be sent now; once the tunnel is open, ``rest`` is what the server itself has sent
    already.
    """

    def __init__(self) -> None:
        self.to_send = b""
        self.rest = b""
        self._received = b""

    @abstractmethod
    def receive(self, piece: bytes) -> bool:
        """Take a piece of the answer. Return whether the tunnel is open. Raises UpstreamError."""


class _ConnectDialog(Dialog):
    """CONNECT of HTTP."""

    def __init__(self, upstream: Upstream, host: str, port: int) -> None:
        super().__init__()
        authority = _format_authority(host, port)
        self.to_send = b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (authority, authority, _format_login(upstream))

    def receive(self, piece: bytes) -> bool:
        self._received += piece
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            if len(self._received) > LARGEST_HEAD:
                raise UpstreamError("its answer is too long")
            return False
        status = _STATUS.match(head)
        if status is None:
            raise UpstreamError("its answer is not HTTP")
        if not status[1].startswith(b"2"):
            raise UpstreamError(f"it answered {status[1].decode()} {(status[2] or b'').decode()}".rstrip())
        self.rest = rest
        return True


class _SocksDialog(Dialog):
    """SOCKS5, with a name and a password if the upstream asks for them."""

    def __init__(self, upstream: Upstream, host: str, port: int) -> None:
        super().__init__()
        self._upstream = upstream
        self._target = _format_socks_address(host) + port.to_bytes(2, "big")
        self._step = "greeting"  # then login, request
        self.to_send = b"\x05\x02\x00\x02" if upstream.user else b"\x05\x01\x00"

    def receive(self, piece: bytes) -> bool:
        self._received += piece
        while True:
            if self._step == "request":
                return self._read_answer()
            if len(self._received) < 2:
                return False
            first, second, self._received = self._received[0], self._received[1], self._received[2:]
            if self._step == "login" and second:
                raise UpstreamError("it refused the user or the password")
            if self._step == "greeting":
                if first != 5 or second not in ((0, 2) if self._upstream.user else (0,)):
                    raise UpstreamError("it accepts no known way to log in")
                if second == 2:
                    user, password = self._upstream.user.encode(), self._upstream.password.encode()
                    self.to_send += bytes((1, len(user))) + user + bytes((len(password),)) + password
                    self._step = "login"
                    continue
            self.to_send += b"\x05\x01\x00" + self._target
            self._step = "request"

    def _read_answer(self) -> bool:
        answer = self._received
        if len(answer) < 5:
            return False
        if answer[0] != 5:
            raise UpstreamError("its answer is not SOCKS5")
        if answer[1]:
            raise UpstreamError(f"it answered: {_SOCKS_PROBLEMS.get(answer[1], f'code {answer[1]}')}")
        size = {1: 4, 3: 1 + answer[4], 4: 16}.get(answer[3])
        if size is None:
            raise UpstreamError("its answer is not SOCKS5")
        if len(answer) < 4 + size + 2:
            return False
        self.rest = answer[4 + size + 2 :]
        return True


def _format_socks_address(host: str) -> bytes:
    plain = host.strip("[]").partition("%")[0]
    for family, kind in ((socket.AF_INET, b"\x01"), (socket.AF_INET6, b"\x04")):
        try:
            return kind + socket.inet_pton(family, plain)
        except OSError:
            continue
    name = plain.encode("ascii", "replace")[:_LONGEST_SOCKS_TEXT]
    return b"\x03" + bytes((len(name),)) + name
