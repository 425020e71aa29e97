"""Where forkwise keeps what it knows of a workspace: beside it on the same filesystem, never inside it.

<state>/lock            held shared to fork, exclusively to commit; touched to read the filesystem's own clock
<state>/head/<n>        a name that is the number of the last commit; <n>+ while another is under way
<state>/history/<n>/    one commit: its record, the old content of what it changed, and the home of what was committed
<state>/stage           a symlink that names a directory inside the workspace, while a commit needs one there
<state>/branches/<b>/   one branch; inside it the same head, history and branches, for what forks from it
<state>/rewind          a symlink that says what a rewind over several commits is for, while one is under way
<state>/trash/          what is gone already and is being deleted
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
_TICKS = 6000  # of half a millisecond: the coarsest clock waited for is one of two seconds
_BEGUN = "+"
_TRIES = 1000


class Lock:
    """The workspace's lock, held. It carries the filesystem's clock, because its file lies on that filesystem."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        # Said aloud: a child forked meanwhile holds a copy of the descriptor, and would hold the lock with it.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        fds.close(self._fd)

    def now(self) -> int:
        """A moment by the filesystem's clock, in nanoseconds.

        Every change made before has a ctime below it, every change made from now on has one at or above it. Where the
        kernel's timestamps are multigrain the second touch is enough for that; elsewhere the clock's next tick is
        waited for.
        """
        return tick(self._fd)


def tick(fd: int) -> int:
    """Make the time of a file, its change time and its modification time, a moment as ``Lock.now`` gives it."""
    os.utime(fd)
    first = os.fstat(fd).st_ctime_ns
    for _ in range(_TICKS):
        os.utime(fd)
        now = os.fstat(fd).st_ctime_ns
        if now > first:
            return now
        time.sleep(0.0005)
    raise MountError(f"the clock of the filesystem that holds {os.readlink(f'/proc/self/fd/{fd}')} stands still")


def locked(state: str, *, shared: bool = False) -> Lock:
    """Take the workspace's lock, across threads and processes alike; it goes with the process that holds it."""
    try:
        fd = fds.track(lambda: os.open(f"{state}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except FileNotFoundError:
        raise MountError(f"the state directory {state} is gone; open the workspace again") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    except BaseException:
        fds.close(fd)
        raise
    return Lock(fd)


class StateDir:
    """What commits go into, a workspace or a branch: its head, its history and the branches made from it."""

    __slots__ = ("_rested", "path", "state")

    def __init__(self, path: str, state: str) -> None:
        self.path = path
        self.state = state
        self._rested = 0  # where it was last seen to rest

    @property
    def head(self) -> int:
        """The number of the last commit; 0 before the first."""
        return self._look()[0]

    def settled_head(self) -> int | None:
        """The number of the last commit while none is under way; None where one is, or its process was killed.

        A quick question, for who holds the lock. After a loss of power only ``is_interrupted`` knows.
        """
        if not os.path.lexists(f"{self.path}/head/{self._rested}"):
            number, is_begun = self._look()
            if is_begun:
                return None
            self._rested = number
        return self._rested

    def begin(self) -> None:
        """Say that a commit is under way, before anything of it is there."""
        number = self.head
        os.rename(f"{self.path}/head/{number}", f"{self.path}/head/{number}{_BEGUN}")

    def advance(self, number: int, *, rests: bool) -> None:
        """Make a commit the last one. This rename is the moment at which a commit has happened; unless it ``rests``,
        something is still to be done about it."""
        end = "" if rests else _BEGUN
        os.rename(f"{self.path}/head/{number - 1}{_BEGUN}", f"{self.path}/head/{number}{end}")

    def rest(self) -> None:
        """Say that nothing is under way any more, if it was said that something is."""
        number, is_begun = self._look()
        if is_begun:
            os.rename(f"{self.path}/head/{number}{_BEGUN}", f"{self.path}/head/{number}")

    def _look(self) -> tuple[int, bool]:
        """The number of the last commit, and whether another is under way."""
        for _ in range(_TRIES):
            try:
                names = os.listdir(f"{self.path}/head")
            except FileNotFoundError:
                return 0, False
            if names:
                return max((int(n.removesuffix(_BEGUN)), n.endswith(_BEGUN)) for n in names)
            time.sleep(0)  # who reads without the lock may miss a name that is just being renamed
        raise MountError(f"the state in {self.path} is damaged: its head is empty")

    def make(self) -> None:
        """Make the directories of one that branches are made from, whoever else is about to."""
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
            os.rmdir(f"{beside}/0")  # somebody else was quicker
            os.rmdir(beside)

    def history(self, number: int) -> str:
        """Where a commit is recorded."""
        return f"{self.path}/history/{number}"

    def home(self, name: str) -> str:
        """Where a branch of this place lives."""
        return f"{self.path}/branches/{name}"

    def names(self) -> list[str]:
        """The branches made from this place; those still being made or already going are not among them."""
        try:
            return sorted(n for n in os.listdir(f"{self.path}/branches") if not n.startswith("."))
        except FileNotFoundError:
            return []

    @property
    def is_interrupted(self) -> bool:
        """Whether a commit was begun and not brought to its end: one is under way, or its process was killed."""
        number, is_begun = self._look()
        # After a loss of power that may have been begun of which the head does not know.
        return is_begun or os.path.lexists(self.history(number + 1)) or os.path.lexists(f"{self.path}/stage")


def locate(path: str | os.PathLike[str], state: str | os.PathLike[str] | None = None) -> Site:
    """Find (and make) the state directory of a workspace.

    In this order: where ``state`` or $FORKWISE_STATE says; the user's state directory, if it is on the workspace's
    filesystem; a hidden directory beside the workspace or beside one of its parents; the user's state directory even
    though it is on another filesystem.
    """
    workspace = os.path.realpath(path)
    if not os.path.isdir(workspace):
        raise MountError(
            f"{os.fspath(path)!r} is not a directory: a workspace is an existing directory",
            reason="not a directory",
            remedy="create it first, or check the path",
        )
    key = _key(workspace)
    given = os.fspath(state) if state is not None else os.environ.get("FORKWISE_STATE")
    roots = [os.path.abspath(given)] if given else _roots(workspace)
    made = [r for r in roots if os.path.isdir(f"{r}/{key}")]
    problems = []
    for root in made or roots:
        problem = _unfit(root, workspace) or _make(root, f"{root}/{key}")
        if problem is None:
            return Site(workspace, os.path.realpath(f"{root}/{key}"))
        problems.append(f"{root}: {problem}")
    raise MountError(
        f"no place for the state of {workspace} ({'; '.join(problems)}); name a directory outside it in FORKWISE_STATE",
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


def _unfit(root: str, workspace: str) -> str | None:
    inside = os.path.realpath(root) + "/"
    if inside.startswith(workspace.rstrip("/") + "/"):
        return "it lies inside the workspace"
    try:
        held = os.stat(root)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror
    if held.st_uid != os.geteuid() and held.st_mode & 0o022:
        return "somebody else owns it and others may write to it"
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
    """Whether a path is on one of the filesystems nearly everything is on, and so on none that branches by itself."""
    return filesystem_magic(os.fspath(path)) in _ORDINARY


def same_mount(first: str, second: str) -> bool:
    """Whether a file can be renamed from one directory to the other: same device, same mount."""
    try:
        one, two = os.stat(first), os.stat(second)
        if one.st_dev != two.st_dev:
            return False
        return _is_same_mount(first, second, one.st_dev, one.st_ino, two.st_ino)
    except OSError:
        return False


@lru_cache(maxsize=256)
def _is_same_mount(first: str, second: str, *_identities: int) -> bool:
    """Remembered for as long as both paths lead to the same directories."""
    return _mount_of(first) == _mount_of(second)


def _mount_of(path: str) -> bytes:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return mount_id(fd)
    finally:
        os.close(fd)
