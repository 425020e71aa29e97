"""``forkwise doctor --repair``: each damage is named, and only the damaged part is taken out of use."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise import ForkwiseWarning, Workspace, open_ledger
from forkwise.errors import LedgerError
from tests.need import need

Ask = Callable[..., Any]
Run = Callable[..., Result]


def commit(workspace: Workspace, name: str) -> None:
    with workspace.branch(name) as branch:
        (branch.path / name).write_text(name)


@pytest.fixture
def damaged(tmp_path: Path) -> Workspace:
    """A workspace with three commits, of which the second has no readable record, and a branch that is torn."""
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws")
    for name in "abc":
        commit(workspace, name)
    torn = workspace.branch("torn").keep()
    (torn.path / "work.txt").write_text("a day's work")
    torn.hide()
    workspace.branch("sound").keep()
    (workspace.state / "branches/torn/branch.json").write_text("")
    (workspace.state / "history/2/record.json").write_text('{"format": 1}')
    return workspace


def repair(ask: Ask, workspace: Workspace, *words: str) -> list[dict[str, Any]]:
    damages: list[dict[str, Any]] = ask("doctor", "--repair", *words, str(workspace.path))["damaged"]
    return damages


def test_it_says_what_it_would_do_and_does_it(ask: Ask, damaged: Workspace) -> None:
    planned = repair(ask, damaged, "--dry-run")
    assert [(d["kind"], Path(d["path"]).name, d["kept"]) for d in planned] == [
        ("commit", "2", None),
        ("branch", "torn", None),
    ]
    assert (damaged.state / "branches/torn").exists()
    done = repair(ask, damaged)
    assert [d["reason"] for d in done] == [d["reason"] for d in planned]
    assert [d["action"] for d in done] == [d["action"] for d in planned]
    assert Path(done[1]["kept"], "layer/work.txt").read_text() == "a day's work"
    assert repair(ask, damaged) == []
    assert [b.name for b in damaged.branches()] == ["sound"]
    assert [c.id for c in damaged.history()] == [3, 1]
    assert damaged.undo().undoes == 3
    damaged.branch("torn").abort()


def test_it_prints_the_same(run: Run, damaged: Workspace) -> None:
    printed = run("doctor", "--repair", "--dry-run", str(damaged.path)).output
    assert "branches/torn: it is empty" in printed
    assert "would: set the branch aside" in printed
    assert "done:" in run("doctor", "--repair", str(damaged.path)).output
    assert "Nothing is damaged." in run("doctor", "--repair", str(damaged.path)).output


@pytest.mark.parametrize("link", ["history/2/home", "history/2/home/layer", "branches/sound/layer"])
def test_a_link_in_the_place_of_a_directory_is_found(ask: Ask, tmp_path: Path, link: str) -> None:
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws")
    for name in "abc":
        commit(workspace, name)
    sound = workspace.branch("sound").keep()
    sound.hide()
    elsewhere = tmp_path / "elsewhere"
    place = workspace.state / link
    need(place.is_dir(), "a view that keeps only what changed: of others a commit keeps no layer")
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    content = sorted(path.relative_to(elsewhere) for path in elsewhere.rglob("*"))
    damaged = "/".join(link.split("/")[:2])
    [planned] = repair(ask, workspace, "--dry-run")
    assert (planned["path"], planned["kept"]) == (str(workspace.state / damaged), None)
    assert "symbolic link" in planned["reason"]
    [done] = repair(ask, workspace)
    assert Path(done["kept"], *link.split("/")[2:]).is_symlink()
    assert sorted(path.relative_to(elsewhere) for path in elsewhere.rglob("*")) == content
    assert repair(ask, workspace) == []
    again = Workspace(tmp_path / "ws")
    assert again.undo().undoes == 3
    assert [c.id for c in again.history()][1:] == ([3, 1] if "history" in link else [3, 2, 1])


def test_a_link_of_a_commit_damages_its_undo(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws")
    commit(workspace, "a")
    workspace.undo()
    history = workspace.state / "history/1"
    history.rename(tmp_path / "elsewhere")
    history.symlink_to(tmp_path / "elsewhere")
    found = repair(ask, workspace)
    assert [Path(damage["path"]).name for damage in found] == ["2", "1"]
    assert repair(ask, workspace) == []
    assert (tmp_path / "elsewhere/record.json").exists()


def test_dry_run_alone_is_refused(run: Run) -> None:
    assert "--repair" in run("doctor", "--dry-run", code=2).stderr


@pytest.mark.parametrize("names", [[], ["x"], ["-1"]])
def test_a_lost_head_is_found_again(run: Run, ask: Ask, tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws")
    for name in "ab":
        commit(workspace, name)
    (workspace.state / "head/2").rmdir()
    for name in names:
        (workspace.state / "head" / name).mkdir()
    assert "doctor --repair" in run("log", "-C", str(workspace.path), code=1).stderr
    [damage] = repair(ask, workspace)
    assert damage["kind"] == "head"
    assert [c.id for c in Workspace(tmp_path / "ws").history()] == [2, 1]
    assert Workspace(tmp_path / "ws").undo().undoes == 2


def test_an_unfinished_commit_of_another_directory_is_set_aside(run: Run, ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws")
    commit(workspace, "a")
    (workspace.state / "head/1").rename(workspace.state / "head/0+")
    (tmp_path / "ws").rename(tmp_path / "old")
    (tmp_path / "ws").mkdir()
    assert "doctor --repair" in run("log", "-C", str(workspace.path), code=1).stderr
    [damage] = repair(ask, workspace)
    assert "another directory" in damage["reason"]
    assert Workspace(tmp_path / "ws").history() == []
    assert list((tmp_path / "ws").iterdir()) == []


BROKEN = ["", "null", "[]", "{}", "{", "[" * 100_000, '{"id": 1}', '{"id": "x", "surplus": 1}']


@pytest.mark.parametrize("data", BROKEN)
def test_a_damaged_row_of_the_ledger_takes_away_that_row_only(ask: Ask, tmp_path: Path, data: str) -> None:
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws")
    with open_ledger(workspace) as ledger:
        one, two = (ledger.begin_fork("try", workspace=str(workspace.path), spec={"n": n}) for n in range(2))
        first, second = (ledger.add_attempt(one.id, str(n), index=n, label="x", branch=f"/main/{n}") for n in range(2))
    edit(workspace, "UPDATE forks SET data = ? WHERE id = ?", data, two.id)
    edit(workspace, "UPDATE attempts SET data = ? WHERE id = ?", data, second.id)
    with open_ledger(workspace) as ledger:
        with pytest.warns(ForkwiseWarning, match="is damaged and left out"):
            assert [fork.id for fork in ledger.forks()] == [one.id]
        with pytest.warns(ForkwiseWarning, match="is damaged and left out"):
            assert [summary.fork.id for summary in ledger.summaries()] == [one.id]
        with pytest.warns(ForkwiseWarning, match="is damaged and left out"):
            assert [attempt.id for attempt in ledger.attempts(one.id)] == [first.id]
        with pytest.raises(LedgerError, match="doctor --repair"):
            ledger.fork(two.id)
        with pytest.raises(LedgerError, match="doctor --repair"):
            ledger.attempt(second.id)
    done = repair(ask, workspace)
    assert [damage["action"] for damage in done] == ["rebuilt from its events"] * 2
    with open_ledger(workspace) as ledger:
        assert ledger.fork(two.id) == two
        assert ledger.attempt(second.id) == second


def test_a_row_that_cannot_be_rebuilt_is_moved(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws")
    with open_ledger(workspace) as ledger:
        fork = ledger.begin_fork("try", workspace=str(workspace.path), spec={})
    edit(workspace, "UPDATE events SET data = ?", "torn")
    edit(workspace, "UPDATE forks SET data = ?", "torn")
    assert len(repair(ask, workspace, "--dry-run")) == 2
    assert len(repair(ask, workspace)) == 2
    assert repair(ask, workspace) == []
    kept = (workspace.state / "ledger/damaged.jsonl").read_text().splitlines()
    assert [json.loads(line)[0] for line in kept] == ["events", "forks"]
    assert fork.id in kept[1]


def test_a_ledger_that_is_no_database_is_set_aside(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws")
    open_ledger(workspace).close()
    (workspace.state / "ledger/ledger.db").write_bytes(b"no database" * 1000)
    [damage] = repair(ask, workspace)
    assert Path(damage["kept"]).read_bytes().startswith(b"no database")
    with open_ledger(workspace) as ledger:
        assert ledger.forks() == []


def edit(workspace: Workspace, statement: str, *values: str) -> None:
    database = sqlite3.connect(workspace.state / "ledger/ledger.db")
    with database:
        database.execute(statement, values)
    database.close()
