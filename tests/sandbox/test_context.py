"""BranchContext: functions in sandboxed children, their results, and hostile functions."""

from __future__ import annotations

import ctypes
import fcntl
import json
import math
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forkwise import BranchContext, Confinement, ForkError, Limits, NamespaceError, ProcessBranchError, Workspace
from tests.sandbox.child import need_user_namespaces


@pytest.fixture(autouse=True)
def user_namespaces() -> None:
    need_user_namespaces()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory that targets work in."""
    made = tmp_path / "place"
    made.mkdir()
    return made


def outcome(target: Callable[[Path], Any], place: Path, **options: Any) -> Any:
    """Return the value of a target."""
    with BranchContext(target, place, **options) as context:
        context.wait(60)
        return context.result.value


def failure(target: Callable[[Path], Any], place: Path, **options: Any) -> str:
    """Return the error text of a target that fails."""
    with BranchContext(target, place, **options) as context, pytest.raises(ProcessBranchError) as caught:
        context.wait(60)
    return str(caught.value)


# Basics


def test_a_target_writes_to_its_workspace_and_nowhere_else(place: Path, tmp_path: Path) -> None:
    def target(path: Path) -> str:
        (path / "made").write_text("by the target")
        with suppress(OSError):  # /tmp is writable inside: it is the sandbox's own
            (tmp_path / "outside").write_text("escaped")
        with pytest.raises(OSError, match="Read-only"):
            Path("/etc/escaped").write_text("escaped")
        return os.getcwd()

    assert outcome(target, place) == str(place)
    assert (place / "made").read_text() == "by the target"
    assert not (tmp_path / "outside").exists()


def test_it_is_a_branch_that_is_written_to(workspace: Workspace) -> None:
    with workspace.branch("b") as branch:
        with BranchContext(lambda path: (path / "a.txt").write_text("two\n"), branch.path) as context:
            context.wait(60)
        assert (workspace.path / "a.txt").read_text() == "one\n"
    assert (workspace.path / "a.txt").read_text() == "two\n"


def test_pid_alive_wait_abort(place: Path) -> None:
    context = BranchContext(lambda _: signal.pause(), place)
    assert context.pid is None
    assert not context.alive
    context.start()
    context.start()
    assert context.pid is not None
    assert context.alive
    with pytest.raises(ProcessBranchError, match="not done yet"):
        context.result  # noqa: B018 - a property
    with pytest.raises(TimeoutError, match=r"within 0\.01 seconds"):
        context.wait(0.01)
    assert context.alive
    context.abort()
    context.abort()
    assert not context.alive
    assert not Path(f"/proc/{context.pid}").exists()
    assert context.result.message == "killed"


def test_wait_starts_it(place: Path) -> None:
    context = BranchContext(lambda _: 3, place)
    context.wait()
    assert context.result.value == 3


def test_leaving_the_block_ends_it(place: Path) -> None:
    with BranchContext(lambda _: signal.pause(), place) as context:
        pid = context.pid
    assert not Path(f"/proc/{pid}").exists()


def test_many_at_once(tmp_path: Path) -> None:
    places = [tmp_path / str(number) for number in range(20)]
    for made in places:
        made.mkdir()
    with BranchContext.create([lambda p: p.name] * 20, places) as contexts:
        for context in contexts:
            context.wait(60)
        assert [c.result.value for c in contexts] == [str(number) for number in range(20)]
    with (
        pytest.raises(ValueError, match="2 targets need as many workspaces, not 1"),
        BranchContext.create([len, len], [tmp_path]),
    ):
        pass
    with BranchContext.create([lambda _: signal.pause()] * 3, places[:3]) as contexts:
        pids = [c.pid for c in contexts]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_workspace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ForkError, match="is not a directory: a target needs one that exists"):
        BranchContext(lambda _: None, tmp_path / "nowhere").start()
    (tmp_path / "file").write_text("")
    with pytest.raises(ForkError, match="is not a directory"):
        BranchContext(lambda _: None, tmp_path / "file").wait()


# Results


@pytest.mark.parametrize("value", [None, True, 1, -1.5, "text ☃", [1, [2, {"a": None}]], {"k": [1, 2]}, ""])
def test_values(place: Path, value: Any) -> None:
    assert outcome(lambda _: value, place) == value


def test_values_that_json_has_no_word_for(place: Path) -> None:
    assert math.isnan(outcome(lambda _: math.nan, place))
    assert outcome(lambda _: [math.inf, -math.inf], place) == [math.inf, -math.inf]
    assert outcome(lambda _: {"p": Path("/a"), "t": (1, 2)}, place) == {"p": "/a", "t": [1, 2]}


class _Odd:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/unpickled",)


def _circle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    "make", [object, _Odd, lambda: {1: object()}, _circle, lambda: "\udc80", lambda: (_ for _ in ()).throw]
)
def test_the_child_reports_a_result_that_cannot_be_pickled(place: Path, make: Callable[[], Any]) -> None:
    said = failure(lambda _: make(), place)
    assert "cannot be handed to the parent" in said
    assert "Return a value that JSON can express, or write it to the workspace" in said


def test_exceptions_cross_as_text(place: Path) -> None:
    def target(_: Path) -> None:
        raise KeyError("no such thing")

    context = BranchContext(target, place)
    with pytest.raises(ProcessBranchError, match="the target failed: KeyError: 'no such thing'"):
        context.wait(60)
    assert not context.result.ok
    assert context.result.error == "KeyError"
    assert context.result.message == "'no such thing'"
    assert "test_context.py" in context.result.traceback


class _MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error", [_MuteError(), ValueError("\udc80"), SystemExit(3), KeyboardInterrupt(), Exception("x" * 10**6)]
)
def test_odd_exceptions(place: Path, error: BaseException) -> None:
    def target(_: Path) -> None:
        raise error

    assert type(error).__name__ in failure(target, place)


def test_a_hundred_megabytes_do_not_deadlock(place: Path) -> None:
    value = outcome(lambda _: "x" * 100_000_000, place)
    assert len(value) == 100_000_000


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM])
def test_a_crash_is_reported_as_such(place: Path, number: signal.Signals) -> None:
    def target(path: Path) -> None:
        (path / "before").write_text("kept")
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.kill(os.getpid(), number)

    assert f"killed by {number.name}" in failure(target, place)
    assert (place / "before").read_text() == "kept"


def test_real_crashes_are_reported_as_such(place: Path) -> None:
    import faulthandler

    def crash(_: Path) -> None:
        faulthandler.disable()
        ctypes.string_at(0)

    def give_up(_: Path) -> None:
        faulthandler.disable()
        os.abort()

    assert "killed by SIGSEGV" in failure(crash, place)
    assert "killed by SIGABRT" in failure(give_up, place)


@pytest.mark.parametrize("code", [0, 1, 7, 137, 255])
def test_an_exit_that_bypasses_python_is_reported_as_such(place: Path, code: int) -> None:
    assert f"ended with exit code {code} before the target returned" in failure(lambda _: os._exit(code), place)


def test_out_of_memory_is_reported_as_such(place: Path) -> None:
    confinement = Confinement.standard(limits=Limits(memory=400 << 20))
    said = failure(lambda _: len(bytearray(os.urandom(1 << 20)) * 2000), place, confinement=confinement)
    assert "out of memory" in said or "MemoryError" in said


def test_limits_hold(place: Path) -> None:
    said = failure(lambda _: signal.pause(), place, confinement=Confinement.standard(limits=Limits(wall=0.2)))
    assert "stopped by its limit wall" in said

    def bomb(_: Path) -> None:
        for _ in range(200):
            if os.fork() == 0:
                signal.pause()

    said = failure(bomb, place, confinement=Confinement.standard(limits=Limits(processes=20)))
    assert "Resource temporarily unavailable" in said
    with pytest.raises(NamespaceError, match="the limit disk"):
        BranchContext(lambda _: None, place, confinement=Confinement.standard(limits=Limits(disk=1))).start()


# A hostile target


def forge_answer(content: bytes, length: int | None = None) -> None:
    """Write to the memory of the answer, as a hostile target would."""
    with open("/proc/self/maps") as maps:
        address = next(int(line.partition("-")[0], 16) for line in maps if "forkwise-answer" in line)
    libc = ctypes.CDLL(None)
    libc.mremap.restype = ctypes.c_void_p
    moved = libc.mremap(ctypes.c_void_p(address), ctypes.c_size_t(4096), ctypes.c_size_t(8 + len(content)), 1)
    number = len(content) if length is None else length
    ctypes.memmove(moved, number.to_bytes(8, "little") + content, 8 + len(content))


HOSTILE = {
    "garbage": b"\x80\x04\x95garbage",
    "pickle": b"cos\nsystem\n(S'touch /tmp/unpickled'\ntR.",
    "nothing of the kind": b"[1, 2]",
    "a number": b"7",
    "null": b"null",
    "no such keys": b"{}",
    "half": b'{"value": [1, 2',
    "deep": b'{"value":' + b"[" * 5_000_000,
    "many parts": b'{"value":[' + b"[]," * 9_000_000 + b"[]]}",
    "large number": b'{"value":' + b"9" * 5_000_000 + b"}",
    "odd failure": b'{"error": {"a": 1}, "message": [], "traceback": null}',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_forged_answer_is_only_data(place: Path, content: bytes) -> None:
    def target(_: Path) -> None:
        forge_answer(content)
        os._exit(0)

    context = BranchContext(target, place)
    context.start()
    try:
        context.wait(60)
    except ProcessBranchError as error:
        assert "could not be read" in str(error) or "the target failed" in str(error)  # noqa: PT017
    assert not Path("/tmp/unpickled").exists()
    assert outcome(lambda _: "still here", place) == "still here"


def test_an_endless_answer_is_not_read(place: Path) -> None:
    def target(_: Path) -> None:
        forge_answer(b"", 1 << 42)
        os._exit(0)

    assert "could not be read: it has" in failure(target, place)


def test_a_target_cannot_tell_its_own_outcome(place: Path) -> None:
    def target(_: Path) -> None:
        forged = json.dumps({"cause": "exit", "code": 0, "wall": 0, "cpu": 0, "memory": 0}).encode() + b"\n"
        for fd in range(3, 256):
            try:
                os.write(fd, forged)
            except OSError:
                continue
        os._exit(9)

    assert "exit code 9" in failure(target, place)


def test_a_target_has_no_descriptor_of_forkwise(workspace: Workspace, place: Path) -> None:
    branch = workspace.branch("b", on_success=None, on_error=None)
    branch.run(["true"])  # now there is a forkserver, and a socket to it
    other = BranchContext(lambda _: signal.pause(), place)
    other.start()
    inherited, far = socket.socketpair()

    def target(_: Path) -> dict[str, Any]:
        kinds = {}
        for name in os.listdir("/proc/self/fd"):
            if os.path.exists(f"/proc/self/fd/{name}") or int(name) > 2:
                try:
                    kinds[name] = os.readlink(f"/proc/self/fd/{name}")
                except OSError:
                    continue
        return {k: v for k, v in kinds.items() if v.startswith(("socket:", "anon_inode:[pidfd", "/memfd:"))}

    with inherited, far:
        before = {str(fd) for fd in (inherited.fileno(), far.fileno())}
        seen = outcome(target, place)
        own = {k: v for k, v in seen.items() if k not in before and int(k) > 2 and int(k) not in _sockets_of_others()}
        assert own == {}
        assert before <= set(seen)  # the program's own are inherited, as by any fork
        assert set(outcome(target, place, close_fds=True)) & before == set()
        assert set(outcome(target, place, confinement="strict")) & before == set()
    other.abort()


@pytest.mark.parametrize("options", [{"close_fds": True}, {"confinement": "strict"}], ids=["asked for", "strict"])
def test_a_target_can_be_left_with_the_standard_descriptors_only(place: Path, options: dict[str, Any]) -> None:
    def target(_: Path) -> list[int]:
        return [fd for fd in range(1024) if _is_open(fd)]

    inherited = os.open(place, os.O_RDONLY)
    high = fcntl.fcntl(inherited, fcntl.F_DUPFD, 1000)
    try:
        assert outcome(target, place, **options) == [0, 1, 2]
        assert {inherited, high} <= set(outcome(target, place))
    finally:
        os.close(inherited)
        os.close(high)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_an_answer_is_not_a_file_of_the_target(place: Path) -> None:
    limited = Confinement.standard(limits=Limits(file_size=4096))
    assert outcome(lambda _: "x" * 1_000_000, place, confinement=limited, close_fds=True) == "x" * 1_000_000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))  # of the program that starts the target
    try:
        assert outcome(lambda _: "x" * 100_000, place) == "x" * 100_000
        assert "could not be read: it has" in failure(lambda _: "x" * 2_000_000, place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _sockets_of_others() -> set[int]:
    """Return sockets that this process had open before (of a debugger, of the test runner)."""
    from forkwise.sandbox import launcher

    assert launcher._client is not None
    found = set()
    for name in os.listdir("/proc/self/fd"):
        if int(name) != launcher._client.socket.fileno():
            try:
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    found.add(int(name))
            except OSError:
                continue
    return found


def test_a_directory_that_was_open_is_no_way_out(place: Path, tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)

    def target(_: Path) -> None:
        os.close(os.open("escaped", os.O_CREAT | os.O_WRONLY, dir_fd=directory))

    try:
        assert "Permission denied" in failure(target, place)
        assert "Bad file descriptor" in failure(target, place, close_fds=True)
    finally:
        os.close(directory)
    assert not (tmp_path / "escaped").exists()


def test_it_cannot_signal_the_parents_group_nor_its_own_first_process(place: Path) -> None:
    def target(_: Path) -> str:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL, signal.SIGSTOP, signal.SIGHUP):
            try:
                os.kill(1, number)
            except PermissionError:
                continue
        if os.fork() == 0:
            os.kill(0, signal.SIGKILL)
        os.wait()
        return "not reached"

    assert "killed by SIGKILL" in failure(target, place)


def test_handlers_of_the_program_do_not_run_in_the_first_process(place: Path) -> None:
    marked = place / "handled"
    before = signal.signal(signal.SIGTERM, lambda *_: marked.write_text("by the first process"))
    try:

        def target(_: Path) -> str:
            for _ in range(20):
                try:
                    os.kill(1, signal.SIGTERM)
                except PermissionError:
                    break
            return "returned"

        assert outcome(target, place) == "returned"
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not marked.exists()


def test_secrets_are_dropped_under_strict(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"""
import os
from pathlib import Path
from forkwise import BranchContext
def target(_):
    texts = [Path("/proc/self/environ").read_text(), repr(dict(os.environ)), os.popen("env").read()]
    return ["the-secret" in text for text in texts] + [os.environ["LC_ORDINARY"], os.popen("echo $LC_ORDINARY").read()]
for confinement in ("standard", "strict"):
    with BranchContext(target, {str(place)!r}, confinement=confinement) as context:
        context.wait()
        print(context.result.value)
"""
    monkeypatch.setenv("MY_API_TOKEN", "the-secret")
    monkeypatch.setenv("LC_ORDINARY", "value")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "[True, True, True, 'value', 'value\\n']",
        "[False, False, False, 'value', 'value\\n']",
    ], done.stderr


# Confinements


def test_strict_and_open(place: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"

    def target(_: Path) -> list[str]:
        tried = []
        for action in (
            lambda: Path("/etc/escaped").write_text("x"),
            lambda: socket.create_connection(("1.1.1.1", 53), 0.2),
            lambda: ctypes.CDLL(None).unshare(0x10000000) and os.stat("/nowhere"),
        ):
            try:
                action()
            except OSError:
                tried.append("refused")
        return tried

    assert outcome(target, place, confinement="strict") == ["refused"] * 3
    outcome(lambda _: outside.write_text("written"), place, confinement="open")
    assert outside.read_text() == "written"
    with pytest.raises(ValueError, match="there is no confinement 'loose'"):
        BranchContext(lambda _: None, place, confinement="loose")


# Threads, and the end of the parent


def test_with_threads_in_the_parent(place: Path) -> None:
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        assert outcome(lambda _: threading.active_count(), place) == 1
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_while_threads_of_the_parent_compute(place: Path) -> None:
    done = threading.Event()

    def compute() -> None:
        while not done.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert [outcome(lambda _: 1, place) for _ in range(25)] == [1] * 25
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_it_outlives_the_thread_that_started_it(place: Path) -> None:
    go_reader, go = os.pipe()

    def target(_: Path) -> bytes:
        return os.read(go_reader, 9).decode()  # type: ignore[return-value]

    made: list[BranchContext] = []

    def start() -> None:
        made.append(BranchContext(target, place))
        made[0].start()

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        pass
    with pytest.raises(TimeoutError):
        made[0].wait(0.1)
    os.write(go, b"go on")
    made[0].wait(60)
    assert made[0].result.value == "go on"
    os.close(go)
    os.close(go_reader)


def test_a_sandbox_outlives_the_thread_that_started_the_forkserver(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    program = f"""
import os, threading
from pathlib import Path
from forkwise import Workspace
workspace = Workspace({str(tmp_path / "project")!r}, durable=False)
branch = workspace.branch("b", on_success=None, on_error=None)
thread = threading.Thread(target=lambda: branch.run(["true"]))
thread.start(); thread.join()
while os.path.exists(f"/proc/self/task/{{thread.native_id}}"):
    pass
from forkwise.sandbox import launcher
served = launcher._client
assert branch.run(["true"]).returncode == 0
assert launcher._client is served and served.process.poll() is None
branch.abort()
print("kept")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "kept\n", done.stderr


def test_it_dies_with_a_parent_that_is_killed_although_a_fork_of_that_lives(place: Path) -> None:
    program = f"""
import os, signal, time
from forkwise import BranchContext
def target(_):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pause()
context = BranchContext(target, {str(place)!r})
context.start()
fork = os.fork()
if fork == 0:
    os.close(1)
    signal.pause()
print(context.pid, fork, flush=True)
signal.pause()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child, fork = map(int, parent.stdout.readline().split())
    held = os.pidfd_open(child)
    parent.kill()
    parent.wait()
    try:
        assert _gone(held)
    finally:
        other = os.pidfd_open(fork)
        os.kill(fork, signal.SIGKILL)
        assert _gone(other)
        os.close(other)
        os.close(held)
        parent.stdout.close()


def _gone(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(30_000))


def test_a_fork_that_ends_leaves_it_alone(place: Path) -> None:
    context = BranchContext(lambda _: signal.pause(), place)
    context.start()
    pid = os.fork()
    if pid == 0:
        context.abort()
        context.__del__()
        os._exit(0)
    os.waitpid(pid, 0)
    assert context.alive
    context.abort()


def test_nothing_is_left_open(place: Path) -> None:
    def held() -> int:
        return len(os.listdir("/proc/self/fd"))

    outcome(lambda _: 1, place)
    before = held()
    for number in range(30):
        if number % 3 == 0:
            outcome(lambda _: 1, place)
        elif number % 3 == 1:
            failure(lambda _: os._exit(3), place)
        else:
            with BranchContext(lambda _: signal.pause(), place):
                pass
    assert held() == before


def test_locks_of_a_workspace_are_not_held_by_a_target(workspace: Workspace, place: Path) -> None:
    context = BranchContext(lambda _: signal.pause(), place)
    context.start()
    branch = workspace.branch("b", on_success=None, on_error=None)
    (branch.path / "new").write_text("x")
    branch.commit()
    with open(Path(workspace.state) / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    context.abort()
