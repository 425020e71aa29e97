"""Control groups: real processes that reach their limits, and groups that are always removed.

Those of version 2 with all their controllers are shown as plain directories, since few machines have both versions.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forkwise.errors import NamespaceError
from forkwise.linux import cgroup
from forkwise.linux.cgroup import Cgroup, own_groups, sweep, version_of
from forkwise.linux.process_id import ProcessId
from forkwise.sandbox.limits import Enforcement, Limits, choose_enforcement
from tests.need import need
from tests.sandbox.child import burn, do, error_of, fork_until_refused, in_user_namespace, need_user_namespaces

MB = 1 << 20
ALL = Limits(wall=60, cpu=2, memory=256 * MB, processes=10, file_size=MB, disk=MB)


@pytest.fixture(autouse=True)
def no_group_left() -> Iterator[None]:
    """Check after each test that no group of this process is left."""
    yield
    assert groups_of(os.getpid()) == []


def groups_of(pid: int) -> list[str]:
    """Return the groups that a process with this PID created."""
    found = (f"{base}/{name}" for base in own_groups().values() for name in os.listdir(base))
    return [path for path in found if (owner := cgroup._owner(os.path.basename(path))) and owner.pid == pid]


def need_groups() -> None:
    """Skip the test if this user cannot create groups."""
    for controller in ("memory", "pids", "cpuacct"):
        need(version_of(controller) is not None, cgroup.why_not(controller))


def create(limits: Limits, enforcement: Enforcement | None = None) -> Cgroup:
    chosen = choose_enforcement(limits) if enforcement is None else enforcement
    return Cgroup.make(chosen, memory=limits.memory, processes=limits.processes)


def make(limits: Limits) -> Cgroup:
    """Create a group for limits that control groups must enforce."""
    need_groups()
    return create(limits)


def test_all_directories_of_a_sandbox_have_one_name() -> None:
    with make(ALL) as group:
        assert len({os.path.basename(path) for path in group.paths}) == 1


def test_controllers_of_both_versions_go_together() -> None:
    need(version_of("memory") == 1, "the memory controller is not one of version 1")
    need("" in own_groups() and cgroup._is_ours(own_groups()[""]), "no group of version 2 is ours")
    with create(Limits(memory=64 * MB, cpu=1), {"memory": "cgroup v1", "cpu": "cgroup v2"}) as group:
        do(lambda: group.add(os.getpid()))
        assert group.peak_memory() is not None
        assert group.cpu_seconds() is not None


def test_a_group_without_purpose_is_no_directory() -> None:
    with create(Limits(wall=1)) as group:
        assert group.paths == ()
        assert (group.peak_memory(), group.cpu_seconds(), group.oom_kills()) == (None, None, 0)
        group.kill()


def test_a_memory_hog_is_killed_and_the_kill_is_counted() -> None:
    limit = 64 * MB
    with make(Limits(memory=limit)) as group:

        def hog() -> int:
            group.add(os.getpid())
            return len(bytearray(os.urandom(1)) * (4 * limit))

        assert do(hog).code == -signal.SIGKILL
        assert group.oom_kills() == 1
        assert limit // 2 < (group.peak_memory() or 0) <= limit


def test_memory_is_limited_for_all_processes_together() -> None:
    limit = 64 * MB
    with make(Limits(memory=limit)) as group:

        def hogs() -> list[int]:
            codes = []
            group.add(os.getpid())
            held, holder = os.pipe()
            children = []
            for _ in range(4):  # each holds less than the limit
                if (child := os.fork()) == 0:
                    os.close(holder)
                    block = bytearray(b"x") * (limit // 3)
                    os.read(held, 1)
                    os._exit(len(block) == 0)
                children.append(child)
            codes.append(os.waitstatus_to_exitcode(os.wait()[1]))  # returns only after a kill: the others wait
            os.close(holder)
            codes += [os.waitstatus_to_exitcode(os.wait()[1]) for _ in children[1:]]
            return codes

        outcome = do(hogs)
        assert outcome.code == -signal.SIGKILL or -signal.SIGKILL in outcome.answer
        assert group.oom_kills() >= 1


def test_processes_are_counted() -> None:
    with make(Limits(processes=10)) as group:

        def bomb() -> tuple[int, str]:
            group.add(os.getpid())
            return fork_until_refused()

        assert do(bomb).answer == [9, "EAGAIN"]


def test_cpu_time_of_all_processes_is_counted() -> None:
    with make(Limits(cpu=1)) as group:

        def burner() -> None:
            group.add(os.getpid())
            for _ in range(2):
                if os.fork() == 0:
                    burn(0.15)
                    os._exit(0)
                os.wait()

        assert do(burner).code == 0
        assert 0.25 < (group.cpu_seconds() or 0) < 60


def test_cpu_time_is_counted_by_version_2_as_well() -> None:
    need("" in own_groups() and cgroup._is_ours(own_groups()[""]), "no group of version 2 is ours")
    enforcement: Enforcement = {"cpu": "cgroup v2"}
    with create(Limits(cpu=1), enforcement) as group:

        def burner() -> None:
            group.add(os.getpid())
            burn(time.process_time() + 0.2)

        assert do(burner).code == 0
        assert 0.15 < (group.cpu_seconds() or 0) < 60


def hide() -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pause()


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def multiply() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        error_of(os.fork)  # in parent and child alike


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("survivor", [hide, stop, multiply])
def test_nothing_survives_the_removal(version: int, survivor: Callable[[], None]) -> None:
    need_groups()
    chosen = choose_enforcement(Limits(processes=30, cpu=10))
    if version == 2:
        need("" in own_groups() and cgroup._is_ours(own_groups()[""]), "no group of version 2 is ours")
        chosen = {"cpu": "cgroup v2", "processes": chosen["processes"]}
    lifeline, held = os.pipe()
    with create(Limits(processes=30, cpu=10), chosen) as group:

        def attempt() -> None:
            group.add(os.getpid())
            for _ in range(3):
                try:
                    pid = os.fork()
                except BlockingIOError:  # the first ones have multiplied up to the limit
                    break
                if pid == 0:
                    survivor()
                    os._exit(0)

        start_and_leave(attempt)
        os.close(held)
        paths = group.paths
        assert paths
    assert os.read(lifeline, 1) == b""  # no process has the other end open
    os.close(lifeline)
    assert [path for path in paths if os.path.exists(path)] == []
    group.remove()  # again, with nothing to do


def start_and_leave(work: Callable[[], None]) -> int:
    """Run a function in a child whose own children outlive it; return the PID of the child."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return child


def test_groups_made_inside_go_too() -> None:
    group = make(Limits(memory=64 * MB))
    for path in group.paths:
        os.makedirs(f"{path}/inner/most")
    group.remove()
    assert group.paths == ()


def test_a_process_can_enter_from_its_own_user_namespace() -> None:
    need_user_namespaces()
    with make(Limits(processes=5)) as group:

        def attempt() -> tuple[int, str]:
            in_user_namespace()
            for path in group.paths:
                Path(path, "cgroup.procs").write_text("0")
            return fork_until_refused()

        assert do(attempt).answer == [4, "EAGAIN"]


def test_groups_of_the_dead_are_swept_and_no_others() -> None:
    need_groups()
    lifeline, held = os.pipe()

    def forget() -> None:
        group = create(ALL)
        if os.fork() == 0:
            group.add(os.getpid())
            os.kill(os.getppid(), signal.SIGCONT)
            signal.pause()
        signal.sigwait({signal.SIGCONT})

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    try:
        with make(ALL) as mine:
            dead = start_and_leave(forget)
            os.close(held)
            assert len(groups_of(dead)) == len(mine.paths)
            sweep()
            assert groups_of(dead) == []
            assert all(os.path.isdir(path) for path in mine.paths)
            assert os.read(lifeline, 1) == b""
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCONT})
        os.close(lifeline)


def test_a_group_that_cannot_be_made_is_an_error_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    need_groups()
    made = []

    def refuse(path: str, text: str) -> None:
        made.append(os.path.dirname(path))
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(cgroup, "_write", refuse)
    with pytest.raises(NamespaceError, match=r"Permission denied; .*Delegate=yes"):
        create(ALL)
    assert made
    assert not os.path.exists(made[0])


# Version 2, with an imitated tree, because the machine may have none with these controllers


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Imitate the group of a delegated scope, as the process in it sees it."""
    for name, text in (
        ("cgroup.controllers", "cpu memory pids\n"),
        ("cgroup.subtree_control", ""),
        ("cgroup.procs", f"{os.getppid()}\n{os.getpid()}\n"),
        ("cgroup.type", "domain\n"),
    ):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cgroup, "own_groups", lambda: {"": str(tmp_path)})
    return tmp_path


def test_a_delegated_tree_is_used(tree: Path) -> None:
    assert set(choose_enforcement(Limits(memory=MB, processes=5, cpu=1)).values()) == {"cgroup v2"}


def test_a_tree_with_unrelated_processes_is_not_used(tree: Path) -> None:
    (tree / "cgroup.procs").write_text("0\n")  # one of another PID namespace
    assert version_of("memory") is None


def test_controllers_are_passed_on_after_the_processes_moved_down(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, str]] = []

    def write(path: str, text: str) -> None:
        written.append((str(Path(path).relative_to(tree)), text))
        if written == [("cgroup.subtree_control", "+memory +pids")]:
            raise OSError(16, "Device or resource busy", path)

    monkeypatch.setattr(cgroup, "_write", write)
    limits = Limits(memory=64 * MB, processes=7)
    with create(limits) as group:
        (path,) = group.paths
        name = os.path.basename(path)
        assert cgroup._owner(name) == ProcessId.current()
        assert written == [
            ("cgroup.subtree_control", "+memory +pids"),
            ("forkwise-supervisor/cgroup.procs", str(os.getppid())),
            ("forkwise-supervisor/cgroup.procs", str(os.getpid())),
            ("cgroup.subtree_control", "+memory +pids"),
            (f"{name}/memory.max", str(64 * MB)),
            (f"{name}/memory.swap.max", "0"),
            (f"{name}/pids.max", "7"),
        ]


def test_version_2_reports_usage(tmp_path: Path) -> None:
    (tmp_path / "memory.peak").write_text("4096\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n")
    group = Cgroup({"": str(tmp_path)})
    assert (group.peak_memory(), group.oom_kills(), group.cpu_seconds()) == (4096, 1, 1.5)
