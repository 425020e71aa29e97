"""The overlay view: the kernel's own overlayfs, mounted on first use.

It is mounted ``volatile``, without syncs, because a branch is speculative and the commit makes it durable; and with
``userxattr`` for root as well, so that a layer has the same format for every user.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from forkwise.errors import BranchError, MountError
from forkwise.files.store import trash
from forkwise.files.store.overlayfs import copy_directory_metadata, put_back_in_layer
from forkwise.files.store.view import DetachedMount, Refusal, Site, View
from forkwise.linux import namespace
from forkwise.linux.overlay_workdir import make_removable
from forkwise.linux.process_id import ProcessId
from forkwise.linux.syscalls import MNT_DETACH, MS_RDONLY, MS_REMOUNT, mount, umount2
from forkwise.linux.trees import closing_fd, open_root, remove_tree

__all__ = [
    "OPTIONS",
    "OverlayView",
    "clear_volatile_mark",
    "is_private_elsewhere",
    "release_private_mount",
    "reserve_private_mount",
    "set_private_owner",
]

OPTIONS = "userxattr,volatile,index=off"
_SEPARATORS = re.compile(r"[,:\\\s\"]")  # characters that the kernel reads as separators inside an option
_MAX_OPTIONS = 3500  # bytes: mount(2) takes one page
_PRIVATE = "private"  # in a branch's home: the process that has the branch mounted in a private mount namespace
_RESERVED = "reserved"
_PROBE = "overlay"  # in the names of homes for trial mounts
_MAX_OPTION = 250  # bytes: fsconfig(2) takes at most 255


class OverlayView(View):
    """Kernel overlayfs: for users who may mount, and for everyone inside a private user and mount namespace."""

    name = "overlay"
    whole = False

    def refusal(self, site: Site) -> Refusal | None:
        _remove_abandoned_probes(site.state)
        with _probe_home(site.state) as home:
            try:
                self.make(home, [site.workspace])
                os.setxattr(f"{home}/layer", "user.forkwise", b"y")
                os.removexattr(f"{home}/layer", "user.forkwise")
                _mount(home, [site.workspace], writable=True)
                umount2(f"{home}/view", MNT_DETACH)
            except OSError as error:
                return _explain(error, site)
        return None

    def refusal_if_requested(self, site: Site) -> Refusal | None:
        refusal = self.refusal(site)
        if refusal is not None and os.geteuid() != 0 and not namespace.is_entered() and namespace.available():
            return None
        return refusal

    def make(self, home: str, lowers: Sequence[str]) -> None:
        os.mkdir(f"{home}/layer", 0o700)
        os.mkdir(f"{home}/view", 0o700)
        self.copy_metadata(home, lowers[0])

    def copy_metadata(self, home: str, lower: str, premounted: DetachedMount | None = None) -> None:
        if premounted is None:
            copy_directory_metadata(f"{home}/layer", lower)
        else:
            copy_directory_metadata(
                premounted.root, lower
            )  # through the mount: changing its layer directly is undefined
            premounted.changed()

    def premount(self, home: str, lower: str, source: str = "forkwise") -> DetachedMount | None:
        layer, work = f"{home}/layer", f"{home}/view"
        if _SEPARATORS.search(lower + home) or max(len(os.fsencode(p)) for p in (lower, layer)) > _MAX_OPTION:
            return None
        given = dict(option.partition("=")[::2] for option in OPTIONS.split(","))
        options = {"source": source, "lowerdir": lower, "upperdir": layer, "workdir": work, **given}
        try:
            mounted = DetachedMount(layer, {name: value or None for name, value in options.items()})
            workdir_fd = os.open(work, os.O_PATH | os.O_CLOEXEC)
            make_removable(workdir_fd)
            os.close(workdir_fd)
            return mounted
        except OSError:
            return None  # ``show`` mounts it instead

    def show(self, home: str, lowers: Sequence[str], *, writable: bool, premounted: DetachedMount | None = None) -> str:
        view = f"{home}/view"
        if _is_mounted(home):
            if writable and os.statvfs(view).f_flag & os.ST_RDONLY:
                mount("none", view, None, MS_REMOUNT)
            return view
        if namespace.is_entered() and not reserve_private_mount(home):
            raise BranchError(
                f"the branch in {home} is mounted by another process, in a namespace of its own; a second mount of its "
                "layer would damage it: wait until that process ends, or work in the branch from there"
            )
        try:
            if premounted is None or not premounted.attach(f"{home}/layer", view):
                _mount(home, lowers, writable)
        except OSError as error:
            if namespace.is_entered():
                release_private_mount(home)
            raise MountError(
                f"the overlay view of {home} could not be mounted: {error.strerror}",
                view=self.name,
                reason=error.strerror or "",
                remedy="run something in it with branch.run(), which mounts it inside a sandbox"
                if error.errno == errno.EPERM
                else "run forkwise doctor",
            ) from error
        if namespace.is_entered():
            set_private_owner(home, ProcessId.current())
        return view

    def visible_path(self, home: str) -> str | None:
        return f"{home}/view" if _is_mounted(home) else None

    def hide(self, home: str) -> bool:
        is_quiet = not is_private_elsewhere(home)
        if _is_mounted(home):
            try:
                _stop_writing(f"{home}/view")
            except BlockingIOError:
                is_quiet = False
            umount2(f"{home}/view", MNT_DETACH)
        return is_quiet

    def hide_frozen(self, home: str) -> tuple[bool, int]:
        is_quiet = not is_private_elsewhere(home)
        # Dropping the last reference to a mount frees its caches, which takes time. This descriptor is a reference.
        held = os.open(f"{home}/view", os.O_PATH | os.O_CLOEXEC)
        try:
            umount2(f"{home}/view", MNT_DETACH)
        except BaseException as error:
            os.close(held)
            if not isinstance(error, OSError) or _is_mounted(home):
                raise
            held = -1  # it was not mounted: EINVAL, or EPERM for a user who may not unmount anything
        return is_quiet, held

    def freeze(self, home: str, lowers: Sequence[str]) -> None:
        try:
            # No need to check whether it is mounted: the kernel does not remount a path that is not a mount point.
            mount("none", f"{home}/view", None, MS_REMOUNT | MS_RDONLY)
        except OSError as error:
            if not _is_mounted(home):
                return
            if error.errno != errno.EBUSY:
                raise
            raise BranchError(
                f"{home}/view has files open for writing; close them, then fork or freeze the branch"
            ) from error

    def thaw(self, home: str, lowers: Sequence[str]) -> None:
        if _is_mounted(home):
            self.show(home, lowers, writable=True)

    def release(self, home: str) -> None:
        _, held = self.hide_frozen(home)
        if held >= 0:
            trash.run_later(lambda: os.close(held))

    def put_back(self, home: str, lowers: Sequence[str], paths: Sequence[str]) -> bool:
        return put_back_in_layer(home, lowers, paths, self.mark_prefixes)


@contextmanager
def _probe_home(state: str) -> Iterator[str]:
    """Yield a new home for a trial mount, and remove it when the block ends.

    Its descriptor holds a lock, by which another process finds out that this one was killed.
    """
    while True:
        home = f"{state}/.probe-{os.getpid()}-{_PROBE}-{secrets.token_hex(4)}"
        os.mkdir(home, 0o700)
        held = _lock_probe(home, needs_lock=False)
        if held is not None:
            break  # otherwise another process removed it as abandoned before it was locked
    with closing_fd(held):
        try:
            yield home
        finally:
            with closing_fd(open_root(state)) as parent:
                remove_tree(parent, os.path.basename(home))


def _remove_abandoned_probes(state: str) -> None:
    """Unmount and remove the homes of trial mounts whose processes were killed."""
    for name in os.listdir(state):
        if not name.startswith(".probe-") or f"-{_PROBE}-" not in name:
            continue
        home = f"{state}/{name}"
        held = _lock_probe(home, needs_lock=True)
        if held is None:
            continue
        with closing_fd(held), closing_fd(open_root(state)) as parent:
            with suppress(OSError):  # nothing is mounted there, or this user may not unmount it
                umount2(f"{home}/view", MNT_DETACH)
            remove_tree(parent, name)


def _lock_probe(home: str, *, needs_lock: bool) -> int | None:
    """Lock the home of a trial mount and return its descriptor; None if another process has locked or removed it.

    On a filesystem without locks it is returned without one, unless ``needs_lock`` is set.
    """
    try:
        fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        is_usable = False
    except OSError:
        is_usable = not needs_lock
    else:
        is_usable = True
    with suppress(OSError):
        if is_usable and os.path.samestat(os.lstat(home), os.fstat(fd)):
            return fd
    os.close(fd)
    return None


def reserve_private_mount(home: str) -> bool:
    """Reserve a branch for a private mount, which this process is about to make; return False if it is taken.

    A layer must not be mounted twice, and a mount in another mount namespace cannot be seen from here. So the caller
    holds the workspace's lock while it reserves the branch, then mounts it or has it mounted, and calls
    ``set_private_owner`` or, if the mount failed, ``release_private_mount``. A mount by this process itself is visible
    to it and does not count.
    """
    if is_private_elsewhere(home):
        return False
    _write_owner(home, [*ProcessId.current().dump(), _RESERVED])
    return True


def set_private_owner(home: str, owner: ProcessId) -> None:
    """Record the process in whose mount namespace a reserved branch is mounted."""
    _write_owner(home, owner.dump())


def release_private_mount(home: str) -> None:
    """Drop a reservation."""
    with suppress(FileNotFoundError):
        os.unlink(f"{home}/{_PRIVATE}")


def is_private_elsewhere(home: str) -> bool:
    """Return whether another process has the branch mounted in a private namespace, or any process is about to."""
    if not os.path.lexists(f"{home}/{_PRIVATE}"):
        return False
    try:
        with open(f"{home}/{_PRIVATE}") as file:
            entries = [json.loads(line) for line in file]
        owners = [(ProcessId.load(entry[:6]), _RESERVED in entry[6:]) for entry in entries]
    except FileNotFoundError:
        return False
    except (ValueError, TypeError):
        return False  # cut off by a power failure, which no mount survived
    return any(owner.alive and (is_reserved or owner != ProcessId.current()) for owner, is_reserved in owners)


def _write_owner(home: str, entry: list[object]) -> None:
    """Replace the file that names the owner, by a rename, so that a reader without the lock sees a complete file."""
    beside = f"{home}/.{_PRIVATE}-{os.getpid()}-{threading.get_ident()}"
    try:
        with open(beside, "w") as file:
            file.write(json.dumps(entry) + "\n")
        os.rename(beside, f"{home}/{_PRIVATE}")
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside)
        raise


def _is_mounted(home: str) -> bool:
    return os.stat(f"{home}/view").st_dev != os.stat(home).st_dev


def _stop_writing(view: str) -> None:
    """Make a mount read-only; raise BlockingIOError if files are open for writing."""
    if os.statvfs(view).f_flag & os.ST_RDONLY:
        return
    try:
        mount("none", view, None, MS_REMOUNT | MS_RDONLY)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        raise BlockingIOError(errno.EAGAIN, "files are open for writing", view) from error


def _mount(home: str, lowers: Sequence[str], writable: bool) -> None:
    try:
        _mount_once(home, lowers, writable)
    except OSError as error:
        if error.errno != errno.EINVAL or not clear_volatile_mark(home):
            raise
        _mount_once(home, lowers, writable)


def _mount_once(home: str, lowers: Sequence[str], writable: bool) -> None:
    # The mount point doubles as overlayfs's work directory, which needs no path while the view is mounted.
    paths = [*lowers, f"{home}/layer", f"{home}/view"]
    fds: list[int] = []
    workdir_fd = os.open(f"{home}/view", os.O_PATH | os.O_CLOEXEC)
    try:
        if sum(map(len, paths)) > _MAX_OPTIONS // 4 or _SEPARATORS.search("".join(paths)):
            fds = [os.open(p, os.O_PATH | os.O_CLOEXEC) for p in paths]
            paths = [f"/proc/self/fd/{fd}" for fd in fds]
        lower = ":".join(paths[:-2])
        data = f"lowerdir={lower},upperdir={paths[-2]},workdir={paths[-1]},{OPTIONS}"
        mount("forkwise", f"{home}/view", "overlay", 0 if writable else MS_RDONLY, data)
        make_removable(workdir_fd)
    finally:
        for fd in (workdir_fd, *fds):
            os.close(fd)


def clear_volatile_mark(home: str) -> bool:
    """Remove the mark because of which the kernel refuses to mount a volatile layer again.

    The layer's content is valid as long as the machine has not crashed since; a branch that is older than the boot is
    not committed without an explicit request.
    """
    if not os.path.isdir(f"{home}/view/work"):
        return False
    os.chmod(f"{home}/view/work", 0o700)  # the kernel creates it with mode 000
    if not os.path.isdir(f"{home}/view/work/incompat"):
        return False
    work = open_root(f"{home}/view/work")
    try:
        remove_tree(work, "incompat")
    finally:
        os.close(work)
    return True


def _explain(error: OSError, site: Site) -> Refusal:
    if error.errno == errno.EPERM:
        return Refusal(
            "mounting needs CAP_SYS_ADMIN, which this process lacks",
            "in a container: docker run --cap-add SYS_ADMIN, and --security-opt apparmor=unconfined where AppArmor is "
            "enabled"
            if os.geteuid() == 0
            else "run as root, or call forkwise.enter_namespace() at the start of the program (the command line does)",
        )
    if error.errno == errno.ENODEV:
        return Refusal("this kernel has no overlayfs", "modprobe overlay")
    if error.errno in (errno.ENOTSUP, errno.EINVAL):
        return Refusal(
            f"{site.state} is on a filesystem that cannot hold an overlay's layer ({error.strerror})",
            "set FORKWISE_STATE to a directory on ext4, XFS, btrfs or tmpfs",
        )
    return Refusal(f"{error.strerror} ({error.filename})", "run forkwise doctor as root for more")
