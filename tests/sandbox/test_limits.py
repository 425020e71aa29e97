"""Limits: what is chosen to enforce them, and real processes that run into each.

Control groups are tried for real where this user may use them, rlimits as a user without privileges.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forkwise.errors import NamespaceError
from forkwise.files.owner import Owner
from forkwise.sandbox import cgroup
from forkwise.sandbox.cgroup import Cgroup, own_groups, sweep, version_of
from forkwise.sandbox.limits import Enforcement, Limits, apply_rlimits, choose
from tests.need import need
from tests.sandbox.child import as_nobody, do, error_of, in_user_namespace, need_user_namespaces

MB = 1 << 20
ALL = Limits(wall=60, cpu=2, memory=256 * MB, processes=10, file_size=MB, disk=MB)


@pytest.fixture(autouse=True)
def no_group_left() -> Iterator[None]:
    """After each test there is no group of this process or of one that died."""
    yield
    left = [f"{base}/{name}" for base in own_groups().values() for name in os.listdir(base)]
    owners = {path: cgroup._owner(os.path.basename(path)) for path in left}
    assert [path for path, owner in owners.items() if owner and (owner == Owner.me() or not owner.alive)] == []


def need_groups() -> None:
    """Skip where this user may make no groups."""
    for controller in ("memory", "pids", "cpuacct"):
        need(version_of(controller) is not None, cgroup.why_not(controller))


def make(limits: Limits) -> Cgroup:
    """A group for limits that control groups must enforce."""
    need_groups()
    return Cgroup.make(limits, choose(limits))


# The value and the choice


def test_limits_are_above_zero() -> None:
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="cpu"):
            Limits(cpu=wrong)
    assert Limits().asked() == []
    assert choose(Limits()) == {}


def test_each_limit_says_what_enforces_it() -> None:
    need_groups()
    chosen = choose(ALL)
    assert (chosen["wall"], chosen["disk"], chosen["file_size"]) == ("supervisor", "supervisor", "rlimit")
    for name, controller in (("memory", "memory"), ("processes", "pids"), ("cpu", "cpuacct")):
        assert chosen[name] == f"cgroup v{version_of(controller)}"  # type: ignore[arg-type]


@pytest.fixture
def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no control groups are mounted."""
    monkeypatch.setattr(cgroup, "own_groups", dict)


@pytest.mark.usefixtures("no_groups")
def test_without_groups_rlimits_enforce_what_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    chosen = choose(ALL)
    assert {chosen[name] for name in ("memory", "processes", "cpu", "file_size")} == {"rlimit"}


@pytest.mark.usefixtures("no_groups")
@pytest.mark.parametrize(
    ("uid", "release", "user_namespace", "reason"),
    [
        (0, "6.1.0", True, "never holds RLIMIT_NPROC against root"),
        (1000, "6.1.0", False, "without a user namespace"),
        (1000, "5.13.0-generic", True, r"before Linux 5\.14"),
    ],
)
def test_a_limit_that_nothing_enforces_is_an_error_unless_best_effort(
    monkeypatch: pytest.MonkeyPatch, uid: int, release: str, user_namespace: bool, reason: str
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "host", release, "", "x86_64")))
    with pytest.raises(NamespaceError, match=f"processes=10 .*{reason}"):
        choose(Limits(processes=10), user_namespace=user_namespace)
    assert choose(Limits(processes=10, best_effort=True), user_namespace=user_namespace) == {"processes": None}


# Control groups


def test_a_group_without_purpose_is_no_directory() -> None:
    with Cgroup.make(Limits(wall=1), choose(Limits(wall=1))) as group:
        assert group.paths == ()
        assert (group.peak_memory(), group.cpu_seconds(), group.oom_kills()) == (None, None, 0)
        group.kill()


def test_a_memory_hog_is_killed_and_it_is_told() -> None:
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
            codes.append(os.waitstatus_to_exitcode(os.wait()[1]))  # comes only of a kill: the others wait
            os.close(holder)
            codes += [os.waitstatus_to_exitcode(os.wait()[1]) for _ in children[1:]]
            return codes

        outcome = do(hogs)
        assert outcome.code == -signal.SIGKILL or -signal.SIGKILL in outcome.answer
        assert group.oom_kills() >= 1


def fork_until_refused() -> tuple[int, str]:
    """How many children can be had at once, at most 50, and the error that ended it."""
    held, holder = os.pipe()
    children: list[int] = []

    def fork() -> None:
        if (child := os.fork()) == 0:
            os.close(holder)
            os.read(held, 1)
            os._exit(0)
        children.append(child)

    said = ""
    while not said and len(children) < 50:
        said = error_of(fork)
    os.close(holder)
    for child in children:
        os.waitpid(child, 0)
    return len(children), said


def test_processes_are_counted() -> None:
    with make(Limits(processes=10)) as group:

        def bomb() -> tuple[int, str]:
            group.add(os.getpid())
            return fork_until_refused()

        assert do(bomb).answer == [9, "EAGAIN"]
        assert group.forks_refused() == 1


def burn(seconds: float) -> None:
    """Use CPU time."""
    while time.process_time() < seconds:
        pass


def test_cpu_time_of_all_processes_is_seen() -> None:
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


def test_cpu_time_is_seen_by_version_2_as_well() -> None:
    need("" in own_groups() and cgroup._is_ours(own_groups()[""]), "no group of version 2 is ours")
    enforcement: Enforcement = {"cpu": "cgroup v2"}
    with Cgroup.make(Limits(cpu=1), enforcement) as group:

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
    chosen = choose(Limits(processes=30, cpu=10))
    if version == 2:
        need("" in own_groups() and cgroup._is_ours(own_groups()[""]), "no group of version 2 is ours")
        chosen = {"cpu": "cgroup v2", "processes": chosen["processes"]}
    lifeline, held = os.pipe()
    with Cgroup.make(Limits(processes=30, cpu=10), chosen) as group:

        def attempt() -> None:
            group.add(os.getpid())
            for _ in range(3):
                if os.fork() == 0:
                    survivor()
                    os._exit(0)

        assert do_without_waiting_for_output(attempt) == 0
        os.close(held)
        paths = group.paths
        assert paths
    assert os.read(lifeline, 1) == b""  # nobody holds the other end
    os.close(lifeline)
    assert [path for path in paths if os.path.exists(path)] == []
    group.remove()  # again, with nothing to do


def do_without_waiting_for_output(work: Callable[[], None]) -> int:
    """Run something in a child whose own children outlive it; its exit code."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


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
        group = Cgroup.make(ALL, choose(ALL))
        if os.fork() == 0:
            group.add(os.getpid())
            os.kill(os.getppid(), signal.SIGCONT)
            signal.pause()
        signal.sigwait({signal.SIGCONT})

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    try:
        with make(ALL) as mine:
            assert do_without_waiting_for_output(forget) == 0
            os.close(held)
            swept = sweep()
            assert len(swept) == len(mine.paths)
            assert [path for path in swept if os.path.exists(path)] == []
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
        Cgroup.make(ALL, choose(ALL))
    assert made
    assert not os.path.exists(made[0])


# Version 2, where a tree can be shown but none with these controllers may be at hand


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the group of a delegated scope looks like to the process in it."""
    for name, text in (
        ("cgroup.controllers", "cpu memory pids\n"),
        ("cgroup.subtree_control", ""),
        ("cgroup.procs", f"{os.getppid()}\n{os.getpid()}\n"),
        ("cgroup.type", "domain\n"),
    ):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cgroup, "own_groups", lambda: {"": str(tmp_path)})
    return tmp_path


def test_a_tree_that_was_given_to_us_is_used(tree: Path) -> None:
    assert set(choose(Limits(memory=MB, processes=5, cpu=1)).values()) == {"cgroup v2"}


def test_a_tree_with_somebody_else_in_it_is_not(tree: Path) -> None:
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
    with Cgroup.make(limits, choose(limits)) as group:
        (path,) = group.paths
        name = os.path.basename(path)
        assert cgroup._owner(name) == Owner.me()
        assert written == [
            ("cgroup.subtree_control", "+memory +pids"),
            ("forkwise-supervisor/cgroup.procs", str(os.getppid())),
            ("forkwise-supervisor/cgroup.procs", str(os.getpid())),
            ("cgroup.subtree_control", "+memory +pids"),
            (f"{name}/memory.max", str(64 * MB)),
            (f"{name}/memory.swap.max", "0"),
            (f"{name}/pids.max", "7"),
        ]


def test_version_2_tells_what_was_used(tmp_path: Path) -> None:
    (tmp_path / "memory.peak").write_text("4096\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n")
    (tmp_path / "pids.events").write_text("max 3\n")
    group = Cgroup({"": str(tmp_path)})
    assert (group.peak_memory(), group.oom_kills(), group.cpu_seconds(), group.forks_refused()) == (4096, 1, 1.5, 3)


# rlimits, as a user without privileges


def unprivileged(limits: Limits, work: Callable[[], object]) -> Callable[[], object]:
    """Something to be done by a user that nothing but rlimits can hold, in a user namespace of its own."""
    need_user_namespaces()

    def attempt() -> object:
        as_nobody()
        chosen = choose(limits)
        assert set(chosen.values()) == {"rlimit"}, chosen
        in_user_namespace()
        apply_rlimits(limits, chosen)
        return work()

    return attempt


@pytest.fixture
def others() -> Iterator[None]:
    """Twenty processes of the same user that have nothing to do with the sandbox."""
    ready, tell = os.pipe()
    held, holder = os.pipe()
    children = []
    for _ in range(20):
        if (child := os.fork()) == 0:
            os.close(holder)
            as_nobody()
            os.write(tell, b".")
            os.read(held, 1)
            os._exit(0)
        children.append(child)
    for _ in children:
        os.read(ready, 1)
    yield
    os.close(holder)
    for child in children:
        os.waitpid(child, 0)
    for fd in (ready, tell, held):
        os.close(fd)


@pytest.mark.usefixtures("others")
def test_only_the_namespaces_own_processes_are_counted() -> None:
    assert do(unprivileged(Limits(processes=10), fork_until_refused)).answer == [9, "EAGAIN"]


@pytest.mark.usefixtures("others")
def test_a_nested_namespace_is_no_way_around_the_count() -> None:
    def attempt() -> list[object]:
        in_user_namespace()
        raised = error_of_limit(lambda: resource.setrlimit(resource.RLIMIT_NPROC, (50, 50)))
        return [raised, *fork_until_refused()]

    assert do(unprivileged(Limits(processes=10), attempt)).answer == ["refused", 9, "EAGAIN"]


def error_of_limit(action: Callable[[], object]) -> str:
    """setrlimit tells a refusal by ValueError."""
    try:
        action()
    except ValueError:
        return "refused"
    return ""


def test_processes_of_the_sandbox_itself_are_not_held_against_the_limit() -> None:
    need_user_namespaces()

    def attempt() -> tuple[int, str]:
        as_nobody()
        in_user_namespace()
        apply_rlimits(Limits(processes=5), {"processes": "rlimit"}, besides=1)
        return fork_until_refused()

    assert do(attempt).answer == [5, "EAGAIN"]


def test_without_a_namespace_the_limit_is_refused_to_a_user_without_groups() -> None:
    need(os.getuid() == 0, "only root can become another user")

    def attempt() -> str:
        as_nobody()
        with pytest.raises(NamespaceError) as caught:
            choose(Limits(processes=10), user_namespace=False)
        return str(caught.value)

    assert "processes=10" in do(attempt).answer


def test_address_space_is_limited() -> None:
    def attempt() -> str:
        try:
            return str(len(bytearray(512 * MB)))
        except MemoryError:
            return "MemoryError"

    assert do(unprivileged(Limits(memory=256 * MB), attempt)).answer == "MemoryError"


def test_file_size_is_limited(tmp_path: Path) -> None:
    target = tmp_path / "big"
    fd = os.open(target, os.O_CREAT | os.O_WRONLY)

    def attempt() -> list[str]:
        return [error_of(lambda: os.write(fd, bytes(MB))), error_of(lambda: os.write(fd, b"x"))]

    assert do(unprivileged(Limits(file_size=MB), attempt)).answer == ["", "EFBIG"]
    os.close(fd)
    assert target.stat().st_size == MB


def test_cpu_time_of_one_process_is_limited() -> None:
    def attempt() -> None:
        assert resource.getrlimit(resource.RLIMIT_CPU) == (1, 2)
        burn(30)

    assert do(unprivileged(Limits(cpu=0.5), attempt)).code == -signal.SIGXCPU


def test_a_lower_limit_that_is_already_there_stays() -> None:
    def attempt() -> tuple[int, int]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MB, MB))
        apply_rlimits(Limits(file_size=2 * MB), {"file_size": "rlimit"})
        return resource.getrlimit(resource.RLIMIT_FSIZE)

    assert do(attempt).answer == [MB, MB]
