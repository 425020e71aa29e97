"""Mounts: the mounts of a new mount namespace, as values, and making them.

This is the only module that mounts. Like jail.py it runs inside the forkserver and the sandboxes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from forkwise.linux.overlay_workdir import make_removable
from forkwise.linux.syscalls import MNT_DETACH, MS_BIND, MS_RDONLY, MS_REC, mount, mount_setattr, move_mount, umount2

__all__ = ["HOME_VIEW", "Mount", "make_mounts"]

HOME_VIEW = "forkwise-home"
"""The name in the mount table of the view of the home directory."""

_RDONLY, _NOSUID, _NODEV = 1, 2, 4  # the same numbers for mount(2) and mount_setattr(2)


class Mount:
    """One mount: ``bind``, ``submount``, ``overlay``, ``home``, ``tmpfs``, ``proc``, ``dev`` or ``mask``.

    ``home`` is an overlay whose layer is in memory if it cannot be in ``source``; where neither works, the directory
    stays as it is. ``size`` limits what it takes in memory, as an option of tmpfs. ``submount`` is a bind that is left
    out if the mount is gone. Neither this nor Jail is a dataclass: every sandbox would have that module in its memory.
    """

    __slots__ = ("kind", "lowers", "options", "size", "source", "target", "writable")

    def __init__(
        self,
        kind: str,
        target: str,
        source: str = "",
        *,
        writable: bool = False,
        lowers: Sequence[str] = (),
        options: str = "",
        size: str = "",
    ) -> None:
        self.kind = kind
        self.target = target
        self.source = source
        self.writable = writable
        self.lowers = list(lowers)
        self.options = options
        self.size = size


def make_mounts(mounts: Sequence[Mount], *, read_only: bool, home_fd: int = -1) -> None:
    """Make the mounts in this process's own mount namespace.

    With ``read_only``, everything mounted before becomes read-only. ``home_fd`` is the detached mount of ``home``, made
    by a process outside: this one cannot, if something is mounted in the home directory.
    """
    _MountMaker(mounts, read_only, home_fd).make()


class _MountMaker:
    """Makes the mounts. Every source is opened before the first mount, because a mount may cover another's source."""

    def __init__(self, mounts: Sequence[Mount], read_only: bool, home_fd: int) -> None:
        self.mounts = mounts
        self.detached_fd = home_fd
        self.home_fds = {m.target: home_fd for m in mounts if m.kind == "home" and home_fd >= 0}
        self.read_only = read_only
        self.sources: dict[str, int] = {}
        for wanted in mounts:
            for path in filter(None, [wanted.source, *wanted.lowers]):
                if path not in self.sources:
                    with suppress(*([OSError] if wanted.kind == "submount" else [])):
                        self.sources[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)

    def make(self) -> None:
        for wanted in self.mounts:
            if wanted.kind == "overlay":
                self._mount_overlay(wanted)
        for wanted in self.mounts:
            # Last, because it may cover the directories of the others.
            if wanted.kind == "home" and self.detached_fd < 0:
                self._mount_home(wanted)
        if self.read_only:
            # A device node or a set-uid file on a read-only mount still works: hence nodev and nosuid.
            mount_setattr("/", add=_RDONLY | _NOSUID | _NODEV, recursively=True)
        for wanted in self.mounts:
            getattr(self, f"_{wanted.kind}")(wanted)
        if self.read_only:
            # One per target: the last mount there is on top.
            for wanted in {m.target: m for m in self.mounts}.values():
                if wanted.kind in ("bind", "overlay") and wanted.writable:
                    mount_setattr(wanted.target, drop=_RDONLY)
                elif wanted.kind == "tmpfs" and not wanted.writable:
                    mount_setattr(wanted.target, add=_RDONLY)
        for fd in {*self.sources.values(), *self.home_fds.values()} - {self.detached_fd}:
            os.close(fd)

    def _source_path(self, path: str) -> str:
        return f"/proc/self/fd/{self.sources[path]}"

    def _bind(self, wanted: Mount) -> None:
        if not os.path.exists(wanted.target):
            _make_target(wanted.target, os.path.isdir(self._source_path(wanted.source)))
        mount(self._source_path(wanted.source), wanted.target, None, MS_BIND | MS_REC)

    def _submount(self, wanted: Mount) -> None:
        if wanted.source in self.sources and os.path.exists(wanted.target):
            mount(self._source_path(wanted.source), wanted.target, None, MS_BIND | MS_REC)

    def _mount_overlay(self, wanted: Mount, name: str = "forkwise") -> None:
        """Mount an overlay in its own directory while its layer is still writable.

        ``_overlay`` binds it to its target later.
        """
        lower = ":".join(self._source_path(p) for p in wanted.lowers)
        layer, work = f"{self._source_path(wanted.source)}/layer", f"{self._source_path(wanted.source)}/view"
        options = f"lowerdir={lower},upperdir={layer},workdir={work},{wanted.options}"
        view = f"{wanted.source}/view"
        workdir_fd = os.open(view, os.O_PATH | os.O_CLOEXEC)
        mount(name, view, "overlay", _NOSUID | _NODEV, options)
        make_removable(workdir_fd)
        os.close(workdir_fd)
        self.sources[view] = os.open(view, os.O_PATH | os.O_CLOEXEC)

    def _mount_home(self, wanted: Mount) -> None:
        """Mount a view of the home directory, its layer on disk or else in memory; if that fails, one of ~/.cache."""
        home = wanted.target
        if wanted.source:
            with suppress(OSError):
                self._mount_overlay(wanted, HOME_VIEW)
                self.home_fds[home] = self.sources[f"{wanted.source}/view"]
        for path in (home, f"{home}/.cache"):
            if home not in self.home_fds:
                with suppress(OSError):
                    self.home_fds[path] = _mount_in_memory(path, wanted)

    def _home(self, wanted: Mount) -> None:
        for path, fd in self.home_fds.items():
            if not os.path.exists(path):
                _make_target(path, True)
            if fd == self.detached_fd:
                move_mount(fd, path)
            else:
                mount(f"/proc/self/fd/{fd}", path, None, MS_BIND)
            # Writable at once, because mount points may have to be made in it.
            mount_setattr(path, add=_NOSUID | _NODEV, drop=_RDONLY)

    def _overlay(self, wanted: Mount) -> None:
        if not os.path.exists(wanted.target):
            _make_target(wanted.target, True)
        mount(self._source_path(f"{wanted.source}/view"), wanted.target, None, MS_BIND)

    def _tmpfs(self, wanted: Mount) -> None:
        if not os.path.exists(wanted.target):  # it is inside a temporary directory, which is new
            _make_target(wanted.target, True)
        mount("tmpfs", wanted.target, "tmpfs", _NOSUID | _NODEV, wanted.options)

    def _mask(self, wanted: Mount) -> None:
        if not os.path.exists(wanted.target):
            return  # it is inside a directory that is covered already
        try:
            if os.path.isdir(wanted.target):
                mount("tmpfs", wanted.target, "tmpfs", MS_RDONLY, "mode=000,size=4k")
            else:
                mount("/dev/null", wanted.target, None, MS_BIND)
        except FileNotFoundError:
            if os.path.exists(wanted.target):  # otherwise it was removed meanwhile, as sockets are
                raise

    def _proc(self, wanted: Mount) -> None:
        mount("proc", "/proc", "proc", _NOSUID | _NODEV)
        for name in wanted.options.split():
            with suppress(FileNotFoundError):
                mount(f"/proc/{name}", f"/proc/{name}", None, MS_BIND | MS_REC)
                mount_setattr(f"/proc/{name}", add=_RDONLY, recursively=True)

    def _dev(self, wanted: Mount) -> None:
        devices = {}
        for name in ("null", "zero", "full", "random", "urandom", "tty"):
            with suppress(FileNotFoundError):
                devices[name] = os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC)
        mount("tmpfs", "/dev", "tmpfs", _NOSUID, "mode=755,size=64k")
        for name, fd in devices.items():
            os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
            mount(f"/proc/self/fd/{fd}", f"/dev/{name}", None, MS_BIND)
            os.close(fd)
        # The nodes are the host's and stay read-only: that forbids chmod and chown, not the use of the device.
        mount_setattr("/dev", drop=_NODEV, recursively=True)
        for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            os.symlink(target if name == "fd" else f"/proc/self/{target}", f"/dev/{name}")
        os.mkdir("/dev/shm")
        mount("tmpfs", "/dev/shm", "tmpfs", _NOSUID | _NODEV, wanted.options)
        os.mkdir("/dev/pts")
        mount("devpts", "/dev/pts", "devpts", _NOSUID, "newinstance,ptmxmode=0666,mode=620")
        os.symlink("pts/ptmx", "/dev/ptmx")


def _mount_in_memory(path: str, wanted: Mount) -> int:
    """Mount a tmpfs on a directory, and on top of that an overlay of it whose layer is there. Return its descriptor."""
    lower_fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mount("tmpfs", path, "tmpfs", _NOSUID | _NODEV, f"mode=700{wanted.size}")
        try:
            status = os.fstat(lower_fd)
            for name in ("layer", "view"):
                os.mkdir(f"{path}/{name}", 0o700)
            os.chown(f"{path}/layer", status.st_uid, status.st_gid)
            os.chmod(f"{path}/layer", stat.S_IMODE(status.st_mode))
            # By descriptor, because the path may contain separators of mount options.
            upper_fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            upper, lower = f"/proc/self/fd/{upper_fd}", f"/proc/self/fd/{lower_fd}"
            directories = f"lowerdir={lower},upperdir={upper}/layer,workdir={upper}/view"
            try:
                mount(HOME_VIEW, path, "overlay", _NOSUID | _NODEV, f"{directories},{wanted.options}")
            finally:
                os.close(upper_fd)
        except OSError:
            umount2(path, MNT_DETACH)
            raise
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    finally:
        os.close(lower_fd)


def _make_target(path: str, is_directory: bool) -> None:
    os.makedirs(path if is_directory else os.path.dirname(path), exist_ok=True)
    if not is_directory:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
