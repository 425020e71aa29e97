"""Ctrl-C in every phase, a kill, and cancellation at any moment.

A commit happens completely or not at all, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forkwise import BestOfN, Pattern, Reflexion, Speculate, Tests, TreeOfThoughts, Workspace
from forkwise.fork.fork import open_ledger
from tests.explore.interrupted_program import PHASES, good
from tests.leftovers import check_nothing_left, children

pytestmark = pytest.mark.crash

ROOT = Path(__file__).parents[2]
IN_SANDBOXES = {"command", "function", "tests", "nested-command"}


class Driver:
    """A program that is in a certain phase."""

    def __init__(self, workspace: Workspace, phase: str) -> None:
        self._room = workspace.path.parent / "room"
        self._room.mkdir()
        fifo = self._room / "fifo"
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.explore.interrupted_program", str(workspace.path), phase, str(fifo)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        os.set_blocking(reader, True)
        self.held = os.fdopen(reader, "rb", buffering=0)
        if phase in IN_SANDBOXES:
            self._wait_for_sandboxes()
        elif phase != "commit":
            assert self.process.stdout is not None
            if (line := self.process.stdout.readline()) != "ready\n":
                self.process.kill()
                pytest.fail(f"the program printed {line!r}; {self.process.communicate()[1]}")

    def _wait_for_sandboxes(self) -> None:
        poll = select.poll()
        poll.register(self.held, select.POLLIN)
        assert poll.poll(60_000), "no attempt started"
        assert self.held.read(6) == b"begun\n"

    def end(self, number: int | None) -> str:
        """Send a signal, if one is given, and wait; return the last line of output."""
        if number is not None:
            self.process.send_signal(number)
        return self.process.communicate(timeout=60)[1]

    def close(self) -> None:
        self.held.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def driver(workspace: Workspace, request: pytest.FixtureRequest) -> Iterator[Driver]:
    made = Driver(workspace, request.param)
    yield made
    made.close()


@pytest.mark.parametrize("driver", [p for p in PHASES if p != "commit"], indirect=True)
def test_an_interrupt_ends_everything(driver: Driver, workspace: Workspace) -> None:
    said = driver.end(signal.SIGINT)
    assert driver.process.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert driver.held.read(100) in (b"", b"begun\n")  # an end of file: no process holds it open
    assert [p.name for p in workspace.path.iterdir()] == ["a.txt"]
    check_nothing_left(workspace)
    with open_ledger(workspace) as ledger:
        assert {f.state for f in ledger.forks()} == {"aborted"}
        assert all("interrupted" in f.resolution["reason"] for f in ledger.forks() if f.parent is None and f.resolution)


@pytest.mark.parametrize("driver", ["commit"], indirect=True)
def test_an_interrupt_that_comes_when_all_is_decided_comes_too_late(driver: Driver, workspace: Workspace) -> None:
    said = driver.end(None)
    assert driver.process.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert (workspace.path / "good").exists()
    with open_ledger(workspace) as ledger:
        [fork] = ledger.forks()
        assert (fork.state, fork.commit) == ("resolved", 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("driver", ["thread", "command", "function", "nested-command"], indirect=True)
def test_a_killed_program_leaves_no_process_and_can_be_resumed(
    driver: Driver, number: int, workspace: Workspace
) -> None:
    driver.end(number)
    assert driver.process.returncode == -number
    while driver.held.read(100):
        pass  # returns when the last process that holds it open is dead
    assert [p.name for p in workspace.path.iterdir()] == ["a.txt"]
    with open_ledger(workspace) as ledger:
        forks = ledger.forks()
        assert {f.state for f in forks} == {"interrupted"}
    [first] = [f.id for f in forks if f.parent is None]
    outcome = Speculate([good, good])(workspace, resume=first)
    assert outcome.committed
    assert outcome.fork == first
    assert (workspace.path / "good").exists()
    with open_ledger(workspace) as ledger:
        for fork in ledger.forks():  # forks inside an attempt that started over are orphans
            if fork.state == "interrupted":
                assert fork.parent is not None
                ledger.adopt_fork(fork.id)
                for attempt in ledger.attempts(fork.id):
                    ledger.end_attempt(attempt.id, "cancelled", reason="killed")
                ledger.abort_fork(fork.id, "killed")


PATTERNS = {
    "commands": lambda: Speculate([["sh", "-c", "echo > good; exit 1"], ["sh", "-c", "echo > good"]]),
    "functions": lambda: BestOfN([good, good], isolate_processes=True),
    "threads": lambda: Reflexion(lambda path, number, _: good(path) and number == 1),
    "tree": lambda: TreeOfThoughts([good], expand=lambda *_: [good], max_depth=2),
    "tests": lambda: BestOfN([good], evaluate=Tests("test -e good")),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_cancelled_at_any_moment(name: str, workspace: Workspace) -> None:
    """Cancels after each of the first turns of the event loop, then in wider steps, until the pattern is over first."""
    before = children()
    make = PATTERNS[name]
    turns, is_over, cancelled = 0, False, 0
    while not is_over:
        is_over = asyncio.run(_cancelled_after(make(), workspace, turns))
        cancelled += not is_over
        turns = turns + 1 if turns < 10 else int(turns * 1.6)
        assert children() <= before
        check_nothing_left(workspace)
        with open_ledger(workspace) as ledger:
            fork = ledger.forks(limit=1)
        committed = bool(fork) and fork[0].state == "resolved" and fork[0].commit is not None
        assert (workspace.path / "good").exists() == committed
        if committed:
            workspace.undo()
    assert cancelled > 3


async def _cancelled_after(pattern: Pattern, workspace: Workspace, turns: int) -> bool:
    """Return whether the pattern was over before the cancellation."""
    task = asyncio.create_task(pattern.run(workspace))
    for _ in range(turns):
        await asyncio.sleep(0)
        if task.done():
            await task
            return True
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return False
