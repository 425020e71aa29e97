"""Tools: functions that a model can call, with JSON schemas built from their signatures and docstrings.

Two tools are built in: ``search_tools``, with which a model discovers the others, and ``__finish__``, with which it
returns its final output.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_ai.tools import ToolDefinition
from pydantic_core import ArgsKwargs, CoreSchema, to_json

from forkwise.concurrency import call_any
from forkwise.errors import ModuleError, ParseError, ToolConflictError

__all__ = [
    "FINISH",
    "SEARCH",
    "Discovery",
    "Tool",
    "explain_error",
    "finish_definition",
    "format_result",
    "index_tools",
    "is_tool",
    "parse_output",
    "tool",
    "tool_schema",
]


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Return|Raises|Yields|Examples?|Notes?):\s*$")
_ENTRY = re.compile(r"^(\s*)\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


class _LenientSchema(GenerateJsonSchema):
    """Describes types that JSON does not have as strings."""

    def handle_invalid_for_json_schema(self, schema: CoreSchema, error_info: str) -> JsonSchemaValue:
        return {"type": "string"}


def tool_schema(function: Callable[..., Any], name: str | None = None) -> dict[str, Any]:
    """Return the description of a function in the format of OpenAI's chat completions.

    >>> def look(query: str, limit: int = 5) -> list[str]:
    ...     '''Look something up.
    ...
    ...     Args:
    ...         query: what to look for
    ...     '''
    >>> tool_schema(look)["function"]["parameters"]["required"]
    ['query']
    """
    parameters = _build_parameters(function, _build_adapter(function))
    description = {"name": name or function.__name__, "description": _summary(function), "parameters": parameters}
    return {"type": "function", "function": description}


def _build_adapter(function: Callable[..., Any]) -> TypeAdapter[Any]:
    """Return an adapter that validates arguments by the function's annotations and calls the function."""
    try:
        untyped: Any = function  # TypeAdapter accepts a function, its type annotation does not
        return TypeAdapter(untyped, config=ConfigDict(arbitrary_types_allowed=True))
    except (PydanticUserError, PydanticUndefinedAnnotation, NameError) as error:
        name = getattr(function, "__name__", repr(function))
        raise ModuleError(f"the tool {name!r} has parameters that cannot be described: {error}") from error


def _build_parameters(function: Callable[..., Any], adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the JSON schema of a function's parameters."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            name = getattr(function, "__name__", repr(function))
            raise ModuleError(f"the tool {name!r} takes {parameter} by position, but models pass arguments by name")
    schema = _inline(adapter.json_schema(schema_generator=_LenientSchema))
    descriptions = _parse_descriptions(inspect.getdoc(function) or "")
    for name, parameter_schema in schema.setdefault("properties", {}).items():
        if name in descriptions:
            parameter_schema.setdefault("description", descriptions[name])
    schema["type"] = "object"
    return schema


def _summary(function: Callable[..., Any]) -> str:
    """Return a function's docstring up to its first section."""
    lines: list[str] = []
    for line in (inspect.getdoc(function) or "").splitlines():
        if _SECTION.match(line):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def _parse_descriptions(docstring: str) -> dict[str, str]:
    """Return the descriptions of parameters in the ``Args:`` section of a docstring."""
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


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without titles and with its definitions inlined, except recursive ones."""
    definitions = schema.pop("$defs", {})
    recursive = {name for name in definitions if _reaches(name, name, definitions)}

    def inline(node: Any, *, is_names: bool = False) -> Any:
        if isinstance(node, list):
            return [inline(item) for item in node]
        if not isinstance(node, dict):
            return node
        name = str(node.get("$ref", "")).removeprefix("#/$defs/")
        if name in definitions and name not in recursive:
            node = {**definitions[name], **{k: v for k, v in node.items() if k != "$ref"}}
        # Among the names of properties, "title" is one like any other.
        return {
            k: inline(v, is_names=k == "properties" and not is_names)
            for k, v in node.items()
            if is_names or k != "title"
        }

    root = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    result: dict[str, Any] = inline(definitions.get(root, schema))
    if recursive:
        result["$defs"] = {name: inline(definitions[name]) for name in sorted(recursive)}
    return result


def _reaches(start: str, target: str, definitions: dict[str, Any]) -> bool:
    """Return whether a definition refers to another, directly or indirectly."""
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


F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__forkwise_tool__"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def tool(function: F) -> F:
    """Mark a function, or a method of a Module or Service, as a tool. The function itself is returned.

    >>> @tool
    ... def add(a: int, b: int) -> int:
    ...     '''Add two numbers.'''
    ...     return a + b
    >>> add(1, 2), is_tool(add)
    (3, True)
    """
    setattr(function, _MARK, True)
    return function


def is_tool(function: object) -> bool:
    """Return whether a function was marked as a tool."""
    return callable(function) and getattr(function, _MARK, False) is True


@dataclass(frozen=True, eq=False)
class Tool:
    """A function that a model calls by ``name``. ``parameters`` is a JSON schema.

    ``use`` validates a mapping of arguments and calls the function, in a thread if that is not async.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any]
    use: Callable[[Mapping[str, Any]], Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function directly."""
        return self.function(*args, **kwargs)

    @classmethod
    def of(cls, function: Any, *, name: str | None = None) -> Tool:
        """Return a function as a tool, by default under the function's name."""
        if isinstance(function, Tool):
            return function
        if not callable(function):
            raise TypeError(f"a tool is a function or a Service, not {function!r}")
        own_name = name or str(getattr(function, "__name__", type(function).__name__))
        if not _NAME.fullmatch(own_name):
            raise ModuleError(f"no provider accepts a tool named {own_name!r}: use 1 to 64 letters, digits, _ and -")
        routine = function if inspect.isroutine(function) else function.__call__
        adapter = _build_adapter(routine)
        parameters = _build_parameters(routine, adapter)
        return cls(own_name, _summary(routine), parameters, function, partial(_use, routine, adapter))

    @property
    def schema(self) -> dict[str, Any]:
        """The description for a model, without OpenAI's outer wrapper."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    @property
    def definition(self) -> ToolDefinition:
        """The description for a model, in pydantic-ai's form."""
        return ToolDefinition(name=self.name, description=self.description, parameters_json_schema=self.parameters)


def index_tools(tools: Iterable[Any], reserved: Collection[str] = ()) -> dict[str, Tool]:
    """Return functions as tools by name. Raise `ToolConflictError` for a duplicate or reserved name."""
    found: dict[str, Tool] = {}
    for tool in map(Tool.of, tools):
        if tool.name in found or tool.name in reserved:
            raise ToolConflictError(f"Duplicate tool name: {tool.name}", tool=tool.name)
        found[tool.name] = tool
    return found


async def _use(function: Callable[..., Any], adapter: Any, arguments: Mapping[str, Any]) -> Any:
    def validate_and_call() -> Any:
        return adapter.validate_python(ArgsKwargs((), dict(arguments)))

    if inspect.iscoroutinefunction(function):
        return await validate_and_call()
    return await call_any(validate_and_call)


def explain_error(error: Exception) -> str:
    """Return an error as text for a model."""
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors())
    return str(error) or type(error).__name__


def format_result(value: object) -> str:
    """Return a tool's result as text for a model: strings unchanged, structured values as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, BaseModel | dict | list | tuple | set | frozenset):
        return to_json(value, fallback=str, serialize_unknown=True).decode()
    return str(value)


SEARCH = "search_tools"

_WORD = re.compile(r"[a-z0-9]+")


class Discovery:
    """The tools that a model has found so far, and the tool to search for others.

    ``tools`` is a function that returns all tools at the moment.
    """

    def __init__(self, tools: Callable[[], Iterable[Tool]]) -> None:
        self.found: set[str] = set()
        self.tool = self._build_search_tool(tools)

    def hidden(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names that the model has not found yet."""
        return frozenset(names) - self.found

    def _build_search_tool(self, tools: Callable[[], Iterable[Tool]]) -> Tool:
        async def search_tools(query: str, limit: int = 5) -> str:
            """Find tools by what they do. The tools found can be called from then on.

            Args:
                query: words that describe what the tool should do
                limit: the maximum number of tools to find
            """
            words = set(_WORD.findall(query.lower()))
            ranked = sorted(tools(), key=lambda tool: -_score(words, tool))
            best = [tool for tool in ranked if _score(words, tool)][:limit]
            self.found |= {tool.name for tool in best}
            return json.dumps([tool.schema for tool in best], indent=2)

        return Tool.of(search_tools)


def _score(words: set[str], tool: Tool) -> int:
    """Return how many of the words are in a tool's name or description; the name counts double."""
    name = set(_WORD.findall(tool.name.lower().replace("_", " ")))
    return 2 * len(words & name) + len(words & set(_WORD.findall(tool.description.lower())))


FINISH = "__finish__"

_FINISH_WITH_OUTPUT = "Call this function when you have the final output ready."
_FINISH_WITHOUT_OUTPUT = "Call this function when you are done executing tools and want to complete the task."


def finish_definition(output: type[BaseModel] | None) -> ToolDefinition:
    """Return the definition of ``__finish__`` for a model."""
    if output is None:
        schema: dict[str, Any] = {"type": "object", "properties": {}}
        return ToolDefinition(name=FINISH, description=_FINISH_WITHOUT_OUTPUT, parameters_json_schema=schema)
    schema = _inline(output.model_json_schema(schema_generator=_LenientSchema))
    return ToolDefinition(name=FINISH, description=_FINISH_WITH_OUTPUT, parameters_json_schema=schema)


def parse_output(output: type[BaseModel] | None, arguments: Mapping[str, Any]) -> BaseModel | None:
    """Return the final output for the arguments of ``__finish__``. Raise `ParseError` if they are invalid."""
    if output is None:
        return None
    try:
        return output.model_validate(dict(arguments))
    except ValidationError as error:
        raise ParseError(
            f"Output validation failed: {explain_error(error)}", json.dumps(arguments, default=str)
        ) from error
