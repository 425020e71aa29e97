"""The examples of Acorn's guide to branching, with an Anthropic server on the loopback that answers by a function.

The models of the examples are Anthropic's, and so is the client that sends the requests.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from pydantic import BaseModel

from forkwise import BranchError, Module, tool
from tests.provider import Failure, ProviderServer, Request, call
from tests.seeds.page import WORKSPACE, Example, Page

__all__ = ["page"]

page = Page("acorn", package="acorn")

_DEFINING = "Defining a branch module"


class _SummaryOutput(BaseModel):
    summary: str


class _AnalysisOutput(BaseModel):
    depth: int


class _ItemInput(BaseModel):
    item: str


@tool
def _search_web(query: str) -> str:
    """Search the web."""
    return f"unverified: {query}"


@tool
def _calculate(expression: str) -> int:
    """Calculate."""
    return len(expression)


@contextmanager
def _serve(decide: Callable[[Request], Any]) -> Iterator[ProviderServer]:
    """Answer the examples' requests to Anthropic by a function, and check them by Anthropic's rules."""

    def respond(request: Request) -> Any:
        decided = decide(request)
        return decided if isinstance(decided, list | Failure) else [decided]

    with ProviderServer(respond) as server:
        os.environ |= {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "no-key-is-needed"}
        yield server
        assert not server.failures, server.failures
        assert not server.faults, server.faults


def _results(request: Request) -> list[str]:
    return [result.text for message in request.messages for result in message.results]


def _finish(**output: Any) -> Any:
    return call("__finish__", **output)


def _run(module: type[Module], *, answer_branch: Callable[[Request], Any], steps: list[Any], **inputs: Any) -> Any:
    """Run a module, whose model makes ``steps``, and return the results of its calls.

    Requests for a branch have a system prompt that starts with a verb of the examples' docstrings.
    """

    def decide(request: Request) -> Any:
        is_branch = request.system.startswith(("Verify", "Summarize", "Perform", "Process", "Fail"))
        return answer_branch(request) if is_branch else steps[min(request.turn, len(steps) - 1)]

    with _serve(decide) as server:
        result = module()(**inputs)
        return SimpleNamespace(result=result, results=_results(server.seen[-1]), seen=server.seen)


def _verify(request: Request) -> Any:
    return _finish(verified=True, explanation="Confirmed", evidence=["a release note"], confidence=0.9)


def _with_model(module: Any, **attributes: Any) -> type[Module]:
    """Return a subclass with the settings that the example leaves out."""
    return type(module.__name__, (module,), {"model": "anthropic/claude-haiku-4-5", "max_steps": 10, **attributes})


def _quoted_calls(code: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls in the comments of an example: ``# Agent calls: branch(name="X")``."""
    found = []
    for text in re.findall(r"^# (?:Agent calls|Branch calls|Branch finishes with): (.+)$", code, re.MULTILINE):
        expression = ast.parse(text, mode="eval").body
        assert isinstance(expression, ast.Call)
        assert isinstance(expression.func, ast.Name)
        arguments = {str(word.arg): ast.literal_eval(word.value) for word in expression.keywords}
        found.append((expression.func.id, arguments))
    return found


def _quoted_text(code: str, heading: str) -> str:
    """Return the comment below a line of an example."""
    lines = [line.removeprefix("#").removeprefix(" ") for line in code.splitlines()]
    return "\n".join(lines[lines.index(heading) + 1 :])


def _quoted_step(code: str) -> Any:
    [(name, arguments)] = _quoted_calls(code)
    return call(name, **arguments)


@page.example("Quick example")
def quick_example(example: Example) -> None:
    names = example.run()
    done = _run(
        names["ResearchAgent"],
        answer_branch=_verify,
        steps=[call("branch", name="FactCheckBranch"), _finish()],
        question="Is Python from 1991?",
    )
    assert "<verified>true</verified>" in done.results[0]
    assert [request.model for request in done.seen] == ["claude-haiku-4-5", "claude-sonnet-4-6", "claude-haiku-4-5"]


@page.example("Defining a branch module")
def defining(example: Example) -> None:
    names = example.run()

    def answer(request: Request) -> Any:
        return _verify(request) if _results(request) else call("search_academic", query="Python creation")

    agent = type("Agent", (names["Module"],), {"branches": [names["FactCheckBranch"]]})
    steps = [call("branch", name="FactCheckBranch", claim="Python 1991"), _finish()]
    done = _run(_with_model(agent), answer_branch=answer, steps=steps)
    assert "<item>a release note</item>" in done.results[0]
    assert _results(done.seen[2]) == ['["source1","source2"]']
    assert done.seen[1].body["temperature"] == 0.2


@page.example("Registering branches")
def registering(example: Example) -> None:
    names = example.run(after=(_DEFINING,))
    done = _run(names["ResearchAgent"], answer_branch=_verify, steps=[call("branch"), _finish()])
    assert "<name>FactCheckBranch</name>" in done.results[0]


@page.example("Discovery mode (no arguments)")
def discovery(example: Example) -> None:
    names = example.run(after=(_DEFINING, "Registering branches"))
    done = _run(names["ResearchAgent"], answer_branch=_verify, steps=[_quoted_step(example.code), _finish()])
    listing = re.sub(r"^ *</?item>\n", "", done.results[0], flags=re.MULTILINE)  # Acorn lists items, its guide does not
    expected = _quoted_text(example.code, "Returns XML listing:")
    assert listing.split() == expected.split()


@page.example("Execution mode (with name + parameters)")
def execution(example: Example) -> None:
    names = example.run(after=(_DEFINING, "Registering branches"))
    step = _quoted_step(example.code)
    done = _run(names["ResearchAgent"], answer_branch=_verify, steps=[step, _finish()], question="Is it from 1991?")
    [branch] = [request for request in done.seen if request.system.startswith("Verify")]
    texts = [message.text for message in branch.messages]
    assert "Is it from 1991?" in texts[0]
    assert "Python was created in 1991" in texts[-1]
    assert done.results[0].startswith("<branch_result>")


def _call_parent_tool(example: Example) -> Any:
    names = example.run(after=(_DEFINING, "Registering branches"))
    agent = _with_model(names["ResearchAgent"], tools=[_rename(_search_web), _rename(_calculate)])

    def answer(request: Request) -> Any:
        return _verify(request) if _results(request) else _quoted_step(example.code)

    steps = [call("branch", name="FactCheckBranch", claim="Python 1991"), _finish()]
    done = _run(agent, answer_branch=answer, steps=steps)
    return done.seen[2]


def _rename(function: Any) -> Any:
    function.__name__ = function.__name__.lstrip("_")
    return function


@page.example("Accessing parent tools: call_parent_tool()")
def parent_tools(example: Example) -> None:
    request = _call_parent_tool(example)
    quoted = _quoted_text(example.code, "Returns JSON listing parent tools:")
    names = re.findall(r'"name": "(\w+)"', quoted)
    [listing] = map(json.loads, _results(request))
    assert [entry["name"] for entry in listing] == names == ["search_web", "calculate"]
    assert all(set(entry) == {"name", "schema"} for entry in listing)


@page.example("Accessing parent tools: call_parent_tool() 2")
def parent_tool(example: Example) -> None:
    assert _results(_call_parent_tool(example)) == ["unverified: Python history"]


@page.example("end_result (default)")
def end_result(example: Example) -> None:
    names = example.run(after=("Quick example",))
    [(_, output)] = _quoted_calls(example.code)
    done = _run(
        names["ResearchAgent"],
        answer_branch=lambda request: _finish(**output),
        steps=[call("branch", name="FactCheckBranch"), _finish()],
    )
    assert done.results[0].strip() == _quoted_text(example.code, "Parent receives:").strip()


@page.example("summarize")
def summarize(example: Example) -> None:
    names = example.run(after=("Quick example",))
    summary, final = _quoted_text(example.code, "Parent receives:").split("\n\nFinal result:\n")
    heading, text = summary.split("\n", 1)

    def decide(request: Request) -> Any:
        if request.system.startswith("Verify"):
            return _finish(**json.loads(final))
        if not request.tool_names:
            return text
        return [call("branch", name="FactCheckBranch", merge="summarize"), _finish()][request.turn > 0]

    with _serve(decide) as server:
        names["ResearchAgent"]()()
        [result] = _results(server.seen[-1])
    report, _, output = result.partition("\n\nFinal result:\n")
    assert report == f"{heading}\n{text}"
    assert json.loads(output) == json.loads(final)


@page.example("summarize 2")
def summarize_call(example: Example) -> None:
    calls: list[dict[str, Any]] = []
    names = example.run(after=(_DEFINING, "Registering branches"), branch=lambda **arguments: calls.append(arguments))

    def decide(request: Request) -> Any:
        if request.system.startswith("Verify"):
            return _verify(request)
        return (
            "It was verified." if not request.tool_names else [call("branch", **calls[0]), _finish()][request.turn > 0]
        )

    with _serve(decide) as server:
        names["ResearchAgent"]()()
        assert _results(server.seen[-1])[0].startswith("Branch summary:\nIt was verified.\n\nFinal result:\n{")


@page.example("Manual branching: self.branch()")
def manual(example: Example) -> None:
    names = example.run(after=(_DEFINING,))
    agent = type("ResearchAgent", (names["ResearchAgent"],), {"tools": [_rename(_search_web)]})
    done = _run(agent, answer_branch=_verify, steps=[call("search_web", query="Python"), _finish()])
    assert "unverified: Python" in next(r for r in done.seen if r.system.startswith("Verify")).messages[-1].text
    assert done.seen[-1].messages[-1].text.startswith("[Branch Result]\n<branch_result>")


@page.example("Manual branching: self.branch() 2")
def signature(example: Example) -> None:
    documented = ast.parse(example.code.rstrip() + ": ...").body[0]
    assert isinstance(documented, ast.FunctionDef)
    names: dict[str, Any] = {"BaseModel": BaseModel}
    exec(ast.unparse(documented), names)
    expected = inspect.signature(names["branch"]).parameters.values()
    found = inspect.signature(Module.branch).parameters.values()
    assert [(p.name, p.kind, p.default) for p in found] == [(p.name, p.kind, p.default) for p in expected]


@page.example("Branches without initial_input")
def without_input(example: Example) -> None:
    names = example.run(after=("Quick example",), SummaryOutput=_SummaryOutput)
    _check_summary(names, names["Module"])


def _check_summary(names: dict[str, Any], agent: type[Module]) -> None:
    def answer(request: Request) -> Any:
        return _finish(summary=f"about {request.messages[0].text}")

    agent = _with_model(agent, branches=[names["SummaryBranch"]])
    done = _run(agent, answer_branch=answer, steps=[call("branch", name="SummaryBranch"), _finish()], topic="birds")
    assert "birds" in done.results[0]


@page.example("Nested branching")
def nested(example: Example) -> None:
    names = example.run(after=(_DEFINING,), AnalysisOutput=_AnalysisOutput)

    def answer(request: Request) -> Any:
        if request.system.startswith("Verify"):
            assert {"search_web", "search_academic", "call_parent_tool", "__finish__"} <= set(request.tool_names)
            return _verify(request)
        if not _results(request):
            return call("branch", name="FactCheckBranch", claim="nested")
        return _finish(depth=len(_results(request)))

    agent = type("Root", (Module,), {"branches": [names["DeepAnalysisBranch"]], "tools": [_rename(_search_web)]})
    done = _run(_with_model(agent), answer_branch=answer, steps=[call("branch", name="DeepAnalysisBranch"), _finish()])
    assert "<depth>1</depth>" in done.results[0]


@page.example("Branch errors")
def errors(example: Example) -> None:
    class RiskyBranch(Module):
        """Fail."""

        model = "anthropic/claude-haiku-4-5"
        final_output = _AnalysisOutput
        max_steps = 3

    names = example.run(RiskyBranch=RiskyBranch, BranchError=BranchError)
    manual_agent = type(
        "Agent", (Module,), {"on_step": names["on_step"], "tools": [_rename(_search_web)], "branches": [RiskyBranch]}
    )
    done = _run(
        _with_model(manual_agent),
        answer_branch=lambda request: Failure(400, "API timeout"),
        steps=[call("branch", name="RiskyBranch", data="test"), _finish()],
    )
    assert "Branch execution failed: " in done.results[0]
    assert "API timeout" in done.results[0]
    report = done.seen[-1].messages[-1].text
    assert report.startswith("Branch failed: Branch execution failed: ")
    assert "API timeout" in report


@page.example("Complete example: Map-reduce pattern")
def map_reduce(example: Example) -> None:
    packages = [f"package{number}" for number in range(20)]
    (WORKSPACE / "requirements.txt").write_text("\n".join(packages))
    requests = ModuleType("requests")
    requests.get = lambda url, timeout: SimpleNamespace(  # type: ignore[attr-defined]
        raise_for_status=lambda: None, json=lambda: {"info": url.rpartition("/pip/")[2]}
    )

    def decide(request: Request) -> Any:
        if request.system.startswith("Analyze"):
            found = request.messages[-1].text if not _results(request) else request.messages[-3].text
            name = found.partition("<package_name>")[2].partition("<")[0]
            if not _results(request):
                return call("fetch_package_info", package_name=name, ecosystem="pip")
            assert json.loads(_results(request)[0]) == {"info": f"{name}/json"}
            return _finish(name=name, purpose="to test", categories=["a", "b"])
        if not _results(request):
            assert all(name in request.messages[0].text for name in packages)
            return [
                call("branch", name="PackageAnalyzerBranch", package_name=name, ecosystem="pip") for name in packages
            ]
        removed = [result.partition("<name>")[2].partition("<")[0] for result in _results(request)]
        return _finish(redundancy_groups=[{"group": 1}], packages_to_remove=removed)

    before = sys.modules.get("requests")
    sys.modules["requests"] = requests
    try:
        with _serve(decide):
            names = example.run()
    finally:
        del sys.modules["requests"]
        if before is not None:
            sys.modules["requests"] = before
    assert names["result"].packages_to_remove == packages
    assert example.printed == f"Packages to remove: {packages}\n"


def _verify_source(source: str) -> bool:
    """Verify a source."""
    return bool(source)


@page.example("Fact-checking")
def fact_checking(example: Example) -> None:
    names = example.run(after=(_DEFINING,), verify_source=_rename(_verify_source))

    def answer(request: Request) -> Any:
        return _verify(request) if _results(request) else call("verify_source", source="a book")

    steps = [call("branch", name="FactCheckBranch", claim="…"), _finish()]
    done = _run(_with_model(names["Agent"]), answer_branch=answer, steps=steps)
    assert _results(done.seen[2]) == ["True"]
    assert "<verified>true</verified>" in done.results[0]


@page.example("Deep analysis")
def deep_analysis(example: Example) -> None:
    names = example.run(
        AnalysisInput=_ItemInput,
        AnalysisOutput=_AnalysisOutput,
        advanced_search=_rename(_search_web),
        data_mining=_rename(_calculate),
    )
    steps = [call("branch", name="AnalysisBranch", item="x"), _finish()]
    done = _run(_with_model(names["Agent"]), answer_branch=lambda request: _finish(depth=3), steps=steps)
    assert "<depth>3</depth>" in done.results[0]
    assert done.seen[1].model == "claude-opus-4-5"


@page.example("Parallel processing (map-reduce)")
def parallel_processing(example: Example) -> None:
    names = example.run(ItemInput=_ItemInput, ItemOutput=_ItemInput)

    def answer(request: Request) -> Any:
        return _finish(item=request.messages[-1].text.partition("<item>")[2].partition("<")[0] * 2)

    items = ["a", "b", "c"]
    steps = [[call("branch", name="ItemProcessorBranch", item=item) for item in items], _finish()]
    done = _run(_with_model(names["Orchestrator"]), answer_branch=answer, steps=steps)
    assert [re.sub(r"\s|</?\w+>", "", result) for result in done.results] == ["aa", "bb", "cc"]


@page.example("Summarization")
def summarization(example: Example) -> None:
    names = example.run(SummaryOutput=_SummaryOutput)
    _check_summary(names, names["Agent"])
