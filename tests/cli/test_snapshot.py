"""``forkwise snapshot``: create, ls, show, unpack, rm and gc, through the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORKWISE_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("FORKWISE_STORE_KEY_FILE", raising=False)
    return tmp_path / "store"


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def test_a_workspace_travels(run: Run, project: Path, tmp_path: Path) -> None:
    made = document(run("snapshot", "create", "--name", "first", "--json"))["snapshot"]
    assert (made["files"], made["name"], made["workspace"]) == (3, "first", str(project))
    assert run("snapshot", "unpack", "first", str(tmp_path / "out")).stdout == f"{tmp_path}/out (3 files, 14 B)\n"
    assert (tmp_path / "out" / "sub" / "c.txt").read_text() == "three\n"
    (project / "a.txt").write_text("changed\n")
    assert "3 files, 18 B; " in run("snapshot", "create", "--exclude", "*.log").stdout
    listed = document(run("snapshot", "ls", "--json"))["snapshots"]
    assert [one["name"] for one in listed] == ["", "first"]
    assert run("snapshot", "ls").stdout.count(str(project)) == 2
    assert "Intact: " in run("snapshot", "show", made["id"][:6], "--verify").stdout


def test_what_is_removed_is_collected(run: Run) -> None:
    run("snapshot", "create", "--name", "one")
    assert "0 objects" in run("snapshot", "gc").stdout
    assert "Free the space with: forkwise snapshot gc" in run("snapshot", "rm", "one").stdout
    planned = document(run("snapshot", "gc", "--dry-run", "--json"))
    assert planned["removed"] > 0
    assert document(run("snapshot", "gc", "--json")) == {**planned, "dry_run": False}
    assert run("snapshot", "ls").stdout == "No snapshots. Create one with: forkwise snapshot create\n"


def test_damage_is_reported(run: Run, store: Path, tmp_path: Path) -> None:
    run("snapshot", "create", "--name", "one")
    for path in (store / "objects").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    problems = document(run("snapshot", "show", "one", "--verify", "--json", code=1))["problems"]
    assert any("is damaged and was not used" in one for one in problems)
    assert "is damaged and was not used" in run("snapshot", "unpack", "one", str(tmp_path / "out"), code=1).stderr
    assert not (tmp_path / "out").exists()


def test_an_encrypted_store_needs_its_key(run: Run, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0f" * 32 + "\n")
    key.chmod(0o644)
    assert "chmod 600" in run("snapshot", "create", "--key-file", str(key), code=2).stderr
    key.chmod(0o600)
    run("snapshot", "create", "--key-file", str(key), "--name", "secret")
    assert "secret" in run("snapshot", "ls", "--key-file", str(key)).stdout
    assert "give the key it was created with" in run("snapshot", "ls", code=1).stderr
    key.write_text("too short")
    assert "neither 32 bytes nor 64 digits" in run("snapshot", "ls", "--key-file", str(key), code=2).stderr


def test_mistakes_are_explained(run: Run, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("ls",), ("show", "nothing"), ("gc",)):
        assert "there is no store" in run("snapshot", *words, code=5).stderr
    assert not (tmp_path / "store").exists(), "a command that only reads creates nothing"
    assert "--store is empty" in run("snapshot", "ls", "--store", "", code=2).stderr
    run("snapshot", "create")
    assert "forkwise snapshot ls" in run("snapshot", "show", "nothing", code=5).stderr
    assert "is inside" in run("snapshot", "create", "--store", str(project / "inside"), code=1).stderr
    assert (
        "is not an empty directory"
        in (
            run("snapshot", "create", "--name", "one") and run("snapshot", "unpack", "one", str(project), code=1)
        ).stderr
    )
    assert "ftp:// is not one of" in run("snapshot", "ls", "--store", "ftp://host/x", code=1).stderr
    monkeypatch.delenv("FORKWISE_STORE")
    assert "Missing option '--store' (env var: 'FORKWISE_STORE')" in run("snapshot", "ls", code=2).stderr
