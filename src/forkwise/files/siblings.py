"""Siblings: branches of one parent whose changes are taken together, all of them or some, and what forbids that."""

from __future__ import annotations

from collections.abc import Sequence

from forkwise.errors import BranchError, BranchStaleError, ConflictError
from forkwise.files.birth import Birth
from forkwise.files.branch import Branch
from forkwise.files.committing import check_trust
from forkwise.files.layer import Scan
from forkwise.files.mounted import MountedWorkspace
from forkwise.files.parent import Parent
from forkwise.files.plan import find_conflicts, unresolved
from forkwise.files.versions import Versions

__all__ = ["scan_sibling", "siblings"]


def siblings(parent: Parent, branches: Sequence[Branch]) -> dict[str, Branch]:
    """The branches by their names, if what they changed can be combined; BranchError where not."""
    if not branches:
        raise ValueError("there is no branch to combine")
    if isinstance(parent.workspace, MountedWorkspace):
        raise BranchError(f"{parent.workspace.fstype} cannot tell what a branch changed, so nothing can be combined")
    for branch in branches:
        if branch.parent.place.path != parent.place.path:
            raise BranchError(
                f"{branch.branch_path} is not a branch of {parent.branch_path}: only siblings can be combined",
                branch=branch.name,
            )
    return {branch.name: branch for branch in branches}


def scan_sibling(branch: Branch) -> Scan:
    """What a branch changed, if that can be taken as it is. Called under the lock.

    Raises BranchStaleError for one that has to be rebased first, ConflictError for one that clashes with what somebody
    else changed in the parent.
    """
    branch.settle()
    birth = Birth.load(branch.home)
    if birth.generation != branch.parent.place.head:
        raise BranchStaleError(
            f"{branch.branch_path} is stale and cannot be combined: {branch.parent.branch_path} was committed to since "
            "it was forked; rebase() brings it onto what is there now",
            branch=branch.name,
        )
    scan = branch.scan()
    check_trust(branch, birth, scan)
    found = unresolved(birth, scan)
    if not branch.commits_into_layer:
        found += find_conflicts(scan, birth.forked)
    if found:
        entries = {e.path: e for e in scan.entries}
        with Versions(branch.target, branch.parent.lowers) as versions:
            found = [c for c in found if c.path not in entries or not versions.is_same(entries[c.path])]
    if found:
        shown = "; ".join(str(c) for c in found[:5]) + ("; …" if len(found) > 5 else "")
        raise ConflictError(
            f"{branch.branch_path} cannot be combined: {shown}. rebase() merges what can be merged; "
            "change in the branch what is left, then combine it",
            branch=branch.name,
            conflicts=found,
        )
    return scan
