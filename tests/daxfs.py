"""DaxFS without its kernel module: the system calls that forkwise makes are recorded, and answered from a table.

A branch is a plain directory with a copy of its parent's files. Like the module it merges a whole chain of branches at
a commit, and never shows committed files at the mount of main.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from forkwise.files.views import daxfs
from forkwise.linux.mountinfo import MountEntry

__all__ = ["RecordedDaxfs"]

_NAMES = {429: "move_mount", 430: "fsopen", 431: "fsconfig", 432: "fsmount"}
_OPTIONS = ("phys=0x100000000", "size=268435456")


class RecordedDaxfs:
    """A DaxFS mounted at ``main``. ``calls`` are the system calls since the last call of ``take``."""

    def __init__(self, main: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main = str(main)
        self.calls: list[tuple[Any, ...]] = []
        self.entries = [MountEntry("/", self.main, "daxfs", "none", ("ro", *_OPTIONS, "branch=/main"))]
        self.committed: list[str] = []
        self._options: dict[str, str] = {}
        for name in ("mount", "umount2", "mounts"):
            monkeypatch.setattr(daxfs, name, getattr(self, f"_{name}"))
        monkeypatch.setattr(daxfs, "_call", self._call)

    def take(self) -> list[tuple[Any, ...]]:
        """Return the calls so far, and forget them."""
        calls, self.calls = self.calls, []
        return calls

    @property
    def branches(self) -> list[str]:
        """The names of the mounted branches."""
        return [self._branch_at(entry.point) for entry in self.entries[1:]]

    def _branch_at(self, point: str) -> str:
        entry = next(e for e in self.entries if e.point == point)
        return next(o for o in entry.options if o.startswith("branch=")).removeprefix("branch=/main").lstrip("/")

    def _mounts(self) -> list[MountEntry]:
        return [MountEntry("/", "/", "ext4", "/dev/root", ("rw",)), *self.entries]

    def _call(self, number: int, *arguments: Any) -> int:
        name = _NAMES[number]
        plain = [a.decode() if isinstance(a, bytes) else a for a in arguments]
        if name == "fsopen":
            self._options = {}
            self.calls.append((name, plain[0]))
        elif name == "fsconfig":
            self.calls.append((name, *plain[1:4]))
            if plain[1] == 1:
                self._options[plain[2]] = plain[3]
        elif name == "move_mount":
            self.calls.append((name, plain[3]))
            self._add(plain[3])
            return 0
        else:
            self.calls.append((name,))
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) if name in ("fsopen", "fsmount") else 0

    def _add(self, point: str) -> None:
        parent = self._options["parent"]
        above = next((e for e in self.entries if self._branch_at(e.point).split("/")[-1] == parent), self.entries[0])
        path = "/".join(filter(None, [self._branch_at(above.point), self._options["branch"]]))
        shutil.copytree(above.point, point, dirs_exist_ok=True)
        self.entries.append(MountEntry("/", point, "daxfs", "none", ("rw", *_OPTIONS, f"branch=/main/{path}")))

    def _mount(self, source: str, target: str, fstype: str | None, flags: int, data: str) -> None:
        self.calls.append(("mount", target, data))
        if data == "commit":
            self.committed.append(self._branch_at(target))

    def _umount2(self, target: str, flags: int) -> None:
        self.calls.append(("umount", target))
        self.entries = [e for e in self.entries if e.point != target]
        for name in os.listdir(target):
            path = f"{target}/{name}"
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
