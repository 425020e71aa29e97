"""Redirecting what leaves a network to the proxy, for clients that ignore the proxy's variables.

All addresses are routed to the loopback, so that a connection does not fail for lack of a route, and nftables sends TCP
to a port of the proxy, which asks the kernel for the original address, and UDP for port 53 to the proxy's name server.
Both are set up through netlink sockets inside the namespace. Only its owner may do that, and no process in a sandbox
is.
"""

from __future__ import annotations

import os
import socket
import struct

__all__ = ["REDIRECT_NEEDS", "redirect_to"]

#: What the kernel must have for this.
REDIRECT_NEEDS = "nftables with NAT (CONFIG_NF_TABLES, CONFIG_NFT_REDIR)"

_REQUEST, _ACK, _CREATE, _APPEND = 0x1, 0x4, 0x400, 0x800
_NESTED = 0x8000
_ERROR = 2
_NEW_ROUTE = 24
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = 0xA00, 0xA03, 0xA06  # nftables is subsystem 10
_BATCH_BEGIN, _BATCH_END, _NFTABLES = 0x10, 0x11, 10
_LOCAL_TABLE, _STATIC, _HOST_SCOPE, _LOCAL_ROUTE = 255, 4, 254, 2
_LOOPBACK_INDEX = 1  # it is the first interface of every network namespace
_OUTPUT_HOOK, _NAT_PRIORITY = 3, -100
_META_PROTOCOL = 16
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_EQUAL, _NOT_EQUAL = 0, 1
_NAMES_PORT = 53
_TABLE = b"forkwise\0"
_CHAIN = b"output\0"


def redirect_to(port: int, route_socket: socket.socket, filter_socket: socket.socket) -> None:
    """Redirect TCP to ``port`` and names to port 53 of the loopback. The sockets are netlink sockets inside.

    Raises OSError if the kernel has no nftables, or its configuration forbids this.
    """
    chain = _attribute(1, _TABLE) + _attribute(3, _CHAIN) + _attribute(7, b"nat\0")
    chain += _attribute(4, _number(1, _OUTPUT_HOOK) + _number(2, _NAT_PRIORITY), nested=True)
    leaving = _load(_NETWORK_HEADER, 16, 1) + _compare(_NOT_EQUAL, bytes((127,)))
    tcp = _match_protocol(socket.IPPROTO_TCP) + leaving + _redirect(port)
    to_names = _load(_TRANSPORT_HEADER, 2, 2) + _compare(_EQUAL, struct.pack(">H", _NAMES_PORT))
    udp = _match_protocol(socket.IPPROTO_UDP) + leaving + to_names + _redirect(_NAMES_PORT)
    messages = [
        _message(_BATCH_BEGIN, 0, 1, struct.pack(">BBH", 0, 0, _NFTABLES)),
        _message(_NEW_TABLE, _CREATE | _ACK, 2, _family() + _attribute(1, _TABLE)),
        _message(_NEW_CHAIN, _CREATE | _ACK, 3, _family() + chain),
        _message(_NEW_RULE, _CREATE | _APPEND | _ACK, 4, _family() + _rule(tcp)),
        _message(_NEW_RULE, _CREATE | _APPEND | _ACK, 5, _family() + _rule(udp)),
        _message(_BATCH_END, 0, 6, struct.pack(">BBH", 0, 0, _NFTABLES)),
    ]
    _send(filter_socket, b"".join(messages), answers=4)
    route = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, _LOCAL_TABLE, _STATIC, _HOST_SCOPE, _LOCAL_ROUTE, 0)
    route += _attribute(4, struct.pack("=I", _LOOPBACK_INDEX)) + _attribute(7, socket.inet_aton("127.0.0.1"))
    _send(route_socket, _message(_NEW_ROUTE, _CREATE | _ACK, 1, route), answers=1)


def _send(netlink: socket.socket, data: bytes, *, answers: int) -> None:
    """Send a batch of messages and read ``answers`` acknowledgements. Raises OSError for the first error among them."""
    netlink.sendto(data, (0, 0))
    while answers > 0:
        received = netlink.recv(1 << 16)
        while received:
            size, kind, _, _, _ = struct.unpack_from("=IHHII", received)
            if kind == _ERROR:
                (problem,) = struct.unpack_from("=i", received, 16)
                if problem:
                    raise OSError(-problem, os.strerror(-problem), "nftables")
                answers -= 1
            received = received[(size + 3) & ~3 :]


def _message(kind: int, flags: int, serial: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, _REQUEST | flags, serial, 0) + body


def _family() -> bytes:
    return struct.pack(">BBH", socket.AF_INET, 0, 0)


def _attribute(kind: int, value: bytes, *, nested: bool = False) -> bytes:
    header = struct.pack("=HH", 4 + len(value), kind | (_NESTED if nested else 0))
    return header + value + b"\0" * (-len(value) % 4)


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack(">i", value))


def _rule(expressions: bytes) -> bytes:
    return _attribute(1, _TABLE) + _attribute(2, _CHAIN) + _attribute(4, expressions, nested=True)


def _expression(name: bytes, data: bytes) -> bytes:
    return _attribute(1, _attribute(1, name + b"\0") + _attribute(2, data, nested=True), nested=True)


def _match_protocol(protocol: int) -> bytes:
    return _expression(b"meta", _number(1, 1) + _number(2, _META_PROTOCOL)) + _compare(_EQUAL, bytes((protocol,)))


def _load(header: int, offset: int, size: int) -> bytes:
    return _expression(b"payload", _number(1, 1) + _number(2, header) + _number(3, offset) + _number(4, size))


def _compare(operation: int, value: bytes) -> bytes:
    data = _attribute(3, _attribute(1, value), nested=True)
    return _expression(b"cmp", _number(1, 1) + _number(2, operation) + data)


def _redirect(port: int) -> bytes:
    data = _attribute(2, _attribute(1, struct.pack(">H", port)), nested=True)
    return _expression(b"immediate", _number(1, 1) + data) + _expression(b"redir", _number(1, 1))
