"""`Wire`: the functions that parse one provider's requests and write its responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from tests.provider.fault import Fault
from tests.provider.reply import Failure, Reply
from tests.provider.request import Provider, Request

__all__ = ["Wire", "arguments_text", "new_id", "pieces", "text_of", "tokens"]

Json = dict[str, Any]


@dataclass(frozen=True)
class Wire:
    """One provider's wire format."""

    provider: Provider
    #: Parses a body into a request.
    read: Callable[[Mapping[str, Any]], Request]
    #: A reply as one body.
    whole: Callable[[Reply, Request], Json]
    #: A reply as server-sent events.
    stream: Callable[[Reply, Request], Iterator[bytes]]
    #: An error's status and body.
    failure: Callable[[Failure], tuple[int, Json]]
    #: An error in the middle of a stream.
    broken: Callable[[], bytes]
    #: A 400 for a body that cannot be parsed.
    unreadable: Callable[[str], Fault]


def new_id(prefix: str) -> str:
    """Return a new id."""
    return prefix + uuid4().hex[:24]


def pieces(text: str, size: int) -> Iterator[str]:
    """``text`` in pieces of at most ``size`` characters."""
    return (text[start : start + size] for start in range(0, len(text), size))


def tokens(value: Any) -> int:
    """Return the approximate number of tokens of ``value``."""
    return max(1, len(value if isinstance(value, str) else json.dumps(value)) // 4)


def arguments_text(arguments: Mapping[str, Any] | str) -> str:
    """The arguments of a call as a model writes them."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def text_of(content: Any) -> str:
    """Return the text of some content: a string, blocks, or nothing."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or [] if isinstance(part.get("text"), str))
