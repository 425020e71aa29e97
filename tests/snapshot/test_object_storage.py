"""Snapshots on the protocols of S3, against moto's server, and of Azure, against Azurite."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
from collections.abc import Iterator
from email.utils import formatdate
from importlib.util import find_spec
from pathlib import Path
from urllib.request import Request, urlopen

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


ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # Azurite's own
)


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start Azurite with an empty container, and return its address."""
    need(shutil.which("npm") is not None, "npm is not installed")
    directory = tmp_path_factory.mktemp("azurite")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-save", "azurite@3"]
    done = subprocess.run(install, cwd=directory, capture_output=True, text=True, check=False)
    need(done.returncode == 0, f"npm could not install azurite: {done.stderr[-300:]}")
    program = f"{directory}/node_modules/.bin/azurite-blob"
    options = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--location", str(directory), "--silent"]
    with subprocess.Popen(
        [program, *options, "--skipApiVersionCheck", "--disableTelemetry"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            said = next(line for line in server.stdout if "listens on" in line)
            address = f"{said.split()[-1]}/{ACCOUNT}"
            create_container(address)
            yield address
        finally:
            server.kill()


def create_container(address: str) -> None:
    """Create the container ``box``; obstore cannot."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = [f"{name}:{value}" for name, value in headers.items()]
    text = "\n".join(["PUT", *[""] * 11, *lines, f"/{ACCOUNT}/{ACCOUNT}/box", "restype:container"])
    digest = hmac.digest(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    with urlopen(Request(f"{address}/box?restype=container", method="PUT", headers=headers)) as answer:
        assert answer.status == 201


@pytest.mark.parametrize("key", [None, bytes(32)])
def test_a_workspace_travels_through_azure(
    workspace: Workspace, azurite: str, tmp_path: Path, key: bytes | None
) -> None:
    options = {
        "account_name": ACCOUNT,
        "account_key": ACCOUNT_KEY,
        "endpoint": azurite,
        "client_options": {"allow_http": True},
    }
    location = f"az://box/team-{len(key or b'')}"
    store = ObjectStore(location, key=key, options=options)
    first = Snapshot.create(workspace, store)
    (workspace.path / "run.sh").write_text("changed\n")
    second = Snapshot.create(workspace, store)
    assert second.stored < first.stored / 100
    other = ObjectStore(location, key=key, options=options)
    unpack_snapshot(Snapshot.load(other, second.id), other, tmp_path / "out")
    assert see(tmp_path / "out") == see(workspace.path)
    first.delete(other)
    assert collect_garbage(other).kept > 0
    assert second.verify(store) == []
