"""A discrete-event simulation of attempts on a cluster: where driver, ledger, supervisor or store become the limit.

``python -m bench.simulation`` prints a table for 100 to 10,000 workers, always the same. ``--check`` measures the
parameters on three nodes of this machine, and compares what the model predicts for other runs with these.
"""

from __future__ import annotations

import heapq
import importlib.util
import io
import os
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.table import replace_table

__all__ = ["Parameters", "Resource", "Result", "simulate"]

_WORKERS = (100, 300, 1000, 3000, 10_000)
_ROUNDS = 5  # attempts for each worker
_SEED = 1


@dataclass(frozen=True, slots=True)
class Parameters:
    """What one attempt, and one node, cost. Times are in seconds, sizes in megabytes.

    ``driver_s`` is the driver's own work for an attempt, which Python does in one thread at a time, ``events`` are what
    it writes to the ledger, ``event_s`` each. ``supervisor_s`` is the actor's work, ``node_s`` that on the node around
    the attempt. ``requests`` to the store for a delta of ``delta_mb`` take ``request_s`` each. ``processors`` is None,
    or the number that everything shares, as in a check on one machine.
    """

    driver_s: float = 0.020
    events: int = 5
    event_s: float = 0.0006
    supervisor_s: float = 0.022
    node_s: float = 0.075
    workers_per_node: int = 8
    drivers: int = 1
    snapshot_mb: float = 300.0
    unpacked_mb: float = 1000.0
    unpack_mb_per_s: float = 150.0
    stream_mb_per_s: float = 100.0
    store_mb_per_s: float = 2000.0
    delta_mb: float = 1.0
    requests: int = 6
    request_s: float = 0.03
    processors: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """How long a run took, how many attempts a second it made, and how busy each part was, from 0 to 1."""

    seconds: float
    throughput: float
    busy: dict[str, float]

    @property
    def limit(self) -> str:
        """The part that was busiest."""
        return max(self.busy, key=lambda name: self.busy[name])


_Process = Generator[tuple[str, Any], None, None]


class Resource:
    """``capacity`` servers with one queue, first come, first served."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity
        self.waiting: deque[_Process] = deque()
        self.used = 0.0


class Clock:
    """Runs processes, which yield ``("take", resource)``, ``("give", resource)`` or ``("wait", seconds)``."""

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._events: list[tuple[float, int, _Process]] = []

    def start(self, process: _Process, delay: float = 0.0) -> None:
        """Let a process proceed after ``delay``."""
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, process))

    def run(self) -> float:
        """Run until nothing is left to do; return the time then."""
        while self._events:
            self.now, _, process = heapq.heappop(self._events)
            self._proceed(process)
        return self.now

    def _proceed(self, process: _Process) -> None:
        for action, value in process:
            if action == "wait":
                self.start(process, value)
                return
            if action == "take" and value.free:
                value.free -= 1
            elif action == "take":
                value.waiting.append(process)
                return
            elif value.waiting:
                self.start(value.waiting.popleft())
            else:
                value.free += 1


def simulate(workers: int, attempts: int, attempt_s: float, given: Parameters, seed: int = _SEED) -> Result:
    """Simulate attempts whose times are spread around ``attempt_s`` (lognormal). One seed gives one result."""
    chance = random.Random(seed)
    clock = Clock()
    nodes = max(workers // given.workers_per_node, 1)
    streams = max(int(given.store_mb_per_s / given.stream_mb_per_s), 1)
    parts = {
        "driver": Resource(given.drivers),
        "ledger": Resource(given.drivers),  # writers of one project take turns; each driver has its own
        "supervisor": Resource(given.drivers),
        "store": Resource(streams),
        "workers": Resource(workers),
    }
    processors = None if given.processors is None else Resource(given.processors)
    caches = [Resource(1) for _ in range(nodes)]
    unpacked: set[int] = set()

    def use(name: str, seconds: float) -> Iterator[tuple[str, Any]]:
        part = parts[name]
        yield "take", part
        yield from compute(seconds)
        part.used += seconds
        yield "give", part

    def compute(seconds: float) -> Iterator[tuple[str, Any]]:
        if processors is not None:
            yield "take", processors
        yield "wait", seconds
        if processors is not None:
            yield "give", processors

    def fetch(node: int) -> Iterator[tuple[str, Any]]:
        """Unpack the snapshot on a node: the first attempt there does it, the others wait for that."""
        yield "take", caches[node]
        if node not in unpacked:
            unpacked.add(node)
            yield from use("store", given.snapshot_mb / given.stream_mb_per_s)
            yield from compute(given.unpacked_mb / given.unpack_mb_per_s)
        yield "give", caches[node]

    def write(count: int) -> Iterator[tuple[str, Any]]:
        for _ in range(count):
            yield from use("ledger", given.event_s)

    def attempt(number: int, seconds: float) -> _Process:
        yield "take", parts["driver"]
        yield from compute(given.driver_s / 2)
        yield from write(given.events // 2)  # the driver waits for its ledger
        parts["driver"].used += given.driver_s / 2 + given.events // 2 * given.event_s
        yield "give", parts["driver"]
        yield from use("supervisor", given.supervisor_s / 2)
        yield "take", parts["workers"]
        began = clock.now
        yield from fetch(number % nodes)
        yield from compute(given.node_s)
        yield "wait", seconds
        yield "wait", given.requests * given.request_s
        yield from use("store", given.delta_mb / given.stream_mb_per_s)
        parts["workers"].used += clock.now - began
        yield "give", parts["workers"]
        yield from use("supervisor", given.supervisor_s / 2)
        rest = given.events - given.events // 2
        yield "take", parts["driver"]
        yield from compute(given.driver_s / 2)
        yield from write(rest)
        parts["driver"].used += given.driver_s / 2 + rest * given.event_s
        yield "give", parts["driver"]

    spread = 0.2
    for number in range(attempts):
        wanted_s = attempt_s * chance.lognormvariate(-spread * spread / 2, spread) if attempt_s else 0.0
        clock.start(attempt(number, wanted_s))
    seconds = clock.run()
    busy = {name: part.used / (part.capacity * seconds) for name, part in parts.items()}
    return Result(seconds, attempts / seconds, busy)


def build_table(given: Parameters) -> Table:
    """Build the table of the page: attempts of one and of ten minutes, and what helps."""
    table = Table(title="attempts of a 1 GB workspace, five for each worker", title_justify="left")
    for name in ("workers", "attempt", "setup", "time", "attempts/s"):
        table.add_column(name, justify="right" if name != "setup" else "left")
    parts = ("workers", "driver", "ledger", "supervisor", "store")
    for name in parts:
        table.add_column(f"{name} busy", justify="right")
    table.add_column("limit")
    setups = {"one driver": given, "8 drivers": replace(given, drivers=8)}
    for attempt_s in (60.0, 600.0):
        for setup, chosen in setups.items():
            for workers in _WORKERS:
                if setup != "one driver" and workers < 1000:
                    continue
                found = simulate(workers, _ROUNDS * workers, attempt_s, chosen)
                shares = [f"{found.busy[name]:.0%}" for name in parts]
                row = [f"{workers:,}", f"{attempt_s:.0f} s", setup, f"{found.seconds:.0f} s", f"{found.throughput:.1f}"]
                table.add_row(*row, *shares, found.limit)
    return table


def measure_parameters(runs: Any, attempts: int) -> tuple[Parameters, float]:
    """Measure what an attempt of ``true`` costs each process on three nodes; return the time of that run too.

    All processes share the processors of this machine, and those share it with other programs: times are stretched by
    how much longer the run took than its processor time needs.
    """
    before = _read_times()
    seconds = runs(attempts, 0.0)
    used = {kind: now - before.get(kind, 0.0) for kind, now in _read_times().items()}
    processors = os.cpu_count() or 1
    stretch = max(seconds * processors / max(sum(used.values()), 0.01), 1.0)
    each = {kind: stretch * total / attempts for kind, total in used.items()}
    found = Parameters(
        driver_s=each.get("driver", 0.0),
        events=0,  # part of the driver's time
        supervisor_s=each.get("supervisor", 0.0),
        node_s=each.get("node", 0.0),
        workers_per_node=1,
        snapshot_mb=0.0,
        unpacked_mb=0.0,
        delta_mb=0.0,
        requests=0,
        processors=processors,
    )
    return found, seconds


def _read_times() -> dict[str, float]:
    """Return the processor time of this process, of the actor, and of everything else of Ray and of attempts."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    rows: dict[int, tuple[str, float]] = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat") as file, open(f"/proc/{name}/cmdline") as words:
                fields, line = file.read().rpartition(")")[2].split(), words.read()
        except OSError:
            continue
        parents[int(name)] = int(fields[1])
        rows[int(name)] = (line, sum(map(int, fields[11:15])) / ticks)
    totals = {"driver": 0.0, "supervisor": 0.0, "node": 0.0}
    for pid, (line, seconds) in rows.items():
        above = pid
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        if above == os.getpid():  # the nodes are children of this process
            kind = "driver" if pid == above else "supervisor" if "Supervisor" in line else "node"
            totals[kind] += seconds
    return totals


def check(attempts: int) -> None:
    """Measure the parameters in one run on three nodes, and compare the model with others."""
    from bench.rows.cluster import open_cluster
    from bench.scratch import open_scratch

    with (
        tempfile.TemporaryDirectory() as directory,
        open_scratch(directory, quick=True, report=lambda _: None) as scratch,
        open_cluster(scratch) as run,
    ):

        def timed_run(count: int, attempt_s: float) -> float:
            return run(count, ("sleep", str(attempt_s)) if attempt_s else ("true",))

        timed_run(6, 0.0)
        found, seconds = measure_parameters(timed_run, attempts)
        click.echo(
            f"measured with {attempts} attempts of true in {seconds:.1f} s: driver {1e3 * found.driver_s:.0f} ms, "
            f"supervisor {1e3 * found.supervisor_s:.0f} ms, node {1e3 * found.node_s:.0f} ms for each"
        )
        for count, attempt_s in ((attempts // 2, 0.0), (attempts // 2, 1.0), (attempts // 4, 3.0)):
            predicted = simulate(3, count, attempt_s, found, seed=0).seconds
            started = time.monotonic()
            timed_run(count, attempt_s)
            taken = time.monotonic() - started
            click.echo(
                f"{count} attempts of {attempt_s:.0f} s on 3 workers: predicted {predicted:.1f} s, took {taken:.1f} s "
                f"({predicted / taken:.2f})"
            )


@click.command()
@click.option("--check", "attempts", type=int, metavar="N", help="Compare the model with runs of N attempts or less.")
@click.option("--page", metavar="FILE", help="Write the table into the first text block of this page too.")
def main(attempts: int | None, page: str | None) -> None:
    """Simulate 100 to 10,000 workers, or check the model on three nodes of this machine."""
    if attempts is not None:
        if importlib.util.find_spec("ray") is None:
            raise click.ClickException(
                "the check starts a cluster of Ray, which is not installed: pip install 'forkwise[ray]'"
            )
        check(attempts)
        return
    table = build_table(Parameters())
    Console(width=130).print(table)
    if page:
        written = io.StringIO()
        Console(file=written, width=130).print(table)
        replace_table(page, written.getvalue())


if __name__ == "__main__":
    sys.exit(main())
