"""Manifests that somebody forged: refused before anything outside the target is touched."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from forkwise import ObjectStore, Snapshot, SnapshotCache, StoreError, unpack_snapshot
from forkwise.snapshot.header import write_header

DIGEST = "0" * 64


def line(path: str = "", files: Any = (), links: Any = (), packs: Any = (), about: Any = (1, 0o755, 0, ())) -> Any:
    return [path, list(about), list(packs), list(files), list(links)]


def file(name: Any, *, size: Any = 0, mode: Any = 0o644, attributes: Any = (), pieces: Any = (), group: Any = 0) -> Any:
    return [name, mode, 0, size, group, list(attributes), list(pieces)]


def forge(store: ObjectStore, *lines: Any) -> Snapshot:
    """Store lines of a manifest as they are, with everything around them intact."""
    return forge_segments(store, lines)


def forge_segments(store: ObjectStore, *groups: Sequence[Any]) -> Snapshot:
    """Store each group of lines as one segment."""
    contents = [b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in g) for g in groups]
    segments = {store.codec.digest(content): content for content in contents}
    about = {
        "name": "forged",
        "created": 0.0,
        "source": "",
        **dict.fromkeys(("files", "directories", "bytes", "stored"), 0),
        "segments": list(segments),
        **dict.fromkeys(("packs", "largest_files", "largest_directories", "skipped", "unstable"), ()),
    }
    with store.writer() as writer:
        for segment, content in segments.items():
            writer.put_object(segment, content)
        return Snapshot.load(store, write_header(writer, "snapshots", about, list(segments)))


FORGED: dict[str, tuple[Any, ...]] = {
    "a path upwards": (line(), line("../escaped")),
    "an absolute path": (line(), line("/tmp/escaped")),
    "a path upwards in the middle": (line(), line("a"), line("a/../../escaped")),
    "a name upwards": (line(files=[file("..")]),),
    "a name with a slash": (line(files=[file("../escaped")]),),
    "a name with a zero": (line(files=[file("a\0b")]),),
    "an empty name": (line(files=[file("")]),),
    "a name that is a number": (line(files=[file(5)]),),
    "a name that is not text": (line(files=[file("\ud800")]),),
    "a name that is too long": (line(files=[file("x" * 256)]),),
    "a name twice": (line(files=[file("a"), file("a")]),),
    "a file and a link of one name": (line(files=[file("a")], links=[["a", 0, "/tmp"]]),),
    "a link and a directory of one name": (line(links=[["a", 0, "/tmp"]]), line("a", files=[file("escaped")])),
    "a directory before its parent": (line(), line("a/b"), line("a")),
    "a directory twice": (line(), line("a"), line("a")),
    "no root": (line("a"),),
    "another part of nothing": (line(), line("a", about=(0, 0o755, 0, ()))),
    "a link without a target": (line(links=[["a", 0, ""]]),),
    "a link that is too long": (line(links=[["a", 0, "x" * 5000]]),),
    "a mode that is a device": (line(files=[file("a", mode=0o20666)]),),
    "a negative mode": (line(files=[file("a", mode=-1)]),),
    "a mode that is true": (line(files=[file("a", mode=True)]),),
    "a mark of overlayfs": (line(files=[file("a", attributes=[["user.overlay.redirect", "2f"]])]),),
    "an attribute of the system": (line(files=[file("a", attributes=[["security.capability", "00"]])]),),
    "an attribute that is no text": (line(files=[file("a", attributes=[["user.a", "zz"]])]),),
    "a huge hole": (line(files=[file("a", size=1 << 60, pieces=[[1 << 60]])]),),
    "a negative hole": (line(files=[file("a", size=0, pieces=[[5], [-5]])]),),
    "another size": (line(files=[file("a", size=7)]),),
    "a pack that is not listed": (line(files=[file("a", size=1, pieces=[[DIGEST, 0, 0, 1]])]),),
    "a pack with a path": (line(files=[file("a", size=1, pieces=[[DIGEST, 0, 0, 1]])], packs=["../../format"]),),
    "a chunk that is too large": (
        line(files=[file("a", size=1 << 30, pieces=[[DIGEST, 0, 0, 1 << 30]])], packs=[DIGEST]),
    ),
    "too many entries in a line": (line(files=[file(str(n)) for n in range(5000)]),),
    "deep nesting": (b"[" * 100_000,),
    "no JSON": (b"{",),
    "a large number": (line(files=[file("a", size=10**400)]),),
    "another form": ({"path": ""},),
    "a list of lists": (line(files=[[]], links=[[[]]]),),
}


@pytest.mark.parametrize("way", ["directory", "cache"])
@pytest.mark.parametrize("lines", FORGED.values(), ids=FORGED)
def test_a_forged_manifest_is_refused(lines: tuple[Any, ...], way: str, tmp_path: Path) -> None:
    store = ObjectStore("memory://")
    snapshot = forge(store, *lines)
    (tmp_path / "inner").mkdir()
    unpack: Callable[[], object] = (
        (lambda: unpack_snapshot(snapshot, store, tmp_path / "inner" / "out"))
        if way == "directory"
        else (lambda: SnapshotCache(tmp_path / "inner", max_bytes=1 << 40).unpack(snapshot, store))
    )
    with pytest.raises(StoreError, match="damaged and was not used"):
        unpack()
    assert not [path for path in tmp_path.rglob("*") if path.is_dir() and path.name != "inner"]
    assert not list(tmp_path.rglob("escaped"))


BASE = (line(), line("a", files=[file("f")]))
CHANGED = (line("b", files=[file("f")]), line("c", links=[["l", 0, "/tmp"]]))
FORGED_VERSIONS: dict[str, tuple[Any, ...]] = {
    "a directory that is a link in another segment": (*CHANGED, line("c/l", files=[file("escaped")])),
    "a file in an unchanged directory": (*CHANGED, line("a", files=[file("f", mode=0o777)])),
    "a directory of the name of an unchanged file": (*CHANGED, line("b/f")),
    "another part of nothing": (*CHANGED, line("d", files=[file("f")], about=(0, 0o755, 0, ()))),
    "a path upwards": (*CHANGED, line("../escaped")),
    "no JSON": (*CHANGED, b"{"),
}


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("lines", FORGED_VERSIONS.values(), ids=FORGED_VERSIONS)
def test_a_forged_next_version_is_refused(lines: tuple[Any, ...], is_used: bool, tmp_path: Path) -> None:
    store = ObjectStore("memory://")
    cache = SnapshotCache(tmp_path / "cache", max_bytes=1 << 40)
    first = cache.unpack(forge_segments(store, BASE, CHANGED), store)
    if not is_used:
        first.release()
    with pytest.raises(StoreError, match="damaged and was not used"):
        cache.unpack(forge_segments(store, BASE, lines), store)
    assert cache.list_trees() == ([first.snapshot.tree] if is_used else [])
    assert not list(tmp_path.rglob("escaped"))


def test_a_link_out_of_the_tree_is_only_a_link(tmp_path: Path) -> None:
    store = ObjectStore("memory://")
    snapshot = forge(store, line(links=[["a", 0, str(tmp_path)]], files=[file("b")]))
    unpack_snapshot(snapshot, store, tmp_path / "out")
    assert os.readlink(tmp_path / "out" / "a") == str(tmp_path)


@pytest.mark.parametrize("field", ["files", "created", "segments", "largest_files", "name", "skipped"])
def test_a_forged_header_is_refused(field: str) -> None:
    store = ObjectStore("memory://")
    with store.writer() as writer:
        name = write_header(writer, "snapshots", {field: {"a": 1}}, [])
    with pytest.raises(StoreError, match="damaged header"):
        Snapshot.load(store, name)
