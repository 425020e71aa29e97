"""A sample tree, more than fifty changes of every kind to it, and the exact description of a directory."""

from __future__ import annotations

import os
import shutil
import stat
import zlib
from pathlib import Path

__all__ = ["alter", "alter_again", "grow", "picture"]

Picture = dict[bytes, tuple[object, ...]]

_NEWLINE = "new\nline"
_NOT_UTF8 = os.fsdecode(b"not-utf8-\xff\xfe")


def grow(root: Path) -> None:
    """Create the tree; every file and directory has a different time."""
    root.mkdir(parents=True, exist_ok=True)
    _write(root, {f"change/{n:02}": f"old {n}\n" * 40 for n in range(12)})
    _write(root, {f"delete/{n:02}": f"old {n}\n" for n in range(8)})
    _write(root, {f"keep/{n}": f"kept {n}\n" for n in range(3)})
    _write(root, {f"gone/{d}/{n}": "going\n" for d in ("a", "a/b", "c") for n in range(2)})
    (root / "gone/empty").mkdir()
    (root / "gone/link").symlink_to("a/0")
    _write(root, {f"replaced/{d}/{n}": "hidden\n" for d in ("same", "other") for n in range(2)})
    _write(root, {"file-to-dir": "x\n", "file-to-link": "x\n", "dir-to-file/a/b": "x\n", "dir-to-link/a": "x\n"})
    (root / "link-to-file").symlink_to("keep/0")
    (root / "link-to-dir").symlink_to("/nowhere")
    (root / "link-to-link").symlink_to("keep/1")
    _write(root, {f"modes/{n}": "mode\n" for n in range(3)} | {"closed/sub/a": "a\n", "opened/a": "a\n"})
    (root / "opened").chmod(0o555)
    _write(root, {"read-only/a": "a\n", "read-only/b": "b\n", "set-uid": "#!\n", "read-only.txt": "r\n"})
    (root / "set-uid").chmod(0o4755)
    (root / "read-only.txt").chmod(0o444)
    (root / "empty-goes").mkdir()
    _write(root, {f"attributes/{n}": "a\n" for n in ("added", "changed", "removed")})
    for name in ("changed", "removed"):
        os.setxattr(root / "attributes" / name, "user.note", b"before")
    os.setxattr(root / "attributes", "user.of-directory", b"before")
    _write(root, {"pair-1": "linked\n", "times": "same\n", _NEWLINE: "n\n", _NOT_UTF8: "u\n"})
    os.link(root / "pair-1", root / "pair-2")
    with open(root / "sparse", "wb") as file:
        file.truncate(1 << 17)
        file.write(b"begin")
    (root / "read-only").chmod(0o555)
    for path in [*root.rglob("*"), root]:
        _age(path, 1_500_000_000)


def alter(root: Path) -> None:
    """Make more than fifty changes, as a branch in the tests of commits."""
    touched: set[Path] = {root}
    for n in range(12):
        _overwrite(root / f"change/{n:02}", f"new {n}\n" * (n * 9), touched)
    for n in range(8):
        _remove(root / f"delete/{n:02}", touched)
    _add(root, {f"add/{n}": f"added {n}\n" for n in range(6)} | {"add/deep/er/file": "d\n"}, touched)
    _add(root, {"keep/added": "beside\n"}, touched)
    _remove(root / "gone", touched)
    _remove(root / "replaced", touched)
    _add(root, {"replaced/same/0": "shown\n", "replaced/new": "n\n"}, touched)
    _remove(root / "file-to-dir", touched)
    _add(root, {"file-to-dir/a": "a\n", "file-to-dir/b/c": "c\n"}, touched)
    _remove(root / "dir-to-file", touched)
    _add(root, {"dir-to-file": "a file now\n"}, touched)
    for name, to in {
        "dir-to-link": "keep",
        "file-to-link": "keep/0",
        "link-to-link": "keep/2",
        "dangling": "/no",
    }.items():
        _remove(root / name, touched)
        (root / name).symlink_to(to)
        touched.add(root / name)
    _remove(root / "link-to-file", touched)
    _add(root, {"link-to-file": "no link any more\n"}, touched)
    _remove(root / "link-to-dir", touched)
    _add(root, {"link-to-dir/a": "a\n"}, touched)
    for n, mode in enumerate((0o600, 0o755, 0o640)):
        (root / f"modes/{n}").chmod(mode)
    (root / "closed").chmod(0o750)
    (root / "closed/sub").chmod(0o500)
    (root / "opened").chmod(0o755)
    _remove(root / "empty-goes", touched)
    (root / "empty-comes").mkdir()
    (root / "empty-comes").chmod(0o2775)
    touched.add(root / "empty-comes")
    (root / "read-only").chmod(0o755)
    _overwrite(root / "read-only/a", "written all the same\n", touched)
    _remove(root / "read-only/b", touched)
    (root / "read-only").chmod(0o555)
    _remove(root / "read-only.txt", touched)
    _add(root, {"read-only.txt": "another\n", "new-read-only/sub/a": "a\n", "new-set-uid": "#!\n"}, touched)
    for name, mode in {"read-only.txt": 0o400, "new-read-only/sub": 0o555, "new-read-only": 0o555}.items():
        (root / name).chmod(mode)
    _overwrite(root / "set-uid", "#! new\n", touched)
    (root / "set-uid").chmod(0o4755)
    (root / "new-set-uid").chmod(0o6711)
    os.setxattr(root / "attributes/added", "user.note", b"after")
    os.setxattr(root / "attributes/changed", "user.note", b"after")
    os.removexattr(root / "attributes/removed", "user.note")
    os.setxattr(root / "attributes", "user.of-directory", b"after")
    os.setxattr(root / "attributes", "user.more", b"\0\xff")
    os.setxattr(root / "add/deep", "user.note", b"in a new tree")
    _overwrite(root / "pair-1", "no longer the same\n", touched)
    _add(root, {"new-pair-1": "linked\n"}, touched)
    os.link(root / "new-pair-1", root / "new-pair-2")
    with open(root / "sparse", "r+b") as file:
        file.truncate(1 << 18)
        file.seek(1 << 17)
        file.write(b"middle")
    with open(root / "new-sparse", "wb") as file:
        file.seek(1 << 17)
        file.write(b"end")
    _overwrite(root / _NEWLINE, "nn\n", touched)
    _remove(root / _NOT_UTF8, touched)
    _add(root, {os.fsdecode(b"also-\xfe"): "not text\n"}, touched)
    if os.geteuid() == 0:
        os.chown(root / "modes/1", 1, 2)
        os.chown(root / "closed", 3, 4)
    os.utime(root / "times", ns=(1, 1_600_000_000_000_000_001))
    for path in touched | {root / "sparse", root / "new-sparse", root / "new-pair-1"}:
        if os.path.lexists(path):
            _age(path, 1_600_000_000)


def alter_again(root: Path) -> None:
    """Make changes on top of those of ``alter``, for a nested branch."""
    touched: set[Path] = {root}
    for n in range(4):
        _overwrite(root / f"change/{n:02}", f"newer {n}\n", touched)  # changed below, too
        _remove(root / f"add/{n}", touched)  # added below
        _add(root, {f"delete/{n:02}": "back\n"}, touched)  # deleted below
    _remove(root / "change/11", touched)
    _remove(root / "keep/0", touched)
    _overwrite(root / "keep/1", "changed only here\n", touched)
    _add(root, {"gone/here/again": "a\n", "added-later/x/y": "y\n"}, touched)
    _remove(root / "replaced", touched)
    _add(root, {"replaced/third": "3\n"}, touched)
    _remove(root / "file-to-dir", touched)
    _add(root, {"file-to-dir": "and back\n"}, touched)
    _remove(root / "dir-to-file", touched)
    _add(root, {"dir-to-file/z": "z\n"}, touched)
    _remove(root / "dir-to-link", touched)
    _add(root, {"dir-to-link/q": "q\n"}, touched)
    _remove(root / "dangling", touched)
    (root / "closed").chmod(0o711)
    (root / "modes/2").chmod(0o604)
    os.setxattr(root / "attributes", "user.of-directory", b"again")
    os.setxattr(root / "attributes/removed", "user.note", b"again")
    (root / "modes").chmod(0o1777)
    for path in touched:
        if os.path.lexists(path):
            _age(path, 1_650_000_000)


def picture(root: str | os.PathLike[str], *, owners: bool = True) -> Picture:
    """Describe a tree completely: types, modes, owners, times, content, symlinks and attributes, the root's own
    included. ``owners=False`` leaves owners out."""
    found: Picture = {}
    pending = [os.fsencode(root)]
    top = len(pending[0])
    while pending:
        path = pending.pop()
        entry = os.lstat(path)
        kind = stat.S_IFMT(entry.st_mode)
        content: object = None
        if kind == stat.S_IFREG:
            with open(path, "rb") as file:
                content = file.read()
        elif kind == stat.S_IFLNK:
            content = os.readlink(path)
        elif kind == stat.S_IFDIR:
            pending.extend(os.path.join(path, name) for name in os.listdir(path))
        attributes = {
            a: os.getxattr(path, a, follow_symlinks=False)
            for a in os.listxattr(path, follow_symlinks=False)
            if a.startswith(("user.", "system.posix_acl"))
        }
        found[path[top:] or b"."] = (
            kind,
            oct(stat.S_IMODE(entry.st_mode)),
            (entry.st_uid, entry.st_gid) if owners else None,
            entry.st_mtime_ns,
            content,
            tuple(sorted(attributes.items())),
        )
    return found


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def _add(root: Path, files: dict[str, str], touched: set[Path]) -> None:
    _write(root, files)
    for name in files:
        path = root / name
        while path != root:
            touched.add(path)
            path = path.parent


def _overwrite(path: Path, text: str, touched: set[Path]) -> None:
    path.write_text(text)
    touched.add(path)


def _remove(path: Path, touched: set[Path]) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    touched.add(path.parent)


def _age(path: Path, since: int) -> None:
    """Set a time that no other path has and that is not the current one."""
    time = since * 1_000_000_000 + zlib.crc32(os.fsencode(path.name) + bytes([len(path.parts)])) * 7
    os.utime(path, ns=(time, time), follow_symlinks=False)
