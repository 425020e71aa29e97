"""``forkwise watch`` in a terminal: every key, and its decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from textual.widgets import Button

from forkwise import ConflictError, ExecutableConfigError, LedgerError
from forkwise.display.board import Row
from forkwise.files.path_merge import Clash
from forkwise.files.store.changes import Conflict
from forkwise.fork.combine import Combined
from forkwise.ledger.records import Summary
from forkwise.testing.report import TestReport
from forkwise.tui.decide import PreviewScreen
from forkwise.tui.diff_view import DiffScreen, NwayScreen
from forkwise.tui.watch import AttemptTable, ForksScreen, WatchApp
from forkwise.tui.widgets import QuestionScreen
from tests.tui.pilot import COMMIT, RecordingFork, Scene, play, until, watching

pytestmark = pytest.mark.integration

FAILING = TestReport(source="exit code", exit_code=1, failed=1)


@pytest.fixture
def fork() -> RecordingFork:
    return RecordingFork()


def combined(**fields: Any) -> Combined:
    nothing = {"fork": "k3f9ab", "attempts": ("k3f9ab.1", "k3f9ab.2"), "merged": (), "taken": {}, "conflicts": ()}
    return Combined(**{**nothing, "tests": None, "commit": None, **fields})


async def answered(scene: Scene, *keys: str) -> None:
    """Answer a question."""
    await scene.comes_to(QuestionScreen)
    await scene.press(*keys)


# Screens


def test_attempts_are_shown_with_their_states(fork: RecordingFork) -> None:
    async def script(scene: Scene) -> None:
        await scene.shows("best-of k3f9ab  ● running  1:15  2● 1✓ 1✗ 1⊘ 1○")
        await scene.shows("q quit")  # the footer is drawn later
        for line in ("✓ succeeded  1", "● running    2", "✗ failed     4", "⊘ cancelled  5", "○ pending    6"):
            assert line in scene.text
        for word in ("24/24", "0.92", "$0.21", "0:41"):
            assert word in scene.text

    watching(fork, script)


def test_the_winner_and_the_commit(fork: RecordingFork) -> None:
    rows = fork.read().rows
    fork.rows = [replace(rows[0], has_won=True), *rows[1:]]
    fork.state, fork.fields = "resolved", {"stored": "resolved", "winner": "k3f9ab.1", "commit": 3}

    async def script(scene: Scene) -> None:
        await scene.shows("★ won")
        await scene.shows("#1 → commit 3")
        fork.fields |= {"undone": 4}
        await scene.shows("#1 → commit 3, undone by 4")

    watching(fork, script)


def test_output_follows_the_log_and_the_cursor(fork: RecordingFork) -> None:
    async def script(scene: Scene) -> None:
        fork.printed["k3f9ab.1"] = b"compil"
        await scene.shows("compil")
        fork.printed["k3f9ab.1"] += b"ing\n\x1b[31mred\x1b[0m\n"
        await scene.shows("compiling\nred")
        fork.printed["k3f9ab.2"] = b"another\n"
        await scene.press("down")
        await scene.shows("another")
        assert "compiling" not in scene.text
        await scene.press("down", "down")
        await scene.shows("codex exec 'a skip list'  exit code 1")

    watching(fork, script)


def test_an_agent_has_steps_and_its_output_is_a_key_away(fork: RecordingFork) -> None:
    fork.stepped["k3f9ab.1"] = ["edit src/store.py"]
    fork.printed["k3f9ab.1"] = b'{"type":"assistant"}\n'

    async def script(scene: Scene) -> None:
        await scene.shows("edit src/store.py")
        await scene.shows("r: its output")
        fork.stepped["k3f9ab.1"] += ["bash: pytest -q"]
        await scene.shows("edit src/store.py\nbash: pytest -q")
        assert '{"type"' not in scene.text
        await scene.press("r")
        await scene.shows('{"type":"assistant"}')
        await scene.shows("r: its steps")
        assert "bash: pytest" not in scene.text
        await scene.press("r")
        await scene.shows("bash: pytest -q")
        assert '{"type"' not in scene.text
        fork.printed["k3f9ab.2"] = b"of a command\n"
        await scene.press("down")
        await scene.shows("of a command")
        await until(lambda: "r: its" not in scene.text)

    watching(fork, script)


def test_only_changed_cells_are_drawn_again(fork: RecordingFork, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fork.read().rows[0].attempt
    fork.rows = [Row(replace(first, id=f"k3f9ab.{n}"), 0, has_won=False) for n in range(1, 51)]
    drawn: list[tuple[Any, ...]] = []
    put = AttemptTable.update_cell

    def update(self: AttemptTable, *what: Any, **how: Any) -> None:
        drawn.append(what[:2])
        put(self, *what, **how)

    monkeypatch.setattr(AttemptTable, "update_cell", update)

    async def script(scene: Scene) -> None:
        assert fork.rows is not None
        assert scene.watch.table.row_count == 50
        fork.rows[20] = Row(replace(first, id="k3f9ab.21", files=9), 0, has_won=False)
        await until(lambda: bool(drawn))
        looks = fork.looks
        await until(lambda: fork.looks > looks + 2)
        assert drawn == [("k3f9ab.21", "files")]
        fork.rows[0] = Row(replace(first, files=1234567), 0, has_won=False)
        await scene.shows("1234567  24/24")  # the columns to its right have moved
        fork.rows[0] = Row(replace(first, files=1234567, git="2 commits"), 0, has_won=False)
        await scene.shows("1234567  2 commits  24/24")

    watching(fork, script)


def test_attempts_inside_attempts(fork: RecordingFork) -> None:
    rows = list(fork.read().rows)
    inner = Row(replace(rows[0].attempt, id="z9zzzz.1", fork="z9zzzz"), 1, has_won=False)

    async def script(scene: Scene) -> None:
        await scene.press("down")
        fork.rows = [rows[0], inner, *rows[1:]]
        await scene.shows("  z9zzzz.1")
        assert scene.text.index("z9zzzz.1") < scene.text.index("● running    2")
        assert scene.watch.table.current == "k3f9ab.2"

    watching(fork, script)


def test_waiting_for_a_fork(fork: RecordingFork, monkeypatch: pytest.MonkeyPatch) -> None:
    read = fork.read
    there = False
    monkeypatch.setattr(fork, "read", lambda: read() if there else None)

    async def script(scene: Scene) -> None:
        nonlocal there
        await scene.shows("waiting for a fork")
        await scene.press("a", "u", "d", "p", "w", "c")
        await scene.notifies("There is no fork yet.")
        assert fork.decisions == []
        there = True
        await scene.shows("best-of k3f9ab")

    play(WatchApp(fork), script)


def test_the_diff_of_an_attempt(fork: RecordingFork) -> None:
    async def script(scene: Scene) -> None:
        for key in ("d", "enter"):
            await scene.press(key)
            await scene.comes_to(DiffScreen)
            await scene.shows("+        self.rows = {}")
            await scene.press("escape")
            await scene.comes_back()
        assert fork.decisions == []

    watching(fork, script)


def test_errors_are_reported(fork: RecordingFork, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(attempt: str) -> str:
        raise LedgerError(f"[{attempt}] has no branch")

    monkeypatch.setattr(fork, "diff", gone)

    async def script(scene: Scene) -> None:
        await scene.press("d")
        await scene.notifies("[k3f9ab.1] has no branch")

    watching(fork, script)


def test_the_winners_diff(fork: RecordingFork) -> None:
    async def script(scene: Scene) -> None:
        await scene.press("w")
        await scene.notifies("No attempt has won yet.")
        fork.fields = {"verdict": {"winner": "k3f9ab.2"}}
        await scene.sees(lambda look: look.fork.verdict is not None)
        await scene.press("w")
        await scene.shows("k3f9ab.2: changes")
        await scene.press("escape")
        await scene.comes_back()
        fork.fields = {"stored": "resolved", "commit": 7}
        await scene.sees(lambda look: look.fork.commit == 7)
        await scene.press("w")
        await scene.shows("diff of commit 7")

    watching(fork, script)


def test_another_fork(fork: RecordingFork) -> None:
    other = replace(fork.read().fork, id="m4n5p6", kind="tournament")
    fork.others = [Summary(fork.read().fork, {"running": 2}, None, "make it fast"), Summary(other, {"failed": 1})]

    async def script(scene: Scene) -> None:
        await scene.press("space", "f")
        await scene.comes_to(ForksScreen)
        await scene.shows("make it fast")
        await scene.press("escape")
        await scene.comes_back()
        await scene.press("f")
        await scene.comes_to(ForksScreen)
        await scene.press("down", "enter")
        await scene.shows("m4n5p6")
        assert scene.watch.table.marked == []

    watching(fork, script)


def test_light_and_dark(fork: RecordingFork) -> None:
    async def script(scene: Scene) -> None:
        assert scene.app.current_theme.dark
        await scene.press("t")
        assert not scene.app.current_theme.dark
        await scene.press("t")
        assert scene.app.current_theme.dark

    watching(fork, script)


def test_the_mouse(fork: RecordingFork) -> None:
    async def script(scene: Scene) -> None:
        await scene.pilot.click("#attempts", offset=(20, 3))
        assert scene.watch.table.current == "k3f9ab.3"
        await scene.press("a")
        await scene.comes_to(QuestionScreen)
        await scene.pilot.click("#answer-y")
        await until(lambda: fork.decisions == [("abort",)])

    watching(fork, script)


# Decisions


def test_pick(fork: RecordingFork) -> None:
    async def script(scene: Scene) -> None:
        await scene.press("p")
        await scene.comes_to(QuestionScreen)
        assert "Commit k3f9ab.1 and drop the others?" in scene.text
        assert "3 of its attempts have not ended" in scene.text
        await scene.press("escape")
        await scene.comes_back()
        await scene.press("p")
        await answered(scene, "n")
        await scene.comes_back()
        await scene.press("p")
        await answered(scene, "enter")  # "no" has the focus
        await scene.comes_back()
        assert fork.decisions == []
        await scene.press("p")
        await answered(scene, "y")
        await scene.notifies("Committed as 3: 1 added")
        assert fork.decisions == [("pick", "k3f9ab.1", "refuse", False)]

    watching(fork, script)


def test_pick_a_failed_attempt(fork: RecordingFork) -> None:
    async def script(scene: Scene) -> None:
        await scene.press("down", "down", "down", "p")
        await scene.comes_to(QuestionScreen)
        assert "It failed: exit code 1" in scene.text
        await scene.press("y")
        await until(lambda: fork.decisions == [("pick", "k3f9ab.4", "refuse", True)])

    watching(fork, script)


def test_pick_in_conflict(fork: RecordingFork) -> None:
    conflict = ConflictError("no", conflicts=[Conflict("a.txt", "changed", "by hand")])
    answers = {"m": "merge", "o": "ours", "t": "theirs", "escape": None}
    fork.outcomes = [outcome for how in answers.values() for outcome in ([conflict, COMMIT] if how else [conflict])]
    first = ("pick", "k3f9ab.1", "refuse", False)

    async def script(scene: Scene) -> None:
        for key, how in answers.items():
            fork.decisions = []
            await scene.press("p")
            await answered(scene, "y")
            await scene.shows("a.txt")
            await scene.press(key)
            await scene.comes_back()
            decided = [first, ("pick", "k3f9ab.1", how, False)] if how else [first]
            await until(lambda decided=decided: fork.decisions == decided and not scene.watch.activity)

    watching(fork, script)


def test_executable_configuration_is_asked_about(fork: RecordingFork) -> None:
    refused = ExecutableConfigError("no", executors={".envrc": "direnv", "a\x1b[2J.pth": "every Python"})
    first = ("pick", "k3f9ab.1", "refuse", False)
    fork.outcomes = [refused, refused, COMMIT, refused, combined(commit=COMMIT)]

    async def script(scene: Scene) -> None:
        await scene.press("p")
        await answered(scene, "y")
        await scene.shows("Commit it anyway?")
        assert "This changes what your machine will run" in scene.text
        assert ".envrc: direnv" in scene.text
        await scene.press("escape")
        await scene.comes_back()
        await until(lambda: fork.decisions == [first] and not scene.watch.activity)
        await scene.press("p")
        await answered(scene, "y")
        await answered(scene, "y")
        await scene.notifies("Committed as 3")
        assert fork.decisions[1:] == [first, (*first, "allowed")]
        await scene.press("space", "space", "up", "space", "space", "c")
        await answered(scene, "y")
        await answered(scene, "y")
        await until(lambda: len(fork.decisions) == 5)
        assert [decision[-1] for decision in fork.decisions[3:]] == [False, "allowed"]

    watching(fork, script)


def test_combine(fork: RecordingFork) -> None:
    fork.outcomes = [combined(commit=COMMIT)]

    async def script(scene: Scene) -> None:
        await scene.press("c")
        await scene.notifies("Mark at least two")
        await scene.press("space", "space", "up", "space", "space")
        assert scene.watch.table.marked == ["k3f9ab.1", "k3f9ab.3"]
        await scene.shows("▪  ● running    3")
        await scene.press("c")
        await scene.comes_to(QuestionScreen)
        assert "Merge k3f9ab.1, k3f9ab.3, test the result" in scene.text
        await scene.press("y")
        await scene.notifies("Committed as 3")
        assert fork.decisions == [("combine", ("k3f9ab.1", "k3f9ab.3"), False)]

    watching(fork, script)


def test_combine_attempts_that_fail_the_tests(fork: RecordingFork) -> None:
    fork.outcomes = [combined(tests=FAILING), combined(tests=FAILING, commit=COMMIT)]

    async def script(scene: Scene) -> None:
        await scene.press("space", "space", "c")
        await answered(scene, "y")
        await scene.shows("The tests of the combination fail")
        await scene.press("y")
        await scene.notifies("Committed as 3")
        assert [decision[-1] for decision in fork.decisions] == [False, True]

    watching(fork, script)


def test_combine_attempts_that_conflict(fork: RecordingFork) -> None:
    clash = Clash("src/store.py", "content", ("k3f9ab.1", "k3f9ab.2"), "both changed line 3")
    fork.outcomes = [combined(conflicts=(clash,))]

    async def script(scene: Scene) -> None:
        await scene.press("space", "space", "c")
        await answered(scene, "y")
        await scene.shows("Their changes conflict")
        await scene.press("n")
        await scene.comes_to(NwayScreen)

    watching(fork, script)


def test_choose_hunk_by_hunk(fork: RecordingFork) -> None:
    async def script(scene: Scene) -> None:
        await scene.press("n")
        await scene.comes_to(NwayScreen)
        await scene.press("n", "space", "enter")
        await scene.comes_to(PreviewScreen)
        await scene.shows("✓ tests: 24 passed")
        await scene.press("escape")
        await scene.comes_to(NwayScreen)
        assert fork.decisions == [("drop",)]
        await scene.shows("accepted: 1 hunk")
        await scene.press("enter")
        await scene.comes_to(PreviewScreen)
        await scene.shows("+        self.rows = {}")
        await scene.press("enter")
        await scene.notifies("Committed as 3")
        assert [decision[0] for decision in fork.decisions] == ["drop", "commit"]
        assert "+        self.rows = {}" in fork.decisions[1][1]

    watching(fork, script)


def test_abort(fork: RecordingFork) -> None:
    async def script(scene: Scene) -> None:
        for key in ("a", "escape"):
            fork.decisions = []
            await scene.press(key)
            await scene.comes_to(QuestionScreen)
            assert "Abort the fork and drop" in scene.text
            await scene.press("y")
            await scene.notifies("Aborted")
            await until(lambda: fork.decisions == [("abort",)] and not scene.watch.activity)

    watching(fork, script)


def test_abort_one_attempt(fork: RecordingFork) -> None:
    async def script(scene: Scene) -> None:
        await scene.press("x")
        await scene.notifies("k3f9ab.1 has already ended: succeeded.")
        await scene.press("down", "x")
        await scene.comes_to(QuestionScreen)
        assert "Abort k3f9ab.2 and everything it started?" in scene.text
        await scene.press("escape")
        await scene.comes_back()
        await scene.press("x")
        await answered(scene, "y")
        await scene.notifies("Aborted k3f9ab.2; the others continue.")
        assert fork.decisions == [("end", "k3f9ab.2")]

    watching(fork, script)


def test_undo(fork: RecordingFork) -> None:
    async def script(scene: Scene) -> None:
        await scene.press("u")
        await scene.notifies("There is no commit to undo")
        fork.fields = {"stored": "resolved", "commit": 7}
        await scene.shows("→ commit 7")
        await scene.press("u")
        await answered(scene, "y")
        await scene.notifies("Undid 7 as 3")
        assert fork.decisions == [("undo", 7)]

    watching(fork, script)


def test_a_resolved_fork_is_not_resolved_again(fork: RecordingFork) -> None:
    fork.state, fork.fields = "aborted", {"stored": "aborted"}

    async def script(scene: Scene) -> None:
        for key in ("p", "a", "n"):
            await scene.press(key)
        await scene.notifies("The fork is already aborted.")
        assert scene.watch is not None
        assert fork.decisions == []

    watching(fork, script)


def test_one_decision_at_a_time(fork: RecordingFork) -> None:
    async def script(scene: Scene) -> None:
        scene.watch.activity = "picking"
        await scene.shows("picking …")
        await scene.press("p", "q")
        await scene.notifies("Still picking; wait for it.")
        assert scene.app.is_running
        scene.watch.activity = ""
        await scene.press("q")
        await until(lambda: not scene.app.is_running)

    watching(fork, script)


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (200, 60)])
def test_it_fits_every_terminal(fork: RecordingFork, size: tuple[int, int]) -> None:
    async def script(scene: Scene) -> None:
        await scene.shows("best-of k3f9ab")
        assert "1" in scene.text
        await scene.press("p")
        await scene.comes_to(QuestionScreen)
        for button in scene.screen.query(Button):
            assert button.region.right <= size[0]
            assert button.region.bottom <= size[1]

    watching(fork, script, size)
