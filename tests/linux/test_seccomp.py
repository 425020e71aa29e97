"""Seccomp filters: run by a small BPF interpreter, and installed in real processes."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forkwise.errors import NamespaceError
from forkwise.linux import seccomp
from forkwise.linux.seccomp import COMMON_SOCKETS, MOUNTS, STANDARD, STRICT, deny, install
from forkwise.linux.syscalls import CLONE_NEWUSER, unshare
from tests.need import need
from tests.sandbox.child import do, error_of, libc, need_user_namespaces

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386 = 0x40000003
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
CLONE_FILES = 0x400
NO_CALL = 0xFFFFFFFF
BY_ARGUMENT = {"clone", "unshare"}
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}

machines = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
presets = pytest.mark.parametrize("names", [STANDARD, STRICT], ids=["standard", "strict"])


def number(name: str, machine: str = platform.machine()) -> int | None:
    """Return the number of a call."""
    return seccomp._NUMBERS[name][list(ARCH).index(machine)]


def verdict(program: bytes, call: int, *arguments: int, arch: int) -> int:
    """Return a filter's verdict on a call, by interpreting the part of classic BPF that filters use."""
    padded = [a & (1 << 64) - 1 for a in (*arguments, 0, 0, 0, 0, 0, 0)][:6]
    data = struct.pack("=IIQ6Q", call & 0xFFFFFFFF, arch, 0, *padded)
    code = list(struct.iter_unpack("=HBBI", program))
    held, at = 0, 0
    tests: dict[int, Callable[[int, int], bool]] = {
        0x15: lambda a, k: a == k,
        0x35: lambda a, k: a >= k,
        0x45: lambda a, k: bool(a & k),
    }
    while True:
        operation, if_true, if_false, k = code[at]
        at += 1
        if operation == 0x06:
            return int(k)
        if operation == 0x20:
            (held,) = struct.unpack_from("=I", data, k)
        else:
            at += if_true if tests[operation](held, k) else if_false


@machines
@presets
def test_every_named_call_is_refused_and_no_other(machine: str, names: frozenset[str]) -> None:
    program = deny(names, machine=machine)
    named = {number(name, machine): name for name in names}
    for call in range(600):
        name = named.get(call)
        wanted = ALLOW
        if name is not None and name not in BY_ARGUMENT:
            falls_back = name == "clone3" or name.startswith("io_uring")
            wanted = ERRNO | (errno.ENOSYS if falls_back else errno.EPERM)
        assert verdict(program, call, arch=ARCH[machine]) == wanted, name or call


@machines
@presets
def test_numbers_of_another_machine_kill(machine: str, names: frozenset[str]) -> None:
    program = deny(names, machine=machine)
    other = next(arch for name, arch in ARCH.items() if name != machine)
    for call in range(600):
        assert verdict(program, call, arch=I386) == KILL
        assert verdict(program, call, arch=other) == KILL
    if machine == "x86_64":
        for call in range(600):
            assert verdict(program, 0x40000000 | call, arch=ARCH[machine]) == KILL
        assert verdict(program, NO_CALL - 1, arch=ARCH[machine]) == KILL
    assert verdict(program, NO_CALL, arch=ARCH[machine]) == ALLOW


@machines
def test_ioctls_that_type_into_a_terminal_are_recognised_by_the_low_half_of_their_number(machine: str) -> None:
    ioctl, arch = number("ioctl", machine), ARCH[machine]
    assert ioctl is not None
    program = deny((), machine=machine)
    for command in (TIOCSTI, TIOCLINUX):
        for high in (0, 1 << 32, 0xFFFFFFFF << 32):
            assert verdict(program, ioctl, 0, high | command, arch=arch) == ERRNO | errno.EPERM
    for command in (termios.TIOCGWINSZ, termios.TCGETS, TIOCSTI + 1, TIOCSTI << 32):
        assert verdict(program, ioctl, 0, command, arch=arch) == ALLOW
    assert verdict(deny((), terminal_injection=False, machine=machine), ioctl, 0, TIOCSTI, arch=arch) == ALLOW


@machines
def test_namespaces_are_recognised_by_the_flags(machine: str) -> None:
    program, arch = deny({"clone", "unshare"}, machine=machine), ARCH[machine]
    clone, unshare_ = number("clone", machine), number("unshare", machine)
    assert clone is not None
    assert unshare_ is not None
    for flag in (0x00020000, *(1 << bit for bit in range(25, 31))):
        assert verdict(program, clone, flag | signal.SIGCHLD, arch=arch) == ERRNO | errno.EPERM
        assert verdict(program, unshare_, flag | CLONE_FILES, arch=arch) == ERRNO | errno.EPERM
    assert verdict(program, unshare_, 0x80, arch=arch) == ERRNO | errno.EPERM  # a time namespace
    assert verdict(program, unshare_, CLONE_FILES, arch=arch) == ALLOW
    for flags in (signal.SIGCHLD, 0x3D0F00, 0x01200011, 0x4111):  # fork, thread, glibc's fork, vfork
        assert verdict(program, clone, flags, arch=arch) == ALLOW


@machines
def test_sockets_of_other_families_are_refused(machine: str) -> None:
    program, arch = deny((), sockets_of=COMMON_SOCKETS - {socket.AF_UNIX}, machine=machine), ARCH[machine]
    one, pair = number("socket", machine), number("socketpair", machine)
    assert one is not None
    assert pair is not None
    refused = ERRNO | errno.EAFNOSUPPORT
    for family in range(50):
        is_common = family in {socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
        assert verdict(program, one, family, arch=arch) == (ALLOW if is_common else refused)
        assert verdict(program, one, 1 << 32 | family, arch=arch) == (ALLOW if is_common else refused)
        assert verdict(program, pair, family, arch=arch) == (ALLOW if is_common or family == 1 else refused)
    assert verdict(deny((), machine=machine), one, socket.AF_VSOCK, arch=arch) == ALLOW


@machines
def test_numbers_are_the_kernels(machine: str) -> None:
    need(HEADERS[machine].exists(), "the kernel's headers are not installed")
    text = HEADERS[machine].read_text()
    official = {m[1]: int(m[2]) for m in re.finditer(r"^#define\s+__NR_(\w+)\s+(\d+)$", text, re.MULTILINE)}
    for name in seccomp._NUMBERS:
        if name != "open_tree_attr":  # newer than most headers
            assert number(name, machine) == official.get(name), name


def test_an_unknown_system_call_is_an_error() -> None:
    with pytest.raises(ValueError, match="no_such_call"):
        deny({"no_such_call"})
    with pytest.raises(NamespaceError, match="riscv64"):
        deny((), machine="riscv64")


def test_an_invalid_filter_is_an_error() -> None:
    def attempt() -> str:
        with pytest.raises(NamespaceError, match="CONFIG_SECCOMP_FILTER") as caught:
            install(b"\xff" * 8)
        return str(caught.value)

    assert "Invalid argument" in do(attempt).answer


def call(name_or_number: str | int, *arguments: int) -> str:
    """Make a raw system call; return the name of its error, "" if it succeeds."""
    chosen = number(name_or_number) if isinstance(name_or_number, str) else name_or_number
    words = [ctypes.c_long(word) for word in (chosen or 0, *arguments)]
    return errno.errorcode[ctypes.get_errno()] if libc.syscall(*words) < 0 else ""


@presets
def test_each_named_call_fails_in_a_real_process(names: frozenset[str]) -> None:
    present = sorted(name for name in names if number(name) is not None)

    def attempt() -> dict[str, str]:
        os.setsid()  # vhangup has nothing to hang up
        install(deny(names))
        assert call("keyctl", -1) == "EPERM"  # otherwise the calls below would test nothing
        # With -1 for every argument none of these calls has an effect, even if the filter allows it.
        return {name: call(name, *[-1] * 6) for name in present}

    answers = do(attempt).answer
    assert {name for name, answer in answers.items() if answer == "ENOSYS"} == {
        name for name in present if name == "clone3" or name.startswith("io_uring")
    }
    assert set(answers.values()) == {"EPERM", "ENOSYS"}


def test_nested_user_namespaces_work_under_standard_and_not_under_strict() -> None:
    need_user_namespaces()

    def attempt(names: frozenset[str]) -> list[str]:
        install(deny(names))
        return [error_of(lambda: unshare(CLONE_FILES)), error_of(lambda: unshare(CLONE_NEWUSER))]

    assert do(lambda: attempt(STANDARD)).answer == ["", ""]
    assert do(lambda: attempt(STRICT)).answer == ["", "EPERM"]


def test_a_group_can_be_taken_out_of_a_set() -> None:
    def attempt() -> list[str]:
        install(deny(STANDARD - MOUNTS))
        return [call("umount2", -1, 0), call("reboot", -1, -1, -1, -1)]

    assert do(attempt).answer == ["EFAULT", "EPERM"]


def test_a_filter_outlives_exec_and_forbids_new_privileges() -> None:
    script = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True); print(libc.ptrace(-1, 0, 0, 0), ctypes.get_errno())"
    )

    def attempt() -> list[str]:
        install(deny(STRICT))
        status = Path("/proc/self/status").read_text()
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        return [*re.findall(r"^(?:NoNewPrivs|Seccomp):\t(\d)", status, re.MULTILINE), done.stdout.strip()]

    assert do(attempt).answer == ["1", "2", f"-1 {errno.EPERM}"]


def test_a_terminal_cannot_be_typed_into() -> None:
    def attempt() -> list[str]:
        main_end, terminal = pty.openpty()
        install(deny(()))
        answers = [error_of(lambda: fcntl.ioctl(terminal, TIOCSTI, b"x"))]
        answers.append(call("ioctl", terminal, 1 << 32 | TIOCSTI, 0))
        answers.append(call("ioctl", terminal, 1 << 32 | TIOCLINUX, 0))
        answers.append(error_of(lambda: termios.tcgetwinsize(terminal)))
        os.close(main_end)
        return answers

    assert do(attempt).answer == ["EPERM", "EPERM", "EPERM", ""]


def test_sockets_of_rare_families_cannot_be_made() -> None:
    def attempt() -> list[str]:
        install(deny(STRICT, sockets_of=COMMON_SOCKETS - {socket.AF_UNIX}))
        families = (socket.AF_VSOCK, socket.AF_ALG, socket.AF_PACKET, socket.AF_UNIX, socket.AF_INET)
        answers = [error_of(lambda f=family: socket.socket(f, socket.SOCK_STREAM)) for family in families]  # type: ignore[misc]
        return [*answers, error_of(socket.socketpair)]

    assert do(attempt).answer == ["EAFNOSUPPORT"] * 4 + ["", ""]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 and i386 are ways into x86_64 only")
def test_calls_by_foreign_numbers_kill_the_process() -> None:
    getpid_of_i386 = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20; int 0x80; ret

    def by_x32() -> str:
        install(deny(()))
        return call(0x40000000 | 39)

    def by_i386() -> int:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(getpid_of_i386)
        function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        install(deny(()))
        return int(function())

    def by_none() -> str:
        install(deny(()))
        return call(-1)

    assert do(by_x32).code == -signal.SIGSYS
    assert do(by_i386).code == -signal.SIGSYS
    assert do(by_none).answer == "ENOSYS"


def test_the_kill_takes_all_threads() -> None:
    need(platform.machine() == "x86_64", "x32 is a way into x86_64 only")

    def attempt() -> None:
        install(deny(()))
        thread = threading.Thread(target=call, args=(0x40000000 | 39,))
        thread.start()
        thread.join()

    assert do(attempt).code == -signal.SIGSYS


WORKLOAD = """
import asyncio, concurrent.futures, multiprocessing, os, socket, sqlite3, subprocess, sys, tempfile, threading

def serve(listener):
    with listener.accept()[0] as peer:
        peer.sendall(peer.recv(10).upper())

async def tasks():
    process = await asyncio.create_subprocess_exec("sh", "-c", "echo from sh", stdout=subprocess.PIPE)
    return (await process.communicate())[0]

if __name__ == "__main__":
    assert subprocess.run(["sh", "-c", "ls / | wc -l"], capture_output=True, check=True).stdout.strip() > b"0"
    assert asyncio.run(tasks()) == b"from sh\\n"
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(len, ["ab"] * 100)) == 200
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        with socket.create_connection(listener.getsockname()) as peer:
            peer.sendall(b"hello")
            assert peer.recv(10) == b"HELLO"
        thread.join()
    assert socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)
    with tempfile.TemporaryDirectory() as room, sqlite3.connect(f"{room}/db") as db:
        db.execute("create table t (a)")
    fd = os.memfd_create("m")
    os.write(fd, b"x")
    print("all of it works")
"""


@presets
def test_ordinary_programs_notice_nothing(names: frozenset[str], tmp_path: Path) -> None:
    script = tmp_path / "workload.py"
    script.write_text(WORKLOAD)

    def attempt() -> list[str]:
        install(deny(names, sockets_of=COMMON_SOCKETS))
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
        return [done.stdout, done.stderr]

    assert do(attempt).answer == ["all of it works\n", ""]
