"""The public names of forkwise and the reference pages that document them.

A reference page documents a name with a line ``::: forkwise.Name``, which mkdocstrings replaces with the signature and
the docstring. Every name of ``forkwise.__all__`` must be documented exactly once.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import forkwise
from tools.docs_site.links import ROOT

__all__ = ["INDEX_MARKER", "documented_names", "find_problems", "format_index"]

#: The part of ``docs/reference/index.md`` that the list of all names replaces.
INDEX_MARKER = "names"

_REFERENCE = ROOT / "docs/reference"
_DIRECTIVE = re.compile(r"^::: forkwise\.(\S+)$", re.MULTILINE)


def documented_names(directory: Path = _REFERENCE) -> dict[str, list[str]]:
    """Return the names that each reference page documents, by the page's file name."""
    pages = sorted(directory.glob("*.md"))
    return {page.name: _DIRECTIVE.findall(page.read_text()) for page in pages}


def find_problems(pages: Mapping[str, list[str]]) -> list[str]:
    """Return one line for each public name that is not documented exactly once, and for each unknown name."""
    count = Counter(name for names in pages.values() for name in names)
    public = set(forkwise.__all__)
    return [
        *(f"no page of docs/reference documents forkwise.{name}" for name in sorted(public - set(count))),
        *(f"docs/reference documents forkwise.{name}, which is not public" for name in sorted(set(count) - public)),
        *(f"docs/reference documents forkwise.{name} {times} times" for name, times in count.items() if times > 1),
    ]


def format_index(pages: Mapping[str, list[str]]) -> str:
    """Return a Markdown table of all names, each with the first line of its docstring."""
    links = {name: f"{page}#forkwise.{name}" for page, names in pages.items() for name in names}
    rows = [
        f"| [`{name}`]({links[name].removeprefix('index.md')}) | {_summary(name)} |"
        for name in sorted(links, key=lambda name: name.strip("_").lower())
    ]
    return "\n".join(["| name | summary |", "| --- | --- |", *rows])


def _summary(name: str) -> str:
    value = getattr(forkwise, name)
    # A type alias or a constant has only the docstring of its own type.
    text = inspect.getdoc(value) if inspect.isclass(value) or inspect.isroutine(value) else None
    paragraph = " ".join((text or "").split("\n\n")[0].split())
    sentence = re.match(r".*?[.:](?= |$)", paragraph)
    return (sentence[0] if sentence else paragraph).replace("|", "\\|")
