"""The files of a worktree: an overlay or a FUSE mount of the checkout, or a copy of it that shares blocks.

A worktree is an ordinary directory that every process may use for weeks, unlike the view of a branch: it is mounted at
its own path, without ``volatile``, so that fsync reaches the disk, and only where other processes see the mount.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

from forkwise.errors import BranchError, MountError
from forkwise.files.store.overlayfs import copy_directory_metadata
from forkwise.files.store.view import Refusal, Site
from forkwise.files.views import view_named
from forkwise.linux import namespace
from forkwise.linux.mountinfo import is_mount_point
from forkwise.linux.overlay_workdir import make_removable
from forkwise.linux.syscalls import MNT_DETACH, mount, umount2

__all__ = ["VIEWS", "choose_views", "copy_files", "is_mounted", "make_layer", "mount_files", "unmount_files"]

VIEWS = ("overlay", "fuse", "reflink", "copy")
"""The ways to make a worktree's files, best first."""

_SEPARATORS = re.compile(r"[,:\\\s\"]")
_MAX_OPTIONS = 3000  # bytes: mount(2) takes one page
_FUSE = "fuse-overlayfs"
_BATCH = 200  # paths in one command line of cp
_TIMEOUT_S = 60.0


def choose_views(requested: str | None) -> tuple[str, ...]:
    """Return the views to try, best first. Raises MountError if there is no such view for a worktree."""
    if requested is None:
        return VIEWS
    if requested not in VIEWS:
        remedy = f"choose one of {', '.join(VIEWS)}"
        raise MountError(
            f"a worktree has no view {requested!r}; {remedy}", view=requested, reason="unknown view", remedy=remedy
        )
    return (requested,)


def is_mounted(path: str) -> bool:
    """Return whether something is mounted at the path of a worktree, without touching it."""
    try:
        return is_mount_point(path)
    except FileNotFoundError:
        return False


def mount_files(view: str, site: Site, source: str, home: str, path: str) -> None:
    """Mount the checkout ``source``, with the layer in ``home`` above it, at the empty directory ``path``.

    Raises MountError with the reason if this user cannot do that.
    """
    if view == "overlay" and namespace.is_entered():
        _refuse(view, source, Refusal("only this process would see the mount", "use fuse, or run as root"))
    try:
        if view == "overlay":
            _mount_overlay(source, home, path)
        else:
            _start_fuse(source, home, path)
    except OSError as error:
        reason = error.strerror or str(error)
        # Probe for the reason only after a failure, because a probe takes longer than the mount itself.
        _refuse(view, source, view_named(view).refusal(site) or Refusal(reason, "run forkwise doctor"))


def make_layer(source: str, home: str) -> None:
    """Create the directories of a mounted worktree, below its state."""
    os.mkdir(f"{home}/layer", 0o700)
    os.mkdir(f"{home}/work", 0o700)
    copy_directory_metadata(f"{home}/layer", source)


def _refuse(view: str, source: str, refusal: Refusal) -> None:
    remedy = refusal.remedy if view == "copy" else f"{refusal.remedy}; or choose another --view"
    raise MountError(
        f"a worktree of {source} with the view {view} is not available: {refusal.reason}",
        view=view,
        reason=refusal.reason,
        remedy=remedy,
    )


def _mount_overlay(source: str, home: str, path: str) -> None:
    paths = [source, f"{home}/layer", f"{home}/work"]
    with _by_descriptor(paths) as names:
        data = f"lowerdir={names[0]},upperdir={names[1]},workdir={names[2]},userxattr,index=off"
        mount("forkwise-worktree", path, "overlay", 0, data)
    with suppress(OSError):
        workdir_fd = os.open(f"{home}/work", os.O_PATH | os.O_CLOEXEC)
        try:
            make_removable(workdir_fd)
        finally:
            os.close(workdir_fd)


@contextmanager
def _by_descriptor(paths: list[str]) -> Iterator[list[str]]:
    """Yield the paths, through descriptors if they contain separators of mount options or are too long for these."""
    if not _SEPARATORS.search("".join(paths)) and len(os.fsencode("".join(paths))) < _MAX_OPTIONS:
        yield paths
        return
    with ExitStack() as stack:
        opened = []
        for path in paths:
            opened.append(os.open(path, os.O_PATH | os.O_CLOEXEC))
            stack.callback(os.close, opened[-1])
        yield [f"/proc/self/fd/{fd}" for fd in opened]


def _start_fuse(source: str, home: str, path: str) -> None:
    if shutil.which(_FUSE) is None:
        raise FileNotFoundError(errno.ENOENT, f"{_FUSE} is not installed")
    lower = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    point = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # By descriptor, because a comma, a colon or a backslash in a path would be parsed as part of the options.
        options = f"lowerdir=/proc/self/fd/{lower},upperdir=layer,workdir=work,fast_ino=1,writeback=0"
        done = subprocess.run(
            [_FUSE, "-o", options, path],
            cwd=home,
            pass_fds=[lower],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, f"{_FUSE} did not mount it within {_TIMEOUT_S:.0f} s") from error
    finally:
        os.close(lower)
        os.close(point)
    if done.returncode != 0 or not is_mount_point(path):
        raise OSError(errno.EIO, f"{_FUSE} exited with status {done.returncode}")


def unmount_files(view: str, path: str, *, lazily: bool) -> None:
    """Unmount a worktree. Raises BranchError if processes use it, unless ``lazily`` is set."""
    try:
        umount2(path, MNT_DETACH if lazily else 0)
        return
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise _in_use_error(path) from error
        if error.errno != errno.EPERM:
            raise
    done = subprocess.run(
        ["fusermount3", "-u", *(["-z"] if lazily else []), "--", path],
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        reason = os.fsdecode(done.stderr).strip()
        if "busy" in reason:
            raise _in_use_error(path)
        raise MountError(
            f"{path} could not be unmounted: {reason}",
            view=view,
            reason=reason,
            remedy="run this as the user who mounted it",
        )


def _in_use_error(path: str) -> BranchError:
    return BranchError(
        f"{path} is in use: a process works in it or has a file of it open; end it (fuser -m {path} lists it), or use "
        "--force"
    )


def copy_files(view: str, source: str, target: str, lock_fd: int) -> None:
    """Copy the checkout ``source``, without its ``.git``, to the new directory ``target``; share blocks for reflink.

    Several ``cp`` processes run at a time, because cloning 50,000 files is bound by the time of the system calls. Hard
    links between directories become separate files. Mount points become empty directories. The programs hold the lock
    ``lock_fd`` too: if this process is killed, nothing is cleaned up before they have ended.
    """
    if view == "reflink":
        refusal = view_named(view).refusal(Site(source, os.path.dirname(target)))
        if refusal is not None:
            _refuse(view, source, refusal)
    os.mkdir(target, 0o700)
    names = sorted(name for name in os.listdir(source) if name != ".git")
    workers = min(len(os.sched_getaffinity(0)), 4)
    size = max(min(_BATCH, -(-len(names) // workers)), 1)
    parts = [names[start : start + size] for start in range(0, len(names), size)]
    with ThreadPoolExecutor(workers) as pool:
        for problem in pool.map(lambda part: _copy_part(view, source, target, part, lock_fd), parts):
            if problem:
                _refuse(view, source, Refusal(problem, "free space, or fix the permissions of that path"))
    copy_directory_metadata(target, source)


def _copy_part(view: str, source: str, target: str, names: list[str], lock_fd: int) -> str:
    """Copy some entries of the top directory; return what failed, empty if nothing did."""
    keep = "mode,timestamps,links,xattr" + (",ownership" if os.geteuid() == 0 else "")
    options = ["-R", "-P", "-x", f"--preserve={keep}", f"--reflink={'always' if view == 'reflink' else 'auto'}"]
    words = ["cp", *options, "-t", target, "--", *(f"{source}/{name}" for name in names)]
    done = subprocess.run(
        words,
        env={**os.environ, "LC_ALL": "C"},
        pass_fds=[lock_fd],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    lines = os.fsdecode(done.stderr).strip().splitlines()
    return "" if done.returncode == 0 else lines[0] if lines else f"cp exited with status {done.returncode}"
