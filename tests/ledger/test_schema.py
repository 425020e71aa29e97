"""Databases of other versions, and files that are not databases."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forkwise import LedgerError
from forkwise.ledger import sqlite as schema
from forkwise.ledger.sqlite import Database, SqliteLedger
from tests.ledger.ledger_scenes import Child, attempt_in, fork_in, picture

NEXT = "ALTER TABLE forks ADD COLUMN note TEXT; UPDATE forks SET note = 'from before'"
BROKEN = "CREATE TABLE half (a); INSERT INTO nowhere VALUES (1)"


def ask(directory: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(directory / "ledger.db")) as database:
        return database.execute(sql).fetchall()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return the directory of a ledger with some content."""
    with SqliteLedger(tmp_path) as ledger:
        attempt_in(ledger, fork_in(ledger).id)
    return tmp_path


def test_a_new_database_is_set_up_for_sharing(old: Path) -> None:
    assert ask(old, "PRAGMA journal_mode") == [("wal",)]
    assert ask(old, "PRAGMA user_version") == [(len(schema.SCRIPTS),)]
    database = Database(str(old / "ledger.db"))
    normal = 1
    assert database.rows("PRAGMA synchronous") == [(normal,)]
    assert database.rows("PRAGMA busy_timeout")[0][0] >= 30_000
    database.close()


def test_an_older_one_is_upgraded(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteLedger(old) as ledger:
        before = picture(ledger)
    monkeypatch.setattr(schema, "SCRIPTS", (*schema.SCRIPTS, NEXT))
    children = [Child(lambda: SqliteLedger(old).forks()[0].id) for _ in range(4)]
    assert {child.result() for child in children} == {before[0][0].id}
    with SqliteLedger(old) as ledger:
        assert picture(ledger) == before
    assert ask(old, "SELECT note FROM forks") == [("from before",)]
    assert ask(old, "PRAGMA user_version") == [(len(schema.SCRIPTS),)]


@pytest.mark.parametrize("version", range(1, len(schema.SCRIPTS)))
def test_every_version_becomes_what_a_new_one_is(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = "SELECT name, sql FROM sqlite_master ORDER BY name"
    with monkeypatch.context() as patch:
        patch.setattr(schema, "SCRIPTS", schema.SCRIPTS[:version])
        with SqliteLedger(tmp_path / "old") as ledger:
            attempt_in(ledger, fork_in(ledger).id)
            before = picture(ledger)
    with SqliteLedger(tmp_path / "old") as ledger, SqliteLedger(tmp_path / "new"):
        assert picture(ledger) == before
    assert ask(tmp_path / "old", tables) == ask(tmp_path / "new", tables)


def test_a_newer_one_is_refused_and_left_alone(old: Path) -> None:
    newer = len(schema.SCRIPTS) + 1
    ask(old, f"PRAGMA user_version = {newer}")
    before = (old / "ledger.db").read_bytes()
    with pytest.raises(LedgerError, match=f"newer forkwise .*version {newer}.*knows {newer - 1}"):
        SqliteLedger(old)
    assert (old / "ledger.db").read_bytes() == before


def test_an_upgrade_that_fails_has_not_begun(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "SCRIPTS", (*schema.SCRIPTS, BROKEN))
        with pytest.raises(LedgerError, match="nowhere"):
            SqliteLedger(old)
    assert ask(old, "SELECT name FROM sqlite_master WHERE name = 'half'") == []
    with SqliteLedger(old) as ledger:
        assert len(ledger.forks()) == 1


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("something else, of some length" * 100)
    with pytest.raises(LedgerError, match=r"ledger\.db cannot be used: file is not a database"):
        SqliteLedger(tmp_path)
