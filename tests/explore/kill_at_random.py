"""Processes that run a pattern and are killed at random moments, and the state that they leave behind.

A separate program with one thread, so that it can fork a process that has all modules loaded. Prints one JSON object
for each round.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from forkwise import Workspace
from forkwise.explore.recipe import Recipe
from forkwise.explore.resume import resume
from forkwise.files.store import trash
from forkwise.fork.control import clean_up
from forkwise.ledger.sqlite import open_ledger

MARK = "FORKWISE_TEST_MARK"
ATTEMPT = """
echo $FORKWISE_ATTEMPT > chosen
for n in 1 2 3 4 5 6 7 8; do echo $n > new-$n; done
rm gone
sleep 0.01 & setsid sleep 300 &
echo $FORKWISE_ATTEMPT > $FORKWISE_SCORE
"""
RECIPE = Recipe(kind="best-of", commands=(("sh", "-c", ATTEMPT),), n=3, tests="test -e new-8")


def read_files(root: Path) -> dict[str, str]:
    """Read all files below a directory."""
    return {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}


def run_in_process(work: Callable[[], object]) -> int:
    """Run a function in a new process; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        trash.wait_until_empty()
        code = 0
    except BaseException as error:  # noqa: BLE001 - reported before the process ends
        print(json.dumps({"failed": f"{type(error).__name__}: {error}"}), file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def wait_for_exit(pid: int) -> int:
    """Wait for a child process, and return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def find_marked(mark: str) -> list[int]:
    """Find the processes that have a mark in their environment, except servers of fuse views, which gc ends."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/comm") as file:
                is_view = file.read().startswith("fuse-overlayfs")
            with open(f"/proc/{name}/environ", "rb") as file:
                if not is_view and f"{MARK}={mark}".encode() in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found


def find_mounts(below: Path) -> list[str]:
    """Find the mount points below a directory."""
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:
        return [line.split()[4] for line in file if str(below) in line.split()[4]]


def run(project: Path) -> None:
    workspace = Workspace(project, durable=False)
    RECIPE.pattern(workspace)(workspace)


def recover(project: Path, state: Path) -> None:
    """Do what a user does after a kill: inspect, resume, clean up, and inspect again."""
    workspace = Workspace(project, durable=False)
    with open_ledger(workspace) as ledger:
        [fork] = ledger.forks(limit=1)
    last = state / "last"
    report: dict[str, object] = {"state": "none"}
    if not last.exists() or last.read_text() != fork.id:  # otherwise it was killed before it started
        last.write_text(fork.id)
        report = {"state": fork.state, "commit": fork.commit}
        if fork.state == "interrupted" or (fork.stored == "resolved" and fork.commit is None):
            outcome = asyncio.run(resume(workspace, fork.id))
            report["winner"] = outcome.winner and outcome.winner.branch_index
    clean_up(workspace)
    trash.wait_until_empty()
    report["branches"] = [branch.branch_path for branch in workspace.branches()]
    report["mounts"] = find_mounts(state)
    with open_ledger(workspace) as ledger:
        report["unfinished"] = [f.id for f in ledger.forks() if not f.is_over]
    report["content"] = read_files(project)
    if (project / "chosen").exists():
        workspace.undo()
    print(json.dumps(report), flush=True)


def kill_at_random_moments(
    project: Path,
    chance: Random,
    rounds: int,
    *,
    longest: float,
    run: Callable[[], object],
    recover: Callable[[], object],
) -> None:
    """Run ``run`` in new processes, kill each after at most ``longest`` seconds, and ``recover`` in another process.

    The first one is not killed.

    For each round, print the files and the processes that the kill leaves, then what ``recover`` prints. Afterwards the
    project must be as it was.
    """
    before = read_files(project)
    for number in range(rounds):
        os.environ[MARK] = mark = f"{project}-{number}"
        pid = run_in_process(run)
        if number > 0:  # on a loaded machine no later one may get to its end
            time.sleep(chance.uniform(0, longest))
            os.kill(pid, signal.SIGKILL)
        wait_for_exit(pid)
        found = read_files(project)
        deadline = time.monotonic() + 10
        while (left := find_marked(mark)) and time.monotonic() < deadline:
            time.sleep(0.005)
        del os.environ[MARK]
        print(json.dumps({"found": found, "left": left}), flush=True)
        assert wait_for_exit(run_in_process(recover)) == 0
        assert read_files(project) == before


def main() -> None:
    home, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    project = home / "project"
    project.mkdir()
    (project / "gone").write_text("once")
    (project / "kept").write_text("always")
    before = read_files(project)
    started = time.monotonic()
    assert wait_for_exit(run_in_process(lambda: run(project))) == 0
    taken = time.monotonic() - started
    after = read_files(project)
    workspace = Workspace(project, durable=False)
    workspace.undo()
    with open_ledger(workspace) as ledger:  # so that a kill before the next fork is not attributed to this one
        (home / "state" / "last").write_text(ledger.forks(limit=1)[0].id)
    print(json.dumps({"before": before, "after": after}), flush=True)
    kill_at_random_moments(
        project,
        Random(seed),
        rounds,
        longest=taken * 1.2,
        run=lambda: run(project),
        recover=lambda: recover(project, home / "state"),
    )


if __name__ == "__main__":
    main()
