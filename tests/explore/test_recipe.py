"""Recipes: patterns as JSON, their permissions, and observers."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from forkwise import Branch, Confinement, LedgerError, Workspace
from forkwise.explore.recipe import Allowance, Recipe
from forkwise.files.store.changes import Commit
from forkwise.fork.agent_paths.paths import AgentPaths
from forkwise.fork.fork import open_ledger


def test_a_recipe_survives_being_written_down() -> None:
    recipe = Recipe(
        kind="beam",
        commands=(("sh", "-c", "x"), ("y",)),
        expand=(("z", "1"),),
        environment=(("A", "b"),),
        allowance=Allowance(network="host", writable=("~/.cache",), passed=("KEY",)),
        own_allowances=((("agent", "do it"), Allowance(shown=("~/.agent/login",), paths=AgentPaths(("~/.agent",)))),),
        fan_out=(3, 9),
    )
    assert Recipe.from_json(json.loads(json.dumps(recipe.as_json()))) == recipe
    with pytest.raises(LedgerError, match="started by a program"):
        Recipe.from_json({"kind": "beam"})


def test_what_candidates_are_allowed_the_tests_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "k3y")
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.mkdir()
    allowance = Allowance(network="host", writable=(str(there), str(missing)), passed=("*_API_KEY",))
    recipe = Recipe(kind="run", commands=(("true",),), confinement="strict", tests="make test", allowance=allowance)
    tests = recipe.build_tests()
    assert tests is not None
    assert (tests.confinement.network, tests.confinement.writable, dict(tests.confinement.given)) == ("none", (), {})
    allowed = allowance.apply_to(recipe.build_confinement())
    assert (allowed.network, allowed.writable, dict(allowed.given)) == ("host", (str(there),), {"SOME_API_KEY": "k3y"})
    assert "k3y" not in json.dumps(recipe.as_json())


def test_given_variables_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAME", "passed")
    confinement = Confinement.strict(given={"NAME": "given"})
    assert Allowance(passed=("NAME",)).apply_to(confinement).given == {"NAME": "given"}


class RecordingObserver:
    """An observer that records its calls."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def fork_started(self, fork: str) -> None:
        self.seen.append(fork)

    def winner_found(self, branch: Branch) -> None:
        self.seen.append(branch.diff())


@pytest.mark.parametrize("commits", [True, False])
def test_an_observer_sees_the_winner_before_its_branch_is_dropped(workspace: Workspace, commits: bool) -> None:
    recipe = Recipe(
        kind="tree",
        commands=(("sh", "-c", "echo two >> a.txt"),),
        expand=(("sh", "-c", "echo three >> a.txt"),),
        commit=commits,
        keep=not commits,
    )
    observer = RecordingObserver()
    outcome = asyncio.run(recipe.pattern(workspace).run(workspace, observer=observer))
    fork, diff = observer.seen
    assert fork == outcome.fork
    assert diff.endswith(" one\n+two\n+three\n")
    for branch in reversed(workspace.branches()):
        branch.abort()


def test_without_a_winner_the_observer_sees_none(workspace: Workspace) -> None:
    observer = RecordingObserver()
    asyncio.run(Recipe(kind="run", commands=(("false",),)).pattern(workspace).run(workspace, observer=observer))
    assert len(observer.seen) == 1


def test_a_decision_is_completed_despite_cancellation(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    commit = Branch.commit

    def slow(branch: Branch, **options: Any) -> Commit:
        begun.set()
        go_on.wait()
        return commit(branch, **options)

    monkeypatch.setattr(Branch, "commit", slow)

    async def main() -> bool:
        pattern = Recipe(kind="run", commands=(("sh", "-c", "echo two > a.txt"),)).pattern(workspace)
        running = asyncio.create_task(pattern.run(workspace))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()
        go_on.set()
        return (await running).committed

    assert asyncio.run(main())
    assert (workspace.path / "a.txt").read_text() == "two\n"
    with open_ledger(workspace) as ledger:
        assert ledger.forks()[0].commit == 1


def test_cancelled_before_anything_was_decided(workspace: Workspace) -> None:
    async def main() -> None:
        recipe = Recipe(kind="run", commands=(("sh", "-c", "echo two > a.txt; sleep 600"),), keep=True)
        running = asyncio.create_task(recipe.pattern(workspace).run(workspace))
        while not workspace.branches():
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert workspace.branches() == []
    with open_ledger(workspace) as ledger:
        assert ledger.forks()[0].resolution == {"how": "abort", "reason": "it was interrupted"}


def test_a_resumed_tree_treats_a_dead_end_as_before() -> None:
    recipe = Recipe(kind="tree", commands=(("true",),), on_dead_end="fail")
    stored = json.loads(json.dumps(recipe.as_json()))
    assert Recipe.from_json(stored) == recipe
    del stored["on_dead_end"]  # as stored by an earlier version
    assert Recipe.from_json(stored).on_dead_end == "keep"
