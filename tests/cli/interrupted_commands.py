"""A program that runs commands and sends them a signal at a chosen call, and the client of that program.

It has all modules loaded and forks for each command. The call is counted in the main thread, among the calls of
forkwise's own functions, so that the same number is nearly the same moment in every run.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import forkwise
from tests.preloaded import load_modules

__all__ = ["CommandServer", "Ended"]

_ROOT = Path(__file__).parents[2]
_SOURCES = f"{Path(forkwise.__file__).parent}/"
_MODULES = (
    "cli.commands.export",
    "cli.commands.worktree",
    "cli.detachment",
    "cli.exploration",
    "files.undo",
    "git.repository_merge",
    "git.repository_revert",
    "worktree.worktree",
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended; ``calls`` is the number of calls, if it was not interrupted."""

    code: int
    stdout: str
    stderr: str
    calls: int


class CommandServer:
    """The client: starts the program, and has it run one command after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.interrupted_commands"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, cwd: Path, call: int = 0, number: int = signal.SIGINT, second_call: int = 0) -> Ended:
        """Run a command, send it a signal at ``call``, and once more at ``second_call``; 0 is never.

        SIGINT and SIGHUP go to all processes of its session, as from a terminal.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = [words, str(cwd), dict(os.environ), call, int(number), second_call]
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the program."""
        self._process.communicate()


def _serve() -> None:
    load_modules()
    for name in _MODULES:
        importlib.import_module(f"forkwise.{name}")
    for line in sys.stdin:
        request = json.loads(line)
        fds = [os.memfd_create(name) for name in ("stdout", "stderr", "calls")]
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _run(request, fds)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        texts = [os.pread(fd, 1 << 20, 0).decode(errors="replace") for fd in fds]
        for fd in fds:
            os.close(fd)
        ended = {"code": code, "stdout": texts[0], "stderr": texts[1], "calls": int(texts[2] or 0)}
        print(json.dumps(ended), flush=True)


def _run(request: list[Any], fds: list[int]) -> NoReturn:
    words, directory, environment, call, number, second_call = request
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(fds[0], 1)
    os.dup2(fds[1], 2)
    calls_fd = fds[2]
    os.closerange(3, calls_fd)
    os.closerange(calls_fd + 1, 256)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["forkwise", *words]
    counter = _Counter(call, number)
    # Two hooks: Python removes one in which a signal's handler has raised.
    sys.settrace(counter.on_event)
    if second_call:
        sys.setprofile(_Counter(second_call, number).on_event)
    try:
        forkwise.cli.main()
    finally:
        os.pwrite(calls_fd, str(counter.count).encode(), 0)
    raise SystemExit


class _Counter:
    """Sends a signal at a call; a hook for ``sys.settrace`` and ``sys.setprofile``."""

    def __init__(self, call: int, number: int) -> None:
        self.count = 0
        self._call = call
        self._number = number
        self._pid = os.getpid()

    def on_event(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(_SOURCES) or os.getpid() != self._pid:
            return
        self.count += 1
        if self.count == self._call:
            (os.kill if self._number == signal.SIGTERM else os.killpg)(self._pid, self._number)


if __name__ == "__main__":
    _serve()
