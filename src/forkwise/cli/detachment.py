"""Detachment: an exploration that runs in the background, and the wait for its end.

The command forks once everything is checked. The child has a session of its own, so that the terminal can be closed,
and prints to a log in the ledger's directory. The parent waits only for the id of the fork, or for the error that
prevented it. The child of an unprivileged user's command stays in its namespace of private mounts.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from forkwise.cli.app import Exit, StoppedBySignalError, exit_code, failure_line, failure_record, hint, print_note
from forkwise.cli.stop_signal import find_stop_signal
from forkwise.display.board import COMMIT_GRACE
from forkwise.display.output import command_line
from forkwise.errors import BranchingError
from forkwise.ledger.detached_run import DetachedRun, load_detached_run
from forkwise.ledger.sqlite import open_ledger
from forkwise.linux.process_id import ProcessId

if TYPE_CHECKING:
    from forkwise.cli.explore_options import ExploreOptions
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.change_watch import ChangeWatch
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import ForkRecord

__all__ = ["Detachment", "detach", "find_exit_code", "wait_for_end"]

_POLL_S = 0.2
_ANNOUNCED_POLL_S = 1.0  # the database announces changes, but not the end of a process


class Detachment:
    """The side of the child: its log, its record, and the pipe to the parent, which waits for the fork's id."""

    def __init__(self, workspace: Workspace, answer_fd: int) -> None:
        self._workspace = workspace
        self._directory = Path(workspace.state, "ledger")
        self._answer_fd = answer_fd
        folder = self._directory / "detached"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, self._log = tempfile.mkstemp(prefix=".log-", dir=folder)
        self._terminal_fds = [os.dup(1), os.dup(2)]
        _redirect(os.open(os.devnull, os.O_RDWR), fd, fd)
        os.close(fd)
        self.run: DetachedRun | None = None

    def start(self, fork: str) -> None:
        """Send the id of the fork to the parent, and detach from its terminal."""
        self.run = DetachedRun(directory=self._directory, fork=fork, process=ProcessId.current())
        os.rename(self._log, self.run.log)
        self.run.save()
        os.write(self._answer_fd, fork.encode())
        os.close(self._answer_fd)
        for fd in self._terminal_fds:
            os.close(fd)

    def begin_report(self) -> None:
        """Record that everything printed from now on is the report."""
        if self.run is not None:
            sys.stdout.flush()
            self.run = replace(self.run, report_start=os.lseek(1, 0, os.SEEK_CUR))
            self.run.save()

    def end(self, code: int, **facts: Any) -> None:
        """Record how the exploration ended."""
        if self.run is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            with open_ledger(self._workspace) as ledger:
                commit = ledger.fork(self.run.fork).commit
            self.run.end(code, time.time(), commit=commit, **facts)

    def give_up(self) -> None:
        """Return to the parent's terminal to print the error there, because there is no fork."""
        _redirect(os.open(os.devnull, os.O_RDONLY), *self._terminal_fds)
        os.unlink(self._log)


def _redirect(stdin_fd: int, stdout_fd: int, stderr_fd: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for target, fd in enumerate((stdin_fd, stdout_fd, stderr_fd)):
        os.dup2(fd, target)
    os.close(stdin_fd)


def detach(
    work: Callable[[Detachment], tuple[int, dict[str, Any]]], workspace: Workspace, options: ExploreOptions
) -> int:
    """Run ``work``, which returns an exit code and a result, in a process without a terminal; print the fork's id."""
    output = options.output
    read_fd, write_fd = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        _run_child(work, workspace, write_fd)
    os.close(write_fd)
    with open(read_fd, "rb") as pipe, _killed_on_interrupt(pid):
        fork = pipe.read().decode()
        if not fork:  # the child has already printed the error
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            sys.exit(code if code >= 0 else 128 - code)
    if output.as_json:
        log = str(DetachedRun(directory=Path(workspace.state, "ledger"), fork=fork, process=ProcessId.nobody()).log)
        output.stream({"detached": {"fork": fork, "process": pid, "log": log}})
    elif options.quiet:
        output.line(fork)
    else:
        output.line(f"Fork {fork} runs in the background, as process {pid}.", "bold")
        commands = {"wait": "waits for its result", "watch": "shows its progress", "abort": "aborts it"}
        for verb, effect in commands.items():
            output.line(f"  {command_line(options.directory, verb, fork)}  {effect}")
    return Exit.OK


@contextmanager
def _killed_on_interrupt(pid: int) -> Iterator[None]:
    """End the child with a signal if the user interrupts before the fork has an id."""
    try:
        yield
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise StoppedBySignalError(find_stop_signal(), "nothing was changed") from None


def _run_child(
    work: Callable[[Detachment], tuple[int, dict[str, Any]]], workspace: Workspace, answer_fd: int
) -> NoReturn:
    """Run the work and exit. A failure is printed on the terminal until there is a fork, and recorded afterwards."""
    os.setsid()
    detachment = Detachment(workspace, answer_fd)
    try:
        code, outcome = work(detachment)
    except (click.ClickException, click.Abort, BranchingError, OSError) as error:
        if detachment.run is None:
            detachment.give_up()
            raise
        message, advice = failure_line(error), hint(error, ())
        print_note("error", message)
        record = failure_record(error)["error"]
        detachment.end(int(exit_code(error)), failure=record, message=message, hint=advice)
        sys.exit(exit_code(error))
    except BaseException as error:
        if detachment.run is None:
            detachment.give_up()
        else:
            message = f"{type(error).__name__}: {error}"
            detachment.end(Exit.ERROR, failure={"type": type(error).__name__, "message": message}, message=message)
        raise
    detachment.end(code, outcome=outcome)
    sys.exit(code)


def wait_for_end(ledger: Ledger, fork: str, timeout_s: float | None) -> tuple[ForkRecord, DetachedRun | None] | None:
    """Wait until no process runs the fork; return it and its detached process, or None after ``timeout_s``."""
    with ledger.watch_changes() as watch:
        return _wait_for_end(ledger, watch, fork, timeout_s)


def _wait_for_end(
    ledger: Ledger, watch: ChangeWatch, fork: str, timeout_s: float | None
) -> tuple[ForkRecord, DetachedRun | None] | None:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    grace_end: float | None = None
    while True:
        record = ledger.fork(fork)
        run = load_detached_run(ledger.directory, record.id)
        process = run.process if run is not None and run.is_running else record.owner
        is_someone_busy = record.owner.alive or (run is not None and run.is_overruled)
        is_being_committed = record.stored == "resolved" and record.commit is None and is_someone_busy
        if is_being_committed:
            grace_end = time.monotonic() + COMMIT_GRACE if grace_end is None else grace_end
            is_being_committed = time.monotonic() < grace_end
        if not (record.state == "running" or is_being_committed or (run is not None and run.is_running)):
            return record, run
        pause = _ANNOUNCED_POLL_S if watch.is_announced else _POLL_S
        left = pause if deadline is None else min(pause, deadline - time.monotonic())
        if left <= 0:
            return None
        if watch.is_announced:
            watch.wait(0.0, left)
        else:
            _sleep_until_end(process, left)


def _sleep_until_end(process: ProcessId, timeout_s: float) -> None:
    """Sleep until the time is up or the process ends."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        time.sleep(timeout_s)
        return
    try:
        select.select([pidfd] if process.alive else [], [], [], timeout_s)
    finally:
        os.close(pidfd)


def find_exit_code(fork: ForkRecord) -> Exit:
    """Derive the exit code from the ledger's record of a fork, if no process has recorded one."""
    match fork.state:
        case "resolved":
            return Exit.ERROR if fork.commit is None else Exit.OK
        case "open":
            return Exit.OK if not fork.spec.get("commit", True) else Exit.UNDECIDED
        case "aborted":
            return Exit.NO_WINNER
        case _:
            return Exit.ERROR
