"""The mirror of a fork on disk: its layout, what is read-only, and that nothing is written outside."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkwise import BranchSpec, BranchStatus, FileChange, ForkCoordinator, ForkMaterializer, Workspace
from forkwise.live.diff.mirror import FORKS_ROOT, directory_of
from forkwise.live.values import FileOperation
from tests.live.worker import worker

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def change(path: str, op: FileOperation = "write") -> FileChange:
    return FileChange(path, op, NOW)


@pytest.fixture
def mirror(tmp_path: Path) -> ForkMaterializer:
    return ForkMaterializer(tmp_path / FORKS_ROOT / "f1", "f1")


def list_files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def test_the_layout(mirror: ForkMaterializer, tmp_path: Path) -> None:
    mirror.snapshot_parent_path("src/app.py", b"old")
    mirror.flush_change("approach_a", change("src/app.py"), b"new")
    root = tmp_path / ".forkwise/forks/f1"
    assert list_files(root) == ["branches/approach_a/src/app.py", "manifest.json", "parent/src/app.py"]
    assert mirror.manifest_path() == root / "manifest.json"
    assert mirror.parent_path("src/app.py") == root / "parent/src/app.py"
    assert mirror.branch_path("approach_a", "src/app.py") == root / "branches/approach_a/src/app.py"
    assert mirror.branch_path("approach_a", "src/app.py").read_bytes() == b"new"


def test_the_layout_is_there_before_any_write(mirror: ForkMaterializer) -> None:
    assert (mirror.root / "parent").is_dir()
    assert (mirror.root / "branches").is_dir()
    assert json.loads(mirror.manifest_path().read_text()) == {"fork_id": "f1", "branches": []}


def test_the_manifest_has_the_status_of_the_branches(mirror: ForkMaterializer) -> None:
    mirror.update_manifest([BranchStatus("id1", "a/b", "failed", 2, NOW, error="boom")])
    assert json.loads(mirror.manifest_path().read_text()) == {
        "fork_id": "f1",
        "branches": [
            {"id": "id1", "label": "a/b", "directory": "a%2Fb", "state": "failed", "current_turn": 2, "error": "boom"}
        ],
    }


def test_mirrored_files_are_read_only_and_still_replaced(mirror: ForkMaterializer) -> None:
    for content in (b"1", b"2"):
        mirror.flush_change("a", change("x"), content)
        mirror.snapshot_parent_path("x", b"old")
    assert mirror.branch_path("a", "x").read_bytes() == b"2"
    for path in (mirror.branch_path("a", "x"), mirror.parent_path("x")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o444


def test_the_parent_is_frozen_at_the_first_touch(mirror: ForkMaterializer) -> None:
    mirror.snapshot_parent_path("/x", b"first")
    mirror.snapshot_parent_path("x", b"second")
    mirror.snapshot_parent_path("new", None)
    mirror.snapshot_parent_path("new", b"later")
    assert mirror.pre_flush_snapshot() == {"/x": b"first", "new": None}
    assert not mirror.parent_path("new").exists()


def test_a_deletion_is_mirrored(mirror: ForkMaterializer) -> None:
    mirror.flush_change("a", change("deep/down/x"), b"1")
    mirror.flush_change("a", change("deep/y"), b"1")
    mirror.flush_delete("a", change("deep/down/x", "delete"))
    mirror.flush_delete("a", change("never/there", "delete"))
    assert list_files(mirror.root / "branches") == ["a/deep/y"]
    assert not (mirror.root / "branches/a/deep/down").exists()


def test_a_file_becomes_a_directory_and_back(mirror: ForkMaterializer) -> None:
    mirror.flush_change("a", change("x"), b"1")
    mirror.flush_change("a", change("x/y"), b"2")
    assert list_files(mirror.root / "branches") == ["a/x/y"]
    mirror.flush_change("a", change("x"), b"3")
    assert list_files(mirror.root / "branches") == ["a/x"]
    mirror.flush_change("a", change("x/y"), b"2")
    mirror.flush_delete("a", change("x", "rmdir"))
    assert list_files(mirror.root / "branches") == []


def test_cleanup_leaves_nothing(mirror: ForkMaterializer, tmp_path: Path) -> None:
    mirror.flush_change("a", change("x"), b"1")
    mirror.cleanup()
    mirror.cleanup()
    assert list(tmp_path.iterdir()) == []


def test_cleanup_leaves_the_mirrors_of_other_forks(mirror: ForkMaterializer, tmp_path: Path) -> None:
    other = ForkMaterializer(tmp_path / FORKS_ROOT / "f2", "f2")
    mirror.cleanup()
    assert other.manifest_path().exists()
    other.cleanup()
    assert (tmp_path / ".forkwise").exists()  # the second fork found it there


def test_artifacts_are_kept_on_request(tmp_path: Path) -> None:
    mirror = ForkMaterializer(tmp_path / "f", "f", keep_artifacts=True)
    mirror.flush_change("a", change("x"), b"1")
    mirror.cleanup()
    assert mirror.branch_path("a", "x").read_bytes() == b"1"


@pytest.mark.parametrize("label", ["../../../outside", "/outside", "..", ".", "a/../../../outside", "", "x\0y", "é ü"])
@pytest.mark.parametrize("path", ["../../../outside", "/../outside", "a/../../../../outside", "outside"])
def test_a_label_with_dots_writes_nothing_outside(
    label: str, path: str, mirror: ForkMaterializer, tmp_path: Path
) -> None:
    mirror.snapshot_parent_path(path, b"old")
    mirror.flush_change(label, change(path), b"new")
    root = mirror.root
    assert all(Path(found).is_relative_to(root) for found in (root.parent.parent.parent.rglob("*outside*")))
    assert len(list_files(root)) == 3
    assert list_files(tmp_path) == [f".forkwise/forks/f1/{name}" for name in list_files(root)]
    mirror.flush_delete(label, change(path, "delete"))
    assert len(list_files(root)) == 2


@pytest.mark.parametrize("path", ["", "/", ".", "a/..", ".."])
def test_a_path_that_does_not_name_a_file_is_refused(path: str, mirror: ForkMaterializer) -> None:
    with pytest.raises(ValueError, match="does not name a file"):
        mirror.flush_change("a", change(path), b"")


def test_a_symbolic_link_in_the_way_is_not_followed(mirror: ForkMaterializer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("mine")
    (mirror.root / "branches/a").symlink_to(outside)
    mirror.flush_delete("a", change("x", "delete"))
    assert (outside / "x").read_text() == "mine"
    (mirror.root / "branches/a").symlink_to(outside)
    mirror.flush_change("a", change("x"), b"new")
    (mirror.root / "branches/b").mkdir()
    (mirror.root / "branches/b/x").symlink_to(outside / "x")
    mirror.flush_change("b", change("x"), b"new")
    assert (outside / "x").read_text() == "mine"
    assert mirror.branch_path("a", "x").read_bytes() == b"new"


@given(st.lists(st.text(st.characters(exclude_categories=[]), max_size=120), unique=True, max_size=4))
def test_directories_of_labels_are_names_and_differ(labels: list[str]) -> None:
    names = [directory_of(label) for label in labels]
    assert len(set(names)) == len(labels)
    for name in names:
        assert name not in ("", ".", "..")
        assert "/" not in name
        assert "\0" not in name
        assert len(name.encode()) <= 120


@pytest.mark.parametrize("label", ["approach_a", "x-2", "v1.0 final", "naïve", "日本"])
def test_ordinary_labels_stay_as_they_are(label: str) -> None:
    assert directory_of(label) == label


@pytest.mark.anyio
@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_where_the_mirror_of_a_fork_is(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on_disk: bool
) -> None:
    """The guide: "The materialised layout lives at .pydantic-deep/forks/{fork_id}/ and is removed on merge resolution".

    Over a directory it is in the state of the workspace: copies of test files inside the directory would be collected
    by the tests of every branch. The page on diffs says so.
    """
    monkeypatch.chdir(tmp_path)
    coordinator = ForkCoordinator(worker(), workspace=workspace if is_on_disk else None)
    handle = await coordinator.fork([BranchSpec("a", "say it")], parent_history=[])
    assert coordinator.materializer is not None
    root = coordinator.materializer.root
    assert root == (workspace.state / "mirrors" if is_on_disk else tmp_path / ".forkwise/forks") / handle.fork_id
    assert (root / "manifest.json").exists()
    await coordinator.merge_or_select("pick:a")
    assert not root.exists()
    page = " ".join((Path(__file__).parents[2] / "docs/diffs-and-judges.md").read_text().split())
    assert "in `mirrors/<fork id>/` of the workspace's state directory" in page
    assert "in `.forkwise/forks/<fork id>/` of the current directory" in page


@pytest.mark.anyio
async def test_a_fork_works_without_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide calls the tree on disk "inspection-only": a read-only current directory is no reason to fail."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".forkwise").write_text("a file in its place")
    coordinator = ForkCoordinator(worker())
    with pytest.warns(UserWarning, match="the branches are not mirrored"):
        await coordinator.fork([BranchSpec("a", "say it")], parent_history=[])
    assert coordinator.materializer is None
    assert (await coordinator.merge_or_select("pick:a")).errors == []
