"""Nothing is left of a sandbox, however it ended and whatever it did: counted before and after."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forkwise import Branch, BranchContext, Confinement, Limits, ProcessBranchError, Workspace
from forkwise.files.store import trash
from forkwise.linux import cgroup
from forkwise.sandbox import jail_plan as plan
from forkwise.sandbox import launcher
from forkwise.sandbox.run import spawn
from tests.counts import rounds
from tests.need import need
from tests.sandbox.child import need_user_namespaces

pytestmark = pytest.mark.integration

ROUNDS = rounds(8, 200)
DESCRIPTORS = 8  # of an idle forkserver: three, a socket, its parent, itself, two of the prepared init process

# Ways of a command to avoid being killed. A variable that all descendants inherit marks each.
STUBBORN = (
    "setsid sh -c 'trap \"\" TERM HUP INT QUIT; while :; do sleep 0.01; done' & sleep 1000",
    "(setsid setsid sleep 1000 &) & sleep 1000",
    "sh -c 'kill -STOP $$' & sleep 1000",
    "f() { sleep 0.001; f & f & wait; }; trap '' TERM; while :; do sleep 0.01 & done",
    "nohup sleep 1000 >/dev/null 2>&1 & exec sleep 1000",
    "mkfifo p; (exec 3<>p; sleep 1000) & cat p & exec sleep 1000",
)


@pytest.fixture(autouse=True)
def user_namespaces() -> None:
    need_user_namespaces()


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a variable that every process started by this test has in its environment."""
    text = f"forkwise-leftover-{secrets.token_hex(8)}"
    monkeypatch.setenv("FORKWISE_LEFTOVER", text)
    return text


def marked(text: str) -> list[str]:
    """Return the processes with the mark, as number and command, zombies included.

    The server of a fuse view is none of them: it runs until its branch is dropped.
    """
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            command = Path("/proc", pid, "cmdline").read_bytes()
            is_view = command.startswith(b"fuse-overlayfs\0")
            if not is_view and text.encode() in Path("/proc", pid, "environ").read_bytes():
                found.append(f"{pid} {command!r}")
    return found


def children_of(pid: int) -> list[str]:
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        found += Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
    return found


def family_of(pid: int) -> dict[str, int]:
    """Return a pidfd of each descendant by number and program, including an uplink, which cannot be inspected."""
    found: dict[str, int] = {}
    for child in children_of(pid):
        with suppress(OSError):  # it ended meanwhile
            held = os.pidfd_open(int(child))
            found[f"{child} {Path('/proc', child, 'cmdline').read_text().partition(chr(0))[0]}"] = held
            found |= family_of(int(child))
    return found


class Count:
    """Everything that could be left: processes, mounts, control groups, descriptors, temporary files."""

    def __init__(self, mark: str, state: Path) -> None:
        self.mark = mark
        self.state = state
        server = launcher._client
        assert server is not None
        self.server = server

    def take(self) -> dict[str, Any]:
        trash.wait_until_empty()  # it has descriptors open meanwhile
        groups = sorted(
            f"{base}/{name}"
            for base in cgroup.own_groups().values()
            for name in os.listdir(base)
            if name.startswith(f"forkwise-{os.getpid()}-")
        )
        return {
            "marked": marked(self.mark),
            "children": children_of(os.getpid()),
            "sandboxes": self._sandboxes(),  # first, because it waits
            "mounts": _mounts("self", self.state),
            "mounts of the forkserver": _mounts(str(self.server.process.pid), self.state),
            "groups": groups,
            "descriptors": len(os.listdir("/proc/self/fd")),
            "descriptors of the forkserver": len(os.listdir(f"/proc/{self.server.process.pid}/fd")),
            "temporary": sorted(n for p in ("/tmp", "/var/tmp", "/dev/shm") for n in os.listdir(p) if self.mark in n),
        }

    def _sandboxes(self) -> int:
        """Return the number of sandboxes, once only the prepared one is left, or at the end of the wait."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            held = len(os.listdir(f"/proc/{self.server.process.pid}/fd"))
            if len(children_of(self.server.process.pid)) == 1 and held == DESCRIPTORS:
                break
            time.sleep(0.005)
        return len(children_of(self.server.process.pid))


def _mounts(pid: str, state: Path) -> list[str]:
    """Return the mounts of branches, and those of kinds that only sandboxes make."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text(errors="surrogateescape").splitlines()
    return sorted(line.split()[4] for line in lines if str(state) in line)


@pytest.fixture
def count(workspace: Workspace, branch: Branch, mark: str) -> Count:
    branch.run(["true"])
    return Count(mark, Path(workspace.state))


def by_timeout(branch: Branch, script: str) -> str:
    return branch.run(["sh", "-c", script], timeout=0.02, capture=False).ending


def by_kill(branch: Branch, script: str) -> str:
    with open(os.devnull, "r+b") as null:
        process = spawn(branch, ["sh", "-c", script], (null.fileno(),) * 3)
        process.kill()
        process.wait()
        ending = process.collect((), None, None).ending
        process.close()
    return ending


def by_its_own_end(branch: Branch, script: str) -> str:
    return branch.run(["sh", "-c", f"({script}) & true"], capture=False).ending


def by_a_signal(branch: Branch, script: str) -> str:
    return branch.run(["sh", "-c", f"({script}) & kill -SEGV $$"], capture=False).ending


def by_a_limit(branch: Branch, script: str) -> str:
    limits = Limits(wall=0.02, processes=60, best_effort=True)
    return branch.run(["sh", "-c", script], confinement=Confinement.strict(limits=limits), capture=False).ending


ENDINGS: tuple[tuple[Callable[[Branch, str], str], set[str]], ...] = (
    (by_timeout, {"timeout"}),
    (by_kill, {"killed"}),
    (by_its_own_end, {"exit"}),
    (by_a_signal, {"signal"}),
    (by_a_limit, {"timeout", "exit", "signal"}),
)


@pytest.mark.crash
def test_after_many_rounds_of_mixed_endings(branch: Branch, count: Count) -> None:
    before = count.take()
    for number in range(ROUNDS):
        end, expected = ENDINGS[number % len(ENDINGS)]
        assert end(branch, STUBBORN[number % len(STUBBORN)]) in expected
    assert count.take() == before


@pytest.mark.crash
def test_after_functions_that_end_in_every_way(count: Count, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()

    def stubborn(_: Path) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "1000"])
            os.kill(os.getpid(), signal.SIGSTOP)
        signal.pause()

    before = count.take()
    for number in range(ROUNDS):
        context = BranchContext(stubborn, place, confinement="strict" if number % 3 == 0 else "standard")
        context.start()
        if number % 4 == 0:
            context.abort()
        elif number % 4 == 1:
            with pytest.raises(TimeoutError):
                context.wait(0.01)
            context.abort()
        elif number % 4 == 2:
            del context
        else:
            limited = BranchContext(stubborn, place, confinement=Confinement.standard(limits=Limits(wall=0.02)))
            with pytest.raises(ProcessBranchError, match="limit wall"):
                limited.wait(60)
            context.abort()
    assert count.take() == before


def test_a_hundred_at_once(workspace: Workspace, count: Count) -> None:
    branches = [workspace.branch(f"b{n}", on_success=None, on_error=None) for n in range(10)]
    for branch in branches:
        branch.run(["true"])
    need(branches[0].view != "overlay" or os.geteuid() == 0, "one sandbox at a time has a branch mounted")
    before = count.take()
    resident = _resident(count.server.process.pid) + _resident(os.getpid())
    with open(os.devnull, "r+b") as null:
        reader, writer = os.pipe()
        processes = [
            spawn(branches[n % 10], ["sh", "-c", "echo up; exec sleep 1000"], (null.fileno(), writer, null.fileno()))
            for n in range(100)
        ]
        os.close(writer)
        said = b""
        while said.count(b"up\n") < 100:
            said += os.read(reader, 4096)
        assert all(p.alive for p in processes)
        assert len(children_of(count.server.process.pid)) in (100, 101)  # and the prepared one
        assert (_resident(count.server.process.pid) + _resident(os.getpid()) - resident) / 100 < 2 << 20
        for process in processes:
            process.kill()
        for process in processes:
            process.close()
        os.close(reader)
    assert count.take() == before


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_from_many_threads_that_end(branch: Branch, count: Count) -> None:
    before = count.take()
    endings: list[str] = []

    def work() -> None:
        endings.append(by_timeout(branch, STUBBORN[0]))

    for _ in range(4):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert endings == ["timeout"] * 32
    assert count.take() == before


CALLERS = """
import os, signal, sys, threading
from forkwise import BranchContext

def target(_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        os.write(1, b"up")
    signal.pause()

def call_on_and_on():
    held = []
    while True:
        held.append(BranchContext(target, os.getcwd(), confinement="strict" if len(held) % 2 else "standard"))
        held[-1].start()

reader, writer = os.pipe()
os.dup2(writer, 1)
os.close(writer)
for number in range(60):
    caller = os.fork()
    if caller == 0:
        if number % 2:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        call_on_and_on()
    os.read(reader, 2)  # at least one runs
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
os.close(1)
while os.read(reader, 4096):  # all its writers have ended
    pass
"""


def test_after_callers_were_killed_at_any_moment(mark: str, tmp_path: Path) -> None:
    """Sixty callers are killed while they start functions one after another: some run, one is being made."""
    subprocess.run([sys.executable, "-c", CALLERS], stdin=subprocess.DEVNULL, cwd=tmp_path, check=True, timeout=300)
    assert marked(mark) == []
    assert _mounts("self", tmp_path) == []


PARENT = """
import os, sys, threading
from forkwise import BranchContext, Confinement, Limits, Workspace
branch = Workspace(sys.argv[1], durable=False).open(sys.argv[2])
confinement = Confinement.standard(network=sys.argv[4], limits=Limits(memory=1 << 30, best_effort=True))
said = threading.Event()
def run():
    branch.run(["sh", "-c", "echo up; " + sys.argv[3]], confinement=confinement, on_output=lambda *_: said.set())
threading.Thread(target=run, daemon=True).start()
said.wait()
def target(_):
    print("up", flush=True)
    os.execvp("sh", ["sh", "-c", sys.argv[3]])
context = BranchContext(target, os.getcwd())
context.start()
if os.fork() == 0:  # a fork of the parent holds all its descriptors
    os.execvp("sleep", ["sleep", "1000"]) if len(sys.argv) > 5 else os._exit(0)
os.read(0, 1)
"""


@pytest.mark.parametrize("script", STUBBORN)
@pytest.mark.parametrize("network", ["host", "none", "private"])
def test_after_the_parent_was_killed(
    workspace: Workspace, branch: Branch, mark: str, tmp_path: Path, script: str, network: str
) -> None:
    (tmp_path / "cwd").mkdir()
    command = [sys.executable, "-c", PARENT, str(workspace.path), branch.name, script, network]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path / "cwd")
    assert parent.stdin is not None
    assert parent.stdout is not None
    said, family, ours = parent.stdout.readline(), family_of(parent.pid), marked(mark)
    parent.kill()
    parent.wait()
    assert said == b"up\n"
    assert len(ours) > 2  # itself, the command and the function
    assert network != "private" or any(name.endswith(("pasta", "slirp4netns")) for name in family)
    parent.stdin.close()
    assert parent.stdout.read() == b""  # all its writers have ended
    parent.stdout.close()
    for held in family.values():
        select.select([held], [], [])
        os.close(held)
    waited = select.poll()
    while left := marked(mark):  # the kernel kills them one after another; the test's own time limit ends this
        for line in left:
            with suppress(OSError):
                held = os.pidfd_open(int(line.split()[0]))
                waited.register(held, select.POLLIN)
                waited.poll(1000)
                waited.unregister(held)
                os.close(held)
    cgroup.sweep()  # a killed process leaves empty control groups, which the next sweep removes
    groups = [name for base in cgroup.own_groups().values() for name in os.listdir(base)]
    assert not [name for name in groups if name.startswith(f"forkwise-{parent.pid}-")]
    assert _mounts("self", tmp_path / "cwd") == []


def test_a_name_too_long_for_a_pipe_does_not_hang(branch: Branch) -> None:
    with pytest.raises(ProcessBranchError, match="could not be started"):
        branch.run(["x" * 100_000])


def test_a_process_that_ends_while_a_sandbox_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    listed, expected = os.listdir, plan._find_proc_settings()
    monkeypatch.setattr(os, "listdir", lambda path: [*listed(path), "4194305", "driver-that-went-away"])
    plan._find_proc_settings.cache_clear()
    assert plan._find_proc_settings() == expected
    plan._find_proc_settings.cache_clear()


def test_after_a_way_out_into_the_world(branch: Branch, count: Count) -> None:
    private = Confinement.standard(network="private")
    branch.run(["true"], confinement=private, check=True)  # from now on the forkserver keeps a spare network
    before = count.take()
    for _ in range(3):
        branch.run(["true"], confinement=private, check=True)
    assert count.take() == before


def test_after_a_way_out_through_the_proxy(branch: Branch, count: Count) -> None:
    proxy = Confinement.standard(network="proxy")
    branch.run(["true"], confinement=proxy, check=True)  # from now on there is a proxy
    before = count.take()
    for _ in range(5):
        branch.run(["true"], confinement=proxy, check=True)
    assert count.take() == before
