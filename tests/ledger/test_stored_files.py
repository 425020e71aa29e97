"""What attempts printed and changed, in a store: on another machine, damaged, hostile, missing, and deleted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from forkwise import ForkwiseWarning, ObjectStore
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.logs import AttemptLog, compress_log, read_log
from forkwise.ledger.stored_files import StoredFiles
from forkwise.ledger.stored_outcomes import load_outcomes, save_outcomes
from tests.ledger.ledger_scenes import attempt_in, fork_in
from tests.ledger.postgres_server import PostgresServer

Give = Callable[[], StoredFiles]


def print_something(ledger: Ledger, size: int = 10) -> str:
    """Return an attempt that printed something, on a server too, and was tested."""
    attempt = attempt_in(ledger, fork_in(ledger).id).id
    for name in (attempt, f"{attempt}@database"):
        with AttemptLog(ledger.directory, name) as output:
            output.write("stderr", b"said\n" * size)
    save_outcomes(ledger.directory, attempt, {"a": "passed"})
    return attempt


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "store", key=bytes(32))


@pytest.fixture
def near(ledger: Ledger, store: ObjectStore) -> Ledger:
    """Return a ledger with a store."""
    ledger.stored_files = StoredFiles(store, ledger.directory, "one")
    return ledger


@pytest.fixture
def far(store: ObjectStore, tmp_path: Path) -> Give:
    """Return a function that returns the files on another machine, which has none yet."""
    numbers = iter(range(100))
    return lambda: StoredFiles(store, tmp_path / f"far-{next(numbers)}", "one")


@pytest.mark.parametrize("size", [10, 200_000])
def test_another_machine_has_the_same_files(near: Ledger, far: Give, size: int) -> None:
    attempt = print_something(near, size)
    near.store_files(attempt)
    compress_log(near.directory, attempt)
    there = far()
    there.fetch(attempt)
    for name in (attempt, f"{attempt}@database"):
        assert read_log(there._directory, name, stream="stderr") == b"said\n" * size
    assert load_outcomes(there._directory, attempt) == {"a": "passed"}
    there.fetch("../../etc/passwd")
    there.fetch("aaaaaa.1")


def test_deleted_attempts_leave_nothing_in_the_store(near: Ledger, store: ObjectStore) -> None:
    gone, kept = print_something(near), print_something(near)
    foreign = StoredFiles(store, near.directory, "another ledger")
    for attempt in (gone, kept):
        near.store_files(attempt)
        foreign.save(attempt)
    near.resolve(near.attempt(gone).fork, how="pick")
    assert near.prune(keep=1) == [gone.partition(".")[0]]
    assert [path.rpartition("/")[2] for path, _, _ in store.list_under("ledger")].count(gone) == 1
    assert [path.rpartition("/")[2] for path, _, _ in store.list_under("ledger")].count(kept) == 2


@pytest.mark.parametrize("damage", [b"", b"\x01rubbish", None])
def test_damage_is_reported_and_nothing_is_used(
    near: Ledger, store: ObjectStore, far: Give, damage: bytes | None
) -> None:
    attempt = print_something(near)
    near.store_files(attempt)
    [(path, _, _)] = store.list_under("ledger")
    file = Path(store.directory or "", path)
    file.write_bytes(file.read_bytes()[:-1] if damage is None else damage)
    there = far()
    with pytest.warns(ForkwiseWarning, match=f"{attempt} could not be fetched: .* is damaged"):
        there.fetch(attempt)
    there.fetch(attempt)  # it is not asked again at once
    assert read_log(there._directory, attempt) == b""


@pytest.mark.parametrize(
    "rows",
    [
        [["output/{}.log", 4], ["../escaped", 0]],
        [["output/other.1.log", 4]],
        [["output/{}.servers/../../x", 4]],
        [["output/{}.log", 5]],
        [["output/{}.log", -1], ["changes/{}.z", 5]],
        [["output/{}.log"]],
        {"a": 1},
        7,
    ],
)
def test_names_and_lengths_from_a_store_are_checked(
    near: Ledger, store: ObjectStore, far: Give, rows: object, tmp_path: Path
) -> None:
    attempt = print_something(near)
    near.store_files(attempt)
    [(path, _, _)] = store.list_under("ledger")
    data = json.dumps(rows).replace("{}", attempt).encode() + b"\nevil"
    store.put(path, store.codec.encode(path, store.codec.digest(data).encode() + data))
    there = far()
    with pytest.warns(ForkwiseWarning, match="list of files is invalid"):
        there.fetch(attempt)
    assert not there._directory.exists()
    assert not (tmp_path / "escaped").exists()


def test_a_store_that_fails_is_a_warning_once(near: Ledger, store: ObjectStore, tmp_path: Path) -> None:
    attempt = print_something(near)
    _ = store.id
    os.rename(tmp_path / "store", tmp_path / "away")
    (tmp_path / "store").write_text("not a directory")
    with pytest.warns(ForkwiseWarning, match=f"{attempt} were not copied"):
        near.store_files(attempt)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        near.store_files(attempt)
    assert read_log(near.fetch_files(attempt), attempt) == b"said\n" * 10


@pytest.mark.integration
def test_a_second_machine_shows_an_attempt(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workspaces at different paths are one project, as on two machines."""
    monkeypatch.setenv("FORKWISE_LEDGER", postgres.url)
    monkeypatch.setenv("FORKWISE_PROJECT", str(tmp_path))
    monkeypatch.setenv("FORKWISE_LEDGER_STORE", str(tmp_path / "store"))
    for machine in ("one", "two"):
        (tmp_path / machine / "project").mkdir(parents=True)
        (tmp_path / machine / "project" / "file").write_text("old\n")

    def run(machine: str, *words: str) -> str:
        done = subprocess.run(
            [f"{sys.prefix}/bin/forkwise", *words],
            cwd=tmp_path / machine / "project",
            env={**os.environ, "FORKWISE_STATE": str(tmp_path / machine / "state")},
            capture_output=True,
            check=False,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("one", "run", "--no-commit", "-c", "echo said; echo new > file; env | grep -c FORKWISE_LEDGER; true")
    fork = json.loads(run("two", "ls", "--json"))["forks"][0]["id"]
    shown = run("two", "show", f"{fork}.1")
    assert "said" in shown
    assert "\n0\n" in shown
    assert "file" in run("two", "diff", f"{fork}.1")
    run("one", "abort", fork)
    run("one", "gc", "--keep-forks", "0")
    assert [path for path in (tmp_path / "store" / "ledger").rglob("*") if path.is_file()] == []
