"""Partial: a model of which every field may still be missing, and the fields of an object while its JSON arrives."""

from __future__ import annotations

import json
import re
from typing import Any, Optional

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

__all__ = ["Arriving", "Partial"]

_MARKS = re.compile(r'["{}\[\],]')
_IN_STRING = re.compile(r'["\\]')


def Partial(model: Any) -> type[BaseModel]:  # noqa: N802 - it is used like a type
    """The same model with every field optional, and None by default.

    >>> class Point(BaseModel):
    ...     x: int
    ...     y: int
    >>> Partial(Point)(x=1)
    PartialPoint(x=1, y=None)
    """
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise TypeError(f"Partial takes a pydantic model, not {model!r}")
    fields: dict[str, Any] = {
        name: (
            Optional[field.rebuild_annotation()],  # noqa: UP045 - what is there may be no class
            Field(None, validation_alias=field.validation_alias, description=field.description),
        )
        for name, field in model.model_fields.items()
    }
    config = ConfigDict(arbitrary_types_allowed=True, validate_by_name=True, validate_by_alias=True)
    return create_model(f"Partial{model.__name__}", __config__=config, __doc__=model.__doc__, **fields)


class Arriving:
    """The JSON of an object as it arrives, and a partial model of the fields that are complete.

    Every character is looked at once, in however many pieces they come.

    >>> class Point(BaseModel):
    ...     x: int
    ...     y: int
    >>> arriving = Arriving(Point)
    >>> arriving.feed('{"x": 12, "y')
    PartialPoint(x=12, y=None)
    >>> arriving.feed('": 3}')
    PartialPoint(x=12, y=3)
    """

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = Partial(model)
        self._field: list[str] = []  # the pieces of the field that is arriving
        self._depth = 0
        self._in_string = False
        self._escaping = 0  # characters of the next piece that a backslash at the end of the last one takes
        self._values: dict[str, Any] = {}
        self._partial = self._model()

    def feed(self, piece: str) -> BaseModel:
        """Take the next piece; gives what is complete so far."""
        begin, at, self._escaping = 0, self._escaping, 0
        while (mark := (_IN_STRING if self._in_string else _MARKS).search(piece, at)) is not None:
            at = mark.end()
            match mark[0]:
                case "\\":
                    at += 1
                case '"':
                    self._in_string = not self._in_string
                case "{" | "[":
                    self._depth += 1
                    if self._depth == 1:
                        begin = at
                case closing:
                    if self._depth == 1:
                        self._complete(piece[begin : mark.start()])
                        begin = at
                    self._depth -= closing != ","
        self._escaping = max(0, at - len(piece))
        self._field.append(piece[begin:])
        return self._partial

    def _complete(self, end: str) -> None:
        text = "".join([*self._field, end])
        self._field.clear()
        try:
            found = json.loads(f"{{{text}}}")
            self._partial = self._model(**{**self._values, **found})
        except (ValueError, ValidationError):
            return  # what it is worth is decided when all of it is there
        self._values.update(found)
