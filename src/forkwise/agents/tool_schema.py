"""Tool schemas: what a function takes, as the JSON schema that a model is told, and what it says of its parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema

from forkwise.errors import ModuleError

__all__ = ["adapter_of", "parameters_of", "schema_of_model", "summary_of", "tool_schema"]

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Return|Raises|Yields|Examples?|Notes?):\s*$")
_ENTRY = re.compile(r"^(\s*)\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


class _Lenient(GenerateJsonSchema):
    """What JSON has no type for is a string to a model."""

    def handle_invalid_for_json_schema(self, schema: CoreSchema, error_info: str) -> JsonSchemaValue:
        return {"type": "string"}


def tool_schema(function: Callable[..., Any], name: str | None = None) -> dict[str, Any]:
    """A function as OpenAI's chat completions describe one.

    >>> def look(query: str, limit: int = 5) -> list[str]:
    ...     '''Look something up.
    ...
    ...     Args:
    ...         query: what to look for
    ...     '''
    >>> tool_schema(look)["function"]["parameters"]["required"]
    ['query']
    """
    parameters = parameters_of(function, adapter_of(function))
    described = {"name": name or function.__name__, "description": summary_of(function), "parameters": parameters}
    return {"type": "function", "function": described}


def adapter_of(function: Callable[..., Any]) -> TypeAdapter[Any]:
    """What checks the arguments of a function by its annotations, and calls it."""
    try:
        described: Any = function  # a function is a type to an adapter, though not to a type checker
        return TypeAdapter(described, config=ConfigDict(arbitrary_types_allowed=True))
    except (PydanticUserError, PydanticUndefinedAnnotation, NameError) as error:
        name = getattr(function, "__name__", repr(function))
        raise ModuleError(f"the tool {name!r} has parameters that cannot be described: {error}") from error


def parameters_of(function: Callable[..., Any], adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """The JSON schema of what a function takes by name."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            name = getattr(function, "__name__", repr(function))
            raise ModuleError(f"the tool {name!r} takes {parameter} by its place, and a model gives all by name")
    schema = _plain(adapter.json_schema(schema_generator=_Lenient))
    said = _descriptions(inspect.getdoc(function) or "")
    for name, described in schema.setdefault("properties", {}).items():
        if name in said:
            described.setdefault("description", said[name])
    schema["type"] = "object"
    return schema


def schema_of_model(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a model, without titles, and with what it refers to in its place unless that is recursive."""
    return _plain(model.model_json_schema(schema_generator=_Lenient))


def summary_of(function: Callable[..., Any]) -> str:
    """What a function's docstring says before it comes to its parameters."""
    lines: list[str] = []
    for line in (inspect.getdoc(function) or "").splitlines():
        if _SECTION.match(line):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def _descriptions(docstring: str) -> dict[str, str]:
    """What the ``Args:`` of a docstring says of each parameter."""
    found: dict[str, str] = {}
    name, indent, is_inside = "", None, False
    for line in docstring.splitlines():
        if section := _SECTION.match(line):
            is_inside = section[1] in ("Args", "Arguments", "Parameters")
        elif is_inside and (entry := _ENTRY.match(line)) and (indent is None or len(entry[1]) <= indent):
            name, indent = entry[2], len(entry[1])
            found[name] = entry[3].strip()
        elif is_inside and name and line.strip():
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without titles and with its definitions inlined; those that contain themselves stay definitions."""
    definitions = schema.pop("$defs", {})
    recursive = {name for name in definitions if _reaches(name, name, definitions)}

    def plain(node: Any, *, is_names: bool = False) -> Any:
        if isinstance(node, list):
            return [plain(item) for item in node]
        if not isinstance(node, dict):
            return node
        name = str(node.get("$ref", "")).removeprefix("#/$defs/")
        if name in definitions and name not in recursive:
            node = {**definitions[name], **{k: v for k, v in node.items() if k != "$ref"}}
        # Among the names of properties, "title" is one like any other.
        return {
            k: plain(v, is_names=k == "properties" and not is_names)
            for k, v in node.items()
            if is_names or k != "title"
        }

    root = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    result: dict[str, Any] = plain(definitions.get(root, schema))
    if recursive:
        result["$defs"] = {name: plain(definitions[name]) for name in sorted(recursive)}
    return result


def _reaches(start: str, target: str, definitions: dict[str, Any]) -> bool:
    """Whether a definition leads, by references, to another."""
    seen: set[str] = set()
    todo: list[Any] = [definitions[start]]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            name = str(node.get("$ref", "")).removeprefix("#/$defs/")
            if name == target:
                return True
            if name in definitions and name not in seen:
                seen.add(name)
                todo.append(definitions[name])
            todo.extend(node.values())
        elif isinstance(node, list):
            todo.extend(node)
    return False
