"""``forkwise log``, ``undo`` and ``gc``."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise import Workspace

Run = Callable[..., Result]
Ask = Callable[..., Any]

DIES = """
import os, sys
from forkwise import Workspace
branch = Workspace(sys.argv[1]).branch(sys.argv[2])
if sys.argv[3]:
    (branch.path / sys.argv[3]).write_text("left")
os._exit(0)
"""


def commit(ask: Ask, name: str, text: str) -> None:
    """Commit a branch that changes a.txt."""
    path = ask("branch", "create", name)["branch"]["path"]
    Path(path, "a.txt").write_text(text)
    ask("branch", "commit", name)


def test_log_is_newest_first(run: Run, ask: Ask) -> None:
    assert "No commits yet" in run("log").stdout
    commit(ask, "first", "uno\n")
    commit(ask, "second", "due\n")
    assert [c["branch"] for c in ask("log")["commits"]] == ["/main/second", "/main/first"]
    assert [c["id"] for c in ask("log", "-n", "1")["commits"]] == [2]
    table = run("log").stdout.splitlines()
    assert table[0].split() == ["id", "kind", "branch", "date", "paths"]
    assert "/main/second" in table[1]


def test_undo_takes_the_last_commit_back_and_can_be_undone(run: Run, ask: Ask, project: Path) -> None:
    commit(ask, "first", "uno\n")
    assert "Undid 1 as 2" in run("undo").stdout
    assert (project / "a.txt").read_text() == "one\n"
    again = ask("undo", "2")["commit"]
    assert (again["kind"], again["undoes"]) == ("redo", 2)
    assert (project / "a.txt").read_text() == "uno\n"
    assert "undone by 2" in run("log").stdout


def test_undo_refuses_if_the_path_was_changed(run: Run, ask: Ask, project: Path) -> None:
    commit(ask, "first", "uno\n")
    (project / "a.txt").write_text("changed elsewhere\n")
    assert ask("undo", code=3)["error"]["paths"] == ["a.txt"]
    assert "--on-conflict" not in run("undo", code=3).stderr
    assert (project / "a.txt").read_text() == "changed elsewhere\n"


def test_undo_of_nothing(run: Run) -> None:
    assert len(run("undo", code=1).stderr.splitlines()) == 1
    assert "7" in run("undo", "7", code=5).stderr


def test_gc_takes_what_the_dead_left_but_no_work(run: Run, ask: Ask, project: Path) -> None:
    for name, left in (("empty", ""), ("full", "work.txt")):
        subprocess.run([sys.executable, "-c", DIES, str(project), name, left], check=True)
    planned = ask("gc", "--dry-run")
    assert planned["dry_run"] is True
    assert len(ask("branch", "ls")["branches"]) == 2

    collected = ask("gc")
    assert any("empty" in name for name in collected["removed"])
    assert any("full" in name for name in collected["listed"])
    assert "--force" in run("gc").stdout
    assert [b["name"] for b in ask("branch", "ls")["branches"]] == ["full"]

    assert "removed" in run("gc", "--force").stdout
    assert ask("branch", "ls")["branches"] == []


@pytest.mark.parametrize("damage", ["garbage", "directory", "newer"])
def test_undo_with_an_unusable_ledger_is_done_and_says_so(
    run: Run, ask: Ask, project: Path, state: Path, damage: str
) -> None:
    """The exit code and the document say what happened to the files; the ledger's problem is a warning."""
    commit(ask, "first", "uno\n")
    assert run("log").stdout
    [directory] = state.glob("*/ledger")
    database = directory / "ledger.db"
    if damage == "newer":
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA user_version = 99")
    else:
        for path in directory.glob("ledger.db*"):
            path.unlink()
        if damage == "garbage":
            database.write_bytes(b"garbage" * 1000)
        else:
            database.mkdir()
    result = run("undo", "--json")
    assert json.loads(result.stdout)["commit"]["undoes"] == 1
    assert "commit 1 was undone as 2, but the ledger could not be updated" in result.stderr
    assert (project / "a.txt").read_text() == "one\n"
    shown = run("log")
    assert "undone by 2" in shown.stdout
    assert "the forks of these commits are not known" in shown.stderr


def test_disk_use(run: Callable[..., Result], ask: Callable[..., Any], project: Path) -> None:
    run("run", "--", "sh", "-c", "head -c 1000000 /dev/urandom > a.txt")
    run("run", "--", "sh", "-c", "echo small > a.txt; echo said")
    shown = run("du").output
    assert str(project) in shown
    assert "undo" in shown
    (use,) = ask("du")["workspaces"]
    assert use["workspace"] == str(project)
    assert 1_000_000 <= use["kinds"]["undo"] < 1_300_000
    assert use["kinds"]["logs"] > 0
    assert use["total"] == sum(use["kinds"].values())
    assert [one["workspace"] for one in ask("du", "--all")["workspaces"]] == [str(project)]


def test_limits_of_the_user_collect_after_an_exploration(
    run: Callable[..., Result], ask: Callable[..., Any], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    run("run", "--", "sh", "-c", "echo 1 > a.txt")
    history = Workspace(project).state_dir.history(1)
    os.utime(history, (0, 0))
    run("run", "--", "sh", "-c", "echo 2 > a.txt")
    assert os.path.isdir(history)  # nothing is removed by default
    (tmp_path / "config/forkwise").mkdir(parents=True)
    config = tmp_path / "config/forkwise/config.toml"
    config.write_text("[gc]\nmax_age = 'soon'\n")
    assert "was not removed automatically" in run("run", "--", "sh", "-c", "echo 3 > a.txt").stderr
    config.write_text("[gc]\nmax_age = '30d'\n")
    assert "as [gc] in your config.toml says" in run("run", "--", "sh", "-c", "echo 4 > a.txt").output
    assert not os.path.exists(history)
    assert len(ask("ls")["forks"]) == 4
