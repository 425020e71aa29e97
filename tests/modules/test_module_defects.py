"""Known defects of similar systems, by number, each shown to be absent here."""
# ruff: noqa: RUF012 - a module's lists are declared as the specification shows

from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from pydantic import BaseModel, Field
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ThinkingPart, ToolCallPart

from forkwise import Module, ModuleError, ParseError, Service, pydantic_to_xml, tool, xml_to_pydantic
from forkwise.modules import request
from forkwise.modules.request import PartialJson
from tests.modules.brain import Asked, Brain, call, finish


class Answer(BaseModel):
    value: int


class Leaf(Module):
    """Be a leaf."""

    max_steps = 3
    final_output = Answer


@tool
def double(number: int) -> int:
    """Double a number.

    Args:
        number: what to double
    """
    return 2 * number


def test_defect_01_malformed_arguments_go_back_to_the_model() -> None:
    brain = Brain(
        ToolCallPart("double", '{"number": '),
        ToolCallPart("double", "[1]"),
        ToolCallPart("double", "[" * 100_000),
        call("double", number="many"),
        call("double", count=2),
        [call("double", number="4"), ToolCallPart("__finish__", '{"value": ')],
        finish(value=8),
    )

    class Doubling(Module):
        model = brain
        max_steps = 7
        tools = [double]
        final_output = Answer

    assert Doubling()() == Answer(value=8)
    report = brain.asked[-1].results
    assert all(result.startswith("Error: ") for result in [*report[:5], report[6]])
    assert report[0].startswith("Error: the arguments are not valid JSON: ")
    assert report[1] == "Error: the arguments are not a JSON object"
    assert "number: Input should be a valid integer" in report[3]
    assert "number: Missing required argument; count: Unexpected keyword argument" in report[4]
    assert report[5] == "8"


class Named(BaseModel):
    name: str
    merge: str = "none"
    inputs: Any = None


class Namesake(Module):
    """Say what you were given."""

    max_steps = 2
    initial_input = Named
    final_output = Named


@tool
def greet(name: str, arguments: str = "") -> str:
    """Greet a person."""
    return f"Hello, {name}{arguments}"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"inputs": {"name": "a", "merge": "b"}}, Named(name="a", merge="b")),
        ({"inputs": {"name": "a"}, "merge": "left"}, Named(name="a", merge="left")),
        ({"inputs": {"name": "a"}, "merge": "end_result"}, Named(name="a")),
        ({"inputs": {"name": "a", "inputs": {"x": 1}}}, Named(name="a", inputs={"x": 1})),
    ],
)
def test_defect_02_inputs_may_be_called_name_and_merge(arguments: dict[str, Any], expected: Named) -> None:
    def decide(asked: Asked) -> Any:
        if asked.system.startswith("Say"):
            return finish(**xml_to_pydantic(asked.prompts[-1], Named).model_dump())
        return call("branch", name="Namesake", **arguments) if asked.turn == 0 else finish()

    class Parent(Module):
        model = Brain(decide=decide)
        branches = [Namesake]
        max_steps = 3

    parent = Parent()
    parent()
    result = next(entry["content"] for entry in parent.history if entry["role"] == "tool")
    assert xml_to_pydantic(result, Named) == expected


@pytest.mark.parametrize(
    "arguments", [{"arguments": {"name": "Ada", "arguments": "!"}}, {"arguments": {"name": "Ada!"}}]
)
def test_defect_02_a_parent_tools_parameter_may_be_called_name(arguments: dict[str, Any]) -> None:
    def decide(asked: Asked) -> Any:
        if asked.system == "Be a leaf.":
            return finish(value=1) if asked.results else call("call_parent_tool", name="greet", **arguments)
        return call("branch", name="Leaf") if asked.turn == 0 else finish()

    brain = Brain(decide=decide)

    class Parent(Module):
        model = brain
        branches = [Leaf]
        tools = [greet]
        max_steps = 3

    Parent()()
    assert ["Hello, Ada!"] in [asked.results for asked in brain.asked]


def test_defect_02_by_hand() -> None:
    class Parent(Module):
        model = Brain(call("greet", name="x"), finish(name="a", merge="left", inputs=None), finish())
        tools = [greet]
        max_steps = 3

        def on_step(self, step: Any) -> None:
            self.given = self.branch(Namesake, name="a", merge="left")

    parent = Parent()
    parent()
    assert parent.given == Named(name="a", merge="left")


def test_defect_03_what_on_step_changes_has_an_effect() -> None:
    first, second = Brain([call("double", number=1), call("double", number=2)]), Brain(finish())

    class Meddler(Module):
        model: Any = first
        max_steps = 3
        tools = [double]

        def on_step(self, step: Any) -> Any:
            step.tool_results[0].output = "something else"
            del step.tool_results[1]
            step.model, step.temperature, step.max_tokens = second, 0.1, 77
            return step

    Meddler()()
    [asked] = second.asked
    assert asked.results[0] == "something else"
    assert asked.results[1].startswith("There is no result")
    assert asked.info.model_settings == {"temperature": 0.1, "max_tokens": 77}


class Counted(Service):
    """Counts, while it is up."""

    def __init__(self) -> None:
        self.ups = self.downs = 0
        self.is_up = False

    async def setup(self) -> None:
        self.ups, self.is_up = self.ups + 1, True

    async def teardown(self) -> None:
        self.downs, self.is_up = self.downs + 1, False

    @tool
    async def look(self, number: int) -> str:
        """Look whether it is up."""
        await asyncio.sleep(0.01 * number)
        return f"{number} {'up' if self.is_up else 'down'}"


def test_defect_04_the_last_user_tears_a_service_down() -> None:
    service = Counted()

    class Looking(Module):
        """Look."""

        max_steps = 3
        tools = [service]
        final_output = Answer

    def decide(asked: Asked) -> Any:
        if asked.system == "Look.":
            if not asked.results:
                return call("counted__look", number=int(asked.prompts[-1][-2]))
            assert asked.results[0].endswith(" up")
            return finish(value=1)
        if asked.turn == 0:
            return [call("branch", name="Looking", number=number) for number in range(4)]
        return call("counted__look", number=0) if asked.turn == 1 else finish()

    brain = Brain(decide=decide)

    class Parent(Module):
        model = brain
        branches = [Looking]
        tools = [service]
        max_steps = 4

    Parent()()
    assert brain.asked[-1].results[-1] == "0 up"
    assert not any(result.startswith("Error") for result in brain.asked[-1].results)
    assert (service.ups, service.downs, service.is_up) == (1, 1, False)


def test_defect_04_two_calls_at_once_share_a_service() -> None:
    service = Counted()

    class Looking(Module):
        model: Any = Brain(decide=lambda asked: finish() if asked.results else call("counted__look", number=1))
        max_steps = 3
        tools = [service]

    looking = Looking()

    async def main() -> None:
        await asyncio.gather(looking(), looking())

    asyncio.run(main())
    asyncio.run(main())
    assert (service.ups, service.downs, service.is_up) == (2, 2, False)
    assert "1 up" in [entry["content"] for entry in looking.history]


def test_defect_05_async_methods_of_a_service_are_awaited() -> None:
    brain = Brain(call("counted__look", number=0), finish())

    class Looking(Module):
        model = brain
        max_steps = 3
        tools = [Counted()]

    Looking()()
    assert brain.asked[-1].results == ["0 up"]


def test_defect_06_at_max_steps_the_error_is_sent_to_the_model() -> None:
    class Wrong(Module):
        model: Any = Brain(decide=lambda asked: finish(value="x") if asked.turn else call("double", number=1))
        tools = [double]
        max_steps = 1
        final_output = Answer

    with pytest.raises(ParseError, match="Output validation failed: value: Input should be a valid integer") as error:
        Wrong()()
    assert error.value.raw_output == '{"value": "x"}'

    def refuse(asked: Asked) -> Any:
        if asked.turn:
            raise ModelHTTPError(401, "brain", "no key")
        return call("double", number=1)

    class Refused(Wrong):
        model = Brain(decide=refuse)

    with pytest.raises(ModuleError, match="401") as failed:
        Refused()()
    assert isinstance(failed.value.__cause__, ModelHTTPError)


def test_defect_07_a_plain_on_step_branches() -> None:
    """The specification's own example; test_module_seed runs it with every kind of call."""
    brain = Brain(call("double", number=1), finish(value=3), finish())

    class Parent(Module):
        model = brain
        tools = [double]
        max_steps = 3

        def on_step(self, step: Any) -> Any:
            self.given = self.branch(Leaf)
            return step

    parent = Parent()
    parent()
    assert parent.given == Answer(value=3)
    assert "[Branch Result]" in brain.asked[-1].prompts[-1]


def test_defect_08_calls_at_once_have_histories_of_their_own() -> None:
    def decide(asked: Asked) -> Any:
        number = asked.prompts[0][-2]
        return finish(value=number) if len(asked.results) == 3 else call("double", number=number)

    class Concurrent(Module):
        model = Brain(decide=decide, seconds=0.001)
        tools = [double]
        max_steps = 5
        final_output = Answer

        def on_step(self, step: Any) -> None:
            [prompt] = [entry["content"] for entry in self.history if entry["role"] == "user"]
            assert f": {step.tool_calls[0].arguments['number']}" in prompt

    module = Concurrent()

    async def main() -> list[Answer]:
        return list(await asyncio.gather(*(module(number=number) for number in range(8))))

    assert asyncio.run(main()) == [Answer(value=number) for number in range(8)]
    assert sum(entry["role"] == "user" for entry in module.history) == 1


def test_defect_09_run_in_a_loop_raises_the_original_error() -> None:
    class Failing(Module):
        model = Brain(call("double", number=1))
        tools = [double]
        max_steps = 3

        def on_step(self, step: Any) -> Any:
            raise RuntimeError("the user's own")

    async def main() -> None:
        Failing().run()

    with pytest.raises(RuntimeError, match="the user's own"):
        asyncio.run(main())


def test_defect_10_a_branch_that_branches_into_itself_ends() -> None:
    class Endless(Module):
        """Go deeper."""

        max_steps = 3
        final_output = Answer

    Endless.branches = [Endless]

    def decide(asked: Asked) -> Any:
        report = [result for result in asked.results if result]
        return finish(value=len(report)) if report else call("branch", name="Endless")

    brain = Brain(decide=decide)
    Endless.model = brain
    root = Endless()
    assert root() == Answer(value=1)
    first = [asked for asked in brain.asked if not asked.results]
    assert len(first) == 6  # itself, and five levels of branches
    assert "allows 5 levels of branches" in next(asked for asked in brain.asked if asked.results).results[0]


def test_defect_11_dynamic_tools_reach_branches_of_branches() -> None:
    def triple(number: int) -> int:
        """Triple a number."""
        return 3 * number

    class Middle(Module):
        """Be in the middle."""

        max_steps = 3
        branches = [Leaf]
        final_output = Answer

    def decide(asked: Asked) -> Any:
        match asked.system:
            case "Be a leaf.":
                if len(asked.results) < 3:
                    return [
                        call("triple", number=2),
                        call("call_parent_tool"),
                        call("call_parent_tool", name="triple", number=3),
                    ]
                return finish(value=1)
            case "Be in the middle.":
                return finish(value=1) if len(asked.results) > 1 else call("branch", name="Leaf")
        return [call("double", number=1), call("branch", name="Middle"), finish()][asked.turn]

    brain = Brain(decide=decide)

    class Root(Module):
        model = brain
        tools = [double]
        branches = [Middle]
        max_steps = 3

        def on_step(self, step: Any) -> None:
            if step.counter == 1:
                step.add_tool(triple)

    Root()()
    leaf = [asked for asked in brain.asked if asked.system == "Be a leaf."]
    assert {"double", "triple"} <= set(leaf[0].tools)
    direct, listing, through_parent = leaf[1].results[-3:]
    assert (direct, through_parent) == ("6", "9")
    assert [known["name"] for known in json.loads(listing)] == ["double", "triple"]


class Anything(BaseModel):
    text: str
    note: str | None = None
    by_key: dict[str, str] = Field(default_factory=dict)
    free: Any = None


@pytest.mark.parametrize("key", ["a b", "1x", "", "xml", "entry", "<", "é\x00", "\\u0000", "a\nb\t", "\ud800"])
@pytest.mark.parametrize(
    "text", ["", "  padded \n", "<b>bold</b>", "a\x00b\x1b\\u0000", "\r\n\t", "]]>", "\ufffe\ud800"]
)
def test_defect_12_any_value_goes_through_xml(key: str, text: str) -> None:
    value = Anything(text=text, note=text, by_key={key: text}, free={key: [text, 1, None, True, 1.5, {}, []]})
    xml = pydantic_to_xml(value)
    fromstring(xml.encode())
    assert xml_to_pydantic(xml, Anything) == value


def test_defect_13_what_arrives_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Long(BaseModel):
        text: str
        number: int

    scanned: list[int] = []
    parsed: list[int] = []

    def count_scanned(pattern: re.Pattern[str]) -> Any:
        def search(text: str, position: int) -> re.Match[str] | None:
            found = pattern.search(text, position)
            scanned.append((found.end() if found else len(text)) - position)
            return found

        return SimpleNamespace(search=search)

    def loads(text: str) -> Any:
        parsed.append(len(text))
        return json.loads(text)

    for name in ("_MARKS", "_IN_STRING"):
        monkeypatch.setattr(request, name, count_scanned(getattr(request, name)))
    monkeypatch.setattr(request, "json", SimpleNamespace(loads=loads))
    value = {"text": 'x"\\' * 5_000, "number": 1}
    document = json.dumps(value)
    arriving = PartialJson(Long)
    for at in range(0, len(document), 4):
        arriving.feed(document[at : at + 4])
    assert arriving.feed("").model_dump() == value
    assert len(document) / 2 < sum(scanned) <= len(document)  # what a backslash escapes is not looked at
    assert len(document) / 2 < sum(parsed) <= len(document) + 2


def test_defect_14_calls_beside_finish_are_answered() -> None:
    class Both(Module):
        model = Brain([call("double", number=1), finish(value=2), call("double", number=3)])
        tools = [double]
        max_steps = 2
        final_output = Answer

    both = Both()
    assert both() == Answer(value=2)
    asked = [c["id"] for entry in both.history for c in entry.get("tool_calls", ())]
    assert [entry["tool_call_id"] for entry in both.history if entry["role"] == "tool"] == asked
    assert [e["content"] for e in both.history if e["role"] == "tool"].count("Done.") == 1


def test_defect_15_thoughts_go_back_as_they_came() -> None:
    thought = ThinkingPart("hmm", signature="signed", provider_name="function")
    brain = Brain([thought, "I look.", call("double", number=1)], finish())

    class Thinking(Module):
        model = brain
        tools = [double]
        max_steps = 3

        def on_step(self, step: Any) -> None:
            said = next(entry for entry in self.history if entry["role"] == "assistant")
            assert said["reasoning_content"] == "hmm"
            said["content"] = "I looked."  # changes by the user are sent, together with the unchanged thinking

    Thinking()()
    sent = brain.asked[1].messages[1].parts
    assert sent[0] == thought
    assert [part.part_kind for part in sent] == ["thinking", "text", "tool-call"]
    assert "I looked." in str(sent[1])
