"""A branch's changes made over an unpacked snapshot, packed, and applied to a branch of the original workspace."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from forkwise import (
    Branch,
    BranchError,
    ConflictError,
    ExecutableConfigError,
    ObjectStore,
    PackedDelta,
    Snapshot,
    SnapshotCache,
    StoreError,
    Workspace,
    collect_garbage,
)
from tests.files.snapshot import snapshot as see


@pytest.fixture
def remote(workspace: Workspace, store: ObjectStore, tmp_path: Path) -> Iterator[Branch]:
    """Return a branch over the workspace's snapshot, as on another machine."""
    with SnapshotCache(tmp_path / "cache", max_bytes=1 << 30).unpack(Snapshot.create(workspace, store), store) as found:
        branch = Workspace(found.path, state=tmp_path / "node").branch("attempt")
        yield branch
        branch.abort()


def change(root: Path) -> None:
    (root / "src" / "main.py").write_text("print('changed')\n")
    (root / "new").mkdir(mode=0o750)
    (root / "new" / "large").write_bytes(Random(2).randbytes(3 << 20))
    (root / "new" / "to").symlink_to("../run.sh")
    (root / "run.sh").unlink()
    (root / "link").unlink()
    (root / "link").mkdir()
    (root / "link" / "inside").write_text("was a link")
    shutil.rmtree(root / "src" / "deep")
    (root / "src" / "deep").write_text("was a directory")
    (root / "outside").unlink()
    (root / "outside").write_text("was a link")
    (root / "large").chmod(0o600)


def test_the_changes_arrive_and_are_committed(workspace: Workspace, store: ObjectStore, remote: Branch) -> None:
    change(remote.path)
    packed = PackedDelta.create(remote, store)
    assert PackedDelta.load(store, packed.id[:10]) == packed
    local = workspace.branch("arrived")
    assert packed.apply(local, store) == ()
    theirs, ours = remote.delta(ignore=()), local.delta(ignore=())
    assert [(c.path, c.kind, c.type, c.mode) for c in ours] == [(c.path, c.kind, c.type, c.mode) for c in theirs]
    assert see(local.path, times=False) == see(remote.path, times=False)
    local.commit()
    assert (workspace.path / "src" / "main.py").read_text() == "print('changed')\n"
    workspace.undo()
    assert (workspace.path / "run.sh").exists()


def test_what_is_stored_is_what_changed(store: ObjectStore, remote: Branch) -> None:
    (remote.path / "src" / "main.py").write_bytes(Random(2).randbytes(20_000))
    assert PackedDelta.create(remote, store).stored < 24_000


@pytest.mark.parametrize("way", ["refuse", "ours", "theirs"])
def test_an_edit_made_meanwhile_is_a_conflict(
    workspace: Workspace, store: ObjectStore, remote: Branch, way: str
) -> None:
    (remote.path / "src" / "main.py").write_text("attempt\n")
    (remote.path / "run.sh").unlink()
    (remote.path / "added").write_text("attempt\n")
    (remote.path / "plain").write_text("attempt\n")
    packed = PackedDelta.create(remote, store)
    (workspace.path / "src" / "main.py").write_text("user\n")
    (workspace.path / "run.sh").write_text("user\n")
    (workspace.path / "added").write_text("user\n")
    local = workspace.branch("arrived")
    if way == "refuse":
        with pytest.raises(ConflictError) as caught:
            packed.apply(local, store)
        conflicts = caught.value.conflicts
        assert not local.delta(ignore=())
    else:
        conflicts = packed.apply(local, store, on_conflict=way)  # type: ignore[arg-type]
        assert (local.path / "src" / "main.py").read_text() == ("attempt\n" if way == "ours" else "user\n")
        assert (local.path / "run.sh").exists() == (way == "theirs")
        assert (local.path / "plain").read_text() == "attempt\n"
    assert sorted(one.path for one in conflicts) == ["added", "run.sh", "src/main.py"]
    local.abort()


def test_a_link_in_the_workspace_leads_nowhere(
    workspace: Workspace, store: ObjectStore, remote: Branch, tmp_path: Path
) -> None:
    (remote.path / "src" / "new.py").write_text("attempt\n")
    packed = PackedDelta.create(remote, store)
    (tmp_path / "elsewhere").mkdir()
    (workspace.path / "src").rename(workspace.path / "moved")
    (workspace.path / "src").symlink_to(tmp_path / "elsewhere")
    local = workspace.branch("arrived")
    with pytest.raises((ConflictError, StoreError)):
        packed.apply(local, store)
    assert not os.listdir(tmp_path / "elsewhere")
    local.abort()


def test_hooks_are_not_committed_unasked(workspace: Workspace, store: ObjectStore, remote: Branch) -> None:
    (remote.path / ".vscode").mkdir()
    (remote.path / ".vscode" / "tasks.json").write_text("{}")
    packed = PackedDelta.create(remote, store)
    local = workspace.branch("arrived")
    packed.apply(local, store)
    with pytest.raises(ExecutableConfigError):
        local.commit()
    local.abort()


def test_a_branch_with_changes_is_refused(workspace: Workspace, store: ObjectStore, remote: Branch) -> None:
    packed = PackedDelta.create(remote, store)
    with workspace.branch("arrived", on_success=None) as local:
        (local.path / "mine").touch()
        with pytest.raises(BranchError, match="create another branch"):
            packed.apply(local, store)
        local.abort()


def test_garbage_collection_keeps_it_until_it_is_deleted(store: ObjectStore, remote: Branch) -> None:
    change(remote.path)
    packed = PackedDelta.create(remote, store)
    assert collect_garbage(store).removed == 0
    packed.delete(store)
    assert collect_garbage(store).removed >= 3
