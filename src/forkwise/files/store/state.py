"""The state directory of a workspace: its layout, its lock, and the filesystem's clock.

It is on the workspace's filesystem if possible, and never inside the workspace.

<state>/lock            held shared to fork, exclusively to commit; touched to read the filesystem's own clock
<state>/head/<n>        an empty directory named after the last commit; <n>+ while a commit is in progress
<state>/history/<n>/    one commit: its record, the old content of what it changed, and the home of the branch
<state>/stage           a symlink that names a directory inside the workspace, while a commit needs one there
<state>/branches/<b>/   one branch; it contains head, history and branches too, for branches forked from it
<state>/rewind          a symlink that names the goal of a rewind over several commits, while one is in progress
<state>/trash/          entries that were removed and are being deleted
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import threading
import time
from functools import lru_cache

from forkwise.errors import MountError
from forkwise.files.store.view import Site
from forkwise.linux import fds
from forkwise.linux.syscalls import filesystem_magic
from forkwise.linux.trees import mount_id

__all__ = ["Lock", "StateDir", "is_ordinary", "locate", "locked", "same_mount", "tick"]

_ORDINARY = (0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630)  # ext, XFS, btrfs, tmpfs, overlay
_TICKS = 6000  # of half a millisecond: enough for a clock with a resolution of two seconds
_IN_PROGRESS = "+"
_TRIES = 1000


class Lock:
    """The acquired lock of a workspace; its file also serves to read the filesystem's clock."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        # Explicitly: closing does not unlock as long as a forked child has a copy of the descriptor.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        fds.close(self._fd)

    def now(self) -> int:
        """Return the current time by the filesystem's clock, in nanoseconds.

        Every earlier change has a ctime below it, every later change one at or above it. With multigrain timestamps
        (Linux 6.13) the second touch of the lock file guarantees that; otherwise this waits for the clock's next tick.
        """
        return tick(self._fd)


def tick(fd: int) -> int:
    """Set ctime and mtime of a file to the current time, as ``Lock.now`` defines it, and return that time."""
    os.utime(fd)
    first = os.fstat(fd).st_ctime_ns
    for _ in range(_TICKS):
        os.utime(fd)
        now = os.fstat(fd).st_ctime_ns
        if now > first:
            return now
        time.sleep(0.0005)
    raise MountError(f"the clock of the filesystem of {os.readlink(f'/proc/self/fd/{fd}')} does not advance")


def locked(state: str, *, shared: bool = False) -> Lock:
    """Acquire the workspace's lock against threads and processes; the kernel releases it if the process dies."""
    try:
        fd = fds.track(lambda: os.open(f"{state}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except FileNotFoundError:
        raise MountError(f"the state directory {state} was deleted; open the workspace again") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    except BaseException:
        fds.close(fd)
        raise
    return Lock(fd)


class StateDir:
    """The state of a workspace or a branch: its head, its history, and the branches forked from it."""

    __slots__ = ("_last_settled", "path", "state")

    def __init__(self, path: str, state: str) -> None:
        self.path = path
        self.state = state
        self._last_settled = 0

    @property
    def head(self) -> int:
        """The number of the last commit; 0 before the first."""
        return self._read_head()[0]

    def settled_head(self) -> int | None:
        """Return the number of the last commit; None if a commit is in progress, or its process was killed.

        A fast check for a caller that holds the lock. After a power failure only ``is_interrupted`` is reliable.
        """
        if not os.path.lexists(f"{self.path}/head/{self._last_settled}"):
            number, is_in_progress = self._read_head()
            if is_in_progress:
                return None
            self._last_settled = number
        return self._last_settled

    def begin(self) -> None:
        """Mark a commit as in progress, before it creates anything."""
        number = self.head
        os.rename(f"{self.path}/head/{number}", f"{self.path}/head/{number}{_IN_PROGRESS}")

    def advance(self, number: int, *, settled: bool) -> None:
        """Make a commit the last one: this rename is the moment at which the commit takes effect.

        If it is not ``settled``, cleaning up remains to be done, and ``settle`` follows.
        """
        end = "" if settled else _IN_PROGRESS
        os.rename(f"{self.path}/head/{number - 1}{_IN_PROGRESS}", f"{self.path}/head/{number}{end}")

    def settle(self) -> None:
        """Remove the mark of a commit in progress, if there is one."""
        number, is_in_progress = self._read_head()
        if is_in_progress:
            os.rename(f"{self.path}/head/{number}{_IN_PROGRESS}", f"{self.path}/head/{number}")

    def _read_head(self) -> tuple[int, bool]:
        """Return the number of the last commit, and whether another is in progress."""
        for _ in range(_TRIES):
            try:
                names = os.listdir(f"{self.path}/head")
            except FileNotFoundError:
                return 0, False
            if names:
                return max((int(n.removesuffix(_IN_PROGRESS)), n.endswith(_IN_PROGRESS)) for n in names)
            time.sleep(0)  # a reader without the lock may miss a name that is being renamed
        raise MountError(f"the state in {self.path} is damaged: its head is empty")

    def make(self) -> None:
        """Create the directories that a parent of branches needs; another process may do the same."""
        for name in ("history", "branches"):
            os.makedirs(f"{self.path}/{name}", mode=0o700, exist_ok=True)
        if os.path.isdir(f"{self.path}/head"):
            return
        beside = f"{self.path}/.head-{os.getpid()}-{threading.get_ident()}"
        os.makedirs(f"{beside}/0", mode=0o700, exist_ok=True)
        try:
            os.rename(beside, f"{self.path}/head")
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            os.rmdir(f"{beside}/0")  # another process was faster
            os.rmdir(beside)

    def history(self, number: int) -> str:
        """Return the directory of a commit."""
        return f"{self.path}/history/{number}"

    def home(self, name: str) -> str:
        """Return the home directory of a branch."""
        return f"{self.path}/branches/{name}"

    def names(self) -> list[str]:
        """List the branches forked from here, without those that are being created or removed."""
        try:
            return sorted(n for n in os.listdir(f"{self.path}/branches") if not n.startswith("."))
        except FileNotFoundError:
            return []

    @property
    def is_interrupted(self) -> bool:
        """Whether a commit was started and not finished: it is in progress, or its process was killed."""
        number, is_in_progress = self._read_head()
        # After a power failure the mark in the head may be missing although a commit had started.
        return is_in_progress or os.path.lexists(self.history(number + 1)) or os.path.lexists(f"{self.path}/stage")


def locate(
    path: str | os.PathLike[str], state: str | os.PathLike[str] | None = None, *, outside: str | None = None
) -> Site:
    """Find, or create, the state directory of a workspace.

    In this order: the directory in ``state`` or $FORKWISE_STATE; the user's state directory, if it is on the
    workspace's filesystem; a hidden directory next to the workspace or next to one of its parents; the user's state
    directory even though it is on another filesystem. ``outside`` is the mount point of a filesystem with branches of
    its own; the state must not be there, and is not that of the directory below the mount.
    """
    workspace = os.path.realpath(path)
    if not os.path.isdir(workspace):
        raise MountError(
            f"{os.fspath(path)!r} is not a directory: a workspace is an existing directory",
            reason="not a directory",
            remedy="create it first, or check the path",
        )
    key = _key(workspace) if outside is None else f"{_key(workspace)}-mounted"
    outside = outside or workspace
    given = os.fspath(state) if state is not None else os.environ.get("FORKWISE_STATE")
    roots = [os.path.abspath(given)] if given else _roots(outside)
    made = [r for r in roots if os.path.isdir(f"{r}/{key}")]
    problems = []
    for root in made or roots:
        problem = _find_problem(root, outside) or _make(root, f"{root}/{key}")
        if problem is None:
            return Site(workspace, os.path.realpath(f"{root}/{key}"))
        problems.append(f"{root}: {problem}")
    raise MountError(
        f"no directory is usable for the state of {workspace} ({'; '.join(problems)}); "
        "set FORKWISE_STATE to a directory outside it",
        reason="; ".join(problems),
        remedy="set FORKWISE_STATE to a writable directory outside the workspace, best on the same filesystem",
    )


def _key(workspace: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(workspace))[:40]
    return f"{name or 'root'}-{hashlib.sha256(os.fsencode(workspace)).hexdigest()[:16]}"


def _roots(workspace: str) -> list[str]:
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    of_user = f"{home}/forkwise"
    roots = [of_user] if same_mount(_existing(home), workspace) else []
    parent = workspace
    while parent != "/":
        parent = os.path.dirname(parent)
        if not same_mount(parent, workspace):
            break
        roots.append(f"{parent.rstrip('/')}/.forkwise-{os.geteuid()}")
    return roots if of_user in roots else [*roots, of_user]


def _existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _find_problem(root: str, workspace: str) -> str | None:
    inside = os.path.realpath(root) + "/"
    if inside.startswith(workspace.rstrip("/") + "/"):
        return "it is inside the workspace"
    try:
        found = os.stat(root)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror
    if found.st_uid != os.geteuid() and found.st_mode & 0o022:
        return "it belongs to another user, and others may write to it"
    return None


def _make(root: str, state: str) -> str | None:
    try:
        for path in (root, state, f"{state}/trash"):
            os.makedirs(path, mode=0o700, exist_ok=True)
        StateDir(state, state).make()
    except OSError as error:
        return error.strerror or errno.errorcode.get(error.errno or 0, "error")
    return None if os.access(state, os.W_OK) else "not writable"


def is_ordinary(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is on a common filesystem, and so not on BranchFS or DaxFS."""
    return filesystem_magic(os.fspath(path)) in _ORDINARY


def same_mount(first: str, second: str) -> bool:
    """Return whether a file can be renamed from one directory to the other: same device, same mount."""
    try:
        one, two = os.stat(first), os.stat(second)
        if one.st_dev != two.st_dev:
            return False
        return _is_same_mount(first, second, one.st_dev, one.st_ino, two.st_ino)
    except OSError:
        return False


@lru_cache(maxsize=256)
def _is_same_mount(first: str, second: str, *_identities: int) -> bool:
    """Compare the mounts of two paths; cached as long as both paths lead to the same directories."""
    return _mount_of(first) == _mount_of(second)


def _mount_of(path: str) -> bytes:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return mount_id(fd)
    finally:
        os.close(fd)
