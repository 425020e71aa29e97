"""The messages that Acorn's guide and behaviour are known by are the same here."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import BaseModel, Field

from forkwise import BranchError, Module, ModuleError, ParseError, Service, ServiceError, ToolConflictError, tool
from tests.modules.brain import Asked, Brain, call, finish


class Claim(BaseModel):
    claim: str = Field(description="The claim to verify")


class Verdict(BaseModel):
    verified: bool


@tool
def search_web(query: str) -> str:
    """Search the web."""
    raise OSError(f"no network for {query}")


class FC(Module):
    """Verify."""

    initial_input = Claim
    final_output = Verdict
    max_steps = 3


def run(*answers: Any, branch: Any = None, **attributes: Any) -> list[str]:
    """Return the results that a module's model reads, before it finishes."""
    left = [*answers, finish()]

    def decide(asked: Asked) -> Any:
        return branch(asked) if asked.system == "Verify." else left.pop(0)

    brain = Brain(decide=decide)
    type(
        "Agent", (Module,), {"model": brain, "branches": [FC], "tools": [search_web], "max_steps": 5, **attributes}
    )()()
    return brain.asked[-1].results


def fails(asked: Asked) -> Any:
    raise RuntimeError("API timeout")


@pytest.mark.parametrize(
    ("answer", "branch", "message"),
    [
        (call("branch", name="FC", claim="x"), fails, "Error: Branch execution failed: LLM call failed: API timeout"),
        (call("branch", name="Nope"), None, "Error: Branch 'Nope' not found. Available: ['FC']"),
        (
            call("branch", name="FC", merge="x"),
            None,
            "Error: Invalid merge strategy 'x'. Must be: end_result, summarize",
        ),
        (call("nope"), None, "Error: Tool 'nope' not found"),
        (call("search_web", query="x"), None, "Error: no network for x"),
    ],
)
def test_results_of_tools(answer: Any, branch: Any, message: str) -> None:
    """ "branch() returned error: Branch execution failed: API timeout": "Error returned to parent as tool result"."""
    assert run(answer, branch=branch) == [message]


def test_a_branch_that_cannot_be_made() -> None:
    class Broken(Module):
        def __init__(self) -> None:
            raise OSError("no key")

    assert run(call("branch", name="Broken"), branches=[Broken]) == ["Error: Failed to instantiate branch: no key"]


def test_an_unknown_tool_of_the_parent() -> None:
    """ "`call_parent_tool()` filters out `__finish__` and `branch` from the parent's tool list"."""
    read: list[str] = []

    def branch(asked: Asked) -> Any:
        if not asked.results:
            return [call("call_parent_tool", name="branch"), call("call_parent_tool", name="__finish__")]
        read.extend(asked.results)
        return finish(verified=True)

    run(call("branch", name="FC", claim="x"), branch=branch)
    assert read == [
        "Error: Parent tool 'branch' not found. Available: ['search_web']",
        "Error: Parent tool '__finish__' not found. Available: ['search_web']",
    ]


def test_a_branch_by_hand_raises() -> None:
    """ "Manual branching (`self.branch()`): Exception raised (BranchError)"."""
    caught: list[str] = []

    def on_step(self: Any, step: Any) -> Any:
        try:
            self.branch(FC, claim="x")
        except BranchError as error:
            caught.append(str(error))
        return step

    run(call("search_web", query="x"), branch=fails, on_step=on_step)
    assert caught == ["Branch execution failed: LLM call failed: API timeout"]


def test_output_that_is_invalid() -> None:
    [result] = run(finish(), finish(verified=True), final_output=Verdict)
    assert result.startswith("Error: Output validation failed: ")
    assert result.endswith(" Please call __finish__ again with valid arguments.")


@pytest.mark.parametrize(
    ("answers", "attributes", "kind", "message"),
    [
        (["a", "b", "c"], {}, ModuleError, "No tool calls in agentic loop step after 2 retries"),
        (
            ["a", "b", "c"],
            {"max_steps": None, "tools": [], "branches": [], "final_output": Verdict},
            ModuleError,
            "No tool called in single-turn mode after 2 retries",
        ),
        (
            [call("search_web", query="x")],
            {"max_steps": None, "tools": [], "branches": [], "final_output": Verdict},
            ModuleError,
            "Non-finish tool called in single-turn mode: search_web",
        ),
        (
            [call("search_web", query="x"), "a", "b", "c"],
            {"max_steps": 1, "final_output": Verdict},
            ModuleError,
            "Module reached max_steps (1) without calling __finish__",
        ),
        ([finish()] * 3, {"max_steps": None, "tools": [], "branches": [], "final_output": Verdict}, ParseError, ""),
    ],
)
def test_errors_of_a_call(answers: list[Any], attributes: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        run(*answers, **attributes)


def test_a_provider_that_fails() -> None:
    def decide(asked: Asked) -> Any:
        raise RuntimeError("down")

    with pytest.raises(ModuleError, match=r"^LLM call failed: down$"):
        type("Agent", (Module,), {"model": Brain(decide=decide), "max_steps": 2, "tools": [search_web]})()()


def test_errors_of_a_declaration() -> None:
    """ "Use a list, not a dict. Each branch class name becomes the branch identifier."."""
    twin = type("FC", (Module,), {})
    for branches, message in (
        ({"FC": FC}, "branches must be a list"),
        ([str], "must be a Module subclass"),
        ([FC, twin], "Duplicate branch class name: FC"),
    ):
        with pytest.raises(ValueError, match=message):
            run(branches=branches)
    with pytest.raises(ToolConflictError, match=r"^Duplicate tool name: search_web$"):
        run(tools=[search_web, search_web])
    with pytest.raises(ToolConflictError, match=r"^Duplicate tool name: branch$"):
        run(branch_tool=None, tools=[_named("branch")])


def _named(name: str) -> Any:
    def function() -> None:
        """Do nothing."""

    function.__name__ = name
    return function


def test_a_service_that_cannot_be_set_up() -> None:
    class Database(Service):
        async def setup(self) -> None:
            raise OSError("no disk")

    with pytest.raises(ServiceError, match=r"^Service 'Database' setup failed: no disk$"):
        run(tools=[Database()])
