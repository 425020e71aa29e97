"""The guide to branching, with every kind of call and every provider. ``tests/seeds`` runs its examples unchanged."""

# ruff: noqa: RUF012
from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from forkwise import BranchError, Module, tool
from tests.modules.brain import Asked, call, finish
from tests.modules.conftest import Thinking

pytestmark = pytest.mark.integration


class ClaimInput(BaseModel):
    claim: str = Field(description="The claim to verify")


class VerificationOutput(BaseModel):
    verified: bool
    explanation: str


class FactCheckBranch(Module):
    """Verify factual claims using available tools."""

    model = "anthropic/claude-sonnet-4-6"
    initial_input = ClaimInput
    final_output = VerificationOutput
    max_steps = 5


@tool
def search_web(query: str) -> str:
    """Search the web."""
    return f"unverified: {query} is from 1991"


class ResearchAgent(Module):
    """Answer questions with fact-checking support."""

    model = "anthropic/claude-haiku-4-5"
    branches = [FactCheckBranch]
    tools = [search_web]
    max_steps = 10


def wired(monkeypatch: pytest.MonkeyPatch, brain: Any, *classes: type[Module]) -> None:
    """Set the brain as the model of several classes."""
    for cls in classes:
        monkeypatch.setattr(cls, "model", brain.model)


def called_in(way: str, module: Module, **inputs: Any) -> Any:
    """Return a module's output: from a blocking call, awaited, or from ``run``."""
    if way == "plain":
        return module(**inputs)

    async def main() -> Any:
        return await module(**inputs) if way == "awaited" else module.run(**inputs)

    return asyncio.run(main())


ways = pytest.mark.parametrize("way", ["plain", "awaited", "run in a loop"])


@ways
def test_declared_branches(way: str, any_brain: Thinking, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(asked: Asked) -> Any:
        if asked.system.startswith("Verify"):
            return finish(verified=True, explanation="Confirmed")
        if asked.turn == 0:
            return call("branch")
        if asked.turn == 1:
            return call("branch", name="FactCheckBranch", claim="Python was created in 1991")
        return finish()

    brain = any_brain(decide)
    wired(monkeypatch, brain, ResearchAgent, FactCheckBranch)
    assert called_in(way, ResearchAgent(), question="Is Python from 1991?") is None
    listing, result = brain.asked[-1].results
    assert listing == (
        "<available_branches>\n"
        "  <branches>\n"
        "    <item>\n"
        "      <name>FactCheckBranch</name>\n"
        "      <description>Verify factual claims using available tools.</description>\n"
        "      <input_schema>\n"
        "        <item>\n"
        "          <name>claim</name>\n"
        "          <required>true</required>\n"
        "          <description>The claim to verify</description>\n"
        "        </item>\n"
        "      </input_schema>\n"
        "    </item>\n"
        "  </branches>\n"
        "</available_branches>\n"
    )
    assert result == (
        "<branch_result>\n  <verified>true</verified>\n  <explanation>Confirmed</explanation>\n</branch_result>\n"
    )


def test_what_a_branch_inherits(any_brain: Thinking, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(asked: Asked) -> Any:
        if asked.system.startswith("Verify"):
            steps = {
                2: call("search_web", query="direct"),
                3: call("call_parent_tool"),
                4: call("call_parent_tool", name="search_web", query="by way of the parent"),
            }
            return steps.get(asked.turn + 1, finish(verified=True, explanation="ok"))
        steps = {0: call("search_web", query="Python"), 1: call("branch", name="FactCheckBranch", claim="1991")}
        return steps.get(asked.turn, finish())

    brain = any_brain(decide)
    wired(monkeypatch, brain, ResearchAgent, FactCheckBranch)
    ResearchAgent()(question="Is Python from 1991?")
    branch = [asked for asked in brain.asked if asked.system.startswith("Verify")]
    assert branch[0].system == "Verify factual claims using available tools."
    assert set(branch[0].tools) == {"search_web", "call_parent_tool", "__finish__"}
    assert "Is Python from 1991?" in branch[0].prompts[0]
    assert '<claim description="The claim to verify">1991</claim>' in branch[0].prompts[-1]
    found, direct, listing, through_parent = branch[-1].results
    assert "Python" in found
    assert "direct" in direct
    assert [t["name"] for t in json.loads(listing)] == ["search_web"]
    assert json.loads(listing)[0]["schema"]["parameters"]["required"] == ["query"]
    assert "by way of the parent" in through_parent


class Manual(Module):
    model = "anthropic/claude-haiku-4-5"
    max_steps = 15
    tools = [search_web]

    def on_step(self, step: Any) -> Any:
        for result in step.tool_results:
            if result.name == "search_web" and "unverified" in str(result.output):
                self.verification = self.branch(FactCheckBranch, merge="end_result", claim=result.output)
        return step


class ManualAsync(Module):
    model = "anthropic/claude-haiku-4-5"
    max_steps = 15
    tools = [search_web]

    async def on_step(self, step: Any) -> Any:
        for result in step.tool_results:
            self.verification = await self.branch(FactCheckBranch, claim=result.output)
        return step


@ways
@pytest.mark.parametrize("cls", [Manual, ManualAsync])
def test_branches_by_hand(cls: Any, way: str, any_brain: Thinking, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(asked: Asked) -> Any:
        if asked.system.startswith("Verify"):
            return finish(verified=False, explanation="a rumour")
        return call("search_web", query="Python") if asked.turn == 0 else finish()

    brain = any_brain(decide)
    wired(monkeypatch, brain, cls, FactCheckBranch)
    agent = cls()
    called_in(way, agent)
    assert agent.verification == VerificationOutput(verified=False, explanation="a rumour")
    assert brain.asked[-1].prompts[-1].startswith("[Branch Result]\n<branch_result>")
    assert agent.history[-3]["content"].startswith("[Branch Result]\n")


class RiskyBranch(Module):
    """Fails."""

    model = "anthropic/claude-haiku-4-5"
    max_steps = 3
    final_output = VerificationOutput


class Careful(Module):
    model = "anthropic/claude-haiku-4-5"
    max_steps = 5
    tools = [search_web]

    def on_step(self, step: Any) -> Any:
        try:
            self.branch(RiskyBranch, data="test")
        except BranchError as e:
            self.history.append({"role": "user", "content": f"Branch failed: {e}"})
        return step


def test_a_branch_by_hand_that_fails(any_brain: Thinking, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(asked: Asked) -> Any:
        if asked.system == "Fails.":
            raise RuntimeError("API timeout")
        return call("search_web", query="x") if asked.turn == 0 else finish()

    brain = any_brain(decide)
    wired(monkeypatch, brain, Careful, RiskyBranch)
    Careful()()
    report = brain.asked[-1].prompts[-1]
    assert "Branch failed: Branch execution failed: LLM call failed: " in report
    assert "API timeout" in report


def test_a_declared_branch_that_fails(any_brain: Thinking, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(asked: Asked) -> Any:
        if asked.system.startswith("Verify"):
            raise RuntimeError("API timeout")
        return call("branch", name="FactCheckBranch", claim="x") if asked.turn == 0 else finish()

    brain = any_brain(decide)
    wired(monkeypatch, brain, ResearchAgent, FactCheckBranch)
    ResearchAgent()()
    [report] = brain.asked[-1].results
    assert report.startswith("Error: Branch execution failed: LLM call failed: ")
    assert "API timeout" in report


def test_summaries(any_brain: Thinking, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(asked: Asked) -> Any:
        if asked.system.startswith("You summarize"):
            return "It searched, and verified."
        if asked.system.startswith("Verify"):
            return call("search_web", query="deep") if asked.turn < 1 else finish(verified=True, explanation="e")
        if asked.turn == 0:
            return call("branch", name="FactCheckBranch", merge="summarize", claim="c")
        return finish()

    brain = any_brain(decide)
    wired(monkeypatch, brain, ResearchAgent, FactCheckBranch)
    ResearchAgent()(question="secret of the parent")
    summary = next(asked for asked in brain.asked if asked.system.startswith("You summarize"))
    assert summary.tools == []
    assert summary.temperature == 0.3
    [prompt] = summary.prompts
    assert '[Assistant] Called search_web({"query": "deep"})' in prompt
    assert "secret of the parent" not in prompt
    result = '{\n  "verified": true,\n  "explanation": "e"\n}'
    assert prompt.endswith(f"Final result:\n{result}")
    assert brain.asked[-1].results == [f"Branch summary:\nIt searched, and verified.\n\nFinal result:\n{result}"]


def test_a_branch_without_output_is_summed_up(any_brain: Thinking, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wanderer(Module):
        """Wander about."""

        max_steps = 2

    def decide(asked: Asked) -> Any:
        if asked.system.startswith("You summarize"):
            return "It wandered."
        if asked.system.startswith("Wander"):
            return finish()
        return call("branch", name="Wanderer") if asked.turn == 0 else finish()

    brain = any_brain(decide)

    class Sender(Module):
        model = brain.model
        branches = [Wanderer]
        max_steps = 3

    Sender()()
    assert brain.asked[-1].results == ["Branch summary:\nIt wandered.\n\nFinal result:\nNone"]


class SummaryOutput(BaseModel):
    summary: str


class SummaryBranch(Module):
    """Summarize the discussion so far."""

    model = "anthropic/claude-haiku-4-5"
    final_output = SummaryOutput
    max_steps = 3


def test_a_branch_without_input_has_the_history(any_brain: Thinking, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(asked: Asked) -> Any:
        if asked.system.startswith("Summarize"):
            return finish(summary=asked.prompts[0])
        return call("branch", name="SummaryBranch") if asked.turn == 0 else finish()

    brain = any_brain(decide)
    wired(monkeypatch, brain, SummaryBranch)

    class Agent(Module):
        model = brain.model
        branches = [SummaryBranch]
        max_steps = 3

    Agent()(topic="birds")
    assert "birds" in brain.asked[-1].results[0]


class AnalysisOutput(BaseModel):
    depth: int


class DeepAnalysisBranch(Module):
    """Perform deep analysis with fact-checking."""

    model = "anthropic/claude-sonnet-4-6"
    branches = [FactCheckBranch]
    final_output = AnalysisOutput
    max_steps = 5


def test_nested_branches(any_brain: Thinking, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(asked: Asked) -> Any:
        if asked.system.startswith("Verify"):
            if len(asked.results) == 0:
                return call("call_parent_tool", name="search_web", query="from two levels below")
            return finish(verified=True, explanation=asked.results[0])
        if asked.system.startswith("Perform"):
            if not asked.results:
                return call("branch", name="FactCheckBranch", claim="nested")
            return finish(depth=2)
        return call("branch", name="DeepAnalysisBranch") if asked.turn == 0 else finish()

    brain = any_brain(decide)
    wired(monkeypatch, brain, DeepAnalysisBranch, FactCheckBranch)

    class Root(Module):
        model = brain.model
        branches = [DeepAnalysisBranch]
        tools = [search_web]
        max_steps = 3

    Root()(question="the root's question")
    deepest = [asked for asked in brain.asked if asked.system.startswith("Verify")]
    assert "search_web" in deepest[0].tools
    assert "the root's question" in deepest[0].prompts[0]
    assert "from two levels below" in deepest[1].results[0]
    assert brain.asked[-1].results == ["<branch_result>\n  <depth>2</depth>\n</branch_result>\n"]


class PackageInput(BaseModel):
    package_name: str
    ecosystem: str


class PackageProfile(BaseModel):
    name: str
    purpose: str
    categories: list[str]


@tool
def fetch_package_info(package_name: str, ecosystem: str) -> dict:  # type: ignore[type-arg]
    """Fetch package info from PyPI or npm registry."""
    return {"info": f"{package_name} of {ecosystem}"}


class PackageAnalyzerBranch(Module):
    """Analyze a single package."""

    model = "anthropic/claude-sonnet-4-6"
    initial_input = PackageInput
    final_output = PackageProfile
    tools = [fetch_package_info]
    max_steps = 5


class DependencyFileInput(BaseModel):
    file_content: str


class PruningPlan(BaseModel):
    redundancy_groups: list[dict]  # type: ignore[type-arg]
    packages_to_remove: list[str]


class DependencyScanner(Module):
    """Scan dependencies for redundancies."""

    model = "anthropic/claude-haiku-4-5"
    initial_input = DependencyFileInput
    final_output = PruningPlan
    branches = [PackageAnalyzerBranch]
    max_steps = 60

    system_prompt = """Parse the dependency file and extract all package names.
    For each package, spawn PackageAnalyzerBranch to analyze it (you can do multiple in parallel).
    After all branches complete, group packages by overlapping purpose and recommend which to remove."""


@ways
def test_map_reduce(way: str, any_brain: Thinking, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packages = [f"package{number}" for number in range(20)]

    def decide(asked: Asked) -> Any:
        if asked.system.startswith("Analyze"):
            name = asked.prompts[-1].partition("<package_name>")[2].partition("<")[0]
            if not asked.results:
                return call("fetch_package_info", package_name=name, ecosystem="pip")
            return finish(name=name, purpose=json.loads(asked.results[0])["info"], categories=["a", "b"])
        if asked.turn == 0:
            return [
                call("branch", name="PackageAnalyzerBranch", package_name=name, ecosystem="pip") for name in packages
            ]
        removed = [result.partition("<name>")[2].partition("<")[0] for result in asked.results]
        return finish(redundancy_groups=[{"group": 1}], packages_to_remove=removed)

    brain = any_brain(decide)
    wired(monkeypatch, brain, DependencyScanner, PackageAnalyzerBranch)
    (tmp_path / "requirements.txt").write_text("\n".join(packages))
    result = called_in(way, DependencyScanner(), file_content=(tmp_path / "requirements.txt").read_text())
    assert result == PruningPlan(redundancy_groups=[{"group": 1}], packages_to_remove=packages)
