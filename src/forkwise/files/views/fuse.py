"""The fuse view: fuse-overlayfs, for a layered branch that every process of an unprivileged user sees.

Its server is a process of its own. It holds the FIFO ``home/alive`` open, so that whoever takes the view down can wait
for its end without knowing its number, also when another process started it.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cache
from typing import ClassVar

from forkwise.errors import BranchError, MountError
from forkwise.files.store.view import DetachedMount, Refusal, Site, View
from forkwise.files.views.overlay import dress_like
from forkwise.files.views.whole import state_refusal
from forkwise.linux.mountinfo import is_mount_point, kept_flags
from forkwise.linux.syscalls import MNT_DETACH, MS_RDONLY, MS_REMOUNT, mount, syncfs, umount2

__all__ = ["FuseView"]

_PROGRAM = "fuse-overlayfs"
# fast_ino: without it a file copied up from one of several hard links is not found again after the next mount.
_OPTIONS = "volatile,fast_ino=1,writeback=0"
_PATIENCE = 10.0  # seconds a server may take to end once nothing is mounted


class FuseView(View):
    """A branch served by fuse-overlayfs.

    Two limits are fuse-overlayfs's own. Names that begin with ``.wh.`` are taken for its marks, in the workspace too.
    And a write to a file that has several names in the workspace may land in the layer under another of them.
    """

    name: ClassVar[str] = "fuse"
    whole: ClassVar[bool] = False
    mark_files: ClassVar[frozenset[str]] = frozenset({".wh..opq", ".wh..wh..opq"})

    def refusal(self, site: Site) -> Refusal | None:
        return state_refusal(site) or _missing_part(site) or _failed_trial(site.state)

    def make(self, home: str, lowers: Sequence[str]) -> None:
        os.mkdir(f"{home}/layer")
        os.mkdir(f"{home}/work", 0o700)
        os.mkdir(f"{home}/view", 0o700)
        os.mkfifo(f"{home}/alive", 0o600)
        self.dress(home, lowers[0])

    def dress(self, home: str, lower: str, ahead: DetachedMount | None = None) -> None:
        dress_like(f"{home}/layer", lower)

    def show(self, home: str, lowers: Sequence[str], *, writable: bool, ahead: DetachedMount | None = None) -> str:
        view = f"{home}/view"
        if is_mount_point(view) and not _is_served(view):
            _unmount(home, lazily=True)
        if not is_mount_point(view):
            _start(home, lowers, writable)
        elif _is_writable(view) != writable:
            self._set_writable(home, lowers, writable)
        return view

    def seen(self, home: str) -> str | None:
        view = f"{home}/view"
        return view if is_mount_point(view) and _is_served(view) else None

    def hide(self, home: str) -> bool:
        if is_mount_point(f"{home}/view"):
            try:
                _unmount(home, lazily=False)
            except BlockingIOError:
                _unmount(home, lazily=True)
                return False
        # The server ends with the last mount of its filesystem, in whatever namespace that is.
        return _has_ended(home, _PATIENCE)

    def freeze(self, home: str, lowers: Sequence[str]) -> None:
        view = f"{home}/view"
        if is_mount_point(view) and _is_served(view) and _is_writable(view):
            self._set_writable(home, lowers, False)

    def thaw(self, home: str, lowers: Sequence[str]) -> None:
        if is_mount_point(f"{home}/view"):
            self.show(home, lowers, writable=True)

    def flush(self, home: str) -> None:
        # What was written lies in the kernel's cache first, and reaches the server and the layer from there.
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
                if _has_ended(home, _PATIENCE):
                    return

    def _set_writable(self, home: str, lowers: Sequence[str], writable: bool) -> None:
        view = f"{home}/view"
        try:
            try:
                mount("none", view, None, MS_REMOUNT | kept_flags(view) | (0 if writable else MS_RDONLY))
            except PermissionError:
                _unmount(home, lazily=False)  # only root may remount
                _start(home, lowers, writable)
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EAGAIN):
                raise
            wanted = "writable" if writable else "read-only"
            raise BranchError(
                f"{view} cannot be made {wanted} while processes use it. "
                "Close the files and leave the directories in it, then try again.",
                branch=os.path.basename(home),
            ) from error


def _missing_part(site: Site) -> Refusal | None:
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
            f"the path {site.state} has a colon in it, which {_PROGRAM} takes for a separator",
            "choose a state directory without a colon",
        )
    try:
        with tempfile.TemporaryFile(dir=site.state) as file:
            os.setxattr(file.fileno(), "user.forkwise", b"1")
    except OSError as error:
        return Refusal(
            f"the filesystem of {site.state} has no extended attributes for users ({error.strerror})",
            "choose a state directory on ext4, XFS, btrfs, or tmpfs from Linux 6.6 on",
        )
    return None


@cache
def _failed_trial(state: str) -> Refusal | None:
    """Mount once for real: a container may have every part and still forbid it."""
    view = FuseView()
    with tempfile.TemporaryDirectory(dir=state, prefix=f".probe-{os.getpid()}-") as home:
        os.makedirs(f"{home}/lower/deleted")
        view.make(home, [f"{home}/lower"])
        try:
            os.rmdir(f"{view.show(home, [f'{home}/lower'], writable=True)}/deleted")
            if not os.path.lexists(f"{home}/layer/deleted"):
                # It then makes do with files of special names, which only it can tell from others.
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
    """Start the server; it goes into the background by itself once the mount is up."""
    with ExitStack() as stack:
        # By number, because commas, colons and backslashes in a path would be read as part of the options.
        fds = [os.open(lower, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for lower in lowers]
        fds.append(os.open(f"{home}/alive", os.O_RDWR | os.O_CLOEXEC))
        for fd in fds:
            stack.callback(os.close, fd)
        lower = ":".join(f"/proc/self/fd/{fd}" for fd in fds[:-1])
        options = f"lowerdir={lower},upperdir=layer,workdir=work,{_OPTIONS}" + ("" if writable else ",ro")
        done = subprocess.run(
            [_PROGRAM, "-o", options, "view"],
            cwd=home,
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    if done.returncode or not is_mount_point(f"{home}/view"):
        said = [line for line in os.fsdecode(done.stderr).splitlines() if not line.startswith("unknown argument")]
        reason = "; ".join(said) or f"it ended with status {done.returncode}"
        raise MountError(
            f"the fuse view of {home} could not be mounted: {reason}",
            view=FuseView.name,
            reason=f"{_PROGRAM} says: {reason}",
            remedy="mounting with FUSE must be allowed to this user; in a container: --device /dev/fuse "
            "--cap-add SYS_ADMIN",
        )


def _unmount(home: str, *, lazily: bool) -> None:
    """Take the mount down; BlockingIOError where it is in use and ``lazily`` is not set."""
    try:
        umount2(f"{home}/view", MNT_DETACH if lazily else 0)
        return
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise BlockingIOError(errno.EAGAIN, "in use", f"{home}/view") from error
        if error.errno != errno.EPERM:
            raise
    command = ["fusermount3", "-u", "-z", "view"] if lazily else ["fusermount3", "-u", "view"]
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        if "busy" in done.stderr:
            raise BlockingIOError(errno.EAGAIN, "in use", f"{home}/view")
        raise MountError(
            f"the fuse view of {home} could not be taken down: {done.stderr.strip()}",
            view=FuseView.name,
            reason=done.stderr.strip(),
            remedy="run this as the user who mounted it",
        )


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


def _has_ended(home: str, seconds: float) -> bool:
    """Wait until no server of this branch runs."""
    try:
        fifo = os.open(f"{home}/alive", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        if os.read(fifo, 1) == b"":
            return True
    except BlockingIOError:
        waiting = select.poll()
        waiting.register(fifo, 0)  # a hang-up is always reported
        return bool(waiting.poll(seconds * 1000))
    finally:
        os.close(fifo)
    return False


def _signal_server(home: str, number: signal.Signals) -> None:
    """Signal whoever holds ``home/alive``, found by name in /proc."""
    fifo = os.path.realpath(f"{home}/alive")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or belongs to somebody else
            process = os.pidfd_open(int(pid))
            try:
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    is_server = file.read().strip() == _PROGRAM[:15]
                held = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
                if is_server and fifo in held:
                    signal.pidfd_send_signal(process, number)
            finally:
                os.close(process)
