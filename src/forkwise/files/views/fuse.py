"""The fuse view: fuse-overlayfs, for a layered branch that is visible to every process of an unprivileged user.

Its server is a separate process. It keeps the FIFO ``home/alive`` open, so that any process can wait for its exit
without knowing its PID, even if another process started it.

Only root may remount a view. For any other user, a view that becomes read-only or writable is mounted a second time:
``home/shown`` is a symlink to the directory whose ``view`` is the current mount, ``home`` itself or ``home/second``.
The path ``home/shown/view`` is valid all the time, so that threads that read the branch meanwhile notice nothing.
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
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from typing import Any, ClassVar

from forkwise.errors import BranchError, MountError
from forkwise.files.store.overlayfs import FUSE_MARKS, copy_directory_metadata, put_back_in_layer
from forkwise.files.store.view import DetachedMount, Refusal, Site, View
from forkwise.files.views.whole import state_refusal
from forkwise.linux import fds
from forkwise.linux.mountinfo import is_mount_point, mounts, parse_mountinfo, remount_flags
from forkwise.linux.syscalls import MNT_DETACH, MS_RDONLY, MS_REMOUNT, filesystem_magic, mount, syncfs, umount2

__all__ = ["FuseView"]

_PROGRAM = "fuse-overlayfs"
# Without fast_ino, a file copied up from one of several hard links is not found again after the next mount. With it,
# files of different devices that have the same inode number are taken for one file.
_OPTIONS = "volatile,fast_ino={},writeback=0"
_BTRFS = 0x9123683E
_BTRFS_IOC_GET_SUBVOL_ROOTREF = 0xD000943D
_ROOTREFS_SIZE = 4096  # of struct btrfs_ioctl_get_subvol_rootref_args, whose eighth byte from the end is num_items
_EXIT_TIMEOUT_S = 10.0  # of a server whose last mount is gone
_READERS_TIMEOUT_S = 3.0  # of processes that opened something in a view just before it was replaced
_NO_NAME = "could not determine username"  # fusermount3, for a user id that is not in the user database
_NAME_REMEDY = "add this user to /etc/passwd: fusermount3 mounts only for a user that has a name"
_MOUNT_REMEDY = "allow this user to mount with FUSE; in a container: --device /dev/fuse --cap-add SYS_ADMIN"
_FIRST, _SECOND = ".", "second"  # the targets of ``home/shown``


class FuseView(View):
    """A branch served by fuse-overlayfs.

    Fuse-overlayfs has two limits. It interprets names that begin with ``.wh.`` as its marks, in the workspace too. And
    a write to a file with several hard links in the workspace may end up in the layer under another of its names.
    """

    name: ClassVar[str] = "fuse"
    whole: ClassVar[bool] = False
    mark_files: ClassVar[frozenset[str]] = frozenset({".wh..opq", ".wh..wh..opq"})
    mark_prefixes: ClassVar[tuple[str, ...]] = FUSE_MARKS

    def refusal(self, site: Site) -> Refusal | None:
        return state_refusal(site) or _find_missing_part(site) or _try_mount(site.state)

    def make(self, home: str, lowers: Sequence[str]) -> None:
        os.mkdir(f"{home}/layer")
        os.mkdir(f"{home}/work", 0o700)
        os.mkdir(f"{home}/view", 0o700)
        os.symlink(_FIRST, f"{home}/shown")
        os.mkfifo(f"{home}/alive", 0o600)
        self.copy_metadata(home, lowers[0])

    def copy_metadata(self, home: str, lower: str, premounted: DetachedMount | None = None) -> None:
        copy_directory_metadata(f"{home}/layer", lower)

    def show(self, home: str, lowers: Sequence[str], *, writable: bool, premounted: DetachedMount | None = None) -> str:
        view = f"{home}/shown/view"
        if not os.path.lexists(f"{home}/shown"):
            os.symlink(_FIRST, f"{home}/shown")  # the branch was made by forkwise 0.2 or older
        if is_mount_point(view) and not _is_served(view):
            _unmount(home, _target(home), lazily=True)
        if not is_mount_point(view):
            _start(home, _target(home), lowers, writable)
        elif _is_writable(view) != writable:
            self._set_writable(home, lowers, writable)
        return view

    def visible_path(self, home: str) -> str | None:
        view = f"{home}/shown/view"
        return view if _is_mounted(home, _target(home)) and _is_served(view) else None

    def hide(self, home: str) -> bool:
        is_in_use = False
        for target in (_FIRST, _SECOND):
            if _is_mounted(home, target):
                try:
                    _unmount(home, target, lazily=False)
                except BlockingIOError:
                    _unmount(home, target, lazily=True)
                    is_in_use = True
        # The server exits with the last mount of its filesystem, in whatever mount namespace that is.
        return not is_in_use and _wait_for_exit(home, _EXIT_TIMEOUT_S)

    def freeze(self, home: str, lowers: Sequence[str]) -> None:
        view = f"{home}/shown/view"
        # Branches of one branch are created under a shared lock, so several threads or processes may freeze it at once.
        with _exclusive(home):
            if _is_mounted(home, _target(home)) and _is_served(view) and _is_writable(view):
                self._set_writable(home, lowers, False)

    def thaw(self, home: str, lowers: Sequence[str]) -> None:
        if _is_mounted(home, _target(home)):
            self.show(home, lowers, writable=True)

    def flush(self, home: str) -> None:
        # Writes are in the kernel's page cache first, and reach the server and the layer from there.
        view = f"{home}/shown/view"
        if _is_mounted(home, _target(home)) and _is_served(view):
            fd = os.open(view, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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

    def put_back(self, home: str, lowers: Sequence[str], paths: Sequence[str]) -> bool:
        return put_back_in_layer(home, lowers, paths, self.mark_prefixes)

    def _set_writable(self, home: str, lowers: Sequence[str], writable: bool) -> None:
        view = f"{home}/shown/view"
        try:
            try:
                mount("none", view, None, MS_REMOUNT | remount_flags(view) | (0 if writable else MS_RDONLY))
            except PermissionError:
                _replace(home, lowers, writable)  # only root may remount
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EAGAIN):
                raise
            wanted = "writable" if writable else "read-only"
            raise BranchError(
                f"{view} cannot be made {wanted} while processes use it. "
                "Close its files, leave its directories, then try again.",
                branch=os.path.basename(home),
            ) from error


def _target(home: str) -> str:
    """Return which of the two mounts of a branch is the current one."""
    try:
        return os.readlink(f"{home}/shown")
    except FileNotFoundError:
        os.stat(home)  # a branch that was dropped must not look like one that is not mounted
        return _FIRST


def _is_mounted(home: str, target: str) -> bool:
    return os.path.isdir(f"{home}/{target}") and is_mount_point(f"{home}/{target}/view")


def _replace(home: str, lowers: Sequence[str], writable: bool) -> None:
    """Mount a read-only view in place of a writable one, or the other way round; raise BlockingIOError if it is in use.

    Processes that use a read-only view keep it. A writable view must not be in use.
    """
    old = _target(home)
    new = _SECOND if old == _FIRST else _FIRST
    if not writable and _has_writers(home, f"{home}/{old}/view"):
        raise BlockingIOError(errno.EAGAIN, "in use", f"{home}/shown/view")
    os.makedirs(f"{home}/{new}/view", 0o700, exist_ok=True)
    if _is_mounted(home, new):
        _unmount(home, new, lazily=True)  # a process was killed here
    _start(home, new, lowers, writable)
    _point_to(home, new)
    if writable:
        _unmount(home, old, lazily=True)
        return
    try:
        _unmount_after_readers(home, old)
    except BlockingIOError:
        _point_to(home, old)
        _unmount(home, new, lazily=True)
        raise


def _point_to(home: str, target: str) -> None:
    """Make one of the two mounts the current one, atomically."""
    with suppress(FileNotFoundError):
        os.unlink(f"{home}/shown-new")  # a process was killed here
    os.symlink(target, f"{home}/shown-new")
    os.rename(f"{home}/shown-new", f"{home}/shown")


def _unmount_after_readers(home: str, target: str) -> None:
    """Unmount a view that no path leads to any more; raise BlockingIOError if processes do not stop using it.

    A system call of another thread is enough for the kernel to refuse, and most of them end within milliseconds.
    """
    deadline = time.monotonic() + _READERS_TIMEOUT_S
    pause_s = 0.001
    while True:
        try:
            _unmount(home, target, lazily=False)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline or _has_writers(home, f"{home}/{target}/view"):
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)


def _has_writers(home: str, view: str) -> bool:
    """Return whether a file of a view is open for writing, or a sandbox has the view mounted at another path."""
    layer = f"{os.path.realpath(home)}/layer/"
    for pid in _find_servers(home):
        with suppress(OSError):  # the server has exited, or closed a file meanwhile
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(layer) and _read_open_flags(pid, fd) & os.O_ACCMODE:
                    return True
    return _is_in_sandbox(home, view)


def _read_open_flags(pid: int, fd: str) -> int:
    with open(f"/proc/{pid}/fdinfo/{fd}") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))


def _is_in_sandbox(home: str, view: str) -> bool:
    """Return whether a process of another mount namespace sees the view at a path outside of the branch's home.

    A copy of the view at its own path, which every mount namespace has, does not count.
    """
    device = os.stat(view).st_dev
    number = f" {os.major(device)}:{os.minor(device)} "
    own_namespace = os.readlink("/proc/self/ns/mnt")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # the process has exited, or belongs to another user
            if os.readlink(f"/proc/{pid}/ns/mnt") == own_namespace:
                continue
            with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                lines = [line for line in file if number in line]
            for entry in parse_mountinfo("".join(lines)):
                if not entry.point.startswith(f"{os.path.realpath(home)}/"):
                    return True
    return False


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


def _start(home: str, target: str, lowers: Sequence[str], writable: bool) -> None:
    """Start the server; it moves to the background by itself once the view is mounted.

    A read-only view has the layer as the uppermost of its lower directories: its server then neither writes to the
    layer nor uses the work directory of another server.
    """
    with ExitStack() as stack:
        # By descriptor, because commas, colons and backslashes in a path would be parsed as part of the options.
        passed = []
        directories = lowers if writable else [f"{home}/layer", *lowers]
        opened = [(directory, os.O_PATH | os.O_DIRECTORY) for directory in directories]
        for path, flags in [*opened, (f"{home}/alive", os.O_RDWR)]:
            passed.append(fds.track(partial(os.open, path, flags | os.O_CLOEXEC)))
            stack.callback(fds.close, passed[-1])
        lower = ":".join(f"/proc/self/fd/{fd}" for fd in passed[:-1])
        layer = "upperdir=layer,workdir=work" if writable else "ro"
        fast = _OPTIONS.format(int(not _has_other_devices(lowers[-1])))
        options = f"lowerdir={lower},{layer},{fast}"
        status, errors = _run([_PROGRAM, "-o", options, f"{target}/view"], home, pass_fds=passed)
    if status or not _is_mounted(home, target):
        lines = [line for line in errors.splitlines() if not line.startswith("unknown argument")]
        reason = "; ".join(lines) or f"it exited with status {status}"
        raise MountError(
            f"the fuse view of {home} could not be mounted: {reason}",
            view=FuseView.name,
            reason=f"{_PROGRAM} failed: {reason}",
            remedy=_NAME_REMEDY if _NO_NAME in reason else _MOUNT_REMEDY,
        )


def _has_other_devices(directory: str) -> bool:
    """Return whether something is mounted below a directory, or whether its btrfs subvolume contains others."""
    top = f"{os.path.realpath(directory)}/"
    if any(entry.point.startswith(top) for entry in mounts()):
        return True
    if filesystem_magic(directory) != _BTRFS:
        return False
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    found = bytearray(_ROOTREFS_SIZE)
    try:
        fcntl.ioctl(fd, _BTRFS_IOC_GET_SUBVOL_ROOTREF, found)
        return found[-8] > 0
    except OSError:  # more than fit into the answer, or an old kernel
        return True
    finally:
        os.close(fd)


def _unmount(home: str, target: str, *, lazily: bool) -> None:
    """Unmount the view; raise BlockingIOError if it is in use and ``lazily`` is not set."""
    view = f"{home}/{target}/view"
    try:
        umount2(view, MNT_DETACH if lazily else 0)
        return
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise BlockingIOError(errno.EAGAIN, "in use", view) from error
        if error.errno != errno.EPERM:
            raise
    command = ["fusermount3", "-u", "-z", "view"] if lazily else ["fusermount3", "-u", "view"]
    status, errors = _run(command, f"{home}/{target}", env={**os.environ, "LC_ALL": "C"})
    if status:
        if "busy" in errors:
            raise BlockingIOError(errno.EAGAIN, "in use", view)
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
        os.statvfs(view)  # the kernel may have answered stat(2) from its cache, but asks the server for this
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
    """Signal the servers that have ``home/alive`` open."""
    for pid in _find_servers(home):
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            try:
                if _is_server(pid, home):  # the PID was not reused before pidfd_open
                    signal.pidfd_send_signal(pidfd, number)
            finally:
                os.close(pidfd)


def _find_servers(home: str) -> list[int]:
    """Find the servers that have ``home/alive`` open, in /proc."""
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _is_server(int(pid), home)]


def _is_server(pid: int, home: str) -> bool:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            if file.read().strip() != _PROGRAM[:15]:
                return False
        fifo = os.path.realpath(f"{home}/alive")
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") == fifo for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:  # the process has exited, or belongs to another user
        return False
