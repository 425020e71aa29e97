"""Every directory read and every file looked at, inside a branch and outside."""

from __future__ import annotations

from contextlib import ExitStack

from bench import tree
from bench.ground import Ground
from bench.line import Line
from bench.peers import branchfs, fuse
from bench.rounds import Contender, play, timed

__all__ = ["measure_walk"]


def measure_walk(ground: Ground) -> list[Line]:
    """All warm: everyone walks twice for nothing first."""
    root = ground.planted(ground.many)
    branch = ground.workspace(root).branch("walk")
    with ExitStack() as cleanup:
        cleanup.callback(branch.abort)
        inside = str(branch.path)
        contenders: dict[str, Contender] = {"ours": lambda: _walk(inside), "outside": lambda: _walk(root)}
        if fuse.is_installed():
            served = cleanup.enter_context(fuse.mounted(ground.directory("fuse"), root))
            contenders["fuse-overlayfs"] = lambda: _walk(served)
        if branchfs.is_installed():
            filesystem = cleanup.enter_context(branchfs.mounted(root, ground.directory("branchfs")))
            seen = filesystem.path(filesystem.create("walk"))
            contenders["BranchFS"] = lambda: _walk(seen)
        ground.say("walks")
        figures = play(contenders, ground.rounds(9, 5), warm=2)
    line = Line(f"walk + stat of {ground.many:,} files inside a branch", figures["ours"], figures["outside"])
    line.peers = {peer: figures.get(peer) for peer in ("fuse-overlayfs", "BranchFS")}
    line.below_floor(1.6)
    return [line]


def _walk(root: str) -> float:
    return timed(lambda: tree.walk(root))
