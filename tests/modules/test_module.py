"""Modules: declarations, a call from its input to its output, and callbacks."""
# ruff: noqa: RUF012 - a module's lists are declared as the specification shows

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError
from pydantic_ai.messages import ToolCallPart

from forkwise import (
    BranchError,
    Module,
    ModuleError,
    ParseError,
    Service,
    Step,
    Template,
    Tool,
    ToolConflictError,
    tool,
)
from tests.modules.brain import Asked, Brain, call, finish


class Question(BaseModel):
    text: str = Field(description="What is asked")
    limit: int | None = None


class Answer(BaseModel):
    value: int


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


class Leaf(Module):
    """Be a leaf."""

    max_steps = 2
    final_output = Answer


# Declarations


def declared(**attributes: Any) -> Module:
    """Return an instance of a class with these attributes."""
    base = {"model": "test", "max_steps": 2}
    made: Module = type("Declared", (Module,), {**base, **attributes})()
    return made


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"model": ""}, "a module needs a model"),
        ({"model": 3}, "a module needs a model"),
        ({"model": {"id": "test", "temprature": 1}}, "not temprature"),
        ({"model": {"reasoning": True}}, "needs its name as 'id'"),
        ({"model": {"id": "test", "reasoning": "much"}}, "reasoning must be True"),
        ({"model_fallbacks": [{"id": ""}]}, "needs its name"),
        ({"max_steps": None}, "needs a final_output"),
        ({"initial_input": dict}, "initial_input must be a pydantic model"),
        ({"final_output": Answer(value=1)}, "final_output must be a pydantic model"),
        ({"branches": {"Leaf": Leaf}}, "branches must be a list"),
        ({"branches": [Answer]}, "must be a Module subclass"),
        ({"branches": [Leaf, type("Leaf", (Module,), {})]}, "Duplicate branch class name: Leaf"),
        ({"cache": []}, "non-empty"),
        ({"cache": [{"location": "tool"}]}, "location='message'"),
        ({"cache": [{"location": "message", "where": 1}]}, "a location, a role and an index"),
        ({"cache": [{"location": "message", "index": "1"}]}, "the index an integer"),
        ({"tool_discovery": "guess"}, "tool_discovery must be None or 'search'"),
    ],
)
def test_what_cannot_be_is_refused_at_once(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        declared(**attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {"tools": [double, double]},
        {"tools": [double], "double": tool(lambda self: None)},
        {"tools": [tool(type("F", (), {"__call__": lambda self: 1, "__name__": "__finish__"})())]},
        {"branch": tool(lambda self: None), "branches": [Leaf]},
        {"search_tools": tool(lambda self: None), "tool_discovery": "search"},
        {"call_parent_tool": tool(lambda self: None)},
    ],
)
def test_two_tools_of_one_name_are_refused(attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if callable(value) and hasattr(value, "__name__") and value.__name__ == "<lambda>":
            value.__name__ = name
    with pytest.raises(ToolConflictError, match="Duplicate tool name: ") as error:
        declared(**attributes)
    assert error.value.tool is not None


def test_no_key_is_needed_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    module = declared(model="anthropic/claude-sonnet-4-6")
    with pytest.raises(ModuleError, match="ANTHROPIC_API_KEY"):
        module()


def test_an_unknown_model_is_an_error() -> None:
    with pytest.raises(ModuleError, match="Unknown model"):
        declared(model="nobody/nothing")()


def test_reasoning_that_a_model_does_not_support_is_an_error() -> None:
    with pytest.raises(ModuleError, match="does not reason"):
        declared(model={"id": "openai/gpt-4o", "api_key": "none", "reasoning": True})()


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, {"temperature": 0.7}),
        ({"temperature": None}, {}),
        ({"max_tokens": 5, "top_p": 0.5}, {"temperature": 0.7, "max_tokens": 5, "top_p": 0.5}),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"temperature": 0.7, "max_tokens": 6}),
        (
            {"stop": "x", "presence_penalty": 1.0},
            {"temperature": 0.7, "stop_sequences": ["x"], "presence_penalty": 1.0},
        ),
        ({"stop": ["x", "y"]}, {"temperature": 0.7, "stop_sequences": ["x", "y"]}),
    ],
)
def test_settings(attributes: dict[str, Any], expected: dict[str, Any]) -> None:
    brain = Brain(finish())
    declared(model=brain, **attributes)()
    assert brain.asked[0].info.model_settings == expected


class Prompted(Module):
    max_steps = 2

    def system_prompt(self) -> str:
        return "from a method"


class PromptedAsync(Module):
    max_steps = 2

    async def system_prompt(self) -> str:
        return "from an async method"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("as it is", "as it is"),
        (Template(template="You know {{ what }}.", args={"what": "birds"}), "You know birds."),
        (Prompted, "from a method"),
        (PromptedAsync, "from an async method"),
        (Path("prompt.md"), "from a file"),
        ("", ""),
    ],
)
def test_system_prompts(given: Any, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = ModuleType("home_of_a_class")
    home.__file__ = str(tmp_path / "home_of_a_class.py")
    monkeypatch.setitem(sys.modules, home.__name__, home)
    (tmp_path / "prompt.md").write_text("from a file")
    brain = Brain(finish())
    bases = (given,) if isinstance(given, type) else (Module,)
    attributes = {} if isinstance(given, type) else {"system_prompt": given}
    type("Prompting", bases, {"model": brain, "max_steps": 2, "__module__": home.__name__, **attributes})()()
    assert brain.asked[0].system == expected


# From the input to the output


def test_inputs_are_sent_as_xml_with_descriptions() -> None:
    brain = Brain(finish())
    declared(model=brain, initial_input=Question)(text="Why <so>?")
    assert brain.asked[0].prompts == ['<input>\n  <text description="What is asked">Why &lt;so&gt;?</text>\n</input>\n']
    with pytest.raises(ValidationError):
        declared(model=brain, initial_input=Question)(limit=3)


def test_inputs_without_a_model_are_sent_unchanged() -> None:
    brain = Brain(finish(), finish())
    module = declared(model=brain)
    module(self_=1, name="x")
    module()
    assert [asked.prompts for asked in brain.asked] == [["{'self_': 1, 'name': 'x'}"], ["{}"]]


def test_a_model_that_only_talks_is_asked_to_call_and_given_up_on() -> None:
    brain = Brain(decide=lambda asked: "I talk.")
    with pytest.raises(ModuleError, match="No tool calls in agentic loop step after 2 retries"):
        declared(model=brain, max_steps=10)()
    assert len(brain.asked) == 3
    assert "Please call one of the tools" in brain.asked[-1].prompts[-1]


def test_patience_begins_anew_with_every_call() -> None:
    brain = Brain("a", "b", call("double", number=1), "c", "d", finish())
    assert declared(model=brain, max_steps=10, tools=[double])() is None
    assert len(brain.asked) == 6


def test_without_an_output_the_last_step_is_the_end() -> None:
    brain = Brain(decide=lambda asked: call("double", number=1))
    assert declared(model=brain, max_steps=3, tools=[double])() is None
    assert len(brain.asked) == 3


def test_a_model_that_never_finishes() -> None:
    brain = Brain(decide=lambda asked: call("double", number=1))
    with pytest.raises(ModuleError, match=r"reached max_steps \(2\) without calling __finish__"):
        declared(model=brain, tools=[double], final_output=Answer)()
    assert len(brain.asked) == 2 + 1 + 2


def test_one_turn() -> None:
    brain = Brain(finish(value=1))
    assert declared(model=brain, max_steps=None, final_output=Answer)() == Answer(value=1)
    assert brain.asked[0].tools == ["__finish__"]
    with pytest.raises(ModuleError, match="Non-finish tool called in single-turn mode"):
        declared(model=Brain(call("double", number=1)), max_steps=None, final_output=Answer)()
    with pytest.raises(ModuleError, match="No tool called in single-turn mode after 2 retries"):
        declared(model=Brain(decide=lambda asked: "I talk."), max_steps=None, final_output=Answer)()


@pytest.mark.parametrize("attributes", [{"tools": [double]}, {"branches": [Leaf]}, {"double": tool(lambda self: 1)}])
def test_what_has_something_to_call_has_several_turns(attributes: dict[str, Any]) -> None:
    if "double" in attributes:
        attributes["double"].__name__ = "double"
    brain = Brain(decide=lambda asked: call("nothing"))
    assert declared(model=brain, max_steps=None, **attributes)() is None
    assert len(brain.asked) == 10


def test_a_branch_that_inherits_tools_may_call_them() -> None:
    class Item(Module):
        """Process one item."""

        final_output = Answer

    def decide(asked: Asked) -> Any:
        if asked.system.startswith("Process"):
            return finish(value=asked.results[-1]) if asked.results else call("double", number=2)
        return call("branch", name="Item") if asked.turn == 0 else finish()

    brain = Brain(decide=decide)
    declared(model=brain, branches=[Item], tools=[double])()
    assert "<value>4</value>" in brain.asked[-1].results[0]


@pytest.mark.parametrize("steps", [None, 2])
def test_an_output_that_was_written_instead_of_called(steps: int | None) -> None:
    brain = Brain("Here: <output><value>x</value></output>", "So: <output>\n<value>7</value>\n</output> Good?")
    assert declared(model=brain, max_steps=steps, final_output=Answer)() == Answer(value=7)


def test_calls_that_were_written_instead_of_made() -> None:
    def join(words: list[str], times: int, sep: str) -> str:
        """Join."""
        return sep.join(words * times)

    written = (
        '<tool_call>join<arg_key>words</arg_key><arg_value>["a", "b"]</arg_value>'
        "<arg_key>times</arg_key><arg_value>2</arg_value><arg_key>sep</arg_key><arg_value>1</arg_value></tool_call>"
    )
    brain = Brain(f"I join. {written} And <tool_call>nobody</tool_call>", "<tool_call>__finish__</tool_call>")
    module = declared(model=brain, tools=[join])
    module()
    assert brain.asked[1].results == ["a1b1a1b"]
    said = module.history[2]
    assert said["content"] == "I join.  And <tool_call>nobody</tool_call>"
    assert said["tool_calls"][0]["id"].startswith("embedded_")


def test_unknown_tools_and_tools_that_fail() -> None:
    def fail() -> None:
        """Fail."""
        raise KeyError

    brain = Brain([call("nothing"), call("fail"), call("double", number=2)], finish())
    declared(model=brain, tools=[fail, double])()
    assert brain.asked[1].results == ["Error: Tool 'nothing' not found", "Error: KeyError", "4"]


def test_results_are_read_as_json_where_they_have_a_structure() -> None:
    def structured() -> dict[str, Any]:
        """Give a structure."""
        return {"a": [1, None, True], "b": Answer(value=2), "c": {3}}

    def model() -> Answer:
        """Give a model."""
        return Answer(value=1)

    def nothing() -> None:
        """Give nothing."""

    brain = Brain([call("structured"), call("model"), call("nothing")], finish())
    declared(model=brain, tools=[structured, model, nothing])()
    assert brain.asked[1].results == ['{"a":[1,null,true],"b":{"value":2},"c":[3]}', '{"value":1}', "None"]


def test_tools_are_found_by_searching() -> None:
    def weather(city: str) -> str:
        """Tell the weather of a city."""
        return f"Rain in {city}"

    def stocks(symbol: str) -> str:
        """Tell the price of a stock."""
        return symbol

    brain = Brain(call("search_tools", query="weather in town"), call("weather", city="Rome"), finish())
    declared(model=brain, max_steps=4, tools=[weather, stocks], tool_discovery="search")()
    assert brain.asked[0].tools == ["search_tools", "__finish__"]
    assert brain.asked[1].tools == ["weather", "search_tools", "__finish__"]
    assert "stocks" not in brain.asked[1].results[0]
    assert brain.asked[2].results[1] == "Rain in Rome"


# Callbacks


def test_a_step_says_what_happened() -> None:
    class Watching(Module):
        model = Brain(["I see.", call("double", number=1), call("nothing")], finish())
        tools = [double]
        max_steps = 3

        def on_step(self, step: Step) -> Step:
            self.seen = step
            self.report = [entry["content"] for entry in self.history if entry["role"] == "tool"]
            return step

    watching = Watching()
    watching()
    step = watching.seen
    assert (step.counter, step.temperature, step.model) == (1, 0.7, Watching.model)
    assert step.response["content"] == "I see."
    assert [(c.name, c.arguments) for c in step.tool_calls] == [("double", {"number": 1}), ("nothing", {})]
    assert [(r.name, r.output, r.error) for r in step.tool_results] == [
        ("double", 2, None),
        ("nothing", None, "Tool 'nothing' not found"),
    ]
    assert watching.report == ["2", "Error: Tool 'nothing' not found"]


def test_tools_come_and_go() -> None:
    def triple(number: int) -> int:
        """Triple a number."""
        return 3 * number

    class Changing(Module):
        model = Brain(decide=lambda asked: [call("double", number=1), call("triple", number=1), finish()][asked.turn])
        tools = [double]
        max_steps = 3

        def on_step(self, step: Step) -> Step:
            if step.counter == 1:
                step.add_tool(triple)
                step.remove_tool("double")
                for taken in (Tool.of(double, name="triple"), Tool.of(triple, name="__finish__")):
                    with pytest.raises(ToolConflictError):
                        step.add_tool(taken)
                step.add_tool(triple)  # as often as a program likes
                step.remove_tool("double")
                assert [t.name for t in step.tools] == ["triple"]
            return step

    changing = Changing()
    for _ in range(2):  # the next call starts with the tools that the class declares
        changing()
        brain: Any = Changing.model
        assert [asked.tools for asked in brain.asked[-3:]] == [
            ["double", "__finish__"],
            ["triple", "__finish__"],
            ["triple", "__finish__"],
        ]
        assert brain.asked[-1].results == ["2", "3"]


def test_a_step_may_finish() -> None:
    class Finishing(Module):
        model = Brain(decide=lambda asked: call("double", number=1))
        tools = [double]
        max_steps = 3
        final_output = Answer
        output: Any = {"value": 5}

        async def on_step(self, step: Step) -> Step:
            step.finish(**self.output)
            return step

    finishing = Finishing()
    assert finishing() == Answer(value=5)
    finishing.output = {"value": "x"}
    with pytest.raises(ParseError):
        finishing()
    Finishing.final_output = None  # type: ignore[assignment]
    assert finishing() is None


def test_on_step_returns_a_step() -> None:
    class Wrong(Module):
        model = Brain(call("double", number=1))
        tools = [double]
        max_steps = 3

        def on_step(self, step: Step) -> str:
            return "done"

    with pytest.raises(ModuleError, match="on_step must return the step or None, not 'done'"):
        Wrong()()


def test_history_may_be_replaced() -> None:
    class Forgetful(Module):
        model = Brain(call("double", number=1), finish())
        tools = [double]
        max_steps = 3

        def on_step(self, step: Step) -> None:
            self.history = [{"role": "system", "content": "New."}, {"role": "user", "content": "Begin anew."}]

    forgetful = Forgetful()
    forgetful.history = [{"role": "user", "content": "before"}]
    assert forgetful.history[0]["content"] == "before"
    forgetful()
    brain: Any = Forgetful.model
    assert (brain.asked[1].system, brain.asked[1].prompts) == ("New.", ["Begin anew."])
    assert len(forgetful.history) == 4


def test_a_branch_sees_what_on_step_made_of_the_results() -> None:
    brain = Brain([call("double", number=1), call("double", number=2)], finish(value=1), finish())

    class Editing(Module):
        model = brain
        tools = [double]
        max_steps = 3

        def on_step(self, step: Step) -> None:
            step.tool_results[0].output = "edited"
            step.tool_results[1].error = "forbidden"
            self.branch(Leaf)

    Editing()()
    assert [asked.results for asked in brain.asked[1:]] == [["edited", "Error: forbidden"]] * 2


def test_a_thread_of_ones_own_may_branch() -> None:
    class Threading(Module):
        model = Brain(decide=lambda asked: finish(value=1) if "leaf" in asked.system else call("double", number=1))
        tools = [double]
        max_steps = 1

        def on_step(self, step: Step) -> None:
            thread = threading.Thread(target=lambda: given.append(self.branch(Leaf)))
            thread.start()
            thread.join()

    given: list[Any] = []
    Threading()()
    assert given == [Answer(value=1)]


def test_a_loop_of_ones_own_may_branch() -> None:
    class Looping(Module):
        model = Brain(decide=lambda asked: finish(value=1) if "leaf" in asked.system else call("double", number=1))
        tools = [double]
        max_steps = 1

        def on_step(self, step: Step) -> None:
            async def main() -> Any:
                return await self.branch(Leaf)

            given.append(asyncio.run(main()))

    given: list[Any] = []
    Looping()()
    assert given == [Answer(value=1)]


def test_a_branch_of_a_finished_module() -> None:
    brain = Brain(finish(), finish(value=1))
    module = declared(model=brain)
    module(topic="birds")
    assert module.branch(Leaf) == Answer(value=1)
    assert "birds" in brain.asked[1].prompts[0]
    assert module.history[-1]["content"].startswith("[Branch Result]")

    async def main() -> Any:
        return await declared(model=Brain(finish(value=2))).branch(Leaf)

    assert asyncio.run(main()) == Answer(value=2)


def test_tools_may_be_named_like_anything_inside() -> None:
    """A subclass may give its tools any name except those of the module's own tools."""
    names = ["begin", "tell", "call", "step", "services", "files", "prompt", "ask", "say", "settle", "opened", "name"]
    methods = {}
    for name in names:
        exec(f"def {name}(self) -> str:\n    'A tool.'\n    return {name!r}", methods)
    brain = Brain([call(name) for name in names], finish())
    declared(model=brain, **{name: tool(methods[name]) for name in names})()
    assert brain.asked[1].results == names


# Errors of branches


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "Nope"}, "Error: Branch 'Nope' not found. Available: ['Leaf', 'Unmade']"),
        ({"name": "Leaf", "merge": "x"}, "Error: Invalid merge strategy 'x'. Must be: end_result, summarize"),
        ({"name": "Unmade"}, "Error: Failed to instantiate branch: no"),
    ],
)
def test_branches_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    class Unmade(Leaf):
        def __init__(self) -> None:
            raise RuntimeError("no")

    brain = Brain(call("branch", **arguments), finish())
    declared(model=brain, branches=[Leaf, Unmade])()
    assert brain.asked[1].results == [message]


def test_unknown_parent_tools() -> None:
    def decide(asked: Asked) -> Any:
        if "leaf" in asked.system:
            return finish(value=1) if asked.results else call("call_parent_tool", name="branch")
        return call("branch", name="Leaf") if asked.turn == 0 else finish()

    brain = Brain(decide=decide)
    declared(model=brain, branches=[Leaf], tools=[double])()
    assert ["Error: Parent tool 'branch' not found. Available: ['double']"] in [asked.results for asked in brain.asked]


def test_inputs_that_a_branch_does_not_take() -> None:
    class Asking(Leaf):
        initial_input = Question

    with pytest.raises(BranchError, match="Branch execution failed: text: Field required") as error:
        declared(model=Brain()).branch(Asking)
    assert error.value.branch == "Asking"
    with pytest.raises(TypeError, match="a branch is a Module subclass"):
        declared(model=Brain()).branch(Question)
    assert isinstance(error.value.__cause__, ValidationError)


def test_a_tool_of_the_branch_hides_the_parents() -> None:
    def twice(number: int) -> str:
        """Say a number twice."""
        return f"{number}{number}"

    twice.__name__ = "double"

    class Hiding(Leaf):
        """Be a leaf."""

        tools = [twice]

    def decide(asked: Asked) -> Any:
        if "leaf" in asked.system:
            both = [call("double", number=3), call("call_parent_tool", name="double", number=3)]
            return finish(value=1) if asked.results else both
        return call("branch", name="Hiding") if asked.turn == 0 else finish()

    brain = Brain(decide=decide)
    declared(model=brain, branches=[Hiding], tools=[double])()
    assert ["33", "6"] in [asked.results for asked in brain.asked]


# Missing attributes and failing services


def test_without_pydantic_ai_the_error_names_the_extra() -> None:
    code = """
import sys
sys.modules["pydantic_ai"] = None
import forkwise
forkwise.Workspace
for name in ("Module", "tool", "Service"):
    try:
        getattr(forkwise, name)
    except ImportError as error:
        print(error)
"""
    report = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert report.splitlines() == [
        f"{name} needs pydantic-ai: pip install 'forkwise[agents]'" for name in ("Module", "tool", "Service")
    ]


def test_a_service_whose_setup_fails_is_an_error() -> None:
    from forkwise import ServiceError

    order: list[str] = []

    class First(Service):
        def setup(self) -> None:  # type: ignore[override]
            order.append("up")

        def teardown(self) -> None:  # type: ignore[override]
            order.append("down")

    class Second(Service):
        async def setup(self) -> None:
            raise OSError("no connection")

    with pytest.raises(ServiceError, match="Service 'Second' setup failed: no connection") as error:
        declared(model=Brain(), tools=[First(), Second()])()
    assert error.value.service == "Second"
    assert order == ["up", "down"]


def test_a_service_whose_teardown_fails_is_reported() -> None:
    from forkwise import ForkwiseWarning

    class Sticky(Service):
        """Stay."""

        async def teardown(self) -> None:
            raise OSError("stuck")

    module = declared(model=Brain(finish(), finish()), tools=[Sticky()])
    for _ in range(2):
        with pytest.warns(ForkwiseWarning, match="Service 'Sticky' teardown failed: OSError: stuck"):
            module()


def test_services_tell_of_themselves() -> None:
    class HTTPCache(Service):
        """Caches."""

        @tool
        def get(self, key: str) -> str:
            """Get."""
            return key

    cache = HTTPCache()
    assert (cache.name, cache.description) == ("HTTPCache", "Caches.")
    assert [t.name for t in cache.get_tools()] == ["http_cache__get"]
    assert cache.get_tools()[0](key="x") == "x"
    assert asyncio.run(cache.health())


def test_arguments_that_are_a_dictionary_already() -> None:
    brain = Brain([ToolCallPart("double", {"number": 2}), ToolCallPart("double", None)], finish())
    declared(model=brain, tools=[double])()
    assert brain.asked[1].results == ["4", "Error: number: Missing required argument"]
