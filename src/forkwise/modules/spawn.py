"""Branches of a call: spawned by the model through a tool, or by the module's code.

A branch inherits the history and the tools of its parent; its result is merged into the parent's history.
"""

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
from forkwise.modules.message_history import copy_for_branch, format_history
from forkwise.modules.request import Question
from forkwise.modules.tools import Tool, explain_error
from forkwise.modules.xml import pydantic_to_xml

if TYPE_CHECKING:
    from forkwise.modules.module import Module

__all__ = [
    "STRATEGIES",
    "BranchResult",
    "parent_model",
    "prepare_call",
    "run_branch",
    "spawn",
]


#: How a branch's result is merged: its output alone, or a summary of its work as well.
STRATEGIES = ("end_result", "summarize")

_SUMMARIZE = (
    "You summarize the work of a branch of an agent, for the agent that it branched from. Say briefly what was tried, "
    "what was found, and how the final result came about."
)


async def _format_merge(branch: Call, output: BaseModel | None, strategy: str) -> str:
    """Return the text for the parent. A branch without an output is always summarized."""
    if strategy == "end_result" and output is not None:
        return pydantic_to_xml(output, "branch_result", include_descriptions=False)
    result = output.model_dump_json(indent=2) if output is not None else "None"
    work = format_history(branch.history[branch.inherited_count :])
    history = [
        {"role": "system", "content": _SUMMARIZE},
        {"role": "user", "content": f"Branch history:\n{work}\n\nFinal result:\n{result}"},
    ]
    response = await branch.send(Question(history, (), ModelSettings(temperature=0.3)))
    return f"Branch summary:\n{(response.text or '').strip()}\n\nFinal result:\n{result}"


#: The model of the call that spawns a branch, for a branch that names none.
parent_model: ContextVar[Any] = ContextVar("forkwise_parent_model", default="")

_BRANCH_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The branch to spawn; omit it to list the branches"},
        "merge": {
            "type": "string",
            "enum": ["summarize", "end_result"],
            "description": "What to return: the final result (end_result, the default), or also a summary (summarize)",
        },
        "inputs": {
            "type": "object",
            "description": "The branch's inputs; they can also be passed beside the name, unless one is called 'name'",
            "additionalProperties": True,
        },
    },
    "additionalProperties": True,
}
_PARENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The tool to call; omit it to list the tools"},
        "arguments": {
            "type": "object",
            "description": "The tool's arguments; they can also be passed beside the name, unless one is called 'name'",
            "additionalProperties": True,
        },
    },
    "additionalProperties": True,
}


class BranchResult(NamedTuple):
    """The output of a branch, and the text that its parent reads."""

    output: BaseModel | None
    text: str


class _Input(BaseModel):
    name: str
    required: bool
    description: str


class _BranchDescription(BaseModel):
    name: str
    description: str
    input_schema: list[_Input]


class _BranchList(BaseModel):
    branches: list[_BranchDescription]


def prepare_call(module: Module, parent: Call | None = None) -> Call:
    """Return a call of a module, not opened yet. With a ``parent`` it is a branch of that."""
    declared = module._declared
    tools = {tool.name: tool for tool in declared.tools}
    if parent is None:
        call = Call(module, declared, list(tools.values()), None, declared.files(None))
    else:
        call = Call(module, declared, list({**parent.tools, **tools}.values()), parent, declared.files(parent.files))
        call.special_tools.append(_parent_tool(parent))
    if module.branches:
        call.special_tools.append(_branch_tool(call))
    return call


def _branch_tool(call: Call) -> Tool:
    branches = {cls.__name__: cls for cls in call.module.branches}
    names = ", ".join(branches)

    async def branch(arguments: Mapping[str, Any]) -> str:
        name = arguments.get("name")
        if not name:
            return _format_branches(list(branches.values()))
        if name not in branches:
            raise BranchError(f"Branch {name!r} not found. Available: {list(branches)}", branch=str(name))
        others = {key: value for key, value in arguments.items() if key != "name"}
        return (await spawn(call, branches[name], others.pop("merge", None), others)).text

    description = (
        f"Spawn a branch: a sub-agent that has the conversation so far, does one task, and returns its result. "
        f"Several in one turn run at the same time. Available: {names}. Call it without arguments to see their inputs."
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
        return await tools[name].use(_flatten("arguments", others, tools[name].parameters.get("properties", {})))

    description = (
        "Call a tool of the agent that this branch was spawned from. Call it without arguments to list the tools."
    )
    return Tool(PARENT_TOOL, description, _PARENT_SCHEMA, call_parent_tool, call_parent_tool)


def _format_branches(branches: list[type[Module]]) -> str:
    """Return the branches and their inputs as XML."""

    def inputs(cls: type[Module]) -> list[_Input]:
        fields = cls.initial_input.model_fields.items() if cls.initial_input is not None else ()
        return [_Input(name=n, required=f.is_required(), description=f.description or "") for n, f in fields]

    descriptions = [
        _BranchDescription(name=c.__name__, description=inspect.cleandoc(c.__doc__ or ""), input_schema=inputs(c))
        for c in branches
    ]
    return pydantic_to_xml(_BranchList(branches=descriptions), "available_branches", include_descriptions=False)


def _flatten(envelope: str, arguments: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs that were passed directly, inside an ``envelope`` argument, or both.

    If an input has the envelope's name, the argument is an envelope only if all keys in it are names of inputs.
    """
    inside = arguments.get(envelope)
    if not isinstance(inside, Mapping) or (envelope in names and not set(inside) <= set(names)):
        return dict(arguments)
    return {**{key: value for key, value in arguments.items() if key != envelope}, **inside}


async def spawn(parent: Call, cls: type[Module], merge: Any, arguments: Mapping[str, Any]) -> BranchResult:
    """Run a branch to its end. Raise `BranchError`, with the reason as its cause, if it fails."""
    fields = cls.initial_input.model_fields if cls.initial_input is not None else {}
    inputs = _flatten("inputs", arguments, fields)
    if merge is not None and merge not in STRATEGIES:
        if "merge" not in fields or "merge" in inputs:
            raise BranchError(
                f"Invalid merge strategy {merge!r}. Must be: {', '.join(STRATEGIES)}", branch=cls.__name__
            )
        inputs, merge = {**inputs, "merge": merge}, None
    try:
        parent.limits.admit_branch()
        module = _instantiate(parent, cls)
        return await _run(parent, module, merge or STRATEGIES[0], inputs)
    except _InstantiationError as error:
        raise BranchError(
            f"Failed to instantiate branch: {explain_error(error.reason)}", branch=cls.__name__
        ) from error.reason
    except Exception as error:
        raise BranchError(
            f"Branch execution failed: {explain_error(error)}", branch=cls.__name__, paths=getattr(error, "paths", ())
        ) from error


class _InstantiationError(Exception):
    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _instantiate(parent: Call, cls: type[Module]) -> Module:
    token = parent_model.set(parent.step.model)
    try:
        return cls()
    except Exception as error:
        raise _InstantiationError(error) from error
    finally:
        parent_model.reset(token)


async def _run(parent: Call, module: Module, merge: str, inputs: Mapping[str, Any]) -> BranchResult:
    parent.sync_results()
    call = prepare_call(module, parent)
    module._latest = call
    call.history = copy_for_branch(parent.history)
    call.inherited_count = len(call.history)
    if parent.module.cache is True:
        call.cache = [{"location": "message", "role": "system"}, {"location": "message", "index": call.inherited_count}]
    parent.slot.release()
    try:
        async with AsyncExitStack() as stack:
            is_shared = call.files is parent.files
            if call.declared.isolates_files or (parent.declared.isolates_files and is_shared):
                files = parent.file_branches.branch(parent.files, type(module).__name__)
                call.files = await stack.enter_async_context(files)
            await call.slot.acquire()
            async with call.open():
                await call.add_inputs(inputs)
                output = await call.run()
                text = await _format_merge(call, output, merge)
    finally:
        call.slot.release()
    return BranchResult(output, text)


async def run_branch(parent: Call, cls: type[Module], merge: Any, inputs: Mapping[str, Any]) -> BaseModel | None:
    """Run a branch for code of the parent's module, and add its result to the parent's history."""
    task = asyncio.current_task()
    assert task is not None
    is_own = task not in parent.manual_branches
    parent.manual_branches.add(task)
    try:
        result = await spawn(parent, cls, merge, inputs)
    finally:
        if is_own:
            parent.manual_branches.discard(task)
    parent.say(f"[Branch Result]\n{result.text}")
    return result.output
