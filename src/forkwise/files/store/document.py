"""Documents of the state: JSON files that are read as input, never as instructions.

What a process wrote may be torn by a power failure, copied by hand or forged. So each value is checked before use:
types, ranges of numbers, and that names are plain names, which cannot lead out of the directory that they belong to. A
document that fails a check raises StateError, and nothing in it is acted on.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from forkwise.errors import NewerStateError, StateError
from forkwise.files.store.state_root import find_problem, is_state_name
from forkwise.linux.process_id import ProcessId

__all__ = [
    "DamageReport",
    "check_hex_values",
    "check_integer",
    "check_integers",
    "check_name",
    "check_path",
    "check_text",
    "check_time",
    "check_type",
    "damage_reported",
    "load_process_id",
    "read_document",
]

_LARGEST = 1 << 30  # bytes: the record of a commit of millions of paths is smaller
_LONGEST_NAME = 1020  # bytes: 255 characters of four bytes
_LONGEST_TEXT = 1 << 20
_NUMBER = 1 << 64
_LAST_SECOND = 253_402_300_799  # of the year 9999, the last one that datetime knows
_HEX = re.compile(r"(?:[0-9a-f]{2})*\Z")
_T = TypeVar("_T")


def read_document(path: str, *, newest: int) -> tuple[dict[str, Any], os.stat_result]:
    """Read a JSON document that only this user can have written, without its format number; return its status too.

    Raises StateError if it is damaged or another user's, NewerStateError if its format is above ``newest``, and
    FileNotFoundError if it does not exist.
    """
    if (problem := find_problem(os.path.dirname(path))) is not None:
        raise StateError(path, problem)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StateError(path, error.strerror or str(error)) from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise StateError(path, "it is not a regular file")
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise StateError(path, "another user owns it or may write to it")
        if found.st_size > _LARGEST:
            raise StateError(path, f"it has {found.st_size} bytes")
        content = os.read(fd, found.st_size)
        while len(content) < found.st_size and (more := os.read(fd, found.st_size - len(content))):
            content += more
    finally:
        os.close(fd)
    with damage_reported(path):
        if not content.strip(b"\0 \n"):
            raise ValueError("it is empty")
        document = json.loads(content.decode())
        check_type(document, dict, "document")
        number = check_integer(document.pop("format"), "format", 1)
    if number > newest:
        raise NewerStateError(path, number, newest)
    return document, found


class DamageReport:
    """A context manager that turns every error of parsing a document into a StateError for its path."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, KeyError):
            raise StateError(self._path, f"it has no {error}") from None
        if isinstance(error, (ValueError, TypeError, IndexError, AttributeError, OverflowError, RecursionError)):
            raise StateError(self._path, str(error)[:200] or type(error).__name__) from None


def damage_reported(path: str) -> DamageReport:
    """Turn every error of parsing a document into a StateError for its path, in a ``with`` block."""
    return DamageReport(path)


def check_type(value: object, kind: type[_T], field: str) -> _T:
    """Return a value of exactly one type; raise ValueError for any other."""
    if type(value) is not kind:
        raise ValueError(f"its {field} is not of type {kind.__name__}")
    return value


def check_integer(value: object, field: str, lowest: int = 0, highest: int = _NUMBER) -> int:
    """Return an integer within a range; raise ValueError for anything else."""
    if type(value) is not int or not lowest <= value <= highest:
        raise ValueError(f"its {field} is not a possible number")
    return value


def check_integers(value: object, count: int, field: str) -> list[int]:
    """Return a list of integers, of a given length."""
    if type(value) is not list or len(value) != count:
        raise ValueError(f"its {field} does not have {count} numbers")
    return [check_integer(one, field, -_NUMBER) for one in value]


def check_time(value: object, field: str) -> float:
    """Return a time in seconds that datetime can represent."""
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= _LAST_SECOND:  # type: ignore[arg-type, operator]
        raise ValueError(f"its {field} is not a possible time")
    return value  # type: ignore[return-value]


def check_text(value: object, field: str) -> str:
    """Return a text of bounded length."""
    if type(value) is not str or len(value) > _LONGEST_TEXT:
        raise ValueError(f"its {field} is not a string")
    return value


def check_name(value: object, field: str) -> str:
    """Return a plain name: one that names an entry of a directory, and nothing above or below it."""
    if type(value) is not str or value in ("", ".", "..") or "/" in value or "\0" in value:
        raise ValueError(f"its {field} is not a plain name")
    if (len(value) > _LONGEST_NAME // 4 or not value.isascii()) and len(os.fsencode(value)) > _LONGEST_NAME:
        raise ValueError(f"its {field} is too long for a name")
    return value


def check_path(value: object, field: str) -> str:
    """Return a path of plain names below a root (the empty path) that does not lead into forkwise's own directories."""
    if value == "":
        return ""
    for name in check_type(value, str, field).split("/"):
        if is_state_name(check_name(name, field)):
            raise ValueError(f"its {field} leads into a state directory")
    return value  # type: ignore[return-value]


def check_hex_values(value: object, is_allowed: Callable[[str], bool], field: str) -> dict[str, str]:
    """Return extended attributes with their values in hexadecimal, all of them allowed ones."""
    for name, content in check_type(value, dict, field).items():
        if not is_allowed(name) or "\0" in name or type(content) is not str or not _HEX.match(content):
            raise ValueError(f"its {field} has an attribute that is not possible")
    return value  # type: ignore[return-value]


def load_process_id(value: object, field: str) -> ProcessId:
    """Return the identity of a process."""
    row = check_type(value, list, field)
    if not 4 <= len(row) <= 6:
        raise ValueError(f"its {field} is not the identity of a process")
    pid, start, *names = row
    check_integer(pid, field, 0, (1 << 63) - 1)
    check_integer(start, field, 0, (1 << 63) - 1)
    for text in names:
        check_text(text, field)
    return ProcessId(pid, start, *names)
