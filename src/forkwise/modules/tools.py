"""Finish: the tool by which a model gives its final output, and the check of what it gives."""

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
    "adapter_of",
    "by_name",
    "explained",
    "finish_definition",
    "finished",
    "is_tool",
    "parameters_of",
    "schema_of_model",
    "shown",
    "summary_of",
    "tool",
    "tool_schema",
]


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


F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__forkwise_tool__"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def tool(function: F) -> F:
    """Mark a function, or a method of a Module or Service, as a tool. It stays the function it is.

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
    """Whether it was marked as a tool."""
    return callable(function) and getattr(function, _MARK, False) is True


@dataclass(frozen=True, eq=False)
class Tool:
    """A function by the name under which a model calls it. ``parameters`` is a JSON schema.

    ``use`` takes the arguments by name, and does what the tool does: in a thread of its own where it is not async.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any]
    use: Callable[[Mapping[str, Any]], Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as it is."""
        return self.function(*args, **kwargs)

    @classmethod
    def of(cls, function: Any, *, name: str | None = None) -> Tool:
        """A function as a tool; it is called what the function is called unless told otherwise."""
        if isinstance(function, Tool):
            return function
        if not callable(function):
            raise TypeError(f"a tool is a function or a Service, not {function!r}")
        own_name = name or str(getattr(function, "__name__", type(function).__name__))
        if not _NAME.fullmatch(own_name):
            raise ModuleError(f"no provider takes a tool called {own_name!r}: 1 to 64 letters, digits, _ and - it has")
        described = function if inspect.isroutine(function) else function.__call__
        adapter = adapter_of(described)
        parameters = parameters_of(described, adapter)
        return cls(own_name, summary_of(described), parameters, function, partial(_use, described, adapter))

    @property
    def schema(self) -> dict[str, Any]:
        """What a model is told, without OpenAI's outer wrapping."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    @property
    def definition(self) -> ToolDefinition:
        """What a model is told, as pydantic-ai takes it."""
        return ToolDefinition(name=self.name, description=self.description, parameters_json_schema=self.parameters)


def by_name(tools: Iterable[Any], reserved: Collection[str] = ()) -> dict[str, Tool]:
    """Functions as tools, by their names; ToolConflictError where two have the same, or one that is taken."""
    found: dict[str, Tool] = {}
    for tool in map(Tool.of, tools):
        if tool.name in found or tool.name in reserved:
            raise ToolConflictError(f"Duplicate tool name: {tool.name}", tool=tool.name)
        found[tool.name] = tool
    return found


async def _use(function: Callable[..., Any], adapter: Any, arguments: Mapping[str, Any]) -> Any:
    def checked() -> Any:
        return adapter.validate_python(ArgsKwargs((), dict(arguments)))

    if inspect.iscoroutinefunction(function):
        return await checked()
    return await call_any(checked)


def explained(error: Exception) -> str:
    """An error, as a model is told of it."""
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors())
    return str(error) or type(error).__name__


def shown(value: object) -> str:
    """What a tool gave, as a model reads it: text as it is, what has a structure as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, BaseModel | dict | list | tuple | set | frozenset):
        return to_json(value, fallback=str, serialize_unknown=True).decode()
    return str(value)


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
