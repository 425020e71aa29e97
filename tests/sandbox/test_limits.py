"""Limits: the choice of what enforces each, and rlimits on real processes of an unprivileged user."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from forkwise.errors import NamespaceError
from forkwise.linux import cgroup
from forkwise.linux.cgroup import Controller, version_of
from forkwise.sandbox.jail import apply_rlimits
from forkwise.sandbox.limits import Limits, choose_enforcement
from tests.need import need
from tests.sandbox.child import (
    as_nobody,
    burn,
    do,
    error_of,
    fork_until_refused,
    in_user_namespace,
    need_user_namespaces,
)

MB = 1 << 20
CONTROLLERS: dict[str, Controller] = {"memory": "memory", "processes": "pids", "cpu": "cpuacct"}
ALL = Limits(wall=60, cpu=2, memory=256 * MB, processes=10, file_size=MB, disk=MB)


def test_limits_are_above_zero() -> None:
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="cpu"):
            Limits(cpu=wrong)
    assert Limits().asked() == []
    assert choose_enforcement(Limits()) == {}


def test_each_limit_says_what_enforces_it() -> None:
    for controller in CONTROLLERS.values():
        need(version_of(controller) is not None, cgroup.why_not(controller))
    chosen = choose_enforcement(ALL)
    assert (chosen["wall"], chosen["disk"], chosen["file_size"]) == ("supervisor", "supervisor", "rlimit")
    for name, controller in CONTROLLERS.items():
        assert chosen[name] == f"cgroup v{version_of(controller)}"


@pytest.fixture
def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as if no control groups were mounted."""
    monkeypatch.setattr(cgroup, "own_groups", dict)


@pytest.mark.usefixtures("no_groups")
def test_without_groups_rlimits_enforce_what_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    chosen = choose_enforcement(ALL)
    assert {chosen[name] for name in ("memory", "processes", "cpu", "file_size")} == {"rlimit"}


@pytest.mark.usefixtures("no_groups")
@pytest.mark.parametrize(
    ("uid", "release", "user_namespace", "reason"),
    [
        (0, "6.1.0", True, "does not apply RLIMIT_NPROC to root"),
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
        choose_enforcement(Limits(processes=10), user_namespace=user_namespace)
    assert choose_enforcement(Limits(processes=10, best_effort=True), user_namespace=user_namespace) == {
        "processes": None
    }


# rlimits, as a user without privileges


def unprivileged(limits: Limits, work: Callable[[], object]) -> Callable[[], object]:
    """Run a function as a user that only rlimits can limit, in a user namespace of its own."""
    need_user_namespaces()

    def attempt() -> object:
        as_nobody()
        chosen = choose_enforcement(limits)
        assert set(chosen.values()) == {"rlimit"}, chosen
        in_user_namespace()
        apply_rlimits(asdict(limits), chosen)
        return work()

    return attempt


@pytest.fixture
def others() -> Iterator[None]:
    """Start twenty processes of the same user outside the sandbox."""
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
    """Return the error of setrlimit, which reports a refusal as ValueError."""
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
        apply_rlimits({"processes": 5}, {"processes": "rlimit"}, own_processes=1)
        return fork_until_refused()

    assert do(attempt).answer == [5, "EAGAIN"]


def test_without_a_namespace_the_limit_is_refused_to_a_user_without_groups() -> None:
    need(os.getuid() == 0, "only root can become another user")

    def attempt() -> str:
        as_nobody()
        with pytest.raises(NamespaceError) as caught:
            choose_enforcement(Limits(processes=10), user_namespace=False)
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
        apply_rlimits({"file_size": 2 * MB}, {"file_size": "rlimit"})
        return resource.getrlimit(resource.RLIMIT_FSIZE)

    assert do(attempt).answer == [MB, MB]
