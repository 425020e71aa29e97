"""Discovery: tools that a model finds by searching, instead of being told of all of them in every request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

from forkwise.agents.tool import Tool

__all__ = ["SEARCH", "Discovery"]

SEARCH = "search_tools"

_WORD = re.compile(r"[a-z0-9]+")


class Discovery:
    """Which of some tools a model has found; it is told of those, and of the one by which it searches.

    ``tools`` gives those there are at the moment.
    """

    def __init__(self, tools: Callable[[], Iterable[Tool]]) -> None:
        self.found: set[str] = set()
        self.tool = self._searching(tools)

    def hidden(self, names: Iterable[str]) -> frozenset[str]:
        """The names of tools that it was not told of yet."""
        return frozenset(names) - self.found

    def _searching(self, tools: Callable[[], Iterable[Tool]]) -> Tool:
        async def search_tools(query: str, limit: int = 5) -> str:
            """Find tools by what they do. Those that are found can be called from then on.

            Args:
                query: words that say what the tool is to do
                limit: how many to find at most
            """
            words = set(_WORD.findall(query.lower()))
            ranked = sorted(tools(), key=lambda tool: -_score(words, tool))
            best = [tool for tool in ranked if _score(words, tool)][:limit]
            self.found |= {tool.name for tool in best}
            return json.dumps([tool.schema for tool in best], indent=2)

        return Tool.of(search_tools)


def _score(words: set[str], tool: Tool) -> int:
    """How many of the words say something of a tool; its name counts double."""
    name = set(_WORD.findall(tool.name.lower().replace("_", " ")))
    return 2 * len(words & name) + len(words & set(_WORD.findall(tool.description.lower())))
