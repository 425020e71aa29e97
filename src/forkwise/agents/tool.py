"""Tool: a function that a model may call, with what the model is told of it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_ai.tools import ToolDefinition
from pydantic_core import ArgsKwargs, to_json

from forkwise.agents.tool_schema import adapter_of, parameters_of, summary_of
from forkwise.errors import ModuleError, ToolConflictError
from forkwise.sandbox.threads import call

__all__ = ["Tool", "by_name", "explained", "is_tool", "shown", "tool"]

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
    return await call(checked)


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
