"""XML that every parser accepts, and that is parsed back to an equal model."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
from xml.dom import minidom
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel

from forkwise import ParseError, pydantic_to_xml, xml_to_pydantic

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


class Inner(BaseModel):
    text: str
    maybe: int | None


class Everything(BaseModel):
    text: str
    number: float
    yes: bool
    many: list[list[str]]
    keyed: dict[str, Inner]
    inner: Inner | None = None
    either: int | str | list[int] = 0
    default: str | None = "something"
    free: Any = None
    untyped: dict = Field(default_factory=dict)  # type: ignore[type-arg]


inners = st.builds(Inner, text=st.text(), maybe=st.none() | st.integers())
everythings = st.builds(
    Everything,
    text=st.text(),
    number=st.floats(allow_nan=False),
    yes=st.booleans(),
    many=st.lists(st.lists(st.text(), max_size=3), max_size=3),
    keyed=st.dictionaries(st.text(), inners, max_size=3),
    inner=st.none() | inners,
    either=st.integers() | st.text() | st.lists(st.integers()),
    default=st.none() | st.text(),
    free=json_values,
    untyped=st.dictionaries(st.text(), json_values, max_size=3),
)


@given(everythings)
def test_whatever_it_holds_comes_back(value: Everything) -> None:
    xml = pydantic_to_xml(value, "root")
    minidom.parseString(xml.encode("utf-8"))
    assert xml_to_pydantic(xml, Everything) == value


class Colour(enum.Enum):
    RED = "red"
    TWO = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Point:
    x: int
    y: float


class Pair(NamedTuple):
    left: str
    right: int


class Kinds(BaseModel):
    colour: Colour = Colour.TWO
    level: Level = Level.LOW
    literal: Literal["a", "b"] = "a"
    mixed: Literal[1, "x"] = 1
    day: datetime.date = datetime.date(2026, 1, 2)
    moment: datetime.datetime = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    span: datetime.timedelta = datetime.timedelta(hours=1)
    price: decimal.Decimal = decimal.Decimal("1.50")
    id: uuid.UUID = uuid.UUID(int=7)
    path: Path = Path("/tmp/x")
    raw: bytes = b"\xff\x00"
    text_raw: bytes = b"text"
    point: Point = Point(1, 2.5)
    pair: Pair = Pair("a", 1)
    numbers: set[int] = {1, 2}
    fixed: tuple[int, str] = (1, "a")
    any_length: tuple[int, ...] = (1, 2, 3)
    by_number: dict[int, str] = {1: "one"}
    many: list[Colour] = [Colour.RED, Colour.TWO]


def test_other_kinds_of_values() -> None:
    value = Kinds()
    assert xml_to_pydantic(pydantic_to_xml(value), Kinds) == value


class Aliased(BaseModel):
    model_config = ConfigDict(extra="allow")
    own: str = Field(alias="theirs")


class Names(RootModel[list[str]]):
    pass


class Tree(BaseModel):
    children: list[Tree] = Field(default_factory=list)


def test_models_of_other_shapes() -> None:
    aliased = Aliased(theirs="x", **{"more of it": [1, "a"]})
    xml = pydantic_to_xml(aliased)
    assert "<own>x</own>" in xml
    assert xml_to_pydantic(xml, Aliased) == aliased
    assert xml_to_pydantic(pydantic_to_xml(Names(["a", "b"])), Names) == Names(["a", "b"])
    tree = Tree(children=[Tree(), Tree(children=[Tree()])])
    assert xml_to_pydantic(pydantic_to_xml(tree), Tree) == tree


def test_the_shape() -> None:
    class Shaped(BaseModel):
        words: list[str] = Field(description='what was "said"\n& meant')
        empty: list[str] = []
        nothing: str | None = None
        table: dict[str, int]

    value = Shaped(words=["a", "b"], table={"x": 1, "a b": 2})
    assert pydantic_to_xml(value) == (
        "<input>\n"
        '  <words description="what was &quot;said&quot;&#10;&amp; meant">\n'
        "    <item>a</item>\n"
        "    <item>b</item>\n"
        "  </words>\n"
        "  <empty />\n"
        "  <table>\n"
        "    <x>1</x>\n"
        '    <entry key="a b">2</entry>\n'
        "  </table>\n"
        "</input>\n"
    )
    assert "description" not in pydantic_to_xml(value, include_descriptions=False)
    assert fromstring(pydantic_to_xml(value))[0].get("description") == 'what was "said"\n& meant'


@pytest.mark.parametrize(
    "xml",
    [
        "<input><text>",
        "<input><text>a</text></input>",
        '<!DOCTYPE x [<!ENTITY a "b">]><input><text>&a;</text><maybe>1</maybe></input>',
        "no xml at all",
        "",
    ],
)
def test_none_is_written_as_such(xml: str) -> None:
    class Both(BaseModel):
        text: str
        maybe: int

    with pytest.raises(ParseError) as error:
        xml_to_pydantic(xml, Both)
    assert error.value.raw_output == xml


def test_a_number_that_is_none_is_written_as_such() -> None:
    class Free(BaseModel):
        value: Any

    with pytest.raises(ParseError):
        xml_to_pydantic('<input><value type="integer">x</value></input>', Free)
