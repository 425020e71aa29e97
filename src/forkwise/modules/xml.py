r"""Pydantic models as XML: readable for language models, valid for every parser, and parseable back.

Each field and each entry of a mapping is an element; each item of a list is an ``<item>``. Attributes hold what plain
elements cannot express:

``key``
    the key of an entry that is not a valid element name: ``<entry key="a b">``.
``escaped="true"``
    the text and the key hold characters that XML forbids: such a character is written ``\uXXXX``, a backslash twice.
``nil="true"``
    None, if a missing element would mean something else.
``type``
    the type of a value (``integer``, ``number``, ``boolean``, ``list``, ``object``) if the declared type leaves it
    open; strings need none. ``base64`` marks bytes that are not UTF-8.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import pathlib
import re
import types
import uuid
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin
from xml.etree.ElementTree import Element, SubElement

from defusedxml import DefusedXmlException  # type: ignore[import-untyped]
from defusedxml.ElementTree import ParseError as MalformedError  # type: ignore[import-untyped]
from defusedxml.ElementTree import fromstring
from pydantic import BaseModel, RootModel
from pydantic_core import PydanticUndefined, to_jsonable_python
from typing_extensions import TypeAliasType

from forkwise.errors import ParseError

__all__ = [
    "OPEN",
    "Shape",
    "pydantic_to_xml",
    "shape_of",
    "xml_to_pydantic",
]


_LEAVES = (
    str, int, float, bool, bytes, decimal.Decimal, uuid.UUID, pathlib.PurePath,
    datetime.date, datetime.time, datetime.timedelta,
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """How a value of a type is written: as a leaf, a list, a mapping, a model's fields, or ``open``.

    ``open`` means that it depends on the value. ``inner`` is the type of a list's items or a mapping's values.
    """

    kind: Literal["leaf", "list", "mapping", "model", "open"]
    inner: Any = None
    type: Any = None
    may_be_none: bool = False


#: The shape of a value without a known type.
OPEN = Shape("open", may_be_none=True)


def shape_of(annotation: Any) -> Shape:
    """Return the shape of the values of a declared type.

    >>> shape_of(list[int] | None)
    Shape(kind='list', inner=<class 'int'>, type=<class 'list'>, may_be_none=True)
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, TypeAliasType):
        return shape_of(annotation.__value__)
    if origin is Annotated:
        return shape_of(args[0])
    if origin in (Union, types.UnionType):
        return _shape_of_union(args)
    if origin is Literal:
        return Shape("leaf", type=str) if all(type(a) is str for a in args) else OPEN
    if isinstance(annotation, type) and origin is None:
        return _shape_of_class(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return Shape("mapping", args[1], origin)
    if isinstance(origin, type) and issubclass(origin, tuple):
        return Shape("list", args[0], origin) if len(args) == 2 and args[1] is ... else OPEN
    if isinstance(origin, type) and issubclass(origin, Sequence | AbstractSet):
        return Shape("list", args[0], origin)
    return OPEN


def _shape_of_class(cls: type) -> Shape:
    if issubclass(cls, RootModel):
        return shape_of(cls.model_fields["root"].annotation)
    if issubclass(cls, BaseModel):
        return Shape("model", type=cls)
    if issubclass(cls, enum.Enum) or issubclass(cls, _LEAVES):
        return Shape("leaf", type=cls)
    return OPEN


def _shape_of_union(members: tuple[Any, ...]) -> Shape:
    others = [m for m in members if m is not type(None)]
    if len(others) > 1:
        return OPEN
    shape = shape_of(others[0])
    return Shape(shape.kind, shape.inner, shape.type, may_be_none=len(others) < len(members) or shape.may_be_none)


M = TypeVar("M", bound=BaseModel)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPE = re.compile(r"\\(?:\\|u([0-9a-f]{4}))")
_TEXT = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"}
_ATTRIBUTE = {**_TEXT, '"': "&quot;", "\n": "&#10;", "\t": "&#9;"}


def pydantic_to_xml(model: BaseModel, root_tag: str = "input", include_descriptions: bool = True) -> str:
    """Return a model as XML, with the descriptions of its fields as ``description`` attributes.

    >>> class Verdict(BaseModel):
    ...     verified: bool
    ...     evidence: list[str]
    >>> print(pydantic_to_xml(Verdict(verified=True, evidence=["a <b>"]), "branch_result"), end="")
    <branch_result>
      <verified>true</verified>
      <evidence>
        <item>a &lt;b&gt;</item>
      </evidence>
    </branch_result>
    """
    root = Element(root_tag)
    _write_model(root, model, include_descriptions)
    return _format(root, 0)


def xml_to_pydantic(xml: str, model: type[M]) -> M:
    """Parse an XML text, with any root tag, as ``model``. Raise `ParseError` if it is invalid."""
    try:
        root = fromstring(xml.strip(), forbid_dtd=True)
        value = _read(root, shape_of(model))
        if issubclass(model, RootModel):
            return model.model_validate(value)
        return model.model_validate(value, by_name=True, by_alias=False)
    except (MalformedError, DefusedXmlException) as error:
        raise ParseError(f"invalid XML: {error}", raw_output=xml) from error
    except ValueError as error:  # a ValidationError too
        raise ParseError(f"not a valid {model.__name__}: {error}", raw_output=xml) from error


# Writing


def _write_model(element: Element, model: BaseModel, describe: bool) -> None:
    if isinstance(model, RootModel):
        _write(element, model.root, shape_of(type(model)), describe)
        return
    for name, field in type(model).model_fields.items():
        value, shape = getattr(model, name), shape_of(field.annotation)
        if value is None and (
            field.default is None or (field.default is PydanticUndefined and not field.default_factory)
        ):
            continue
        child = _child(element, name)
        if describe and field.description:
            child.set("description", _FORBIDDEN.sub("\ufffd", field.description))
        _write(child, value, shape, describe)
    for name, value in (model.model_extra or {}).items():
        _write(_child(element, name), value, OPEN, describe)


def _write(element: Element, value: Any, shape: Shape, describe: bool) -> None:
    if isinstance(value, enum.Enum):
        value = value.value
    is_open = shape.kind == "open"
    if value is None:
        element.set("nil", "true")
    elif isinstance(value, BaseModel):
        if is_open:
            element.set("type", "object")
        _write_model(element, value, describe)
    elif isinstance(value, Mapping):
        if is_open:
            element.set("type", "object")
        inner = OPEN if is_open else shape_of(shape.inner)
        for key, item in value.items():
            _write(_child(element, _leaf_text(key)), item, inner, describe)
    elif isinstance(value, list | tuple | AbstractSet):
        if is_open:
            element.set("type", "list")
        inner = OPEN if is_open else shape_of(shape.inner)
        for item in value:
            _write(SubElement(element, "item"), item, inner, describe)
    else:
        _write_leaf(element, value, is_open)


def _write_leaf(element: Element, value: Any, is_open: bool) -> None:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            element.set("type", "base64")
            value = base64.b64encode(value).decode()
    if not isinstance(value, str | bool | int | float):
        value = to_jsonable_python(value, fallback=str)
        if not isinstance(value, str | bool | int | float):
            _write(element, value, OPEN, False)  # e.g. a dataclass, converted to a dict
            return
    if is_open and not isinstance(value, str):
        element.set("type", "boolean" if isinstance(value, bool) else "integer" if isinstance(value, int) else "number")
    text = _leaf_text(value)
    element.text = _escape(text) if element.get("escaped") else text
    if _FORBIDDEN.search(text) and not element.get("escaped"):
        element.set("escaped", "true")
        element.text = _escape(text)
        if (key := element.get("key")) is not None:
            element.set("key", _escape(key))


def _child(parent: Element, name: str) -> Element:
    if _NAME.match(name):
        return SubElement(parent, name)
    if _FORBIDDEN.search(name):
        return SubElement(parent, "entry", key=_escape(name), escaped="true")
    return SubElement(parent, "entry", key=name)


def _leaf_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(to_jsonable_python(value, fallback=str))


def _escape(text: str) -> str:
    return _FORBIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\\", "\\\\"))


def _format(element: Element, depth: int) -> str:
    """Return an element as text.

    ElementTree's own serializer does not escape line ends in attributes, which parsers then turn into spaces.
    """
    indent = "  " * depth
    attributes = "".join(f' {name}="{_quote(value, _ATTRIBUTE)}"' for name, value in element.attrib.items())
    if len(element):
        inside = "".join(_format(child, depth + 1) for child in element)
        return f"{indent}<{element.tag}{attributes}>\n{inside}{indent}</{element.tag}>\n"
    if element.text:
        return f"{indent}<{element.tag}{attributes}>{_quote(element.text, _TEXT)}</{element.tag}>\n"
    return f"{indent}<{element.tag}{attributes} />\n"


def _quote(text: str, table: Mapping[str, str]) -> str:
    return "".join(table.get(character, character) for character in text)


# Reading


def _read(element: Element, shape: Shape) -> Any:
    if element.get("nil") == "true":
        return None
    value_type = element.get("type")
    if value_type == "base64":
        return base64.b64decode(element.text or "")
    if value_type == "list" or shape.kind == "list":
        inner = shape_of(shape.inner) if shape.kind == "list" else OPEN
        return [_read(child, inner) for child in element]
    if value_type == "object" or shape.kind == "mapping" or (shape.kind == "open" and len(element)):
        inner = shape_of(shape.inner) if shape.kind == "mapping" else OPEN
        return {_key(child): _read(child, inner) for child in element}
    if shape.kind == "model":
        return _read_fields(element, shape.type)
    return _read_leaf(element, shape, value_type)


def _read_fields(element: Element, model: type[BaseModel]) -> dict[str, Any]:
    fields = {name: shape_of(field.annotation) for name, field in model.model_fields.items()}
    found = {_key(child): _read(child, fields.get(_key(child), OPEN)) for child in element}
    for name, field in model.model_fields.items():
        if name not in found and field.is_required() and fields[name].may_be_none:
            found[name] = None
    return found


def _read_leaf(element: Element, shape: Shape, value_type: str | None) -> Any:
    text = element.text or ""
    if element.get("escaped") == "true":
        text = _unescape(text)
    match value_type:
        case "boolean":
            return text == "true"
        case "integer":
            return int(text)
        case "number":
            return float(text)
    if isinstance(shape.type, type) and issubclass(shape.type, enum.Enum):
        return next((member for member in shape.type if _leaf_text(member.value) == text), text)
    return text


def _key(element: Element) -> str:
    key = element.get("key")
    if key is None:
        return element.tag
    return _unescape(key) if element.get("escaped") == "true" else key


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else "\\", text)
