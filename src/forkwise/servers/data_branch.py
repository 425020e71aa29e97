"""Branching a workspace while servers of its user run on data directories in it.

A branch needs the files of one moment, as after a power failure, from which databases recover. A snapshot of btrfs has
them. Reflinks are made file by file, so the servers are paused meanwhile: they are traced, and not stopped by a signal,
because the kernel resumes traced processes if this one is killed, and the shell that started them does not notice. An
overlay keeps showing the workspace's files while they change, so no server is started on such data there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from forkwise.errors import ServerError
from forkwise.files.branch import Branch
from forkwise.files.store.branch_info import DataDirectories
from forkwise.linux import fds
from forkwise.linux.directory_user import find_directory_user, find_postgres, list_directory_users
from forkwise.linux.syscalls import ptrace
from forkwise.servers.server_file import find_data_directories

if TYPE_CHECKING:
    from forkwise.files.branch import Parent

__all__ = ["has_data_of_one_moment", "hold_data", "make_branch", "record_data"]

_LOCK = "pause.lock"
_SNAPSHOTS = ("btrfs",)
_PAUSED = ("reflink",)
_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_DETACH = 0x4206, 0x4207, 17
_PTRACE_EVENT_STOP = 128
_WALL = 0x40000000
_PAUSE_TIMEOUT_S = 10.0
_MOST_PASSES = 50
_CHECKPOINT_TIMEOUT_S = 60.0
_LONGEST_LOCK_FILE = 4096


@contextmanager
def hold_data(parent: Parent) -> Iterator[DataDirectories]:
    """Yield the data directories for a branch that the block creates in this thread, with the servers on them paused.

    Raises ServerError if a server cannot be paused, ConfigError if the workspace's file of servers is invalid.
    """
    root = parent.workspace.path
    data = find_data_directories(root)
    directories = (*data.whole, *data.dropped)
    view = parent.child_view().name if directories and not isinstance(parent, Branch) else ""
    if view not in (*_SNAPSHOTS, *_PAUSED):
        yield data
        return
    used = [path for path in directories if find_directory_user(os.path.join(root, path)) is not None]
    if not used:
        yield data
        return
    paths = [os.path.join(root, path) for path in used]
    for path in paths:
        _request_checkpoint(path)
    if view in _SNAPSHOTS:
        yield replace(data, still=tuple(used))
        return
    with _locked(f"{parent.state_dir.state}/{_LOCK}"), _Pause(paths):
        yield replace(data, still=tuple(used))


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold a lock against other threads and processes: a process has one tracer at a time."""
    fd = fds.track(lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # a process that is forked meanwhile has a copy of the descriptor
        fds.close(fd)


def make_branch(parent: Parent, name: str) -> Branch:
    """Create a branch that stays open, with the data directories of servers recorded as such."""
    with hold_data(parent) as data:
        branch = parent.branch(name, None, None)
    record_data(branch, data)
    return branch


def record_data(branch: Branch, data: DataDirectories) -> None:
    """Record the data directories with a new branch, if there are any."""
    if data != DataDirectories() and not branch.view_kind.native:
        branch.set_data_directories(data)


def has_data_of_one_moment(branch: Branch, data: str) -> bool:
    """Return whether a branch, or one that it was forked from, has a data directory as it was at one moment."""
    found: Parent = branch
    while isinstance(found, Branch):
        if found.view in _SNAPSHOTS or data in found.data_directories.still:
            return True
        found = found.parent
    return False


def _request_checkpoint(directory: str) -> None:
    """Have PostgreSQL write what it has in memory, so that a branch recovers sooner; it would recover without this too.

    Connect without a password, first as the owner of the directory, then as ``postgres``.
    """
    program = shutil.which("psql")
    if program is None or find_postgres(directory) is None:
        return
    with suppress(OSError, KeyError, IndexError, ValueError, subprocess.SubprocessError):
        with open(f"{directory}/postmaster.pid", "rb") as file:
            lines = file.read(_LONGEST_LOCK_FILE).decode().splitlines()
        port, socket_directory = str(int(lines[3])), lines[4]
        if not os.path.isabs(socket_directory):
            return
        owner = pwd.getpwuid(os.stat(directory).st_uid)
        command = [program, "-X", "-q", "-w", "-h", socket_directory, "-p", port, "-d", "postgres", "-c", "checkpoint"]
        environment = {"PATH": os.defpath, "PGPASSFILE": os.devnull, "PGCONNECT_TIMEOUT": "5"}
        account = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        for user in dict.fromkeys((owner.pw_name, "postgres")):
            with fds.fork_lock():
                client = subprocess.Popen(
                    [*command, "-U", user],
                    env=environment,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    **account,  # type: ignore[call-overload]
                )
            try:
                if client.wait(_CHECKPOINT_TIMEOUT_S) == 0:
                    return
            finally:
                client.kill()
                client.wait()


class _Pause:
    """All threads of all processes that use some directories, paused while the block runs.

    Enter and leave it in the same thread: the kernel lets only the thread that traces a process resume it.
    """

    def __init__(self, directories: list[str]) -> None:
        self._directories = directories
        self._signals: dict[int, int] = {}  # by thread: the signal that it was about to get, or 0

    def __enter__(self) -> _Pause:
        try:
            for _ in range(_MOST_PASSES):
                if not self._pause_new():
                    return self
        except BaseException:
            self.__exit__()
            raise
        self.__exit__()
        raise self._build_error("it starts processes all the time")

    def __exit__(self, *_: object) -> None:
        ended = []
        for thread, number in self._signals.items():
            try:
                ptrace(_PTRACE_DETACH, thread, number)
            except ProcessLookupError:
                ended.append(thread)
        for thread in ended:
            self._reap(thread)
        self._signals.clear()

    def _reap(self, thread: int) -> None:
        """Reap a thread that was killed meanwhile: its process does not end until its tracer has waited for it."""
        deadline = time.monotonic() + _PAUSE_TIMEOUT_S
        with suppress(OSError, ValueError, KeyError):
            with open(f"/proc/{thread}/status") as file:
                status = dict(line.split(":\t", 1) for line in file if ":\t" in line)
            if int(status["Tgid"]) == thread and int(status["PPid"]) == os.getpid():
                return  # a child of this process, whose end is read by the code that started it
            while os.waitpid(thread, os.WNOHANG | _WALL)[0] == 0 and time.monotonic() < deadline:
                time.sleep(0.001)

    def _pause_new(self) -> bool:
        """Pause the threads that are not paused yet. Return whether there were any."""
        found = [thread for thread in self._list_threads() if thread not in self._signals]
        seized = []
        for thread in found:
            try:
                ptrace(_PTRACE_SEIZE, thread, 0)
                seized.append(thread)
                ptrace(_PTRACE_INTERRUPT, thread, 0)
            except ProcessLookupError:
                continue
            except OSError as error:
                for one in seized:  # so that they are resumed now; any left over resume when this process ends
                    with suppress(OSError, ServerError):
                        self._wait_for(one)
                raise self._build_error(
                    "this user may not trace it" if error.errno == errno.EPERM else str(error.strerror)
                ) from error
        for thread in seized:
            self._wait_for(thread)
        return bool(found)

    def _list_threads(self) -> list[int]:
        threads: list[int] = []
        for directory in self._directories:
            for process in list_directory_users(directory):
                with suppress(OSError):
                    threads += map(int, os.listdir(f"/proc/{process}/task"))
        return list(dict.fromkeys(threads))

    def _wait_for(self, thread: int) -> None:
        deadline = time.monotonic() + _PAUSE_TIMEOUT_S
        pause_s = 0.0
        while True:
            try:
                found, status = os.waitpid(thread, os.WNOHANG | _WALL)
            except ChildProcessError:
                return
            if found:
                if os.WIFSTOPPED(status):
                    is_event = status >> 16 == _PTRACE_EVENT_STOP
                    self._signals[thread] = 0 if is_event else int(signal.Signals(os.WSTOPSIG(status)))
                return
            if time.monotonic() > deadline:
                raise self._build_error(f"it did not pause within {_PAUSE_TIMEOUT_S:g} s")
            time.sleep(pause_s)
            pause_s = 0.001

    def _build_error(self, problem: str) -> ServerError:
        user = find_directory_user(self._directories[0]) or "a process"
        return ServerError(
            f"no branch was made: {user} uses the data directory {self._directories[0]}, and could not be paused for a "
            f"consistent copy: {problem}. Stop it, and try again; attempts get servers of their own"
        )
