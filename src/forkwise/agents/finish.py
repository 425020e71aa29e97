"""Finish: the tool by which a model gives its final output, and the check of what it gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_ai.tools import ToolDefinition

from forkwise.agents.tool import explained
from forkwise.agents.tool_schema import schema_of_model
from forkwise.errors import ParseError

__all__ = ["FINISH", "finish_definition", "finished"]

FINISH = "__finish__"

_WITH_OUTPUT = "Call this function when you have the final output ready."
_WITHOUT = "Call this function when you are done executing tools and want to complete the task."


def finish_definition(output: type[BaseModel] | None) -> ToolDefinition:
    """The tool, as a model is told of it."""
    if output is None:
        schema: dict[str, Any] = {"type": "object", "properties": {}}
        return ToolDefinition(name=FINISH, description=_WITHOUT, parameters_json_schema=schema)
    return ToolDefinition(name=FINISH, description=_WITH_OUTPUT, parameters_json_schema=schema_of_model(output))


def finished(output: type[BaseModel] | None, arguments: Mapping[str, Any]) -> BaseModel | None:
    """The final output that some arguments are; ParseError where they are none."""
    if output is None:
        return None
    try:
        return output.model_validate(dict(arguments))
    except ValidationError as error:
        raise ParseError(f"Output validation failed: {explained(error)}", json.dumps(arguments, default=str)) from error
