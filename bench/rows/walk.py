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
    """All warm: everyone walks once for nothing first."""
    root = ground.planted(ground.many)
    branch = ground.workspace(root).branch("walk")
    slow: dict[str, Contender] = {}
    with ExitStack() as cleanup:
        cleanup.callback(branch.abort)
        inside = str(branch.path)
        ground.say("walks")
        figures = play({"ours": lambda: _walk(inside), "outside": lambda: _walk(root)}, ground.rounds(9, 5), warm=2)
        if fuse.is_installed():
            served = cleanup.enter_context(fuse.mounted(ground.directory("fuse"), root))
            slow["fuse-overlayfs"] = lambda: _walk(served)
        if branchfs.is_installed():
            filesystem = cleanup.enter_context(branchfs.mounted(root, ground.directory("branchfs")))
            seen = filesystem.path(filesystem.create("walk"))
            slow["BranchFS"] = lambda: _walk(seen)
        figures |= play(slow, ground.rounds(3, 2))
    line = Line(f"walk + stat of {ground.many:,} files inside a branch", figures["ours"], figures["outside"])
    line.peers = {peer: figures.get(peer) for peer in ("fuse-overlayfs", "BranchFS")}
    line.below_floor(1.6)
    return [line]


def _walk(root: str) -> float:
    return timed(lambda: tree.walk(root))
