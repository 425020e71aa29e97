"""Mounts: the mounts of a new mount namespace, as values, and making them.

This is the only module that mounts. Like jail.py it runs inside the forkserver and the sandboxes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress

from forkwise.linux.overlay_workdir import make_removable
from forkwise.linux.syscalls import MS_BIND, MS_RDONLY, MS_REC, mount

__all__ = ["Mount", "make_mounts"]

_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_RDONLY, _NOSUID, _NODEV = 1, 2, 4  # the same numbers for mount(2) and mount_setattr(2)

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


class Mount:
    """One mount: ``bind`` of a directory or file, ``overlay``, ``tmpfs``, ``proc``, ``dev`` or ``mask``.

    Neither this nor Jail is a dataclass: that module would be in the memory of every sandbox.
    """

    __slots__ = ("kind", "lowers", "options", "source", "target", "writable")

    def __init__(
        self,
        kind: str,
        target: str,
        source: str = "",
        *,
        writable: bool = False,
        lowers: Sequence[str] = (),
        options: str = "",
    ) -> None:
        self.kind = kind
        self.target = target
        self.source = source
        self.writable = writable
        self.lowers = list(lowers)
        self.options = options


def make_mounts(mounts: Sequence[Mount], *, read_only: bool) -> None:
    """Make the mounts in this process's own mount namespace.

    With ``read_only``, everything mounted before becomes read-only.
    """
    _MountMaker(mounts, read_only).make()


class _MountMaker:
    """Makes the mounts. Every source is opened before the first mount, because a mount may cover another's source."""

    def __init__(self, mounts: Sequence[Mount], read_only: bool) -> None:
        self.mounts = mounts
        self.read_only = read_only
        self.sources: dict[str, int] = {}
        for wanted in mounts:
            for path in filter(None, [wanted.source, *wanted.lowers]):
                if path not in self.sources:
                    self.sources[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)

    def make(self) -> None:
        for wanted in self.mounts:
            if wanted.kind == "overlay":
                self._mount_overlay(wanted)
        if self.read_only:
            # A device node or a set-uid file on a read-only mount still works: hence nodev and nosuid.
            _set_attributes("/", add=_RDONLY | _NOSUID | _NODEV, recursively=True)
        for wanted in self.mounts:
            getattr(self, f"_{wanted.kind}")(wanted)
        if self.read_only:
            # By target, because that names the mount on top: the last one.
            for wanted in {m.target: m for m in self.mounts}.values():
                if wanted.kind in ("bind", "overlay") and wanted.writable:
                    _set_attributes(wanted.target, drop=_RDONLY)
                elif wanted.kind == "tmpfs" and not wanted.writable:
                    _set_attributes(wanted.target, add=_RDONLY)
        for fd in self.sources.values():
            os.close(fd)

    def _source_path(self, path: str) -> str:
        return f"/proc/self/fd/{self.sources[path]}"

    def _bind(self, wanted: Mount) -> None:
        if not os.path.exists(wanted.target):
            _make_target(wanted.target, os.path.isdir(self._source_path(wanted.source)))
        mount(self._source_path(wanted.source), wanted.target, None, MS_BIND | MS_REC)

    def _mount_overlay(self, wanted: Mount) -> None:
        """Mount an overlay in its own directory while its layer is still writable.

        ``_overlay`` binds it to its target later.
        """
        lower = ":".join(self._source_path(p) for p in wanted.lowers)
        layer, work = f"{self._source_path(wanted.source)}/layer", f"{self._source_path(wanted.source)}/view"
        options = f"lowerdir={lower},upperdir={layer},workdir={work},{wanted.options}"
        view = f"{wanted.source}/view"
        workdir_fd = os.open(view, os.O_PATH | os.O_CLOEXEC)
        mount("forkwise", view, "overlay", _NOSUID | _NODEV, options)
        make_removable(workdir_fd)
        os.close(workdir_fd)
        self.sources[view] = os.open(view, os.O_PATH | os.O_CLOEXEC)

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
                _set_attributes(f"/proc/{name}", add=_RDONLY, recursively=True)

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
        _set_attributes("/dev", drop=_NODEV, recursively=True)
        for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            os.symlink(target if name == "fd" else f"/proc/self/{target}", f"/dev/{name}")
        os.mkdir("/dev/shm")
        mount("tmpfs", "/dev/shm", "tmpfs", _NOSUID | _NODEV, wanted.options)
        os.mkdir("/dev/pts")
        mount("devpts", "/dev/pts", "devpts", _NOSUID, "newinstance,ptmxmode=0666,mode=620")
        os.symlink("pts/ptmx", "/dev/ptmx")


class _MountAttributes(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in ("set", "clear", "propagation", "userns_fd")]


def _set_attributes(path: str, *, add: int = 0, drop: int = 0, recursively: bool = False) -> None:
    wanted = _MountAttributes(add, drop, 0, 0)
    done = _syscall(
        _MOUNT_SETATTR,
        _AT_FDCWD,
        os.fsencode(path),
        _AT_RECURSIVE if recursively else 0,
        ctypes.byref(wanted),
        ctypes.c_size_t(ctypes.sizeof(wanted)),
    )
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def _make_target(path: str, is_directory: bool) -> None:
    os.makedirs(path if is_directory else os.path.dirname(path), exist_ok=True)
    if not is_directory:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
