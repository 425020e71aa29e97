"""A full disk, and directories that cannot be written: attempts fail, and existing files stay as they are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkwise import BestOfN, CommitError, LedgerError, Pattern, Speculate, SpeculationOutcome, Workspace
from forkwise.files.store import trash
from tests.leftovers import check_ledger
from tests.need import need

pytestmark = pytest.mark.crash


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A workspace with its state on a disk of 8 MB."""
    need(os.geteuid() == 0, "only root can mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], check=True)
    monkeypatch.setenv("FORKWISE_STATE", str(disk / "state"))
    (disk / "project").mkdir()
    (disk / "project" / "a.txt").write_text("one\n")
    try:
        made = Workspace(disk / "project", durable=False)
        yield made
        assert made.branches() == []
        check_ledger(made)
    finally:
        trash.wait_until_empty()
        subprocess.run(["umount", str(disk)], check=True)


def fill(path: Path) -> bool:
    with (path / "large").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


def fill_quietly(path: Path) -> bool:
    try:
        return fill(path)
    except OSError:
        return False


def unless_full(pattern: Pattern, workspace: Workspace) -> SpeculationOutcome | None:
    """Return the outcome; None if a LedgerError says that the disk was too full to record it."""
    try:
        return pattern(workspace)
    except LedgerError as error:
        if "full" in str(error) or "disk I/O error" in str(error):
            return None
        raise


def good(path: Path) -> bool:
    (path / "good").write_text("good")
    return True


@pytest.mark.parametrize("bad", [fill, fill_quietly, ["sh", "-c", "cat /dev/zero > large"], ["cat", "/dev/zero"]])
@pytest.mark.parametrize("isolate_processes", [True, False])
def test_one_that_fills_the_disk(bad: Any, isolate_processes: bool, small: Workspace) -> None:
    """The failure is either recorded or raised; the workspace is intact, and usable at once."""
    outcome = unless_full(Speculate([bad], isolate_processes=isolate_processes, timeout=5), small)
    assert outcome is None or (not outcome.committed and outcome.all_results[0].reason)
    trash.wait_until_empty()
    assert [p.name for p in small.path.iterdir()] == ["a.txt"]
    assert small.branches() == []
    check_ledger(small)
    assert Speculate([good])(small).committed
    assert (small.path / "good").read_text() == "good"


def test_the_others_of_one_that_fills_the_disk(small: Workspace) -> None:
    """An attempt that finds space wins; otherwise all fail or the ledger raises, and nothing is left behind."""
    outcome = unless_full(BestOfN([fill, good, good]), small)
    assert (outcome is not None and outcome.committed) == (small.path / "good").exists()
    assert not (small.path / "large").exists()


def test_a_workspace_that_cannot_be_written(workspace: Workspace) -> None:
    need(os.geteuid() == 0, "only root can mount")
    subprocess.run(["mount", "--bind", "-o", "ro", str(workspace.path), str(workspace.path)], check=True)
    try:
        with pytest.raises(CommitError, match="Read-only file system"):
            Speculate([good])(workspace)
        assert not (workspace.path / "good").exists()
    finally:
        subprocess.run(["umount", str(workspace.path)], check=True)
    [branch] = workspace.branches()
    assert (branch.path / "good").read_text() == "good"
    branch.commit()
    assert (workspace.path / "good").read_text() == "good"
