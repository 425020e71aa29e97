"""Snapshots and garbage collections that are killed with each change of the store: nothing that lives is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from forkwise import ObjectStore, Snapshot, Workspace, collect_garbage, list_snapshots, unpack_snapshot
from tests.counts import rounds
from tests.files.snapshot import snapshot as see

pytestmark = [pytest.mark.crash, pytest.mark.integration]

ROOT = Path(__file__).parents[2]
TWO_HOURS_S = 7200


def run_killed(action: str, store: ObjectStore, workspace: Workspace, number: int) -> bool:
    """Run the action in a process that dies with a change of the store; return whether it did."""
    words = [action, str(store.directory), str(workspace.path), os.path.dirname(workspace.state), str(number)]
    process = subprocess.run(
        [sys.executable, "-m", "tests.snapshot.kill_at_call", *words], cwd=ROOT, stdout=subprocess.PIPE, check=False
    )
    assert process.returncode in (0, -9)
    assert (process.stdout == b"") == (process.returncode == -9)
    return process.returncode != 0


def expire_marks(store: ObjectStore) -> None:
    """Make the marks of killed processes as old as if their time were over."""
    for kind in ("writers", "collectors"):
        for path in Path(store.directory or "", kind).glob("*"):
            before = path.stat().st_mtime - TWO_HOURS_S
            os.utime(path, (before, before))


def test_no_kill_loses_what_a_snapshot_needs(workspace: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    chance = Random(1)
    living = [Snapshot.create(workspace, store)]
    killed = 0
    for turn in range(rounds(4, 60)):
        (workspace.path / f"new-{turn % 7}").write_bytes(chance.randbytes(chance.choice((10, 5000, 300_000))))
        killed += run_killed("create", store, workspace, chance.randint(1, 14))
        expire_marks(store)
        if len(living) > 2:
            living.pop(chance.randrange(len(living))).delete(store)
        killed += run_killed("collect", store, workspace, chance.randint(1, 8))
        expire_marks(store)
        if turn % 2:
            collect_garbage(store)
        living.append(Snapshot.create(workspace, store))
        found = list_snapshots(store)
        assert {snapshot.id for snapshot in living} <= {snapshot.id for snapshot in found}
        assert [problem for snapshot in found for problem in snapshot.verify(store)] == []
    assert killed > turn
    unpack_snapshot(living[-1], store, tmp_path / "out")
    assert see(tmp_path / "out") == see(workspace.path)
    for snapshot in list_snapshots(store):
        snapshot.delete(store)
    expire_marks(store)
    collect_garbage(store)
    assert store.list_objects() == {}
