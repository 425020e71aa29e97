"""The doctor: which views and which means of confinement work for this user on this directory, and why others do not.

It only examines and reports. Views are chosen by their own probes, which the doctor runs too; nothing depends on its
report.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from forkwise.errors import NamespaceError
from forkwise.files.mounted import find_branching_mount
from forkwise.files.store.state import locate
from forkwise.files.views import catalogue
from forkwise.linux.cgroup import own_groups
from forkwise.linux.mountinfo import find_entry, mounts
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.network.gateway import open_network
from forkwise.sandbox.network.uplink import find_uplink_program

if TYPE_CHECKING:
    from forkwise.files.store.view import Site, View
    from forkwise.sandbox.confinement import Network

__all__ = [
    "Finding",
    "Report",
    "examine",
    "examine_confinement",
    "examine_networks",
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
    """Whether one feature works here; if not, why, and how to enable it."""

    name: str
    works: bool
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The findings for one directory. Views are in order of preference."""

    workspace: str
    state: str
    user: str
    kernel: str
    filesystem: str
    views: list[Finding]
    confinement: list[Finding]
    networks: list[Finding] = field(default_factory=list)

    @property
    def chosen(self) -> str | None:
        """The view that branches of this workspace use by default."""
        return next((finding.name for finding in self.views if finding.works), None)

    @property
    def has_private_overlay(self) -> bool:
        """Whether kernel overlays work in a mount namespace that no other process sees."""
        return any(finding.works for finding in self.confinement if finding.name == "private overlay")


def examine(path: str | os.PathLike[str]) -> Report:
    """Examine which views and means of confinement work for a directory."""
    native = find_branching_mount(os.fspath(path))
    site = locate(path, outside=None if native is None else native[1])
    system = os.uname()
    return Report(
        workspace=site.workspace,
        state=site.state,
        user=f"{_user_name()} (uid {os.geteuid()})",
        kernel=f"{system.sysname} {system.release} {system.machine}",
        filesystem=_find_filesystem(site.workspace),
        views=_examine_views(site),
        confinement=examine_confinement(site),
        networks=examine_networks(),
    )


def examine_confinement(site: Site) -> list[Finding]:
    """Examine each means of confinement for a workspace."""
    return [*_examine_kernel(site), _examine_cgroups(), *_examine_programs()]


def examine_networks() -> list[Finding]:
    """Examine each network that a sandbox can have, by opening it as this user."""
    shared = "attempts share this machine's ports and loopback; of functions and of the confinement 'open'"
    return [
        Finding("proxy", *_try_network("proxy")),
        Finding("private", *_try_network("private")),
        Finding("none", *_try_network("none")),
        Finding("host", True, shared),
    ]


def _try_network(network: Network) -> tuple[bool, str, str]:
    """Open a network. Return whether that works, what it is or why it failed, and a remedy."""
    user = _user_name()
    try:
        with open_network(Confinement.standard(network=network)) as space:
            if network == "none":
                return True, f"for {user}: its own ports, and nothing outside", ""
            if network == "private":
                return True, f"for {user}: its own ports, and all outgoing traffic through {find_uplink_program()}", ""
            if space.redirect_problem:
                detail = f"for {user}: its own ports, and HTTP, HTTPS and SOCKS5 for clients that use HTTPS_PROXY"
                return True, f"{detail}; others cannot be redirected: {space.redirect_problem}", ""
            return True, f"for {user}: its own ports, and outgoing TCP; the default of attempts", ""
    except NamespaceError as error:
        return False, f"not for {user}: {error}", _find_network_remedy(network)


def _find_network_remedy(network: Network) -> str:
    if network != "private":
        return _find_namespace_remedy("network")
    if find_uplink_program() is None:
        return "install the package passt or slirp4netns, or use the network proxy"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "chmod 666 /dev/net/tun, in a container --device /dev/net/tun, or use the network proxy"
    return "use the network proxy, which needs no tun device"


def _examine_kernel(site: Site) -> list[Finding]:
    home = Confinement.standard().find_home(os.environ) or ""
    command = [sys.executable, "-I", "-S", str(_PROBE), site.workspace, site.state, home]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)
        answers: dict[str, dict[str, object]] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return [
            Finding("kernel", False, f"the probe could not be run: {error}", f"run {_PROBE} by hand to see the error")
        ]
    if not home:
        detail = f"$HOME is {os.environ.get('HOME')!r}, of which a sandbox gets no view"
        answers["home view"] = {"works": False, "detail": detail}
    return [_build_finding(name, answer) for name, answer in answers.items()]


def _build_finding(name: str, answer: dict[str, object]) -> Finding:
    works, detail = bool(answer["works"]), str(answer["detail"])
    return Finding(name, works, detail, "" if works else _find_remedy(name))


def _find_remedy(name: str) -> str:
    if name.endswith("namespaces"):
        return _find_namespace_remedy(name.partition(" ")[0])
    if name == "private overlay":
        return "needs user and mount namespaces, Linux 5.11 or later, and state on a filesystem with user.* attributes"
    if name == "private /proc":
        return (
            "needs user, mount and PID namespaces, and a /proc without masked paths: docker run --security-opt "
            "systempaths=unconfined, or procMount: Unmasked in Kubernetes"
        )
    if name == "home view":
        return (
            "sandboxes see the home directory read-only, except ~/.cache if it exists: set HOME to a directory of your "
            "own with nothing mounted in it, on a filesystem that is not an overlay of an overlay"
        )
    if name == "Landlock":
        return "needs Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK, and 'landlock' in the boot parameter lsm="
    return "needs a kernel with CONFIG_SECCOMP_FILTER; in a container, the container runtime must allow it"


def _find_namespace_remedy(kind: str) -> str:
    """Return the setting that forbids a kind of namespace, if one can be seen, with the value that allows it."""
    limits = {"user": "user", "mount": "mnt", "PID": "pid", "network": "net"}
    for limit in dict.fromkeys((limits["user"], limits[kind])):
        if _read_setting(f"user/max_{limit}_namespaces") == "0":
            return f"sysctl -w user.max_{limit}_namespaces=10000"
    if _read_setting("kernel/unprivileged_userns_clone") == "0":
        return "sysctl -w kernel.unprivileged_userns_clone=1"
    if _read_setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that grants userns"
    return (
        "no sysctl forbids it, so a container's seccomp profile or a security module does; in a container: docker run "
        "--security-opt seccomp=unconfined, and apparmor=unconfined if AppArmor is enabled"
    )


def _read_setting(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None


def _examine_cgroups() -> Finding:
    """Examine whether this process could create a control group below its own.

    It only calls access(2), which also considers read-only mounts: a doctor that is killed would leave a group behind.
    """
    groups = {name: Path(path) for name, path in own_groups().items()}
    usable = []
    own = groups.get("")
    if own is not None and all(os.access(path, os.W_OK) for path in (own, own / "cgroup.procs")):
        usable += [f"{name} (version 2)" for name in _read_words(own / "cgroup.controllers") if name in _CONTROLLERS]
    usable += [f"{name} (version 1)" for name in _CONTROLLERS if name in groups and os.access(groups[name], os.W_OK)]
    if usable:
        return Finding("cgroups", True, f"controllers this user may use: {', '.join(usable)}")
    if not groups:
        return Finding("cgroups", False, "no control group filesystem is mounted", "mount cgroup2 at /sys/fs/cgroup")
    return Finding(
        "cgroups",
        False,
        f"this user may not create groups below those of this process ({', '.join(sorted(map(str, groups.values())))})",
        "run under systemd-run --user --scope -p Delegate=yes",
    )


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text(errors="surrogateescape").split()
    except OSError:
        return []


def _examine_programs() -> list[Finding]:
    return [_examine_program(name, purpose, remedy) for name, (purpose, remedy) in _PROGRAMS.items()]


def _examine_program(name: str, purpose: str, remedy: str) -> Finding:
    found = shutil.which(name)
    if found is None:
        return Finding(name, False, f"not installed ({purpose})", remedy)
    return Finding(name, True, f"{found} ({purpose})")


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "unnamed"


def _find_filesystem(path: str) -> str:
    """Return the type of the filesystem that a path is on."""
    found = find_entry(path, mounts())
    return found.fstype if found else "unknown"


def _examine_views(site: Site) -> list[Finding]:
    native = [_examine_branchfs(site), _examine_daxfs(site)]
    own = next((finding.name for finding in native if finding.works), None)
    return native + [_examine_view(view, site) if own is None else _rule_out(view, own) for view in catalogue()]


def _rule_out(view: View, own: str) -> Finding:
    remedy = f"open the directory that {own} was mounted from"
    return Finding(view.name, False, f"branches of this workspace are those of {own}", remedy)


def _examine_view(view: View, site: Site) -> Finding:
    refusal = view.refusal(site)
    if refusal is None:
        return Finding(
            view.name, True, "a branch is a complete tree" if view.whole else "a branch holds only its changes"
        )
    return Finding(view.name, False, refusal.reason, refusal.remedy)


def _examine_own_filesystem(site: Site, name: str) -> Finding | None:
    """Return a finding if the workspace's own filesystem is the branching filesystem ``name``."""
    found = find_branching_mount(site.workspace)
    if found is None or found[0].name != name:
        return None
    return Finding(name, True, f"this workspace is on such a mount: {found[0].limits}")


def _examine_branchfs(site: Site) -> Finding:
    if (native := _examine_own_filesystem(site, "branchfs")) is not None:
        return native
    binary = os.environ.get("FORKWISE_BRANCHFS") or shutil.which("branchfs")
    if binary is None:
        return Finding(
            "branchfs",
            False,
            "this workspace is not a BranchFS mount, and the program branchfs is not installed",
            "put branchfs on the PATH or set FORKWISE_BRANCHFS to its path, then use Workspace.mount(base)",
        )
    if not os.access(binary, os.X_OK):
        return Finding(
            "branchfs", False, f"{binary} is not executable", "set FORKWISE_BRANCHFS to the path of the program"
        )
    return Finding(
        "branchfs",
        False,
        f"this workspace is not a BranchFS mount ({binary} is installed)",
        "create one with Workspace.mount(base) and use it as the workspace",
    )


def _examine_daxfs(site: Site) -> Finding:
    if (native := _examine_own_filesystem(site, "daxfs")) is not None:
        return native
    with open("/proc/filesystems") as file:
        loaded = any(line.split()[-1] == "daxfs" for line in file)
    if loaded:
        return Finding(
            "daxfs",
            False,
            "this workspace is not a DaxFS mount",
            "mount one and use it as the workspace: the module is loaded",
        )
    return Finding(
        "daxfs", False, "this kernel has no daxfs", "load the module daxfs, mount a DaxFS and use it as the workspace"
    )
