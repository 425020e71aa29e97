"""Output: what an attempt printed, in bounded memory and on bounded disk.

``<ledger>/output/<attempt>.log`` holds the bytes of both streams as they came, so that any pager shows it. Beside it,
``<attempt>.streams`` says where one stream gives way to another: a line with the offset and the stream's name for each
change, written before what follows it. A log without one is all stdout.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from forkwise.errors import LedgerError

__all__ = ["AttemptLog", "follow_log", "read_log", "remove_output"]

_CAP = 32 << 20
_KEPT = 64 << 10  # how much of the end is kept whatever comes before it
_SEARCHED = 4096  # how much of the end the last line is looked for in
_LINE = 200
_NOTE = "forkwise"  # the stream of what was put in by us
_FIRST = "stdout"
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")


class AttemptLog:
    """Where one attempt's stdout and stderr go; several threads may write.

    The first ``cap`` bytes go to the file as they come, the last 64 KiB when it is closed, and what lies between is
    left out, with a line that says so.

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> with Output(directory, "k3f9ab.1") as output:
    ...     output.write("stdout", b"compiling\\n")
    ...     output.write("stderr", b"a warning\\n")
    >>> output.last_line
    'a warning'
    >>> read_output(directory, "k3f9ab.1", stream="stdout")
    b'compiling\\n'
    """

    def __init__(self, directory: str | os.PathLike[str], attempt: str, *, cap: int = _CAP) -> None:
        remove_output(directory, attempt)
        log, self._streams_path = _paths(directory, attempt)
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._log = log.open("wb")
        self._streams: BinaryIO | None = None
        self._stream = _FIRST
        self._cap = cap
        self._room = cap
        self._written = 0  # how much of the beginning is in the file
        self._end = _End()
        self._lock = threading.Lock()

    def __enter__(self) -> AttemptLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, stream: str, piece: bytes) -> None:
        """Take in what came from ``stdout`` or ``stderr``. What fits is in the file when this returns."""
        with self._lock:
            self._end.add(stream, piece)
            fits = piece[: max(self._room, 0)]
            if fits:
                self._written += len(fits)
                self._put(stream, fits)
            if self._is_cut and self._stream != _NOTE:
                self._put(_NOTE, _note(self._cap))

    @property
    def total(self) -> int:
        """How many bytes came so far."""
        return self._end.total

    @property
    def last_line(self) -> str:
        """The last line that shows anything, as one short printable line."""
        text = self.tail(_SEARCHED)
        lines = (_printable(line) for line in reversed(re.split(r"[\r\n]", text)))
        return next((line[:_LINE] for line in lines if line), "")

    def tail(self, size: int = _SEARCHED) -> str:
        """The last ``size`` bytes of both streams (64 KiB at most) as text, with � for what is not UTF-8."""
        with self._lock:
            end = b"".join(run for _, run in self._end.runs)
        return end[max(len(end) - size, 0) :].decode(errors="replace")

    def close(self) -> None:
        """Write the end down, where it is not in the file already."""
        with self._lock:
            if self._log.closed:
                return
            # What the end and the file have in common is skipped.
            skipped = 0 if self._is_cut else self._written - self._end.start
            for stream, run in self._end.runs:
                if piece := bytes(run[skipped:]):
                    self._put(stream, piece)
                skipped = max(skipped - len(run), 0)
            self._log.close()
            if self._streams is not None:
                self._streams.close()

    @property
    def _is_cut(self) -> bool:
        """Whether something is neither in the file nor at the end."""
        return self._end.start > self._written

    def _put(self, stream: str, piece: bytes) -> None:
        if stream != self._stream:
            if self._streams is None:
                self._streams = self._streams_path.open("wb")
            change = f"{self._log.tell()} {stream}\n".encode()
            self._streams.write(change)
            self._streams.flush()
            self._stream = stream
            self._room -= len(change)  # so that streams which take turns byte by byte fill no disk either
        self._log.write(piece)
        self._log.flush()
        self._room -= len(piece)


class _End:
    """The last bytes of what came, as runs of one stream each."""

    def __init__(self) -> None:
        self.runs: deque[tuple[str, bytearray]] = deque()
        self.total = 0
        self._size = 0

    @property
    def start(self) -> int:
        """The offset, in all that came, of the first byte that is kept."""
        return self.total - self._size

    def add(self, stream: str, piece: bytes) -> None:
        """Take in a piece, and drop as much from the front as there is too much."""
        self.total += len(piece)
        if not self.runs or self.runs[-1][0] != stream:
            self.runs.append((stream, bytearray()))
        kept = piece[-_KEPT:]
        self.runs[-1][1].extend(kept)
        self._size += len(kept)
        while (surplus := self._size - _KEPT) > 0:
            first = self.runs[0][1]
            dropped = min(surplus, len(first))
            self._size -= dropped
            if dropped == len(first):
                self.runs.popleft()
            else:
                del first[:dropped]


def follow_log(directory: str | os.PathLike[str], attempt: str, start: int, *, tail: int) -> tuple[int, bytes]:
    """What an attempt printed on both streams since its log had ``start`` bytes, and how many it has now. Where that is
    more than ``tail``, only the last of it; where the log begins anew, what that holds."""
    log, _ = _paths(directory, attempt)
    try:
        content = log.open("rb")
    except FileNotFoundError:
        return 0, b""
    with content:
        end = os.fstat(content.fileno()).st_size
        content.seek(max(start if start <= end else 0, end - tail))
        piece = content.read(max(end - content.tell(), 0))
        return content.tell(), piece


def read_log(
    directory: str | os.PathLike[str], attempt: str, *, stream: str | None = None, tail: int | None = None
) -> bytes:
    """What an attempt printed, byte for byte: on both streams or on one, all that is kept or the last ``tail`` bytes.

    Where something was left out, the line that says so is in it, whichever stream is asked for.
    """
    log, streams = _paths(directory, attempt)
    try:
        content = log.open("rb")
    except FileNotFoundError:
        return b""
    with content:
        end = os.fstat(content.fileno()).st_size
        if stream is None:
            content.seek(0 if tail is None else max(end - tail, 0))
            return content.read()
        pieces: list[bytes] = []
        for start, after, name in reversed(list(_runs(streams, end))):
            if name not in (stream, _NOTE):
                continue
            wanted = after - start if tail is None else min(after - start, tail - sum(map(len, pieces)))
            content.seek(after - wanted)
            pieces.append(content.read(wanted))
    return b"".join(reversed(pieces))


def remove_output(directory: str | os.PathLike[str], attempt: str) -> None:
    """Delete what an attempt printed."""
    for path in _paths(directory, attempt):
        path.unlink(missing_ok=True)


def _runs(streams: Path, end: int) -> Iterator[tuple[int, int, str]]:
    """Where which stream begins and ends in a log."""
    try:
        changes = streams.read_text().splitlines()
    except FileNotFoundError:
        changes = []
    start, name = 0, _FIRST
    for change in changes:
        offset, _, following = change.partition(" ")
        yield start, int(offset), name
        start, name = int(offset), following
    yield start, end, name


def _paths(directory: str | os.PathLike[str], attempt: str) -> tuple[Path, Path]:
    if not re.fullmatch(r"[a-z0-9]+\.[0-9]+", attempt):
        raise LedgerError(f"{attempt!r} is not the id of an attempt", subject=attempt)
    beginning = Path(directory, "output", attempt)
    return beginning.with_name(f"{attempt}.log"), beginning.with_name(f"{attempt}.streams")


def _note(cap: int) -> bytes:
    return f"\n[forkwise: left out here is all but the first {cap} and the last {_KEPT} bytes]\n".encode()


def _printable(line: str) -> str:
    return "".join(c for c in _ESCAPE.sub("", line).replace("\t", " ") if c.isprintable()).strip()
