"""Creation of a branch, and the first read of a file through its ``path``."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack
from itertools import count

from bench import bare, tree
from bench.figure import Figure
from bench.line import Goal, Line
from bench.peers import branchfs, btrfs, fuse, git
from bench.peers.image import mounted_image
from bench.rounds import Contender, play, timed
from bench.scratch import Scratch
from forkwise.files.store import trash
from forkwise.files.views.branchfs import BranchFS
from forkwise.linux.syscalls import MNT_DETACH, umount2

__all__ = ["measure_branch"]

_FIRST = tree.name(7)
_FEW = 1_000


def measure_branch(scratch: Scratch) -> list[Line]:
    """Measure forkwise and the floor in turn, in a big and in a small tree; then the peers in the big one."""
    sizes = (scratch.many, _FEW)
    contenders: dict[str, Contender] = {}
    with ExitStack() as cleanup:
        for size in sizes:
            root = scratch.shared_tree(size)
            contenders[f"ours {size}"] = _ours(scratch, root, cleanup)
            contenders[f"floor {size}"] = _floor(scratch, root, cleanup)
        scratch.report("creating branches")
        figures = play(contenders, scratch.rounds(100, 30), warm=5)
    big, small = (
        Line(f"branch created, first file read; {size:,} files", figures[f"ours {size}"], figures[f"floor {size}"])
        for size in sizes
    )
    big.below_floor(1.5)
    big.peers = _peers(scratch)
    for peer in ("git worktree add", "cp -a"):
        big.faster_than(peer, 500 * scratch.many / 50_000)  # the cost of both grows with the tree
    ratio = small.ours.median / big.ours.median
    small.goals.append(Goal(f"≤ 1.2 × that of {scratch.many:,}", max(ratio, 1 / ratio), 1.2))
    return [big, small]


def _ours(scratch: Scratch, root: str, cleanup: ExitStack) -> Contender:
    workspace = scratch.workspace(root)
    numbers = count()
    cleanup.callback(trash.wait_until_empty)

    def turn() -> float:
        name = f"branch-{next(numbers)}"
        started = time.perf_counter()
        branch = workspace.branch(name)
        bare.read(f"{branch.path}/{_FIRST}")
        taken = time.perf_counter() - started
        cleanup.callback(branch.abort)  # after all measurements: deleting now would slow down the next one
        return taken

    return turn


def _floor(scratch: Scratch, root: str, cleanup: ExitStack) -> Contender:
    def turn() -> float:
        directory = scratch.make_directory("floor")
        started = time.perf_counter()
        view = bare.make(directory, root)
        bare.read(f"{view}/{_FIRST}")
        taken = time.perf_counter() - started
        cleanup.callback(umount2, view, MNT_DETACH)
        return taken

    return turn


def _peers(scratch: Scratch) -> dict[str, Figure | None]:
    root = scratch.shared_tree(scratch.many)
    copies: dict[str, Contender] = {"cp -a": lambda: _copy(root, scratch.new_path("copy"))}
    contenders: dict[str, Contender] = {}
    figures: dict[str, Figure | None] = dict.fromkeys(
        ("git worktree add", "cp -a", "btrfs snapshot", "fuse-overlayfs", "BranchFS")
    )
    with ExitStack() as cleanup:
        if git.is_installed():
            scratch.report(f"creating a git repository of {scratch.many:,} files")
            repository = git.Repository(scratch.new_path("repository"), scratch.many, 512, checkout=False)
            copies["git worktree add"] = lambda: _add(repository, scratch.new_path("worktree"))
        if fuse.is_installed():
            contenders["fuse-overlayfs"] = lambda: _serve(scratch, root)
        if btrfs.is_installed():
            scratch.report(f"creating a btrfs with {scratch.many:,} files")
            mount = cleanup.enter_context(mounted_image("btrfs", scratch.new_path("image"), scratch.new_path("btrfs")))
            btrfs.subvolume(f"{mount}/tree", root)
            numbers = count()
            contenders["btrfs snapshot"] = lambda: _snapshot(mount, next(numbers))
        if branchfs.is_installed():
            filesystem = cleanup.enter_context(branchfs.mounted(root, scratch.make_directory("branchfs")))
            contenders["BranchFS"] = lambda: _fork(filesystem, scratch.new_path("b"))
        scratch.report("creating branches of the peers")
        figures.update(play(contenders, scratch.rounds(7, 3)))
        figures.update(play(copies, scratch.rounds(2, 2), warm=0))  # few, because all copies must be deleted
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


def _serve(scratch: Scratch, root: str) -> float:
    directory = scratch.make_directory("fuse")
    taken = timed(lambda: bare.read(f"{fuse.mount(directory, root)}/{_FIRST}"))
    fuse.unmount(directory)
    return taken


def _snapshot(mount: str, number: int) -> float:
    def action() -> None:
        btrfs.snapshot(f"{mount}/tree", f"{mount}/snapshot-{number}")
        bare.read(f"{mount}/snapshot-{number}/{_FIRST}")

    return timed(action)


def _fork(filesystem: BranchFS, name: str) -> float:
    made: list[str] = []

    def action() -> None:
        made.append(filesystem.create(os.path.basename(name)))
        bare.read(f"{filesystem.path(made[0])}/{_FIRST}")

    taken = timed(action)
    filesystem.abort(made[0])
    return taken
