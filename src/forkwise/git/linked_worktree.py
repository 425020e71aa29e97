"""Linked worktrees: the directory that git keeps for each in ``.git/worktrees``, and the index of a new one.

The files are written here, in the layout that gitrepository-layout(5) documents, because ``git worktree add`` would
check out every file. The new index is a copy of the checkout's. It is valid as it is if the worktree shows the same
inodes, as an overlay does; for files that were copied, their new inode numbers are entered.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from forkwise.errors import GitError
from forkwise.git.program import run_git
from forkwise.git.repository import Repository, read_pointer, read_regular

__all__ = [
    "check_branch_name",
    "create_branch",
    "delete_branch",
    "find_nested_pointers",
    "link_worktree",
    "refresh_index",
    "resolve_commit",
    "unlink_worktree",
]

#: Files of a repository's own directory that exist while git is in the middle of something.
_UNFINISHED = {
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
}
_WORKTREE_LINE = re.compile(r"^\s*worktree\s*=\s*\"?(?P<path>[^\"\n]+)\"?\s*$", re.MULTILINE)
_MAX_MODULES = 1000
_LOG = "forkwise: worktree"

_HEADER = struct.Struct(">4sII")
_ENTRY = struct.Struct(">10I")  # ctime, mtime, device, inode, mode, owner, group, size
_EXTENDED = 0x4000
_SIZES = {"sha1": 20, "sha256": 32}


def check_branch_name(name: str) -> None:
    """Raise GitError unless git accepts ``name`` for a new branch."""
    is_valid = bool(name) and not name.startswith("-") and name != "HEAD" and "\0" not in name
    if not is_valid or run_git(["check-ref-format", f"refs/heads/{name}"]).returncode != 0:
        raise GitError(f"{name!r} is not a valid name for a git branch; see git help check-ref-format")


def resolve_commit(repository: Repository, revision: str | None) -> str | None:
    """Return the id of a commit, by default that of ``HEAD``; None if there is no commit yet."""
    found = repository.find_commit(revision or "HEAD")
    if found is None and revision is not None:
        raise GitError(f"{revision!r} names no commit of {repository.work_tree}; list them with git log --all")
    return found


def create_branch(repository: Repository, name: str, commit: str, worktree: str) -> None:
    """Create a branch for a worktree, and record the worktree in its reflog. Raises GitError if the branch exists."""
    reference = f"refs/heads/{name}"
    repository.check_reference(reference)
    repository.prepare_logs()
    words = ("update-ref", "--create-reflog", "-m", f"{_LOG} {worktree}", reference, commit, "0" * len(commit))
    # Without an identity git would not write the log, which later shows who created the branch.
    done = repository.run(*words, identity=_OWN_IDENTITY)
    if done.returncode != 0:
        reason = " ".join(os.fsdecode(done.stderr).split())
        if "already exists" in reason or "exists; cannot create" in reason:
            raise GitError(f"the git branch {name!r}, or one in its way, already exists; give another name: {reason}")
        raise GitError(f"the git branch {name!r} could not be created: {reason}")


_OWN_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "forkwise"), ("EMAIL", "forkwise@localhost"))
}


def delete_branch(repository: Repository, name: str, commit: str, worktree: str) -> bool:
    """Delete the branch that ``create_branch`` made for a worktree; return False if it was used or is another's."""
    reference = f"refs/heads/{name}"
    repository.check_reference(reference)
    try:
        lines = read_regular(f"{repository.common_directory}/logs/{reference}").splitlines()
    except FileNotFoundError:
        return False
    if len(lines) != 1 or not lines[0].endswith(f"\t{_LOG} {worktree}".encode()):
        return False
    return repository.run("update-ref", "-d", reference, commit, identity=_OWN_IDENTITY).returncode == 0


def link_worktree(
    repository: Repository, directory: str, path: str, *, branch: str, lock_reason: str, copies_index: bool
) -> None:
    """Fill the new ``directory`` of ``.git/worktrees`` for a worktree at ``path`` on ``branch``.

    ``lock_reason`` locks it against ``git worktree prune`` and ``remove``. With ``copies_index`` it gets the index of
    ``repository``; GitError if git is in the middle of a merge there, whose conflicts the index holds.
    """
    source = repository.git_directory
    if copies_index:
        for name, action in _UNFINISHED.items():
            if os.path.lexists(f"{source}/{name}"):
                raise GitError(f"a {action} is unfinished in {repository.work_tree}; finish it, or start with --clean")
    Path(directory, "locked").write_bytes(os.fsencode(f"{lock_reason}\n"))
    Path(directory, "gitdir").write_bytes(os.fsencode(f"{path}/.git\n"))
    Path(directory, "commondir").write_text("../..\n")
    Path(directory, "HEAD").write_bytes(os.fsencode(f"ref: refs/heads/{branch}\n"))
    os.mkdir(f"{directory}/logs")
    if copies_index:
        for name in ("index", *(n for n in os.listdir(source) if n.startswith("sharedindex."))):
            _copy_file(f"{source}/{name}", f"{directory}/{name}")
    if os.path.lexists(f"{source}/info/sparse-checkout"):
        os.mkdir(f"{directory}/info")
        _copy_file(f"{source}/info/sparse-checkout", f"{directory}/info/sparse-checkout")
    if os.path.lexists(f"{source}/config.worktree"):
        _copy_file(f"{source}/config.worktree", f"{directory}/config.worktree")
        for key in ("core.worktree", "core.bare"):
            run_git(["config", "--file", f"{directory}/config.worktree", "--unset-all", key])


def _copy_file(source: str, target: str) -> None:
    """Copy a file of a repository, with its times: git distrusts index entries that are as new as the index."""
    with suppress(FileNotFoundError):
        content = read_regular(source)
        found = os.stat(source)
        Path(target).write_bytes(content)
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def unlink_worktree(directory: str) -> None:
    """Remove a directory of ``.git/worktrees``; git may have removed it already."""
    with suppress(FileNotFoundError):
        os.unlink(f"{directory}/gitdir")  # without it, git prunes what is left if this process is killed
    with suppress(FileNotFoundError):
        os.unlink(f"{directory}/locked")
    shutil.rmtree(directory, ignore_errors=True)
    with suppress(OSError):
        os.rmdir(os.path.dirname(directory))


def find_nested_pointers(repository: Repository) -> Iterator[str]:
    """Yield the paths, in the work tree, of ``.git`` files of its submodules and of linked worktrees inside it.

    In a copy of the work tree they would lead git to the directories of the originals. The cost does not depend on the
    size of the work tree.
    """
    top = f"{repository.work_tree}/"
    found: set[str] = set()
    with suppress(OSError):
        for name in os.listdir(f"{repository.common_directory}/worktrees"):
            found.add((read_pointer(f"{repository.common_directory}/worktrees/{name}/gitdir") or "").rstrip("\n"))
    pending = [f"{repository.git_directory}/modules"]
    for directory in pending:
        with suppress(OSError):
            names = os.listdir(directory)
            if "HEAD" in names and "config" in names:
                text = os.fsdecode(read_regular(f"{directory}/config"))
                if (line := _WORKTREE_LINE.search(text)) is not None:
                    found.add(f"{os.path.normpath(os.path.join(directory, line['path']))}/.git")
                names = ["modules"] if "modules" in names else []
            if len(pending) < _MAX_MODULES:
                pending += [f"{directory}/{n}" for n in names if os.path.isdir(f"{directory}/{n}")]
    for pointer in sorted(found):
        if pointer.startswith(top) and pointer != f"{top}.git":
            with suppress(OSError):
                if stat.S_ISREG(os.lstat(pointer).st_mode):
                    yield pointer.removeprefix(top)


def refresh_index(index: str, original: str, copy: str) -> None:
    """Enter the inode numbers of copied files in an index, for entries that were valid for the original files.

    Other entries stay as they are, so that git compares the content. ``original`` and ``copy`` are work trees. An index
    that cannot be parsed is left unchanged.
    """
    try:
        found = os.stat(index)
        content = bytearray(read_regular(index))
        _enter_inodes(content, os.fsencode(original), os.fsencode(copy))
    except (struct.error, ValueError, IndexError, FileNotFoundError):
        return
    Path(index).write_bytes(content)
    os.utime(index, ns=(found.st_atime_ns, found.st_mtime_ns))


def _enter_inodes(content: bytearray, original: bytes, copy: bytes) -> None:
    magic, version, count = _HEADER.unpack_from(content)
    if magic != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("unknown format")
    kind = next((name for name in ("sha1", "sha256") if _checksum(content, name) == content[-_SIZES[name] :]), None)
    if kind is None:
        raise ValueError("neither kind of checksum")
    size = _SIZES[kind]
    position = _HEADER.size
    path = b""
    for _ in range(count):
        start = position
        position += _ENTRY.size + size
        (flags,) = struct.unpack_from(">H", content, position)
        position += 4 if version >= 3 and flags & _EXTENDED else 2
        if version == 4:
            dropped = content[position] & 0x7F
            while content[position] & 0x80:
                position += 1
                dropped = ((dropped + 1) << 7) | (content[position] & 0x7F)
            end = content.index(0, position + 1)
            path = path[: len(path) - dropped] + bytes(content[position + 1 : end])
            position = end + 1
        else:
            end = content.index(0, position)
            path = bytes(content[position:end])
            position = start + (end - start + 8) // 8 * 8
        _enter_inode(content, start, original + b"/" + path, copy + b"/" + path)
    content[-size:] = _checksum(content, kind)


def _checksum(content: bytearray, kind: str) -> bytes:
    return hashlib.new(kind, memoryview(content)[: -_SIZES[kind]], usedforsecurity=False).digest()


def _enter_inode(content: bytearray, start: int, original: bytes, copy: bytes) -> None:
    try:
        old, new = os.lstat(original), os.lstat(copy)
    except OSError:
        return
    entry = _ENTRY.unpack_from(content, start)
    device, mode, size = entry[4], entry[6], entry[9]  # git ignores the device number: it may change with a boot
    if entry != (*_times(old), device, old.st_ino & _MASK, mode, old.st_uid, old.st_gid, old.st_size & _MASK):
        return
    if new.st_mtime_ns != old.st_mtime_ns or new.st_size != old.st_size or stat.S_ISDIR(new.st_mode):
        return
    _ENTRY.pack_into(
        content, start, *_times(new), new.st_dev & _MASK, new.st_ino & _MASK, mode, new.st_uid, new.st_gid, size
    )


_MASK = 0xFFFFFFFF


def _times(found: os.stat_result) -> tuple[int, int, int, int]:
    changed, modified = divmod(found.st_ctime_ns, 10**9), divmod(found.st_mtime_ns, 10**9)
    return changed[0] & _MASK, changed[1], modified[0] & _MASK, modified[1]
