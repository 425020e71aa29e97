"""Template: a text with places for values, such as a system prompt that lies in a file."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Template"]

_PLACE = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")
_OTHER = re.compile(r"\{\{|\{%|\{#")


class Template:
    """A text in which ``{{ name }}`` and ``{{ name.part }}`` stand for values.

    It is given as ``template``, or lies at ``path``, which is relative to the file of whoever makes the template.

    >>> Template(template="You know {{ subject }}.", args={"subject": "birds"}).render()
    'You know birds.'
    """

    def __init__(
        self, path: str | Path | None = None, template: str | None = None, args: Mapping[str, Any] | None = None
    ) -> None:
        if (path is None) == (template is None):
            raise ValueError("a Template has either a path or a template")
        self.args = dict(args or {})
        self.path: Path | None = None
        if path is not None:
            caller = Path(sys._getframe(1).f_globals.get("__file__", "")).parent
            self.path = caller / path
            if not self.path.is_file():
                raise FileNotFoundError(f"there is no template at {self.path}")
        self.template = template

    def render(self, **more: Any) -> str:
        """The text with the values in their places. A place without a value is a ValueError."""
        text = self.path.read_text(encoding="utf-8") if self.path is not None else self.template or ""
        values = {**self.args, **more}
        if odd := _OTHER.search(_PLACE.sub("", text)):
            raise ValueError(f"a template knows {{{{ name }}}} and nothing else; this one has {odd[0]!r}")
        return _PLACE.sub(lambda place: str(_value(values, place[1])), text)


def _value(values: Mapping[str, Any], path: str) -> Any:
    found: Any = values
    for name in path.split("."):
        try:
            found = found[name] if isinstance(found, Mapping) else getattr(found, name)
        except (KeyError, AttributeError):
            raise ValueError(f"the template has {{{{ {path} }}}}, and no value for it was given") from None
    return found
