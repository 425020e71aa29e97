"""Running a person's shell or command inside a branch, and standing aside while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

__all__ = ["run_inside"]

_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
_FROM_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)


def run_inside(path: Path, command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command (without one: the user's shell) at a path; its exit status, 128 + N where signal N ended it."""
    words = list(command) or [os.environ.get("SHELL") or "/bin/sh"]
    environment = {**os.environ, **variables, "PWD": str(path)}
    with _Aside() as aside, subprocess.Popen(words, cwd=path, env=environment) as process:
        aside.stand_for(process)
        status = process.wait()
    return 128 - status if status < 0 else status


class _Aside:
    """Leaves the keyboard's signals to the command, which gets them as well, and hands it those sent to us.

    Begun before the command is, so that no signal falls between. By handlers, and not by ignoring, because what is
    ignored stays so in a command.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._before: dict[int, signal.Handlers | Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> _Aside:
        for number in _PASSED_ON:
            self._before[number] = signal.signal(number, self._pass_on)
        for number in _FROM_KEYBOARD:
            self._before[number] = signal.signal(number, self._stay)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stand_for(self, process: subprocess.Popen[bytes]) -> None:
        """From now on signals go to this process, also those that came before it was there."""
        self._process = process
        for number in self._early:
            process.send_signal(number)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)

    def _stay(self, _number: int, _frame: FrameType | None) -> None:
        return
