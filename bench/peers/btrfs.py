"""btrfs snapshots, the counterpart of branches."""

from __future__ import annotations

from bench.peers.image import is_supported, run_program

__all__ = ["is_installed", "snapshot", "subvolume"]


def is_installed() -> bool:
    """Return whether its tools are installed and the kernel supports it."""
    return is_supported("btrfs", "btrfs")


def subvolume(path: str, source: str) -> None:
    """Create a subvolume with a copy of the tree ``source``."""
    run_program("btrfs", "subvolume", "create", path)
    run_program("cp", "-a", f"{source}/.", path)
    run_program("btrfs", "filesystem", "sync", path)


def snapshot(source: str, path: str) -> None:
    """Take a snapshot, the counterpart of a branch."""
    run_program("btrfs", "subvolume", "snapshot", source, path)
