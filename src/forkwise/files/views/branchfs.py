"""BranchFS: the driver for a workspace that is itself a BranchFS mount, whose branches that filesystem makes itself.

No View: BranchFS creates, commits and aborts through a control file in every branch. Newer builds take ioctls there,
older ones answer ENOTTY and take the same as text.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from forkwise.errors import AbortError, BranchError, BranchNotFoundError, BranchStaleError, CommitError, MountError
from forkwise.linux.mountinfo import Mount, holding, mounts

__all__ = ["ABORT", "COMMIT", "CREATE", "BranchFS", "find_mount", "is_branchfs", "mount_branchfs", "unmount_branchfs"]

_MAGIC = ord("b")
_NAME_SIZE = 128
CREATE = 2 << 30 | _NAME_SIZE << 16 | _MAGIC << 8 | 0  # _IOR('b', 0, char[128])
COMMIT = _MAGIC << 8 | 1  # _IO('b', 1)
ABORT = _MAGIC << 8 | 2  # _IO('b', 2)

_CONTROL = ".branchfs_ctl"
_NAME = re.compile(r"[^\s/@\0][^\s/\0]*")
_PATIENCE = 30.0  # seconds a new mount may take to appear


class BranchFS:
    """One BranchFS mount.

    Its builds are known to lose what is written to the mount's own directory, to drop empty directories on commit, and
    to let a loser be written after a sibling's commit: whoever drives it has to guard against that.
    """

    def __init__(self, mount: str) -> None:
        self.mount = mount

    def path(self, name: str) -> str:
        """Where a branch is seen."""
        return f"{self.mount}/@{name}"

    def create(self, name: str, parent: str | None = None) -> str:
        """Make a branch of ``parent``, or of what the mount shows; gives the name the filesystem knows it by."""
        if not _NAME.fullmatch(name) or len(os.fsencode(name)) >= _NAME_SIZE:
            raise BranchError(
                f"{name!r} cannot name a BranchFS branch: it is empty, too long, or has spaces, '/' or a leading '@'",
                branch=name,
            )
        given = bytearray(_NAME_SIZE)
        try:
            with self._control(parent) as control:
                if _ioctl(control, CREATE, given):
                    return os.fsdecode(bytes(given).split(b"\0")[0])
                os.write(control, os.fsencode(f"create:{name}"))
                return name
        except OSError as error:
            raise _explain(
                error, BranchError, f"a branch of {parent or 'the mount'} could not be made", name
            ) from error

    def commit(self, name: str) -> None:
        """Merge a branch into its parent; the branch is gone then."""
        try:
            with self._control(name) as control:
                if not _ioctl(control, COMMIT):
                    os.write(control, b"commit")
        except OSError as error:
            raise _explain(error, CommitError, f"{self.path(name)} could not be committed", name) from error

    def abort(self, name: str) -> None:
        """Drop a branch with all that was written to it."""
        try:
            with self._control(name) as control:
                if not _ioctl(control, ABORT):
                    os.write(control, b"abort")
        except OSError as error:
            raise _explain(error, AbortError, f"{self.path(name)} could not be aborted", name) from error

    @contextmanager
    def _control(self, name: str | None) -> Iterator[int]:
        directory = self.mount if name is None else self.path(name)
        try:
            control = os.open(f"{directory}/{_CONTROL}", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise BranchNotFoundError(
                f"there is no branch at {directory}: it was committed or aborted, or {self.mount} is not mounted",
                branch=name,
            ) from None
        try:
            yield control
        finally:
            with suppress(OSError):  # the file has gone with its branch, which is no failure of what was done
                os.close(control)


def is_branchfs(mount: Mount) -> bool:
    """Whether a mount is one of BranchFS, seen from its top."""
    return mount.root == "/" and (
        mount.fstype == "fuse.branchfs" or (mount.fstype == "fuse" and mount.source == "branchfs")
    )


def find_mount(path: str) -> str | None:
    """The BranchFS mount a path lies on; None where it lies on something else."""
    found = holding(os.path.realpath(path), mounts())
    return found.point if found is not None and is_branchfs(found) else None


def mount_branchfs(binary: str, base: str, mountpoint: str, storage: str | None = None) -> BranchFS:
    """Mount a base directory with a BranchFS binary, which starts its server if there is none."""
    where = [] if storage is None else ["--storage", storage]
    _run([binary, "mount", "--base", base, *where, mountpoint], f"{base} could not be mounted at {mountpoint}")
    if not _appears(mountpoint, _PATIENCE):
        raise MountError(f"{binary} reported success, but nothing is mounted at {mountpoint}", view="branchfs")
    return BranchFS(os.path.realpath(mountpoint))


def unmount_branchfs(binary: str, mountpoint: str, storage: str | None = None) -> None:
    """Unmount what ``mount_branchfs`` mounted; its server ends with the last mount."""
    where = [] if storage is None else ["--storage", storage]
    _run([binary, "unmount", *where, mountpoint], f"{mountpoint} could not be unmounted")


def _ioctl(control: int, request: int, answer: bytearray | None = None) -> bool:
    """Ask by ioctl; False where this build has none and has to be told in words."""
    try:
        if answer is None:
            fcntl.ioctl(control, request)
        else:
            fcntl.ioctl(control, request, answer)
    except OSError as error:
        if error.errno != errno.ENOTTY:
            raise
        return False
    return True


def _explain(error: OSError, failure: type[BranchError], what: str, name: str) -> BranchError:
    if error.errno == errno.ESTALE:
        return BranchStaleError(
            f"{what}: a sibling was committed first, so what it was forked from is gone. Fork again.", branch=name
        )
    if error.errno == errno.EIO:
        return failure(
            f"{what}: BranchFS answers EIO. It may have children; commit or abort those first. "
            "Else see the log of its server.",
            branch=name,
        )
    return failure(f"{what}: {error.strerror}", branch=name)


def _run(command: list[str], what: str) -> None:
    # Not a pipe: the server this may start keeps it open, and reading would never end.
    with tempfile.TemporaryFile() as said:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, check=False
            )
            said.seek(0)
            reason = os.fsdecode(said.read()).strip()
            failed = done.returncode != 0
        except OSError as error:
            failed, reason = True, f"{command[0]}: {error.strerror}"
    if failed:
        raise MountError(f"{what}: {reason}", view="branchfs", reason=reason, remedy="check the binary and its storage")


def _appears(mountpoint: str, seconds: float) -> bool:
    """Wait for a mount, woken by the kernel at every change of the mount table."""
    until = time.monotonic() + seconds
    table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
    try:
        changes = select.poll()
        changes.register(table, select.POLLPRI)
        while find_mount(mountpoint) is None:
            left = until - time.monotonic()
            if left <= 0:
                return False
            changes.poll(left * 1000)
    finally:
        os.close(table)
    return True
