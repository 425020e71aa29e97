"""Rebase: a branch brought from the parent it was forked from onto the parent as it is now."""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkwise.errors import BranchError
from forkwise.files.beneath import open_directory, open_root
from forkwise.files.birth import Birth
from forkwise.files.conflict import Conflict
from forkwise.files.copying import copy_entry
from forkwise.files.layer import Scan
from forkwise.files.marks import mark_origins
from forkwise.files.merging import merge_conflicts
from forkwise.files.plan import find_conflicts
from forkwise.files.removing import remove_tree
from forkwise.files.state import Lock, locked
from forkwise.files.syscalls import RENAME_EXCHANGE, renameat2
from forkwise.files.transaction import recover
from forkwise.files.trash import discard
from forkwise.files.versions import Versions

if TYPE_CHECKING:
    from forkwise.files.branch import Branch

__all__ = ["Rebase", "rebase_branch"]


@dataclass(frozen=True, slots=True)
class Rebase:
    """What a rebase did: the paths it merged, and the conflicts that are left for somebody to decide."""

    merged: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


def rebase_branch(branch: Branch) -> Rebase:
    """Bring a branch onto its parent's present state."""
    parent = branch.parent
    with locked(branch.place.state) as lock:
        recover(parent.place, parent.target)
        birth = Birth.load(branch.home)
        recover(branch.place, branch.target)
        if names := branch.place.names():
            raise BranchError(
                f"{branch.branch_path} has branches of its own: {', '.join(names)}; they come first", branch=branch.name
            )
        branch.view_kind.hide(branch.home)
        now = lock.now()
        scan = branch.scan()
        entries = {e.path: e for e in scan.entries}
        with Versions(branch.target, parent.lowers) as versions:
            found = find_conflicts(scan, birth.forked)
            found = [c for c in found if c.path not in entries or not versions.is_same(entries[c.path])]
            merged, left = merge_conflicts(found, entries, versions, parent, birth)
        birth.generation = parent.place.head
        birth.forked = now
        birth.unmerged = left
        if branch.view_kind.whole:
            _replay(branch, birth, scan, merged, lock)
        else:
            for path, content in merged.items():
                _replace(branch.target, path, content)
            mark_origins(branch.target, merged)
            birth.rebased = lock.now()
            birth.save(branch.home)
    return Rebase(tuple(sorted(merged)), tuple(left))


def _replace(layer: str, path: str, content: bytes) -> None:
    """Give a file new content by a rename, so that whoever is killed leaves the old one or the new one."""
    directory, _, name = path.rpartition("/")
    root = open_root(layer)
    fd = open_directory(root, directory, os.O_PATH)
    beside = f".{secrets.token_hex(8)}"
    try:
        copy_entry(fd, name, fd, beside)
        flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(beside, flags, dir_fd=fd), "wb") as file:
            file.write(content)
        os.rename(beside, name, src_dir_fd=fd, dst_dir_fd=fd)
    finally:
        os.close(fd)
        os.close(root)


def _replay(branch: Branch, birth: Birth, scan: Scan, merged: dict[str, bytes], lock: Lock) -> None:
    """A whole tree is made anew from the parent and given the branch's changes; one exchange puts it in place."""
    view, parent = branch.view_kind, branch.parent
    home = f"{parent.place.path}/branches/.new-rebase-{secrets.token_hex(4)}"
    os.mkdir(home, 0o700)
    try:
        view.make(home, parent.lowers)
        birth.made = lock.now()
        _write_changes(branch.target, f"{home}/layer", scan)
        for path, content in merged.items():
            _replace(f"{home}/layer", path, content)
        birth.rebased = lock.now()
        birth.save(home)
        root = open_root(parent.place.path)
        try:
            renameat2(root, os.path.relpath(home, parent.place.path), root, f"branches/{branch.name}", RENAME_EXCHANGE)
        finally:
            os.close(root)
    finally:
        view.release(home)
        discard(parent.place, home)


def _write_changes(source: str, target: str, scan: Scan) -> None:
    old, new = open_root(source), open_root(target)
    try:
        for entry in scan.entries:
            if not entry.unit:
                continue
            try:
                there = open_directory(new, entry.directory, os.O_PATH)
            except FileNotFoundError:
                os.makedirs(f"{target}/{entry.directory}")  # the parent deleted it, the branch changed what is inside
                there = open_directory(new, entry.directory, os.O_PATH)
            try:
                remove_tree(there, entry.name)
                if entry.new is not None:
                    here = open_directory(old, entry.directory, os.O_PATH)
                    try:
                        copy_entry(here, entry.name, there, entry.name)
                    finally:
                        os.close(here)
            finally:
                os.close(there)
        for touched in scan.touched:
            if touched.is_changed:
                os.chmod(f"{target}/{touched.path}", stat.S_IMODE(touched.new.st_mode))
    finally:
        os.close(old)
        os.close(new)
