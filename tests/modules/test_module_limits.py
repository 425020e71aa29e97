"""Parallel branches, and the limits that apply to a whole tree of them."""
# ruff: noqa: RUF012 - a module's lists are declared as the specification shows

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from pydantic import BaseModel

from forkwise import BranchError, LimitError, Module, tool
from tests.modules.brain import Asked, Brain, call, finish

MANY = 20


class Answer(BaseModel):
    value: int


class Leaf(Module):
    """Be a leaf."""

    max_steps = 3
    final_output = Answer


def spawning(count: int, leaf: Any) -> Any:
    """Decide for a parent that spawns this many leaves in one turn, and for the leaves."""

    def decide(asked: Asked) -> Any:
        if asked.system == "Be a leaf.":
            return leaf(asked)
        return [call("branch", name="Leaf", number=n) for n in range(count)] if asked.turn == 0 else finish()

    return decide


def test_branches_and_plain_tools_run_at_the_same_time() -> None:
    together = threading.Barrier(MANY, timeout=30)

    @tool
    def meet() -> str:
        """Wait until all calls are here; a call that ran alone would wait forever."""
        return str(together.wait() >= 0)

    brain = Brain(decide=spawning(MANY, lambda asked: finish(value=1) if asked.results else call("meet")))

    class Parent(Module):
        model = brain
        branches = [Leaf]
        tools = [meet]
        max_steps = 2

    Parent()()
    assert brain.asked[-1].results == ["<branch_result>\n  <value>1</value>\n</branch_result>\n"] * MANY


@pytest.mark.parametrize("at_once", [1, 3])
def test_max_parallel_holds_and_nested_branches_do_not_lock_each_other(at_once: int) -> None:
    class Middle(Module):
        """Be in the middle."""

        branches = [Leaf]
        max_steps = 3
        final_output = Answer

    def decide(asked: Asked) -> Any:
        match asked.system:
            case "Be a leaf.":
                return finish(value=1)
            case "Be in the middle.":
                return finish(value=2) if asked.results else call("branch", name="Leaf")
        return [call("branch", name="Middle") for _ in range(6)] if asked.turn == 0 else finish()

    brain = Brain(decide=decide, seconds=0.002)

    class Root(Module):
        model = brain
        branches = [Middle]
        max_parallel = at_once
        max_steps = 2

    Root()()
    assert brain.most_at_once == at_once
    assert brain.asked[-1].results == ["<branch_result>\n  <value>2</value>\n</branch_result>\n"] * 6


def test_max_branches_holds_over_the_tree() -> None:
    brain = Brain(decide=spawning(5, lambda asked: finish(value=1)))

    class Parent(Module):
        model = brain
        branches = [Leaf]
        max_branches = 3
        max_steps = 2

    Parent()()
    failed = [result for result in brain.asked[-1].results if result.startswith("Error")]
    assert failed == ["Error: Branch execution failed: Parent has used all its 3 branches"] * 2


def test_max_branches_counts_branches_of_branches() -> None:
    class Middle(Module):
        """Be in the middle."""

        branches = [Leaf]
        max_steps = 3
        final_output = Answer

    def decide(asked: Asked) -> Any:
        match asked.system:
            case "Be a leaf.":
                return finish(value=1)
            case "Be in the middle.":
                return finish(value=2) if asked.results else call("branch", name="Leaf")
        return call("branch", name="Middle") if asked.turn < 2 else finish()

    brain = Brain(decide=decide)

    class Root(Module):
        model = brain
        branches = [Middle]
        max_branches = 2
        max_steps = 3

    Root()()
    worked, refused = brain.asked[-1].results
    assert "<value>2</value>" in worked
    assert "Root has used all its 2 branches" in refused


def test_max_depth_of_a_branch_holds_below_it() -> None:
    class Shallow(Module):
        """Be shallow."""

        branches = [Leaf]
        max_depth = 0
        max_steps = 3
        final_output = Answer

    def decide(asked: Asked) -> Any:
        if asked.system == "Be shallow.":
            return finish(value=1) if asked.results else call("branch", name="Leaf")
        return call("branch", name="Shallow") if asked.turn == 0 else finish()

    brain = Brain(decide=decide)

    class Root(Module):
        model = brain
        branches = [Shallow]
        max_steps = 2

    Root()()
    shallow = [asked for asked in brain.asked if asked.system == "Be shallow."]
    assert "Shallow allows 0 levels of branches" in shallow[1].results[0]


def test_the_time_of_a_tree_is_limited() -> None:
    ended: list[str] = []

    @tool
    async def sleep() -> None:
        """Sleep."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    class Parent(Module):
        model = Brain(decide=spawning(3, lambda asked: call("sleep")))
        branches = [Leaf]
        tools = [sleep]
        timeout = 3  # the branches have begun to sleep by then, also on a busy machine
        max_steps = 2

    with pytest.raises(LimitError, match="took more than its 3 seconds") as error:
        Parent()()
    assert error.value.limit == "timeout"
    assert ended == ["cancelled"] * 3


def test_the_time_of_a_branch_is_limited_apart() -> None:
    class Slow(Leaf):
        """Be a leaf."""

        timeout = 0.05

    class Parent(Module):
        model = Brain(decide=lambda asked: call("wait") if asked.turn == 0 else finish(value=1))
        max_steps = 2
        final_output = Answer

        @tool
        async def wait(self) -> str:
            """Wait for a branch."""
            with pytest.raises(BranchError, match="took more than its"):
                await self.branch(Slow)
            return "so it was"

    Slow.model = Brain(decide=lambda asked: finish(value=1), seconds=60)
    parent = Parent()
    assert parent() == Answer(value=1)
    assert "so it was" in [entry["content"] for entry in parent.history]


def test_a_foreign_timeout_is_raised_unchanged() -> None:
    class Parent(Module):
        model = Brain(call("fail"))
        max_steps = 2
        timeout = 60

        @tool
        def fail(self) -> None:
            """Fail."""

        def on_step(self, step: Any) -> None:
            raise TimeoutError("not the limit's")

    with pytest.raises(TimeoutError, match="not the limit's"):
        Parent()()


def test_a_plain_branch_by_hand_is_cancelled_with_its_call() -> None:
    ended = threading.Event()

    def decide(asked: Asked) -> Any:
        return call("delegate") if asked.system != "Be a leaf." else finish(value=1)

    class Waiting(Leaf):
        """Be a leaf."""

        model: Any = Brain(decide=decide, seconds=60)

    class Parent(Module):
        model = Brain(decide=decide)
        timeout = 0.1
        max_steps = 2

        @tool
        def delegate(self) -> None:
            """Wait for a branch."""
            try:
                self.branch(Waiting)
            finally:
                ended.set()

    with pytest.raises(LimitError):
        Parent()()
    assert ended.wait(20)


def test_a_budget_holds_over_the_tree() -> None:
    brain = Brain(decide=spawning(1, lambda asked: call("again")), name="claude-sonnet-4-6")

    class Parent(Module):
        model = brain
        branches = [Leaf]
        budget = 0.003
        max_steps = 20

    Leaf.max_steps, before = 100, Leaf.max_steps
    try:
        with pytest.raises(LimitError, match=r"has spent \$") as error:
            Parent()()
    finally:
        Leaf.max_steps = before
    assert error.value.limit == "budget"
    assert 1 < sum(asked.system == "Be a leaf." for asked in brain.asked) < 50


def test_a_budget_needs_prices() -> None:
    class Parent(Module):
        model = Brain(finish(), name="nobody-knows-this")
        budget = 1
        max_steps = 2

    with pytest.raises(LimitError, match="the price of nobody-knows-this is unknown"):
        Parent()()


def test_what_a_call_leaves_running_is_ended() -> None:
    class Parent(Module):
        model = Brain(decide=lambda asked: finish() if asked.turn else call("begin"))
        max_steps = 2

        @tool
        async def begin(self) -> str:
            """Begin a branch, and do not wait for it."""
            self.begun = asyncio.create_task(self.branch(Never))
            await asyncio.sleep(0)
            return "begun"

    class Never(Leaf):
        """Be a leaf."""

        model: Any = Brain(decide=lambda asked: finish(value=1), seconds=60)

    parent = Parent()
    parent()
    assert parent.begun.cancelled()
