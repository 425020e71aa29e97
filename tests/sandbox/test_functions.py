"""BranchContext in programs that use threads, signals and locks, and whose processes are killed.

Each test runs a program in a new process, which has no other descriptors and children.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from forkwise.sandbox.child import block_signals
from tests.need import need
from tests.sandbox.child import need_user_namespaces

pytestmark = pytest.mark.integration

BEGINNING = """
import json, os, signal, sys, threading, time
from pathlib import Path
from forkwise import BranchContext, Confinement, ForkError, NamespaceError, ProcessBranchError, Workspace
from forkwise.sandbox import launcher

place = sys.argv[1]
os.mkdir(place + "/project")
Path(place, "project/a.txt").write_text("one")

def call(function, **options):
    with BranchContext(function, place + "/project", **options) as context:
        context.wait(120)
        return context.result.value

def children(pid="self"):
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        found += open(f"/proc/{pid}/task/{task}/children").read().split()
    return [int(child) for child in found]

def soon(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()

def held():
    links = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            links[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
    return {fd: link for fd, link in links.items() if fd > 2 and not link.endswith("/fd")}
"""


@pytest.fixture(autouse=True)
def user_namespaces() -> None:
    need_user_namespaces()


def run_program(program: str, place: Path) -> Any:
    """Run a program and return the JSON document in its last line of output."""
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + program, str(place)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_descriptors_of_other_threads_are_not_inherited(tmp_path: Path) -> None:
    """A function inherits no pipe of a sandbox that another thread starts, no lock, and not the forkserver's socket.

    With them a function could forge an outcome, unlock a workspace, or keep a reader waiting for the end of a pipe.
    """
    program = """
ws = Workspace(place + "/project", durable=False)
branches = [ws.branch(f"b{n}", on_success=None, on_error=None) for n in range(3)]
seen, ends = [], []

def functions():
    for _ in range(12):
        seen.append(call(lambda _: sorted(link.partition(" ")[0] for link in held().values())))

def commands(branch):
    for _ in range(12):
        ends.append(branch.run(["sh", "-c", "cat; echo out"], input=b"in\\n").stdout.decode())

def locks():
    for number in range(12):
        with ws.branch(f"locked{number}", on_success=None, on_error=None) as branch:
            (branch.path / f"new{number}").write_text("x")
            branch.commit()

threads = [threading.Thread(target=functions) for _ in range(3)]
threads += [threading.Thread(target=commands, args=[branch]) for branch in branches]
threads.append(threading.Thread(target=locks))
for thread in threads: thread.start()
for thread in threads: thread.join()
for branch in branches: branch.abort()
print(json.dumps([seen, ends, len(children())]))
"""
    seen, ends, children = run_program(program, tmp_path)
    assert len(seen) == 36
    ours = {link for links in seen for link in links if link.startswith(("pipe:", "socket:", "anon_inode:[pidfd"))}
    assert ours == set()
    assert not {link for links in seen for link in links if link.startswith("/memfd:")}
    assert not {link for links in seen for link in links if link.endswith("/lock")}
    assert ends == ["in\nout\n"] * 36
    assert children == 1


def test_function_can_neither_keep_nor_release_the_workspace_lock(tmp_path: Path) -> None:
    program = """
import fcntl
from forkwise.files.store.state import locked
ws = Workspace(place + "/project", durable=False)
ws.branch("b", on_success=None, on_error=None).abort()
state = str(ws.state)

def unlock_all(_):
    for fd in held():
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            continue
    os.write(1, b"x")
    signal.pause()

def is_free():
    with open(state + "/lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

reader, writer = os.pipe()
os.dup2(writer, 1)
with locked(state):
    context = BranchContext(unlock_all, place + "/project")
    context.start()
    os.read(reader, 1)
    while_held = is_free()
after = is_free()
context.abort()
os.write(2, json.dumps([while_held, after]).encode())
"""
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + program, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert json.loads(done.stderr) == [False, True]


def test_an_interrupt_while_signals_are_being_blocked_leaves_none_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that arrived just before is handled inside the call that blocks, after it has blocked."""
    block = signal.pthread_sigmask

    def interrupted(how: int, signals: Iterable[int]) -> set[int]:
        before = block(how, signals)
        if how == signal.SIG_BLOCK and signals:
            raise InterruptedError
        return before

    monkeypatch.setattr(signal, "pthread_sigmask", interrupted)
    before = block(signal.SIG_BLOCK, ())
    with pytest.raises(InterruptedError), block_signals():
        pass
    after = block(signal.SIG_SETMASK, before)
    assert after == before


@pytest.mark.parametrize("threads", [0, 2])
def test_interrupted_start_leaves_no_process_or_descriptor(tmp_path: Path, threads: int) -> None:
    program = f"""
class Interrupted(Exception):
    pass

def interrupt(*_):
    raise Interrupted

stop = threading.Event()
others = [threading.Thread(target=stop.wait, daemon=True) for _ in range({threads})]
for thread in others: thread.start()
call(lambda _: 1)
server = launcher._client
before = len(held())
begun = time.monotonic()
call(lambda _: 1)
longest = time.monotonic() - begun
signal.signal(signal.SIGALRM, interrupt)
interrupted = 0
for turn in range(40):
    context = BranchContext(lambda _: signal.pause(), place + "/project")
    try:
        # Again after a while: Python ignores an exception that a handler raises during a finalizer.
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + longest * turn / 33, 5)
        context.start()
        context.wait(60)
    except Interrupted:
        interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    context.abort(60)
    del context
is_alone = soon(lambda: children() == [server.process.pid])
is_idle = soon(lambda: len(children(server.process.pid)) == 1)
works = call(lambda _: "works")
stop.set()
for thread in others: thread.join()
print(json.dumps([interrupted, is_alone, is_idle, works, launcher._client is server, len(held()) - before]))
"""
    interrupted, is_alone, is_idle, works, is_same, more = run_program(program, tmp_path)
    assert interrupted == 40
    assert (is_alone, is_idle, works, is_same) == (True, True, "works", True)
    assert more < 20  # a descriptor created just when the signal arrived is never closed


def test_functions_die_with_a_killed_forkserver_which_is_replaced(tmp_path: Path) -> None:
    program = """
def stubborn(_):
    if os.fork() == 0:
        os.setsid()
    signal.pause()

said = []
for _ in range(8):
    context = BranchContext(stubborn, place + "/project")
    context.start()
    pid, server = context.pid, launcher._client
    os.kill(server.process.pid, signal.SIGKILL)
    try:
        context.wait(60)
    except ProcessBranchError as error:
        said.append([str(error), os.path.exists(f"/proc/{pid}"), call(lambda _: "works")])
        said[-1].append(children() == [launcher._client.process.pid])
print(json.dumps(said))
"""
    assert (
        run_program(program, tmp_path)
        == [
            ["the target failed: ProcessBranchError: killed", False, "works", True],
        ]
        * 8
    )


def test_program_that_reaps_all_children(tmp_path: Path) -> None:
    program = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
said = [call(lambda _: "ignored") for _ in range(3)]
try:
    call(lambda _: os._exit(7))
except ProcessBranchError as error:
    said.append(str(error))

def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

signal.signal(signal.SIGCHLD, reap)
said += [call(lambda _: "reaped") for _ in range(10)]
print(json.dumps(said))
"""
    assert run_program(program, tmp_path) == [
        *["ignored"] * 3,
        "the target failed: ProcessBranchError: ended; its exit code is unknown, other code in this program reaped it",
        *["reaped"] * 10,
    ]


def test_inherited_null_device_cannot_change_the_host(tmp_path: Path) -> None:
    need(os.geteuid() == 0, "only root could change the host's")
    before = os.stat("/dev/null")
    program = """
def change(_):
    tried = []
    for fd in (0, 1, 2):
        for action in (lambda: os.fchmod(fd, 0o600), lambda: os.fchown(fd, 1, 1), lambda: os.utime(fd, (1, 1))):
            try:
                action()
                tried.append("done")
            except OSError as error:
                tried.append(error.strerror)
    return [tried, os.read(0, 1).decode(), os.write(0, b"x")]

out = os.dup(1)
null = os.open("/dev/null", os.O_RDWR)
os.dup2(null, 1)
os.dup2(null, 2)
said = [call(change), call(change, confinement="strict")]
os.dup2(out, 1)
print(json.dumps(said))
"""
    try:
        said = run_program(program, tmp_path)
        after = os.stat("/dev/null")
    finally:
        os.chmod("/dev/null", stat.S_IMODE(before.st_mode))
        os.chown("/dev/null", before.st_uid, before.st_gid)
    assert said == [[["Read-only file system"] * 9, "", 1]] * 2
    assert (after.st_mode, after.st_uid, after.st_mtime) == (before.st_mode, before.st_uid, before.st_mtime)


def test_function_starts_sandboxes_of_its_own(tmp_path: Path) -> None:
    """The function is a fork: it must not use its program's forkserver and sandboxes."""
    program = """
def outer(path):
    said = []
    for confinement in ("standard", Confinement.standard(landlock_instead=True)):
        try:
            with BranchContext(lambda _: "inner", path, confinement=confinement) as context:
                context.wait(60)
                said.append(context.result.value)
        except (NamespaceError, ForkError):
            said.append("refused")
    other.abort()  # is not its own
    return said

other = BranchContext(lambda _: signal.pause(), place + "/project")
other.start()
said = [call(outer, confinement=name) for name in ("open", "standard", "strict")]
print(json.dumps([said, other.alive]))
other.abort()
"""
    said, is_alive = run_program(program, tmp_path)
    assert all(set(tried) <= {"inner", "refused"} for tried in said)
    # Without root, a sandbox in a standard one gets its namespaces, but may not mount there: Landlock steps in.
    assert [tried[1] for tried in said] == ["inner"] * 3
    assert is_alive


def test_many_threads_run_many_functions(tmp_path: Path) -> None:
    program = """
results, lock = [], threading.Lock()

def work(number):
    for turn in range(5):
        name = "strict" if (number + turn) % 3 == 0 else "standard"
        if turn == 3:
            context = BranchContext(lambda _: signal.pause(), place + "/project", confinement=name)
            context.start()
            context.abort(60)
            value = context.result.message
        else:
            value = call(lambda _: [number, turn, threading.active_count()], confinement=name)
        with lock:
            results.append(value)

threads = [threading.Thread(target=work, args=[n]) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([results, children() == [launcher._client.process.pid], len(held())]))
"""
    results, is_alone, _ = run_program(program, tmp_path)
    assert results.count("killed") == 8
    assert sorted(r for r in results if r != "killed") == [[n, t, 1] for n in range(8) for t in (0, 1, 2, 4)]
    assert is_alone
