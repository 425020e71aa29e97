"""Commits and undos on a disk that fails: after so many writes, the disk answers each with an I/O error.

Run as ``python -m tests.power.failing_disk <JSON>`` in a mount namespace of its own. Prints how each try ended: what
was raised, and the state of the workspace after the disk was replaced by one with the same content that works.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

from forkwise import Workspace
from forkwise.errors import BranchingError
from forkwise.files.store import trash
from forkwise.linux.syscalls import MNT_DETACH, umount2
from tests.power.disk import Filesystem, filesystem, mount_disk, recorded

__all__: list[str] = []

_OLD = {"a": "a\n" * 100, "b": "b\n", "c": "c\n"}
_NEW = {"a": "new a\n" * 5000, "b": "b\n", "d": "d\n"}


def _try(directory: Path, base: Filesystem, operation: str, writes: int) -> dict[str, object]:
    disk = directory / "disk"
    disk.mkdir()
    with recorded(directory, [base]) as files:
        mount_disk(files / "disk0", base.fstype, disk)
        root = disk / "workspace"
        root.mkdir()
        for name, text in _OLD.items():
            (root / name).write_text(text)
        branch = Workspace(root, state=disk / "state").branch("b")
        (branch.path / "a").write_text(_NEW["a"])
        (branch.path / "d").write_text(_NEW["d"])
        (branch.path / "c").unlink()
        if operation == "undo":
            branch.commit()
        subprocess.run(["sync", "--file-system", str(disk)], check=True)
        (files / "fail").write_text(str(writes))
        raised, is_own = "", True
        try:
            branch.commit() if operation == "commit" else Workspace(root, state=disk / "state").undo()
        except Exception as error:  # noqa: BLE001 - which one is checked
            raised, is_own = "".join(traceback.format_exception_only(error)).strip(), isinstance(error, BranchingError)
        trash.wait_until_empty()
        for mounted in (f"{branch.home}/view", str(disk)):
            try:
                umount2(mounted, MNT_DETACH)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOENT, errno.EIO):
                    raise
        (files / "fail").write_text("-1")
    image, again = directory / "backing0", directory / "again"
    again.mkdir()
    mount_disk(image, base.fstype, again)
    try:
        workspace = Workspace(again / "workspace", state=again / "state")
        found = {path.name: path.read_text() for path in workspace.path.iterdir()}
        is_usable = _is_usable(workspace)
    finally:
        umount2(str(again), MNT_DETACH)
    states = {"before": _OLD, "after": _NEW} if operation == "commit" else {"before": _NEW, "after": _OLD}
    state = next((name for name, content in states.items() if found == content), f"mixed: {sorted(found)}")
    return {"writes": writes, "raised": raised, "is_own": is_own, "state": state, "is_usable": is_usable}


def _is_usable(workspace: Workspace) -> bool:
    for branch in workspace.branches():
        branch.abort()
    with workspace.branch("next") as branch:
        (branch.path / "next").write_text("next")
    workspace.undo()
    return not (workspace.path / "next").exists()


def _main() -> None:
    task = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=task["directory"], ignore_cleanup_errors=True) as top:
        base = filesystem(task["fstype"], Path(top))
        for number in range(task["start"], task["stop"], task["step"]):
            directory = Path(top, f"{number}")
            directory.mkdir()
            print(json.dumps(_try(directory, base, task["operation"], number)), flush=True)


if __name__ == "__main__":
    _main()
