"""LastingDriver: how an app writes to a terminal that may be closed at any moment. Textual's own thread for that dies
of it, and then whoever draws waits for it for ever; here what nobody can see is written to nobody."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TextIO, cast

from textual.drivers.linux_driver import LinuxDriver

__all__ = ["LastingDriver"]


class _Lasting:
    """A file of which it does not matter whether it is there."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()


class LastingDriver(LinuxDriver):
    """Writes to the terminal as long as there is one; the app is told of its end by a signal."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._file = cast(Any, _Lasting(cast(TextIO, self._file)))
