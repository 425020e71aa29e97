"""Databases: an SQLite file with sessions, as a whole, with the transactions that are still in its log."""

from __future__ import annotations

import os
import struct
import warnings
from typing import TYPE_CHECKING, Any

from forkwise.errors import ForkwiseWarning
from forkwise.files.store.overlayfs import is_whiteout
from forkwise.fork.agent_paths.paths import PENDING, WAL, describe_file, relative_to
from forkwise.fork.agent_paths.replacement import (
    Replacement,
    SkippedError,
    make_directories,
    open_regular,
    stat_below,
)
from forkwise.linux.trees import closing_fd, open_root, stat_entry

if TYPE_CHECKING:
    from forkwise.sandbox.path_view import PathView

__all__ = ["take_database"]

_SQLITE = b"SQLite format 3\0"
_LARGEST_SESSION = 256 << 20
_LARGEST_WAL = 64 << 20
_WAL_HEADER = struct.Struct(">8I")  # magic, version, page size, sequence, two salts, two checksums
_WAL_FRAME = struct.Struct(">6I")  # page, pages of the database if it ends a transaction, two salts, two checksums
_WAL_MAGIC = {0x377F0682: "little", 0x377F0683: "big"}  # the byte order of the checksums


def take_database(view: PathView, database: str, before: list[Any] | None) -> None:
    """Replace the user's database with the winner's, if the winner changed it and nobody else did."""
    path = None if view.kind == "file" else relative_to(database, view.given)
    if path is None:
        return
    try:
        with closing_fd(open_root(view.content)) as source, closing_fd(open_root(view.path)) as target:
            try:
                fd = open_regular(source, path, _LARGEST_SESSION)
            except FileNotFoundError:
                return  # the winner did not change it
            with closing_fd(fd):
                log = stat_below(source, path + WAL)
                has_log = log is not None and log.st_size > 0 and not is_whiteout(log)
                if before is not None and before[0] and os.fstat(fd).st_mtime_ns == before[0][2] and not has_log:
                    return  # a copy of the user's
                _copy_database(source, fd, target, path, before == describe_file(database))
    except (SkippedError, OSError) as error:
        reason = str(error) if isinstance(error, SkippedError) else error.strerror
        warnings.warn(
            f"the sessions of the winner in {database} were not kept: {reason}", ForkwiseWarning, stacklevel=3
        )


def _copy_database(source: int, fd: int, target: int, path: str, is_unchanged: bool) -> None:
    directory, _, name = path.rpartition("/")
    if not is_unchanged:
        raise SkippedError("the user's was changed since the fork")
    if os.pread(fd, len(_SQLITE), 0) != _SQLITE:
        raise SkippedError("it is not an SQLite database")
    left = {suffix: stat_below(source, path + suffix) for suffix in PENDING}
    pending = [suffix for suffix, found in left.items() if found and found.st_size and not is_whiteout(found)]
    if pending and pending != [WAL]:
        raise SkippedError(f"the agent did not close it, and part of it is in {name}{pending[-1]}")
    with closing_fd(make_directories(target, directory)) as parent:
        for suffix in PENDING:
            if (own := stat_entry(parent, name + suffix)) is not None and own.st_size:
                raise SkippedError(f"another process uses it: there is {name}{suffix}")
        with Replacement(parent, name, stat_entry(parent, name)) as new:
            new.copy(fd, os.fstat(fd).st_size)
            if pending:
                with closing_fd(open_regular(source, path + WAL, _LARGEST_WAL)) as wal:
                    _apply_wal(wal, new.fd)
            new.publish()


def _apply_wal(wal: int, database: int) -> None:
    """Write the transactions of a database's log into its file, as SQLite does when a program closes it.

    SQLite itself is not used on what an attempt wrote. As there, the log ends at the first frame whose checksum does
    not match; what follows the last complete transaction is left out. Raises SkippedError if it is not a valid log.
    """
    header = os.pread(wal, _WAL_HEADER.size, 0)
    if len(header) < _WAL_HEADER.size:
        raise SkippedError("its log is not complete")
    magic, _, size, _, *salts, first, second = _WAL_HEADER.unpack(header)
    order = _WAL_MAGIC.get(magic)
    sums = (0, 0) if order is None else _add_checksum((0, 0), header[:24], order)
    if order is None or sums != (first, second) or not 512 <= size <= 65536 or size & (size - 1):
        raise SkippedError("its log is not one of SQLite")
    pages: dict[int, int] = {}  # where the last version of each page is
    new: dict[int, int] = {}
    at, count = _WAL_HEADER.size, 0
    while len(frame := os.pread(wal, _WAL_FRAME.size + size, at)) == _WAL_FRAME.size + size:
        page, pages_after, *frame_salts, first, second = _WAL_FRAME.unpack_from(frame)
        sums = _add_checksum(_add_checksum(sums, frame[:8], order), frame[_WAL_FRAME.size :], order)
        if frame_salts != salts or sums != (first, second) or not 0 < page <= _LARGEST_SESSION // size:
            break
        new[page] = at + _WAL_FRAME.size
        at += _WAL_FRAME.size + size
        if pages_after:
            pages |= new
            new.clear()
            count = pages_after
    if not count:
        return
    if count > _LARGEST_SESSION // size:
        raise SkippedError(f"it is larger than {_LARGEST_SESSION >> 20} MiB")
    for page, offset in pages.items():
        if page <= count:
            os.pwrite(database, os.pread(wal, size, offset), (page - 1) * size)
    os.ftruncate(database, count * size)


def _add_checksum(sums: tuple[int, int], data: bytes, order: str) -> tuple[int, int]:
    """Return the checksums of a log with further bytes: a sum over pairs of words."""
    first, second = sums
    words = struct.unpack(f"{'<' if order == 'little' else '>'}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
