"""Merging: what a parent is told of a branch that came to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel
from pydantic_ai.settings import ModelSettings

from forkwise.agents.asking import Question
from forkwise.agents.history import shown_lines
from forkwise.agents.xml import pydantic_to_xml

if TYPE_CHECKING:
    from forkwise.agents.call import Call

__all__ = ["STRATEGIES", "merged_text"]

#: How a branch can be told of: by its output alone, or by a summary of what it did as well.
STRATEGIES = ("end_result", "summarize")

_SUMMARIZE = (
    "You sum up what a branch of an agent did, for the agent that it is a branch of. Say briefly what was tried, what "
    "was found, and how the final result came about."
)


async def merged_text(branch: Call, output: BaseModel | None, strategy: str) -> str:
    """What the parent reads. A branch without an output is always summed up."""
    if strategy == "end_result" and output is not None:
        return pydantic_to_xml(output, "branch_result", include_descriptions=False)
    result = output.model_dump_json(indent=2) if output is not None else "None"
    done = shown_lines(branch.history[branch.inherited :])
    history = [
        {"role": "system", "content": _SUMMARIZE},
        {"role": "user", "content": f"Branch history:\n{done}\n\nFinal result:\n{result}"},
    ]
    response = await branch.ask(Question(history, (), ModelSettings(temperature=0.3)))
    return f"Branch summary:\n{(response.text or '').strip()}\n\nFinal result:\n{result}"
