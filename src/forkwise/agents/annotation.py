"""Annotation: what the declared type of a value says of its shape, for a text that has no types of its own."""

from __future__ import annotations

import datetime
import decimal
import enum
import pathlib
import types
import uuid
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, RootModel
from typing_extensions import TypeAliasType

__all__ = ["OPEN", "Shape", "shape_of"]

_LEAVES = (
    str, int, float, bool, bytes, decimal.Decimal, uuid.UUID, pathlib.PurePath,
    datetime.date, datetime.time, datetime.timedelta,
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """How a value of some type is written: as a leaf, a list, a mapping, a model's fields, or ``open``, where the
    type leaves that to the value. ``inner`` is the type of items or of a mapping's values."""

    kind: Literal["leaf", "list", "mapping", "model", "open"]
    inner: Any = None
    type: Any = None
    may_be_none: bool = False


#: Of a value of which nothing is known.
OPEN = Shape("open", may_be_none=True)


def shape_of(annotation: Any) -> Shape:
    """The shape that a declared type gives to its values.

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
