"""The ground a run stands on: one temporary directory with every tree, image and mount in it, gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

from bench import tree
from forkwise import Workspace
from forkwise.files.store import trash
from forkwise.linux.mountinfo import mounts
from forkwise.linux.syscalls import MNT_DETACH, umount2

__all__ = ["Ground", "laid_out"]


@dataclass(slots=True)
class Ground:
    """Where a run works, and how thoroughly. ``say`` tells what is being done."""

    path: str
    quick: bool
    say: Callable[[str], None]
    _serial: Iterator[int] = field(default_factory=count)
    _planted: dict[tuple[int, int], str] = field(default_factory=dict)

    def rounds(self, full: int, quick: int) -> int:
        """How often something is measured."""
        return quick if self.quick else full

    @property
    def many(self) -> int:
        """The number of files that the big tree has."""
        return 10_000 if self.quick else 50_000

    def fresh(self, kind: str) -> str:
        """A path that nothing has yet."""
        return f"{self.path}/{kind}-{next(self._serial)}"

    def directory(self, kind: str) -> str:
        """A new, empty directory."""
        path = self.fresh(kind)
        os.mkdir(path)
        return path

    def planted(self, files: int, size: int = 512) -> str:
        """A tree of so many files that nobody changes, planted when first asked for."""
        if (files, size) not in self._planted:
            self.say(f"planting {files:,} files")
            root = self.directory("tree")
            tree.plant(root, files, size)
            self._planted[files, size] = root
        return self._planted[files, size]

    def own(self, files: int, size: int) -> str:
        """A tree of so many files for one contender to change."""
        self.say(f"planting {files:,} files")
        root = self.directory("own")
        tree.plant(root, files, size)
        return root

    def workspace(self, root: str) -> Workspace:
        """A workspace, opened and its view chosen, so that no round pays for that."""
        workspace = Workspace(root, view="overlay", durable=False)
        assert workspace.fstype == "overlay"
        return workspace


@contextmanager
def laid_out(at: str | None, *, quick: bool, say: Callable[[str], None]) -> Iterator[Ground]:
    """A ground for one run; whatever happens, nothing of it stays, mounts first."""
    path = os.path.realpath(tempfile.mkdtemp(prefix="forkwise-bench-", dir=at))
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = f"{path}/state"
    os.environ.pop("FORKWISE_STATE", None)
    try:
        yield Ground(path, quick, say)
    finally:
        say("clearing the ground")
        trash.wait_until_empty()
        for mount in reversed([m for m in mounts() if m.point.startswith(f"{path}/")]):
            with suppress(OSError):
                umount2(mount.point, MNT_DETACH)
        subprocess.run(["rm", "-rf", "--one-file-system", path], check=False)
        shutil.rmtree(path, ignore_errors=True)
        if before is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = before
