"""The journal of a commit: its steps, each a rename that can be reverted, the metadata of directories, and syncs.

A step moves an entry between the target and a slot, so after a crash the inode numbers show whether it was applied.
``transaction`` decides when to sync; this module only knows how.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

from forkwise.errors import ConflictError
from forkwise.files.store.changes import Conflict
from forkwise.files.store.document import (
    check_hex_values,
    check_integer,
    check_integers,
    check_name,
    check_path,
    check_text,
    check_type,
)
from forkwise.files.store.interference import is_dated_since, is_saved_since
from forkwise.files.store.overlayfs import is_of_user
from forkwise.files.store.state_root import is_state_name
from forkwise.linux import namespace
from forkwise.linux.file_write import sync_files
from forkwise.linux.lease import Leases
from forkwise.linux.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2, syncfs
from forkwise.linux.trees import NOT_THERE, join, open_directory, open_root
from forkwise.progress import report

__all__ = [
    "Held",
    "JournalStep",
    "Meta",
    "Run",
    "Slots",
    "StepCode",
    "apply_steps",
    "directory_facts",
    "has_same_owner",
    "invert",
    "revert_steps",
    "set_metas",
    "set_mtime",
    "sync_content",
    "sync_directories",
    "sync_filesystem",
    "sync_steps",
]


@dataclass(slots=True)
class Meta:
    """A directory's own metadata before and after: mode, owner, mtime and, if they differ, attributes.

    ``changed`` is its ctime before the commit, ``inode`` its inode number.
    """

    path: str
    before: list[int]
    after: list[int]
    changed: int = 0
    inode: int = 0
    attributes_before: dict[str, str] | None = None
    attributes_after: dict[str, str] | None = None

    @classmethod
    def change(
        cls,
        path: str,
        old: os.stat_result | None,
        new: os.stat_result | None,
        old_attributes: dict[str, bytes] | None = None,
        new_attributes: dict[str, bytes] | None = None,
        *,
        keeps_time: bool = False,
    ) -> Meta:
        """Build the change from one directory's metadata to another's; ``keeps_time`` does not set the mtime."""
        after = directory_facts(new)
        if old is not None and new is not None and has_same_owner(new, old):
            after[1:3] = old.st_uid, old.st_gid
        meta = cls(path, directory_facts(old), after, *((0, 0) if old is None else (old.st_ctime_ns, old.st_ino)))
        if keeps_time:
            meta.after[3] = -1
        if old_attributes != new_attributes:
            meta.attributes_before = {k: v.hex() for k, v in (old_attributes or {}).items()}
            meta.attributes_after = {k: v.hex() for k, v in (new_attributes or {}).items()}
        return meta

    def inverse(self) -> Meta:
        attributes = self.attributes_after, self.attributes_before
        return Meta(self.path, self.after, self.before, self.changed, self.inode, *attributes)

    def dump(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def load(cls, row: list[Any]) -> Meta:
        """Build it from what ``dump`` returned; raise ValueError or TypeError if that is not possible."""
        meta = cls(*row)
        check_path(meta.path, "path")
        for facts in (meta.before, meta.after):
            _check_facts(facts)
        check_integer(meta.changed, "ctime", -_LATEST, _LATEST)
        check_integer(meta.inode, "inode number")
        for attributes in (meta.attributes_before, meta.attributes_after):
            if attributes is not None:
                check_hex_values(attributes, is_of_user, "attributes")
        return meta


def directory_facts(entry: os.stat_result | None) -> list[int]:
    """Return a directory's metadata as the journal stores it: mode, user, group, mtime."""
    assert entry is not None
    return [stat.S_IMODE(entry.st_mode), entry.st_uid, entry.st_gid, entry.st_mtime_ns]


def _check_facts(facts: object) -> None:
    mode, user, group, _ = check_integers(facts, 4, "metadata")
    check_integer(mode, "mode", 0, _MODE)
    check_integer(user, "owner", 0, _ID)
    check_integer(group, "group", 0, _ID)


def has_same_owner(new: os.stat_result, old: os.stat_result) -> bool:
    """Return whether the owner of a layer's entry counts as unchanged from the parent's entry.

    Only root can set another owner: a copy of another user's file belongs to this user in the layer, which is not a
    change.
    """
    if new.st_uid == old.st_uid:
        return new.st_gid == old.st_gid
    return new.st_uid == os.geteuid() != 0


StepCode = Literal["put", "swap", "take", "rmdir", "mkdir"]
_INVERSE: dict[StepCode, StepCode] = {"put": "take", "take": "put", "swap": "swap", "rmdir": "mkdir", "mkdir": "rmdir"}
_OVERTAKEN = (errno.EEXIST, errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR, errno.ELOOP)
_MOST_EXCHANGES = 1000  # in case a process saves a file again and again
_MOST_OPEN = 16  # directories: steps, metadata and checks need one again soon or not at all
_HALFWAY = "halfway"  # no slot has this name
_SLOT = re.compile(r"[0-9]{0,18}\Z", re.ASCII)
_MODE = 0o7777
_ID = (1 << 32) - 1
_LATEST = (1 << 63) - 1
_INODES = 1 << 64

#: Mode and mtime of the directory that enters the target, and of the one that leaves it.
Held: TypeAlias = tuple[list[int] | None, list[int] | None]


@dataclass(slots=True)
class JournalStep:
    """One rename between the target and a slot.

    An empty ``slot`` stands for the same path in the layer; any other is a name in the side directory. ``enters`` and
    ``leaves`` are the inode numbers that the rename moves into and out of the target, ``changed`` their ctimes before
    it.

    ``held`` has the mode and mtime of the directories that enter and leave: a rename changes a directory's ``..``, for
    which all filesystems require write permission and some set its mtime. ``facts`` is the metadata of a directory that
    is removed empty. ``dated`` is the mtime of the entry that leaves: together with ``changed`` it shows, after a
    rollback, that only the renames have changed the entry.
    """

    code: StepCode
    name: str
    slot: str
    enters: int = 0
    leaves: int = 0
    changed: tuple[int, int] = (0, 0)
    dated: int = 0
    held: Held | None = None
    facts: list[int] | None = None

    def inverse(self) -> JournalStep:
        held = None if self.held is None else (self.held[1], self.held[0])
        changed = (self.changed[1], self.changed[0])
        return JournalStep(
            _INVERSE[self.code], self.name, self.slot, self.leaves, self.enters, changed, 0, held, self.facts
        )

    def dump(self) -> list[Any]:
        row: list[Any] = [self.code, self.name, self.slot, self.enters, self.leaves, self.changed, self.dated]
        return row if self.held is None and self.facts is None else [*row, self.held, self.facts]

    @classmethod
    def load(cls, row: list[Any]) -> JournalStep:
        """Build it from what ``dump`` returned; raise ValueError or TypeError if that is not possible."""
        step = cls(*row)
        if check_text(step.code, "step") not in _INVERSE:
            raise ValueError("it has an unknown step")
        if is_state_name(check_name(step.name, "path")):
            raise ValueError("it changes a state directory")
        if not _SLOT.match(check_text(step.slot, "slot")):
            raise ValueError("its slot is not a plain name")
        before, after = step.changed
        if not (
            type(step.enters) is type(step.leaves) is type(step.dated) is type(before) is type(after) is int
            and 0 <= step.enters < _INODES > step.leaves >= 0
            and -_LATEST <= min(step.dated, before, after) <= max(step.dated, before, after) <= _LATEST
        ):
            raise ValueError("it has a step with numbers that are not possible")
        step.changed = before, after
        if step.held is not None:
            entering, leaving = step.held
            for held in (entering, leaving):
                if held is not None:
                    check_integer(check_integers(held, 2, "directory")[0], "mode", 0, _MODE)
        if step.facts is not None or step.code in ("rmdir", "mkdir"):
            _check_facts(step.facts)
        return step


@dataclass(slots=True)
class Run:
    """Consecutive steps in one directory of the target."""

    directory: str
    steps: list[JournalStep] = field(default_factory=list)

    def dump(self) -> list[Any]:
        return [self.directory, [s.dump() for s in self.steps]]

    @classmethod
    def load(cls, row: list[Any]) -> Run:
        """Build it from what ``dump`` returned; raise ValueError or TypeError if that is not possible."""
        directory, steps = row
        return cls(check_path(directory, "path"), [JournalStep.load(s) for s in check_type(steps, list, "steps")])


def invert(runs: Iterable[Run], metas: Iterable[Meta]) -> tuple[list[Run], list[Meta]]:
    """Return the steps and metadata changes that undo the given ones."""
    back = [Run(r.directory, [s.inverse() for s in reversed(r.steps)]) for r in reversed(list(runs))]
    return back, [m.inverse() for m in metas]


class Slots:
    """Open descriptors of the directories between which steps rename: the target, the layer, the side directory."""

    def __init__(self, target: str, layer: str | None, side: str) -> None:
        self.target = open_root(target)
        self.layer = -1 if layer is None else open_root(layer)
        self.side = open_root(side)
        self._directories: dict[tuple[int, str], int] = {}

    def open(self, root: int, path: str) -> int:
        """Open a directory below the target or the layer with ``O_PATH``, and return the descriptor, which stays open.

        Only the last few directories stay open, so the caller uses the descriptor at once.
        """
        fd = self._directories.get((root, path))
        if fd is None:
            fd = open_directory(root, path, os.O_PATH)
            self._directories[root, path] = fd
            if len(self._directories) > _MOST_OPEN:
                os.close(self._directories.pop(next(iter(self._directories))))
        return fd

    def forget(self) -> None:
        """Open directories anew from here on, because a step has moved one."""
        while self._directories:
            os.close(self._directories.popitem()[1])

    def __enter__(self) -> Slots:
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()
        for fd in (self.target, self.layer, self.side):
            if fd >= 0:
                os.close(fd)


def apply_steps(runs: Iterable[Run], metas: Iterable[Meta], slots: Slots) -> None:
    """Apply all steps, then set the directories' metadata.

    Raises OSError at the first failure, and ConflictError if another process created, removed or replaced the entry.
    """
    runs = list(runs)
    with report("Changing the files of the workspace", sum(len(run.steps) for run in runs)) as work:
        for run in runs:
            path = run.directory
            try:
                with _RunDirectories(run, slots) as here:
                    for step in run.steps:
                        path = join(run.directory, step.name)
                        here.do(step)
            except OSError as error:
                if error.errno not in _OVERTAKEN:
                    raise
                detail = "created, removed or replaced by another process during the commit"
                conflict = Conflict(path, "changed", detail)
                raise ConflictError(str(conflict), conflicts=[conflict]) from error
            work.done += len(run.steps)
    _set_metas(metas, slots, slots.target, "after")


def revert_steps(runs: Iterable[Run], metas: Iterable[Meta], slots: Slots, started: int = 0) -> list[str]:
    """Revert the steps that were applied; skip and return paths that another process replaced or saved meanwhile.

    ``started`` is the time before the first step, by which a save shows; 0 if it is not known.
    """
    left: list[str] = []
    metas = list(metas)
    for run in reversed(list(runs)):
        try:
            here = _RunDirectories(run, slots)
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
            if error.errno != errno.ENOENT:  # ENOENT: inside a directory that was itself never put
                left.append(run.directory)  # another process replaced it with a mount point or a symlink
            continue
        with here:
            left += [join(run.directory, s.name) for s in reversed(run.steps) if not here.undo(s, started)]
    _set_metas(metas, slots, slots.target, "before")
    if slots.layer >= 0:
        _set_metas(metas, slots, slots.layer, "after")
    return left


class _RunDirectories:
    """The target's directory and the layer's for one run of steps."""

    def __init__(self, run: Run, slots: Slots) -> None:
        self.slots = slots
        self.target = slots.open(slots.target, run.directory)
        self.layer = -1
        self._moves_directories = any(s.held is not None or s.facts is not None for s in run.steps)
        _allow_writing(self.target)
        if any(not s.slot and s.code in ("put", "swap", "take") for s in run.steps):
            self.layer = slots.open(slots.layer, run.directory)
            _allow_writing(self.layer)

    def __enter__(self) -> _RunDirectories:
        return self

    def __exit__(self, *_: object) -> None:
        if self._moves_directories:
            self.slots.forget()

    def do(self, step: JournalStep) -> None:
        """Apply one step."""
        if step.held is None:
            self._do(step)
            return
        with _Movable(step, self._slot(step), (self.target, step.name)):
            self._do(step)

    def _do(self, step: JournalStep) -> None:
        name, code = step.name, step.code
        fd, slot = (self.slots.side, step.slot) if step.slot else (self.layer, name)
        if code == "swap":
            self._exchange(fd, slot, name)
        elif code == "put":
            _move(fd, slot, self.target, name)
        elif code == "take":
            _move(self.target, name, fd, slot)
        elif code == "rmdir":
            os.rmdir(name, dir_fd=self.target)
        else:
            self._mkdir(step)

    def undo(self, step: JournalStep, started: int) -> bool:
        """Revert one step if it was applied; return False if another process replaced or saved the entry."""
        fd, slot = self._slot(step)
        with _Movable(step.inverse(), (fd, slot), (self.target, step.name)):
            if step.code == "swap":
                return self._undo_swap(step, fd, slot, started)
            there = _inode(self.target, step.name)
            if step.code == "put":
                if (kept := _inode(fd, slot)) or there != step.enters:
                    return bool(kept) and there != step.enters
                return self._move_unless_saved(
                    step.name,
                    started,
                    lambda: self._move_out(step, fd, slot, started),
                    lambda: _move(fd, slot, self.target, step.name),
                )
            if step.code == "take":
                if not _inode(fd, slot):
                    return True
                if there:
                    return False
                try:
                    _move(fd, slot, self.target, step.name)
                except FileExistsError:
                    return False  # another process has just created it
            elif step.code == "rmdir":
                if not there:
                    self._mkdir(step)
            elif there:
                return self._undo_mkdir(step)
        return True

    def _undo_mkdir(self, step: JournalStep) -> bool:
        try:
            os.rmdir(step.name, dir_fd=self.target)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ENOTEMPTY):
                raise
            return error.errno == errno.ENOTDIR  # it was not created yet: the entry that it replaces is still there
        return True

    def _move_unless_saved(
        self, name: str, started: int, move: Callable[[], bool], move_back: Callable[[], object]
    ) -> bool:
        """Move an entry out of the target, unless another process saved it there or has it open for writing."""
        leases = Leases()
        try:
            if started and is_saved_since(self.target, name, started, leases):
                return False
            if not move():
                return False
            if leases.find_wanted():  # a process is about to write into it, wherever it is then
                move_back()
                return False
            return True
        except (FileNotFoundError, FileExistsError):
            return False  # deleted, or saved under that name, at this moment
        finally:
            leases.close()

    def _move_out(self, step: JournalStep, fd: int, slot: str, started: int) -> bool:
        """Move a step's new entry out of the target again; leave there what another process puts there meanwhile."""
        _move(self.target, step.name, fd, slot)
        if _inode(fd, slot) == step.enters and not _is_new_file(fd, slot, started):
            return True
        _move(fd, slot, self.target, step.name)
        return False

    def _exchange_out(self, fd: int, slot: str, name: str, started: int, expected: int) -> bool:
        """Exchange the entry ``expected`` in the target for the slot's; return whether the slot's is there at the end.

        If another process puts an entry there meanwhile, the exchange moves that one out, and is reverted.
        """
        is_in_target = True
        entering = _inode(fd, slot)
        for _ in range(_MOST_EXCHANGES):
            self._exchange(fd, slot, name)
            came_out = _inode(fd, slot)
            if came_out == expected and not (is_in_target and _is_new_file(fd, slot, started)):
                break
            expected, entering = entering, came_out
            is_in_target = not is_in_target
        return is_in_target

    def _undo_swap(self, step: JournalStep, fd: int, slot: str, started: int) -> bool:
        there, kept = _inode(self.target, step.name), _inode(fd, slot)
        if not (there and kept) and (halfway := _inode(self.slots.side, _HALFWAY)) in (step.enters, step.leaves):
            # The process was killed between the renames of an exchange, in either direction.
            if there == step.enters:
                _move(self.target, step.name, fd, slot)
            elif kept == step.leaves:
                _move(fd, slot, self.target, step.name)
            if halfway == step.enters:
                _move(self.slots.side, _HALFWAY, fd, slot)
            else:
                _move(self.slots.side, _HALFWAY, self.target, step.name)
            return True
        if there == step.enters:
            exchange = partial(self._exchange_out, fd, slot, step.name, started)
            return self._move_unless_saved(
                step.name, started, partial(exchange, step.enters), partial(exchange, step.leaves)
            )
        return kept == step.enters

    def _exchange(self, fd: int, slot: str, name: str) -> None:
        try:
            renameat2(fd, slot, self.target, name, RENAME_EXCHANGE)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
            side = self.slots.side
            os.rename(name, _HALFWAY, src_dir_fd=self.target, dst_dir_fd=side)
            os.rename(slot, name, src_dir_fd=fd, dst_dir_fd=self.target)
            os.rename(_HALFWAY, slot, src_dir_fd=side, dst_dir_fd=fd)

    def _slot(self, step: JournalStep) -> tuple[int, str]:
        return (self.slots.side, step.slot) if step.slot else (self.layer, step.name)

    def _mkdir(self, step: JournalStep) -> None:
        assert step.facts is not None
        os.mkdir(step.name, 0o700, dir_fd=self.target)
        _set_meta(self.target, step.name, step.facts, None)


class _Movable:
    """Makes directories writable while they are renamed, then restores their mode and mtime at either location."""

    def __init__(self, step: JournalStep, slot: tuple[int, str], target: tuple[int, str]) -> None:
        self.held = step.held or ()
        self.inodes = (step.enters, step.leaves)
        self.locations = (slot, target)

    def __enter__(self) -> None:
        if self.held and os.geteuid() != 0:
            for fd, name, (mode, _) in self._found():
                if not mode & 0o200:
                    os.chmod(name, mode | 0o200, dir_fd=fd)

    def __exit__(self, *_: object) -> None:
        if self.held:
            for fd, name, (mode, mtime) in self._found():
                now = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_IMODE(now.st_mode) != mode:
                    os.chmod(name, mode, dir_fd=fd)
                if now.st_mtime_ns != mtime:
                    set_mtime(fd, name, now.st_atime_ns, mtime)

    def _found(self) -> Iterator[tuple[int, str, list[int]]]:
        for held, inode in zip(self.held, self.inodes, strict=True):
            for fd, name in self.locations:
                if held is not None and _inode(fd, name) == inode:
                    yield fd, name, held


def _inode(fd: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return 0


def _is_new_file(fd: int, name: str, started: int) -> bool:
    """Return whether a file was saved since ``started``: a new file may get the inode number of one just deleted."""
    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    return bool(started) and not stat.S_ISDIR(found.st_mode) and is_dated_since(found, started)


def _allow_writing(fd: int) -> None:
    """Make a read-only directory writable for the renames; ``set_metas`` restores its mode."""
    if os.geteuid() == 0:
        return
    mode = os.fstat(fd).st_mode
    if mode & 0o300 != 0o300:
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode) | 0o300)


def _move(source: int, old: str, target: int, new: str) -> None:
    try:
        renameat2(source, old, target, new, RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):  # a filesystem that does not support the flags
            raise
        if _inode(target, new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from None
        os.rename(old, new, src_dir_fd=source, dst_dir_fd=target)


def set_metas(metas: Iterable[Meta], root: int, side: Literal["before", "after"]) -> None:
    """Set the metadata of directories below a root to that before, or after, a commit."""
    for meta in metas:
        try:
            fd = open_directory(root, meta.path, os.O_PATH)
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
            continue
        try:
            _set_side(fd, meta, side)
        finally:
            os.close(fd)


def _set_metas(metas: Iterable[Meta], slots: Slots, root: int, side: Literal["before", "after"]) -> None:
    """Set the metadata of directories below one of the roots of ``slots``."""
    for meta in metas:
        try:
            fd = slots.open(root, meta.path)
        except OSError as error:
            if error.errno not in NOT_THERE and root == slots.target:
                raise
            continue
        _set_side(fd, meta, side)


def _set_side(fd: int, meta: Meta, side: Literal["before", "after"]) -> None:
    wanted = meta.before if side == "before" else meta.after
    if os.geteuid() != 0 and (now := os.stat(".", dir_fd=fd)).st_uid != wanted[1]:
        wanted = [wanted[0], now.st_uid, now.st_gid, wanted[3]]  # see has_same_owner
    _set_meta(fd, ".", wanted, meta.attributes_before if side == "before" else meta.attributes_after)


def _set_meta(fd: int, name: str, wanted: list[int], attributes: dict[str, str] | None) -> None:
    mode, uid, gid, mtime = wanted
    now = before = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if attributes is not None:
        _set_attributes(f"/proc/self/fd/{fd}/{name}", attributes)
    if (now.st_uid, now.st_gid) != (uid, gid):
        os.chown(name, uid, gid, dir_fd=fd, follow_symlinks=False)
    if attributes is not None or (now.st_uid, now.st_gid) != (uid, gid):
        now = os.stat(name, dir_fd=fd, follow_symlinks=False)  # both change the mode
    if stat.S_IMODE(now.st_mode) != mode:
        os.chmod(name, mode, dir_fd=fd)
    if mtime >= 0 and before.st_mtime_ns != mtime:
        set_mtime(fd, name, before.st_atime_ns, mtime)


def set_mtime(fd: int, name: str, atime: int, mtime: int) -> None:
    """Set the times of an entry, unless it belongs to another user: only its owner and root may do that.

    The uid from stat(2) is not enough to tell: in a user namespace, all users outside it appear as 65534.
    """
    try:
        os.utime(name, ns=(atime, mtime), dir_fd=fd, follow_symlinks=False)
    except PermissionError:
        if os.geteuid() == 0 and not namespace.is_entered():
            raise


def _set_attributes(path: str, wanted: dict[str, str]) -> None:
    for attribute in os.listxattr(path, follow_symlinks=False):
        # Only user attributes are removed; the security system may have added its own label meanwhile.
        if attribute not in wanted and is_of_user(attribute):
            os.removexattr(path, attribute, follow_symlinks=False)
    for attribute, value in wanted.items():
        os.setxattr(path, attribute, bytes.fromhex(value), follow_symlinks=False)


_FSYNC_LIMIT = 16  # up to this many files or directories are synced one by one; for more, the whole filesystem is


def sync_directories(paths: Iterable[str]) -> None:
    """Call fsync on some directories, so that the names in them are on the disk."""
    with _Opened() as opened:
        sync_files([opened.add(_open_to_sync(path)) for path in paths])


def sync_filesystem(path: str) -> None:
    """Sync the whole filesystem that contains a directory."""
    fd = _open_to_sync(path)
    try:
        syncfs(fd)
    finally:
        os.close(fd)


def sync_content(
    runs: Sequence[Run], layer: str | None, side: str, others: Iterable[int] = (), directories: Iterable[str] = ()
) -> None:
    """Sync the content and the names of all slots that steps will move into their target.

    At the same time, sync the open files ``others`` and some ``directories``.
    """
    entering = [(r.directory, s) for r in runs for s in r.steps if s.code in ("put", "swap")]
    with _Opened() as opened:
        root = opened.add(open_root(layer or side))
        wanted = list(others)
        if len(entering) > _FSYNC_LIMIT or not all(_open_slot(opened, wanted, root, side, d, s) for d, s in entering):
            wanted = list(others)
            for path in {layer or side, side}:
                sync_filesystem(path)
        sync_files([*wanted, *(opened.add(_open_to_sync(path)) for path in directories)])


def sync_steps(
    runs: Sequence[Run],
    metas: Sequence[Meta],
    slots: Slots,
    others: Iterable[int] = (),
    directories: Iterable[str] = (),
) -> None:
    """Sync every directory that applied steps and metadata changed.

    At the same time, sync the open files ``others`` and some ``directories``.
    """
    layers = {r.directory for r in runs for s in r.steps if not s.slot and s.code not in ("rmdir", "mkdir")}
    targets = {m.path for m in metas} | {r.directory for r in runs}
    touched = [(slots.side, ""), *((slots.layer, d) for d in layers), *((slots.target, d) for d in targets)]
    with _Opened() as opened:
        wanted = list(others)
        if len(touched) > _FSYNC_LIMIT or not all(_open_changed(opened, wanted, root, path) for root, path in touched):
            wanted = list(others)
            syncfs(opened.add(open_directory(slots.target, "")))
        sync_files([*wanted, *(opened.add(_open_to_sync(path)) for path in directories)])


class _Opened:
    """Descriptors that are closed together."""

    def __init__(self) -> None:
        self._fds: list[int] = []

    def add(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)


def _open_to_sync(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _open_changed(opened: _Opened, wanted: list[int], root: int, path: str) -> bool:
    """Add one directory if it exists; return False if this user may not read it."""
    try:
        wanted.append(opened.add(open_directory(root, path)))
    except OSError as error:
        if error.errno == errno.EACCES:
            return False
        if error.errno not in NOT_THERE:
            raise
    return True


def _open_slot(opened: _Opened, wanted: list[int], root: int, side: str, directory: str, step: JournalStep) -> bool:
    """Add one slot and its directory; return False if it is a directory, which may contain any number of files."""
    fd = opened.add(_open_to_sync(side) if step.slot else open_directory(root, directory))
    entry = step.slot or step.name
    mode = os.stat(entry, dir_fd=fd, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        return False
    if stat.S_ISREG(mode):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        wanted.append(opened.add(os.open(entry, flags, dir_fd=fd)))
    wanted.append(fd)
    return True
