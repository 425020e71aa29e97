"""JSON with comments, edited as text: add or remove one member, and leave every other byte as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["add_member", "find_value", "remove_member"]

_SPACE = re.compile(r"(?:[ \t\r\n]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"-?[0-9][0-9.eE+-]*|true|false|null")
_SAME_LINE_COMMENT = re.compile(r"[ \t]*(?://[^\n]*|/\*[^\n]*?\*/)(?=[ \t]*\r?\n)")
_INDENT = re.compile(r"^([ \t]+)\"", re.MULTILINE)
_MAX_DEPTH = 200


@dataclass(slots=True)
class _Member:
    key: str
    start: int
    value: _Value
    end: int


@dataclass(slots=True)
class _Value:
    """A value and where it is in the text; ``members`` if it is an object."""

    start: int
    end: int = 0
    content: Any = None
    members: list[_Member] | None = None


@dataclass(slots=True)
class _Reader:
    text: str
    place: int = 0
    depth: int = 0
    seen: list[str] = field(default_factory=list)

    def read_document(self) -> _Value:
        self.place = 1 if self.text.startswith("\ufeff") else 0
        self._skip()
        value = self._read_value()
        self._skip()
        if self.place != len(self.text):
            raise self._error("the end of the file")
        return value

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.place)
        assert found is not None
        self.place = found.end()

    def _error(self, wanted: str) -> ValueError:
        line = self.text.count("\n", 0, self.place) + 1
        return ValueError(f"it is not JSON: expected {wanted} on line {line}")

    def _take(self, character: str) -> bool:
        if self.text.startswith(character, self.place):
            self.place += 1
            return True
        return False

    def _read_value(self) -> _Value:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
        value = _Value(self.place)
        if self._take("{"):
            value.members = []
            self._read_members(value.members)
            value.content = {member.key: member.value.content for member in value.members}
        elif self._take("["):
            value.content = self._read_items()
        else:
            found = _STRING.match(self.text, self.place) or _SCALAR.match(self.text, self.place)
            if found is None:
                raise self._error("a value")
            try:
                value.content = json.loads(found[0])
            except ValueError:
                raise self._error("a value") from None
            self.place = found.end()
        value.end = self.place
        self.depth -= 1
        return value

    def _read_members(self, members: list[_Member]) -> None:
        self._skip()
        while not self._take("}"):
            found = _STRING.match(self.text, self.place)
            if found is None:
                raise self._error("a key in double quotes")
            try:
                key = json.loads(found[0])
            except ValueError:
                raise self._error("a key") from None
            self.place = found.end()
            self._skip()
            if not self._take(":"):
                raise self._error("a colon")
            self._skip()
            value = self._read_value()
            members.append(_Member(key, found.start(), value, value.end))
            self._skip()
            if not self._take(",") and not self.text.startswith("}", self.place):
                raise self._error("a comma or a closing brace")
            self._skip()

    def _read_items(self) -> list[Any]:
        items = []
        self._skip()
        while not self._take("]"):
            items.append(self._read_value().content)
            self._skip()
            if not self._take(",") and not self.text.startswith("]", self.place):
                raise self._error("a comma or a closing bracket")
            self._skip()
        return items


def _find_object(text: str, path: Sequence[str]) -> tuple[_Value, list[str]]:
    """Return the innermost object on a path, and the keys that it lacks. Raises ValueError if one is not an object."""
    found = _Reader(text).read_document()
    if found.members is None:
        raise ValueError("it is not a JSON object")
    left = list(path)
    while left:
        members = [member for member in found.members or () if member.key == left[0]]
        if len(members) > 1:
            raise ValueError(f"it has {left[0]!r} more than once")
        if not members:
            break
        if members[0].value.members is None:
            raise ValueError(f"{left[0]!r} in it is not an object")
        found = members[0].value
        del left[0]
    return found, left


def find_value(text: str, path: Sequence[str]) -> Any:
    """Return the value at a path of keys; None if there is none. Raises ValueError if the text is not JSON.

    >>> find_value('{"a": {"b": 1}} // yes', ["a", "b"])
    1
    """
    parent, left = _find_object(text, path[:-1])
    found = [m.value.content for m in parent.members or () if m.key == path[-1]] if not left else []
    return found[-1] if found else None


def add_member(text: str, path: Sequence[str], value: Any) -> tuple[str, str]:
    """Return the text with a value at a path that it lacks, and exactly what was inserted.

    Objects on the way are created. Raises ValueError if the text is not JSON with comments.

    >>> add_member('{\\n  // mine\\n  "a": 1\\n}', ["b", "c"], True)[0]
    '{\\n  "b": {\\n    "c": true\\n  },\\n  // mine\\n  "a": 1\\n}'
    >>> add_member('{"a": 1}', ["b"], 2)
    ('{"b": 2, "a": 1}', '"b": 2, ')
    """
    parent, left = _find_object(text, path[:-1])
    for key in reversed([*left, path[-1]][1:]):
        value = {key: value}
    key = [*left, path[-1]][0]
    members = parent.members or []
    newline = "\r\n" if "\r\n" in text else "\n"
    found = _INDENT.search(text)
    unit = found[1] if found else "  "
    inside = text[parent.start + 1 : members[0].start if members else parent.end - 1]
    if members and "\n" not in inside:
        inserted = f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}, "
        place = parent.start + 1
    else:
        line = text[text.rfind("\n", 0, parent.start) + 1 : parent.start]
        outer = line[: len(line) - len(line.lstrip())]
        indent = outer + unit
        body = json.dumps(value, ensure_ascii=False, indent=unit).replace("\n", f"{newline}{indent}")
        comment = _SAME_LINE_COMMENT.match(text, parent.start + 1)
        place = comment.end() if comment else parent.start + 1
        inserted = f"{newline}{indent}{json.dumps(key)}: {body}"
        if members:
            inserted += ","
        elif "\n" not in inside:
            inserted += f"{newline}{outer}"
    return text[:place] + inserted + text[place:], inserted


def remove_member(text: str, path: Sequence[str]) -> str:
    """Return the text without the member at a path, if there is one. Raises ValueError if the text is not JSON.

    >>> remove_member('{\\n  "a": 1,\\n  "b": 2\\n}', ["b"])
    '{\\n  "a": 1\\n}'
    """
    parent, left = _find_object(text, path[:-1])
    members = parent.members or []
    index = next((i for i, member in enumerate(members) if member.key == path[-1]), None)
    if left or index is None:
        return text
    member = members[index]
    if index > 0:
        return text[: members[index - 1].end] + text[member.end :]
    space = _SPACE.match(text, member.end)
    assert space is not None
    end = space.end() + 1 if text.startswith(",", space.end()) else member.end
    start = member.start
    if "\n" in text[parent.start : start]:
        start = len(text[:start].rstrip())
    return text[:start] + text[end:]
