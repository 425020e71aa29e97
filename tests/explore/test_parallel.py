"""How many attempts run at once, and that the first success ends the others."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forkwise import (
    BeamSearch,
    BestOfN,
    Cascaded,
    Confinement,
    InProcessRunner,
    Pattern,
    SandboxRunner,
    Speculate,
    Tournament,
    TreeOfThoughts,
    TreeSearch,
    Workspace,
)
from forkwise.fork.fork import default_parallel
from tests.leftovers import children, processes_about

_MOMENT = 0.03  # seconds


class Gauge:
    """Counts candidates that run at the same time, across processes: each locks one of many files while it runs."""

    def __init__(self, room: Path, most: int) -> None:
        self._room = room
        self._room.mkdir()
        self._most = most

    def work(self, _path: Path, *_: Any) -> bool:
        """Enter, and stay long enough for one candidate too many to enter, too."""
        with self._inside() as number:
            if number >= self._most:
                (self._room / "too many").touch()
            threading.Event().wait(_MOMENT)
        return True

    @contextmanager
    def _inside(self) -> Iterator[int]:
        for number in range(100):
            with (self._room / f"slot-{number}").open("w") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield number
                return

    @property
    def is_exceeded(self) -> bool:
        return (self._room / "too many").exists()


def patterns(work: Any, **options: Any) -> dict[str, Pattern]:
    return {
        "speculate": Speculate([work] * 5, first_wins=False, **options),
        "best-of": BestOfN(work, 5, **options),
        "tournament": Tournament(work, 5, judge=lambda *_: 0, **options),
        "tree": TreeOfThoughts([work] * 2, expand=lambda *_: [work] * 5, max_depth=2, **options),
        "beam": BeamSearch([work] * 4, expand=lambda *_: [work] * 3, beam_width=3, **options),
        "cascade": Cascaded(lambda path, report: work(path) and len(report) > 3, fan_out=(4, 5), **options),
        "tree-search": TreeSearch([work] * 3, budget=12, **options),
    }


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("name", patterns(bool))
def test_at_most_max_parallel_at_once(name: str, most: int, workspace: Workspace) -> None:
    gauge = Gauge(workspace.path.parent / "room", most)
    assert patterns(gauge.work, max_parallel=most)[name](workspace).committed
    assert not gauge.is_exceeded


def test_at_most_max_parallel_sandboxes_at_once(workspace: Workspace) -> None:
    room = workspace.path.parent / "room"
    gauge = Gauge(room, 2)
    runner = SandboxRunner(Confinement.standard(writable=(str(room),)))
    assert Speculate([gauge.work] * 8, first_wins=False, max_parallel=2, runner=runner)(workspace).committed
    assert not gauge.is_exceeded


@pytest.mark.parametrize("most", [2, None])
def test_max_parallel_is_used_fully(most: int | None, workspace: Workspace) -> None:
    """No candidate ends before all have started."""
    width = most or default_parallel()
    together = threading.Barrier(width)
    outcome = Speculate(
        [lambda _: together.wait(60) >= 0] * (2 * width), first_wins=False, max_parallel=most, timeout=60
    )(workspace)
    assert [r.success for r in outcome.all_results] == [True] * (2 * width)


def test_the_default_is_sane() -> None:
    assert (os.cpu_count() or 1) < default_parallel() <= 32


@pytest.mark.parametrize("asked", [0, -1])
def test_none_at_all_is_refused_at_once(asked: int) -> None:
    with pytest.raises(ValueError, match="max_parallel must be at least 1"):
        Speculate([["true"]], max_parallel=asked)


# The first success

DAEMON = """
exec 3>{fifo}; echo {mark} >/dev/null
trap '' TERM INT HUP QUIT
python3 -c '
import os, signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.pause()
    os._exit(0)
os.wait()
print("begun", file=open("{fifo}", "w"))
signal.pause()
'
"""


@pytest.mark.parametrize("as_function", [True, False])
def test_losers_are_dead_with_all_descendants_when_it_returns(as_function: bool, workspace: Workspace) -> None:
    room = workspace.path.parent / "room"
    room.mkdir()
    fifo = room / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(fifo, os.O_WRONLY)  # keeps the FIFO open, so that a reader blocks
    os.set_blocking(reader, True)
    script = DAEMON.format(fifo=fifo, mark=workspace.path)
    before = children()

    def loser(_: Path) -> bool:
        os.execvp("sh", ["sh", "-c", script])

    def winner(path: Path) -> bool:
        for _ in range(3):
            assert os.read(reader, len("begun\n")) == b"begun\n"
        return (path / "won").write_text("won") > 0

    class Apart(SandboxRunner):
        """Runs the winner in this process, and all others in sandboxes."""

        async def run(self, job: Any) -> Any:
            return await (InProcessRunner().run(job) if job.function is winner else super().run(job))

    bad = loser if as_function else ["sh", "-c", script]
    runner = Apart(Confinement.standard(writable=(str(room),)))
    outcome = Speculate([bad, bad, bad, winner], runner=runner)(workspace)
    assert processes_about(str(workspace.path)) == []
    assert children() <= before
    os.close(writer)
    assert os.read(reader, 1) == b"", "a process still holds it open"
    os.close(reader)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 3
    assert [r.reason for r in outcome.all_results[:3]] == ["another attempt won"] * 3


def test_a_losing_thread_is_not_waited_for(workspace: Workspace) -> None:
    started, never = threading.Event(), threading.Event()

    def loser(_: Path) -> bool:
        started.set()
        return never.wait()

    outcome = Speculate([loser, lambda _: started.wait(60)])(workspace)
    assert outcome.committed
    assert not never.is_set()
    never.set()


def test_a_thread_that_is_left_behind_does_not_keep_the_program_from_ending(tmp_path: Path) -> None:
    program = """
import sys, threading
from forkwise import Speculate, Workspace
started = threading.Event()
forever = lambda _: started.set() or threading.Event().wait()
print(Speculate([forever, lambda _: started.wait(60)])(Workspace(sys.argv[1], durable=False)).committed)
print(Speculate([forever], timeout=0.1)(Workspace(sys.argv[1])).committed)
"""
    project = tmp_path / "project"
    project.mkdir()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-c", program, str(project)], capture_output=True, text=True, timeout=60, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\nFalse\n", "")
