"""The transaction of a commit: fill its slots, apply its steps or roll them back, and make it take effect.

The journal knows single steps; a transaction applies them to a target directory and adds one commit to the history of a
state directory.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from forkwise.errors import CommitError, ConflictError, ForkwiseWarning, StateError
from forkwise.files.store.branch_info import read_clock
from forkwise.files.store.document import check_path, check_text, check_type
from forkwise.files.store.interference import OldEntry, find_interference, find_waiting
from forkwise.files.store.journal import (
    JournalStep,
    Meta,
    Run,
    Slots,
    StepCode,
    apply_steps,
    revert_steps,
    set_metas,
    set_mtime,
    sync_content,
    sync_directories,
    sync_steps,
)
from forkwise.files.store.overlayfs import write_marks
from forkwise.files.store.record import (
    Record,
    RecordFile,
    forget_times,
    is_rolled_back,
    is_stage,
    keep_rolled_back,
    load_interrupted,
    mark_rolled_back,
)
from forkwise.files.store.state import StateDir, same_mount
from forkwise.files.store.trash import discard
from forkwise.linux.lease import Leases
from forkwise.linux.process_id import boot_id
from forkwise.linux.trees import NOT_THERE, copy_entry, open_directory, open_root, remove_tree, stat_entry
from forkwise.progress import report
from forkwise.text.phrases import join_first

if TYPE_CHECKING:
    from forkwise.files.store.changes import Conflict
    from forkwise.files.store.commit_plan import Plan

__all__ = ["FIRST_CONTENT_SLOT", "Transaction", "as_commit_error", "check_root", "recover"]

_STAGE = ".forkwise-stage-"
_MTIME = re.compile(r"-?[0-9]{1,19}\Z", re.ASCII)
_LOST_LAYER = "lost-layer"
_OTHER_DEVICE = (
    "; a directory of the workspace that the branch changed is another btrfs subvolume, or on another device: open it "
    "as a workspace of its own"
)
_LOCKS = "locks.json"
_LOCK_TRIES = 100
_LOCK_PAUSE_S = 0.02

#: Slots with contents that the transaction itself wrote have this number or a higher one.
FIRST_CONTENT_SLOT = 10**15


class Transaction:
    """The next commit into a target directory; created and used under the exclusive lock.

    As a context manager it rolls everything back if the block raises, and turns an OSError into a CommitError. ``side``
    is the directory of its slots while the steps run: in the state directory, or, if that is on another filesystem
    than the target, in a directory inside the target (``stage``), because a rename cannot cross filesystems.
    ``prepared_directory`` is a directory for the record that may exist already, ``failure`` the beginning of the
    message if it is rolled back, ``number`` that of the commit, if the caller knows the head.
    """

    def __init__(
        self,
        state_dir: StateDir,
        target: str,
        branch: str,
        *,
        side: str | None = None,
        prepared_directory: str | None = None,
        failure: str | None = None,
        number: int | None = None,
    ) -> None:
        self.state_dir = state_dir
        self.target = target
        self.branch = branch
        self.number = state_dir.head + 1 if number is None else number
        self.history = state_dir.history(self.number)
        self.side = side or self.history
        self.prepared_directory = prepared_directory
        self.failure = failure or f"{branch} was not committed"
        self.stage: str | None = None
        self.record: Record | None = None
        self.has_locks = False

    def __enter__(self) -> Transaction:
        try:
            self.state_dir.begin(self.number - 1)
            self._make_history()
            if not same_mount(self.state_dir.path, self.target):
                self._make_stage()
        except OSError as error:
            self.__exit__(OSError, error, None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            return
        if isinstance(error, ConflictError) and self.record is not None:
            forget_times(self.record, error.conflicts)
            self.record.save(self.history, sync=self.record.durable)
        try:
            left = recover(self.state_dir, self.target)
        except CommitError as rollback_error:
            reason = error.strerror if isinstance(error, OSError) else str(error) or type(error).__name__
            raise CommitError(
                f"{self.failure}: {reason}. What it had begun could not be rolled back either, so {self.target} may "
                "have some of the new files. Repair the disk, or free space on it: the next forkwise command there "
                f"rolls it back, unless the commit was complete ({rollback_error.__cause__ or rollback_error})",
                branch=self.branch,
            ) from error
        changed = f" (except paths that another process changed meanwhile: {', '.join(left)})" if left else ""
        if isinstance(error, ConflictError):
            error.args = (f"{self.failure}, everything is as before{changed}: {error.args[0]}",)
        if isinstance(error, OSError):
            at_path = f" at {error.filename!r}" if error.filename else ""
            raise CommitError(
                f"{self.failure}, everything is as before{changed}: {error.strerror}{at_path}"
                f"{_OTHER_DEVICE if error.errno == errno.EXDEV else ''}",
                branch=self.branch,
                paths=left,
            ) from error

    def _make_history(self) -> None:
        if self.prepared_directory is not None:
            try:
                os.rename(self.prepared_directory, self.history)
            except FileNotFoundError:
                pass  # a commit that was rolled back has used it, or it was never created
            else:
                return
        os.makedirs(self.history, mode=0o700)

    def _make_stage(self) -> None:
        self.stage = f"{_STAGE}{secrets.token_hex(4)}"
        self.side = f"{self.target}/{self.stage}"
        self.root = Meta.change("", found := os.stat(self.target), found)
        # Written first: recovery removes the stage that it names, and restores the target's mtime. It is synced even if
        # the commit is not, because the target's filesystem may write the stage to its disk at any time.
        os.symlink(f"{self.stage}:{found.st_mtime_ns}", f"{self.state_dir.path}/stage")
        sync_directories([self.state_dir.path])
        os.mkdir(self.side, 0o700)

    def fill(self, plan: Plan, layer: str, merged: dict[str, bytes]) -> None:
        """Copy entries that cannot be moved into slots, and store the inode numbers of the copies in the steps."""
        if not plan.staged:
            return
        source, side = open_root(layer), open_root(self.side)
        try:
            with report("Copying changed files to the workspace's filesystem", len(plan.staged)) as work:
                for slot, entry in plan.staged.items():
                    fd = open_directory(source, entry.directory, os.O_PATH)
                    try:
                        copy_entry(fd, entry.name, side, slot, is_left=partial(_is_left, plan.left, entry.path))
                    finally:
                        os.close(fd)
                    if entry.path in merged:
                        _rewrite(side, slot, merged[entry.path])
                    work.done += 1
            for run in plan.runs:
                for step in run.steps:
                    if step.slot in plan.staged:
                        step.enters = os.stat(step.slot, dir_fd=side, follow_symlinks=False).st_ino
        finally:
            os.close(source)
            os.close(side)

    def fill_contents(self, contents: Mapping[str, bytes | None]) -> tuple[list[Run], list[OldEntry]]:
        """Write new contents of files into slots; return the steps that exchange them, and the entries these remove.

        None removes a file. Files in a directory that the target lacks are moved there together with that directory.
        """
        runs: list[Run] = []
        removed: list[OldEntry] = []
        numbers = count(FIRST_CONTENT_SLOT + self.number * 1_000_000)
        target, side = open_root(self.target), open_root(self.side)
        try:
            for path, files in _group_by_entry(target, contents).items():
                directory, _, name = path.rpartition("/")
                fd = open_directory(target, directory)
                try:
                    old = stat_entry(fd, name)
                    slot = str(next(numbers))
                    if files == {"": None}:
                        if old is not None:
                            step = JournalStep("take", name, slot, 0, old.st_ino)
                        else:
                            continue
                    else:
                        new = _write_slot(side, slot, files, old or os.stat(".", dir_fd=fd), is_new=old is None)
                        held = (
                            None
                            if old or not stat.S_ISDIR(new.st_mode)
                            else ([stat.S_IMODE(new.st_mode), new.st_mtime_ns], None)
                        )
                        code: StepCode = "put" if old is None else "swap"
                        step = JournalStep(code, name, slot, new.st_ino, old.st_ino if old else 0, held=held)
                finally:
                    os.close(fd)
                if old is not None:
                    step.changed, step.dated = (0, old.st_ctime_ns), old.st_mtime_ns
                    removed.append(OldEntry(directory, step, old))
                runs.append(Run(directory, [step]))
        finally:
            os.close(target)
            os.close(side)
        return runs, removed

    def lock(self, paths: Sequence[str]) -> None:
        """Create git's lock files in the target. They stay until the transaction ends, even if this process is killed.

        Raises CommitError if a lock exists and does not go away.
        """
        token = f"forkwise {os.getpid()} {secrets.token_hex(16)}\n"
        document = f"{self.history}/{_LOCKS}"
        with open(document, "w") as file:
            json.dump({"token": token, "paths": list(paths)}, file)
            file.flush()
            os.fsync(file.fileno())
        sync_directories([self.history])
        self.has_locks = True
        whole = f"{self.side}/{_LOCKS}.new"  # a lock appears with its content, so that recovery can tell whose it is
        with open(whole, "w") as file:
            file.write(token)
        root = open_root(self.target)
        try:
            for path in paths:
                directory, _, name = path.rpartition("/")
                try:
                    fd = open_directory(root, directory, os.O_PATH)
                except OSError as error:
                    if error.errno in NOT_THERE:
                        continue  # git creates the directory first, and needs HEAD's lock or the index's for the rest
                    raise
                try:
                    self._take_lock(fd, name, path, whole)
                finally:
                    os.close(fd)
        finally:
            os.close(root)
            os.unlink(whole)

    def _take_lock(self, directory: int, name: str, path: str, whole: str) -> None:
        for tries_left in reversed(range(_LOCK_TRIES)):
            try:
                os.link(whole, name, dst_dir_fd=directory)
            except FileExistsError:
                if not tries_left:
                    raise CommitError(
                        f"{self.failure}, nothing was changed: {self.target}/{path} exists, so a git command is "
                        "running there, or one crashed. Wait until it has ended, or remove the file if none runs",
                        branch=self.branch,
                        paths=[path],
                    ) from None
                time.sleep(_LOCK_PAUSE_S)
            else:
                return

    def fetch(self, saved: str, slots: Iterable[str]) -> dict[str, int]:
        """Copy saved content into slots, for an undo across filesystems; return the inode numbers of the copies."""
        source, side = open_root(saved), open_root(self.side)
        try:
            inodes = {}
            with report("Copying old content to the workspace's filesystem") as work:
                for slot in slots:
                    copy_entry(source, slot, side, slot)
                    inodes[slot] = os.stat(slot, dir_fd=side, follow_symlinks=False).st_ino
                    work.done += 1
            return inodes
        finally:
            os.close(source)
            os.close(side)

    def run(
        self,
        record: Record,
        layer: str | None,
        strip: Callable[[], None] | None = None,
        removed: Sequence[OldEntry] = (),
    ) -> None:
        """Apply the record's steps; ``strip`` removes the layer's overlay marks, which a rollback restores.

        Raises ConflictError if another process changed one of the ``removed`` entries meanwhile.
        """
        self.record = record
        leases = Leases()
        try:
            self._apply(record, layer, strip, removed, leases)
        finally:
            leases.close()
        try:
            if record.durable:
                sync_directories([f"{self.state_dir.path}/head"])
            if self.has_locks:
                _release_locks(self.history, self.target)
            if self.stage:
                _remove_stage(self.state_dir, self.target, record, "after")
            if self.stage or self.has_locks:
                self.state_dir.settle()
        except OSError as error:
            # The commit has taken effect, so this must not raise; the next operation on the workspace cleans up.
            warnings.warn(
                f"{self.branch} was committed, but cleaning up failed: {error}", ForkwiseWarning, stacklevel=6
            )

    def _apply(
        self,
        record: Record,
        layer: str | None,
        strip: Callable[[], None] | None,
        removed: Sequence[OldEntry],
        leases: Leases,
    ) -> None:
        sync, state = record.durable, self.state_dir.path
        if self.stage and _root_meta(record.metas) is None:
            record.metas.append(self.root)  # creating and removing the stage must not change the target's own mtime
        with RecordFile(self.history) as file, Slots(self.target, layer, self.side) as slots:
            if record.root is not None and not record.root.is_open_as(slots.target):
                raise OSError(errno.ESTALE, "another directory was moved there meanwhile", self.target)
            record.started, record.clock, record.boot = file.opened, read_clock(), boot_id()
            file.write(record)
            if sync:
                sync_content(record.runs, layer, self.side, [file.fd], [f"{state}/history", state])
            file.publish()
            if sync:
                sync_directories([self.history])
            if strip:
                strip()
            apply_steps(record.runs, record.metas, slots)
            file.finish()
            if record.home:
                os.rename(self.state_dir.home(record.home), f"{self.history}/home")
            if sync:
                sync_steps(record.runs, record.metas, slots, [file.fd], [self.history, f"{state}/branches"])
            self._raise_conflicts(find_interference(removed, slots, leases))
        if self.stage:
            self._save_slots(sync)
        self._raise_conflicts(find_waiting(leases))
        self.state_dir.advance(self.number, settled=self.stage is None and not self.has_locks)

    def _raise_conflicts(self, conflicts: list[Conflict]) -> None:
        if conflicts:
            raise ConflictError(join_first(conflicts, 5, "; "), branch=self.branch, conflicts=conflicts)

    def _save_slots(self, sync: bool) -> None:
        """Copy the target's old content from the stage to the record's directory, for undo."""
        source, saved = open_root(self.side), open_root(self.history)
        try:
            names = os.listdir(self.side)
            with report("Saving old content, for undo", len(names)) as work:
                for name in names:
                    copy_entry(source, name, saved, name, sync=sync)
                    work.done += 1
            if sync:
                sync_directories([self.history])
        finally:
            os.close(source)
            os.close(saved)


def recover(state_dir: StateDir, target: str) -> list[str]:
    """Roll back a commit that was started and not finished; call it under the exclusive lock.

    Return the paths that another process replaced since, which are left as they are.
    """
    unfinished = (
        f"{target} may have some of the files of a commit that was interrupted, because it could not be rolled back; "
        "the next forkwise command there tries again"
    )
    with as_commit_error(unfinished):
        number = state_dir.head + 1
        history = state_dir.history(number)
        if not os.path.isdir(history):
            _release_locks(state_dir.history(number - 1), target)
            _remove_stage(state_dir, target, _load_if_possible(state_dir.history(number - 1)), "after")
            state_dir.settle()
            return []
        record = load_interrupted(state_dir, history)
        if record is not None:
            check_root(record, target, f"an interrupted commit of {record.branch} was not rolled back")
        left = []
        if record and not is_rolled_back(history):
            left = _roll_back(state_dir, target, history, record)
            mark_rolled_back(history)  # from here on its slots may be deleted
            if record.stage:  # on another filesystem their deletion could reach the disk before the mark
                sync_directories([history])
        _release_locks(history, target)
        _remove_stage(state_dir, target, record, "before")
        if record:
            keep_rolled_back(history)
        if os.path.isdir(history):  # a damaged one was set aside
            discard(state_dir, history)
        state_dir.settle()
        return left


def _release_locks(history: str, target: str) -> None:
    """Remove the lock files of git that a transaction created, and no others."""
    document = f"{history}/{_LOCKS}"
    try:
        with open(document) as file:
            found = json.load(file)
        token, paths = check_text(found["token"], "token"), check_type(found["paths"], list, "locks")
        for path in paths:
            if not check_path(path, "path").endswith(".lock"):
                raise ValueError("it names something else than a lock")
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        os.unlink(document)  # a power failure left it incomplete, before the first lock was created
        return
    root = open_root(target)
    try:
        for path in paths:
            directory, _, name = path.rpartition("/")
            with suppress(OSError):
                fd = open_directory(root, directory, os.O_PATH)
                try:
                    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                    with open(os.open(name, flags, dir_fd=fd), "rb") as file:
                        content = file.read(200)
                    if content == token.encode():
                        os.unlink(name, dir_fd=fd)
                finally:
                    os.close(fd)
    finally:
        os.close(root)
    os.unlink(document)


def _group_by_entry(target: int, contents: Mapping[str, bytes | None]) -> dict[str, dict[str, bytes | None]]:
    """Group files by the entry that enters the target: the file itself, or the topmost directory that is missing."""
    groups: dict[str, dict[str, bytes | None]] = {}
    for path, content in contents.items():
        parts = path.split("/")
        for end in range(1, len(parts)):
            above, name = "/".join(parts[: end - 1]), parts[end - 1]
            fd = open_directory(target, above)
            try:
                is_missing = stat_entry(fd, name) is None
            finally:
                os.close(fd)
            if is_missing:
                if content is not None:
                    groups.setdefault("/".join(parts[:end]), {})["/".join(parts[end:])] = content
                break
        else:
            groups[path] = {"": content}
    return groups


def _write_slot(
    side: int, slot: str, files: Mapping[str, bytes | None], like: os.stat_result, *, is_new: bool
) -> os.stat_result:
    """Write a file, or a directory with files, into a slot, with the owner and mode of the entry ``like``."""
    mode = stat.S_IMODE(like.st_mode)
    for inside, content in files.items():
        path = f"{slot}/{inside}" if inside else slot
        for end, letter in enumerate(path):
            if letter == "/" and stat_entry(side, path[:end]) is None:
                os.mkdir(path[:end], mode, dir_fd=side)
                os.chmod(path[:end], mode, dir_fd=side)
                _set_owner(path[:end], side, like)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=side)
        with open(fd, "wb") as file:
            file.write(content or b"")
            os.fchmod(fd, mode & 0o666 if is_new else mode)
        _set_owner(path, side, like)
    return os.stat(slot, dir_fd=side, follow_symlinks=False)


def _set_owner(path: str, side: int, like: os.stat_result) -> None:
    found = os.stat(path, dir_fd=side, follow_symlinks=False)
    if (found.st_uid, found.st_gid) != (like.st_uid, like.st_gid):
        with suppress(PermissionError):  # only root can
            os.chown(path, like.st_uid, like.st_gid, dir_fd=side, follow_symlinks=False)


@contextmanager
def as_commit_error(message: str) -> Iterator[None]:
    """Turn an OSError raised in the block into a CommitError that begins with ``message``."""
    try:
        yield
    except OSError as error:
        raise CommitError(f"{message}: {error}") from error


def _roll_back(state_dir: StateDir, target: str, history: str, record: Record) -> list[str]:
    if record.home:
        if os.path.isdir(f"{history}/home"):
            os.rename(f"{history}/home", state_dir.home(record.home))
        if os.path.isdir(f"{state_dir.home(record.home)}/layer"):
            layer: str | None = state_dir.beneath(f"branches/{record.home}/layer")
        else:
            # On btrfs a power failure may leave the record and not the branch, which was never synced. What steps have
            # moved out of its layer is dropped with the record.
            layer = _make_empty_layer(f"{history}/{_LOST_LAYER}", record)
    elif record.layer is not None and os.path.isdir(f"{state_dir.path}/{record.layer}"):
        layer = state_dir.beneath(record.layer)
    else:
        layer = None  # the commit of a whole view has no layer
    side = f"{target}/{record.stage}" if record.stage else state_dir.beneath(record.side)
    with Slots(target, layer, side) as slots:
        left = revert_steps(record.runs, record.metas, slots, record.started)
        if record.durable:
            sync_steps(record.runs, record.metas, slots)
    if layer and os.path.basename(layer) != _LOST_LAYER:
        write_marks(layer, record.marks)
    return left


def check_root(record: Record, target: str, failed: str) -> None:
    """Raise CommitError, whose message begins with ``failed``, unless a record belongs to the directory at a path."""
    if record.root is not None and not record.root.is_at(target):
        raise CommitError(
            f"{failed}: {target} is not the directory that was committed to; another one was moved or created there "
            "since. Move the original one back, or set the record aside with forkwise doctor --repair",
            branch=record.branch,
        )


def _load_if_possible(history: str) -> Record | None:
    try:
        return Record.load(history)
    except StateError:
        return None


def _make_empty_layer(path: str, record: Record) -> str:
    """Create a layer with the directories that the steps of a record refer to, and return its path."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    for run in record.runs:
        os.makedirs(f"{path}/{run.directory}", mode=0o700, exist_ok=True)
    return path


def _is_left(left: Collection[str], directory: str, path: str) -> bool:
    return f"{directory}/{path}" in left


def _rewrite(side: int, slot: str, content: bytes) -> None:
    with open(os.open(slot, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=side), "wb") as file:
        file.write(content)


def _root_meta(metas: Iterable[Meta]) -> Meta | None:
    """Return the change of the target directory itself."""
    return next((m for m in metas if not m.path), None)


def _remove_stage(state_dir: StateDir, target: str, record: Record | None, side: Literal["before", "after"]) -> None:
    """Remove the stage, if there is one, and restore the target's mtime."""
    try:
        stage, _, mtime = os.readlink(f"{state_dir.path}/stage").rpartition(":")
    except FileNotFoundError:
        return
    except OSError as error:
        state_dir.set_aside(f"{state_dir.path}/stage", StateError(f"{state_dir.path}/stage", str(error.strerror)))
        return
    if not is_stage(stage) or not _MTIME.match(mtime):
        state_dir.set_aside(f"{state_dir.path}/stage", StateError(f"{state_dir.path}/stage", "it names no stage"))
        return
    root = open_root(target)
    try:
        remove_tree(root, stage)
        meta = _root_meta(record.metas) if record and record.stage == stage else None
        if meta is not None:
            set_metas([meta], root, side)
        else:
            set_mtime(root, ".", os.stat(".", dir_fd=root).st_atime_ns, int(mtime))
    finally:
        os.close(root)
    sync_directories([target])  # before the name of the stage is forgotten
    os.unlink(f"{state_dir.path}/stage")
