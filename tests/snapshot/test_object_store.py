"""Object stores: damage is never used, encryption, and garbage collection that takes nothing which is needed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from forkwise import ObjectStore, Snapshot, StoreError, Workspace, collect_garbage, list_snapshots, unpack_snapshot
from forkwise.snapshot.header import read_header, write_header
from tests.counts import IS_FUZZ, rounds
from tests.files.snapshot import snapshot as see
from tests.snapshot.backends import Interleaved, Wrapped

KEY = bytes(range(32))


def list_objects(store: ObjectStore) -> list[Path]:
    assert store.directory is not None
    return sorted(path for path in Path(store.directory, "objects").rglob("*") if path.is_file())


@pytest.mark.parametrize("way", ["flipped", "cut", "empty", "missing", "exchanged", "bomb"])
@pytest.mark.parametrize("key", [None, KEY])
def test_damage_is_reported_and_never_used(workspace: Workspace, tmp_path: Path, way: str, key: bytes | None) -> None:
    store = ObjectStore(tmp_path / "store", key=key)
    snapshot = Snapshot.create(workspace, store)
    for number, path in enumerate(list_objects(store)[: 1 if way == "bomb" else None]):
        intact = path.read_bytes()
        if way == "flipped":
            path.write_bytes(intact[:-3] + bytes([intact[-3] ^ 1]) + intact[-2:])
        elif way == "exchanged":
            path.write_bytes(list_objects(store)[number - 1].read_bytes())
        elif way == "bomb":
            path.write_bytes(store.codec.encode(path.name, bytes(65 << 20)))
        elif way == "missing":
            path.unlink()
        else:
            path.write_bytes(intact[: len(intact) // 2] if way == "cut" else b"")
        with pytest.raises(StoreError, match=r"damaged and was not used|has no objects"):
            unpack_snapshot(snapshot, store, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        assert len(snapshot.verify(store)) == 1
        path.write_bytes(intact)
    assert snapshot.verify(store) == []


def test_a_chunk_that_arrives_damaged_is_fetched_again(workspace: Workspace, tmp_path: Path) -> None:
    backend = Wrapped()
    store = ObjectStore(backend)
    snapshot = Snapshot.create(workspace, store)
    seen: list[str] = []
    for name in (*snapshot.packs, *snapshot.segments):
        path = f"objects/{name[:2]}/{name}"

        def damage(data: bytes, path: str = path) -> bytes:
            seen.append(path)
            return data if seen.count(path) > 1 else data[:-1]

        backend.damaged[path] = damage
    unpack_snapshot(snapshot, store, tmp_path / "out")
    assert see(tmp_path / "out") == see(workspace.path)
    assert {seen.count(path) for path in seen} == {2}


def test_a_header_with_another_content_is_refused(workspace: Workspace, store: ObjectStore) -> None:
    first = Snapshot.create(workspace, store, name="one")
    second = Snapshot.create(workspace, store, name="two")
    headers = Path(str(store.directory), "snapshots")
    (headers / first.id).write_bytes((headers / second.id).read_bytes())
    with pytest.raises(StoreError, match="does not match its digest"):
        list_snapshots(store)
    with pytest.raises(StoreError, match="does not match its digest"):
        collect_garbage(store)


def test_encryption_hides_contents_and_names(workspace: Workspace, tmp_path: Path) -> None:
    (workspace.path / "known.txt").write_text("a content that is known")
    ids = []
    for number, key in enumerate((None, KEY, bytes(32))):
        store = ObjectStore(tmp_path / f"store-{number}", key=key)
        snapshot = Snapshot.create(workspace, store, name="label")
        ids.append({path.name for path in list_objects(store)})
        written = b"".join(path.read_bytes() for path in (tmp_path / f"store-{number}").rglob("*") if path.is_file())
        assert (b"label" in written or b"known" in written) == (key is None)
        unpack_snapshot(snapshot, store, tmp_path / f"out-{number}")
        assert see(tmp_path / f"out-{number}") == see(workspace.path)
    assert not ids[0] & ids[1]
    assert not ids[1] & ids[2]


@pytest.mark.parametrize(("created", "opened"), [(KEY, None), (KEY, bytes(32)), (None, KEY)])
def test_another_key_is_refused(
    workspace: Workspace, tmp_path: Path, created: bytes | None, opened: bytes | None
) -> None:
    Snapshot.create(workspace, ObjectStore(tmp_path / "store", key=created))
    other = ObjectStore(tmp_path / "store", key=opened)
    for use in (
        lambda: Snapshot.create(workspace, other),
        lambda: list_snapshots(other),
        lambda: collect_garbage(other),
    ):
        with pytest.raises(StoreError, match="give the key it was created with"):
            use()


@pytest.mark.parametrize("location", ["ftp://host/x", "http://host/x", "s3://"])
def test_a_location_that_cannot_be_used(location: str) -> None:
    with pytest.raises(StoreError, match=r"cannot be used as a store|could not"):
        ObjectStore(location).id  # noqa: B018


def test_garbage_is_what_no_snapshot_needs(workspace: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    first = Snapshot.create(workspace, store)
    (workspace.path / "large").write_bytes(Random(2).randbytes(2 << 20))
    second = Snapshot.create(workspace, store)
    assert collect_garbage(store).removed == 0
    first.delete(store)
    planned = collect_garbage(store, dry_run=True)
    assert planned == collect_garbage(store)
    assert planned.removed > 0
    assert second.verify(store) == []
    second.delete(store)
    collect_garbage(store)
    assert list_objects(store) == []
    third = Snapshot.create(workspace, store)  # the index names a snapshot that is gone
    assert third.verify(store) == []


def test_nothing_is_collected_while_somebody_writes(store: ObjectStore) -> None:
    with store.writer() as writer:
        writer.put_object("a" * 64, b"content")
        with pytest.raises(StoreError, match="1 other processes are using the store"):
            collect_garbage(store)
    assert collect_garbage(store).removed == 1


def test_a_writer_that_was_taken_for_dead_does_not_publish() -> None:
    backend = Wrapped()
    store = ObjectStore(backend)
    with store.writer() as writer:
        writer.put_object("a" * 64, b"content")
        backend.old_marks.update(path for path, _, _ in store.list_under("writers"))
        assert collect_garbage(store).removed == 1
        with pytest.raises(StoreError, match="run it again"):
            write_header(writer, "snapshots", {}, ["a" * 64])
    assert store.list_headers("snapshots") == []


@pytest.mark.hypothesis
@settings(
    max_examples=rounds(250, 3000),
    derandomize=not IS_FUZZ,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink) if IS_FUZZ else (Phase.generate,),
)
@given(
    seed=st.integers(0, 1 << 32),
    wanted=st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=2),
    is_suspended=st.booleans(),
)
def test_no_order_of_writers_and_collectors_loses_what_a_header_names(
    seed: int, wanted: list[set[int]], is_suspended: bool
) -> None:
    backend = Interleaved(Random(seed))
    store = ObjectStore(backend)
    digests = [store.codec.digest(bytes([number])) for number in range(4)]
    with store.writer() as writer:  # an earlier snapshot, whose objects the others find and rely on
        for number in (0, 1):
            writer.put_object(digests[number], bytes([number]))
        earlier = write_header(writer, "snapshots", {}, digests[:2])

    def write(numbers: set[int], is_late: bool) -> None:
        try:
            with store.writer() as writer:
                if is_late:
                    backend.old_marks.add(writer._mark)
                for number in sorted(numbers):
                    writer.put_object(digests[number], bytes([number]))
                write_header(writer, "deltas", {"owner": sorted(numbers)}, [digests[n] for n in sorted(numbers)])
        except StoreError:
            assert is_late

    def collect() -> None:
        store.delete_header("snapshots", earlier)
        for _ in range(3):
            with suppress(StoreError):  # somebody writes
                collect_garbage(store)

    jobs = [lambda n=numbers, i=i: write(n, is_suspended and i == 0) for i, numbers in enumerate(wanted)]
    with patch("forkwise.snapshot.object_store.time.sleep"):  # a writer that waits lets others run
        backend.run([*jobs, collect])
    for kind in ("snapshots", "deltas"):
        for name in store.list_headers(kind):
            for one in read_header(store, kind, name)["objects"]:
                assert store.read_object(one, lambda content: content)
    assert store.list_under("writers") == store.list_under("collectors") == []
