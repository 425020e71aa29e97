"""The driver for a workspace that is itself a BranchFS mount, whose branches the filesystem creates itself.

BranchFS creates, commits and aborts through a control file in every branch. Newer builds accept ioctls there; older
ones return ENOTTY and accept the same commands as text.
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
from forkwise.linux.mountinfo import MountEntry, find_entry, mounts
from forkwise.linux.syscalls import MNT_DETACH, umount2

__all__ = [
    "ABORT",
    "COMMIT",
    "CONTROL_FILE",
    "CREATE",
    "BranchFS",
    "detach_branchfs",
    "find_mount",
    "is_branchfs",
    "mount_branchfs",
    "unmount_branchfs",
]

_MAGIC = ord("b")
_NAME_SIZE = 128
CREATE = 2 << 30 | _NAME_SIZE << 16 | _MAGIC << 8 | 0  # _IOR('b', 0, char[128])
COMMIT = _MAGIC << 8 | 1  # _IO('b', 1)
ABORT = _MAGIC << 8 | 2  # _IO('b', 2)

#: The file at the root of the mount and of every branch that accepts commands.
CONTROL_FILE = ".branchfs_ctl"

_NAME = re.compile(r"[^\s/@\0][^\s/\0]*")
_MOUNT_TIMEOUT_S = 30.0


class BranchFS:
    """One BranchFS mount.

    Its builds are known to lose writes to the mount's own directory, to drop empty directories on commit, and to allow
    writes to a loser after a sibling's commit: the caller has to guard against that.
    """

    def __init__(self, mount: str) -> None:
        self.mount = mount

    def path(self, name: str) -> str:
        """Return the path at which a branch is visible."""
        return f"{self.mount}/@{name}"

    def split(self, path: str) -> tuple[str | None, str]:
        """Split a path below the mount into the branch that shows it (None: main) and the path inside the branch.

        BranchFS shows a nested branch at ``/@inner`` and at ``/@outer/@inner``.
        """
        parts = [part for part in path[len(self.mount) :].split("/") if part]
        branch = None
        while parts and parts[0].startswith("@") and self.exists(parts[0][1:]):
            branch = parts.pop(0)[1:]
        return branch, "/".join(parts)

    def exists(self, name: str) -> bool:
        """Return whether there is a branch of that name. Raises MountError if the server does not answer."""
        try:
            os.stat(f"{self.path(name)}/{CONTROL_FILE}")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise MountError(
                f"{self.mount} does not answer: {error.strerror}",
                view="branchfs",
                reason=error.strerror or "",
                remedy="unmount it, and mount it again",
            ) from error
        return True

    def is_own_name(self, name: str) -> bool:
        """Return whether an entry at the root of a branch belongs to BranchFS: a control file, or another branch."""
        return name == CONTROL_FILE or name.startswith("@")

    def create(self, name: str, parent: str | None = None) -> str:
        """Create a branch of ``parent``, or of the mount's current content, and return the name that BranchFS uses."""
        if not _NAME.fullmatch(name) or len(os.fsencode(name)) >= _NAME_SIZE:
            raise BranchError(
                f"{name!r} cannot name a BranchFS branch: it is empty, too long, or has spaces, '/' or a leading '@'",
                branch=name,
            )
        reply = bytearray(_NAME_SIZE)
        try:
            with self._control(parent) as control:
                if _ioctl(control, CREATE, reply):
                    return os.fsdecode(bytes(reply).split(b"\0")[0])
                os.write(control, os.fsencode(f"create:{name}"))
                return name
        except OSError as error:
            raise _explain(
                error, BranchError, f"a branch of {parent or 'the mount'} could not be created", name
            ) from error

    def commit(self, name: str) -> None:
        """Merge a branch into its parent, and drop it."""
        try:
            with self._control(name) as control:
                if not _ioctl(control, COMMIT):
                    os.write(control, b"commit")
        except OSError as error:
            raise _explain(error, CommitError, f"{self.path(name)} could not be committed", name) from error

    def abort(self, name: str, *, nested: bool = False) -> None:
        """Drop a branch with everything written to it, whether it is ``nested`` in another or not."""
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
            control = os.open(f"{directory}/{CONTROL_FILE}", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise BranchNotFoundError(
                f"there is no branch at {directory}: it was committed or aborted, or {self.mount} is not mounted",
                branch=name,
            ) from None
        try:
            yield control
        finally:
            with suppress(OSError):  # the file disappears with its branch, which is not an error
                os.close(control)


def is_branchfs(mount: MountEntry) -> bool:
    """Return whether a mount is the root of a BranchFS."""
    return mount.root == "/" and (
        mount.fstype == "fuse.branchfs" or (mount.fstype == "fuse" and mount.source == "branchfs")
    )


def find_mount(path: str) -> str | None:
    """Return the mount point of the BranchFS that contains a path; None if it is on another filesystem."""
    found = find_entry(os.path.realpath(path), mounts())
    return found.point if found is not None and is_branchfs(found) else None


def mount_branchfs(binary: str, base: str, mountpoint: str, storage: str | None = None) -> BranchFS:
    """Mount a base directory with a BranchFS binary, which starts its server if none runs."""
    options = [] if storage is None else ["--storage", storage]
    _run([binary, "mount", "--base", base, *options, mountpoint], f"{base} could not be mounted at {mountpoint}")
    if not _wait_for_mount(mountpoint, _MOUNT_TIMEOUT_S):
        raise MountError(f"{binary} reported success, but nothing is mounted at {mountpoint}", view="branchfs")
    return BranchFS(os.path.realpath(mountpoint))


def unmount_branchfs(binary: str, mountpoint: str, storage: str | None = None) -> None:
    """Unmount what ``mount_branchfs`` mounted; the server exits with its last mount."""
    options = [] if storage is None else ["--storage", storage]
    _run([binary, "unmount", *options, mountpoint], f"{mountpoint} could not be unmounted")


def detach_branchfs(mountpoint: str) -> None:
    """Unmount a BranchFS mount whose program is not known; its server exits with its last mount."""
    try:
        umount2(mountpoint, MNT_DETACH)
    except PermissionError:
        subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=False, capture_output=True)


def _ioctl(control: int, request: int, reply: bytearray | None = None) -> bool:
    """Send a request by ioctl; return False if this build accepts only text."""
    try:
        if reply is None:
            fcntl.ioctl(control, request)
        else:
            fcntl.ioctl(control, request, reply)
    except OSError as error:
        if error.errno != errno.ENOTTY:
            raise
        return False
    return True


def _explain(error: OSError, failure: type[BranchError], message: str, name: str) -> BranchError:
    if error.errno == errno.ESTALE:
        return BranchStaleError(f"{message}: a sibling was committed first. Fork again.", branch=name)
    if error.errno == errno.EIO:
        return failure(
            f"{message}: BranchFS returned EIO. The branch may have children; commit or abort those first. "
            "Otherwise see the log of its server.",
            branch=name,
        )
    return failure(f"{message}: {error.strerror}", branch=name)


def _run(command: list[str], message: str) -> None:
    # A file, not a pipe: the server that this may start keeps a pipe open, and reading it would never end.
    with tempfile.TemporaryFile() as stderr:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, check=False
            )
            stderr.seek(0)
            reason = os.fsdecode(stderr.read()).strip()
            failed = done.returncode != 0
        except OSError as error:
            failed, reason = True, f"{command[0]}: {error.strerror}"
    if failed:
        remedy = "check the binary and its storage"
        raise MountError(f"{message}: {reason}", view="branchfs", reason=reason, remedy=remedy)


def _wait_for_mount(mountpoint: str, timeout_s: float) -> bool:
    """Wait for a mount, woken by the kernel at every change of the mount table; return False after the timeout."""
    until = time.monotonic() + timeout_s
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
