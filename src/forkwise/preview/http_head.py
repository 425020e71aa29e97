"""The head of an HTTP/1.1 message: parsed strictly, changed, and written out again.

Everything that two servers could parse differently is refused: a request with two lengths, a length beside a transfer
coding, folded lines, stray control characters. So the server in a branch sees the same message as the listener.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["HeadError", "HttpHead", "parse_request", "parse_response"]

MAX_HEAD = 64 << 10
"""The largest head in bytes."""

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_FIELD = re.compile(rf"({_TOKEN}):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_REQUEST = re.compile(rf"({_TOKEN}) (/[!-~]*|\*) HTTP/1\.([01])")
_STATUS = re.compile(r"HTTP/1\.[01] ([1-5][0-9][0-9])(?: ([^\x00-\x08\x0a-\x1f\x7f]*))?")
_MAX_FIELDS = 200

#: Hop-by-hop fields, which belong to one connection and not to the message, besides those that ``Connection`` names.
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "upgrade")
)


class HeadError(ValueError):
    """A head that is malformed, ambiguous or too large; ``status`` is the answer to the client."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class HttpHead:
    """A request or a response without its body: the first line in parts, and the fields in their order."""

    method: str = ""
    target: str = ""
    version: str = "1"
    status: int = 0
    reason: str = ""
    fields: list[tuple[str, str]] = field(default_factory=list)

    def get_all(self, name: str) -> list[str]:
        """Return the values of a field, whose name is given in lower case."""
        return [value for key, value in self.fields if key.lower() == name]

    def get(self, name: str) -> str:
        """Return the value of a field, or an empty text. Raises HeadError if it occurs more than once."""
        values = self.get_all(name)
        if len(values) > 1:
            raise HeadError(f"the field {name} occurs {len(values)} times")
        return values[0] if values else ""

    def remove(self, *names: str) -> None:
        """Remove fields, whose names are given in lower case."""
        self.fields = [(key, value) for key, value in self.fields if key.lower() not in names]

    def list_tokens(self, name: str) -> list[str]:
        """Return the members of a field that is a list, in lower case."""
        return [part.strip().lower() for value in self.get_all(name) for part in value.split(",") if part.strip()]

    def remove_hop_by_hop(self) -> None:
        """Remove the fields that belong to the connection. The framing of the body is not changed."""
        named = set(self.list_tokens("connection")) - {"transfer-encoding", "content-length", "host", "cookie"}
        self.remove(*_HOP_BY_HOP, *named)

    @property
    def upgrades_to_websocket(self) -> bool:
        """Whether the client asks for a WebSocket, or the server agrees to one."""
        return "upgrade" in self.list_tokens("connection") and self.list_tokens("upgrade") == ["websocket"]

    @property
    def body_length(self) -> int | None:
        """The number of bytes of a request's body; None if it comes in chunks."""
        if self.get_all("transfer-encoding"):
            return None
        return int(self.get("content-length") or "0")

    def dump(self) -> bytes:
        """Return the head as bytes."""
        if self.status:
            first = f"HTTP/1.1 {self.status} {self.reason}"
        else:
            first = f"{self.method} {self.target} HTTP/1.{self.version}"
        lines = [first, *(f"{name}: {value}" for name, value in self.fields)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def parse_request(data: bytes) -> HttpHead:
    """Parse the head of a request, which ends with an empty line. Raises HeadError."""
    first, lines = _split(data)
    found = _REQUEST.fullmatch(first)
    if found is None:
        raise HeadError("the first line is not that of an HTTP/1.1 request for a path")
    head = HttpHead(method=found[1], target=found[2], version=found[3], fields=_parse_fields(lines))
    if head.target == "*" and head.method != "OPTIONS":
        raise HeadError("the first line is not that of an HTTP/1.1 request for a path")
    codings = head.get_all("transfer-encoding")
    lengths = head.get_all("content-length")
    if codings and (lengths or head.version == "0"):
        raise HeadError("the body has two lengths: Content-Length and Transfer-Encoding")
    if len(codings) > 1 or (codings and codings[0].lower() != "chunked"):
        raise HeadError("Transfer-Encoding is not chunked", 501)
    if len(lengths) > 1 or (lengths and not re.fullmatch(r"[0-9]{1,15}", lengths[0])):
        raise HeadError("Content-Length is not one number")
    return head


def parse_response(data: bytes) -> HttpHead:
    """Parse the head of a response, which ends with an empty line. Raises HeadError."""
    first, lines = _split(data)
    found = _STATUS.fullmatch(first)
    if found is None:
        raise HeadError("the first line is not that of an HTTP/1.1 response")
    return HttpHead(status=int(found[1]), reason=found[2] or "", fields=_parse_fields(lines))


def _split(data: bytes) -> tuple[str, list[str]]:
    text = data.decode("latin-1").removesuffix("\r\n\r\n")
    first, *lines = text.split("\r\n")
    return first, lines


def _parse_fields(lines: Iterable[str]) -> list[tuple[str, str]]:
    found = []
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise HeadError("a field is malformed")
        found.append((match[1], match[2]))
    if len(found) > _MAX_FIELDS:
        raise HeadError("there are too many fields", 431)
    return found
