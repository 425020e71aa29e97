"""Power cuts on ext4, XFS and btrfs, for every view, and for state on another filesystem than the workspace.

After each cut the workspace opens and is exactly in a state before or after an operation; acknowledged commits and kept
branches are there, no file is left in it, and branches can be listed, collected, dropped and committed. Some cuts are
followed by a second one, while the workspace is opened again. ``make test`` cuts a few times; ``make crash`` cuts the
power 7,140 times.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.counts import IS_FULL, rounds
from tests.need import need
from tests.power.scenes import SCENES

pytestmark = pytest.mark.crash

#: Filesystem, view, and the filesystem of the state if that is another.
PLACES = (
    ("ext4", "overlay", None),
    ("xfs", "overlay", None),
    ("btrfs", "overlay", None),
    ("btrfs", "btrfs", None),
    ("xfs", "reflink", None),
    ("btrfs", "reflink", None),
    ("ext4", "copy", None),
    ("xfs", "copy", None),
    ("btrfs", "copy", None),
    ("ext4", "fuse", None),
    ("xfs", "fuse", None),
    ("btrfs", "fuse", None),
    ("ext4", "overlay", "xfs"),
    ("xfs", "overlay", "btrfs"),
    ("btrfs", "overlay", "ext4"),
    ("ext4", "copy", "xfs"),
    ("xfs", "copy", "btrfs"),
    ("btrfs", "copy", "ext4"),
    ("ext4", "fuse", "xfs"),
    ("xfs", "fuse", "btrfs"),
    ("btrfs", "fuse", "ext4"),
)

#: Each shows something that the others do not: branches that are not kept, the order of syncs on btrfs, the stage.
SHORT = {
    ("ext4", "overlay", None): ("keep",),
    ("btrfs", "copy", None): ("file-commit", "rebase"),
    ("btrfs", "btrfs", None): ("file-commit",),
    ("xfs", "copy", "btrfs"): ("first-commit",),
}

SEED = 3
IMAGES = rounds(4, 22)
RECOVERIES = rounds(1, 4)


@pytest.mark.parametrize("place", PLACES if IS_FULL else tuple(SHORT), ids=lambda p: "-".join(filter(None, p)))
def test_a_power_cut_leaves_the_state_before_or_after(place: tuple[str, str, str | None], tmp_path: Path) -> None:
    fstype, view, state_fstype = place
    _need_tools(fstype, view, state_fstype)
    scenes = tuple(SCENES) if IS_FULL else SHORT[place]
    found = _run(
        {
            "directory": str(tmp_path),
            "fstype": fstype,
            "state_fstype": state_fstype,
            "view": view,
            "scenes": scenes,
            "images": IMAGES,
            "recoveries": RECOVERIES,
            "seed": SEED,
        }
    )
    assert [result["scene"] for result in found] == list(scenes)
    for result in found:
        assert result["images"] == IMAGES + 3 * RECOVERIES
        failures = "\n".join(f"{f['cut']} after {f['marks']}:\n{f['failure']}" for f in result["failures"])
        assert not result["failures"], f"{result['scene']}: {failures}"


@pytest.mark.parametrize("operation", ["commit", "undo"])
@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
def test_a_failing_disk_is_reported_and_mixes_nothing(fstype: str, operation: str, tmp_path: Path) -> None:
    """From some write on the disk has only I/O errors; then a disk with its content takes its place."""
    _need_tools(fstype, "overlay", None)
    task = {"directory": str(tmp_path), "fstype": fstype, "operation": operation}
    found = _run({**task, "start": 0, "stop": 32, "step": rounds(8, 1)}, "tests.power.failing_disk")
    assert {result["state"] for result in found} == {"before", "after"}, found
    for result in found:
        assert result["is_own"], result
        assert result["is_usable"], result
        assert result["raised"] or result["state"] == "after", f"acknowledged and lost: {result}"
        assert "could not be rolled back either" in result["raised"] or not result["raised"], result


def _need_tools(fstype: str, view: str, state_fstype: str | None) -> None:
    need(os.geteuid() == 0, "mounting a disk needs root")
    need(os.access("/dev/fuse", os.R_OK | os.W_OK), "/dev/fuse is not usable")
    need(os.access("/dev/loop-control", os.R_OK | os.W_OK), "there are no loop devices")
    tools = {"unshare", f"mkfs.{fstype}", f"mkfs.{state_fstype or fstype}"}
    tools |= {"fuse-overlayfs"} if view == "fuse" else {"btrfs"} if view == "btrfs" else set()
    missing = sorted(tool for tool in tools if shutil.which(tool) is None)
    need(not missing, f"not installed: {', '.join(missing)}")


def _run(task: dict[str, Any], program: str = "tests.power") -> list[dict[str, Any]]:
    """Run a program in namespaces that end with it; return its results."""
    # Killed with its parent, and with it everything it started and mounted.
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    done = subprocess.run(
        [*namespaces, sys.executable, "-m", program, json.dumps(task)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
