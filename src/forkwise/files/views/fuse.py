"""The fuse view: fuse-overlayfs, for a layered branch that is visible to every process of an unprivileged user.

Its server is a separate process. It keeps the FIFO ``home/alive`` open, so that any process can wait for its exit
without knowing its PID, even if another process started it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from typing import Any, ClassVar

from forkwise.errors import BranchError, MountError
from forkwise.files.store.view import DetachedMount, Refusal, Site, View
from forkwise.files.views.overlay import copy_directory_metadata
from forkwise.files.views.whole import state_refusal
from forkwise.linux import fds
from forkwise.linux.mountinfo import is_mount_point, remount_flags
from forkwise.linux.syscalls import MNT_DETACH, MS_RDONLY, MS_REMOUNT, mount, syncfs, umount2

__all__ = ["FuseView"]

_PROGRAM = "fuse-overlayfs"
# Without fast_ino, a file copied up from one of several hard links is not found again after the next mount.
_OPTIONS = "volatile,fast_ino=1,writeback=0"
_EXIT_TIMEOUT_S = 10.0  # of a server whose last mount is gone


class FuseView(View):
    """A branch served by fuse-overlayfs.

    Fuse-overlayfs has two limits. It interprets names that begin with ``.wh.`` as its marks, in the workspace too. And
    a write to a file with several hard links in the workspace may end up in the layer under another of its names.
    """

    name: ClassVar[str] = "fuse"
    whole: ClassVar[bool] = False
    mark_files: ClassVar[frozenset[str]] = frozenset({".wh..opq", ".wh..wh..opq"})

    def refusal(self, site: Site) -> Refusal | None:
        return state_refusal(site) or _find_missing_part(site) or _try_mount(site.state)

    def make(self, home: str, lowers: Sequence[str]) -> None:
        os.mkdir(f"{home}/layer")
        os.mkdir(f"{home}/work", 0o700)
        os.mkdir(f"{home}/view", 0o700)
        os.mkfifo(f"{home}/alive", 0o600)
        self.copy_metadata(home, lowers[0])

    def copy_metadata(self, home: str, lower: str, premounted: DetachedMount | None = None) -> None:
        copy_directory_metadata(f"{home}/layer", lower)

    def show(self, home: str, lowers: Sequence[str], *, writable: bool, premounted: DetachedMount | None = None) -> str:
        view = f"{home}/view"
        if is_mount_point(view) and not _is_served(view):
            _unmount(home, lazily=True)
        if not is_mount_point(view):
            _start(home, lowers, writable)
        elif _is_writable(view) != writable:
            self._set_writable(home, lowers, writable)
        return view

    def visible_path(self, home: str) -> str | None:
        view = f"{home}/view"
        return view if is_mount_point(view) and _is_served(view) else None

    def hide(self, home: str) -> bool:
        if is_mount_point(f"{home}/view"):
            try:
                _unmount(home, lazily=False)
            except BlockingIOError:
                _unmount(home, lazily=True)
                return False
        # The server exits with the last mount of its filesystem, in whatever mount namespace that is.
        return _wait_for_exit(home, _EXIT_TIMEOUT_S)

    def freeze(self, home: str, lowers: Sequence[str]) -> None:
        view = f"{home}/view"
        # Branches of one branch are created under a shared lock, so several threads or processes may freeze it at once.
        # A stat by another one would be enough for the kernel to refuse to unmount.
        with _exclusive(home):
            if is_mount_point(view) and _is_served(view) and _is_writable(view):
                self._set_writable(home, lowers, False)

    def thaw(self, home: str, lowers: Sequence[str]) -> None:
        if is_mount_point(f"{home}/view"):
            self.show(home, lowers, writable=True)

    def flush(self, home: str) -> None:
        # Writes are in the kernel's page cache first, and reach the server and the layer from there.
        if _is_served(f"{home}/view"):
            fd = os.open(f"{home}/view", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                syncfs(fd)
            finally:
                os.close(fd)

    def release(self, home: str) -> None:
        if not self.hide(home):
            for number in (signal.SIGTERM, signal.SIGKILL):
                _signal_server(home, number)
                if _wait_for_exit(home, _EXIT_TIMEOUT_S):
                    return

    def _set_writable(self, home: str, lowers: Sequence[str], writable: bool) -> None:
        view = f"{home}/view"
        try:
            try:
                mount("none", view, None, MS_REMOUNT | remount_flags(view) | (0 if writable else MS_RDONLY))
            except PermissionError:
                _unmount(home, lazily=False)  # only root may remount
                _start(home, lowers, writable)
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EAGAIN):
                raise
            wanted = "writable" if writable else "read-only"
            raise BranchError(
                f"{view} cannot be made {wanted} while processes use it. "
                "Close its files, leave its directories, then try again.",
                branch=os.path.basename(home),
            ) from error


@contextmanager
def _exclusive(home: str) -> Iterator[None]:
    """Hold a lock on a branch's home against threads and processes."""
    fd = fds.track(lambda: os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        fds.close(fd)


def _find_missing_part(site: Site) -> Refusal | None:
    needed = [_PROGRAM] if os.geteuid() == 0 else [_PROGRAM, "fusermount3"]
    for program, package in ((p, "fuse3" if p == "fusermount3" else p) for p in needed):
        if shutil.which(program) is None:
            return Refusal(f"{program} is not installed", f"apt install {package}, or dnf install {package}")
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return Refusal("there is no /dev/fuse", "modprobe fuse; in a container: --device /dev/fuse")
    except OSError as error:
        return Refusal(f"/dev/fuse cannot be opened by this user ({error.strerror})", "as root: chmod 666 /dev/fuse")
    if ":" in os.path.realpath(site.state):
        return Refusal(
            f"the path {site.state} contains a colon, which {_PROGRAM} interprets as a separator",
            "choose a state directory without a colon",
        )
    try:
        with tempfile.TemporaryFile(dir=site.state) as file:
            os.setxattr(file.fileno(), "user.forkwise", b"1")
    except OSError as error:
        return Refusal(
            f"the filesystem of {site.state} has no user extended attributes ({error.strerror})",
            "choose a state directory on ext4, XFS, btrfs, or tmpfs (Linux 6.6 or later)",
        )
    return None


@cache
def _try_mount(state: str) -> Refusal | None:
    """Mount a view and return why that failed: a container may have every part and still forbid mounting."""
    view = FuseView()
    with tempfile.TemporaryDirectory(dir=state, prefix=f".probe-{os.getpid()}-") as home:
        os.makedirs(f"{home}/lower/deleted")
        view.make(home, [f"{home}/lower"])
        try:
            os.rmdir(f"{view.show(home, [f'{home}/lower'], writable=True)}/deleted")
            if not os.path.lexists(f"{home}/layer/deleted"):
                # fuse-overlayfs then uses files with special names, which only it can distinguish from others.
                return Refusal(
                    f"{state} is on a filesystem that cannot hold a whiteout, such as another overlay",
                    "set FORKWISE_STATE to a directory on ext4, XFS, btrfs or tmpfs",
                )
        except MountError as error:
            return Refusal(error.reason, error.remedy)
        finally:
            view.release(home)
    return None


def _start(home: str, lowers: Sequence[str], writable: bool) -> None:
    """Start the server; it moves to the background by itself once the view is mounted."""
    with ExitStack() as stack:
        # By descriptor, because commas, colons and backslashes in a path would be parsed as part of the options.
        passed = []
        for path, flags in [*((lower, os.O_PATH | os.O_DIRECTORY) for lower in lowers), (f"{home}/alive", os.O_RDWR)]:
            passed.append(fds.track(partial(os.open, path, flags | os.O_CLOEXEC)))
            stack.callback(fds.close, passed[-1])
        lower = ":".join(f"/proc/self/fd/{fd}" for fd in passed[:-1])
        options = f"lowerdir={lower},upperdir=layer,workdir=work,{_OPTIONS}" + ("" if writable else ",ro")
        status, errors = _run([_PROGRAM, "-o", options, "view"], home, pass_fds=passed)
    if status or not is_mount_point(f"{home}/view"):
        lines = [line for line in errors.splitlines() if not line.startswith("unknown argument")]
        reason = "; ".join(lines) or f"it exited with status {status}"
        raise MountError(
            f"the fuse view of {home} could not be mounted: {reason}",
            view=FuseView.name,
            reason=f"{_PROGRAM} failed: {reason}",
            remedy="allow this user to mount with FUSE; in a container: --device /dev/fuse --cap-add SYS_ADMIN",
        )


def _unmount(home: str, *, lazily: bool) -> None:
    """Unmount the view; raise BlockingIOError if it is in use and ``lazily`` is not set."""
    try:
        umount2(f"{home}/view", MNT_DETACH if lazily else 0)
        return
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise BlockingIOError(errno.EAGAIN, "in use", f"{home}/view") from error
        if error.errno != errno.EPERM:
            raise
    command = ["fusermount3", "-u", "-z", "view"] if lazily else ["fusermount3", "-u", "view"]
    status, errors = _run(command, home, env={**os.environ, "LC_ALL": "C"})
    if status:
        if "busy" in errors:
            raise BlockingIOError(errno.EAGAIN, "in use", f"{home}/view")
        raise MountError(
            f"the fuse view of {home} could not be unmounted: {errors.strip()}",
            view=FuseView.name,
            reason=errors.strip(),
            remedy="run this as the user who mounted it",
        )


def _run(command: Sequence[str], directory: str, **options: Any) -> tuple[int, str]:
    """Run a program to its end in ``directory``. Return its exit status and its standard error.

    Standard error is a file in memory: a function's process that another thread forks meanwhile would inherit a pipe,
    and this process would wait for it to exit too.
    """
    errors_fd = fds.track(lambda: os.memfd_create("forkwise-fuse", os.MFD_CLOEXEC))
    try:
        with fds.fork_lock():  # Popen waits until all copies of its own descriptors are closed
            process = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors_fd,
                **options,
            )
        with process:
            try:
                process.wait()
            except BaseException:
                process.kill()
                raise
        return process.returncode, os.fsdecode(os.pread(errors_fd, 1 << 20, 0))
    finally:
        fds.close(errors_fd)


def _is_served(view: str) -> bool:
    try:
        os.stat(view)
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
            return False
        raise
    return True


def _is_writable(view: str) -> bool:
    return not os.statvfs(view).f_flag & os.ST_RDONLY


def _wait_for_exit(home: str, timeout_s: float) -> bool:
    """Wait until no server of this branch runs; return False after the timeout."""
    try:
        fifo = os.open(f"{home}/alive", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        if os.read(fifo, 1) == b"":
            return True
    except BlockingIOError:
        poll = select.poll()
        poll.register(fifo, 0)  # a hang-up is always reported
        return bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(fifo)
    return False


def _signal_server(home: str, number: signal.Signals) -> None:
    """Signal the server that has ``home/alive`` open, found in /proc."""
    fifo = os.path.realpath(f"{home}/alive")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # the process has exited, or belongs to another user
            process = os.pidfd_open(int(pid))
            try:
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    is_server = file.read().strip() == _PROGRAM[:15]
                open_files = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
                if is_server and fifo in open_files:
                    signal.pidfd_send_signal(process, number)
            finally:
                os.close(process)
