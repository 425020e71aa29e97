"""Run a function in a forked child, and return its answer and exit code. The child is always reaped."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forkwise.linux.namespace import available
from forkwise.linux.syscalls import CLONE_NEWUSER, unshare
from tests.need import need

__all__ = [
    "NOBODY",
    "Outcome",
    "as_nobody",
    "burn",
    "do",
    "error_of",
    "fork_until_refused",
    "in_user_namespace",
    "libc",
    "need_user_namespaces",
]

NOBODY = 65534
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True)
class Outcome:
    """The answer of a child (None if it gave none) and its exit code, negative for a signal."""

    answer: Any
    code: int


def do(work: Callable[[], object]) -> Outcome:
    """Run a function in a child. An exception there fails the test here."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_child(work, writer)
    code = None
    try:
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            said = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        if code is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    document = json.loads(said) if said else {}
    assert "raised" not in document, document["raised"]
    return Outcome(document.get("answer"), code)


def _be_child(work: Callable[[], object], writer: int) -> None:
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        document = {"answer": work()}
    except BaseException:  # noqa: BLE001 - reported to the test, which fails
        document = {"raised": traceback.format_exc()}
    os.write(writer, json.dumps(document).encode())
    os._exit(0)


def error_of(action: Callable[[], object]) -> str:
    """Return the name of the error an action fails with, or an empty text."""
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def as_nobody() -> None:
    """Become a user without privileges, for good."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # otherwise /proc/self stays root's


def in_user_namespace() -> None:
    """Enter a user namespace as the same user."""
    user, group = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def need_user_namespaces() -> None:
    """Skip the test if user namespaces are not available."""
    need(available(), "user namespaces are forbidden here")


def fork_until_refused() -> tuple[int, str]:
    """Return how many children can be forked at once, at most 50, and the error that ended it."""
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


def burn(seconds: float) -> None:
    """Use CPU time."""
    while time.process_time() < seconds:
        pass
