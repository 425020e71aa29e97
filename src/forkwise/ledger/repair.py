"""Repair of a workspace's state: find each damaged part, and set exactly that part aside or rebuild it.

It works on the directories and the ledger without opening the workspace, because that may be what fails. Content is
never deleted: what is set aside is in ``damaged/`` of the state directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from forkwise.errors import CommitError, LedgerError, MountError, NewerStateError, StateError
from forkwise.files.mounted import find_branching_mount
from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.record import Record
from forkwise.files.store.state import StateDir, locate, locked
from forkwise.files.store.transaction import check_root
from forkwise.files.views import view_named
from forkwise.ledger.sqlite import SqliteLedger
from forkwise.linux.mountinfo import mounts
from forkwise.linux.syscalls import MNT_DETACH, umount2

__all__ = ["Damage", "repair_state"]


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged part of the state: where it is, what is wrong with it, and what repairing it does.

    ``kept`` is where its content is after the repair; None before, and for a part that was rebuilt.
    """

    kind: Literal["head", "commit", "branch", "ledger"]
    path: str
    reason: str
    action: str
    kept: str | None = None


def repair_state(path: str | os.PathLike[str], *, dry_run: bool) -> list[Damage]:
    """Repair the state of a workspace, or with ``dry_run`` only find what is damaged.

    State that a newer version has written is not damaged, and is left alone. Raises NewerStateError if that is the
    state as a whole.
    """
    native = find_branching_mount(os.fspath(path))
    site = locate(path, outside=None if native is None else native[1])
    state_dir = StateDir(site.state, site.state)
    with locked(site.state):
        found = [*_repair_tree(state_dir, site.workspace, dry_run, is_native=native is not None)]
    return [*found, *_repair_ledger(state_dir, dry_run)]


def _repair_tree(state_dir: StateDir, target: str | None, dry_run: bool, *, is_native: bool) -> Iterator[Damage]:
    """Repair a workspace or a branch, and all branches below it. ``target`` is the workspace's own directory."""
    try:
        head = state_dir.head
    except StateError as error:
        head = _find_head(state_dir)
        action = f"set it to {head}, the newest commit that is complete"
        yield Damage(
            "head", error.path, error.reason, action, None if dry_run else _replace_head(state_dir, head, error)
        )
    for number in state_dir.numbers():
        history = state_dir.history(number)
        if (problem := _find_record_problem(state_dir, number, target if number > head else None)) is not None:
            action = "set its record aside with the content that it replaced; it can no longer be undone"
            if number > head:
                action = "set it aside unfinished: compare its files with the workspace"
            yield Damage("commit", history, problem, action, _set_aside(state_dir, history, problem, dry_run))
            if number > head and not dry_run:
                state_dir.settle()
    for name in state_dir.names():
        home = state_dir.home(name)
        problem = _find_branch_problem(home, is_native=is_native)
        if problem is None:
            yield from _repair_tree(StateDir(home, state_dir.state), None, dry_run, is_native=is_native)
            continue
        if not dry_run:
            _unmount(home)
        action = "set the branch aside; its changes are in the directory 'layer' there"
        yield Damage("branch", home, problem, action, _set_aside(state_dir, home, problem, dry_run))


def _find_problem(load: Callable[[], object]) -> str | None:
    try:
        load()
    except NewerStateError:
        return None
    except StateError as error:
        return error.reason
    return None


def _find_record_problem(state_dir: StateDir, number: int, target: str | None) -> str | None:
    """Return what is wrong with a commit; for an unfinished one, ``target`` is the directory to roll it back in."""
    history = state_dir.history(number)
    if os.path.islink(history) or not os.path.isdir(history):
        return "it is not a directory"
    problem = _find_problem(lambda: Record.load(history))
    if problem is not None:
        return problem
    with suppress(StateError):
        record = Record.load(history)
        if record is None:
            return None
        if target is not None:
            try:
                check_root(record, target, "it is unfinished")
            except CommitError:
                return f"it is unfinished, and {target} is another directory than the one it changed"
        # For an undo these are directories of the commit that it undoes; then the damage is that commit's.
        return next(
            filter(None, (_find_link(state_dir.path, path) for path in (record.side, record.layer or ""))), None
        )
    return None


def _find_link(top: str, path: str) -> str | None:
    """Return which part of ``path`` below ``top`` is not a directory, such as a link; a missing part is fine."""
    here = top
    for name in filter(None, path.split("/")):
        here = f"{here}/{name}"
        if os.path.lexists(here) and (os.path.islink(here) or not os.path.isdir(here)):
            kind = "a symbolic link" if os.path.islink(here) else "not a directory"
            return f"{here}, which holds the content that it replaced, is {kind}"
    return None


def _find_branch_problem(home: str, *, is_native: bool) -> str | None:
    if os.path.islink(home) or not os.path.isdir(home):
        return "it is not a directory"
    if not os.path.lexists(f"{home}/branch.json"):
        return "it has no branch.json"
    if os.path.islink(f"{home}/layer"):
        return "its layer is a symbolic link"

    def load() -> None:
        info = BranchInfo.load(home)
        if is_native:
            return
        try:
            view_named(info.view)
        except MountError as error:
            raise StateError(home, error.reason) from error

    return _find_problem(load)


def _find_head(state_dir: StateDir) -> int:
    """Return the newest commit whose branch is in the history: moving it is the last step before it takes effect."""
    for number in state_dir.numbers():
        with suppress(StateError):
            record = Record.load(state_dir.history(number))
            is_moved = record is not None and (record.home is None or not os.path.isdir(state_dir.home(record.home)))
            if record is not None and is_moved:
                return number
    return max(state_dir.numbers(), default=1) - 1


def _replace_head(state_dir: StateDir, head: int, error: StateError) -> str | None:
    path = f"{state_dir.path}/head"
    kept = state_dir.set_aside(path, error, warns=False) if os.path.lexists(path) else None
    new = f"{state_dir.path}/.head-repaired"
    os.makedirs(f"{new}/{head}", mode=0o700, exist_ok=True)
    os.rename(new, path)
    return kept


def _set_aside(state_dir: StateDir, path: str, reason: str, dry_run: bool) -> str | None:
    return None if dry_run else state_dir.set_aside(path, StateError(path, reason), warns=False)


def _unmount(home: str) -> None:
    """Unmount what is mounted inside a branch's home, except FUSE mounts that only another user may unmount."""
    for found in reversed(mounts()):
        if found.point.startswith(f"{home}/"):
            with suppress(OSError):
                umount2(found.point, MNT_DETACH)


def _repair_ledger(state_dir: StateDir, dry_run: bool) -> Iterator[Damage]:
    directory = f"{state_dir.path}/ledger"
    database = f"{directory}/ledger.db"
    if not os.path.lexists(database):
        return
    try:
        with SqliteLedger(directory) as ledger:
            for row in ledger.find_damage():
                name, action = f"{database}: {row.table} {row.name}", "rebuild it from its events, or else set it aside"
                yield Damage("ledger", name, row.reason, action if dry_run else ledger.repair(row))
    except LedgerError as error:
        if "newer forkwise" in str(error):
            raise
        action = "set the ledger aside and begin a new one; commits and branches are not affected"
        kept = None
        if not dry_run:
            for name in ("ledger.db-wal", "ledger.db-shm", "ledger.db"):
                if os.path.lexists(f"{directory}/{name}"):
                    kept = state_dir.set_aside(f"{directory}/{name}", StateError(database, str(error)), warns=False)
        yield Damage("ledger", database, str(error), action, kept)
