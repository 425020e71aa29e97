"""Redis and SQLite in branches: the winner's data is committed, that of the others is gone."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.conftest import private_mounts, project, run, state
from tests.need import need

__all__ = ["private_mounts", "project", "run", "state"]

REDIS = """
[servers.cache]
command = ["redis-server", "--port", "6379", "--bind", "127.0.0.1", "--dir", "redis", "--daemonize", "no"]
before = "mkdir -p redis"
ready = { command = "redis-cli ping" }
data = "redis"
"""
ADD_ROW = """
import os, sqlite3
connection = sqlite3.connect("db/app.sqlite")
connection.execute("pragma journal_mode = wal")
connection.execute("insert into rows values (?)", (os.environ["FORKWISE_ATTEMPT"],))
connection.commit()
os._exit(0)  # without a checkpoint: the row is only in the file beside it
"""


def explore(run: Callable[..., Result], *words: str) -> list[str]:
    outcome = json.loads(run(*words, "--json").stdout.splitlines()[-1])["outcome"]
    return [attempt["state"] for attempt in outcome["attempts"]]


def write_servers(project: Path, text: str) -> None:
    (project / ".forkwise").mkdir()
    (project / ".forkwise/servers.toml").write_text(text)


@pytest.mark.integration
def test_redis(run: Callable[..., Result], project: Path) -> None:
    need(shutil.which("redis-server") is not None, "redis-server is not installed")
    write_servers(project, REDIS)
    line = "redis-cli set winner $FORKWISE_ATTEMPT; echo $FORKWISE_ATTEMPT > a.txt"
    test = 'test "$(redis-cli get winner)" = "$(cat a.txt)"'
    assert explore(run, "best-of", "3", "--no-baseline", "--test", test, "-c", line) == ["succeeded"] * 3
    run("branch", "create", "look")
    run("branch", "run", "look", "--servers", "--", "sh", "-c", "redis-cli get winner > seen.txt")
    run("branch", "commit", "look")
    assert (project / "seen.txt").read_text() == (project / "a.txt").read_text()


def test_sqlite(run: Callable[..., Result], project: Path) -> None:
    (project / "db").mkdir()
    with sqlite3.connect(project / "db/app.sqlite") as connection:
        connection.execute("create table rows (attempt text)")
    connection.close()
    (project / "add.py").write_text(ADD_ROW)
    write_servers(project, "[servers.idle]\ncommand = 'echo up; exec sleep 60'\nready.log = 'up'\ndata = 'db'")
    line = f"{sys.executable} -I add.py; test $FORKWISE_ATTEMPT != 2 || echo 9 > $FORKWISE_SCORE"
    assert explore(run, "best-of", "2", "-c", line) == ["succeeded"] * 2
    with sqlite3.connect(project / "db/app.sqlite") as connection:
        assert connection.execute("select attempt from rows").fetchall() == [("2",)]
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    connection.close()
