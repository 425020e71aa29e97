"""Overlayfs's on-disk format: whiteouts, opaque directories and origins, and lookup through stacked layers.

``Lower`` reads the parent of a branch without mounting anything, by overlayfs's rules: the nearest layer that has a
name wins, a whiteout hides it, an opaque directory hides all directories below. A *mark* is an extended attribute that
overlayfs or fuse-overlayfs sets on an entry of a layer.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TypeAlias

from forkwise.linux.trees import NOT_THERE, closing_fd, copy_entry, join, open_directory, open_root, proc_path, writable

__all__ = [
    "FUSE_MARKS",
    "OVERLAY_MARKS",
    "LayerDirectories",
    "Lower",
    "LowerDirectory",
    "Marks",
    "copy_directory_metadata",
    "drop_mark_files",
    "inherit_origins",
    "is_mark",
    "is_of_user",
    "is_opaque",
    "is_origin",
    "is_whiteout",
    "list_marks",
    "mark_opaque",
    "mark_origins",
    "put_back_in_layer",
    "read_mark",
    "read_marks",
    "unmark",
    "unmark_origins",
    "write_marks",
]


#: Paths in a layer, each with its marks and their values in hexadecimal.
Marks: TypeAlias = list[tuple[str, dict[str, str]]]

#: The prefixes of the marks that a view sets, and that no program can set through it. In the other view they are
#: ordinary attributes without meaning.
OVERLAY_MARKS = ("user.overlay.",)
FUSE_MARKS = ("user.fuseoverlayfs.", "trusted.overlay.")

_MARKS = (*OVERLAY_MARKS, *FUSE_MARKS)
_OF_USER = ("user.", "system.posix_acl_")


def is_mark(attribute: str) -> bool:
    """Return whether an extended attribute is a mark."""
    return attribute.startswith(_MARKS)


def is_of_user(attribute: str) -> bool:
    """Return whether an extended attribute was set by a user: neither a mark nor one of the security system."""
    return attribute.startswith(_OF_USER) and not attribute.startswith(_MARKS)


def is_origin(attribute: str, prefixes: Sequence[str] = OVERLAY_MARKS) -> bool:
    """Return whether an attribute is an origin, which marks a file that was copied up from the parent."""
    return attribute.endswith(".origin") and attribute.removesuffix("origin") in prefixes


def is_whiteout(entry: os.stat_result) -> bool:
    """Return whether a layer's entry is a whiteout, which represents a deletion."""
    return stat.S_ISCHR(entry.st_mode) and entry.st_rdev == 0


def is_opaque(path: str, attributes: Sequence[str], prefixes: Sequence[str] = OVERLAY_MARKS) -> bool:
    """Return whether a layer's directory is opaque: it hides the directories below it."""
    return any(p + "opaque" in attributes and _is_yes(path, p + "opaque") for p in prefixes)


def _is_yes(path: str, attribute: str) -> bool:
    return os.getxattr(path, attribute, follow_symlinks=False) == b"y"


def unmark(directories: LayerDirectories, marked: Iterable[tuple[str, str, Sequence[str]]]) -> None:
    """Remove marks from entries given as (directory, name, marks)."""
    for directory, name, marks in marked:
        path = proc_path(directories.fd(directory), name)
        for mark in marks:
            _remove(path, mark)


def read_marks(directories: LayerDirectories, marked: Iterable[tuple[str, str, Sequence[str]]]) -> Marks:
    """Read the values of marks, so that ``write_marks`` can restore them."""
    found = []
    for directory, name, marks in marked:
        path = proc_path(directories.fd(directory), name)
        values = {mark: read_mark(path, mark).hex() for mark in marks}
        found.append((join(directory, name), values))
    return found


def list_marks(layer: str, paths: Iterable[str]) -> list[tuple[str, str, list[str]]]:
    """List all marks of some entries as (directory, name, marks)."""
    found = []
    with LayerDirectories(layer) as directories:
        for path in paths:
            directory, _, name = path.rpartition("/")
            attributes = os.listxattr(directories.beneath(path), follow_symlinks=False)
            found.append((directory, name, [a for a in attributes if is_mark(a)]))
    return found


def write_marks(layer: str, marks: Marks) -> None:
    """Set exactly these marks on entries; an entry that no longer exists is skipped."""
    with LayerDirectories(layer) as directories:
        for path, wanted in marks:
            try:
                beneath = directories.beneath(path)
                for mark in os.listxattr(beneath, follow_symlinks=False):
                    if is_mark(mark) and mark not in wanted:
                        _remove(beneath, mark)
                for mark, value in wanted.items():
                    _set(beneath, mark, bytes.fromhex(value))
            except FileNotFoundError:
                continue


def drop_mark_files(layer: str, files: Sequence[tuple[str, str]]) -> None:
    """Remove the files with which fuse-overlayfs repeats its attributes."""
    if not files:
        return
    with LayerDirectories(layer) as directories:
        for directory, name in files:
            fd = directories.fd(directory)
            found = os.stat(".", dir_fd=fd)
            with writable(fd):
                os.unlink(name, dir_fd=fd)
            os.utime(".", ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=fd)


def mark_origins(layer: str, paths: Iterable[str], prefixes: Sequence[str]) -> None:
    """Mark files as copied up from the parent, to revert ``unmark``."""
    for path in paths:  # fuse-overlayfs's origin is a path; an empty origin of overlayfs means an unknown file
        _mark(layer, [path], prefixes[0] + "origin", os.fsencode(path) if prefixes == FUSE_MARKS else b"")


def mark_opaque(layer: str, paths: Iterable[str], prefixes: Sequence[str]) -> None:
    """Make directories opaque, so that they hide the layers below."""
    _mark(layer, paths, prefixes[0] + "opaque", b"y")


def unmark_origins(layer: str, paths: Iterable[str], prefixes: Sequence[str]) -> None:
    """Remove the origins of files."""
    with LayerDirectories(layer) as directories:
        for path in paths:
            beneath = directories.beneath(path)
            for attribute in os.listxattr(beneath, follow_symlinks=False):
                if is_origin(attribute, prefixes):
                    _remove(beneath, attribute)


def inherit_origins(layer: str, below: str, paths: Iterable[str], prefixes: Sequence[str]) -> None:
    """Copy origins to files from the files that they are about to replace in the layer below."""
    with LayerDirectories(layer) as ours, LayerDirectories(below) as theirs:
        for path in paths:
            mine, replaced = ours.beneath(path), theirs.beneath(path)
            for attribute in os.listxattr(replaced, follow_symlinks=False):
                if is_origin(attribute, prefixes):
                    _set(mine, attribute, read_mark(replaced, attribute))


def _mark(layer: str, paths: Iterable[str], mark: str, value: bytes) -> None:
    with LayerDirectories(layer) as directories:
        for path in paths:
            try:
                _set(directories.beneath(path), mark, value)
            except FileNotFoundError:
                continue


def read_mark(path: str, mark: str) -> bytes:
    """Read the value of a mark, also of a file that its owner made unreadable."""
    try:
        return os.getxattr(path, mark, follow_symlinks=False)
    except PermissionError:
        with _accessible_file(path):
            return os.getxattr(path, mark, follow_symlinks=False)


def _remove(path: str, mark: str) -> None:
    try:
        os.removexattr(path, mark, follow_symlinks=False)
    except PermissionError:
        with _accessible_file(path):
            os.removexattr(path, mark, follow_symlinks=False)


def _set(path: str, mark: str, value: bytes) -> None:
    try:
        os.setxattr(path, mark, value, follow_symlinks=False)
    except PermissionError:
        with _accessible_file(path):
            os.setxattr(path, mark, value, follow_symlinks=False)


@contextmanager
def _accessible_file(path: str) -> Iterator[None]:
    """Let this user read and write their own file in the block, which the kernel requires for user attributes."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        os.chmod(f"/proc/self/fd/{fd}", mode | 0o600)
        try:
            yield
        finally:
            os.chmod(f"/proc/self/fd/{fd}", mode)
    finally:
        os.close(fd)


class LayerDirectories:
    """The directories of a layer, one open at a time, because marks are grouped by directory."""

    def __init__(self, layer: str) -> None:
        self.root = open_root(layer)
        self.path: str | None = None
        self.opened = -1

    def fd(self, directory: str) -> int:
        if directory != self.path:
            self._shut()
            self.opened = open_directory(self.root, directory, os.O_PATH)
            self.path = directory
        return self.opened

    def beneath(self, path: str) -> str:
        """Return a path to an entry for the xattr calls."""
        directory, _, name = path.rpartition("/")
        return proc_path(self.fd(directory), name)

    def _shut(self) -> None:
        if self.opened >= 0:
            os.close(self.opened)
            self.opened, self.path = -1, None

    def __enter__(self) -> LayerDirectories:
        return self

    def __exit__(self, *_: object) -> None:
        self._shut()
        os.close(self.root)


_NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class LowerDirectory:
    """One directory of the parent, open in every layer that contributes to it, nearest first.

    ``fds`` is empty if the parent has no such directory, or if another filesystem is mounted there.
    """

    __slots__ = ("fds", "is_mounted")

    def __init__(self, fds: list[int], *, is_mounted: bool = False) -> None:
        self.fds = fds
        self.is_mounted = is_mounted

    def lookup(self, name: str) -> os.stat_result | None:
        """Return the parent's entry with a name."""
        for fd in self.fds:
            try:
                entry = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            return None if is_whiteout(entry) else entry
        return None

    def names(self) -> set[str]:
        """Return all names in the parent's directory."""
        shown: set[str] = set()
        hidden: set[str] = set()
        for fd in self.fds:
            with os.scandir(fd) as entries:
                found = [(e.name, is_whiteout(e.stat(follow_symlinks=False))) for e in entries]
            shown.update(n for n, gone in found if not gone and n not in hidden)
            hidden.update(n for n, gone in found if gone)
        return shown

    def holder(self, name: str) -> int | None:
        """Return the descriptor of the layer's directory that contains a name."""
        for fd in self.fds:
            try:
                entry = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            return None if is_whiteout(entry) else fd
        return None

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def __enter__(self) -> LowerDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Lower:
    """The parent of a branch; ``lowers`` are directories, nearest first, the last of them a plain directory.

    ``prefixes`` are those of the marks in all but the last.
    """

    def __init__(self, lowers: Sequence[str], prefixes: Sequence[str] = OVERLAY_MARKS) -> None:
        self._prefixes = prefixes
        self._roots: list[int] = []
        try:
            for path in lowers:
                self._roots.append(open_root(path))
        except OSError:
            self.close()
            raise

    def directory(self, path: str) -> LowerDirectory:
        """Open one directory; it is empty if the parent has no such directory."""
        try:
            return LowerDirectory(self._open_merged(path))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return LowerDirectory([], is_mounted=True)  # a mount point is not part of the parent

    def _open_merged(self, path: str) -> list[int]:
        if len(self._roots) == 1:
            fd = _open(self._roots[0], path)
            return [] if fd is None else [fd]
        fds: list[int] = []
        for root, is_last in zip(self._roots, [False] * (len(self._roots) - 1) + [True], strict=True):
            reach = _reach(root, path, self._prefixes) if not is_last else "present"
            if reach in ("present", "opaque"):
                fd = _open(root, path)
                if fd is not None:
                    fds.append(fd)
            if reach in ("hidden", "opaque"):
                break
        return fds

    def walk(self, path: str) -> Iterator[tuple[str, str, os.stat_result]]:
        """Yield everything below a directory as (directory, name, entry), parents before children."""
        pending = [path]
        while pending:
            here = pending.pop()
            with self.directory(here) as directory:
                for name in sorted(directory.names()):
                    entry = directory.lookup(name)
                    if entry is None:
                        continue
                    yield here, name, entry
                    if stat.S_ISDIR(entry.st_mode):
                        pending.append(join(here, name))

    def close(self) -> None:
        for fd in self._roots:
            os.close(fd)
        self._roots = []

    def __enter__(self) -> Lower:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _open(root: int, path: str) -> int | None:
    try:
        return open_directory(root, path)
    except OSError as error:
        if error.errno in _NO_DIRECTORY:
            return None
        raise


def _reach(root: int, path: str, prefixes: Sequence[str]) -> str:
    """Return how a layer affects a directory.

    It is ``absent`` from the layer, ``present``, ``opaque``, or ``hidden`` by a whiteout or a file on the way.
    """
    outcome = "present"
    here = ""
    for name in path.split("/") if path else ():
        fd = open_directory(root, here)
        try:
            entry = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not stat.S_ISDIR(entry.st_mode):
                return "hidden"
            beneath = proc_path(fd, name)
            if is_opaque(beneath, os.listxattr(beneath, follow_symlinks=False), prefixes):
                outcome = "opaque"
        except FileNotFoundError:
            # An opaque directory above the missing one hides the layers below.
            return "hidden" if outcome == "opaque" else "absent"
        finally:
            os.close(fd)
        here = join(here, name)
    return outcome


def copy_directory_metadata(layer: str, parent: str) -> None:
    """Copy the parent's metadata to a new layer's root directory, which is the root of the view."""
    above = os.stat(parent)
    wanted = [a for a in os.listxattr(parent) if is_of_user(a)]
    for attribute in wanted:
        os.setxattr(layer, attribute, os.getxattr(parent, attribute))
    for attribute in os.listxattr(layer):
        if is_of_user(attribute) and attribute not in wanted:
            os.removexattr(layer, attribute)  # the parent had it when the layer was created
    if os.geteuid() == 0 and (above.st_uid or above.st_gid):
        os.chown(layer, above.st_uid, above.st_gid)
    os.chmod(layer, stat.S_IMODE(above.st_mode))
    os.utime(layer, ns=(above.st_atime_ns, above.st_mtime_ns))


def put_back_in_layer(home: str, lowers: Sequence[str], paths: Sequence[str], prefixes: Sequence[str]) -> bool:
    """Write the workspace's version of some paths into a layer that no view shows; see ``View.put_back``.

    A path that the workspace lacks becomes one whiteout, however much the layers below have there.
    """
    whiteout = f"{home}/whiteout"
    try:
        os.mknod(whiteout, stat.S_IFCHR | 0o600)
    except OSError:
        return False  # Linux before 5.8 lets only root do it
    names_by_directory: dict[str, list[str]] = {}
    for path in paths:
        directory, _, name = path.rpartition("/")
        names_by_directory.setdefault(directory, []).append(name)
    made, opaque = [""], []
    with (
        Lower(lowers, prefixes) as lower,
        closing_fd(open_root(f"{home}/layer")) as root,
        closing_fd(open_root(lowers[-1])) as workspace,
    ):
        for directory, names in sorted(names_by_directory.items()):
            with lower.directory(directory) as below:
                if not below.fds:
                    continue  # the layers below have no directory there
                made += _make_directories(root, directory)
                with closing_fd(open_directory(root, directory)) as target:
                    copied = _copy_names(workspace, directory, names, target)
                    opaque += [join(directory, name) for name, is_directory in copied.items() if is_directory]
                    for name in names:
                        if name not in copied and below.lookup(name) is not None:
                            _link(whiteout, name, target)
        for directory in reversed(made):
            with lower.directory(directory) as below, closing_fd(open_directory(root, directory)) as target:
                copy_directory_metadata(f"/proc/self/fd/{target}", f"/proc/self/fd/{below.fds[0]}")
    mark_opaque(f"{home}/layer", opaque, prefixes)
    os.unlink(whiteout)
    return True


def _make_directories(root: int, directory: str) -> list[str]:
    """Make a directory of a layer and those above it; return those that did not exist."""
    made, here = [], ""
    for name in directory.split("/") if directory else ():
        with closing_fd(open_directory(root, here)) as above:
            here = join(here, name)
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=above)
                made.append(here)
    return made


def _copy_names(workspace: int, directory: str, names: Sequence[str], target: int) -> dict[str, bool]:
    """Copy the ``names`` that the workspace has in a directory; return those copied, True for a directory."""
    copied: dict[str, bool] = {}
    try:
        source = open_directory(workspace, directory)
    except OSError as error:
        if error.errno in NOT_THERE:
            return copied
        raise
    with closing_fd(source):
        for name in names:
            with suppress(FileNotFoundError):
                copy_entry(source, name, target, name)
                # copy_entry skips sockets and the like, so they are missing here.
                copied[name] = stat.S_ISDIR(os.stat(name, dir_fd=target, follow_symlinks=False).st_mode)
    return copied


def _link(whiteout: str, name: str, directory: int) -> None:
    """Hard-link a whiteout, as overlayfs does; create another if it has reached the limit on links."""
    try:
        os.link(whiteout, name, dst_dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        os.mknod(name, stat.S_IFCHR | 0o600, dir_fd=directory)
        os.unlink(whiteout)
        os.link(name, whiteout, src_dir_fd=directory, follow_symlinks=False)
