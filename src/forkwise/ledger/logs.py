"""Logs: what an attempt printed, in bounded memory and on bounded disk.

``<ledger>/output/<attempt>.log`` holds the bytes of both streams in the order they arrived, so that any pager shows it.
``<attempt>.streams`` beside it has a line with the offset and the stream's name for each change of stream, written
before the bytes that follow it. A log without that file is all stdout. When its attempt is over, a large log is
replaced by ``<attempt>.log.gz``.

The logs of the servers in its branch have the same form, in ``<attempt>.servers/<server>.log``; they are addressed as
``<attempt>@<server>``. The servers of its tests are called ``<server>.tests``.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from forkwise.errors import LedgerError
from forkwise.text.clean import clean_line
from forkwise.text.redaction import Redactor, StreamRedactor, process_redactor

__all__ = [
    "AttemptLog",
    "ServerLogs",
    "compress_log",
    "follow_log",
    "list_server_logs",
    "read_log",
    "read_log_part",
    "remove_log",
]

_CAP = 32 << 20
_SERVER_CAP = 8 << 20
_SERVERS = ".servers"
_LARGE = 256 << 10  # bytes above which a log is compressed
_MAX_READ = 2 * _CAP  # bytes of a log after decompression; more than can be written
_TAIL_SIZE = 64 << 10  # bytes of the end that are always kept
_SEARCH_SIZE = 4096  # bytes of the end that are searched for the last line
_LINE_LENGTH = 200
_NOTE_STREAM = "forkwise"  # the stream of the line that says what was left out
_FIRST_STREAM = "stdout"


class AttemptLog:
    """The log of one attempt's stdout and stderr, without known secrets. Several threads may write.

    The first ``cap`` bytes are written to the file as they arrive, the last 64 KiB when it is closed. The bytes between
    are left out, and a line says so.

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> with AttemptLog(directory, "k3f9ab.1") as log:
    ...     log.write("stdout", b"compiling\\n")
    ...     log.write("stderr", b"a warning\\n")
    >>> log.last_line
    'a warning'
    >>> read_log(directory, "k3f9ab.1", stream="stdout")
    b'compiling\\n\'
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        attempt: str,
        *,
        cap: int = _CAP,
        redactor: Redactor | None = None,
    ) -> None:
        remove_log(directory, attempt)
        log, self._streams_path = _log_paths(directory, attempt)
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._log = log.open("wb")
        self._streams: BinaryIO | None = None
        self._stream = _FIRST_STREAM
        self._cap = cap
        self._space_left = cap
        self._written = 0  # bytes of the beginning that are in the file
        self._tail = _Tail()
        self._lock = threading.Lock()
        self._redactor = process_redactor() if redactor is None else redactor
        self._redacted: dict[str, StreamRedactor] = {}

    def __enter__(self) -> AttemptLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, stream: str, piece: bytes) -> None:
        """Add a piece of ``stdout`` or ``stderr``. The part below the cap is in the file when this returns.

        If the end of a piece may be the beginning of a secret, it is held back until the next piece of the stream.
        """
        with self._lock:
            if stream not in self._redacted:
                self._redacted[stream] = StreamRedactor(self._redactor)
            if clean := self._redacted[stream].feed(piece):
                self._add(stream, clean)

    def _add(self, stream: str, piece: bytes) -> None:
        self._tail.add(stream, piece)
        fits = piece[: max(self._space_left, 0)]
        if fits:
            self._written += len(fits)
            self._append(stream, fits)
        if self._is_cut and self._stream != _NOTE_STREAM:
            self._append(_NOTE_STREAM, _format_note(self._cap))

    @property
    def total(self) -> int:
        """The number of bytes that arrived so far."""
        return self._tail.total

    @property
    def last_line(self) -> str:
        """The last line with printable text, cleaned and shortened."""
        text = self.tail(_SEARCH_SIZE)
        lines = (clean_line(line) for line in reversed(re.split(r"[\r\n]", text)))
        return next((line[:_LINE_LENGTH] for line in lines if line), "")

    def finish(self) -> None:
        """Write what was held back as a possible secret, because the attempt has ended."""
        with self._lock:
            self._flush()

    def tail(self, size: int = _SEARCH_SIZE) -> str:
        """Return the last ``size`` bytes of both streams (64 KiB at most) as text, with � for invalid UTF-8."""
        with self._lock:
            end = b"".join(run for _, run in self._tail.runs)
        return end[max(len(end) - size, 0) :].decode(errors="replace")

    def close(self) -> None:
        """Close the file, after writing the tail that is not in it yet."""
        with self._lock:
            if self._log.closed:
                return
            self._flush()
            # Skip the part of the tail that is in the file already.
            skipped = 0 if self._is_cut else self._written - self._tail.start
            for stream, run in self._tail.runs:
                if piece := bytes(run[skipped:]):
                    self._append(stream, piece)
                skipped = max(skipped - len(run), 0)
            self._log.close()
            if self._streams is not None:
                self._streams.close()

    def _flush(self) -> None:
        """Add what was held back as a possible secret."""
        for stream, redacted in self._redacted.items():
            if rest := redacted.flush():
                self._add(stream, rest)

    @property
    def _is_cut(self) -> bool:
        """Whether some bytes are neither in the file nor in the tail."""
        return self._tail.start > self._written

    def _append(self, stream: str, piece: bytes) -> None:
        if stream != self._stream:
            if self._streams is None:
                self._streams = self._streams_path.open("wb")
            change = f"{self._log.tell()} {stream}\n".encode()
            self._streams.write(change)
            self._streams.flush()
            self._stream = stream
            self._space_left -= len(change)  # streams that alternate byte by byte must not fill the disk either
        self._log.write(piece)
        self._log.flush()
        self._space_left -= len(piece)


class ServerLogs:
    """The logs of the servers of one attempt, each opened when its server first prints something.

    ``suffix`` is ``.tests`` for the servers of the attempt's tests.
    """

    def __init__(self, directory: str | os.PathLike[str], attempt: str, suffix: str = "") -> None:
        self._directory = directory
        self._attempt = attempt
        self._suffix = suffix
        self._logs: dict[str, AttemptLog] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> ServerLogs:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            for server, log in self._logs.items():
                log.close()
                compress_log(self._directory, self._name(server))
            self._logs.clear()

    def write(self, server: str, stream: str, piece: bytes) -> None:
        """Add a piece of a server's output."""
        with self._lock:
            if server not in self._logs:
                self._logs[server] = AttemptLog(self._directory, self._name(server), cap=_SERVER_CAP)
            log = self._logs[server]
        log.write(stream, piece)

    def _name(self, server: str) -> str:
        return f"{self._attempt}@{server}{self._suffix}"


def list_server_logs(directory: str | os.PathLike[str], attempt: str) -> list[str]:
    """List the names of the servers of an attempt that printed something, with those of its tests."""
    try:
        names = os.listdir(_log_paths(directory, f"{attempt}@any")[0].parent)
    except FileNotFoundError:
        return []
    return sorted({name.removesuffix(".gz").removesuffix(".log") for name in names if ".log" in name})


class _Tail:
    """The last bytes that arrived, as runs of one stream each."""

    def __init__(self) -> None:
        self.runs: deque[tuple[str, bytearray]] = deque()
        self.total = 0
        self._size = 0

    @property
    def start(self) -> int:
        """The offset, in everything that arrived, of the first byte of the tail."""
        return self.total - self._size

    def add(self, stream: str, piece: bytes) -> None:
        """Add a piece, and drop the surplus from the front."""
        self.total += len(piece)
        if not self.runs or self.runs[-1][0] != stream:
            self.runs.append((stream, bytearray()))
        end = piece[-_TAIL_SIZE:]
        self.runs[-1][1].extend(end)
        self._size += len(end)
        while (surplus := self._size - _TAIL_SIZE) > 0:
            first = self.runs[0][1]
            dropped = min(surplus, len(first))
            self._size -= dropped
            if dropped == len(first):
                self.runs.popleft()
            else:
                del first[:dropped]


def follow_log(directory: str | os.PathLike[str], attempt: str, start: int, *, tail: int) -> tuple[int, bytes]:
    """Return the size of an attempt's log and what was added since it had ``start`` bytes, on both streams.

    At most the last ``tail`` bytes are returned. If the log is shorter than ``start``, it was started again and is read
    from its beginning.
    """
    log, _ = _log_paths(directory, attempt)
    try:
        content = _open_log(log)
    except FileNotFoundError:
        return 0, b""
    with content:
        end = content.seek(0, os.SEEK_END)
        content.seek(max(start if start <= end else 0, end - tail))
        piece = content.read(max(end - content.tell(), 0))
        return content.tell(), piece


def read_log(
    directory: str | os.PathLike[str], attempt: str, *, stream: str | None = None, tail: int | None = None
) -> bytes:
    """Return what an attempt printed, byte for byte: on both streams or on one, all of it or the last ``tail`` bytes.

    If bytes were left out, the line that says so is included, whichever stream is requested.
    """
    log, streams = _log_paths(directory, attempt)
    try:
        content = _open_log(log)
    except FileNotFoundError:
        return b""
    with content:
        end = content.seek(0, os.SEEK_END)
        if stream is None:
            content.seek(0 if tail is None else max(end - tail, 0))
            return content.read()
        pieces: list[bytes] = []
        for start, after, name in reversed(list(_runs(streams, end))):
            if name not in (stream, _NOTE_STREAM):
                continue
            wanted = after - start if tail is None else min(after - start, tail - sum(map(len, pieces)))
            content.seek(after - wanted)
            pieces.append(content.read(wanted))
    return b"".join(reversed(pieces))


def read_log_part(directory: str | os.PathLike[str], attempt: str, start: int, size: int) -> tuple[int, bytes]:
    """Return the size of an attempt's log, and up to ``size`` bytes of it from ``start`` on."""
    log, _ = _log_paths(directory, attempt)
    try:
        content = _open_log(log)
    except FileNotFoundError:
        return 0, b""
    with content:
        end = content.seek(0, os.SEEK_END)
        content.seek(min(start, end))
        return end, content.read(size)


def remove_log(directory: str | os.PathLike[str], attempt: str) -> None:
    """Delete the log of an attempt, and those of its servers."""
    log, streams = _log_paths(directory, attempt)
    for path in (log, streams, _compressed_path(log)):
        path.unlink(missing_ok=True)
    if "@" not in attempt and (servers := log.with_suffix(_SERVERS)).is_dir():
        shutil.rmtree(servers)


def compress_log(directory: str | os.PathLike[str], attempt: str) -> None:
    """Compress the log of an attempt that is over, if it is large. If the disk is full, it stays as it is."""
    log, _ = _log_paths(directory, attempt)
    beside = log.with_suffix(".new")
    try:
        if log.stat().st_size <= _LARGE:
            return
        with log.open("rb") as content, gzip.open(beside, "wb", compresslevel=1) as file:
            shutil.copyfileobj(content, file, 1 << 20)
        os.rename(beside, _compressed_path(log))
        log.unlink()
    except OSError:
        beside.unlink(missing_ok=True)


def _open_log(log: Path) -> BinaryIO:
    """Open a log, or its compressed form. Raises FileNotFoundError if neither exists, LedgerError if it is damaged."""
    try:
        return log.open("rb")
    except FileNotFoundError:
        pass
    try:
        with gzip.open(_compressed_path(log)) as file:
            return io.BytesIO(file.read(_MAX_READ))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise LedgerError(f"the log {_compressed_path(log)} is damaged: {error}") from error


def _compressed_path(log: Path) -> Path:
    return log.with_suffix(".log.gz")


def _runs(streams: Path, end: int) -> Iterator[tuple[int, int, str]]:
    """Yield the start, the end and the stream of each run in a log."""
    try:
        changes = streams.read_text().splitlines()
    except FileNotFoundError:
        changes = []
    start, name = 0, _FIRST_STREAM
    for change in changes:
        offset, _, following = change.partition(" ")
        yield start, int(offset), name
        start, name = int(offset), following
    yield start, end, name


def _log_paths(directory: str | os.PathLike[str], attempt: str) -> tuple[Path, Path]:
    if not re.fullmatch(r"[a-z0-9]+\.[0-9]+(?:@[a-z][a-z0-9_-]*(?:\.tests)?)?", attempt):
        raise LedgerError(f"{attempt!r} is not the id of an attempt, such as k3f9ab.2", subject=attempt)
    name, _, server = attempt.partition("@")
    folder = Path(directory, "output", f"{name}{_SERVERS}") if server else Path(directory, "output")
    return folder / f"{server or name}.log", folder / f"{server or name}.streams"


def _format_note(cap: int) -> bytes:
    return f"\n[forkwise: output left out here; the first {cap} and the last {_TAIL_SIZE} bytes were kept]\n".encode()
