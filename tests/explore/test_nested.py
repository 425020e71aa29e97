"""Patterns inside patterns: each commits into the branch around it, only the outermost into the workspace."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from forkwise import (
    BeamSearch,
    BestOfN,
    ForkResolvedError,
    Reflexion,
    SandboxRunner,
    Speculate,
    TreeOfThoughts,
    TreeSearch,
    Workspace,
)
from forkwise.fork.fork import open_ledger
from tests.leftovers import children, processes_about


def adds(word: str) -> Callable[[Path], bool]:
    """Build a candidate that adds a word to the file ``trail``."""

    def work(path: Path) -> bool:
        with (path / "trail").open("a") as file:
            file.write(f"{word}\n")
        return True

    return work


def fails(path: Path) -> bool:
    adds("wrong")(path)
    return False


def in_place(path: Path) -> Any:
    return path


def as_workspace(path: Path) -> Any:
    return Workspace(path)


def as_text(path: Path) -> Any:
    return os.fspath(path)


def deep(levels: int, look: Callable[[Path], Any], seen: list[str], workspace: Workspace) -> Callable[[Path], bool]:
    """Build a strategy that adds its level, and runs a pattern for the next one inside its own branch."""

    def work(path: Path) -> bool:
        adds(str(levels))(path)
        if levels:
            inner = deep(levels - 1, look, seen, workspace)
            outcome = Speculate([fails, inner], first_wins=False)(look(path))
            assert outcome.committed
            assert outcome.winner is not None
            assert outcome.winner.branch_index == 1
        seen.append((path / "trail").read_text())
        assert not (workspace.path / "trail").exists()
        return True

    return work


@pytest.mark.parametrize("look", [in_place, as_text, as_workspace])
def test_three_levels(look: Callable[[Path], Any], workspace: Workspace) -> None:
    seen: list[str] = []
    outcome = Speculate([deep(3, look, seen, workspace)])(workspace)
    assert outcome.committed, outcome.all_results[0].reason
    assert (workspace.path / "trail").read_text().split() == ["3", "2", "1", "0"]
    assert [len(text.split()) for text in seen] == [4, 4, 4, 4]
    assert len(workspace.history()) == 1
    for state in workspace.state.parent.glob("view-*"):  # of removed workspaces: only a name is left
        assert [p.name for p in state.rglob("*") if not p.is_dir()] == ["workspace.json"]
        shutil.rmtree(state)
    with open_ledger(workspace) as ledger:
        forks = ledger.forks()
        assert len(forks) == 4
        assert [f.state for f in forks] == ["resolved"] * 4
        for inner, outer in pairwise(forks):
            assert inner.parent is not None
            assert inner.parent == outer.winner
        assert forks[-1].parent is None


def test_three_levels_awaited(workspace: Workspace) -> None:
    def level(number: int) -> Any:
        async def work(path: Path) -> bool:
            adds(str(number))(path)
            if number:
                assert (await Speculate([fails, level(number - 1)], first_wins=False).run(path)).committed
            return True

        return work

    async def main() -> Any:
        return await Speculate([level(3), level(3)]).run(workspace)

    assert asyncio.run(main()).committed
    assert (workspace.path / "trail").read_text().split() == ["3", "2", "1", "0"]


def test_called_where_an_event_loop_runs(workspace: Workspace) -> None:
    async def work(path: Path) -> bool:
        return Speculate([adds("inner")])(path).committed

    assert Speculate([work])(workspace).committed
    assert (workspace.path / "trail").read_text() == "inner\n"
    with open_ledger(workspace) as ledger:
        assert [f.parent is None for f in ledger.forks()] == [False, True]


def test_one_after_the_other_and_at_once(workspace: Workspace) -> None:
    """Two patterns at once inside one attempt change different paths, and both are committed into its branch."""

    def named(name: str) -> Callable[[Path], bool]:
        return lambda path: (path / name).write_text(name) > 0

    async def work(path: Path) -> bool:
        first = await Speculate([named("first")]).run(path)
        second = await asyncio.gather(Speculate([named("left")]).run(path), Speculate([named("right")]).run(path))
        assert {"first", "left", "right"} <= {p.name for p in path.iterdir()}
        return first.committed and all(o.committed for o in second)

    outcome = Speculate([work])(workspace)
    assert outcome.committed, outcome.all_results[0].reason
    assert sorted(p.name for p in workspace.path.iterdir()) == ["a.txt", "first", "left", "right"]


def test_what_a_loser_explored_is_nowhere(workspace: Workspace) -> None:
    def loser(path: Path) -> tuple[bool, float]:
        return Speculate([adds("loser")])(path).committed, 0.1

    def winner(path: Path) -> tuple[bool, float]:
        return Speculate([adds("winner")])(path).committed, 0.9

    assert BestOfN([loser, winner])(workspace).committed
    assert (workspace.path / "trail").read_text() == "winner\n"


def test_an_inner_exploration_that_finds_nothing_changes_nothing(workspace: Workspace) -> None:
    def work(path: Path) -> bool:
        adds("before")(path)
        outcome = Reflexion(lambda path, *_: fails(path), 2)(path)
        adds("after")(path)
        return not outcome.committed

    assert Speculate([work])(workspace).committed
    assert (workspace.path / "trail").read_text().split() == ["before", "after"]


# In sandboxes


@pytest.mark.parametrize("confinement", ["standard", "strict"])
@pytest.mark.parametrize("look", [in_place, as_workspace])
def test_inside_a_sandboxed_function(confinement: str, look: Callable[[Path], Any], workspace: Workspace) -> None:
    def work(path: Path) -> list[Any]:
        adds("outer")(path)
        outcome = Speculate([fails, adds("inner")], first_wins=False)(look(path))
        assert outcome.winner is not None
        return [outcome.committed, float(outcome.winner.branch_index)]

    outcome = Speculate([work], runner=SandboxRunner(confinement), timeout=60)(workspace)
    assert outcome.committed, outcome.all_results[0].reason
    assert outcome.winner is not None
    assert outcome.winner.score == 1.0
    assert (workspace.path / "trail").read_text().split() == ["outer", "inner"]
    assert sorted(p.name for p in workspace.path.iterdir()) == ["a.txt", "trail"]
    assert len(workspace.history()) == 1


def test_inside_a_sandboxed_async_function(workspace: Workspace) -> None:
    async def work(path: Path) -> bool:
        return (await BestOfN([adds("inner"), fails]).run(path)).committed

    outcome = Speculate([work], isolate_processes=True, timeout=60)(workspace)
    assert outcome.committed, outcome.all_results[0].reason
    assert (workspace.path / "trail").read_text().split() == ["inner"]


def test_a_sandbox_inside_a_thread(workspace: Workspace) -> None:
    def work(path: Path) -> bool:
        return Speculate([["sh", "-c", "echo inner >> trail"], ["false"]])(path).committed

    assert Speculate([work])(workspace).committed
    assert (workspace.path / "trail").read_text() == "inner\n"


# The end of the outer attempt


def test_what_a_loser_started_in_sandboxes_ends_with_it(workspace: Workspace) -> None:
    """The thread is abandoned, but the commands of the pattern that it waits for are killed."""
    started = threading.Event()
    ended: list[BaseException] = []
    gone = threading.Event()
    before = children()
    script = f"echo {workspace.path} >/dev/null; echo > begun; setsid sleep 1000 & sleep 1000"

    def loser(path: Path) -> bool:
        try:
            return Speculate([said, ["sh", "-c", script], sleeper], first_wins=False)(path).committed
        except BaseException as error:
            ended.append(error)
            raise
        finally:
            gone.set()

    def said(_: Path) -> bool:
        started.set()
        return False

    def sleeper(_: Path) -> bool:
        return gone.wait()

    def winner(path: Path) -> bool:
        started.wait(60)
        return adds("winner")(path)

    outcome = Speculate([loser, winner])(workspace)
    assert processes_about(str(workspace.path)) == []
    assert children() <= before
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 1
    assert gone.wait(60)
    assert type(ended[0]) is asyncio.CancelledError


def test_an_attempt_that_is_over_starts_no_fork(workspace: Workspace) -> None:
    """A thread that was abandoned after its timeout cannot start another fork."""
    go, gone = threading.Event(), threading.Event()
    report: list[BaseException] = []

    def late(path: Path) -> bool:
        go.wait(60)
        try:
            return Speculate([adds("late")])(path).committed
        except BaseException as error:
            report.append(error)
            raise
        finally:
            gone.set()

    def after(path: Path) -> bool:
        go.set()
        return gone.wait(60) and adds("after")(path)

    outcome = Speculate([late, after], max_parallel=1, timeout=1)(workspace)
    assert outcome.all_results[0].reason == "timed out after 1 s"
    assert (workspace.path / "trail").read_text() == "after\n"
    assert isinstance(report[0], ForkResolvedError)
    assert str(report[0]) == "cannot start a fork inside this attempt: the attempt is over"


# Deep trees


def test_a_tree_six_deep(workspace: Workspace) -> None:
    def scored(name: str, score: float) -> Callable[[Path], tuple[bool, float]]:
        return lambda path: (adds(name)(path), score)

    outcome = TreeOfThoughts(
        [scored("a0", 0), scored("b0", 1)],
        expand=lambda path, depth: [scored(f"a{depth}", 1), scored(f"b{depth}", 0), fails],
        max_depth=6,
    )(workspace)
    assert outcome.committed
    assert (workspace.path / "trail").read_text().split() == ["b0", "a1", "a2", "a3", "a4", "a5"]
    assert len(outcome.all_results) == 2 + 5 * 3
    assert len(workspace.history()) == 1


def _fails_to_expand(path: Path, depth: int) -> list[Any]:
    raise OSError("the generator is down")


DEAD_ENDS: dict[str, Callable[[Path, int], list[Any]]] = {
    "all fail": lambda path, depth: [fails, fails],
    "expand fails": _fails_to_expand,
}


@pytest.mark.filterwarnings("ignore:.*could not be expanded")
@pytest.mark.parametrize("expand", DEAD_ENDS.values(), ids=list(DEAD_ENDS))
def test_a_dead_end_of_a_tree(expand: Callable[[Path, int], list[Any]], workspace: Workspace) -> None:
    """ "Explore multiple strategies in parallel, optionally expanding the best one into deeper sub-strategies across
    multiple levels." The README does not say what happens if a level fails.
    """
    before = (workspace.path / "trail").exists()
    options: dict[str, Any] = {"expand": expand, "max_depth": 3}
    failed = TreeOfThoughts([adds("a"), fails], on_dead_end="fail", **options)(workspace)
    assert (failed.committed, failed.winner) == (False, None)
    assert failed.all_results[0].success
    assert (workspace.path / "trail").exists() == before
    assert not workspace.history()

    kept = TreeOfThoughts([adds("a"), fails], **options)(workspace)
    assert kept.committed
    assert (workspace.path / "trail").read_text().split() == ["a"]


def test_no_further_strategies_are_no_dead_end(workspace: Workspace) -> None:
    tree = TreeOfThoughts([adds("a")], expand=lambda path, depth: [], max_depth=3, on_dead_end="fail")
    assert tree(workspace).committed


def test_a_dead_end_is_kept_or_fails() -> None:
    with pytest.raises(ValueError, match="on_dead_end must be one of keep, fail, not 'abort'"):
        TreeOfThoughts([fails], on_dead_end="abort")  # type: ignore[arg-type]


def test_a_beam_three_wide_and_four_deep(workspace: Workspace) -> None:
    def scored(name: str) -> Callable[[Path], tuple[bool, float]]:
        def work(path: Path) -> tuple[bool, float]:
            adds(name)(path)
            return True, float((path / "trail").read_text().count("b"))

        return work

    outcome = BeamSearch(
        [scored(n) for n in "abc"],
        expand=lambda path, depth: [scored(n) for n in "abc"],
        beam_width=3,
        max_depth=4,
    )(workspace)
    assert (workspace.path / "trail").read_text().split() == ["b"] * 4
    assert len(outcome.all_results) == 3 + 3 * 9


def test_a_search_of_forty(workspace: Workspace) -> None:
    def scored(name: str) -> Callable[[Path], tuple[bool, float]]:
        def work(path: Path) -> tuple[bool, float]:
            adds(name)(path)
            words = (path / "trail").read_text().split()
            return words.count("c") < 2, words.count("b") / len(words) + len(words) / 10

        return work

    outcome = TreeSearch([scored(n) for n in "abc"], budget=40, max_depth=4)(workspace)
    assert len(outcome.all_results) == 40
    assert outcome.winner is not None
    assert outcome.winner.score == max(r.score for r in outcome.all_results if r.success)
    words = (workspace.path / "trail").read_text().split()
    assert len(words) <= 4
    assert outcome.winner.score == words.count("b") / len(words) + len(words) / 10
    assert len(workspace.history()) == 1
