"""A fork records what other programs change in the workspace while it runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from click.testing import CliRunner

from forkwise import Speculate, Workspace
from forkwise.cli import forkwise_command
from forkwise.ledger.sqlite import open_ledger


def test_edits_are_in_the_ledger_and_shown(workspace: Workspace) -> None:
    def attempt(path: Path) -> bool:
        (path / "a.txt").write_text("two\n")
        subprocess.run(["sh", "-c", "echo x > 'by an editor'; echo x > another"], cwd=workspace.path, check=True)
        return True

    outcome = Speculate([attempt])(workspace)
    assert outcome.committed
    with open_ledger(workspace) as ledger:
        fork = ledger.forks()[0]
        events = [event for event in ledger.events(fork=fork.id) if event.kind == "edited"]
    assert fork.edits is not None
    assert sorted(fork.edits["paths"]) == ["another", "by an editor"]
    assert not fork.edits["more"]
    assert 1 <= len(events) <= 2
    shown = CliRunner().invoke(forkwise_command, ["show", fork.id, "-C", str(workspace.path)])
    assert "Changed in the workspace meanwhile, by other programs: " in shown.stdout, shown
    assert "by an editor" in shown.stdout


def test_few_of_many_are_recorded(workspace: Workspace) -> None:
    def attempt(path: Path) -> bool:
        for number in range(80):
            (workspace.path / f"edit\x1b\udcff{number}").write_text("x")
        return True

    Speculate([attempt, attempt])(workspace)
    with open_ledger(workspace) as ledger:
        fork = ledger.forks()[0]
    assert fork.edits is not None
    assert (len(fork.edits["paths"]), fork.edits["more"]) == (50, True)


def test_an_undisturbed_fork_has_none(workspace: Workspace) -> None:
    outcome = Speculate([["sh", "-c", "echo two > a.txt"], ["sh", "-c", "mkdir d; echo x > d/e"]])(workspace)
    assert outcome.committed
    with open_ledger(workspace) as ledger:
        assert ledger.forks()[0].edits is None


def test_a_directory_is_recorded_once(workspace: Workspace) -> None:
    with open_ledger(workspace) as ledger:
        fork = ledger.begin_fork("try", workspace=str(workspace.path), spec={}).id
        for paths in (["deep", "deep/file"], ["deep/", "a.txt"], ["deep/"]):
            ledger.record_edits(fork, paths)
        assert ledger.fork(fork).edits == {"paths": ["deep", "deep/file", "a.txt"], "more": False}
        assert len(ledger.events(fork=fork)) == 3
        ledger.abort_fork(fork, "over")
