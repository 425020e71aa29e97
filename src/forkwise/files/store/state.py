"""The state directory of a workspace: its layout, its lock, and the filesystem's clock.

It is on the workspace's filesystem if possible, and never inside the workspace.

<state>/workspace.json  the path of the workspace, and the number of this layout's format
<state>/lock            held shared to fork, exclusively to commit; touched to read the filesystem's own clock
<state>/head/<n>        an empty directory named after the last commit; <n>+ while a commit is in progress
<state>/history/<n>/    one commit: its record, the old content of what it changed, and the home of the branch
<state>/stage           a symlink that names a directory inside the workspace, while a commit needs one there
<state>/branches/<b>/   one branch; it contains head, history and branches too, for branches forked from it
<state>/rolled-back     a symlink that exists once the record of a rolled-back commit was kept in the history
<state>/pause.lock      held while processes that use a data directory are paused, so that a branch of it can be made
<state>/rewind          a symlink that names the goal of a rewind over several commits, while one is in progress
<state>/worktrees/<w>/  one git worktree: its record and, if it is mounted, its layer
<state>/damaged/        what could not be read, and was set aside
<state>/trash/          entries that were removed and are being deleted
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import threading
import time
import warnings
from contextlib import suppress

from forkwise.errors import ForkwiseWarning, MountError, NewerStateError, StateError
from forkwise.files.store.document import read_document
from forkwise.files.store.state_root import (
    find_problem,
    find_root_problem,
    is_own,
    key_of,
    list_roots,
    remember_root,
    same_mount,
    user_roots,
)
from forkwise.files.store.view import Site
from forkwise.linux import fds
from forkwise.linux.file_write import replace_file
from forkwise.linux.syscalls import filesystem_magic
from forkwise.linux.trees import open_directory, open_root

__all__ = [
    "DAMAGED",
    "FORMAT",
    "Lock",
    "StateDir",
    "is_ordinary",
    "locate",
    "locked",
    "read_workspace",
    "same_mount",
    "tick",
]

#: The newest format of state that this version reads and writes.
FORMAT = 1

_ORDINARY = (0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630)  # ext, XFS, btrfs, tmpfs, overlay
_TICKS = 6000  # of half a millisecond: enough for a clock with a resolution of two seconds
_IN_PROGRESS = "+"
_HEAD = re.compile(r"[0-9]{1,15}\+?\Z", re.ASCII)
_TRIES = 1000
_WORKSPACE = "workspace.json"

#: The directory, in a state directory, of what was damaged and set aside.
DAMAGED = "damaged"


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

    __slots__ = ("_is_checked", "_last_settled", "has_no_rolled_back", "path", "state")

    def __init__(self, path: str, state: str) -> None:
        self.path = path
        self.state = state
        self._last_settled: int | None = None  # the head when it was last read, unless a commit was in progress
        #: Whether its history was found to have no records of rolled-back commits; see ``record.RolledBack``.
        self.has_no_rolled_back = False
        self._is_checked = False  # whether ``is_interrupted`` has looked for what a power failure left

    @property
    def head(self) -> int:
        """The number of the last commit; 0 before the first."""
        return self._read_head()[0]

    def settled_head(self) -> int | None:
        """Return the number of the last commit; None if a commit is in progress, or its process was killed.

        A fast check for a caller that holds the lock. After a power failure only ``is_interrupted`` is reliable.
        """
        number, is_in_progress = self._read_head()
        return None if is_in_progress else number

    def begin(self, number: int | None = None) -> None:
        """Mark a commit as in progress, before it creates anything; ``number`` is the head, if the caller knows it."""
        number = self.head if number is None else number
        os.rename(f"{self.path}/head/{number}", f"{self.path}/head/{number}{_IN_PROGRESS}")

    def advance(self, number: int, *, settled: bool) -> None:
        """Make a commit the last one: this rename is the moment at which the commit takes effect.

        If it is not ``settled``, cleaning up remains to be done, and ``settle`` follows.
        """
        end = "" if settled else _IN_PROGRESS
        os.rename(f"{self.path}/head/{number - 1}{_IN_PROGRESS}", f"{self.path}/head/{number}{end}")
        if settled:
            self._last_settled = number

    def settle(self) -> None:
        """Remove the mark of a commit in progress, if there is one."""
        number, is_in_progress = self._read_head()
        if is_in_progress:
            os.rename(f"{self.path}/head/{number}{_IN_PROGRESS}", f"{self.path}/head/{number}")

    def _read_head(self) -> tuple[int, bool]:
        """Return the number of the last commit, and whether another is in progress."""
        if self._last_settled is not None and os.path.lexists(f"{self.path}/head/{self._last_settled}"):
            return self._last_settled, False
        for _ in range(_TRIES):
            try:
                names = os.listdir(f"{self.path}/head")
            except FileNotFoundError:
                return 0, False
            if heads := [
                (int(n.removesuffix(_IN_PROGRESS)), n.endswith(_IN_PROGRESS)) for n in names if _HEAD.match(n)
            ]:
                number, is_in_progress = max(heads)
                self._last_settled = None if is_in_progress else number
                return number, is_in_progress
            time.sleep(0)  # a reader without the lock may miss a name that is being renamed
        raise StateError(f"{self.path}/head", "it does not name the last commit")

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

    def numbers(self) -> list[int]:
        """List the commits whose directories exist, newest first."""
        try:
            names = os.listdir(f"{self.path}/history")
        except FileNotFoundError:
            return []
        return sorted((int(n) for n in names if _HEAD.match(n) and n.isdigit()), reverse=True)

    def beneath(self, path: str) -> str:
        """Return the path of a directory of this state. Raises StateError if a symlink or a mount is on the way."""
        root = open_root(self.path)
        try:
            os.close(open_directory(root, path, os.O_PATH))
        except OSError as error:
            raise StateError(f"{self.path}/{path}", error.strerror or str(error)) from error
        finally:
            os.close(root)
        return f"{self.path}/{path}"

    def set_aside(self, path: str, error: StateError, *, warns: bool = True) -> str:
        """Move a damaged file or directory out of use, keep it, and warn the caller. Return where it is now."""
        aside = f"{self.state}/{DAMAGED}"
        os.makedirs(aside, mode=0o700, exist_ok=True)
        kept = f"{aside}/{os.path.basename(path)}-{os.urandom(4).hex()}"
        os.rename(path, kept)
        if not warns:
            return kept
        warnings.warn(
            f"{path} was damaged and was not used: {error.reason}. It is kept in {kept}, with the files that it held",
            ForkwiseWarning,
            stacklevel=3,
        )
        return kept

    def names(self) -> list[str]:
        """List the branches forked from here, without those that are being created or removed."""
        try:
            return sorted(n for n in os.listdir(f"{self.path}/branches") if not n.startswith("."))
        except FileNotFoundError:
            return []

    @property
    def rewind(self) -> str:
        """The symlink that names the goal of a rewind over several commits, while one is in progress."""
        return f"{self.state}/rewind"

    @property
    def is_settled(self) -> bool:
        """Whether neither a commit nor a rewind was started and not finished."""
        return not self.is_interrupted and not os.path.lexists(self.rewind)

    @property
    def is_interrupted(self) -> bool:
        """Whether a commit was started and not finished: it is in progress, or its process was killed."""
        number, is_in_progress = self._read_head()
        if is_in_progress or self._is_checked:
            return is_in_progress
        # After a power failure the mark in the head may be missing although a commit had started. No process survives
        # one: for a process that has looked once, the mark is reliable.
        is_found = os.path.lexists(self.history(number + 1)) or os.path.lexists(f"{self.path}/stage")
        self._is_checked = not is_found
        return is_found


def locate(
    path: str | os.PathLike[str], state: str | os.PathLike[str] | None = None, *, outside: str | None = None
) -> Site:
    """Find, or create, the state directory of a workspace.

    In this order: the directory in ``state`` or $FORKWISE_STATE; the user's state directory, if it is on the
    workspace's filesystem; a hidden directory next to the workspace or next to one of its parents; the user's state
    directory even though it is on another filesystem. One that another user could write to is never used.
    ``outside`` is the mount point of a filesystem that has its own branches: the state must not be there, and the state
    of the directory that the mount hides is not used.
    """
    workspace = os.path.realpath(path)
    if not os.path.isdir(workspace):
        raise MountError(
            f"{os.fspath(path)!r} is not a directory: a workspace is an existing directory",
            reason="not a directory",
            remedy="create it first, or check the path",
        )
    key = key_of(workspace) if outside is None else f"{key_of(workspace)}-mounted"
    outside = outside or workspace
    given = os.fspath(state) if state is not None else os.environ.get("FORKWISE_STATE")
    roots = [os.path.abspath(given)] if given else list_roots(outside)
    holders = [root for root in roots if os.path.lexists(f"{root}/{key}")]
    problems: list[str] = []
    for root in [*holders, *(r for r in roots if r not in holders)]:
        problem = find_root_problem(root, outside) or find_problem(f"{root}/{key}")
        if problem is not None and root in holders and not given:
            _report_untrusted(workspace, root, key, problem)
        # Checked again once it exists: another user may have created it in the meantime.
        problem = problem or _make(root, f"{root}/{key}") or find_root_problem(root, outside)
        if problem is None:
            remember_root(root)
            _identify(f"{root}/{key}", workspace)
            return Site(workspace, os.path.realpath(f"{root}/{key}"))
        problems.append(f"{root}: {problem}")
    reason = "; ".join(problems)
    remedy = "set FORKWISE_STATE to a directory that only you can write to, outside the workspace"
    message = f"no directory is usable for the state of {workspace} ({reason}); {remedy}"
    raise MountError(message, reason=reason, remedy=remedy)


def _report_untrusted(workspace: str, root: str, key: str, problem: str) -> None:
    """Report state that is not used because another user could have written it.

    Raise MountError if it is this user's own: its branches and its history would otherwise seem to be lost.
    """
    found = f"{root}/{key}"
    if is_own(root) and is_own(found):
        remedy = f"take that permission away, or move {found} to {user_roots()[-1]}, or delete it"
        raise MountError(
            f"the state of {workspace} in {root} cannot be trusted: {problem}; {remedy}", reason=problem, remedy=remedy
        )
    warnings.warn(
        f"the state directory {found} is ignored, because another user could have written it: {problem}; delete it",
        ForkwiseWarning,
        stacklevel=4,
    )


def _identify(state: str, workspace: str) -> None:
    """Record in a new state directory whose state it holds. Raise NewerStateError if a newer version wrote it."""
    path = f"{state}/{_WORKSPACE}"
    try:
        document, _ = read_document(path, newest=FORMAT)
    except FileNotFoundError:
        document = {}
    except NewerStateError:
        raise
    except StateError:
        document = {}  # it only repeats what the caller knows
    if document.get("path") == workspace:
        return
    mount = os.path.realpath(workspace)
    while not os.path.ismount(mount):
        mount = os.path.dirname(mount)
    document = {"format": FORMAT, "path": workspace, "mount": mount}
    with suppress(OSError):  # on a full disk the workspace can still be read
        replace_file(path, json.dumps(document))


def read_workspace(state: str) -> tuple[str, str] | None:
    """Return the path of the workspace whose state a directory holds, and its mount point; None if it is unknown."""
    try:
        document, _ = read_document(f"{state}/{_WORKSPACE}", newest=FORMAT)
    except (FileNotFoundError, StateError):
        return None
    path, mount = document.get("path"), document.get("mount")
    if isinstance(path, str) and isinstance(mount, str) and os.path.isabs(path) and "\0" not in path + mount:
        return path, mount
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
