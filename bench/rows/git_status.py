"""``git status`` in a branch of a repository, and in the repository itself."""

from __future__ import annotations

from contextlib import ExitStack

from bench.line import Line
from bench.peers import branchfs, fuse, git
from bench.rounds import Contender, play, timed
from bench.scratch import Scratch

__all__ = ["measure_git_status"]

_FILES = 5_000


def measure_git_status(scratch: Scratch) -> list[Line]:
    """Measure with an index that git has refreshed; return no line if git is not installed."""
    if not git.is_installed():
        return []
    scratch.report(f"creating a git repository of {_FILES:,} files")
    root = git.Repository(scratch.new_path("repository"), _FILES, 512, checkout=True).path
    branch = scratch.workspace(root).branch("status")
    with ExitStack() as cleanup:
        cleanup.callback(branch.abort)
        inside = str(branch.path)
        contenders: dict[str, Contender] = {"ours": lambda: _status(inside), "outside": lambda: _status(root)}
        if fuse.is_installed():
            served = cleanup.enter_context(fuse.mounted(scratch.make_directory("fuse"), root))
            contenders["fuse-overlayfs"] = lambda: _status(served)
        if branchfs.is_installed():
            filesystem = cleanup.enter_context(branchfs.mounted(root, scratch.make_directory("branchfs")))
            seen = filesystem.path(filesystem.create("status"))
            contenders["BranchFS"] = lambda: _status(seen)
        scratch.report("running git status")
        figures = play(contenders, scratch.rounds(21, 9), warm=3)
    line = Line(f"git status inside a branch, {_FILES:,} files", figures["ours"], figures["outside"])
    line.peers = {peer: figures.get(peer) for peer in ("fuse-overlayfs", "BranchFS")}
    line.below_floor(2.5)
    return [line]


def _status(root: str) -> float:
    return timed(lambda: git.status(root))
