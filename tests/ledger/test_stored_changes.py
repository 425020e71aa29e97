"""What attempts changed, kept after their branches are gone: bounded, compressed, without secrets, and collected."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkwise import LedgerError, Workspace
from forkwise.files.branch import Branch
from forkwise.ledger import stored_changes
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.stored_changes import load_changes, remove_changes, save_changes
from forkwise.text.diff import unified
from tests.ledger.ledger_scenes import attempt_in, fork_in

NAME = "k3f9ab.1"


@pytest.fixture
def branch(tmp_path: Path) -> Iterator[Branch]:
    root = tmp_path / "project"
    (root / "deep/er").mkdir(parents=True)
    (root / "a.txt").write_text("one\ntwo\n")
    (root / "deep/er/b.txt").write_text("old\n")
    (root / "gone.txt").write_text("bye\n")
    made = Workspace(root, state=tmp_path / "state", durable=False).branch("b", on_success=None, on_error=None)
    yield made
    made.abort()


def test_both_versions_are_kept(branch: Branch, tmp_path: Path) -> None:
    (branch.path / "a.txt").write_text("one\n2\n")
    (branch.path / "gone.txt").unlink()
    (branch.path / "link").symlink_to("a.txt")
    (branch.path / "new.bin").write_bytes(b"\0" * 1000)
    os.fsencode("na\udcffme")  # a name that is not UTF-8
    (branch.path / "na\udcffme").write_bytes(b"caf\xe9\n")
    diff, delta = branch.diff(), branch.delta()
    assert load_changes(tmp_path, NAME) is None
    assert save_changes(tmp_path, NAME, branch) == 5
    found = load_changes(tmp_path, NAME)
    assert found is not None
    assert found.delta == delta
    kept = unified(found.files)
    assert [line for line in kept.splitlines() if not line.startswith("index ")] == [
        line for line in diff.splitlines() if not line.startswith("index ")
    ]
    assert (found.left_out, found.without_content, found.unlisted, found.is_redacted) == ("", (), 0, False)
    remove_changes(tmp_path, NAME)
    assert load_changes(tmp_path, NAME) is None


def test_what_is_kept_is_bounded(branch: Branch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_MAX_FILES": 3, "_MAX_CONTENT": 10_000, "_MAX_FILE": 4000, "_MAX_LISTED": 6}.items():
        monkeypatch.setattr(stored_changes, name, value)
    (branch.path / "deep/er/b.txt").write_text("new\n")
    (branch.path / "large.txt").write_text("x" * 5000)
    (branch.path / "deep/many").mkdir()
    for number in range(10):
        (branch.path / f"deep/many/{number}.txt").write_text(f"{number}\n")
    assert save_changes(tmp_path, NAME, branch) == 12
    found = load_changes(tmp_path, NAME)
    assert found is not None
    # What existed before comes first, then what is at the top.
    assert [f.path for f in found.files if f.path not in found.without_content] == [
        "deep/er/b.txt",
        "deep/many/0.txt",
        "deep/many/1.txt",
    ]
    assert "large.txt" in found.without_content
    assert (len(found.delta), found.unlisted) == (6, 7)
    assert found.left_out == "the content of 2 files and the names of 7 further changed paths"
    assert "Files /dev/null and b/large.txt (5000 bytes) differ" in unified(found.files)


def test_secrets_are_replaced(branch: Branch, tmp_path: Path) -> None:
    token = "ghp_" + "a1B2" * 9
    (branch.path / "a.txt").write_text(f"one\nkey = {token}\n")
    save_changes(tmp_path, NAME, branch)
    found = load_changes(tmp_path, NAME)
    assert found is not None
    assert found.is_redacted
    assert "+key = [redacted]" in unified(found.files)
    assert token.encode() not in zlib.decompress((tmp_path / f"changes/{NAME}.z").read_bytes())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"rubbish",
        zlib.compress(b"{}"),
        zlib.compress(b'{"format": 2}\n'),
        zlib.compress(b"[" * 100_000 + b"\n"),
        zlib.compress(b'{"format": 1, "changes": [["a", "eaten", "file", 1, 1, ""]], "files": [], "unlisted": 0}\n'),
        zlib.compress(b'{"format": 1, "changes": [], "files": [["a", null, [33188, 9, "", 9]]], "unlisted": 0}\nshort'),
        zlib.compress(b"\0" * (65 << 20)),
    ],
    ids=["empty", "rubbish", "no line", "newer", "nested", "kind", "cut", "bomb"],
)
def test_damaged_changes_are_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "changes").mkdir()
    (tmp_path / f"changes/{NAME}.z").write_bytes(content)
    with pytest.raises(LedgerError, match=f"the stored changes of {NAME} are damaged"):
        load_changes(tmp_path, NAME)


@pytest.mark.parametrize("name", ["../etc", "k3f9ab", "k3f9ab.1/../x"])
def test_a_name_cannot_lead_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(LedgerError):
        load_changes(tmp_path, name)


def test_they_are_deleted_with_their_fork(ledger: Ledger, branch: Branch) -> None:
    (branch.path / "a.txt").write_text("new\n")
    kept = []
    for _ in range(2):
        fork = fork_in(ledger).id
        kept.append(attempt_in(ledger, fork).id)
        save_changes(ledger.directory, kept[-1], branch)
        ledger.resolve(fork, how="pick")
    ledger.prune(keep=1)
    assert [load_changes(ledger.directory, name) is None for name in kept] == [True, False]
