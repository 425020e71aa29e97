"""What works here: which views and which means of confinement, for this user, on this directory, and why not the rest.

The doctor looks and tells; it changes nothing, and nobody chooses by what it says: views are chosen by their own
probes, which it asks as well.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from forkwise.files.store.state import locate
from forkwise.files.store.view import Site, View
from forkwise.files.views import catalogue
from forkwise.linux.mountinfo import holding, mounts

__all__ = [
    "Finding",
    "Report",
    "confinement",
    "examine",
]


_PROBE = Path(__file__).with_name("probe.py")
_PROBE_SECONDS = 30
_CONTROLLERS = ("cpu", "memory", "pids")
_PROGRAMS = {
    "bwrap": ("sets up namespaces for a command", "install the package bubblewrap"),
    "pasta": ("network for a network namespace", "install the package passt"),
    "slirp4netns": ("network for a network namespace", "install the package slirp4netns"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether one thing can be had here; where it cannot, why, and what would enable it."""

    name: str
    works: bool
    detail: str
    remedy: str = ""


def confinement(place: Site) -> list[Finding]:
    """One finding for each means of confinement, for a workspace at this place."""
    return [*_kernel_means(place), _cgroups(), *_programs()]


def _kernel_means(place: Site) -> list[Finding]:
    command = [sys.executable, "-I", "-S", str(_PROBE), place.workspace, place.state]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)
        answers: dict[str, dict[str, object]] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return [Finding("kernel", False, f"the probe could not be run: {error}", f"run {_PROBE} by hand and see")]
    return [_finding(name, answer) for name, answer in answers.items()]


def _finding(name: str, answer: dict[str, object]) -> Finding:
    works, detail = bool(answer["works"]), str(answer["detail"])
    return Finding(name, works, detail, "" if works else _remedy(name))


def _remedy(name: str) -> str:
    if name.endswith("namespaces"):
        return _namespace_remedy(name.partition(" ")[0])
    if name == "private overlay":
        return "needs user and mount namespaces, Linux 5.11 or later, and state on a filesystem with user attributes"
    if name == "private /proc":
        return (
            "needs user, mount and PID namespaces, and a /proc without covered parts: docker run --security-opt "
            "systempaths=unconfined, or procMount: Unmasked in Kubernetes"
        )
    if name == "Landlock":
        return "needs Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK, and 'landlock' in the lsm= boot parameter"
    return "needs a kernel with CONFIG_SECCOMP_FILTER; inside a container, its runtime may forbid it"


def _namespace_remedy(kind: str) -> str:
    """Name the setting that stands in the way, where one can be seen."""
    limits = {"user": "user", "mount": "mnt", "PID": "pid", "network": "net"}
    for limit in dict.fromkeys((limits["user"], limits[kind])):
        if _setting(f"user/max_{limit}_namespaces") == "0":
            return f"sysctl -w user.max_{limit}_namespaces=10000"
    if _setting("kernel/unprivileged_userns_clone") == "0":
        return "sysctl -w kernel.unprivileged_userns_clone=1"
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that grants userns"
    return (
        "no sysctl forbids it: a container's seccomp profile or a security module does; in a container: docker run "
        "--security-opt seccomp=unconfined, and apparmor=unconfined where AppArmor is enabled"
    )


def _setting(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None


def _cgroups() -> Finding:
    """Whether this process could make a control group below its own.

    Told by access(2), which knows of read-only mounts too, instead of by making one: a group made by a doctor that is
    killed would stay.
    """
    groups = _own_groups()
    usable = []
    own = groups.get("")
    if own is not None and all(os.access(path, os.W_OK) for path in (own, own / "cgroup.procs")):
        usable += [f"{name} (version 2)" for name in _words(own / "cgroup.controllers") if name in _CONTROLLERS]
    usable += [f"{name} (version 1)" for name in _CONTROLLERS if name in groups and os.access(groups[name], os.W_OK)]
    if usable:
        return Finding("cgroups", True, f"controllers this user may use: {', '.join(usable)}")
    if not groups:
        return Finding("cgroups", False, "no control group filesystem is mounted", "mount cgroup2 at /sys/fs/cgroup")
    return Finding(
        "cgroups",
        False,
        f"none of this process's groups may be divided by this user ({', '.join(sorted(map(str, groups.values())))})",
        "run beneath: systemd-run --user --scope -p Delegate=yes",
    )


def _own_groups() -> dict[str, Path]:
    """This process's control groups by controller ('' for version 2), as directories."""
    mounted = _group_mounts()
    groups = {}
    for line in _lines(Path("/proc/self/cgroup")):
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in mounted:
                root, point = mounted[name]
                inside = os.path.relpath(path, root)
                groups[name] = point if inside.startswith("..") else point / inside
    return {name: path for name, path in groups.items() if path.is_dir()}


def _group_mounts() -> dict[str, tuple[str, Path]]:
    """Where each controller is mounted, with the group that is the mount's root."""
    mounts: dict[str, tuple[str, Path]] = {}
    for line in _lines(Path("/proc/self/mountinfo")):
        fields, _, rest = line.partition(" - ")
        root, point = fields.split()[3:5]
        fstype, _, options = rest.split(" ", 2)
        if fstype == "cgroup2":
            mounts[""] = root, Path(point)
        elif fstype == "cgroup":
            mounts.update({name: (root, Path(point)) for name in options.split(",") if name in _CONTROLLERS})
    return mounts


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _programs() -> list[Finding]:
    return [_program(name, purpose, remedy) for name, (purpose, remedy) in _PROGRAMS.items()]


def _program(name: str, purpose: str, remedy: str) -> Finding:
    found = shutil.which(name)
    if found is None:
        return Finding(name, False, f"not installed ({purpose})", remedy)
    return Finding(name, True, f"{found} ({purpose})")


@dataclass(frozen=True, slots=True)
class Report:
    """What a look at one directory found. Views are in the order of preference."""

    workspace: str
    state: str
    user: str
    kernel: str
    filesystem: str
    views: list[Finding]
    confinement: list[Finding]

    @property
    def chosen(self) -> str | None:
        """The view a branch of this workspace gets when none is asked for."""
        return next((finding.name for finding in self.views if finding.works), None)

    @property
    def has_private_overlay(self) -> bool:
        """Whether kernel overlays can be had in a namespace of one's own, where others don't see them."""
        return any(finding.works for finding in self.confinement if finding.name == "private overlay")


def examine(path: str | os.PathLike[str]) -> Report:
    """Look at what can be had for a directory."""
    place = locate(path)
    system = os.uname()
    return Report(
        workspace=place.workspace,
        state=place.state,
        user=f"{_user_name()} (uid {os.geteuid()})",
        kernel=f"{system.sysname} {system.release} {system.machine}",
        filesystem=_mount_of(place.workspace)[0],
        views=_views(place),
        confinement=confinement(place),
    )


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "unnamed"


def _mount_of(path: str) -> tuple[str, str]:
    """The type and the source of the filesystem a path lies on."""
    found = holding(path, mounts())
    return (found.fstype, found.source) if found else ("unknown", "")


def _views(place: Site) -> list[Finding]:
    known = [_view(view, place) for view in catalogue()]
    names = {finding.name for finding in known}
    native = [finding for finding in (_branchfs(place), _daxfs(place)) if finding.name not in names]
    return native + known


def _view(view: View, place: Site) -> Finding:
    refusal = view.refusal(place)
    if refusal is None:
        return Finding(view.name, True, "keeps a whole tree" if view.whole else "keeps what changed")
    return Finding(view.name, False, refusal.reason, refusal.remedy)


def _branchfs(place: Site) -> Finding:
    fstype, source = _mount_of(place.workspace)
    if fstype == "fuse.branchfs" or (fstype == "fuse" and source == "branchfs"):
        return Finding("branchfs", True, "this workspace is a BranchFS mount")
    binary = os.environ.get("FORKWISE_BRANCHFS") or shutil.which("branchfs")
    if binary is None:
        return Finding(
            "branchfs",
            False,
            "this workspace is no BranchFS mount, and there is no branchfs program",
            "put branchfs on the PATH or name it in FORKWISE_BRANCHFS, then use Workspace.mount(base)",
        )
    if not os.access(binary, os.X_OK):
        return Finding("branchfs", False, f"{binary} cannot be executed", "name the program in FORKWISE_BRANCHFS")
    return Finding(
        "branchfs",
        False,
        f"this workspace is no BranchFS mount, but {binary} is there",
        "make one with Workspace.mount(base), and open that",
    )


def _daxfs(place: Site) -> Finding:
    if _mount_of(place.workspace)[0] == "daxfs":
        return Finding("daxfs", True, "this workspace is a DaxFS mount")
    with open("/proc/filesystems") as file:
        loaded = any(line.split()[-1] == "daxfs" for line in file)
    if loaded:
        return Finding(
            "daxfs", False, "this workspace is no DaxFS mount", "mount one, and open that: the module is there"
        )
    return Finding("daxfs", False, "this kernel has no daxfs", "load the daxfs module, mount one, and open that")
