"""Scratch: the temporary directory of a run, with all of its trees, images and mounts."""

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

__all__ = ["Scratch", "open_scratch"]


@dataclass(slots=True)
class Scratch:
    """The directory of a run, and whether the run is quick. ``report`` shows progress to the user."""

    path: str
    quick: bool
    report: Callable[[str], None]
    _serial: Iterator[int] = field(default_factory=count)
    _trees: dict[tuple[int, int], str] = field(default_factory=dict)

    def rounds(self, full: int, quick: int) -> int:
        """Return the number of measurements."""
        return quick if self.quick else full

    @property
    def many(self) -> int:
        """The number of files in the big tree."""
        return 10_000 if self.quick else 50_000

    def new_path(self, kind: str) -> str:
        """Return an unused path."""
        return f"{self.path}/{kind}-{next(self._serial)}"

    def make_directory(self, kind: str) -> str:
        """Create an empty directory."""
        path = self.new_path(kind)
        os.mkdir(path)
        return path

    def shared_tree(self, files: int, size: int = 512) -> str:
        """Return a tree of ``files`` files that no contender changes; create it on the first call."""
        if (files, size) not in self._trees:
            self.report(f"writing {files:,} files")
            root = self.make_directory("tree")
            tree.write(root, files, size)
            self._trees[files, size] = root
        return self._trees[files, size]

    def own_tree(self, files: int, size: int) -> str:
        """Create a tree of ``files`` files for one contender to change."""
        self.report(f"writing {files:,} files")
        root = self.make_directory("own")
        tree.write(root, files, size)
        return root

    def workspace(self, root: str) -> Workspace:
        """Open a workspace with its view already chosen, so that no round measures that."""
        workspace = Workspace(root, view="overlay", durable=False)
        assert workspace.fstype == "overlay"
        return workspace


@contextmanager
def open_scratch(directory: str | None, *, quick: bool, report: Callable[[str], None]) -> Iterator[Scratch]:
    """Create the directory of a run in ``directory``; unmount and delete everything in it afterwards."""
    path = os.path.realpath(tempfile.mkdtemp(prefix="forkwise-bench-", dir=directory))
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = f"{path}/state"
    os.environ.pop("FORKWISE_STATE", None)
    try:
        yield Scratch(path, quick, report)
    finally:
        report("deleting all files")
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
