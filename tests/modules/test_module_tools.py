"""Descriptions of tools for models, templates, and partial output."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from forkwise import ModuleError, Partial, Template
from forkwise.modules.request import PartialJson
from forkwise.modules.tools import Tool, finish_definition, tool_schema


class Size(enum.Enum):
    SMALL = "small"


class Place(BaseModel):
    name: str
    title: str = Field(default="", title="Its title", description="what it is called")


def travel(
    where: Place, size: Size = Size.SMALL, how: Literal["rail", "road"] = "rail", tags: list[str] | None = None
) -> str:
    """Go somewhere.

    And come back.

    Args:
        where: the place to go to,
            which may be far: very far
        size (Size): how big
        **others: not there

    Returns:
        tags: not of the parameter
    """
    return where.name


def test_what_a_function_takes() -> None:
    schema = tool_schema(travel)
    assert schema["type"] == "function"
    function = schema["function"]
    assert (function["name"], function["description"]) == ("travel", "Go somewhere.\n\nAnd come back.")
    parameters = function["parameters"]
    assert parameters["type"] == "object"
    assert parameters["required"] == ["where"]
    assert parameters["properties"]["where"] == {
        "type": "object",
        "description": "the place to go to, which may be far: very far",
        "properties": {
            "name": {"type": "string"},
            "title": {"type": "string", "default": "", "description": "what it is called"},
        },
        "required": ["name"],
    }
    assert parameters["properties"]["size"]["enum"] == ["small"]
    assert parameters["properties"]["size"]["description"] == "how big"
    assert parameters["properties"]["how"]["enum"] == ["rail", "road"]
    assert "description" not in parameters["properties"]["tags"]
    assert "$defs" not in parameters


class Counting:
    def __call__(self, number: int) -> int:
        """Count."""
        return number

    def method(self, number: int) -> int:
        return number


def test_functions_of_all_kinds() -> None:
    def bare() -> None: ...

    def anything(session: Any, other: Counting | None = None, **more: Any) -> None: ...

    assert Tool.of(Counting()).name == "Counting"
    assert list(Tool.of(Counting().method).parameters["properties"]) == ["number"]
    assert Tool.of(bare).parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert Tool.of(anything).parameters["properties"]["session"] == {}
    assert {"type": "string"} in Tool.of(anything).parameters["properties"]["other"]["anyOf"]
    assert Tool.of(bare, name="go").name == "go"
    assert Tool.of(Tool.of(bare)).function is bare
    with pytest.raises(TypeError, match="a tool is a function"):
        Tool.of(3)


def test_functions_that_cannot_be_described() -> None:
    def unknown(x: "NotThere") -> None:  # type: ignore[name-defined]  # noqa: F821, UP037
        ...

    with pytest.raises(ModuleError, match="'unknown' has parameters that cannot be described"):
        Tool.of(unknown)

    def positional(x: int, /) -> None: ...

    def several(*x: int) -> None: ...

    for function in (positional, several):
        with pytest.raises(ModuleError, match=r"takes \*?x: (int|'int') by position"):
            Tool.of(function)


@pytest.mark.parametrize("name", ["<lambda>", "größer", "a" * 65, "two words"])
def test_names_that_no_provider_takes(name: str) -> None:
    with pytest.raises(ModuleError, match="no provider accepts a tool named"):
        Tool.of(travel, name=name)


class Tree(BaseModel):
    name: str
    children: list[Tree] = Field(default_factory=list)


class Forest(BaseModel):
    title: str
    place: Place
    trees: list[Tree]


def test_the_output_of_a_module_as_a_tool() -> None:
    schema = finish_definition(Forest).parameters_json_schema
    assert schema["properties"]["title"] == {"type": "string"}
    assert "title" in schema["properties"]["place"]["properties"]
    assert "$ref" not in schema["properties"]["place"]
    assert list(schema["$defs"]) == ["Tree"]
    recursive = finish_definition(Tree).parameters_json_schema
    assert recursive["type"] == "object"
    assert recursive["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert finish_definition(None).parameters_json_schema == {"type": "object", "properties": {}}


# Templates


def test_templates(tmp_path: Path) -> None:
    (tmp_path / "t.md").write_text("{{a}} {{ b.c }} {{ b.d.e }}")
    template = Template(path=tmp_path / "t.md", args={"a": 1, "b": {"c": 2, "d": Place}})
    with pytest.raises(ValueError, match=r"has \{\{ b\.d\.e \}\}, but no value"):
        template.render()
    assert template.render(b={"c": 2, "d": {"e": "x"}}) == "1 2 x"
    assert Template(path="brain.py").render().startswith('"""`Brain`')
    with pytest.raises(FileNotFoundError):
        Template(path="nothing.md")
    for options in ({}, {"path": "a", "template": "b"}):
        with pytest.raises(ValueError, match="either a path or a template"):
            Template(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"supports \{\{ name \}\} and nothing else"):
        Template(template="{% if x %}").render()


# Partial output


class Report(BaseModel):
    title: str = Field(alias="Title")
    points: list[Place]
    score: float
    extra: dict[str, Any]


def test_partial_models() -> None:
    partial = Partial(Report)
    assert partial.__name__ == "PartialReport"
    assert partial().model_dump() == {"title": None, "points": None, "score": None, "extra": None}
    assert partial(Title="x").title == "x"  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        Partial(int)


documents = st.builds(
    lambda title, points, score, extra: Report(Title=title, points=points, score=score, extra=extra),
    st.text(),
    st.lists(st.builds(Place, name=st.text()), max_size=3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.dictionaries(st.text(), st.text() | st.lists(st.text()), max_size=3),
)


@given(documents, st.integers(1, 9))
def test_fields_appear_once_they_are_complete(report: Report, piece: int) -> None:
    text = report.model_dump_json(by_alias=True)
    arriving = PartialJson(Report)
    seen: list[dict[str, Any]] = []
    for at in range(0, len(text), piece):
        partial = arriving.feed(text[at : at + piece]).model_dump()
        whole = report.model_dump()
        assert all(value is None or value == whole[name] for name, value in partial.items())
        assert not seen or all(partial[name] is not None for name, value in seen[-1].items() if value is not None)
        seen.append(partial)
    assert seen[-1] == report.model_dump()


def test_what_does_not_fit_is_left_out() -> None:
    arriving = PartialJson(Report)
    partial = arriving.feed('{"Title": 3, "score": 1.5, "points": {broken}, "extra": {}}')
    assert partial.model_dump() == {"title": None, "points": None, "score": 1.5, "extra": {}}
