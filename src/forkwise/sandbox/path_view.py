"""Path view: a copy-on-write view of a path outside the workspace, such as ``~/.claude``, that belongs to a branch.

Only a sandbox mounts it, at the path itself. It is stored in the branch's home, so it is dropped with the branch:

<home>/paths/<key>/view.json   the path, and how the view is made
<home>/paths/<key>/layer/      the changed files of an overlay, or the whole tree of a copy
<home>/paths/<key>/view/       where an overlay is mounted inside a sandbox
<home>/paths/<key>/file        the copy of a single file
<home>/paths/home-<key>/       layer/ and view/ of the home directory as a whole; with -<n>, of a further sandbox
<home>/paths/<name>.inner/     the path views of a branch that was committed into this one
<state>/.paths-<pid>-<n>/      the path views of a branch that this process is committing
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from forkwise.errors import MountError
from forkwise.files.store.trash import discard
from forkwise.files.store.view import Site
from forkwise.files.views import view_named
from forkwise.files.views.overlay import OverlayView, is_private_elsewhere
from forkwise.linux import namespace
from forkwise.linux.syscalls import filesystem_magic
from forkwise.linux.trees import closing_fd, copy_entry, copy_tree, join, open_directory, open_root

if TYPE_CHECKING:
    from forkwise.files.branch import Branch

__all__ = [
    "PathView",
    "PathViewsAside",
    "can_view_below",
    "find_path_view",
    "list_path_views",
    "make_home_layer",
    "make_path_view",
    "matches",
    "paths_directory",
    "renew_workdir",
    "set_path_views_aside",
]

Kind = Literal["overlay", "reflink", "copy", "file"]

_INNER = ".inner"
_UPPER_FILESYSTEMS = (0xEF53, 0x58465342, 0x9123683E, 0x01021994)  # ext, XFS, btrfs, tmpfs
_USER_OVERLAYS_SINCE = (5, 11)
_MOST_OLD_WORKDIRS = 64
# Limits of a copy, which every attempt makes anew.
_LARGEST_FILE = 4 << 20
_LARGEST_SINGLE_FILE = 64 << 20
_MOST_BYTES = 128 << 20
_MOST_FILES = 10_000


@dataclass(frozen=True, slots=True)
class PathView:
    """One view. ``given`` is the absolute path as requested, ``path`` the real path at which it is mounted."""

    home: str
    given: str
    path: str
    kind: Kind

    @property
    def content(self) -> str:
        """What the branch changed: the layer's directory, or the copy of a single file."""
        return f"{self.home}/file" if self.kind == "file" else f"{self.home}/layer"


def paths_directory(branch_home: str) -> str:
    """Return the directory with the path views of a branch, whether or not it exists."""
    return f"{branch_home}/paths"


def find_path_view(branch: Branch, given: str) -> PathView | None:
    """Return the view of a path that a branch has; None if it has none."""
    return _load(_find_home(branch, os.path.realpath(given)))


def _find_home(branch: Branch, path: str) -> str:
    return f"{paths_directory(branch.home)}/{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"


def can_view_below(branch: Branch, home: str, path: str) -> bool:
    """Return whether a sandbox can create the missing directory ``path`` in its view of the user's ``home``."""
    above = os.path.dirname(path)
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    if not f"{above}/".startswith(f"{home}/") or f"{path}/".startswith(f"{branch.workspace.target}/"):
        return False
    device = os.stat(home).st_dev  # what is mounted in a home directory is read-only in the sandbox
    return device == os.stat(above).st_dev and _choose_kind(home, branch.state_dir.state) == "overlay"


def make_path_view(branch: Branch, given: str, omitted: Sequence[str] = ()) -> PathView:
    """Create the view of a path in a branch, or return the existing one. For a missing path it is an empty directory.

    A directory becomes an overlay or, where the kernel or the filesystem has none, a tree of reflinks, or else a copy.
    A copy leaves out files that match the patterns in ``omitted``, and large ones. Raises MountError if none can be
    made. Only one sandbox at a time may mount an overlay: the caller reserves it.
    """
    path = os.path.realpath(given)
    home = _find_home(branch, path)
    found = _load(home)
    if found is not None:
        return found
    os.makedirs(os.path.dirname(home), mode=0o700, exist_ok=True)
    state = branch.state_dir.state
    view = PathView(home, given, path, _choose_kind(path, state))
    unfinished = f"{home}.new"
    try:
        if os.path.lexists(unfinished):
            shutil.rmtree(unfinished)  # of a process that was killed
        os.mkdir(unfinished, 0o700)
        _fill(view, unfinished, omitted)
        with open(f"{unfinished}/view.json", "x") as file:
            json.dump({"given": given, "path": path, "kind": view.kind}, file)
        os.rename(unfinished, home)
    except (OSError, MountError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, MountError):
            raise
        raise MountError(
            f"no view of {given} could be made in {branch.branch_path}: {error.filename or path}: {error.strerror}",
            view=view.kind,
            reason=error.strerror or "",
            remedy="free space, or fix the permissions of that path",
        ) from error
    return view


def make_home_layer(branch: Branch, path: str, number: int = 0) -> str | None:
    """Create the directory of the overlay that shows a home directory in a branch, or return the existing one.

    Returns None if there can be no layer, because overlayfs cannot write to the filesystem of the state directory. As
    for other overlays, the caller reserves it for one sandbox. A ``number`` is for a further sandbox at the same time:
    its directory is always new, unless it is in use.
    """
    if filesystem_magic(branch.state_dir.state) not in _UPPER_FILESYSTEMS:
        return None
    home = f"{paths_directory(branch.home)}/home-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    if number:
        home += f"-{number}"
    if os.path.isdir(home):
        if not number or is_private_elsewhere(home):
            return home
        discard(branch.state_dir, home)
    unfinished = f"{home}.new"
    try:
        os.makedirs(os.path.dirname(home), mode=0o700, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
        os.mkdir(unfinished, 0o700)
        OverlayView().make(unfinished, [path])
        os.rename(unfinished, home)
    except OSError as error:
        raise MountError(
            f"no view of {path} could be made in {branch.branch_path}: {error.filename or path}: {error.strerror}",
            view="overlay",
            reason=error.strerror or "",
            remedy="free space, or fix the permissions of that path",
        ) from error
    return home


def renew_workdir(branch: Branch, home: str) -> None:
    """Create a new work directory for a layer that was mounted before: the old one has a mark that refuses a mount.

    Removing the mark takes milliseconds on ext4, and a rename does not, so old directories are removed in batches.
    """
    if not os.path.isdir(f"{home}/view/work"):
        return
    old = f"{home}/old"
    os.makedirs(old, mode=0o700, exist_ok=True)
    if len(os.listdir(old)) >= _MOST_OLD_WORKDIRS:
        discard(branch.state_dir, old)
        os.mkdir(old, 0o700)
    os.rename(f"{home}/view", f"{old}/{secrets.token_hex(8)}")
    os.mkdir(f"{home}/view", 0o700)


def list_path_views(directory: str) -> list[PathView]:
    """List the path views in a ``paths_directory``, with those of branches that were committed into its branch."""
    return list(_list_views(directory))


def _list_views(directory: str) -> Iterator[PathView]:
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(directory)):
            if name.endswith(_INNER):
                yield from _list_views(f"{directory}/{name}")
            elif (view := _load(f"{directory}/{name}")) is not None:
                yield view


@dataclass(frozen=True, slots=True)
class PathViewsAside:
    """The path views of a branch that is being committed, in the directory ``path`` of the workspace's state."""

    branch: Branch
    path: str

    def restore(self) -> None:
        """Return the views to the branch, which was not committed; drop them if it no longer exists."""
        try:
            os.rename(self.path, paths_directory(self.branch.home))
        except OSError:
            self.discard()

    def add_to(self, outer: Branch) -> None:
        """Make the views part of the branch that this branch was committed into."""
        os.makedirs(paths_directory(outer.home), mode=0o700, exist_ok=True)
        os.rename(self.path, f"{paths_directory(outer.home)}/{self.branch.name}{_INNER}")

    def discard(self) -> None:
        """Drop the views."""
        discard(self.branch.state_dir, self.path)


def set_path_views_aside(branch: Branch) -> PathViewsAside | None:
    """Move the path views of a branch aside; None if it has none. What a kill leaves there is removed by gc."""
    path = f"{branch.state_dir.state}/.paths-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        os.rename(paths_directory(branch.home), path)
    except FileNotFoundError:
        return None
    return PathViewsAside(branch, path)


def matches(path: str, pattern: str) -> bool:
    """Return whether a relative path matches a pattern: ``*`` stays within a name, ``**`` is any number of directories.

    >>> matches("projects/a/b.jsonl", "projects/**/*.jsonl"), matches("a/b", "*"), matches("a/b", "a/**")
    (True, False, True)
    """
    return _match_parts(path.split("/"), pattern.split("/"))


def _match_parts(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        if len(pattern) == 1:
            return bool(parts)
        return any(_match_parts(parts[start:], pattern[1:]) for start in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _match_parts(parts[1:], pattern[1:])


def _load(home: str) -> PathView | None:
    """Read a view; None if there is none, or if its description is damaged."""
    try:
        with open(f"{home}/view.json") as file:
            data = json.load(file)
        given, path, kind = data["given"], data["path"], data["kind"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    is_sound = isinstance(given, str) and isinstance(path, str) and given.startswith("/") and path.startswith("/")
    return PathView(home, given, path, kind) if is_sound and kind in ("overlay", "reflink", "copy", "file") else None


def _choose_kind(path: str, state: str) -> Kind:
    if not os.path.isdir(path):
        return "file" if os.path.lexists(path) else "copy"
    if _has_overlay(path, state, os.stat(path).st_dev, namespace.is_entered()):
        return "overlay"
    return "reflink" if view_named("reflink").refusal(Site(path, state)) is None else "copy"


@lru_cache(maxsize=64)
def _has_overlay(path: str, state: str, _device: int, is_entered: bool) -> bool:
    """Return whether a sandbox can mount an overlay of ``path``; without mount rights, go by the kernel version."""
    if os.geteuid() == 0 or is_entered:
        return OverlayView().refusal(Site(path, state)) is None
    version = tuple(int(n) for n in os.uname().release.partition("-")[0].split(".")[:2] if n.isdigit())
    return version >= _USER_OVERLAYS_SINCE and filesystem_magic(state) in _UPPER_FILESYSTEMS


def _fill(view: PathView, home: str, omitted: Sequence[str]) -> None:
    """Create the content of a view in ``home``."""
    if view.kind == "file":
        _copy_single_file(view.path, f"{home}/file")
        return
    if view.kind == "overlay":
        OverlayView().make(home, [view.path])
        return
    os.mkdir(f"{home}/layer", 0o700)
    if not os.path.lexists(view.path):
        return
    source_fd = os.open(view.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with closing_fd(source_fd), closing_fd(open_root(f"{home}/layer")) as target_fd:
        if view.kind == "reflink":
            with closing_fd(open_directory(target_fd, "")) as readable_fd:
                copy_tree(source_fd, readable_fd, reflink_only=True)
        else:
            _copy_within_limits(view, source_fd, target_fd, omitted)
    shutil.copystat(view.path, f"{home}/layer")


def _copy_single_file(path: str, target: str) -> None:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_SINGLE_FILE:
        raise MountError(
            f"no view of {path} could be made: it is not a directory, nor a regular file of at most "
            f"{_LARGEST_SINGLE_FILE >> 20} MiB",
            reason="not a directory or a small file",
        )
    with (
        closing_fd(open_root(os.path.dirname(path))) as source_fd,
        closing_fd(open_root(os.path.dirname(target))) as fd,
    ):
        copy_entry(source_fd, os.path.basename(path), fd, os.path.basename(target))


def _copy_within_limits(view: PathView, source_fd: int, target_fd: int, omitted: Sequence[str]) -> None:
    """Copy a tree without the omitted and the large files. Raises MountError if that is still too much."""
    files = size = 0
    pending = [""]
    while pending:
        directory = pending.pop()
        with (
            closing_fd(open_directory(source_fd, directory)) as source,
            closing_fd(open_directory(target_fd, directory)) as target,
        ):
            for name in sorted(os.listdir(source)):
                path = join(directory, name)
                found = os.stat(name, dir_fd=source, follow_symlinks=False)
                if any(matches(path, pattern) for pattern in omitted):
                    continue
                if stat.S_ISDIR(found.st_mode):
                    os.mkdir(name, stat.S_IMODE(found.st_mode) | 0o700, dir_fd=target)
                    if found.st_dev == os.fstat(source_fd).st_dev:
                        pending.append(path)
                    continue
                if found.st_size > _LARGEST_FILE:
                    continue
                files, size = files + 1, size + found.st_size
                if files > _MOST_FILES or size > _MOST_BYTES:
                    raise MountError(
                        f"a copy of {view.given} for each attempt would be too large: more than {_MOST_FILES} files or "
                        f"{_MOST_BYTES >> 20} MiB. Set FORKWISE_STATE to a directory on ext4, XFS, btrfs or tmpfs, "
                        "where an overlay is possible, or remove old files",
                        view="copy",
                        reason="too large to copy",
                    )
                copy_entry(source, name, target, name)
