"""Panels over a real ledger: the forks that they read, and the effect of decisions on the workspace."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from forkwise import LedgerError, Workspace
from forkwise.ledger.sqlite import open_ledger
from forkwise.tui.decide import PreviewScreen
from forkwise.tui.diff_view import NwayScreen
from forkwise.tui.fork_model import ForkModel
from forkwise.tui.watch import ForksScreen, WatchApp
from forkwise.tui.widgets import QuestionScreen
from tests.tui.pilot import Scene, play, until

pytestmark = pytest.mark.integration

Run = Callable[..., Result]

TEXT = "one\ntwo\nthree\nfour\nfive\n"
FIRST = "echo said; sed -i s/one/UNO/ a.txt"
SECOND = "sed -i 's/one/EINS/; s/five/FÜNF/' a.txt"


@pytest.fixture
def model(project: Path, run: Run) -> Iterator[ForkModel]:
    """A fork of two attempts that waits for a pick, and that has a test."""
    (project / "a.txt").write_text(TEXT)
    options = ("--all", "--no-commit", "--quiet", "--test", "grep -q two a.txt")
    run("speculate", *options, "-c", FIRST, "-c", SECOND)
    found = ForkModel(project)
    yield found
    found.close()


async def begun(scene: Scene) -> None:
    await scene.shows("waits for a pick")


def test_read(model: ForkModel, run: Run) -> None:
    snapshot = model.read()
    assert snapshot is not None
    assert (snapshot.state, [attempt.state for attempt in snapshot.own]) == ("open", ["succeeded", "succeeded"])
    assert model.output(f"{snapshot.fork.id}.1", 0) == (5, b"said\n")
    assert "+UNO" in model.diff(f"{snapshot.fork.id}.1")
    assert [summary.fork.id for summary in model.forks()] == [snapshot.fork.id]
    with pytest.raises(LedgerError, match="has no commit"):
        model.read_commit(snapshot.fork)
    run("pick", f"{snapshot.fork.id}.1")
    assert "+UNO" in model.diff(f"{snapshot.fork.id}.1"), "the winner's diff is available after its branch was dropped"


def test_the_default_fork(project: Path, run: Run) -> None:
    model = ForkModel(project)
    assert model.read() is None
    with pytest.raises(LedgerError, match="no fork yet"):
        model.abort()
    run("run", "--quiet", "--", "true")
    first = model.read()
    run("run", "--quiet", "--", "true")
    assert model.read() == first, "the model keeps the fork it has found"
    newest = ForkModel(project).read()
    assert first is not None
    assert newest is not None
    assert newest.fork.id != first.fork.id
    assert ForkModel(project, first.fork.id[:5]).read() == first
    with open_ledger(Workspace(project)) as ledger:
        running = ledger.begin_fork("program", workspace=str(project), spec={})
        ledger.begin_fork("done", workspace=str(project), spec={})
        ledger.abort_fork(ledger.forks()[0].id, "over")
    of_program = ForkModel(project)
    snapshot = of_program.read()
    assert snapshot is not None
    assert snapshot.fork.id == running.id, "a running fork takes precedence over a newer one that is over"
    assert of_program.tests() is None


def _begin_fork(project: Path, prompt: str) -> str:
    """Begin a fork of one attempt by an agent in the ledger, as another process would, and return its id."""
    spec = {"prompts": [prompt], "variants": [{"agent": "claude", "prompt": 0}]}
    with open_ledger(Workspace(project)) as ledger:
        fork = ledger.begin_fork("best-of", workspace=str(project), spec=spec)
        ledger.add_attempt(fork.id, "0", index=0, label="claude -p", branch=f"{fork.id}-1", agent="claude", variant=0)
    return fork.id


def test_watch_follows_a_new_fork_and_shows_its_prompt(model: ForkModel, project: Path, run: Run) -> None:
    async def script(scene: Scene) -> None:
        await begun(scene)
        first = model.fork
        assert first is not None
        await scene.press("space")  # marked: the user is about to decide this fork
        second = _begin_fork(project, "sort the \x1b[31mrows\nby date")
        await until(lambda: model.is_held)
        snapshot = scene.watch.snapshot
        await until(lambda: scene.watch.snapshot is not snapshot)
        assert model.fork == first, "a fork that the user is about to decide is not replaced"
        await scene.press("up", "space")
        await scene.shows(f"best-of {second}")
        assert scene.watch.table.marked == []
        await scene.shows(f"{second}.1  claude -p  sort the")
        assert "by date" in scene.text, "the prompt is on one line"
        assert "\x1b" not in scene.text
        third = _begin_fork(project, "another")
        snapshot = scene.watch.snapshot
        await until(lambda: scene.watch.snapshot is not snapshot)
        assert model.fork == second, "a running fork is not replaced"
        with open_ledger(Workspace(project)) as ledger:
            ledger.abort_fork(second, "over")
        await scene.shows(f"best-of {third}")

    play(WatchApp(model), script, size=(110, 24))


def test_watch_stays_with_a_fork_that_was_chosen(model: ForkModel, project: Path) -> None:
    async def script(scene: Scene) -> None:
        await begun(scene)
        first = model.fork
        await scene.press("f")
        await scene.comes_to(ForksScreen)
        await scene.press("enter")
        await until(lambda: model.is_chosen)
        _begin_fork(project, "unwanted")
        for _ in range(2):
            snapshot = scene.watch.snapshot
            await until(lambda snapshot=snapshot: scene.watch.snapshot is not snapshot)
        assert model.fork == first

    play(WatchApp(model), script)


def test_pick_and_undo(model: ForkModel, project: Path) -> None:
    async def script(scene: Scene) -> None:
        await begun(scene)
        await scene.press("p")
        await scene.comes_to(QuestionScreen)
        await scene.press("y")
        await scene.shows("#1 → commit 1")
        assert (project / "a.txt").read_text() == TEXT.replace("one", "UNO")
        await scene.press("u")
        await scene.comes_to(QuestionScreen)
        await scene.press("y")
        await scene.shows("#1 → commit 1, undone by 2")
        assert (project / "a.txt").read_text() == TEXT

    play(WatchApp(model), script)
    assert Workspace(project).branches() == []


def test_a_choice_from_conflicting_attempts_is_tested_and_committed(model: ForkModel, project: Path) -> None:
    async def script(scene: Scene) -> None:
        await begun(scene)
        await scene.press("space", "space", "c")
        await scene.comes_to(QuestionScreen)
        await scene.press("y")
        await scene.shows("Their changes conflict")
        await scene.press("n")
        await scene.comes_to(NwayScreen)
        await scene.press("space", "down", "right", "space", "enter")
        await scene.comes_to(PreviewScreen)
        await scene.shows("✓ tests:")
        await scene.press("enter")
        await scene.shows("#1 #2 → commit 1")

    play(WatchApp(model), script)
    assert (project / "a.txt").read_text() == TEXT.replace("one", "UNO").replace("five", "FÜNF")
    assert Workspace(project).branches() == []


def test_changes_open_in_the_users_diff_tool(model: ForkModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "tool"
    tool.write_text('#!/bin/sh\ncat "$1" "$2" > "$0.part" && mv "$0.part" "$0.seen"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("FORKWISE_DIFFTOOL", f"{tool} {{parent}} {{branches}}")
    seen = tmp_path / "tool.seen"

    async def script(scene: Scene) -> None:
        await begun(scene)
        await scene.press("o")
        await scene.notifies("Opened the changes of ")
        await until(seen.exists)
        assert seen.read_text() == TEXT + TEXT.replace("one", "UNO")

    play(WatchApp(model), script)
    assert model.fork is not None
    monkeypatch.setenv("FORKWISE_DIFFTOOL", "vimdiff {parent} {branches}")
    commands = model.prepare_difftool(f"{model.fork}.2")
    assert commands.uses_terminal
    copies = [Path(word) for word in commands.commands[0][1:]]
    assert [copy.read_text() for copy in copies] == [TEXT, TEXT.replace("one", "EINS").replace("five", "FÜNF")]
    model.close()
    assert not any(copy.exists() for copy in copies)


def test_abort(model: ForkModel, project: Path) -> None:
    async def script(scene: Scene) -> None:
        await begun(scene)
        await scene.press("a")
        await scene.comes_to(QuestionScreen)
        await scene.press("y")
        await scene.shows("⊘ aborted")

    play(WatchApp(model), script)
    assert Workspace(project).branches() == []
    assert (project / "a.txt").read_text() == TEXT


def test_leaving_while_a_choice_is_tested_leaves_nothing(model: ForkModel, project: Path) -> None:
    assert model.read() is not None
    [lineup] = model.line_up(())
    assert lineup.alignment is not None
    hunks = frozenset(lineup.alignment.of(lineup.alignment.versions[0]))

    async def cancelled() -> None:
        preparing = asyncio.ensure_future(model.prepare({"a.txt": hunks}))
        while not any(b.name.endswith("-choice") for b in Workspace(project).branches()):  # the test itself is quick
            await asyncio.sleep(0.001)
        preparing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await preparing

    before = {branch.name for branch in Workspace(project).branches()}
    asyncio.run(cancelled())
    assert {branch.name for branch in Workspace(project).branches()} == before


def test_the_command_line_does_not_load_textual() -> None:
    code = "import sys, forkwise.cli; sys.exit('textual' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
