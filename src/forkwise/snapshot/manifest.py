"""Manifests: what a snapshot or a packed delta contains, as lines of JSON, one for each directory.

A line describes its directory completely, including which packs hold the contents, and does not depend on other lines.
So the line of an unchanged directory is the same in the next snapshot, and lines are stored in segments that are shared
by snapshots. Lines come out of a store that others may write to: each value is checked before it is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast
from zlib import crc32

from forkwise.snapshot.pack import LARGEST_CHUNK, LARGEST_OBJECT, DamagedObjectError

__all__ = [
    "LARGEST_LINE",
    "Directory",
    "File",
    "FileRow",
    "Link",
    "Piece",
    "check_digest",
    "check_path",
    "cut_segments",
    "format_line",
    "format_row",
    "format_rows",
    "list_pieces",
    "parse_line",
    "parse_lines",
    "parse_rows",
    "require",
]

#: Entries of one line; a directory with more has several lines.
LARGEST_LINE = 4096

_SMALLEST_SEGMENT = 24 << 10  # bytes from which a path may end a segment
_LARGEST_SEGMENT = 128 << 10  # bytes after which a segment ends anyway
_CUT = 4  # one path in this many may end a segment
_LARGEST_SIZE = 1 << 50
_LARGEST_TIME = 1 << 63
_LONGEST_NAME = 255
_LONGEST_PATH = 1 << 16
_LONGEST_TARGET = 4095
_MOST_ATTRIBUTES = 64
_LARGEST_ATTRIBUTES = 64 << 10
_PIECES = 6  # the position of a file's pieces in its row
_ATTRIBUTE = re.compile(r"user\.(?!overlay\.|fuseoverlayfs\.)[^\x00]{1,250}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)


class Piece(NamedTuple):
    """A part of a file's content: a chunk in a pack, or a hole if ``digest`` is empty."""

    digest: str
    pack: str
    offset: int
    length: int


class File(NamedTuple):
    """A regular file. Files of one snapshot with the same ``group``, if it is not 0, are hard links of each other."""

    name: str
    mode: int
    mtime_ns: int
    size: int
    group: int
    attributes: tuple[tuple[str, str], ...]
    pieces: tuple[Piece, ...]


class Link(NamedTuple):
    """A symbolic link."""

    name: str
    mtime_ns: int
    target: str


class Directory(NamedTuple):
    """A directory, or a part of a large one: only the first part has ``is_first``."""

    path: str
    is_first: bool
    mode: int
    mtime_ns: int
    attributes: tuple[tuple[str, str], ...]
    files: tuple[File, ...]
    links: tuple[Link, ...]


# Write.


#: A file as the list that stands for it in a line, with the names of packs instead of their numbers.
FileRow = list[Any]


def format_line(directory: Directory) -> bytes:
    """Return a directory as one line, without its end."""
    return format_rows(directory, [format_row(file) for file in directory.files])[0]


def format_row(file: File) -> FileRow:
    """Return a file as a row."""
    return [*file[:_PIECES], [[*piece] if piece.digest else [piece.length] for piece in file.pieces]]


def format_rows(directory: Directory, files: Iterable[FileRow]) -> tuple[bytes, list[str]]:
    """Return a directory with these files as one line, without its end, and the packs that hold their contents."""
    packs: dict[str, int] = {}
    rows = []
    for file in files:
        pieces = [
            [piece[0], packs.setdefault(piece[1], len(packs)), piece[2], piece[3]] if len(piece) > 1 else piece
            for piece in file[_PIECES]
        ]
        rows.append([*file[:_PIECES], pieces])
    about = [int(directory.is_first), directory.mode, directory.mtime_ns, directory.attributes]
    line = [directory.path, about, list(packs), rows, directory.links]
    return json.dumps(line, separators=(",", ":")).encode(), list(packs)


def cut_segments(lines: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
    """Yield lines, each with its directory's path, as segments; most changes of a tree leave most segments the same."""
    gathered: list[bytes] = []
    size = 0
    for path, line in lines:
        gathered.append(line)
        size += len(line) + 1
        may_end = size >= _SMALLEST_SEGMENT and crc32(path.encode(errors="surrogateescape")) % _CUT == 0
        if may_end or size >= _LARGEST_SEGMENT:
            yield b"\n".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"\n".join(gathered)


# Read.


def parse_lines(segment: bytes) -> Iterator[Directory]:
    """Yield the directories of a segment; DamagedObjectError if a value is invalid."""
    for line in segment.split(b"\n"):
        yield parse_line(line)


def parse_line(line: bytes) -> Directory:
    """Parse one line; DamagedObjectError if a value is invalid."""
    if len(line) > LARGEST_OBJECT:
        raise DamagedObjectError("a line of a manifest is too long")
    try:
        path, (is_first, mode, mtime_ns, attributes), packs, files, links = json.loads(line)
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedObjectError(f"a line of a manifest is malformed: {str(error)[:100]}") from error
    require(isinstance(packs, list) and isinstance(files, list) and isinstance(links, list), "a list is missing")
    require(len(files) + len(links) <= LARGEST_LINE, "a line of a manifest has too many entries")
    for pack in packs:
        check_digest(pack)
    if path != "":
        check_path(path)
    parsed = Directory(
        path,
        bool(_integer(is_first, 1)),
        _integer(mode, 0o7777),
        _time(mtime_ns),
        _attributes(attributes),
        tuple(_parse_file(row, packs) for row in files),
        tuple(_parse_link(row) for row in links),
    )
    names = [f.name for f in parsed.files] + [link.name for link in parsed.links]
    require(len(set(names)) == len(names), "a name is in a directory twice")
    return parsed


def parse_rows(line: bytes) -> list[FileRow]:
    """Return the files of a line that this machine wrote and whose digest was checked; values are not checked again."""
    _, _, packs, files, _ = json.loads(line)
    for file in files:
        for piece in file[_PIECES]:
            if len(piece) > 1:
                piece[1] = packs[piece[1]]
    return cast(list[FileRow], files)


def list_pieces(file: FileRow) -> list[Piece]:
    """List the chunks of a file, without its holes."""
    return [Piece(*piece) for piece in file[_PIECES] if len(piece) > 1]


def check_digest(value: Any) -> str:
    """Return ``value`` if it is a digest; raise DamagedObjectError otherwise."""
    if isinstance(value, str) and _DIGEST.match(value):
        return value
    raise DamagedObjectError("a digest is not one")


def check_path(value: Any) -> str:
    """Return a path relative to a root; DamagedObjectError unless it stays below that root and is normal."""
    require(isinstance(value, str) and 0 < len(value) <= _LONGEST_PATH, "a path is empty or too long")
    for name in value.split("/"):
        _check_name(name)
    return str(value)


def _check_name(name: Any) -> str:
    if isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name:
        try:
            if len(name.encode(errors="surrogateescape")) <= _LONGEST_NAME:
                return name
        except UnicodeEncodeError:
            pass
    raise DamagedObjectError(f"{str(name)[:80]!r} is not a name of a file in a directory")


def _parse_file(row: Any, packs: list[str]) -> File:
    try:
        name, mode, mtime_ns, size, group, attributes, rows = row
        pieces = tuple(_parse_piece(piece, packs) for piece in rows)
    except (ValueError, TypeError) as error:
        if isinstance(error, DamagedObjectError):
            raise
        raise DamagedObjectError("a file of a manifest is malformed") from error
    _integer(size, _LARGEST_SIZE)
    require(sum(p.length for p in pieces) == size, "a file's content does not have the length of the file")
    return File(
        _check_name(name),
        _integer(mode, 0o7777),
        _time(mtime_ns),
        size,
        _integer(group, _LARGEST_TIME),
        _attributes(attributes) if attributes else (),
        pieces,
    )


def _parse_piece(row: Any, packs: list[str]) -> Piece:
    if len(row) == 1:
        return Piece("", "", 0, _integer(row[0], _LARGEST_SIZE))
    digest, number, offset, length = row
    _integer(number, len(packs) - 1)
    require(_integer(length, LARGEST_CHUNK) > 0, "a chunk is empty")
    return Piece(check_digest(digest), packs[number], _integer(offset, LARGEST_OBJECT), length)


def _parse_link(row: Any) -> Link:
    require(isinstance(row, list) and len(row) == 3, "a symbolic link of a manifest is malformed")
    name, mtime_ns, target = row
    require(isinstance(target, str) and target != "" and "\0" not in target, "a symbolic link has no target")
    try:
        require(len(target.encode(errors="surrogateescape")) <= _LONGEST_TARGET, "a symbolic link is too long")
    except UnicodeEncodeError as error:
        raise DamagedObjectError("the target of a symbolic link is not text") from error
    return Link(_check_name(name), _time(mtime_ns), target)


def _attributes(value: Any) -> tuple[tuple[str, str], ...]:
    """Check extended attributes: only the user's own, and none that overlayfs would read as marks."""
    require(isinstance(value, list) and len(value) <= _MOST_ATTRIBUTES, "extended attributes are malformed")
    total = 0
    checked = []
    for pair in value:
        require(isinstance(pair, list) and len(pair) == 2, "an extended attribute is malformed")
        name, content = pair
        require(isinstance(name, str) and _ATTRIBUTE.match(name) is not None, "an extended attribute is not allowed")
        require(isinstance(content, str), "an extended attribute is malformed")
        try:
            total += len(bytes.fromhex(content))
        except ValueError as error:
            raise DamagedObjectError("an extended attribute is malformed") from error
        checked.append((name, content))
    require(total <= _LARGEST_ATTRIBUTES, "extended attributes are too large")
    return tuple(checked)


def _integer(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise DamagedObjectError(f"{str(value)[:40]!r} is not a number from 0 to {most}")
    return value


def _time(value: Any) -> int:
    if type(value) is not int or not -_LARGEST_TIME < value < _LARGEST_TIME:
        raise DamagedObjectError(f"{str(value)[:40]!r} is not a time")
    return value


def require(is_valid: bool, problem: str) -> None:
    """Raise DamagedObjectError with ``problem`` unless a value is valid."""
    if not is_valid:
        raise DamagedObjectError(problem)
