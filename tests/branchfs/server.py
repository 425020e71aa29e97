"""The filesystem of the stand-in, for one mount.

Like BranchFS it keeps whole changed files, walks up the chain of branches to find the others, and remembers deletions.
Behaviour of real builds that forkwise has to cope with is imitated: a branch sees later writes of its parent, empty
directories are not committed, there are no hard links, FIFOs and extended attributes, and a loser stays writable.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import mfusepy

_CREATE, _COMMIT, _ABORT = 0x80806200, 0x6201, 0x6202
_CONTROL = ".branchfs_ctl"
_FIELDS = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino", "st_blocks")


class _Branch:
    def __init__(self, name: str, parent: _Branch | None, storage: str) -> None:
        self.name = name
        self.parent = parent
        self.directory = f"{storage}/branches/{name}"
        self.files = f"{self.directory}/files"
        self.deleted: set[str] = set()
        self.commits = 0
        self.seen_commits = parent.commits if parent else 0
        os.makedirs(self.files)

    def chain(self) -> Iterator[_Branch]:
        branch: _Branch | None = self
        while branch is not None:
            yield branch
            branch = branch.parent

    def hides(self, path: str) -> bool:
        return not self.deleted.isdisjoint(_prefixes(path))


class StandIn(mfusepy.Operations):
    """The operations of the filesystem; a path is resolved to a branch and a path inside it."""

    use_ns = True

    def __init__(self, base: str, storage: str, build: str) -> None:
        self.base = base
        self.storage = storage
        self.is_text = build == "text"
        shutil.rmtree(f"{storage}/branches", ignore_errors=True)
        self.main = _Branch("main", None, storage)
        self.branches = {"main": self.main}

    # Branches

    def _create(self, name: str, parent: _Branch) -> None:
        if not name or "/" in name or name.startswith("@") or name in self.branches:
            raise OSError(errno.EIO, "a branch of that name exists, or it is no name")
        self.branches[name] = _Branch(name, parent, self.storage)

    def _end(self, branch: _Branch, merge: Callable[[_Branch], None] | None) -> None:
        parent = branch.parent
        if parent is None or any(other.parent is branch for other in self.branches.values()):
            raise OSError(errno.EIO, "main, or a branch with children")
        if merge is not None:
            if branch.seen_commits != parent.commits:
                raise OSError(errno.ESTALE, "a sibling was committed first")
            merge(branch)
            parent.commits += 1
        del self.branches[branch.name]
        shutil.rmtree(branch.directory)

    def _merge(self, branch: _Branch) -> None:
        parent = branch.parent
        assert parent is not None
        target = self.base if parent is self.main else parent.files
        for path in sorted(branch.deleted):
            _remove(f"{target}/{path}")
            _remove(f"{parent.files}/{path}")
            if parent is not self.main:
                parent.deleted.add(path)
        for directory, directories, names in os.walk(branch.files):
            for name in [*names, *(n for n in directories if os.path.islink(f"{directory}/{n}"))]:
                path = os.path.relpath(f"{directory}/{name}", branch.files)
                _remove(f"{parent.files}/{path}")
                os.makedirs(os.path.dirname(f"{target}/{path}"), exist_ok=True)
                _copy(f"{directory}/{name}", f"{target}/{path}")
                parent.deleted -= set(_prefixes(path))

    # Paths

    def _split(self, path: str) -> tuple[_Branch, str]:
        branch = self.main
        parts = [part for part in path.split("/") if part]
        while parts and parts[0].startswith("@") and parts[0][1:] in self.branches:
            inner = self.branches[parts[0][1:]]
            if branch is not self.main and inner.parent is not branch:
                break
            branch = inner
            parts.pop(0)
        return branch, "/".join(parts)

    def _find(self, branch: _Branch, path: str) -> str:
        for one in branch.chain():
            if os.path.lexists(f"{one.files}/{path}"):
                return f"{one.files}/{path}" if path else self.base
            if one.hides(path):
                raise OSError(errno.ENOENT, path)
        if not os.path.lexists(f"{self.base}/{path}"):
            raise OSError(errno.ENOENT, path)
        return f"{self.base}/{path}"

    def _has(self, branch: _Branch, path: str) -> bool:
        try:
            self._find(branch, path)
        except OSError:
            return False
        return True

    def _make_room(self, branch: _Branch, path: str) -> str:
        """Create the directories around a path in a branch's own files; return the path there."""
        directory = os.path.dirname(path)
        if directory and not os.path.isdir(f"{branch.files}/{directory}"):
            found = self._find(branch, directory)
            own = self._make_room(branch, directory)
            os.mkdir(own)
            shutil.copystat(found, own)
        return f"{branch.files}/{path}"

    def _copy_up(self, path: str) -> str:
        branch, path = self._split(path)
        found = self._find(branch, path)
        own = self._make_room(branch, path)
        if not os.path.lexists(own):
            if os.path.isdir(found) and not os.path.islink(found):
                os.mkdir(own)
                shutil.copystat(found, own)
            else:
                _copy(found, own)
        return own

    def _names(self, branch: _Branch, path: str) -> set[str]:
        names: set[str] = set()
        for directory in [*(one.files for one in branch.chain()), self.base]:
            if os.path.isdir(f"{directory}/{path}"):
                names.update(os.listdir(f"{directory}/{path}"))
        return {name for name in names if self._has(branch, f"{path}/{name}".lstrip("/"))}

    # Operations of the control files

    def ioctl(self, path: str, cmd: int, arg: Any, fh: int, flags: int, data: Any) -> int:
        branch, inside = self._split(path)
        if inside != _CONTROL or self.is_text:
            raise OSError(errno.ENOTTY, "not a control file, or this build accepts text only")
        request = cmd & 0xFFFFFFFF
        if request == _CREATE:
            name = f"branch-{uuid.uuid4()}"
            self._create(name, branch)
            ctypes.memmove(data, name.encode().ljust(128, b"\0"), 128)
        elif request == _COMMIT:
            self._end(branch, self._merge)
        elif request == _ABORT:
            self._end(branch, None)
        else:
            raise OSError(errno.ENOTTY, "unknown request")
        return 0

    def _command(self, branch: _Branch, text: str) -> None:
        word, _, name = text.strip("\0 \n").partition(":")
        if word == "create":
            self._create(name, branch)
        elif word in ("commit", "abort"):
            self._end(branch, self._merge if word == "commit" else None)
        else:
            raise OSError(errno.EINVAL, text)

    # Operations of files

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        branch, inside = self._split(path)
        if inside == _CONTROL:
            mode = stat.S_IFREG | 0o666
            return {"st_mode": mode, "st_nlink": 1, "st_size": 0, "st_uid": os.getuid(), "st_gid": os.getgid()}
        found = os.fstat(fh) if fh else os.lstat(self._find(branch, inside))
        times = {f"st_{kind}time": getattr(found, f"st_{kind}time_ns") for kind in "amc"}
        return {field: getattr(found, field) for field in _FIELDS} | times

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *self._names(*self._split(path))]

    def open(self, path: str, flags: int) -> int:
        branch, inside = self._split(path)
        if inside == _CONTROL:
            return 0
        is_written = flags & (os.O_WRONLY | os.O_RDWR)
        return os.open(self._copy_up(path) if is_written else self._find(branch, inside), flags & ~os.O_CREAT)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        branch, inside = self._split(path)
        return os.open(self._make_room(branch, inside), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset) if fh else b""

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        branch, inside = self._split(path)
        if inside == _CONTROL:
            self._command(branch, data.decode())
            return len(data)
        return os.pwrite(fh, data, offset)

    def release(self, path: str, fh: int) -> int:
        if fh:
            os.close(fh)
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        if self._split(path)[1] != _CONTROL:
            os.truncate(fh or self._copy_up(path), length)
        return 0

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._copy_up(path), mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        os.chown(self._copy_up(path), uid, gid, follow_symlinks=False)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self._copy_up(path), ns=times, follow_symlinks=False)
        return 0

    def readlink(self, path: str) -> str:
        return os.readlink(self._find(*self._split(path)))

    def symlink(self, target: str, source: str) -> int:
        os.symlink(source, self._make_room(*self._split(target)))
        return 0

    def link(self, target: str, source: str) -> int:
        raise OSError(errno.EPERM, "no hard links")

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self._make_room(*self._split(path)), mode)
        return 0

    def unlink(self, path: str) -> int:
        branch, inside = self._split(path)
        self._find(branch, inside)
        _remove(f"{branch.files}/{inside}")
        if self._has(branch, inside):
            branch.deleted.add(inside)
        return 0

    def rmdir(self, path: str) -> int:
        branch, inside = self._split(path)
        if self._names(branch, inside):
            raise OSError(errno.ENOTEMPTY, path)
        return self.unlink(path)

    def rename(self, old: str, new: str) -> int:
        branch, inside = self._split(old)
        to, target = self._split(new)
        if to is not branch:
            raise OSError(errno.EXDEV, new)
        own = self._copy_tree_up(old)
        room = self._make_room(to, target)
        if not (os.path.isdir(own) and os.path.isdir(room)):
            _remove(room)
        os.rename(own, room)
        if self._has(branch, inside):
            branch.deleted.add(inside)
        return 0

    def _copy_tree_up(self, path: str) -> str:
        own = self._copy_up(path)
        if os.path.isdir(own) and not os.path.islink(own):
            for name in self._names(*self._split(path)):
                self._copy_tree_up(f"{path}/{name}")
        return own

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self.base)
        return {field: getattr(found, field) for field in ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail")}


def _prefixes(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _copy(source: str, target: str) -> None:
    _remove(target)
    shutil.copy2(source, target, follow_symlinks=False)


def serve(base: str, storage: str, mountpoint: str, build: str) -> None:
    """Mount the filesystem and serve it until it is unmounted."""
    mfusepy.FUSE(
        StandIn(base, storage, build),
        mountpoint,
        foreground=True,
        nothreads=True,
        fsname="branchfs",
        attr_timeout=0,
        entry_timeout=0,
        negative_timeout=0,
    )
