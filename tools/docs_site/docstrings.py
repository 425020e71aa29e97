"""Extension of griffe that turns the docstrings into Markdown.

A doctest becomes a code block: Markdown would read its ``>>>`` as a quotation. A public name in backticks becomes a
link to its entry. Members of a class that are not documented are left out, except the fields of a data class.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

import forkwise

__all__ = ["DocstringMarkdown", "format_docstring"]

_NAME = re.compile(r"``(\w+)(\(\))?``")
_DIRECTIVE_COMMENT = re.compile(r"\s*# doctest:.*$")


class DocstringMarkdown(griffe.Extension):
    """Rewrites the docstring of every object that griffe reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of ``obj``."""
        if obj.docstring:
            obj.docstring.value = format_docstring(obj.docstring.value, obj.name)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Remove the methods of ``cls`` without a docstring, and the attributes that only its methods assign."""
        bodies = [(member.lineno or 0, member.endlineno or 0) for member in cls.members.values() if member.is_function]
        for name, member in list(cls.members.items()):
            if member.is_alias or name.startswith("_") or member.docstring:
                continue
            is_assigned_in_method = any(start < (member.lineno or 0) <= end for start, end in bodies)
            is_property = "property" in member.labels
            if member.is_function or is_property or (member.is_attribute and is_assigned_in_method):
                del cls.members[name]


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
