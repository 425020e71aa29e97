"""The connections that an attempt and its tests requested from the proxy of their networks, kept in the ledger.

``<ledger>/network/<attempt>.jsonl`` has a line of JSON for each, which the proxy appends when the connection ends, and
``<attempt>.tests.jsonl`` has those of its tests. The proxy keeps a bounded number of them and then counts.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from forkwise.ledger.records import attempt_file
from forkwise.text.clean import clean_text, truncate_middle

__all__ = ["Connection", "Connections", "load_connections", "open_connections", "remove_connections"]

_LARGEST_LOG = 16 << 20  # bytes
_LONGEST_TEXT = 500
_SUFFIXES = {False: "jsonl", True: "tests.jsonl"}
_KINDS = ("http", "connect", "socks", "redirect", "forward")


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection: when it was requested, where to, how, whether it was allowed, and the bytes in each direction.

    ``problem`` says why it was denied or failed. ``of_tests`` is true if the tests requested it, not the attempt.
    """

    at: float
    host: str
    port: int
    kind: str
    allowed: bool
    sent: int
    received: int
    problem: str = ""
    of_tests: bool = False

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Connections:
    """The connections of an attempt in the order in which they were requested, and how many more there were."""

    entries: tuple[Connection, ...] = ()
    left_out: int = 0


def open_connections(directory: str | os.PathLike[str], attempt: str, *, of_tests: bool = False) -> int:
    """Open the log of the connections of an attempt, or of its tests, for appending.

    Returns its descriptor; -1 if the disk is full.
    """
    path = attempt_file(directory, attempt, "network", _SUFFIXES[of_tests])
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return -1


def load_connections(directory: str | os.PathLike[str], attempt: str) -> Connections:
    """Return the connections of an attempt and of its tests. Lines that are cut off or damaged are left out."""
    entries: list[Connection] = []
    left_out = 0
    for of_tests, suffix in _SUFFIXES.items():
        try:
            with attempt_file(directory, attempt, "network", suffix).open("rb") as file:
                lines = file.read(_LARGEST_LOG).splitlines()
        except FileNotFoundError:
            continue
        for line in lines:
            try:
                document = json.loads(line)
                if "left_out" in document:
                    left_out += int(document["left_out"])
                else:
                    entries.append(_read_entry(document, of_tests))
            except (ValueError, TypeError, KeyError, RecursionError):
                left_out += 1
    return Connections(tuple(sorted(entries, key=lambda entry: entry.at)), left_out)


def _read_entry(document: dict[str, Any], of_tests: bool) -> Connection:
    if document["kind"] not in _KINDS:
        raise ValueError(document["kind"])
    return Connection(
        float(document["at"]),
        _clean(document["host"]),
        int(document["port"]),
        document["kind"],
        bool(document["allowed"]),
        int(document["sent"]),
        int(document["received"]),
        _clean(document.get("problem", "")),
        of_tests,
    )


def _clean(text: object) -> str:
    return truncate_middle(clean_text(str(text)), _LONGEST_TEXT)


def remove_connections(directory: str | os.PathLike[str], attempt: str) -> None:
    """Delete the logs of the connections of an attempt and of its tests."""
    for suffix in _SUFFIXES.values():
        attempt_file(directory, attempt, "network", suffix).unlink(missing_ok=True)
