"""The sandbox runner: results and errors from the sandbox, ends of jobs, and programs with threads."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkwise import Branch, Confinement, InProcessRunner, Runner, SandboxRunner, Workspace
from forkwise.fork import runner as sandboxed
from forkwise.fork.run_end import RunEnd
from forkwise.fork.runner import Job
from forkwise.servers.server_file import Readiness, Server
from tests.counts import rounds
from tests.leftovers import children


@pytest.fixture
def branch(workspace: Workspace) -> Iterator[Branch]:
    """A branch to run jobs in."""
    made = workspace.branch("attempt", None, None)
    yield made
    made.abort()


RUNNERS = [InProcessRunner(), SandboxRunner(), SandboxRunner("strict"), SandboxRunner("open")]
by_runner = pytest.mark.parametrize("runner", RUNNERS, ids=["in-process", "standard", "strict", "open"])


def run(runner: Runner, branch: Branch, **job: Any) -> RunEnd:
    return asyncio.run(runner.run(Job(branch, **job)))


@by_runner
def test_a_function_returns(runner: Runner, branch: Branch) -> None:
    def work(path: Path) -> list[Any]:
        (path / "made").write_text("made")
        return [True, 0.5]

    ended = run(runner, branch, function=work)
    assert (ended.ending, ended.value) == ("returned", [True, 0.5])
    assert ended.wall > 0
    assert (branch.path / "made").read_text() == "made"


@by_runner
def test_a_function_raises(runner: Runner, branch: Branch) -> None:
    def work(_: Path) -> None:
        raise ValueError("wrong")

    ended = run(runner, branch, function=work)
    assert ended.ending == "raised"
    assert "wrong" in str(ended.error)


@by_runner
def test_what_a_function_gives_is_awaited(runner: Runner, branch: Branch) -> None:
    async def inner(path: Path) -> str:
        await asyncio.sleep(0)
        return path.name

    class Callable:
        async def __call__(self, path: Path) -> str:
            return await inner(path)

    def plain(path: Path) -> Any:
        return inner(path)

    for function in (inner, plain, Callable()):
        ended = run(runner, branch, function=function)
        assert (ended.ending, ended.error) == ("returned", None)
        assert isinstance(ended.value, str)


@by_runner
def test_a_command_ends(runner: Runner, branch: Branch) -> None:
    printed: list[tuple[str, bytes]] = []
    argv = ["sh", "-c", 'echo "$GIVEN"; echo wrong >&2; exit 3']
    ended = run(
        runner, branch, argv=argv, environment={"GIVEN": "given"}, on_output=lambda *piece: printed.append(piece)
    )
    assert (ended.ending, ended.exit_code, ended.limit) == ("exit", 3, None)
    assert sorted(printed) == [("stderr", b"wrong\n"), ("stdout", b"given\n")]
    assert ended.cpu is not None
    assert ended.memory is not None


@by_runner
@pytest.mark.parametrize("is_command", [True, False])
def test_too_slow(runner: Runner, branch: Branch, is_command: bool) -> None:
    gate = threading.Event()
    job: dict[str, Any] = {"argv": ["sleep", "1000"]} if is_command else {"function": lambda _: gate.wait()}
    ended = run(runner, branch, timeout=0.1, **job)
    gate.set()
    assert (ended.ending, ended.limit) == ("timeout", "wall")


@pytest.mark.parametrize(
    ("confinement", "is_command"), [("open", False), ("standard", False), ("standard", True), ("strict", True)]
)
def test_cancellation_kills_the_process(confinement: str, is_command: bool, branch: Branch) -> None:
    """The process is dead and reaped when the cancellation is raised."""
    reader, writer = os.pipe()
    before = children()

    def work(_: Path) -> None:
        os.write(writer, b"1")
        threading.Event().wait()

    async def main() -> None:
        begun = asyncio.Event()
        asyncio.get_running_loop().add_reader(reader, begun.set)
        argv = ["sh", "-c", "echo begun; sleep 1000"]
        job = Job(branch, None if is_command else work, argv if is_command else None, on_output=lambda *_: _tell())
        task = asyncio.create_task(SandboxRunner(Confinement.preset(confinement)).run(job))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    def _tell() -> None:
        os.write(writer, b"1")

    try:
        asyncio.run(main())
        assert children() <= before
    finally:
        os.close(reader)
        os.close(writer)


def test_a_cancellation_at_any_moment_leaves_nothing(branch: Branch) -> None:
    """Cancels after each turn of the event loop, until the function is done before the cancellation."""

    async def main() -> int:
        for turns in range(200):
            task = asyncio.create_task(SandboxRunner().run(Job(branch, lambda _: True)))
            for _ in range(turns):
                await asyncio.sleep(0)
            if task.done():
                return turns
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return 200

    before = children()
    assert asyncio.run(main()) > 1
    assert children() <= before


def test_a_cancellation_when_it_has_just_ended_is_one(branch: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is dead already, but the event loop does not know yet."""
    ended = threading.Event()
    wait = sandboxed._wait

    def wait_and_say(*arguments: Any) -> None:
        try:
            wait(*arguments)
        finally:
            ended.set()

    async def is_cancelled_after(turns: int) -> bool:
        ended.clear()
        task = asyncio.create_task(SandboxRunner().run(Job(branch, lambda _: True)))
        await asyncio.sleep(0)
        assert ended.wait(60)
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            return False
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return True

    monkeypatch.setattr(sandboxed, "_wait", wait_and_say)
    cancelled = [asyncio.run(is_cancelled_after(turns)) for turns in range(12)]
    assert cancelled[0]
    assert not cancelled[-1]


@pytest.fixture
def busy() -> Iterator[None]:
    """Threads that compete for the GIL all the time."""
    stop = threading.Event()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def burn() -> None:
        while not stop.is_set():
            pass

    threads = [threading.Thread(target=burn) for _ in range(3)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("busy")
def test_functions_of_a_program_with_busy_threads_come_to_run(branch: Branch) -> None:
    """A forked process has only the thread that forked; locks of other threads must not block it."""
    for _ in range(rounds(12, 40)):
        ended = run(SandboxRunner(), branch, function=lambda _: True, timeout=60)
        assert (ended.ending, ended.value) == ("returned", True)


def test_in_a_sandbox_a_workspace_keeps_its_state_in_the_sandbox(branch: Branch) -> None:
    def work(path: Path) -> str:
        return str(Workspace(path).state)

    ended = run(SandboxRunner(), branch, function=work)
    assert ended.error is None
    assert ended.value.startswith("/tmp/.forkwise/")
    assert not Path("/tmp/.forkwise").exists()
    report: list[bytes] = []
    run(SandboxRunner(), branch, argv=["printenv", "FORKWISE_STATE"], on_output=lambda _, piece: report.append(piece))
    assert b"".join(report) == b"/tmp/.forkwise\n"


def test_a_state_that_was_given_is_kept(branch: Branch) -> None:
    given = Confinement.standard(given={"FORKWISE_STATE": "/tmp/elsewhere"})
    assert run(SandboxRunner(given), branch, function=lambda _: os.environ["FORKWISE_STATE"]).value == "/tmp/elsewhere"
    assert run(SandboxRunner("open"), branch, function=lambda _: os.environ.get("FORKWISE_STATE")).value is None


SERVE = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
while True:
    server.accept()
"""


def test_a_function_has_servers_only_on_the_host_network(branch: Branch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = Server(name="web", command=(sys.executable, "-ISc", SERVE, str(port)), ready=Readiness(log="up"))

    def connect(_: Path) -> str:
        with socket.create_connection(("127.0.0.1", port), timeout=30):
            return "connected"

    ended = run(SandboxRunner(servers=[server]), branch, function=connect)
    assert (ended.ending, ended.fault, ended.has_started) == ("raised", "server", False)
    assert "servers_use_host=True" in str(ended.error)
    runner = SandboxRunner(Confinement.standard(network="host"), servers=[server], servers_use_host=True)
    ended = run(runner, branch, function=connect)
    assert (ended.ending, ended.value) == ("returned", "connected"), ended
