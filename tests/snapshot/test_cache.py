"""The cache of unpacked snapshots: unpacked once, the next version at the cost of what changed, bounded."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from forkwise import ObjectStore, Snapshot, SnapshotCache, StoreError, Workspace
from forkwise.snapshot import manifest
from tests.counts import rounds
from tests.files.snapshot import snapshot as see

LIMIT = 1 << 30


def make_tree(root: Path, directories: int = 150) -> None:
    for number in range(directories):
        (root / f"d{number % 10}" / f"e{number}").mkdir(parents=True)
        for name in "abc"[: 3 if number == 13 else 1]:
            (root / f"d{number % 10}" / f"e{number}" / name).write_text(f"{number} {name}\n")
        (root / f"d{number % 10}" / f"e{number}" / "link").symlink_to(
            "missing/" * 80
        )  # so that it has several segments


@pytest.fixture
def wide(tmp_path: Path) -> Workspace:
    """Return a workspace of several segments."""
    make_tree(tmp_path / "wide")
    for path in (tmp_path / "wide", *(tmp_path / "wide").rglob("*")):
        set_time(path)
    return Workspace(tmp_path / "wide", state=tmp_path / "state")


def set_time(path: Path) -> None:
    """Set a time that is always the same: how a manifest is cut into segments depends on its content."""
    os.utime(path, (1_700_000_000, 1_700_000_000), follow_symlinks=False)


def test_it_is_unpacked_once(workspace: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    cache = SnapshotCache(tmp_path / "cache", max_bytes=LIMIT)
    first, second = Snapshot.create(workspace, store), Snapshot.create(workspace, store)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: cache.unpack(one, store), [first, second] * 3))
    assert len({one.path for one in found}) == 1
    assert see(found[0].path) == see(workspace.path)
    shutil.rmtree(str(store.directory))
    with cache.unpack(first, ObjectStore(tmp_path / "store")) as again:
        assert again.path == found[0].path
    assert sorted(os.listdir(tmp_path / "cache")) == sorted([first.tree, "lock"])


def change(root: Path, random: Random) -> None:
    """Change a tree in one of many ways."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    directories = sorted(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())
    chosen, directory = random.choice(files), random.choice(directories)
    free = directory / f"new{random.randrange(10**9)}"
    match random.randrange(11):
        case 0:
            chosen.write_text(str(random.random()))
        case 1:
            chosen.unlink()
        case 2:
            free.write_bytes(random.randbytes(50))
        case 3:
            free.mkdir()
            (free / "inside").write_text("x")
        case 4:
            shutil.rmtree(directory)
        case 5:
            chosen.unlink()
            chosen.symlink_to("/etc/passwd")
        case 6:
            chosen.unlink()
            chosen.mkdir()
            (chosen / "was-a-file").touch()
        case 7:
            chosen.chmod(random.choice((0o600, 0o755)))
        case 8:
            directory.chmod(random.choice((0o700, 0o755, 0o555)))
            os.utime(directory, ns=(5, 5))
        case 9:
            os.link(chosen, free)
        case 10:
            shutil.rmtree(directory)
            directory.write_text("was a directory")


@pytest.mark.parametrize("is_used", [False, True])
def test_versions_are_made_from_each_other(wide: Workspace, store: ObjectStore, tmp_path: Path, is_used: bool) -> None:
    random = Random(5)
    cache = SnapshotCache(tmp_path / "cache", max_bytes=LIMIT)
    held = []
    for _ in range(rounds(5, 300)):
        unpacked = cache.unpack(Snapshot.create(wide, store), store)
        assert see(unpacked.path) == see(wide.path)
        if is_used:
            held.append((unpacked, see(unpacked.path)))
        else:
            unpacked.release()
        for _ in range(3):
            change(wide.path, random)
    for unpacked, seen in held:
        assert see(unpacked.path) == seen


def test_an_unused_version_becomes_the_next_one(wide: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    cache = SnapshotCache(tmp_path / "cache", max_bytes=LIMIT)
    with cache.unpack(Snapshot.create(wide, store), store) as first:
        before = {path.name: path.lstat().st_ino for path in (first.path / "d3" / "e13").iterdir()}
    (wide.path / "d3" / "e13" / "a").write_text("changed")
    set_time(wide.path / "d3" / "e13" / "a")
    with cache.unpack(Snapshot.create(wide, store), store) as second:
        after = {path.name: path.lstat().st_ino for path in (second.path / "d3" / "e13").iterdir()}
        assert not first.path.exists()
        assert (after["b"], after["c"]) == (before["b"], before["c"])
        (wide.path / "d3" / "e13" / "a").write_text("changed again")
        set_time(wide.path / "d3" / "e13" / "a")
        with cache.unpack(Snapshot.create(wide, store), store) as third:
            assert (third.path / "d3" / "e13" / "b").stat().st_ino == after["b"]
            assert (second.path / "d3" / "e13" / "a").read_text() == "changed"
            assert (third.path / "d3" / "e13" / "a").read_text() == "changed again"


def test_the_next_version_parses_what_changed(
    wide: Workspace, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = SnapshotCache(tmp_path / "cache", max_bytes=LIMIT)
    cache.unpack(Snapshot.create(wide, store), store).release()
    (wide.path / "d3" / "e13" / "a").write_text("changed")
    second = Snapshot.create(wide, store)
    parsed: list[str] = []
    real = manifest.json.loads
    monkeypatch.setattr(manifest.json, "loads", lambda line: parsed.append(line) or real(line))
    cache.unpack(second, store).release()
    assert len(parsed) == 2  # the line of the directory before, and now


def test_a_branch_runs_over_it(wide: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    with SnapshotCache(tmp_path / "cache", max_bytes=LIMIT).unpack(Snapshot.create(wide, store), store) as unpacked:
        before = see(unpacked.path)
        branch = Workspace(unpacked.path, state=tmp_path / "node").branch("attempt")
        (branch.path / "d1" / "e1" / "a").write_text("changed")
        assert branch.delta().changed == ("d1/e1/a",)
        branch.abort()
        assert see(unpacked.path) == before


def test_its_size_is_bounded(store: ObjectStore, tmp_path: Path) -> None:
    snapshots = []
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "data").write_bytes(Random(number).randbytes(1000))
        snapshots.append(Snapshot.create(Workspace(tmp_path / str(number), state=tmp_path / f"s{number}"), store))
    cache = SnapshotCache(tmp_path / "cache", max_bytes=2500)
    for one in snapshots[:3]:
        cache.unpack(one, store).release()
    assert cache.list_trees() == [snapshots[1].tree, snapshots[2].tree]
    with cache.unpack(snapshots[1], store):
        cache.unpack(snapshots[3], store).release()
        assert cache.list_trees() == [snapshots[1].tree, snapshots[3].tree]
        with cache.unpack(snapshots[3], store), pytest.raises(StoreError, match="are in use"):
            cache.unpack(snapshots[0], store)
    with pytest.raises(StoreError, match="give the cache more"):
        SnapshotCache(tmp_path / "cache", max_bytes=900).unpack(snapshots[0], store)


def test_what_a_killed_process_left_is_removed(workspace: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    cache = SnapshotCache(tmp_path / "cache", max_bytes=LIMIT)
    for name in (".new-0123", ".new-4567"):
        (tmp_path / "cache" / name / "root").mkdir(parents=True)
    (tmp_path / "cache" / ".new-0123" / "lock").touch()
    with cache.unpack(Snapshot.create(workspace, store), store) as unpacked:
        assert sorted(os.listdir(tmp_path / "cache")) == sorted([unpacked.snapshot.tree, "lock"])


def test_a_damaged_snapshot_is_not_in_the_cache(workspace: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    snapshot = Snapshot.create(workspace, store)
    for path in Path(str(store.directory), "objects").rglob("*"):
        if path.is_file():
            path.write_bytes(b"\x01nonsense")
    cache = SnapshotCache(tmp_path / "cache", max_bytes=LIMIT)
    with pytest.raises(StoreError, match="damaged"):
        cache.unpack(snapshot, store)
    assert os.listdir(tmp_path / "cache") == ["lock"]


def test_a_cache_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(StoreError, match="other users can write"):
        SnapshotCache(tmp_path / "cache", max_bytes=LIMIT)
