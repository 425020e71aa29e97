"""Fixtures of the ledger tests: open the same ledger any number of times, on each implementation."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from forkwise.ledger.ledger import Ledger
from forkwise.ledger.sqlite import SqliteLedger

Open = Callable[[], Ledger]


def forget_rows_of_sqlite(ledger: Ledger) -> None:
    """Delete everything but the events."""
    with closing(sqlite3.connect(ledger.directory / "ledger.db", isolation_level=None)) as database:
        database.execute("DELETE FROM forks")
        database.execute("DELETE FROM attempts")


#: For each implementation: how to open it, and how to delete everything but its events.
IMPLEMENTATIONS = {"sqlite": (SqliteLedger, forget_rows_of_sqlite)}


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> str:
    """Return the name of one implementation."""
    return str(request.param)


@pytest.fixture
def open_ledger(implementation: str, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens one and the same ledger."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(IMPLEMENTATIONS[implementation][0](tmp_path / "ledger"))


@pytest.fixture
def ledger(open_ledger: Open) -> Ledger:
    """Return a new ledger."""
    return open_ledger()
