"""The ledger: the time to write events, to list a thousand forks, and until another process has read a change."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from glob import glob

from bench.figure import Figure
from bench.line import Goal, Line
from bench.rounds import play, timed
from bench.scratch import Scratch
from forkwise import Workspace
from forkwise.fork.fork import open_ledger
from forkwise.ledger.ledger import Ledger

__all__ = ["measure_ledger"]

_EVENTS = 10_000
_FORKS = 1_000
_EVENTS_PER_ATTEMPT = 4  # added, started, scored, ended
_SINGLE = 200
_SEEN_S = 0.1


def measure_ledger(scratch: Scratch) -> list[Line]:
    """Measure each in a ledger of its own; those in PostgreSQL only if it is installed, with psycopg."""
    return [_measure_writes(scratch), _measure_list(scratch), *_measure_shared(scratch)]


def _measure_writes(scratch: Scratch) -> Line:
    scratch.report(f"writing {_EVENTS:,} events")

    def write() -> float:
        with open_ledger(Workspace(scratch.make_directory("written"))) as ledger:
            return timed(lambda: _fill(ledger, forks=1, attempts=_EVENTS // _EVENTS_PER_ATTEMPT))

    figures = play({"ours": write}, scratch.rounds(3, 1), warm=0)
    line = Line(f"ledger: {_EVENTS:,} events written", figures["ours"])
    line.goals.append(Goal("< 2 s", figures["ours"].median, 2))
    return line


def _measure_list(scratch: Scratch) -> Line:
    workspace = Workspace(scratch.make_directory("listed"))
    scratch.report(f"writing {_FORKS:,} forks")
    with open_ledger(workspace) as ledger:
        _fill(ledger, forks=_FORKS, attempts=8)
    start = "from forkwise.cli import main; main()"
    words = [sys.executable, "-c", start, "ls", "--all", "-C", str(workspace.path)]
    listing = {"ours": lambda: timed(lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL))}
    figures = play(listing, scratch.rounds(20, 5), warm=2)
    line = Line(f"forkwise ls over {_FORKS:,} forks, from start to end", figures["ours"])
    line.goals.append(Goal("≤ 0.25 s", figures["ours"].median, 0.25))
    return line


def _measure_shared(scratch: Scratch) -> list[Line]:
    """Measure the ledger in PostgreSQL, with the settings that a new database has, through a socket."""
    programs = sorted(glob("/usr/lib/postgresql/*/bin/postgres"))
    try:
        import psycopg  # noqa: F401
    except ModuleNotFoundError:
        programs = []
    if not programs:
        scratch.report("PostgreSQL or psycopg is not installed")
        return []
    with _serve(scratch, os.path.dirname(programs[-1])) as url:
        return [_measure_batch(scratch, url), _measure_single(scratch, url), _measure_notice(scratch, url)]


@contextmanager
def _serve(scratch: Scratch, programs: str) -> Iterator[str]:
    root = scratch.make_directory("postgres")
    is_root = os.geteuid() == 0
    own = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if is_root else []
    if is_root:
        shutil.chown(root, "postgres", "postgres")
        os.chmod(scratch.path, 0o755)  # the server runs as another user
    quiet = subprocess.DEVNULL
    create = [*own, f"{programs}/initdb", "-D", f"{root}/data", "-A", "trust", "-U", "postgres"]
    subprocess.run(create, check=True, stdout=quiet, cwd="/")
    control = [*own, f"{programs}/pg_ctl", "-D", f"{root}/data", "-w", "-l", "/dev/null"]
    options = f"-k {root} -c listen_addresses="
    subprocess.run([*control, "-o", options, "start"], check=True, stdout=quiet, cwd="/")
    try:
        yield f"postgresql:///postgres?host={root}&user=postgres"
    finally:
        subprocess.run([*control, "-m", "fast", "stop"], check=True, stdout=quiet, cwd="/")


def _open_shared(scratch: Scratch, url: str, project: str) -> Ledger:
    from forkwise.ledger.postgres import PostgresLedger

    return PostgresLedger(url, scratch.make_directory("ledger"), project)


def _measure_batch(scratch: Scratch, url: str) -> Line:
    scratch.report(f"writing {_EVENTS:,} events into PostgreSQL")
    attempts = _EVENTS // _EVENTS_PER_ATTEMPT

    def write_shared() -> float:
        with _open_shared(scratch, url, scratch.new_path("batch")) as ledger, ledger.batch():
            return timed(lambda: _fill(ledger, forks=1, attempts=attempts))

    def write_local() -> float:
        with open_ledger(Workspace(scratch.make_directory("written"))) as ledger:
            return timed(lambda: _fill(ledger, forks=1, attempts=attempts))

    figures = play({"ours": write_shared, "sqlite": write_local}, scratch.rounds(3, 1), warm=0)
    line = Line(f"PostgreSQL: {_EVENTS:,} events in a batch", figures["ours"])
    line.peers = {"SQLite": figures["sqlite"]}
    line.faster_than("SQLite", 0.5)
    return line


def _measure_single(scratch: Scratch, url: str) -> Line:
    import psycopg

    scratch.report("writing single events into PostgreSQL")
    with _open_shared(scratch, url, "single") as ledger, psycopg.connect(url, autocommit=True) as bare:
        bare.execute("CREATE TABLE bare (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, data text)")
        fork = ledger.begin_fork("best-of", workspace="/project", spec={}).id
        attempt = ledger.add_attempt(fork, "0", index=0, label="true", branch="b").id
        insert = "INSERT INTO bare (data) VALUES (%s)"
        turns = {
            "ours": lambda: timed(lambda: ledger.record_score(attempt, 1.0)),
            "bare": lambda: timed(lambda: bare.execute(insert, ("x" * 300,))),
        }
        figures = play(turns, scratch.rounds(_SINGLE, 50), warm=10)
    line = Line("PostgreSQL: one event", figures["ours"], figures["bare"])
    line.below_floor(2.0)
    return line


def _measure_notice(scratch: Scratch, url: str) -> Line:
    """Measure the time from before a change is made until a listener has read it."""
    scratch.report("waiting for announced changes")
    samples: list[float] = []
    with _open_shared(scratch, url, "seen") as writer, _open_shared(scratch, url, "seen") as reader:
        fork = writer.begin_fork("best-of", workspace="/project", spec={}).id
        seen = threading.Semaphore(0)

        def follow(number: int) -> None:
            with reader.watch_changes(fork) as watch:
                for turn in range(number):
                    while (reader.fork(fork).verdict or {}).get("turn") != turn:
                        watch.wait(0.0, 60.0)
                    seen.release()

        rounds = scratch.rounds(_SINGLE, 50)
        thread = threading.Thread(target=partial(follow, rounds))
        thread.start()
        for turn in range(rounds):
            started = time.perf_counter()
            writer.record_verdict(fork, {"turn": turn})
            seen.acquire()
            samples.append(time.perf_counter() - started)
            time.sleep(0.06)  # longer than the shortest time between two looks
        thread.join()
    line = Line("PostgreSQL: a change until a listener has read it", Figure(tuple(samples)))
    line.goals.append(Goal("< 100 ms", max(samples) / _SEEN_S, 1.0))
    return line


def _fill(ledger: Ledger, forks: int, attempts: int) -> None:
    for _ in range(forks):
        fork = ledger.begin_fork("best-of", workspace="/project", spec={}).id
        winner = None
        for index in range(attempts):
            winner = ledger.add_attempt(fork, str(index), index=index, label="true", branch=f"b-{index}").id
            ledger.start_attempt(winner)
            ledger.record_score(winner, 1.0)
            ledger.end_attempt(winner, "succeeded", exit_code=0, wall=0.1)
        ledger.resolve(fork, how="best score", winner=winner)
