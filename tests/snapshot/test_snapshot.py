"""A workspace stored as a snapshot and unpacked again, the second time at the cost of what changed."""

from __future__ import annotations

import errno
import os
import stat
import struct
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from forkwise import (
    BranchError,
    ObjectStore,
    Snapshot,
    SnapshotNotFoundError,
    StoreError,
    Workspace,
    list_snapshots,
    unpack_snapshot,
)
from tests.files.snapshot import snapshot as see
from tests.need import need

NOBODY = 0xFFFFFFFF  # the id of an access control list's entries that need none


def settle(root: Path) -> None:
    """Wait until the files of a tree are so old that the next snapshot need not read them again."""
    newest = max(os.lstat(path).st_ctime_ns for path in [root, *root.rglob("*")])
    probe = root.parent / "probe"
    while True:
        probe.touch()
        if os.stat(probe).st_ctime_ns > newest + 60_000_000:
            return


def test_everything_comes_back(workspace: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    snapshot = Snapshot.create(workspace, store, name="first")
    unpack_snapshot(snapshot, store, tmp_path / "out")
    assert see(tmp_path / "out") == see(workspace.path)
    out = tmp_path / "out"
    assert (out / "same.py").stat().st_ino == (out / "src" / "main.py").stat().st_ino
    assert (out / "sparse").stat().st_blocks * 512 < 2 << 20
    assert (out / "outside").is_symlink()
    assert Snapshot.load(store, "first") == Snapshot.load(store, snapshot.id[:8]) == snapshot
    assert (snapshot.files, snapshot.directories) == (7, 3)
    assert snapshot.largest_files[0] == ("sparse", 5 << 20)


@pytest.mark.parametrize("key", [None, bytes(range(32))])
def test_a_second_one_reads_and_stores_what_changed(
    workspace: Workspace, tmp_path: Path, key: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(tmp_path / "store", key=key)
    settle(workspace.path)
    first = Snapshot.create(workspace, store)
    (workspace.path / "src" / "new.py").write_text("new = 1\n")
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: opened.append(str(path)) or real(path, *rest, **more))
    second = Snapshot.create(workspace, store)
    monkeypatch.undo()
    assert "new.py" in opened
    assert not {"large", "sparse", "run.sh", "main.py", "empty"} & set(opened)
    assert second.tree != first.tree
    assert second.stored < 3000
    assert set(first.packs) < set(second.packs)
    unpack_snapshot(second, store, tmp_path / "out")
    assert see(tmp_path / "out") == see(workspace.path)


def test_an_unchanged_workspace_is_the_same_tree(workspace: Workspace, store: ObjectStore) -> None:
    first, second = Snapshot.create(workspace, store), Snapshot.create(workspace, store)
    assert first.tree == second.tree
    assert second.stored == 0
    assert [one.id for one in list_snapshots(store)] == [second.id, first.id]


def test_a_change_of_the_same_size_and_mtime_is_seen(workspace: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    file = workspace.path / "run.sh"
    before = file.stat()
    Snapshot.create(workspace, store)
    file.write_text("#!/bin/xx\n"[: before.st_size])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    unpack_snapshot(Snapshot.create(workspace, store), store, tmp_path / "out")
    assert (tmp_path / "out" / "run.sh").read_text() == file.read_text()


def test_an_insertion_into_a_large_file_stores_the_chunks_around_it(workspace: Workspace, store: ObjectStore) -> None:
    content = Random(2).randbytes(16 << 20)
    (workspace.path / "big").write_bytes(content)
    Snapshot.create(workspace, store)
    (workspace.path / "big").write_bytes(content[: 5 << 20] + b"inserted" + content[5 << 20 :])
    assert Snapshot.create(workspace, store).stored < 6 << 20


def test_a_moved_directory_is_not_stored_again(workspace: Workspace, store: ObjectStore) -> None:
    (workspace.path / "a").mkdir()
    for number in range(12):
        (workspace.path / "a" / str(number)).write_bytes(Random(2 + number).randbytes(900_000))
    Snapshot.create(workspace, store)
    (workspace.path / "a").rename(workspace.path / "b")
    assert Snapshot.create(workspace, store).stored < 20_000


def test_the_same_tree_elsewhere_makes_the_same_packs(workspace: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    first = Snapshot.create(workspace, store)
    unpack_snapshot(first, store, tmp_path / "copy")
    copy = Workspace(tmp_path / "copy", state=tmp_path / "other")
    second = Snapshot.create(copy, store)
    assert second.packs == first.packs
    assert second.stored < 3000  # one segment: the numbers of hard links differ


def test_excluded_files_are_left_out(workspace: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    snapshot = Snapshot.create(workspace, store, exclude=["deep", "/large", "*.sh"])
    unpack_snapshot(snapshot, store, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").rglob("*")) == [
        "link",
        "main.py",
        "outside",
        "same.py",
        "sparse",
        "src",
    ]


def test_special_files_are_named_and_left_out(
    workspace: Workspace, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(workspace.path / "src" / "pipe")
    settle(workspace.path)
    assert Snapshot.create(workspace, store).skipped == ("src/pipe",)
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: opened.append(str(path)) or real(path, *rest, **more))
    assert [Snapshot.create(workspace, store).skipped for _ in range(2)] == [("src/pipe",)] * 2
    assert "main.py" not in opened


def test_a_branch_is_stored_as_it_shows(workspace: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    with workspace.branch("change", on_success=None) as branch:
        (branch.path / "src" / "main.py").write_text("changed\n")
        (branch.path / "run.sh").unlink()
        unpack_snapshot(Snapshot.create(branch, store), store, tmp_path / "out")
        branch.abort()
    assert (tmp_path / "out" / "src" / "main.py").read_text() == "changed\n"
    assert not (tmp_path / "out" / "run.sh").exists()


def test_a_large_directory_has_several_lines(tmp_path: Path, store: ObjectStore) -> None:
    root = tmp_path / "many"
    root.mkdir()
    for number in range(5000):
        (root / str(number)).touch()
    snapshot = Snapshot.create(Workspace(root, state=tmp_path / "state"), store)
    unpack_snapshot(snapshot, store, tmp_path / "out")
    assert len(os.listdir(tmp_path / "out")) == 5000


def test_a_store_inside_the_workspace_is_refused(workspace: Workspace) -> None:
    with pytest.raises(BranchError, match="is inside"):
        Snapshot.create(workspace, ObjectStore(workspace.path / "store"))


def test_a_file_without_rights_is_named(
    workspace: Workspace, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: str, *rest: int, **more: int) -> int:
        if path == "run.sh":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(BranchError) as caught:
        Snapshot.create(workspace, store)
    assert str(caught.value) == (
        "run.sh cannot be read: Permission denied; make it readable, or leave it out with an exclude rule"
    )
    assert not list_snapshots(store)


def test_set_id_bits_are_not_restored(workspace: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    (workspace.path / "run.sh").chmod(0o6755)
    unpack_snapshot(Snapshot.create(workspace, store), store, tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out" / "run.sh").stat().st_mode) == 0o755


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_the_umask_changes_no_mode(workspace: Workspace, store: ObjectStore, tmp_path: Path, umask: int) -> None:
    for mode in (0o000, 0o400, 0o444, 0o644, 0o664, 0o666, 0o755, 0o777):
        (workspace.path / f"{mode:o}").write_text("content")
        (workspace.path / f"{mode:o}").chmod(mode)
    os.setxattr(workspace.path / "444", "user.colour", b"red")
    snapshot = Snapshot.create(workspace, store)
    before = os.umask(umask)
    try:
        unpack_snapshot(snapshot, store, tmp_path / "out")
    finally:
        os.umask(before)
    assert see(tmp_path / "out") == see(workspace.path)


def test_an_inherited_access_control_list_changes_no_mode(
    workspace: Workspace, store: ObjectStore, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    entries = ((0x01, 7, NOBODY), (0x04, 0, NOBODY), (0x20, 0, NOBODY))  # its owner everything, others nothing
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(out, "system.posix_acl_default", acl)
    except OSError as error:
        need(error.errno != errno.ENOTSUP, "a filesystem with access control lists")
        raise
    unpack_snapshot(Snapshot.create(workspace, store), store, out)
    assert stat.S_IMODE((out / "src" / "main.py").stat().st_mode) == 0o644
    assert stat.S_IMODE((out / "run.sh").stat().st_mode) == 0o750


def test_an_interrupt_leaves_nothing(
    workspace: Workspace, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Snapshot.create(workspace, store)
    real = os.utime

    def interrupt(target: int, **more: Any) -> None:
        if isinstance(target, int) and os.readlink(f"/proc/self/fd/{target}").endswith("/run.sh"):
            raise KeyboardInterrupt
        real(target, **more)

    monkeypatch.setattr(os, "utime", interrupt)
    with pytest.raises(KeyboardInterrupt):
        unpack_snapshot(snapshot, store, tmp_path / "out")
    monkeypatch.undo()
    assert not (tmp_path / "out").exists()


def test_a_directory_with_files_is_not_unpacked_to(workspace: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    snapshot = Snapshot.create(workspace, store)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("keep")
    with pytest.raises(StoreError, match="not an empty directory"):
        unpack_snapshot(snapshot, store, tmp_path / "full")
    with pytest.raises(StoreError, match="are more than 10"):
        unpack_snapshot(snapshot, store, tmp_path / "new", max_bytes=10)
    assert os.listdir(tmp_path / "full") == ["mine"]
    assert not (tmp_path / "new").exists()


def test_a_deleted_snapshot_and_an_unknown_name(workspace: Workspace, store: ObjectStore) -> None:
    snapshot = Snapshot.create(workspace, store)
    snapshot.delete(store)
    with pytest.raises(SnapshotNotFoundError, match="forkwise snapshot ls"):
        Snapshot.load(store, snapshot.id)
    assert Snapshot.create(workspace, store).files == snapshot.files


def test_a_file_that_is_replaced_by_a_large_one_meanwhile(
    workspace: Workspace, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = Random(2).randbytes(3 << 20)
    real = os.open

    def replace(path: str, *rest: int, **more: int) -> int:
        if path == "run.sh":
            monkeypatch.undo()
            (workspace.path / "run.sh").write_bytes(content)
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", replace)
    unpack_snapshot(Snapshot.create(workspace, store), store, tmp_path / "out")
    assert (tmp_path / "out" / "run.sh").read_bytes() == content


def test_a_file_that_grows_meanwhile_does_not_fail(workspace: Workspace, store: ObjectStore, tmp_path: Path) -> None:
    is_done = threading.Event()

    def write() -> None:
        with open(workspace.path / "src" / "log", "ab") as file:
            while not is_done.is_set():
                file.write(b"line\n")
                file.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        snapshot = Snapshot.create(workspace, store)
    finally:
        is_done.set()
        writer.join()
    unpack_snapshot(snapshot, store, tmp_path / "out")
    assert not snapshot.verify(store)


def test_files_that_are_read_again_and_have_the_same_content_are_not_stored_again(
    workspace: Workspace, store: ObjectStore
) -> None:
    first = Snapshot.create(workspace, store)
    files = [path for path in sorted(workspace.path.rglob("*")) if path.is_file() and not path.is_symlink()]
    for path in files[::2]:
        path.chmod(path.stat().st_mode)  # a later ctime
    second = Snapshot.create(workspace, store)
    assert (second.tree, second.segments) == (first.tree, first.segments)
