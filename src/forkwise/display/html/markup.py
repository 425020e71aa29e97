"""Markup: HTML built from elements. Every text is escaped and made visible before it becomes part of a page.

Everything that attempts print, name and write may be hostile. Text becomes HTML only through ``escape_text``;
attributes and element names are forkwise's own. Characters that a browser does not draw, or that reorder other text,
are shown as escapes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from html import escape
from typing import TypeAlias

from forkwise.text.clean import escape_character

__all__ = ["Child", "Markup", "build_element", "build_title", "escape_text", "join_markup"]

_VOID = {"br", "hr", "meta", "col", "wbr", "link", "input", "img"}
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_MAX_MARKS = 3  # combining marks on one letter; more of them draw over the lines above and below


class Markup(str):
    """HTML that needs no further escaping. Only this module and constants of the program create it."""

    __slots__ = ()


#: The content of an element: markup, which is kept as it is; text, which is escaped; nothing; or several of these.
Child: TypeAlias = "Markup | str | Iterable[Child] | None"


def build_element(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """Build an element. ``class_`` and ``aria_label`` stand for ``class`` and ``aria-label``; None and False omit one.

    >>> build_element("p", "1 < 2", class_="note", hidden=True, id=None)
    '<p class="note" hidden>1 &lt; 2</p>'
    """
    parts = [f"<{_check_name(name)}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = _check_name(key.rstrip("_").replace("_", "-"))
        parts.append(f" {label}" if value is True else f' {label}="{_escape_attribute(str(value))}"')
    parts.append(">")
    if name in _VOID:
        return Markup("".join(parts))
    return Markup(f"{''.join(parts)}{join_markup(children)}</{name}>")


def join_markup(children: Iterable[Child]) -> Markup:
    """Join markup and text; text is escaped.

    >>> join_markup(["a&b", Markup("<br>"), None, ["c"]])
    'a&amp;b<br>c'
    """
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(escape_text(child))
        else:
            parts.append(join_markup(child))
    return Markup("".join(parts))


def escape_text(text: str) -> Markup:
    r"""Escape HTML as entities, and characters that are invisible or reorder text visibly, except tab and newline.

    >>> escape_text("<b>\x1b[31m")
    '&lt;b&gt;<span class="esc">\\x1b</span>[31m'
    >>> escape_text("\u202egnp.exe")
    '<span class="esc">\\u202e</span>gnp.exe'
    """
    if text.isascii() and (text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable()):
        return Markup(escape(text))
    parts: list[str] = []
    marks = 0
    for character in text:
        if character in "\n\t" or character.isascii():
            marks = 0
            is_shown = character in "\n\t" or character.isprintable()
        else:
            marks = marks + 1 if unicodedata.category(character)[0] == "M" else 0
            is_shown = character.isprintable() and marks <= _MAX_MARKS
        parts.append(escape(character) if is_shown else f'<span class="esc">{escape_character(character)}</span>')
    return Markup("".join(parts))


def build_title(title: str) -> Markup:
    """Build the title of a page, which cannot contain elements: what is not drawn becomes replacement characters."""
    return build_element("title", Markup(escape(_replace_unprintable(title), quote=False)))


def _escape_attribute(value: str) -> str:
    return escape(_replace_unprintable(value))


def _replace_unprintable(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of an element or attribute")
    return name
