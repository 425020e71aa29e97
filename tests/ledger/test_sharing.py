"""One ledger shared by many processes and threads: no kill leaves it inconsistent, nothing is decided twice."""

from __future__ import annotations

import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from multiprocessing import get_context

import pytest

from forkwise.ledger.ledger import Ledger
from forkwise.ledger.sqlite import SqliteLedger
from tests.ledger.conftest import Open
from tests.ledger.ledger_scenes import Child, attempt_in, fork_in, picture


@pytest.mark.parametrize("deeds", [("resolve", "resolve"), ("resolve", "abort"), ("adopt", "adopt")])
def test_two_processes_decide_the_same_fork(open_ledger: Open, deeds: tuple[str, str]) -> None:
    """Two hundred races: exactly one process wins each."""
    ledger = open_ledger()
    dead = Child(lambda: [fork_in(ledger).id for _ in range(200)]).result()
    together = get_context("fork").Barrier(2, timeout=20)

    def decide(deed: str) -> list[bool]:
        mine = open_ledger()
        done = []
        for fork in dead:
            together.wait()
            if deed == "resolve":
                done.append(mine.resolve(fork, how="pick"))
            elif deed == "abort":
                done.append(mine.abort_fork(fork, "why"))
            else:
                done.append(mine.adopt_fork(fork))
        together.wait()  # the process that adopted the last fork lives until the other has tried
        return done

    children = [Child(lambda deed=deed: decide(deed)) for deed in deeds]
    first, second = (child.result() for child in children)
    assert [one + other for one, other in zip(first, second, strict=True)] == [1] * 200
    decided = [e for e in ledger.events() if e.kind in ("resolved", "aborted", "adopted")]
    assert len(decided) == 200


def test_many_processes_open_a_new_ledger_at_once(open_ledger: Open) -> None:
    together = get_context("fork").Barrier(6, timeout=20)

    def work() -> list[str]:
        together.wait()
        made = []
        for _ in range(15):  # the last connection to close removes the WAL while another one opens
            with open_ledger() as mine:
                made.append(fork_in(mine).id)
        return made

    children = [Child(work) for _ in range(6)]
    made = [fork for child in children for fork in child.result()]
    ledger = open_ledger()
    assert len(made) == 6 * 15
    assert {f.id for f in ledger.forks()} == set(made)


def test_many_processes_write_into_one_fork(open_ledger: Open) -> None:
    ledger = open_ledger()
    fork = fork_in(ledger).id

    def work(writer: int) -> list[str]:
        mine = open_ledger()
        names = []
        for number in range(25):
            attempt = attempt_in(mine, fork, f"{writer}-{number}")
            mine.note_progress(attempt.id, files=number)
            mine.end_attempt(attempt.id, "succeeded")
            names.append(attempt.id)
        return names

    children = [Child(lambda writer=writer: work(writer)) for writer in range(4)]
    names = [name for child in children for name in child.result()]
    assert sorted(names) == sorted(f"{fork}.{n}" for n in range(1, 101))
    assert [a.id for a in ledger.attempts(fork)] == [f"{fork}.{n}" for n in range(1, 101)]
    assert ledger.summaries()[0].attempts == {"succeeded": 100}


def test_threads_share_one_ledger(ledger: Ledger) -> None:
    fork = fork_in(ledger).id

    def work(writer: int) -> None:
        for number in range(20):
            attempt = attempt_in(ledger, fork, f"{writer}-{number}")
            assert attempt.state == "running"
            ledger.end_attempt(attempt.id, "failed")
            assert ledger.attempt(attempt.id).files is None

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, writer) for writer in range(8)]:
            done.result()
    assert len(ledger.attempts(fork)) == 160
    assert len(ledger.events()) == 1 + 3 * 160
    assert_whole(ledger)


def test_a_forked_child_holds_nothing_of_its_parents(open_ledger: Open) -> None:
    """It has not even the files: a database open across fork would treat the parent's locks as the child's own."""

    def opened() -> list[str]:
        return [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if int(n) > 2 and _is_open(n)]

    def held() -> list[str]:
        return [path for path in opened() if str(ledger.directory) in path or path in new]

    before = opened()
    ledger = open_ledger()
    fork = fork_in(ledger).id
    new = [path for path in opened() if path.startswith("socket:") and path not in before]
    assert held()
    assert Child(held).result() == []
    assert Child(lambda: [attempt_in(ledger, fork).id]).result() == [f"{fork}.1"]
    assert attempt_in(ledger, fork, "mine").id == f"{fork}.2"


def _is_open(number: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{number}")


def test_forking_while_other_threads_write(ledger: Ledger) -> None:
    fork = fork_in(ledger).id
    enough = threading.Event()
    written = []

    def work(writer: str) -> None:
        for number in count():
            if enough.wait(0.0005):
                return
            written.append(attempt_in(ledger, fork, f"{writer}-{number}", started=False).id)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in "ab"]
    for thread in threads:
        thread.start()
    try:
        for writer in range(10):
            keys = [f"child-{writer}-{n}" for n in range(5)]
            child = Child(lambda keys=keys: [attempt_in(ledger, fork, key, started=False).id for key in keys])
            written += child.result()
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    assert len(written) == len(set(written))
    assert {a.id for a in ledger.attempts(fork)} == set(written)
    assert_whole(ledger)


def assert_whole(ledger: Ledger) -> None:
    """Check that the ledger is consistent: events numbered in order, and the state they add up to."""
    before = picture(ledger)
    numbers = [event.seq for event in ledger.events()]
    assert numbers == sorted(set(numbers))
    ledger.rebuild()
    assert picture(ledger) == before
    if not isinstance(ledger, SqliteLedger):
        return
    assert numbers == list(range(1, 1 + len(numbers))), "there is a gap"
    with closing(sqlite3.connect(ledger.directory / "ledger.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_writers_killed_in_the_middle(open_ledger: Open) -> None:
    """The forks of killed writers are interrupted; everything else is consistent."""
    ledger = open_ledger()

    def work(write_end: int) -> None:
        mine = open_ledger()
        while True:
            fork = fork_in(mine).id
            os.write(write_end, b".")
            attempt = attempt_in(mine, fork)
            mine.note_progress(attempt.id, files=1)
            mine.end_attempt(attempt.id, "succeeded", tail="x" * 4096)
            mine.resolve(fork, how="first success", winner=attempt.id)

    for round_ in range(8):
        reader, write_end = os.pipe()
        children = [Child(lambda write_end=write_end: work(write_end)) for _ in range(2)]
        for _ in range(5 + 3 * round_):
            assert os.read(reader, 1) == b"."
        for child in children:
            child.kill()
        os.close(reader)
        os.close(write_end)
        assert_whole(ledger)
    states = {f.state for f in ledger.forks()}
    assert states <= {"interrupted", "resolved"}
    for fork in ledger.forks(state="interrupted"):
        assert ledger.adopt_fork(fork.id)
        assert {a.state for a in ledger.attempts(fork.id)} <= {"pending", "succeeded"}
        assert ledger.abort_fork(fork.id, "its process was killed")
    assert ledger.forks(state="interrupted") == []


def test_a_fork_is_interrupted_when_its_process_is_killed(open_ledger: Open) -> None:
    ledger = open_ledger()
    reader, write_end = os.pipe()

    def work() -> None:
        fork = fork_in(open_ledger()).id
        os.write(write_end, fork.encode())
        threading.Event().wait()

    child = Child(work)
    fork = os.read(reader, 6).decode()
    assert ledger.fork(fork).state == "running"
    assert ledger.forks(state="running") == [ledger.fork(fork)]
    child.kill()
    assert ledger.fork(fork).state == "interrupted"
    assert ledger.forks(state="running") == []
    assert ledger.summaries()[0].fork.state == "interrupted"
    assert ledger.adopt_fork(fork)
    assert ledger.fork(fork).state == "running"
    os.close(reader)
    os.close(write_end)
