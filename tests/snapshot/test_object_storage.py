"""Snapshots on the protocol of S3, against moto's server."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from obstore.store import S3Store

from forkwise import ObjectStore, Snapshot, StoreError, Workspace, collect_garbage, unpack_snapshot
from tests.files.snapshot import snapshot as see
from tests.need import need

pytestmark = pytest.mark.integration

OPTIONS = {
    "region": "us-east-1",
    "access_key_id": "test",
    "secret_access_key": "test",
    "client_options": {"allow_http": True},
}


@pytest.fixture
def endpoint() -> Iterator[str]:
    need(find_spec("moto") is not None, "moto is not installed")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def bucket(endpoint: str) -> str:
    from urllib.request import Request, urlopen

    with urlopen(Request(f"{endpoint}/bucket", method="PUT")) as answer:
        assert answer.status == 200
    return endpoint


@pytest.mark.parametrize("key", [None, bytes(32)])
def test_a_workspace_travels_through_s3(workspace: Workspace, bucket: str, tmp_path: Path, key: bytes | None) -> None:
    location = f"s3://bucket/team-{len(key or b'')}"  # moto's servers share their buckets
    store = ObjectStore(location, key=key, options={**OPTIONS, "endpoint": bucket})
    first = Snapshot.create(workspace, store)
    (workspace.path / "run.sh").write_text("changed\n")
    second = Snapshot.create(workspace, store)
    assert second.stored < first.stored / 100
    other = ObjectStore(location, key=key, options={**OPTIONS, "endpoint": bucket})
    unpack_snapshot(Snapshot.load(other, second.id), other, tmp_path / "out")
    assert see(tmp_path / "out") == see(workspace.path)
    first.delete(other)
    assert collect_garbage(other).kept > 0
    assert second.verify(store) == []


def test_a_bucket_that_does_not_exist_is_named(workspace: Workspace, endpoint: str) -> None:
    with pytest.raises(StoreError, match=r"could not .* s3://missing"):
        Snapshot.create(workspace, ObjectStore("s3://missing", options={**OPTIONS, "endpoint": endpoint}))


def test_a_store_of_obstore_is_taken_as_it_is(workspace: Workspace, bucket: str) -> None:
    settings = {name: value for name, value in OPTIONS.items() if name != "client_options"}
    inner = S3Store("bucket", endpoint=bucket, client_options={"allow_http": True}, **settings)  # type: ignore[arg-type]
    store = ObjectStore(inner)
    assert Snapshot.create(workspace, store).verify(store) == []
