"""HostPolicy: which hosts a sandbox may reach through the proxy, as a value with pure decisions.

A name is checked before it is resolved, and every address that it resolves to is checked before a connection is made to
exactly that address, so that a name cannot lead to a forbidden address.
"""

from __future__ import annotations

import re
import socket
from fnmatch import translate
from functools import lru_cache

__all__ = ["HostDecision", "HostPolicy", "parse_address"]

_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?\Z")
_LONGEST_NAME = 253
_LARGEST_PORT = 65535
_LOOPBACK_NAMES = ("localhost", "ip6-localhost", "ip6-loopback", "localhost.localdomain", "localhost6")

#: Names under which clouds serve the credentials of the machine.
_METADATA_NAMES = frozenset(
    {
        "metadata",
        "metadata.goog",
        "metadata.google.internal",
        "instance-data",
        "instance-data.ec2.internal",
        "metadata.azure.internal",
        "metadata.platformequinix.com",
        "metadata.packet.net",
        "metadata.tencentyun.com",
        "rancher-metadata",
    }
)

# Networks as address and prefix length, with what they are. Private networks (10.0.0.0/8 and others) are not among
# them: registries and model servers of a company are there.
_FORBIDDEN = (
    ("0.0.0.0", 8, "this machine's loopback"),
    ("127.0.0.0", 8, "this machine's loopback"),
    ("169.254.0.0", 16, "a link-local address, where clouds serve the credentials of the machine"),
    ("100.100.100.200", 32, "a cloud's metadata service"),
    ("168.63.129.16", 32, "a cloud's metadata service"),
    ("192.0.0.192", 32, "a cloud's metadata service"),
    ("224.0.0.0", 3, "a multicast or reserved address"),
    ("::", 128, "this machine's loopback"),
    ("::1", 128, "this machine's loopback"),
    ("fe80::", 10, "a link-local address"),
    ("fec0::", 10, "a site-local address"),
    ("ff00::", 8, "a multicast address"),
    ("fd00:ec2::254", 128, "a cloud's metadata service"),
    ("fd20:ce::254", 128, "a cloud's metadata service"),
)
# IPv6 networks that contain an IPv4 address, and where: mapped, compatible, NAT64, 6to4.
_EMBEDDED = (("::ffff:0:0", 96, 12), ("::", 96, 12), ("64:ff9b::", 96, 12), ("2002::", 16, 2))


class HostDecision:
    """Whether a connection is allowed. ``reason`` says why not, and which flag would allow it.

    ``host_port`` is the port of this machine's loopback that is meant, or None.
    """

    __slots__ = ("host_port", "is_allowed", "reason")

    def __init__(self, is_allowed: bool, reason: str = "", host_port: int | None = None) -> None:
        self.is_allowed = is_allowed
        self.reason = reason
        self.host_port = host_port


class HostPolicy:
    """The rules of one network: globs of host names or addresses, and ports of this machine's loopback.

    With ``allowed``, only what matches one of them is allowed; what matches one of ``denied`` never is. This machine's
    loopback, link-local addresses and the metadata services of clouds are denied unless ``allowed`` names them without
    a wildcard, or ``host_ports`` the port of the loopback.

    >>> policy = HostPolicy(allowed=("*.example.org",), denied=("bad.example.org",))
    >>> [policy.check(name, 443).is_allowed for name in ("www.example.org", "bad.example.org", "example.com")]
    [True, False, False]
    >>> HostPolicy().check("0x7f.1", 80).reason
    "127.0.0.1 is this machine's loopback: --host-port 80 lets this port through"
    """

    def __init__(
        self,
        allowed: tuple[str, ...] = (),
        denied: tuple[str, ...] = (),
        host_ports: tuple[int, ...] = (),
    ) -> None:
        self.allowed = tuple(pattern.lower().rstrip(".") for pattern in allowed)
        self.denied = tuple(pattern.lower().rstrip(".") for pattern in denied)
        self.host_ports = tuple(host_ports)
        # Only an address that is written out skips the address checks: where a name leads is up to its owner.
        self._named = frozenset(filter(None, (parse_address(pattern) for pattern in self.allowed)))

    def check(self, host: str, port: int) -> HostDecision:
        """Decide on a host as the client wrote it, before it is resolved."""
        name = host.lower().rstrip(".")
        if not 0 < port <= _LARGEST_PORT:
            return HostDecision(False, f"{port} is not a port")
        address = parse_address(name)
        if address is not None:
            name = address
        elif len(name) > _LONGEST_NAME or not _NAME.match(name):
            return HostDecision(False, "this is not a host name")
        if _matches(name, self.denied):
            return HostDecision(False, f"{name} is denied by --deny-host")
        if name in self._named:
            return HostDecision(True)
        if (address is None and _is_loopback_name(name)) or (address is not None and _is_loopback(address)):
            if port in self.host_ports:
                return HostDecision(True, host_port=port)
            return HostDecision(False, f"{name} is this machine's loopback: --host-port {port} lets this port through")
        if self.allowed and not _matches(name, self.allowed):
            return HostDecision(False, f"{name} is not among the allowed hosts: --allow-host {name} allows it")
        if name in _METADATA_NAMES and name not in self.allowed:
            return HostDecision(
                False, f"{name} is a cloud's metadata service, which serves credentials: --allow-host {name} allows it"
            )
        return HostDecision(True) if address is None else self.check_address(address)

    def check_address(self, address: str) -> HostDecision:
        """Decide on an address that a name was resolved to."""
        plain = parse_address(address) or address
        if plain in self._named:
            return HostDecision(True)
        if _matches(plain, self.denied):
            return HostDecision(False, f"{plain} is denied by --deny-host")
        kind = _find_forbidden(plain)
        if kind is None and _is_own(plain):
            kind = "an address of this machine"
        if kind is None:
            return HostDecision(True)
        return HostDecision(False, f"{plain} is {kind}: --allow-host {plain} allows it")

    def is_local(self, host: str) -> bool:
        """Return whether a host is an address of this machine or its links, which a remote proxy cannot reach."""
        address = parse_address(host.lower().rstrip("."))
        return address is not None and (_find_forbidden(address) is not None or _is_own(address))


def _is_loopback_name(name: str) -> bool:
    return name in _LOOPBACK_NAMES or name.endswith(".localhost")


def _is_loopback(address: str) -> bool:
    return (_find_forbidden(address) or "").endswith("loopback")


@lru_cache(maxsize=1024)
def parse_address(text: str) -> str | None:
    """Return an address in its usual form, or None for a name. IPv4 is read as inet_aton(3) does: 0x7f.1, 2130706433.

    An IPv6 address that contains an IPv4 address is returned as that.

    >>> parse_address("0x7f.1"), parse_address("[::ffff:7f00:1]"), parse_address("example.org")
    ('127.0.0.1', '127.0.0.1', None)
    """
    text = text.removeprefix("[").removesuffix("]").partition("%")[0]
    if ":" not in text:
        if not re.fullmatch(r"[0-9a-fx.]+", text, re.IGNORECASE) or not text[-1:].isalnum():
            return None
        try:
            return socket.inet_ntoa(socket.inet_aton(text))
        except OSError:
            return None
    try:
        packed = socket.inet_pton(socket.AF_INET6, text)
    except OSError:
        return None
    for network, length, offset in _EMBEDDED:
        inner = packed[offset : offset + 4]
        if _is_inside(packed, network, length) and inner not in (b"\0\0\0\0", b"\0\0\0\1"):
            return socket.inet_ntoa(inner)
    return socket.inet_ntop(socket.AF_INET6, packed)


def _pack(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def _is_inside(packed: bytes, network: str, length: int) -> bool:
    base = _pack(network)
    if len(base) != len(packed):
        return False
    shift = len(base) * 8 - length
    return int.from_bytes(packed, "big") >> shift == int.from_bytes(base, "big") >> shift


@lru_cache(maxsize=1024)
def _find_forbidden(address: str) -> str | None:
    """Return what kind of forbidden address this is; None if it is not forbidden."""
    packed = _pack(address)
    return next((kind for network, length, kind in _FORBIDDEN if _is_inside(packed, network, length)), None)


def _is_own(address: str) -> bool:
    """Return whether an address is one of this machine's own: only then can a socket be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # With ip_nonlocal_bind every address would pass: then, a socket's own address is compared with its peer's.
            if _can_bind_anything(family):
                probe.connect((address, 9))
                return str(probe.getsockname()[0]).partition("%")[0] == address
            probe.bind((address, 0))
    except OSError:
        return False
    return True


@lru_cache(maxsize=2)
def _can_bind_anything(family: int) -> bool:
    """Return whether ip_nonlocal_bind is set: then even an address reserved for documentation can be bound."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(("2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1", 0))
    except OSError:
        return False
    return True


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return bool(patterns) and _compile(patterns).match(name) is not None


@lru_cache(maxsize=64)
def _compile(patterns: tuple[str, ...]) -> re.Pattern[str]:
    # A pattern that is an address is compared in its usual form.
    return re.compile("|".join(translate(parse_address(pattern) or pattern) for pattern in patterns))
