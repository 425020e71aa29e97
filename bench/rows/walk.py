"""A walk that stats every file, in a branch and in the workspace."""

from __future__ import annotations

from contextlib import ExitStack

from bench import tree
from bench.line import Line
from bench.peers import branchfs, fuse
from bench.rounds import Contender, play, timed
from bench.scratch import Scratch

__all__ = ["measure_walk"]


def measure_walk(scratch: Scratch) -> list[Line]:
    """Measure with warm caches: two rounds are not counted."""
    root = scratch.shared_tree(scratch.many)
    branch = scratch.workspace(root).branch("walk")
    with ExitStack() as cleanup:
        cleanup.callback(branch.abort)
        inside = str(branch.path)
        contenders: dict[str, Contender] = {"ours": lambda: _walk(inside), "outside": lambda: _walk(root)}
        if fuse.is_installed():
            served = cleanup.enter_context(fuse.mounted(scratch.make_directory("fuse"), root))
            contenders["fuse-overlayfs"] = lambda: _walk(served)
        if branchfs.is_installed():
            filesystem = cleanup.enter_context(branchfs.mounted(root, scratch.make_directory("branchfs")))
            seen = filesystem.path(filesystem.create("walk"))
            contenders["BranchFS"] = lambda: _walk(seen)
        scratch.report("walking trees")
        figures = play(contenders, scratch.rounds(9, 5), warm=2)
    line = Line(f"walk + stat of {scratch.many:,} files inside a branch", figures["ours"], figures["outside"])
    line.peers = {peer: figures.get(peer) for peer in ("fuse-overlayfs", "BranchFS")}
    line.below_floor(1.6)
    return [line]


def _walk(root: str) -> float:
    return timed(lambda: tree.walk(root))
