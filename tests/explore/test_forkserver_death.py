"""The forkserver dies while attempts run: they are faulted, whatever they run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from forkwise import SandboxRunner, Speculate, Tests, Workspace
from tests.explore.test_faults import check_faulted

pytestmark = pytest.mark.crash


def list_forkservers() -> list[int]:
    """List the forkservers of this process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            words = (path.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == os.getpid() and any(word.endswith(b"/sandbox/forkserver.py") for word in words):
            found.append(int(path.parent.name))
    return found


def sleep_in_sandbox(path: Path) -> bool:
    (path / "started").touch()
    threading.Event().wait()
    return True


@contextmanager
def killing(workspace: Workspace) -> Iterator[list[str]]:
    """Kill the forkservers each time that a file named ``started`` appears in a layer; yield those files."""
    seen: list[str] = []
    is_over = threading.Event()

    def kill() -> None:
        while not is_over.wait(0.02):
            found = []
            with suppress(OSError):  # directories of branches come and go
                found = [str(path) for path in workspace.state.glob("branches/**/layer/started")]
            if new := [path for path in found if path not in seen]:
                seen.extend(new)
                for pid in list_forkservers():
                    os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield seen
    finally:
        is_over.set()
        killer.join()


@pytest.mark.parametrize("kind", ["command", "function"])
def test_an_attempt_that_runs(kind: str, workspace: Workspace) -> None:
    candidate = ["sh", "-c", "touch started; sleep 1000"] if kind == "command" else sleep_in_sandbox
    with killing(workspace) as seen:
        [result] = Speculate([candidate], runner=SandboxRunner())(workspace).all_results
    assert len(seen) == 1
    check_faulted(workspace, result, "sandbox", "killed")
    assert Speculate([["touch", "made"]])(workspace).committed  # by a new forkserver


def test_tests_that_run(workspace: Workspace) -> None:
    with killing(workspace) as seen:
        tests = Tests("touch started; sleep 1000", baseline=False)
        [result] = Speculate([["touch", "made"]], evaluate=tests)(workspace).all_results
    assert len(seen) == 2  # they are tried once more
    check_faulted(workspace, result, "sandbox", "it could not be evaluated")
    assert Speculate([["touch", "made"]])(workspace).committed
