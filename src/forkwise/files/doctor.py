"""What works here: which views and which means of confinement, for this user, on this directory, and why not the rest.

The doctor looks and tells; it changes nothing, and nobody chooses by what it says: views are chosen by their own
probes, which it asks as well.
"""

from __future__ import annotations

import os
import pwd
import shutil
from dataclasses import dataclass

from forkwise.files.confinement import Finding, confinement
from forkwise.files.state import site
from forkwise.files.views import catalogue
from forkwise.files.views.mountpoint import holding, mounts
from forkwise.files.views.protocol import Site, View

__all__ = ["Finding", "Report", "examine"]


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
    place = site(path)
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
