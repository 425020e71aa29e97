"""The names of a network without DNS: each gets an address of its own, from which the proxy looks up the name.

The addresses are those of 198.18.0.0/15, which is reserved for tests and routed nowhere. A client that ignores the
proxy's variables resolves a name, connects to the address, and is redirected to the proxy, which resolves the name.
"""

from __future__ import annotations

import re
import socket
import struct

__all__ = ["Names"]

_FIRST = 0xC612_0001  # 198.18.0.1
_NETWORK, _NETWORK_BITS = 0xC612_0000, 15
_MOST_NAMES = 60_000
_LONGEST_QUERY = 512
_LONGEST_NAME = 253
_TTL_S = 60
_NAME = re.compile(rb"[A-Za-z0-9_-]{1,63}\Z")
_TYPE_A, _CLASS_IN = 1, 1
_OK, _FORMAT_ERROR, _SERVER_FAILURE, _NO_SUCH_NAME, _REFUSED = 0, 1, 2, 3, 5
_HEADER = struct.Struct(">HHHHHH")


class Names:
    """The names that one network has asked for.

    >>> names = Names()
    >>> address = names.find_address("example.org")
    >>> address, names.find_name(address), names.find_name("192.0.2.1"), names.find_name("198.19.9.9")
    ('198.18.0.1', 'example.org', '192.0.2.1', None)
    """

    def __init__(self) -> None:
        self._addresses: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def find_address(self, name: str) -> str | None:
        """Return the address of a name; None if there are too many names already."""
        name = name.lower().rstrip(".")
        if name == "localhost" or name.endswith(".localhost"):
            return "127.0.0.1"
        number = self._addresses.get(name)
        if number is None:
            if len(self._addresses) >= _MOST_NAMES:
                return None
            number = self._addresses[name] = _FIRST + len(self._addresses)
            self._names[number] = name
        return socket.inet_ntoa(number.to_bytes(4, "big"))

    def find_name(self, address: str) -> str | None:
        """Return the name of an address, None if it is unused; an address outside 198.18.0.0/15 is returned as is."""
        number = int.from_bytes(socket.inet_aton(address), "big")
        if number >> (32 - _NETWORK_BITS) != _NETWORK >> (32 - _NETWORK_BITS):
            return address
        return self._names.get(number)

    def answer(self, query: bytes) -> bytes | None:
        """Answer a DNS query. Names have an IPv4 address and nothing else. Return None if it is not a query."""
        if not _HEADER.size <= len(query) <= _LONGEST_QUERY:
            return None
        number, flags, questions, *_ = _HEADER.unpack_from(query)
        if flags & 0x8000:
            return None
        flags = 0x8080 | (flags & 0x0100)  # an answer, recursion available, recursion desired as in the query
        try:
            name, end = _read_name(query, _HEADER.size)
            kind, category = struct.unpack_from(">HH", query, end)
        except (ValueError, struct.error):
            return _HEADER.pack(number, flags | _FORMAT_ERROR, 0, 0, 0, 0)
        question = query[_HEADER.size : end + 4]
        if questions != 1 or category != _CLASS_IN:
            return _HEADER.pack(number, flags | _REFUSED, 0, 0, 0, 0)
        if name.endswith(".arpa"):  # there are no reverse names
            return _HEADER.pack(number, flags | _NO_SUCH_NAME, 1, 0, 0, 0) + question
        if kind != _TYPE_A:
            return _HEADER.pack(number, flags | _OK, 1, 0, 0, 0) + question
        address = self.find_address(name)
        if address is None:
            return _HEADER.pack(number, flags | _SERVER_FAILURE, 1, 0, 0, 0) + question
        record = struct.pack(">HHHIH", 0xC00C, _TYPE_A, _CLASS_IN, _TTL_S, 4) + socket.inet_aton(address)
        return _HEADER.pack(number, flags | _OK, 1, 1, 0, 0) + question + record


def _read_name(query: bytes, offset: int) -> tuple[str, int]:
    """Read the name of a question, which is never compressed. Raises ValueError."""
    labels: list[bytes] = []
    while True:
        if offset >= len(query):
            raise ValueError
        size = query[offset]
        offset += 1
        if size == 0:
            break
        label = query[offset : offset + size]
        if len(label) != size or not _NAME.match(label):
            raise ValueError
        labels.append(label)
        offset += size
    name = b".".join(labels).decode("ascii").lower()
    if len(name) > _LONGEST_NAME:
        raise ValueError
    return name, offset
