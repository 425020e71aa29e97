"""Combination: the changes of several sibling branches together, as a new branch of what they were made from."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from forkwise.errors import BranchError, ForkwiseWarning
from forkwise.files.agreement import Clash
from forkwise.files.beneath import open_root
from forkwise.files.birth import Birth
from forkwise.files.branch import Branch
from forkwise.files.combining import Combining, Side
from forkwise.files.conflict import Conflict
from forkwise.files.layer import Scan
from forkwise.files.marks import mark_origins
from forkwise.files.parent import Parent
from forkwise.files.siblings import scan_sibling, siblings
from forkwise.files.state import Lock, locked

__all__ = ["Combination", "combine"]


@dataclass(frozen=True, slots=True)
class Combination:
    """A branch that holds the changes of several: the paths that were ``merged`` from more than one of them, for all
    others that differ from the parent the branch each was ``taken`` from, and what did not go together."""

    branch: Branch
    merged: tuple[str, ...]
    taken: Mapping[str, str]
    conflicts: tuple[Clash, ...]

    @property
    def clean(self) -> bool:
        """Whether every change of every branch found its place, or was decided."""
        return not self.conflicts


def combine(
    parent: Parent, branches: Sequence[Branch], name: str, *, prefer: Mapping[str, str] | None = None
) -> Combination:
    """Make a branch ``name`` of ``parent`` that holds what several of its branches changed. Those stay as they are.

    Changes of different paths go together, and so do changes of different lines, of a file's mode and its content, and
    changes that are the same. Where they do not, ``prefer`` decides, by path, whose version it is to be; a directory's
    own, and whether there is one: what is inside has paths of its own. Undecided, the path is as the first of the
    branches involved has it, it is among the ``conflicts``, and a commit of the new branch refuses until the file is
    changed or ``on_conflict`` decides.

    Raises BranchStaleError for a branch that has to be rebased first, ConflictError for one that clashes with what
    somebody else changed in the parent. Whatever is raised, no new branch is left.

    >>> import tempfile, pathlib
    >>> from forkwise import Workspace
    >>> project = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (project / "a.txt").write_text("one\\ntwo\\nthree\\n")
    >>> ws = Workspace(project)
    >>> first, second = ws.branch("first"), ws.branch("second")
    >>> _ = (first.path / "a.txt").write_text("1\\ntwo\\nthree\\n")
    >>> _ = (second.path / "a.txt").write_text("one\\ntwo\\n3\\n")
    >>> both = combine(ws, [first, second], "both")
    >>> both.clean, both.merged, (both.branch.path / "a.txt").read_text()
    (True, ('a.txt',), '1\\ntwo\\n3\\n')
    >>> for branch in ws.branches(): branch.abort()
    """
    several = siblings(parent, branches)
    decided = _decided(prefer or {}, several)
    branch = parent.branch(name, on_success=None, on_error=None)
    try:
        view = str(branch.path)
        with locked(parent.place.state) as lock:
            scans = [(b, scan_sibling(b)) for b in several.values()]
            _begin(branch, [scan for _, scan in scans])
            combining = _combine(view, scans, decided)
            _finish(branch, combining, lock)
    except BaseException as error:
        branch.abort()
        if isinstance(error, OSError):
            raise BranchError(f"{branch.branch_path} could not be combined: {error}", branch=name) from error
        raise
    if skipped := sorted({path for _, scan in scans for path in scan.specials}):
        warnings.warn(
            f"{branch.branch_path}: FIFOs, sockets and devices are not combined: {', '.join(skipped)}",
            ForkwiseWarning,
            stacklevel=2,
        )
    return Combination(
        branch, tuple(sorted(combining.merged)), dict(sorted(combining.taken.items())), tuple(combining.clashes)
    )


def _decided(prefer: Mapping[str, str], branches: Mapping[str, Branch]) -> dict[str, str]:
    """The same with paths as they are met; the parent's own directory is the empty one."""
    decided = {os.path.normpath(path): name for path, name in prefer.items()}
    if outside := [path for path in decided if path.startswith("/") or path.split("/")[0] == ".."]:
        raise ValueError(f"prefer takes paths inside the parent, not {', '.join(outside)}")
    if unknown := sorted(set(decided.values()) - set(branches)):
        raise ValueError(f"prefer names {', '.join(unknown)}, but what is combined is {', '.join(branches)}")
    return {"" if path == "." else path: name for path, name in decided.items()}


def _combine(view: str, scans: Sequence[tuple[Branch, Scan]], prefer: Mapping[str, str]) -> Combining:
    with ExitStack() as held:

        def root(path: str) -> int:
            fd = open_root(path)
            held.callback(os.close, fd)
            return fd

        sides = {b.name: Side(b.name, root(b.target), scan) for b, scan in scans}
        combining = Combining(root(view), list(sides.values()), {p: sides[name] for p, name in prefer.items()})
        combining.run()
        return combining


def _begin(branch: Branch, scans: Sequence[Scan]) -> None:
    """Have a commit refuse all that is going to be written, in case this process is killed before all of it is."""
    paths = {e.path for scan in scans for e in scan.entries} | {t.path or "." for scan in scans for t in scan.touched}
    birth = Birth.load(branch.home)
    birth.unmerged = [Conflict(path, "unmerged", "the combination was interrupted") for path in sorted(paths)]
    birth.rebased = sys.maxsize
    birth.save(branch.home)


def _finish(branch: Branch, combining: Combining, lock: Lock) -> None:
    """Have a commit of the new branch know as much as one of the others would."""
    if combining.replaced and not branch.view_kind.whole:
        # A file that was put in the place of the parent's began as that: should somebody delete it there, it is seen.
        branch.view_kind.hide(branch.home)
        mark_origins(branch.target, combining.replaced)
    birth = Birth.load(branch.home)
    birth.unmerged = [Conflict(p, "unmerged", c.detail) for c in combining.clashes for p in combining.paths_of(c)]
    birth.rebased = lock.now()
    birth.save(branch.home)
