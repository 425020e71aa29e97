"""What sealed tests cost beside the test command, and attempts that wait for a node: counted, not timed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forkwise import BestOfN, Runner, Tests, Workspace
from forkwise.files.store import trash
from forkwise.fork import execute
from forkwise.fork.fork import open_ledger
from forkwise.fork.limits import start_gate
from forkwise.fork.run_end import RunEnd
from forkwise.fork.runner import Job
from forkwise.ledger.sqlite import SqliteLedger

_COUNTED = ("open", "stat", "lstat", "scandir", "listdir", "readlink", "link", "mkdir", "unlink")


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Counter[str]]:
    """Count the operations on files, and the programs, of a function."""

    def count(work: Callable[[], Any]) -> Counter[str]:
        found: Counter[str] = Counter()
        lock = threading.Lock()

        def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                with lock:
                    found[name] += 1
                return function(*args, **options)

            return call

        with monkeypatch.context() as patch:
            for name in _COUNTED:
                patch.setattr(os, name, counted(name, getattr(os, name)))
            patch.setattr(subprocess, "run", counted("run", subprocess.run))
            work()
            trash.wait_until_empty()
        return found

    return count


def test_the_cost_does_not_grow_with_the_tree(
    workspace: Workspace, count: Callable[[Callable[[], Any]], Counter[str]]
) -> None:
    root = workspace.path
    (root / "test_calc.py").write_text(
        "import unittest, calc\nclass T(unittest.TestCase):\n    def test_it(self): self.assertEqual(calc.ANSWER, 42)\n"
    )
    (root / "calc.py").write_text("ANSWER = 41\n")
    tests = Tests([sys.executable, "-m", "unittest", "test_calc"])
    totals = []
    made = 0
    for files in (100, 5000):
        for number in range(made, files):
            if number % 100 == 0:
                (root / f"d{number // 100}").mkdir()
            Path(f"{root}/d{number // 100}/f{number}").touch()
        made = files
        branch = workspace.branch(f"judged{files}", None, None)
        (branch.path / "calc.py").write_text("ANSWER = 42\n")
        (branch.path / "test_calc.py").write_text((root / "test_calc.py").read_text() + "# changed\n")
        baseline = asyncio.run(tests.measure(workspace))

        def judge(branch: Any = branch, baseline: Any = baseline) -> None:
            comparison = asyncio.run(tests.test(branch, baseline)).comparison
            assert comparison is not None
            assert comparison.fixed == 1

        judge()  # what is loaded and cached the first time
        totals.append(sum(count(judge).values()))
        branch.abort()
    few, many = totals
    assert many <= few + 30, "with fifty times as many files"
    assert few < 1000


class RemoteRunner(Runner):
    """Stands for one that runs jobs on other machines: prints a line, and waits until the ledger has it."""

    is_remote = True

    async def run(self, job: Job) -> RunEnd:
        await asyncio.sleep(0)
        assert job.on_output is not None
        job.on_output("stdout", f"hello from {job.branch.name}\n".encode())
        with open_ledger(job.branch.workspace) as ledger:
            while not any(a.last_line == f"hello from {a.branch}" for a in ledger.attempts(ledger.forks()[0].id)):
                await asyncio.sleep(0.001)
        return RunEnd("exit", exit_code=0)


def test_attempts_on_other_machines_are_looked_at_when_they_print(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand that wait for a node, none is looked at again and again."""
    looked: list[object] = []
    noted: list[str] = []
    note = SqliteLedger.note_progress

    def note_progress(ledger: SqliteLedger, attempt: str, **progress: Any) -> None:
        noted.append(attempt)
        note(ledger, attempt, **progress)

    monkeypatch.setattr(execute, "_estimate_changed_files", looked.append)
    monkeypatch.setattr(execute, "_PROGRESS_INTERVAL", 0.0)
    monkeypatch.setattr(SqliteLedger, "note_progress", note_progress)
    outcome = BestOfN(["true"], 3, runner=RemoteRunner(), commit=False, allow_empty=True)(workspace)
    assert [one.success for one in outcome.all_results] == [True] * 3
    assert looked == []
    assert len(noted) == len(set(noted)) <= 3


class CountingRunner(Runner):
    """Notes how many branches there are when each job starts, and ends them when all have started."""

    is_remote = True
    max_parallel = 1000

    def __init__(self, jobs: int) -> None:
        self.branches: list[int] = []
        self._jobs = jobs
        self._all = asyncio.Event()

    async def run(self, job: Job) -> RunEnd:
        self.branches.append(len(job.branch.workspace.branches()))
        if len(self.branches) == self._jobs:
            self._all.set()
        await self._all.wait()
        return RunEnd("exit", exit_code=0)


def test_the_first_attempts_run_before_the_last_are_prepared(workspace: Workspace) -> None:
    runner = CountingRunner(60)
    outcome = BestOfN(["true"], 60, runner=runner, commit=False, allow_empty=True)(workspace)
    assert [one.success for one in outcome.all_results] == [True] * 60
    assert runner.branches[0] <= 2 * start_gate._PREPARED_AT_ONCE
