"""Extension of griffe that turns the docstrings into Markdown.

A doctest becomes a code block: Markdown would read its ``>>>`` as a quotation. A public name in backticks becomes a
link to its entry. A member of a class without a docstring has that of its base class, or is left out; the fields of a
pydantic model stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

import forkwise

__all__ = ["DocstringMarkdown", "format_docstring"]

_NAME = re.compile(r"``(\w+)(\(\))?``")
_BASES_WITH_FIELDS = {"BaseModel", "Enum", "NamedTuple", "Protocol", "StrEnum", "TypedDict"}
_DIRECTIVE_COMMENT = re.compile(r"\s*# doctest:.*$")


class DocstringMarkdown(griffe.Extension):
    """Rewrites the docstring of every object that griffe reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of ``obj``."""
        if obj.docstring:
            obj.docstring.value = format_docstring(obj.docstring.value, obj.name)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Inherit docstrings from base classes, and remove the members that have none, in all classes of ``pkg``."""
        classes = list(_walk_classes(pkg))
        for cls in classes:
            for member in _undocumented(cls):
                member.docstring = _inherited_docstring(cls, member.name)
        for cls in classes:
            bases = {str(base).rpartition(".")[2] for kind in (cls, *cls.mro()) for base in kind.bases}
            # The fields of a dataclass are in its signature.
            has_fields = bool(bases & _BASES_WITH_FIELDS) and "dataclass" not in cls.labels
            bodies = [(m.lineno or 0, m.endlineno or 0) for m in cls.members.values() if m.is_function]
            for member in _undocumented(cls):
                is_field = member.is_attribute and "property" not in member.labels and has_fields
                is_assigned_in_method = any(start < (member.lineno or 0) <= end for start, end in bodies)
                if not member.is_class and (not is_field or is_assigned_in_method):
                    del cls.members[member.name]


def _walk_classes(scope: griffe.Object) -> Iterator[griffe.Class]:
    for member in scope.members.values():
        if isinstance(member, griffe.Class):
            yield member
        if isinstance(member, griffe.Class | griffe.Module):
            yield from _walk_classes(member)


def _undocumented(cls: griffe.Class) -> list[griffe.Object]:
    members = [member for member in cls.members.values() if isinstance(member, griffe.Object)]
    return [member for member in members if not member.docstring and not member.name.startswith("_")]


def _inherited_docstring(cls: griffe.Class, name: str) -> griffe.Docstring | None:
    """Return the docstring of the nearest base class that documents the member ``name``."""
    for base in cls.mro():
        if name in base.members and base.members[name].docstring:
            return base.members[name].docstring
    return None


def format_docstring(text: str, own_name: str = "") -> str:
    """Return ``text`` as Markdown. ``own_name`` does not become a link."""
    lines: list[str] = []
    is_example = False
    for line in text.split("\n"):
        starts_example = line.lstrip().startswith(">>> ")
        if starts_example and not is_example:
            if lines and lines[-1].strip():
                lines.append("")
            lines.append("```pycon")
            is_example = True
        elif is_example and not line.strip():
            lines.append("```")
            is_example = False
        lines.append(_DIRECTIVE_COMMENT.sub("", line) if is_example else _link_names(line, own_name))
    if is_example:
        lines.append("```")
    return "\n".join(lines)


def _link_names(line: str, own_name: str) -> str:
    def link(found: re.Match[str]) -> str:
        name, call = found[1], found[2] or ""
        # Lower-case words are the names of arguments as often as the names of functions.
        if name == own_name or name not in forkwise.__all__ or (name.islower() and not call):
            return found[0]
        return f"[`{name}{call}`][forkwise.{name}]"

    return _NAME.sub(link, line)
