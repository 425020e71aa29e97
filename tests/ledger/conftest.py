"""Fixtures of the ledger tests: open the same ledger any number of times, on each implementation."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from forkwise.ledger.ledger import Ledger
from forkwise.ledger.sqlite import SqliteLedger
from tests.ledger.postgres_server import PostgresServer

Open = Callable[[], Ledger]
Build = Callable[[Path], Ledger]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Start a PostgreSQL server."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def implementation(request: pytest.FixtureRequest) -> str:
    """Return the name of one implementation."""
    return str(request.param)


@pytest.fixture
def build_ledger(implementation: str, request: pytest.FixtureRequest) -> Build:
    """Return a function that opens the ledger of a directory."""
    if implementation == "sqlite":
        return SqliteLedger
    from forkwise.ledger.postgres import PostgresLedger

    url = request.getfixturevalue("postgres").url
    return lambda directory: PostgresLedger(url, directory, str(directory))


@pytest.fixture
def open_ledger(build_ledger: Build, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens one and the same ledger."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(build_ledger(tmp_path / "ledger"))


@pytest.fixture
def forget_rows(implementation: str, request: pytest.FixtureRequest) -> Callable[[Ledger], None]:
    """Return a function that deletes everything of a ledger but its events."""

    def forget(ledger: Ledger) -> None:
        with closing(sqlite3.connect(ledger.directory / "ledger.db", isolation_level=None)) as database:
            database.execute("DELETE FROM forks")
            database.execute("DELETE FROM attempts")

    def forget_all(_: Ledger) -> None:
        import psycopg

        with psycopg.connect(request.getfixturevalue("postgres").url) as connection:
            connection.execute("DELETE FROM forkwise.forks")
            connection.execute("DELETE FROM forkwise.attempts")

    return forget if implementation == "sqlite" else forget_all


@pytest.fixture
def ledger(open_ledger: Open) -> Ledger:
    """Return a new ledger."""
    return open_ledger()
