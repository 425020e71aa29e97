"""A branch made, and its first file read through ``.path``."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack
from itertools import count

from bench import bare, tree
from bench.figure import Figure
from bench.ground import Ground
from bench.line import Goal, Line
from bench.peers import branchfs, btrfs, fuse, git
from bench.rounds import Contender, play, timed
from forkwise.files.store import trash
from forkwise.files.views.branchfs import BranchFS
from forkwise.linux.syscalls import MNT_DETACH, umount2

__all__ = ["measure_branch"]

_FIRST = tree.name(7)
_FEW = 1_000


def measure_branch(ground: Ground) -> list[Line]:
    """In a big tree and in a small one, ours and the floor of both taking turns; then the peers in the big one."""
    sizes = (ground.many, _FEW)
    contenders: dict[str, Contender] = {}
    with ExitStack() as cleanup:
        for size in sizes:
            root = ground.planted(size)
            contenders[f"ours {size}"] = _ours(ground, root, cleanup)
            contenders[f"floor {size}"] = _floor(ground, root, cleanup)
        ground.say("branches made and read")
        figures = play(contenders, ground.rounds(100, 30), warm=5)
    big, small = (
        Line(f"branch made, first file read; {size:,} files", figures[f"ours {size}"], figures[f"floor {size}"])
        for size in sizes
    )
    big.below_floor(1.5)
    big.peers = _peers(ground)
    for peer in ("git worktree add", "cp -a"):
        big.faster_than(peer, 500 * ground.many / 50_000)  # both cost what the tree holds
    ratio = small.ours.median / big.ours.median
    small.goals.append(Goal(f"≤ 1.2 × that of {ground.many:,}", max(ratio, 1 / ratio), 1.2))
    return [big, small]


def _ours(ground: Ground, root: str, cleanup: ExitStack) -> Contender:
    workspace = ground.workspace(root)
    numbers = count()
    cleanup.callback(trash.wait_until_empty)

    def turn() -> float:
        name = f"branch-{next(numbers)}"
        begun = time.perf_counter()
        branch = workspace.branch(name)
        bare.read(f"{branch.path}/{_FIRST}")
        taken = time.perf_counter() - begun
        cleanup.callback(branch.abort)  # after all measurements: deleting now would slow down the next one
        return taken

    return turn


def _floor(ground: Ground, root: str, cleanup: ExitStack) -> Contender:
    def turn() -> float:
        home = ground.directory("floor")
        begun = time.perf_counter()
        view = bare.make(home, root)
        bare.read(f"{view}/{_FIRST}")
        taken = time.perf_counter() - begun
        cleanup.callback(umount2, view, MNT_DETACH)
        return taken

    return turn


def _peers(ground: Ground) -> dict[str, Figure | None]:
    root = ground.planted(ground.many)
    copies: dict[str, Contender] = {"cp -a": lambda: _copy(root, ground.fresh("copy"))}
    contenders: dict[str, Contender] = {}
    figures: dict[str, Figure | None] = dict.fromkeys(
        ("git worktree add", "cp -a", "btrfs snapshot", "fuse-overlayfs", "BranchFS")
    )
    with ExitStack() as cleanup:
        if git.is_installed():
            ground.say(f"a git repository of {ground.many:,} files")
            repository = git.Repository(ground.fresh("repository"), ground.many, 512, checkout=False)
            copies["git worktree add"] = lambda: _add(repository, ground.fresh("worktree"))
        if fuse.is_installed():
            contenders["fuse-overlayfs"] = lambda: _serve(ground, root)
        if btrfs.is_installed():
            ground.say(f"a btrfs with {ground.many:,} files")
            where = cleanup.enter_context(btrfs.mounted_image(ground.fresh("image"), ground.fresh("btrfs")))
            btrfs.subvolume(f"{where}/tree", root)
            numbers = count()
            contenders["btrfs snapshot"] = lambda: _snapshot(where, next(numbers))
        if branchfs.is_installed():
            filesystem = cleanup.enter_context(branchfs.mounted(root, ground.directory("branchfs")))
            contenders["BranchFS"] = lambda: _fork(filesystem, ground.fresh("b"))
        ground.say("the peers' branches")
        figures.update(play(contenders, ground.rounds(7, 3)))
        figures.update(play(copies, ground.rounds(2, 2), warm=0))  # all of them have to be deleted afterwards
    return figures


def _copy(root: str, copy: str) -> float:
    def action() -> None:
        subprocess.run(["cp", "-a", root, copy], check=True)
        bare.read(f"{copy}/{_FIRST}")

    return timed(action)


def _add(repository: git.Repository, worktree: str) -> float:
    def action() -> None:
        repository.add(worktree, os.path.basename(worktree))
        bare.read(f"{worktree}/{_FIRST}")

    return timed(action)


def _serve(ground: Ground, root: str) -> float:
    home = ground.directory("fuse")
    taken = timed(lambda: bare.read(f"{fuse.show(home, root)}/{_FIRST}"))
    fuse.take_down(home)
    return taken


def _snapshot(where: str, number: int) -> float:
    def action() -> None:
        btrfs.snapshot(f"{where}/tree", f"{where}/snapshot-{number}")
        bare.read(f"{where}/snapshot-{number}/{_FIRST}")

    return timed(action)


def _fork(filesystem: BranchFS, name: str) -> float:
    made: list[str] = []

    def action() -> None:
        made.append(filesystem.create(os.path.basename(name)))
        bare.read(f"{filesystem.path(made[0])}/{_FIRST}")

    taken = timed(action)
    filesystem.abort(made[0])
    return taken
