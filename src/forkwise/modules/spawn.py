"""Branching: what lets a call spawn branches of itself, and lets a branch reach back to the tools of its parent."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel
from pydantic_ai.settings import ModelSettings

from forkwise.errors import BranchError
from forkwise.modules.call import Call
from forkwise.modules.declaration import BRANCH, PARENT_TOOL
from forkwise.modules.message_history import inherited, shown_lines
from forkwise.modules.request import Question
from forkwise.modules.tools import Tool, explained
from forkwise.modules.xml import pydantic_to_xml

if TYPE_CHECKING:
    from forkwise.modules.module import Module

__all__ = [
    "STRATEGIES",
    "Merged",
    "begin",
    "branch_by_hand",
    "merged_text",
    "parents_model",
    "spawn",
]


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
    response = await branch.send(Question(history, (), ModelSettings(temperature=0.3)))
    return f"Branch summary:\n{(response.text or '').strip()}\n\nFinal result:\n{result}"


#: The model of whoever spawns a branch, for a branch that names none.
parents_model: ContextVar[Any] = ContextVar("forkwise_parents_model", default="")

_BRANCH_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The branch to spawn; without it, the branches there are are listed"},
        "merge": {
            "type": "string",
            "enum": ["summarize", "end_result"],
            "description": "What to get back: the final result (end_result, the default), or a summary as well",
        },
        "inputs": {
            "type": "object",
            "description": "The branch's inputs; they can also be given beside the name, unless one is called like it",
            "additionalProperties": True,
        },
    },
    "additionalProperties": True,
}
_PARENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The tool to call; without it, the tools there are are listed"},
        "arguments": {
            "type": "object",
            "description": "The tool's arguments; they can also be given beside the name, unless one is called like it",
            "additionalProperties": True,
        },
    },
    "additionalProperties": True,
}


class Merged(NamedTuple):
    """What a branch gave, and what its parent is told of it."""

    output: BaseModel | None
    text: str


class _Input(BaseModel):
    name: str
    required: bool
    description: str


class _Described(BaseModel):
    name: str
    description: str
    input_schema: list[_Input]


class _Available(BaseModel):
    branches: list[_Described]


def begin(module: Module, parent: Call | None = None) -> Call:
    """A call of a module that is not open yet: a branch, where it has a parent."""
    declared = module._declared
    tools = {tool.name: tool for tool in declared.tools}
    if parent is None:
        call = Call(module, declared, list(tools.values()), None, declared.files(None))
    else:
        call = Call(module, declared, list({**parent.tools, **tools}.values()), parent, declared.files(parent.files))
        call.specials.append(_parent_tool(parent))
    if module.branches:
        call.specials.append(_branch_tool(call))
    return call


def _branch_tool(call: Call) -> Tool:
    branches = {cls.__name__: cls for cls in call.module.branches}
    names = ", ".join(branches)

    async def branch(arguments: Mapping[str, Any]) -> str:
        name = arguments.get("name")
        if not name:
            return _listed(list(branches.values()))
        if name not in branches:
            raise BranchError(f"Branch {name!r} not found. Available: {list(branches)}", branch=str(name))
        others = {key: value for key, value in arguments.items() if key != "name"}
        return (await spawn(call, branches[name], others.pop("merge", None), others)).text

    description = (
        f"Spawn a branch: a sub-agent that knows all that was said so far, does one task, and returns its result. "
        f"Several in one turn run at the same time. There are: {names}. Call it without arguments to see their inputs."
    )
    return Tool(BRANCH, description, _BRANCH_SCHEMA, branch, branch)


def _parent_tool(parent: Call) -> Tool:
    async def call_parent_tool(arguments: Mapping[str, Any]) -> Any:
        tools = parent.tools
        name = arguments.get("name")
        if not name:
            return json.dumps([{"name": tool.name, "schema": tool.schema} for tool in tools.values()], indent=2)
        if name not in tools:
            raise BranchError(f"Parent tool {name!r} not found. Available: {list(tools)}")
        others = {key: value for key, value in arguments.items() if key != "name"}
        return await tools[name].use(_flat("arguments", others, tools[name].parameters.get("properties", {})))

    description = "Call a tool of the agent that this is a branch of. Call it without arguments to see which there are."
    return Tool(PARENT_TOOL, description, _PARENT_SCHEMA, call_parent_tool, call_parent_tool)


def _listed(branches: list[type[Module]]) -> str:
    """The branches there are, and what they take."""

    def inputs(cls: type[Module]) -> list[_Input]:
        fields = cls.initial_input.model_fields.items() if cls.initial_input is not None else ()
        return [_Input(name=n, required=f.is_required(), description=f.description or "") for n, f in fields]

    described = [
        _Described(name=c.__name__, description=inspect.cleandoc(c.__doc__ or ""), input_schema=inputs(c))
        for c in branches
    ]
    return pydantic_to_xml(_Available(branches=described), "available_branches", include_descriptions=False)


def _flat(envelope: str, given: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs that were given beside each other, or inside an envelope, or both ways. Where one of them is itself
    called like the envelope, that is one only if all that is inside are inputs."""
    inside = given.get(envelope)
    if not isinstance(inside, Mapping) or (envelope in names and not set(inside) <= set(names)):
        return dict(given)
    return {**{key: value for key, value in given.items() if key != envelope}, **inside}


async def spawn(parent: Call, cls: type[Module], merge: Any, given: Mapping[str, Any]) -> Merged:
    """Run a branch to its end. BranchError, with the reason as its cause, where it fails."""
    fields = cls.initial_input.model_fields if cls.initial_input is not None else {}
    inputs = _flat("inputs", given, fields)
    if merge is not None and merge not in STRATEGIES:
        if "merge" not in fields or "merge" in inputs:
            raise BranchError(
                f"Invalid merge strategy {merge!r}. Must be: {', '.join(STRATEGIES)}", branch=cls.__name__
            )
        inputs, merge = {**inputs, "merge": merge}, None
    try:
        parent.bounds.admit_branch()
        module = _instance(parent, cls)
        return await _run(parent, module, merge or STRATEGIES[0], inputs)
    except _NoInstanceError as error:
        raise BranchError(
            f"Failed to instantiate branch: {explained(error.reason)}", branch=cls.__name__
        ) from error.reason
    except Exception as error:
        raise BranchError(
            f"Branch execution failed: {explained(error)}", branch=cls.__name__, paths=getattr(error, "paths", ())
        ) from error


class _NoInstanceError(Exception):
    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _instance(parent: Call, cls: type[Module]) -> Module:
    token = parents_model.set(parent.step.model)
    try:
        return cls()
    except Exception as error:
        raise _NoInstanceError(error) from error
    finally:
        parents_model.reset(token)


async def _run(parent: Call, module: Module, merge: str, inputs: Mapping[str, Any]) -> Merged:
    parent.settle()
    call = begin(module, parent)
    module._latest = call
    call.history = inherited(parent.history)
    call.inherited = len(call.history)
    if parent.module.cache is True:
        call.cache = [{"location": "message", "role": "system"}, {"location": "message", "index": call.inherited}]
    parent.place.lend()
    try:
        async with AsyncExitStack() as stack:
            is_shared = call.files is parent.files
            if call.declared.isolates_files or (parent.declared.isolates_files and is_shared):
                files = parent.forks.branch(parent.files, type(module).__name__)
                call.files = await stack.enter_async_context(files)
            await call.place.take()
            async with call.opened():
                await call.tell(inputs)
                output = await call.run()
                text = await merged_text(call, output, merge)
    finally:
        call.place.lend()
    return Merged(output, text)


async def branch_by_hand(parent: Call, cls: type[Module], merge: Any, inputs: Mapping[str, Any]) -> BaseModel | None:
    """Run a branch for code of the parent's module; its history is told of it."""
    task = asyncio.current_task()
    assert task is not None
    is_own = task not in parent.branches_by_hand
    parent.branches_by_hand.add(task)
    try:
        merged = await spawn(parent, cls, merge, inputs)
    finally:
        if is_own:
            parent.branches_by_hand.discard(task)
    parent.say(f"[Branch Result]\n{merged.text}")
    return merged.output
