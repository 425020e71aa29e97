"""Planning a jail: from a confinement and a branch to the mounts, maps and filters that jail.py applies.

This runs in the caller's process, which knows the branch, the environment and the host's files.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import TYPE_CHECKING

from forkwise.errors import BranchError, NamespaceError
from forkwise.files.branch import Branch, Parent
from forkwise.files.store.state import is_ordinary
from forkwise.files.store.state_root import user_roots
from forkwise.files.views.branchfs import CONTROL_FILE, find_mount
from forkwise.files.views.overlay import (
    OPTIONS,
    OverlayView,
    clear_volatile_mark,
    release_private_mount,
    reserve_private_mount,
    set_private_owner,
)
from forkwise.linux import namespace
from forkwise.linux.landlock import abi, usual_devices
from forkwise.linux.mountinfo import find_entry, parse_mountinfo
from forkwise.linux.process_id import ProcessId
from forkwise.linux.seccomp import COMMON_SOCKETS, STANDARD, STRICT, deny
from forkwise.linux.syscalls import CLONE_NEWNET
from forkwise.linux.trees import closing_fd, open_root
from forkwise.sandbox.jail import JAIL_FLAGS, Jail, map_ids
from forkwise.sandbox.mounts import HOME_VIEW, Mount
from forkwise.sandbox.path_view import (
    PathView,
    find_path_view,
    make_home_layer,
    make_path_view,
    paths_directory,
    renew_workdir,
)

if TYPE_CHECKING:
    from forkwise.files.store.view import DetachedMount
    from forkwise.files.workspace import Workspace
    from forkwise.sandbox.confinement import Confinement
    from forkwise.sandbox.process import SandboxProcess

__all__ = [
    "PrivateMount",
    "explain_private_temporary",
    "find_temporary",
    "is_private",
    "list_layers",
    "plan_jail",
    "plan_landlock",
    "reserved",
]


# Kept for root: the capabilities over files (own, read, write), and to kill and switch users.
_FILE_CAPS = [0, 1, 3, 4, 5, 6, 7]  # CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID
_RUNTIME = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/nscd")
_TEMPORARY = ("/tmp", "/var/tmp")
_RESOLV_CONF = os.path.join(os.path.dirname(__file__), "network", "resolv.conf")
_IMPORT_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # forkwise is imported from here
_SYSTEM_PREFIXES = ("/usr", "/bin", "/sbin", "/lib")  # never links into temporary directories: not worth a stat
_STATE_ROOT = re.compile(r"forkwise|\.forkwise-\d+")  # directories that hold only state directories of workspaces
_TEMPORARY_PATH = re.compile(r"(?<![\w/])(?:/var)?/tmp/[\w./+@%-]*[\w+@%-]")
_MISSING = re.compile(r"no such file|not found|can(?:'t|not) (?:open|access)|could not be started", re.IGNORECASE)
_COVER = "mode=755,size=64k"  # an empty directory in which other mounts can be made
_MIN_LANDLOCK_ABI = 3  # ABI 1 forbids renames between directories, ABI 1 and 2 allow truncation


def plan_jail(
    workspace_path: str,
    view_path: str | None,
    branch: Parent | None,
    confinement: Confinement,
    environment: Mapping[str, str],
    *,
    joins_network: bool = False,
    answers_names: bool = False,
) -> Jail:
    """Plan a jail in which ``workspace_path`` is the branch.

    ``view_path`` is the host's path of the branch, or None if the branch is mounted inside only. ``joins_network`` says
    that it is started inside a network namespace, and gets none of its own; ``answers_names``, that forkwise answers
    names in it.
    """
    flags = JAIL_FLAGS
    is_isolated = joins_network or _is_isolated(confinement)
    if is_isolated and not joins_network:
        flags |= CLONE_NEWNET
    is_root = os.geteuid() == 0
    uid_map, gid_map = map_ids()
    home = confinement.find_home(environment)
    if home is not None and _is_inside(home, workspace_path):
        home = None  # the branch shows it
    cover = _cover_state(workspace_path, branch, home) if confinement.read_only else []
    home_mounts = [] if home is None else _mount_home(home, workspace_path, branch, confinement, cover)
    try:
        mounts = _mounts(
            workspace_path,
            view_path,
            branch,
            confinement,
            environment,
            home_mounts,
            cover,
            is_isolated=is_isolated,
            answers_names=answers_names,
        )
    except BaseException:
        for reserved_mount in home_mounts:
            if reserved_mount.kind == "home" and reserved_mount.source:
                release_private_mount(reserved_mount.source)
        raise
    return Jail(
        flags=flags,
        mounts=mounts,
        read_only=confinement.read_only,
        cwd=workspace_path,
        uid_map=uid_map,
        gid_map=gid_map,
        keeps_caps=_FILE_CAPS if is_root else [],
        seccomp=_filter(confinement.name, is_isolated),
        landlock=_landlock_paths(workspace_path, confinement, home) if confinement.read_only else None,
    )


def _is_isolated(confinement: Confinement) -> bool:
    """Return whether the network is not the host's; ``auto`` is the host's if no other network was opened."""
    return confinement.network not in ("host", "auto")


def _landlock_paths(workspace_path: str, confinement: Confinement, home: str | None) -> list[str] | None:
    """Return the paths that Landlock leaves writable, in addition to the mounts' own protection.

    Landlock covers what read-only mounts do not: FIFOs of the host, and directories that a function's process had open.
    """
    if abi() < _MIN_LANDLOCK_ABI:
        return None
    writable = [*confinement.writable_paths(), *confinement.branched_paths().values()]
    views = [] if home is None else [home, f"{home}/.cache"]
    directories = [workspace_path, *_TEMPORARY, "/dev", "/proc", *writable, *views]
    return [p for p in directories if os.path.exists(p)]


def plan_landlock(view_path: str, temporary: str, confinement: Confinement, environment: Mapping[str, str]) -> Jail:
    """Plan a jail without namespaces.

    Writes are confined to the branch, a temporary directory and the ``writable`` paths; inside a sandbox whose home
    directory is a view, also to that.
    """
    if confinement.read_only and _find_branchfs(view_path) is not None:
        raise NamespaceError(
            f"{view_path} is on BranchFS, whose control files let any process commit or abort branches: hiding them "
            "needs mount namespaces, which are not available here. Allow those, or use the confinement 'open'"
        )
    if _is_isolated(confinement):
        raise NamespaceError(
            f"the network {confinement.network!r} needs network namespaces, which are not available here: "
            "allow them, or use the network 'host'"
        )
    if branched := confinement.branched_paths():
        raise NamespaceError(
            f"a copy-on-write view of {', '.join(branched)} needs mount namespaces, which are not available here: "
            "allow them, or let the command change the path itself by listing it as writable (--writable)"
        )
    writable = [view_path, temporary, *confinement.writable_paths(), *usual_devices()]
    home = confinement.find_home(environment)
    if home is not None and _find_mounts(home)[0]:
        writable.append(home)
    return Jail(
        flags=0,
        mounts=[],
        read_only=confinement.read_only,
        cwd=view_path,
        seccomp=_filter(confinement.name, False),
        landlock=writable if confinement.read_only else None,
    )


@cache
def _filter(preset: str, is_isolated: bool) -> str:
    """Return the seccomp filter of a preset, as text for the forkserver.

    ``is_isolated`` means isolated from the host's network, which some kinds of sockets reach from any network
    namespace.
    """
    sockets = COMMON_SOCKETS if is_isolated or preset == "strict" else None
    if preset == "open":
        return deny((), terminal_injection=False, sockets_of=sockets).hex() if is_isolated else ""
    return deny(STRICT if preset == "strict" else STANDARD, sockets_of=sockets).hex()


def _mounts(
    workspace_path: str,
    view_path: str | None,
    branch: Parent | None,
    confinement: Confinement,
    environment: Mapping[str, str],
    home_mounts: list[Mount],
    cover: list[Mount],
    *,
    is_isolated: bool,
    answers_names: bool,
) -> list[Mount]:
    temporary = f"mode=1777{_size_option(confinement)}"
    home = home_mounts[0].target if home_mounts else None
    is_temporary = home is not None and _is_inside(home, *_TEMPORARY)
    mounts = [] if is_temporary else list(home_mounts)
    cover = list(cover)
    if confinement.read_only:
        mounts += [Mount("tmpfs", path, writable=True, options=temporary) for path in _TEMPORARY if os.path.isdir(path)]
        mounts += [Mount("bind", p, p) for p in _find_program_directories(environment) if _is_inside(p, *_TEMPORARY)]
        if os.path.isdir("/run"):
            mounts.append(Mount("tmpfs", "/run", options="mode=755"))
            mounts += [Mount("bind", p, p) for p in _RUNTIME if os.path.isdir(p)]
        mounts.append(Mount("dev", "/dev", writable=True, options=temporary))
    if is_temporary:
        mounts += home_mounts
    writable = [Mount("bind", p, p, writable=True) for p in confinement.writable_paths()]
    branchfs_mount = _find_branchfs(view_path) if confinement.read_only and view_path is not None else None
    if branchfs_mount is not None and _is_visible(branchfs_mount, home):
        cover.append(Mount("tmpfs", branchfs_mount, options=_COVER))
    hidden = confinement.hidden_paths(environment)
    # A hidden directory around the workspace is covered before the branch is mounted in it.
    cover += [Mount("tmpfs", p, options=_COVER) for p in hidden if _is_inside(workspace_path, p)]
    covered = [m for m in writable if any(_is_inside(m.target, c.target) for c in cover)]
    # Writable and branched paths stay so inside a directory that is only readable.
    changed = [*confinement.writable_paths(), *confinement.branched_paths().values()]
    readable = [Mount("bind", p, p) for p in map(os.path.realpath, confinement.readable) if p not in changed]
    around = [m for m in readable if any(_is_inside(p, m.target) for p in changed)]
    covered += [m for m in readable if m not in around]
    if confinement.read_only:  # whose temporary directories are empty
        seen = [p for p in confinement.shown_paths(environment) if _is_inside(p, *_TEMPORARY) and p not in _TEMPORARY]
        covered += [Mount("bind", p, p) for p in seen if not _is_inside(p, *changed)]
    branched = _mount_branched(workspace_path, branch, confinement)
    outside = [m for m in branched if not _is_inside(m.target, workspace_path)]
    mounts += around + [m for m in writable if m not in covered] + outside + cover + covered
    if view_path is not None:
        mounts.append(Mount("bind", workspace_path, view_path, writable=True))
    elif isinstance(branch, Branch):
        lowers = list(branch.parent.lowers)
        mounts.append(Mount("overlay", workspace_path, branch.home, writable=True, lowers=lowers, options=OPTIONS))
    mounts += [m for m in branched if m not in outside]
    if branchfs_mount is not None:
        mounts.append(Mount("mask", f"{workspace_path}/{CONTROL_FILE}"))
    # On top of the branch, because a hidden path may be inside the workspace.
    shown = [Mount("bind", p, p) for p in confinement.shown_paths(environment)]
    kept = {m.target: m for m in (*shown, *writable, *branched)}
    for path in (p for p in hidden if not _is_inside(workspace_path, p)):
        inside = [m for target, m in kept.items() if _is_inside(target, path) and not _is_inside(path, workspace_path)]
        mounts += [Mount("tmpfs", path, options=_COVER), *inside] if inside else [Mount("mask", path)]
    if is_isolated:
        mounts += [Mount("mask", p) for p in _find_bound_sockets() if _is_visible(p, home)]
    if answers_names and os.path.exists(resolv_conf := os.path.realpath("/etc/resolv.conf")):
        mounts.append(Mount("bind", resolv_conf, _RESOLV_CONF))
    mounts.append(Mount("proc", "/proc", writable=True, options=" ".join(_find_proc_settings())))
    return mounts


def _mount_branched(workspace_path: str, branch: Parent | None, confinement: Confinement) -> list[Mount]:
    """Create the views of the branched paths, unless the branch has them, reserve them, and return their mounts."""
    mounts: list[Mount] = []
    paths = {given: path for given, path in confinement.branched_paths().items() if path != workspace_path}
    if paths and not isinstance(branch, Branch):
        raise BranchError(
            f"a copy-on-write view of {', '.join(paths)} belongs to a branch, and this command runs in none: run it in "
            "a branch, or list the path as writable"
        )
    try:
        for given, path in paths.items():
            assert isinstance(branch, Branch)
            view = make_path_view(branch, given)
            if view.kind == "overlay":
                _reserve_view(branch, view)
                mounts.append(Mount("overlay", path, view.home, writable=True, lowers=[path], options=OPTIONS))
            else:
                mounts.append(Mount("bind", path, view.content, writable=True))
        if isinstance(branch, Branch):
            # Directories that only the branch has; the mount points are made in the view of the home directory.
            views = [find_path_view(branch, given) for given in confinement.missing_directories()]
            mounts += [Mount("bind", view.path, view.content, writable=True) for view in views if view is not None]
    except BaseException:
        for reserved_mount in mounts:
            if reserved_mount.kind == "overlay":
                release_private_mount(reserved_mount.source)
        raise
    return mounts


def list_layers(branch: Branch | Workspace) -> list[str]:
    """List the directories that a command in a branch writes to: its layer, and its views of other paths."""
    return [branch.target, paths_directory(branch.home)] if isinstance(branch, Branch) else [branch.target]


def _reserve_view(branch: Branch, view: PathView) -> None:
    with branch._lock():
        if not reserve_private_mount(view.home):
            raise BranchError(
                f"the view of {view.given} in {branch.branch_path} is in use by another sandbox: wait until that ends",
                branch=branch.name,
            )
        clear_volatile_mark(view.home)


def _reserve_home_layer(branch: Branch, home: str) -> str | None:
    """Reserve a layer for a view of the home directory: the branch's first, unless that is in use, or else a new one.

    Returns None if the branch's filesystem can hold none.
    """
    with branch._lock():
        for number in count():
            layer = make_home_layer(branch, home, number)
            if layer is None or reserve_private_mount(layer):
                break
        if layer is not None:
            renew_workdir(branch, layer)
    return layer


def _find_branchfs(path: str) -> str | None:
    """Return the mount point of the BranchFS that contains a path.

    A control file accepts ioctls even on a read-only mount, so a sandbox must see none, not even of other branches.
    """
    return None if is_ordinary(path) else find_mount(os.path.realpath(path))


def explain_private_temporary(command: str, printed: str) -> str:
    """Explain why a command did not find a file that it names: a sandbox has temporary directories of its own.

    ``printed`` is what the command printed. Only paths in ``command`` count, because a sandbox must not learn from the
    answer what else is in the host's temporary directories. Returns an empty text if that is not the reason.
    """
    paths = [path for path in _TEMPORARY_PATH.findall(command) if any(path in line for line in _find_missing(printed))]
    for path in paths:
        if os.path.exists(path):
            directory = next(d for d in _TEMPORARY if _is_inside(path, d))
            return (
                f"{path} exists, but a sandbox has its own {directory}: move it into the workspace, or show it to the "
                f"sandbox with --show {path}"
            )
    return ""


def _find_missing(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if _MISSING.search(line)]


def _size_option(confinement: Confinement) -> str:
    """Return the size option of a tmpfs: its files use memory, which is limited here if no control group counts it."""
    most = confinement.limits.memory
    return "" if most is None else f",size={most}"


def _cover_state(workspace_path: str, branch: Parent | None, home: str | None) -> list[Mount]:
    """Cover forkwise's state directories. The branch's view, if the workspace is in one, is mounted on top again."""
    state = branch.state_dir.state if branch is not None else workspace_path.partition("/branches/")[0]
    covered = []
    if os.path.exists(f"{state}/lock"):
        root = os.path.dirname(state)
        is_ours = _STATE_ROOT.fullmatch(os.path.basename(root)) and (
            branch is None or not _is_inside(workspace_path, root)
        )
        covered.append(root if is_ours else state)
    if home is not None:  # also cover the state of other workspaces
        roots = [root for path in user_roots() if os.path.isdir(root := os.path.realpath(path))]
        covered += [root for root in roots if _is_inside(root, home) and not _is_inside(workspace_path, root)]
    return [Mount("tmpfs", path, options=_COVER) for path in dict.fromkeys(covered) if _is_visible(path, home)]


def _is_visible(path: str, home: str | None) -> bool:
    """Return whether a sandbox sees the host's files at a path: not in its own temporary directories."""
    return not _is_inside(path, *_TEMPORARY) or (home is not None and _is_inside(path, home))


def _mount_home(
    home: str, workspace_path: str, branch: Parent | None, confinement: Confinement, cover: list[Mount]
) -> list[Mount]:
    """Return the mounts that show the home directory as a copy-on-write view, below what is mounted in it.

    The view belongs to the branch. While one sandbox has it mounted, others get new ones: a layer must not be mounted
    twice. Inside a sandbox that has such a view, the view is shared, because overlays nest only two deep.
    """
    is_view, points = _find_mounts(home)
    if is_view:
        return [Mount("bind", home, home, writable=True)]
    apart = [workspace_path, *(m.target for m in cover)]
    points = sorted({point for point in points if not _is_inside(point, *apart)})
    inner = [p for p in points if not any(p.startswith(f"{other}/") for other in points)]
    layer = _reserve_home_layer(branch, home) if isinstance(branch, Branch) else None
    size = _size_option(confinement)
    view = Mount("home", home, layer or "", writable=True, lowers=[home], options=OPTIONS, size=size)
    return [view, *(Mount("submount", point, point) for point in inner)]


def _find_mounts(home: str) -> tuple[bool, list[str]]:
    """Return whether a home directory is inside an outer sandbox's view of it, and what is mounted in it.

    The mount table is searched as text, because root may have a mount for every branch, and none of these matters.
    """
    with open("/proc/self/mountinfo", "rb") as file:
        table = file.read()
    is_view = False
    if f" {HOME_VIEW} ".encode() in table:
        around = find_entry(home, parse_mountinfo(os.fsdecode(table)))
        is_view = around is not None and around.source == HOME_VIEW
    escaped = re.sub(rb"[ \t\n\\]", lambda found: b"\\%03o" % found[0][0], os.fsencode(home))
    points = re.findall(rb"^\S+ \S+ \S+ \S+ (" + re.escape(escaped) + rb"/\S+) ", table, re.MULTILINE)
    unescape = functools.partial(re.sub, rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]))
    return is_view, [os.fsdecode(unescape(point)) for point in set(points)]


def _find_bound_sockets() -> list[str]:
    """Return the Unix sockets bound to paths at this moment: a network namespace does not isolate those."""
    with open("/proc/net/unix", errors="surrogateescape") as file:
        bound = {line.rstrip("\n").split(" /", 1)[1] for line in file if " /" in line}
    paths = sorted({os.path.realpath(f"/{path}") for path in bound})
    return [path for path in paths if os.path.exists(path)]


@cache
def _find_proc_settings() -> list[str]:
    """Return the writable entries of /proc other than processes: there, a sandbox's root counts as the host's root."""
    if os.geteuid() != 0:
        return []
    # Skip processes: they may have ended by then.
    return sorted(name for name in os.listdir("/proc") if not name.isdigit() and _is_proc_setting(f"/proc/{name}"))


def _is_proc_setting(path: str) -> bool:
    """Return whether an entry of /proc can be written, or contains one that can."""
    mode = _mode(path)
    if stat.S_ISLNK(mode):
        return False
    if mode & 0o222 or path == "/proc/sys":
        return True
    return any(_mode(f"{directory}/{name}") & 0o222 for directory, _, names in os.walk(path) for name in names)


def _mode(path: str) -> int:
    """Return the mode of a file, or of the link to it if the file was removed meanwhile, as drivers' files can be."""
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return stat.S_IFLNK


def _find_program_directories(environment: Mapping[str, str]) -> list[str]:
    """Return directories of programs that a command may need although they are in a temporary directory."""
    found = {sys.prefix, sys.base_prefix, _IMPORT_ROOT, environment.get("VIRTUAL_ENV", "")}
    found |= {os.path.dirname(p) for p in environment.get("PATH", "").split(":")}
    directories = {os.path.realpath(p) for p in found if p and not p.startswith(_SYSTEM_PREFIXES) and os.path.isdir(p)}
    return sorted(directories - {"/", *_TEMPORARY})


def find_temporary(environment: Mapping[str, str], mounts: Sequence[Mount]) -> dict[str, str]:
    """Return new values for variables such as TMPDIR that name a directory which a sandbox's own /tmp hides."""
    found = {}
    for name in ("TMPDIR", "TMP", "TEMP"):
        path = os.path.realpath(environment[name]) if environment.get(name) else "/"
        around = [mount for mount in mounts if _is_inside(path, mount.target)]
        if around and around[-1].kind == "tmpfs" and around[-1].target in _TEMPORARY:
            found[name] = around[-1].target
    return found


def _is_inside(path: str, *directories: str) -> bool:
    return any(path == p or path.startswith(f"{p}/") for p in directories)


def is_private(branch: Branch) -> bool:
    """Return whether only a sandbox can mount the branch, because this user may not mount on the host."""
    return branch.view == "overlay" and os.geteuid() != 0 and not namespace.is_entered()


@contextmanager
def reserved(branch: Branch | Workspace) -> Iterator[PrivateMount]:
    """Reserve a branch for one sandbox while that is started, if only the sandbox can mount it.

    Raise BranchError if another sandbox has it mounted, or is about to: only one may at a time. The reservation is
    dropped at the end of the block unless ``PrivateMount.set_sandbox`` was called.
    """
    if not isinstance(branch, Branch) or not is_private(branch):
        mount = PrivateMount(None, os.fspath(branch.path))
        try:
            yield mount
        finally:
            mount.release_views()
        return
    with branch._lock():
        if not reserve_private_mount(branch.home):
            raise BranchError(
                f"{branch.branch_path} is in use by another sandbox and mounted only inside it: wait until that ends, "
                "or create the branch with a view that every process sees (fuse, copy)",
                branch=branch.name,
            )
        clear_volatile_mark(branch.home)
    mount = PrivateMount(branch.home, None)
    try:
        yield mount
    finally:
        mount.release_views()
        if not mount.has_sandbox:
            release_private_mount(branch.home)


@dataclass(slots=True)
class PrivateMount:
    """The mount of a branch for one sandbox.

    ``view_path`` is the host's path of the branch, or None if only the sandbox mounts it; ``home`` is then the branch's
    home. ``views`` are the homes of its views of other paths, which only sandboxes mount. ``home_layer`` is that of the
    view of the home directory, ``home_view`` its detached mount, if this process may mount.
    """

    home: str | None
    view_path: str | None
    has_sandbox: bool = False
    views: list[str] = field(default_factory=list)
    home_layer: str = ""
    home_view: DetachedMount | None = None

    @property
    def home_fds(self) -> tuple[int, ...]:
        """The descriptor of the detached mount for the forkserver, if there is one."""
        return () if self.home_view is None else (self.home_view.fileno(),)

    def set_sandbox(self, process: SandboxProcess) -> None:
        """Record the sandbox by its first process, whose end unmounts the branch.

        The layer of the home directory stays reserved by this process until it closes the sandbox. Replacing the file
        that records this would take milliseconds, because ext4 then writes out its content.
        """
        for home in (self.home, *self.views):
            if home is not None:
                set_private_owner(home, ProcessId.of(process.pid))
        process.on_close.append(self._release_home_layer)
        self.has_sandbox = True

    def _release_home_layer(self) -> None:
        if self.home_layer:
            release_private_mount(self.home_layer)

    def add_views(self, jail: Jail) -> None:
        """Record the views of other paths that ``plan_jail`` reserved for a jail, and mount that of the home directory.

        The kernel refuses that inside a sandbox if something is mounted in the home directory.
        """
        self.views = [m.source for m in jail.mounts if m.kind == "overlay" and m.target != jail.cwd]
        for view in (m for m in jail.mounts if m.kind == "home" and m.source):
            self.home_layer = view.source
            if os.geteuid() == 0 or namespace.is_entered():
                # By descriptor, because a path may be long or contain separators of mount options.
                with closing_fd(open_root(view.source)) as layer, closing_fd(open_root(view.lowers[0])) as lower:
                    paths = (f"/proc/self/fd/{layer}", f"/proc/self/fd/{lower}")
                    self.home_view = OverlayView().premount(*paths, HOME_VIEW)
                jail.has_home_fd = self.home_view is not None

    def release_views(self) -> None:
        """Close the detached mount, and drop the reservations of the views if no sandbox was started."""
        if self.home_view is not None:
            self.home_view.close()
        if not self.has_sandbox:
            for home in self.views:
                release_private_mount(home)
            self._release_home_layer()
