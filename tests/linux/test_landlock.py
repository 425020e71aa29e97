"""Landlock: what a real process can still change, reach and signal after it restricted itself."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forkwise.errors import NamespaceError
from forkwise.linux import landlock
from forkwise.linux.landlock import abi, gaps, restrict, usual_devices
from tests.need import need
from tests.sandbox.child import do, error_of, libc

NEEDED = {"truncate": 3, "tcp": 4, "ioctl": 5, "scope": 6}


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """Create a writable directory with a file in it."""
    directory = tmp_path / "inside"
    (directory / "deep").mkdir(parents=True)
    (directory / "file").write_text("in")
    return directory


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Create a directory that is not writable."""
    directory = tmp_path / "outside"
    (directory / "deep").mkdir(parents=True)
    (directory / "file").write_text("out")
    return directory


@pytest.fixture(autouse=True)
def needs_landlock() -> None:
    """Skip all tests if the kernel has no Landlock."""
    need(abi() >= 1, "this kernel has no Landlock")


def need_abi(what: str) -> None:
    """Skip the test if the kernel's version cannot forbid something."""
    need(abi() >= NEEDED[what], f"Landlock ABI {abi()} cannot forbid {what}")


def attempts(place: Path) -> dict[str, Callable[[], object]]:
    """Return functions that change something in a directory, by name."""
    file = place / "file"
    return {
        "write": lambda: file.write_text("changed"),
        "append": lambda: os.close(os.open(file, os.O_WRONLY | os.O_APPEND)),
        "create": (place / "new").touch,
        "mkdir": (place / "newdir").mkdir,
        "symlink": lambda: (place / "newlink").symlink_to("file"),
        "fifo": lambda: os.mkfifo(place / "newfifo"),
        "socket": lambda: socket.socket(socket.AF_UNIX).bind(str(place / "newsocket")),
        "link": lambda: os.link(file, place / "hard"),
        "link deeper": lambda: os.link(file, place / "deep" / "hard"),
        "rename": lambda: os.rename(place / "file", place / "renamed"),
        "rename deeper": lambda: os.rename(place / "renamed", place / "deep" / "renamed"),
        "rename back": lambda: os.rename(place / "deep" / "renamed", place / "file"),
        "truncate": lambda: os.truncate(file, 1),
        "unlink": file.unlink,
        "unlink deeper": (place / "deep" / "hard").unlink,
        "rmdir": (place / "deep").rmdir,
    }


def test_everything_can_be_changed_inside_and_nothing_outside(inside: Path, outside: Path) -> None:
    def attempt() -> list[dict[str, str]]:
        restrict(writable=[str(inside)])
        return [{name: error_of(act) for name, act in attempts(place).items()} for place in (inside, outside)]

    before = sorted(path.name for path in outside.rglob("*"))
    allowed, refused = do(attempt).answer
    if abi() >= 2:  # before, nothing moved from directory to directory
        assert set(allowed.values()) == {""}
    missing = {"rename deeper", "rename back", "unlink deeper"}  # an earlier attempt would have created them
    assert {name for name, answer in refused.items() if answer == ""} <= ({"truncate"} if abi() < 3 else set())
    assert {refused[name] for name in refused.keys() - missing} <= {"EACCES", "EXDEV", ""}
    assert sorted(path.name for path in outside.rglob("*")) == before
    assert (outside / "file").read_text() == "out" or abi() < 3


def test_nothing_crosses_the_border(inside: Path, outside: Path) -> None:
    crossings = {
        "rename out": lambda: os.rename(inside / "file", outside / "moved"),
        "rename in": lambda: os.rename(outside / "file", inside / "moved"),
        "rename over": lambda: os.rename(inside / "file", outside / "file"),
        "link out": lambda: os.link(inside / "file", outside / "linked"),
        "link in": lambda: os.link(outside / "file", inside / "linked"),
        "through a symlink": (inside / "away" / "new").touch,
        "by dots": (inside / ".." / "outside" / "new").touch,
        "by /proc": lambda: Path(f"/proc/self/root{outside}/new").touch(),
        "by a descriptor": lambda: os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=os.open(outside, os.O_RDONLY)),
    }
    (inside / "away").symlink_to(outside)

    def attempt() -> dict[str, str]:
        restrict(writable=[str(inside)])
        return {name: error_of(act) for name, act in crossings.items()}

    assert set(do(attempt).answer.values()) <= {"EACCES", "EXDEV"}
    assert sorted(path.name for path in outside.iterdir()) == ["deep", "file"]
    assert (outside / "file").read_text() == "out"


def test_all_is_read_and_executed_unless_readable_is_given(inside: Path, outside: Path) -> None:
    programs = [
        path for path in ("/usr", "/bin", "/lib", "/lib64", sys.prefix, sys.base_prefix) if os.path.exists(path)
    ]

    def attempt(readable: list[str] | None) -> list[str]:
        restrict(writable=[str(inside), *usual_devices()], readable=readable)
        return [
            error_of((outside / "file").read_text),
            error_of(lambda: os.listdir(outside)),
            error_of((inside / "file").read_text),
            error_of(lambda: (inside / "file").write_text("changed")),
            error_of(lambda: subprocess.run(["/bin/true"], check=True)),
        ]

    assert do(lambda: attempt(None)).answer == [""] * 5
    assert do(lambda: attempt(programs)).answer == ["EACCES", "EACCES", "", "", ""]
    assert do(lambda: attempt([])).answer == ["EACCES", "EACCES", "", "", "EACCES"]


def test_a_readable_path_is_not_writable(inside: Path, outside: Path) -> None:
    def attempt() -> list[str]:
        restrict(writable=[str(inside)], readable=[str(outside)])
        return [error_of((outside / "file").read_text), error_of((outside / "new").touch)]

    assert do(attempt).answer == ["", "EACCES"]


def test_single_files_and_devices_can_be_writable(inside: Path, outside: Path) -> None:
    def attempt() -> list[str]:
        restrict(writable=[str(outside / "file"), *usual_devices()])
        with open("/dev/null", "w") as null:
            null.write("gone")
        return [error_of(lambda: (outside / "file").write_text("x")), error_of((outside / "new").touch)]

    assert do(attempt).answer == ["", "EACCES"]
    assert (outside / "file").read_text() == "x"


def test_truncating_is_writing(inside: Path, outside: Path) -> None:
    need_abi("truncate")

    def attempt() -> list[str]:
        restrict(writable=[str(inside)])
        return [
            error_of(lambda: os.truncate(outside / "file", 0)),
            error_of(lambda: os.open(outside / "file", os.O_RDONLY | os.O_TRUNC)),
        ]

    assert do(attempt).answer == ["EACCES", "EACCES"]
    assert (outside / "file").read_text() == "out"


def test_devices_take_ioctls_only_where_they_are_writable(inside: Path) -> None:
    need_abi("ioctl")
    need(os.path.exists("/dev/ptmx"), "there is no /dev/ptmx")

    def attempt(writable: list[str]) -> str:
        restrict(writable=writable)
        terminal = os.open("/dev/ptmx", os.O_RDONLY)
        return error_of(lambda: fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8)))

    assert do(lambda: attempt([str(inside)])).answer == "EACCES"
    assert do(lambda: attempt(usual_devices())).answer == ""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Listen on a TCP port of the host."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_tcp_is_shut_where_no_network_is_allowed(listener: socket.socket, inside: Path) -> None:
    need_abi("tcp")
    address = listener.getsockname()

    def attempt(allow_network: bool) -> list[str]:
        restrict(writable=[str(inside)], allow_network=allow_network)
        return [
            error_of(lambda: socket.create_connection(address)),
            error_of(lambda: socket.create_server(("127.0.0.1", 0))),
            error_of(lambda: socket.socket().listen()),  # the kernel picks a port
        ]

    assert do(lambda: attempt(True)).answer == ["", "", ""]
    assert do(lambda: attempt(False)).answer == [
        "EACCES",
        "EACCES",
        "",
    ]  # if the last one is ever refused, there is one gap less
    assert "listening on a TCP port that the kernel picks" in gaps(abi())


def test_no_process_outside_is_signalled(inside: Path) -> None:
    need_abi("scope")
    me = os.getpid()

    def attempt(scope: bool) -> list[str]:
        restrict(writable=[str(inside)], scope=scope)
        child = os.fork()
        if child == 0:
            signal.pause()
        own = error_of(lambda: os.kill(child, signal.SIGKILL))
        os.waitpid(child, 0)
        return [error_of(lambda: os.kill(me, 0)), own]

    assert do(lambda: attempt(True)).answer == ["EPERM", ""]
    assert do(lambda: attempt(False)).answer == ["", ""]


def test_no_abstract_socket_outside_is_reached(inside: Path) -> None:
    need_abi("scope")
    name = f"\0forkwise-{os.getpid()}"

    def attempt(scope: bool) -> list[str]:
        restrict(writable=[str(inside)], scope=scope)
        with socket.socket(socket.AF_UNIX) as own, socket.socket(socket.AF_UNIX) as peer:
            own.bind(f"{name}-inside")
            own.listen()
            within = error_of(lambda: peer.connect(f"{name}-inside"))
        with socket.socket(socket.AF_UNIX) as peer:
            return [error_of(lambda: peer.connect(name)), within]

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        assert do(lambda: attempt(True)).answer == ["EPERM", ""]
        assert do(lambda: attempt(False)).answer == ["", ""]


def test_it_applies_to_child_processes_and_cannot_be_relaxed(inside: Path, outside: Path) -> None:
    def attempt() -> list[str]:
        restrict(writable=[str(inside)])
        restrict(writable=[str(inside), str(outside)])
        done = subprocess.run(["/bin/sh", "-c", f"echo x > {outside}/new; echo y > {inside}/new"], capture_output=True)
        return [error_of((outside / "new").touch), done.stderr.decode()]

    again, said = do(attempt).answer
    assert again == "EACCES"
    assert "ermission denied" in said
    assert (inside / "new").read_text() == "y\n"
    assert not (outside / "new").exists()


def test_mounts_cannot_be_changed_any_more(inside: Path) -> None:
    need(os.geteuid() == 0, "only root can mount without a namespace")

    def attempt() -> int:
        restrict(writable=[str(inside)])
        libc.mount(b"none", os.fsencode(inside), b"tmpfs", ctypes.c_ulong(0), None)
        return ctypes.get_errno()

    assert do(attempt).answer == 1


def test_a_missing_path_is_named(inside: Path) -> None:
    def attempt() -> str:
        with pytest.raises(NamespaceError) as caught:
            restrict(writable=[str(inside / "nowhere")])
        return str(caught.value)

    said = do(attempt).answer
    assert str(inside / "nowhere") in said
    assert "No such file" in said


def test_the_17th_restriction_is_one_too_many(inside: Path) -> None:
    def attempt() -> str:
        for _ in range(16):
            restrict(writable=[str(inside)])
        with pytest.raises(NamespaceError) as caught:
            restrict(writable=[str(inside)])
        return str(caught.value)

    assert "16" in do(attempt).answer


@pytest.mark.parametrize("version", range(1, 8))
def test_older_versions_forbid_less_and_still_work(
    version: int, inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(version <= abi(), f"this kernel has ABI {abi()}")
    monkeypatch.setattr(landlock, "abi", lambda: version)

    def attempt() -> list[str]:
        restrict(writable=[str(inside)])
        return [
            error_of((inside / "new").touch),
            error_of((outside / "new").touch),
            error_of(lambda: os.truncate(outside / "file", 1)),
            error_of(lambda: os.rename(inside / "new", inside / "deep" / "new")),
        ]

    answer = do(attempt).answer
    assert answer == ["", "EACCES", "" if version < 3 else "EACCES", "EXDEV" if version < 2 else ""]
    assert ("truncating files" in gaps(version)) == (version < 3)
    assert ("abstract Unix sockets and signals" in gaps(version)) == (version < 6)


def test_a_requested_restriction_that_is_not_available_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 3)
    with pytest.raises(NamespaceError, match=r"TCP.*6\.7"):
        restrict(writable=[], allow_network=False)
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    with pytest.raises(NamespaceError, match="CONFIG_SECURITY_LANDLOCK"):
        restrict(writable=[])


def test_modes_of_files_are_a_listed_gap(inside: Path, outside: Path) -> None:
    def attempt() -> str:
        restrict(writable=[str(inside)])
        return error_of(lambda: (outside / "file").chmod(0o600))

    assert do(attempt).answer == ""  # if this ever fails, there is one gap less
    assert "modes, owners, times and attributes of files" in gaps(abi())
