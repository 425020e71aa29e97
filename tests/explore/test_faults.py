"""Faults of the machine: they are never recorded as the failure of the attempt that they hit."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError

from forkwise import (
    Cascaded,
    Confinement,
    Limits,
    MountError,
    NamespaceError,
    Reflexion,
    SandboxRunner,
    Speculate,
    SpeculationResult,
    Tests,
    Workspace,
)
from forkwise.fork import runner
from forkwise.fork.evaluators import tests as evaluation
from forkwise.fork.fork import open_ledger
from forkwise.fork.run_end import RunEnd
from forkwise.fork.runner import Job
from forkwise.linux import cgroup
from forkwise.linux.cgroup import Cgroup
from tests.fork.kill_at_point import becomes_so
from tests.need import need

Break = Callable[..., list[int]]


def check_faulted(workspace: Workspace, result: SpeculationResult, fault: str, reason: str) -> None:
    """Assert that a result, and the ledger's record of it, are those of a fault."""
    assert (result.success, result.fault) == (False, fault)
    assert reason in (result.reason or "")
    with open_ledger(workspace) as ledger:
        assert result.attempt is not None
        record = ledger.attempt(result.attempt)
        assert (record.state, record.fault, record.reason) == ("faulted", fault, result.reason)
        assert record.is_over
        assert ledger.summaries(1)[0].attempts["faulted"] >= 1
        ledger.rebuild()
        assert ledger.attempt(result.attempt) == record


@pytest.fixture
def break_sandboxes(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Let the first sandboxes fail to start, in candidates or in tests; the list returned has an entry for each."""

    def break_sandboxes(module: Any, number: int, error: Exception | None = None) -> list[int]:
        real, calls = module.arun_in_branch, []

        async def run(*arguments: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) <= number:
                raise error or NamespaceError("the sandbox could not be set up: no space left", errno=errno.ENOSPC)
            return await real(*arguments, **options)

        monkeypatch.setattr(module, "arun_in_branch", run)
        return calls

    return break_sandboxes


def test_a_sandbox_that_cannot_start_once_is_started_again(workspace: Workspace, break_sandboxes: Break) -> None:
    calls = break_sandboxes(runner, 1)
    outcome = Speculate([["touch", "made"]])(workspace)
    assert outcome.committed
    assert (workspace.path / "made").exists()
    assert len(calls) == 2


def test_a_sandbox_that_cannot_start_is_a_fault(workspace: Workspace, break_sandboxes: Break) -> None:
    calls = break_sandboxes(runner, 9)
    outcome = Speculate([["touch", "made"]])(workspace)
    assert outcome.winner is None
    check_faulted(workspace, outcome.all_results[0], "sandbox", "the sandbox could not be set up")
    assert len(calls) == 2


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOENT])
def test_errors_while_a_sandbox_starts_are_faults(number: int, workspace: Workspace, break_sandboxes: Break) -> None:
    break_sandboxes(runner, 9, OSError(number, os.strerror(number)))
    outcome = Speculate([["touch", "made"]])(workspace)
    check_faulted(workspace, outcome.all_results[0], "system", os.strerror(number))


def test_a_command_that_does_not_exist_is_the_attempts_failure(workspace: Workspace) -> None:
    [result] = Speculate([["no-such-program"]])(workspace).all_results
    assert result.fault is None
    with open_ledger(workspace) as ledger:
        assert ledger.attempt(str(result.attempt)).state == "failed"


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (MountError("the view could not be mounted"), "view"),
    ],
)
def test_a_branch_that_cannot_be_made(
    error: Exception, fault: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "branch", fail)
        [result] = Speculate([lambda _: True])(workspace).all_results
    check_faulted(workspace, result, fault, str(error))


def test_a_disk_error_in_a_function_is_a_fault_and_the_function_is_not_run_again(workspace: Workspace) -> None:
    calls: list[Path] = []

    def work(path: Path) -> bool:
        calls.append(path)
        raise OSError(errno.EIO, "Input/output error")

    [result] = Speculate([work])(workspace).all_results
    check_faulted(workspace, result, "disk", "Input/output error")
    assert len(calls) == 1


@pytest.mark.parametrize("error", [ValueError("wrong"), FileNotFoundError(errno.ENOENT, "no such file")])
def test_other_errors_of_a_function_are_its_own(error: Exception, workspace: Workspace) -> None:
    def work(_: Path) -> bool:
        raise error

    [result] = Speculate([work])(workspace).all_results
    assert result.fault is None
    with open_ledger(workspace) as ledger:
        assert ledger.attempt(str(result.attempt)).state == "failed"


def test_a_sandbox_that_is_killed_from_outside(workspace: Workspace, tmp_path: Path) -> None:
    """As the machine's out-of-memory killer would; the attempt that it hits is not judged."""
    ready = tmp_path / "ready"
    ready.mkdir()

    class Killing(SandboxRunner):
        async def run(self, job: Job) -> RunEnd:
            killer.start()
            return await super().run(job)

    def kill() -> None:
        assert becomes_so(lambda: find_init() is not None)
        pid = find_init()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def find_init() -> int | None:
        """Return the first process of the sandbox in which the command runs."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if path.read_bytes().split(b"\0")[:2] == [b"sleep", b"1000.25"]:
                    return int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
        return None

    killer = threading.Thread(target=kill)
    [result] = Speculate([["sleep", "1000.25"]], runner=Killing())(workspace).all_results
    killer.join()
    check_faulted(workspace, result, "sandbox", "killed")


# Control groups


def limited(**limits: Any) -> SandboxRunner:
    return SandboxRunner(replace(Confinement.preset("standard"), limits=Limits(**limits)))


def test_a_control_group_that_cannot_be_created(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_bases", lambda _: {"memory": "/proc/self/no-such-group"})
    [result] = Speculate([["touch", "made"]], runner=limited(memory=1 << 30))(workspace).all_results
    check_faulted(workspace, result, "sandbox", "no control group could be created (/proc/self/no-such-group/")


def test_a_control_group_that_is_gone_before_it_is_joined(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Cgroup, "make", lambda *_, **__: Cgroup({"memory": str(tmp_path / "gone")}))
    [result] = Speculate([["touch", "made"]], runner=limited(memory=1 << 30))(workspace).all_results
    check_faulted(workspace, result, "sandbox", "the sandbox could not be set up")


def test_a_controller_that_is_missing(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    need(os.geteuid() == 0, "root: other users have a limit of the kernel instead")
    monkeypatch.setattr(cgroup, "version_of", lambda _: None)
    [result] = Speculate([["touch", "made"]], runner=limited(processes=50))(workspace).all_results
    check_faulted(workspace, result, "sandbox", "the limit processes=50 cannot be enforced")


# Evaluation


def test_tests_whose_sandbox_fails_once_run_again(workspace: Workspace, break_sandboxes: Break) -> None:
    calls = break_sandboxes(evaluation, 1)
    assert Speculate([["touch", "made"]], evaluate=Tests("true", baseline=False))(workspace).committed
    assert len(calls) == 2


def test_tests_that_cannot_run_are_a_fault(workspace: Workspace, break_sandboxes: Break) -> None:
    break_sandboxes(evaluation, 9)
    [result] = Speculate([["touch", "made"]], evaluate=Tests("true", baseline=False))(workspace).all_results
    check_faulted(workspace, result, "sandbox", "it could not be evaluated: ")
    assert result.tests is None


@pytest.mark.parametrize(("status", "fault"), [(503, "provider"), (429, "provider"), (400, None)])
def test_a_judge_whose_provider_fails(status: int, fault: str | None, workspace: Workspace) -> None:
    asked: list[Path] = []

    def check(path: Path) -> bool:
        asked.append(path)
        raise ModelHTTPError(status, "a model")

    [result] = Speculate([lambda _: True], evaluate=check)(workspace).all_results
    assert result.fault == fault
    assert len(asked) == (2 if fault else 1)


# Patterns and the command line


def test_a_fault_is_no_feedback(workspace: Workspace) -> None:
    """The next attempt is not told that the one before it failed."""
    heard: list[Any] = []

    def work(_path: Path, *told: Any) -> bool:
        heard.append(told[-1])
        if len(heard) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return True

    assert Reflexion(work)(workspace).committed
    assert heard == [None, None]
    heard.clear()
    assert Cascaded(work, fan_out=(1, 1))(workspace).committed
    assert heard == [[], []]


def test_the_others_are_judged(workspace: Workspace) -> None:
    def broken(_: Path) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    outcome = Speculate([broken, ["touch", "made"]], first_wins=False)(workspace)
    assert outcome.committed
    assert [result.fault for result in outcome.all_results] == ["disk", None]
