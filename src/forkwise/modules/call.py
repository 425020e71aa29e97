"""`Call`: one call of a module, with its own history, tools and limits, in a tree of branches.

All mutable state is in the call, not in the module, so that one instance can be called many times at once. Also here:
a `Step` and the tool calls in it, calls that a model wrote as text, and the limits of a call and its branches.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel
from pydantic_ai.messages import ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.tools import ToolDefinition

from forkwise.concurrency import call_any
from forkwise.errors import LimitError, ModuleError, ParseError
from forkwise.files.branch import Parent
from forkwise.modules.declaration import Declaration, FileBranches
from forkwise.modules.message_history import History, ModelReply
from forkwise.modules.models import Models, build_settings
from forkwise.modules.request import OnChunk, Question, send
from forkwise.modules.tools import (
    FINISH,
    SEARCH,
    Discovery,
    Tool,
    explain_error,
    finish_definition,
    format_result,
    index_tools,
    parse_output,
)
from forkwise.modules.xml import pydantic_to_xml, xml_to_pydantic

if TYPE_CHECKING:
    from forkwise.modules.module import Module

__all__ = [
    "Call",
    "Done",
    "LimitTracker",
    "Slot",
    "Step",
    "ToolCall",
    "ToolRequest",
    "ToolResult",
    "current_loop",
    "extract_embedded_calls",
    "find_branch_call",
    "find_call",
]


@dataclass
class ToolCall:
    """A model's call of a tool."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass
class ToolResult:
    """The result of a tool call: an output, or an error."""

    id: str
    name: str
    output: Any
    error: str | None = None

    @property
    def text(self) -> str:
        """The text that the model reads."""
        return format_result(self.output) if self.error is None else f"Error: {self.error}"


@dataclass
class Step:
    """One turn of a call: the model's response, its tool calls, and their results.

    ``on_step`` may change ``model``, ``temperature``, ``max_tokens`` and ``tools`` for the following turns. The model
    receives the ``tool_results`` as ``on_step`` leaves them.
    """

    counter: int
    model: Any
    temperature: float | None
    max_tokens: int | None
    tools: list[Any] = field(default_factory=list)
    response: dict[str, Any] = field(default_factory=dict)
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_results: list[ToolResult] = field(default_factory=list)
    finishing: dict[str, Any] | None = field(default=None, repr=False)

    def add_tool(self, function: Callable[..., Any]) -> None:
        """Add a tool for the following turns, also for branches. Adding a function again changes nothing."""
        added = Tool.of(function)
        if all(Tool.of(tool).function != added.function or Tool.of(tool).name != added.name for tool in self.tools):
            self.tools[:] = index_tools([*self.tools, added], {FINISH}).values()

    def remove_tool(self, name: str) -> None:
        """Remove a tool for the following turns, if there is one of that name."""
        self.tools[:] = [tool for tool in self.tools if Tool.of(tool).name != name]

    def finish(self, **output: Any) -> None:
        """End the call with this output when ``on_step`` returns."""
        self.finishing = output


@dataclass(frozen=True)
class ToolRequest:
    """A tool call that a model requested: the call, the text of its arguments, and the error if those are invalid."""

    call: ToolCall
    raw: str
    error: str | None = None

    @classmethod
    def of(cls, part: ToolCallPart) -> ToolRequest:
        """Parse the call in a part of a response."""
        raw = part.args if isinstance(part.args, str) else json.dumps(part.args or {})
        try:
            arguments = json.loads(raw or "{}")
        except (ValueError, RecursionError) as error:
            return cls(
                ToolCall(part.tool_call_id, part.tool_name, {}), raw, f"the arguments are not valid JSON: {error}"
            )
        if not isinstance(arguments, dict):
            return cls(ToolCall(part.tool_call_id, part.tool_name, {}), raw, "the arguments are not a JSON object")
        return cls(ToolCall(part.tool_call_id, part.tool_name, arguments), raw)

    @property
    def id(self) -> str:
        """The id of the call."""
        return self.call.id

    @property
    def name(self) -> str:
        """The name of the called tool."""
        return self.call.name

    def fail(self, reason: str) -> ToolResult:
        """Return the result of the call as a failure."""
        return ToolResult(self.id, self.name, None, reason)


_CALL = re.compile(r"<tool_call>\s*([\w-]+)(.*?)</tool_call>", re.DOTALL)
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def extract_embedded_calls(response: ModelResponse, parameters: Mapping[str, Mapping[str, Any]]) -> ModelResponse:
    """Return a response with the ``<tool_call>`` elements in its text as tool calls, unless it has tool calls already.

    ``parameters`` are the schemas of the existing tools by name. An element that names another tool stays text.
    """
    if any(isinstance(part, ToolCallPart) for part in response.parts):
        return response
    calls: list[ModelResponsePart] = []
    parts: list[ModelResponsePart] = []
    for part in response.parts:
        if isinstance(part, TextPart | ThinkingPart):
            found = [call for call in _CALL.finditer(part.content) if call[1] in parameters]
            calls += [_parse_call(call[1], call[2], parameters[call[1]]) for call in found]
            if found and isinstance(part, TextPart):
                part = replace(part, content=_remove(part.content, found))
        parts.append(part)
    return replace(response, parts=[*parts, *calls]) if calls else response


def _parse_call(name: str, text: str, schema: Mapping[str, Any]) -> ToolCallPart:
    properties = schema.get("properties", {})
    arguments = {key: _parse_value(value, properties.get(key, {})) for key, value in _ARGUMENT.findall(text)}
    return ToolCallPart(name, json.dumps(arguments), f"embedded_{secrets.token_hex(4)}")


def _parse_value(text: str, schema: Mapping[str, Any]) -> Any:
    """Parse an argument as JSON if the schema says that it is not a string."""
    if schema.get("type") in ("integer", "number", "boolean", "array", "object"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _remove(text: str, found: list[re.Match[str]]) -> str:
    for call in reversed(found):
        text = text[: call.start()] + text[call.end() :]
    return text


@dataclass
class LimitTracker:
    """The limits of a call, and how much of them the call and all branches below it used."""

    name: str
    outer: LimitTracker | None
    max_depth: int
    max_branches: int | None
    max_parallel: int | None
    budget: float | None
    branches: int = 0
    spent: Decimal = Decimal(0)
    slots: asyncio.Semaphore | None = field(init=False)

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.max_parallel) if self.max_parallel is not None else None

    @property
    def depth(self) -> int:
        """The number of calls above this one."""
        return 0 if self.outer is None else self.outer.depth + 1

    def admit_branch(self) -> None:
        """Count a branch of this call. Raise `LimitError` if it would be one too many, or too deep."""
        for tracker in self._outwards():
            if self.depth + 1 - tracker.depth > tracker.max_depth:
                raise LimitError(
                    f"{tracker.name} allows {tracker.max_depth} levels of branches; this would be one more",
                    limit="max_depth",
                )
            if tracker.max_branches is not None and tracker.branches >= tracker.max_branches:
                raise LimitError(
                    f"{tracker.name} has used all its {tracker.max_branches} branches", limit="max_branches"
                )
        for tracker in self._outwards():
            tracker.branches += 1

    def slot(self) -> Slot:
        """Return the slot this call runs in: one of the parallel branches of every call around it."""
        semaphores = [t.slots for t in self._outwards() if t is not self and t.slots is not None]
        return Slot(semaphores[::-1])

    def check_budget(self) -> None:
        """Raise `LimitError` if a budget is used up."""
        for tracker in self._outwards():
            if tracker.budget is not None and tracker.spent >= Decimal(str(tracker.budget)):
                raise LimitError(f"{tracker.name} has spent ${tracker.spent} of its ${tracker.budget}", limit="budget")

    def charge(self, response: ModelResponse) -> None:
        """Add the cost of a response to this call and all around it.

        If one of them has a budget, a model without a known price raises `LimitError`.
        """
        if all(tracker.budget is None for tracker in self._outwards()):
            return
        try:
            cost = response.usage.cost if response.usage.cost is not None else response.cost().total_price
        except (LookupError, ValueError, AssertionError) as error:
            raise LimitError(
                f"there is a budget, but the price of {response.model_name} is unknown: {error}", limit="budget"
            ) from error
        for tracker in self._outwards():
            tracker.spent += Decimal(cost)

    def _outwards(self) -> Iterator[LimitTracker]:
        tracker: LimitTracker | None = self
        while tracker is not None:
            yield tracker
            tracker = tracker.outer


class Slot:
    """The right to run as one of a limited number of parallel branches.

    A call releases its slot while it waits for its own branches; otherwise it and they could wait for each other.
    """

    def __init__(self, semaphores: Sequence[asyncio.Semaphore]) -> None:
        self._semaphores = semaphores
        self._held: list[asyncio.Semaphore] = []

    async def acquire(self) -> None:
        """Wait for a slot, unless it is held already."""
        for semaphore in self._semaphores[len(self._held) :]:
            await semaphore.acquire()
            self._held.append(semaphore)

    def release(self) -> None:
        """Release the slot, until it is acquired again."""
        while self._held:
            self._held.pop().release()


_current: ContextVar[Call | None] = ContextVar("forkwise_call", default=None)

_DEFAULT_STEPS = 10
_NUDGE = f"Please call one of the tools you have. When you are done, call {FINISH}."
_AFTER_FINISH = "Not carried out: the task was finished in the same turn."
_OUT_OF_STEPS = f"Not carried out: there are no steps left. Call {FINISH} now."
_AGAIN = f"Please call {FINISH} again with valid arguments."


class Done(NamedTuple):
    """The end of a call, and its output."""

    output: BaseModel | None


def find_call(module: Module) -> Call | None:
    """Return the call of ``module`` in which this code runs, also from inside a branch of that call."""
    call = _current.get()
    while call is not None and call.module is not module:
        call = call.enclosing
    return call


def find_branch_call(module: Module) -> Call | None:
    """Return the innermost branch of a call of ``module`` in which this code runs, or else the call itself."""
    call = _current.get()
    while call is not None:
        ancestor: Call | None = call
        while ancestor is not None:
            if ancestor.module is module:
                return call
            ancestor = ancestor.parent
        call = call.enclosing
    return None


def current_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of the call in which this code runs. Blocking code of the call runs coroutines there."""
    call = _current.get()
    return call.loop if call is not None and call.is_open else None


class Call:
    """One call of a module. A call with a ``parent`` is a branch of that.

    ``step`` holds the model, settings and tools of the next turn. ``files`` is the workspace or branch it works on.
    ``enclosing`` is the call whose code made this call.
    """

    def __init__(
        self,
        module: Module,
        declared: Declaration,
        tools: Sequence[Tool],
        parent: Call | None,
        files: Parent | None,
    ) -> None:
        self.module = module
        self.declared = declared
        self.parent = parent
        self.enclosing: Call | None = parent if parent is not None else _current.get()
        self.files = files
        self.history: History = []
        self.inherited_count = 0
        self.special_tools: list[Tool] = []
        self.step = Step(0, module.model, module.temperature, module.max_tokens, list(tools))
        self.limits: LimitTracker = LimitTracker(
            type(module).__name__,
            None if parent is None else parent.limits,
            module.max_depth,
            module.max_branches,
            module.max_parallel,
            module.budget,
        )
        self.slot = self.limits.slot()
        self.file_branches = FileBranches()
        self.models: Models = Models() if parent is None else parent.models
        self.cache = module.cache
        self.is_open = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.manual_branches: set[asyncio.Task[Any]] = set()
        self._result_entries: dict[str, tuple[dict[str, Any], str]] = {}
        self._discovery = Discovery(lambda: list(self.tools.values())) if module.tool_discovery == "search" else None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Call]:
        """Open the call for the block: its code finds it, its services are set up, and its time limit runs."""
        self.loop = asyncio.get_running_loop()
        token = _current.set(self)
        try:
            async with self._time_limit(), AsyncExitStack() as stack:
                if self.parent is None:
                    await stack.enter_async_context(self.models)
                for service in self.declared.services:
                    await stack.enter_async_context(service)
                stack.push_async_callback(self._cancel_branches)
                self.is_open = True
                yield self
        finally:
            self.is_open = False
            self.slot.release()
            _current.reset(token)

    @asynccontextmanager
    async def _time_limit(self) -> AsyncIterator[None]:
        limit = self.module.timeout
        try:
            async with asyncio.timeout(limit) as clock:
                yield
        except TimeoutError as error:
            if clock.expired():
                raise LimitError(f"{self.limits.name} took more than its {limit:g} seconds", limit="timeout") from error
            raise

    async def _cancel_branches(self) -> None:
        tasks = [task for task in self.manual_branches if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Tools

    @property
    def tools(self) -> dict[str, Tool]:
        """The module's own and inherited tools by name, as of the current step."""
        return {tool.name: tool for tool in map(Tool.of, self.step.tools)}

    def _callable_tools(self) -> dict[str, Tool]:
        special = {tool.name: tool for tool in self.special_tools}
        if self._discovery is not None:
            special[SEARCH] = self._discovery.tool
        return {**self.tools, **special}

    def _tool_definitions(self) -> list[ToolDefinition]:
        hidden = self._discovery.hidden(self.tools) if self._discovery is not None else frozenset()
        definitions = [tool.definition for name, tool in self._callable_tools().items() if name not in hidden]
        return [*definitions, finish_definition(self.module.final_output)]

    # From the input to the output

    async def add_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Put the system prompt before the history, and the inputs after it."""
        self.history.insert(0, {"role": "system", "content": await self.declared.prompt()})
        self.inherited_count += 1
        if self.module.initial_input is None:
            self.say(str(dict(inputs)))
        else:
            self.say(pydantic_to_xml(self.module.initial_input(**inputs), self.module.xml_input_root))

    async def run(self) -> BaseModel | None:
        """Run steps until there is an output, and return it."""
        limit = self._step_limit()
        if limit is None:
            return await self._request_output()
        silent = 0
        for counter in range(1, limit + 1):
            reply, requests = await self._request(self._tool_definitions())
            if not requests:
                if (done := self._parse_xml_output(reply)) is not None:
                    return done.output
                silent += 1
                if silent > self.module.max_parse_retries:
                    tries = self.module.max_parse_retries
                    raise ModuleError(f"No tool calls in agentic loop step after {tries} retries")
                self.say(_NUDGE)
                continue
            silent = 0
            done = await self._run_step(counter, reply, requests)
            if done is not None:
                return done.output
        return None if self.module.final_output is None else await self._request_output(after=limit)

    def _step_limit(self) -> int | None:
        """Return the number of steps; None means one turn, which must produce the output."""
        if self.module.max_steps is None and (self.tools or self.module.branches):
            return _DEFAULT_STEPS
        return self.module.max_steps

    async def _run_step(self, counter: int, reply: ModelReply, requests: Sequence[ToolRequest]) -> Done | None:
        """Run a step: its tool calls, then ``on_step``. Return the end of the call if the step ended it."""
        done, failures = self._find_finish(requests)
        if done is not None:
            return done
        others = [request for request in requests if request.id not in failures]
        results = await asyncio.gather(*(self._run_tool(request) for request in others))
        by_id = {**failures, **{result.id: result for result in results}}
        self.step = replace(
            self.step,
            counter=counter,
            tools=list(self.step.tools),
            response=reply,
            tool_calls=[request.call for request in requests],
            tool_results=[by_id[request.id] for request in requests],
            finishing=None,
        )
        self._result_entries = {result.id: (self._add_result(result), result.text) for result in self.step.tool_results}
        on_step: Callable[[Step], Any] | None = getattr(self.module, "on_step", None)
        if on_step is not None:
            returned = await call_any(on_step, self.step)
            if isinstance(returned, Step):
                self.step = returned
            elif returned is not None:
                raise ModuleError(f"on_step must return the step or None, not {returned!r}")
        self.step.tools = list(index_tools(self.step.tools, {FINISH}).values())
        self.sync_results()
        if self.step.finishing is not None:
            return Done(parse_output(self.module.final_output, self.step.finishing))
        return None

    async def _run_tool(self, request: ToolRequest) -> ToolResult:
        if request.error is not None:
            return request.fail(request.error)
        tool = self._callable_tools().get(request.name)
        if tool is None:
            return request.fail(f"Tool {request.name!r} not found")
        try:
            return ToolResult(request.id, request.name, await tool.use(request.call.arguments))
        except Exception as error:  # noqa: BLE001 - the model reads the error and may try something else
            return request.fail(explain_error(error))

    async def _request_output(self, after: int | None = None) -> BaseModel | None:
        """Request the output, with no other tool: after ``after`` steps, or in a single turn if that is None."""
        tries = self.module.max_parse_retries
        failure = ModuleError(
            f"No tool called in single-turn mode after {tries} retries"
            if after is None
            else f"Module reached max_steps ({after}) without calling {FINISH}"
        )
        for _ in range(tries + 1):
            reply, requests = await self._request([finish_definition(self.module.final_output)], must_call=True)
            done, failures = self._find_finish(requests)
            done = done or (self._parse_xml_output(reply) if not requests else None)
            if done is not None:
                return done.output
            self._add_results([failures.get(r.id) or r.fail(_OUT_OF_STEPS) for r in requests])
            if not requests:
                self.say(_NUDGE)
            for request in requests:
                if request.id in failures:
                    failure = ParseError(failures[request.id].error or "", raw_output=request.raw)
                elif after is None:
                    raise ModuleError(f"Non-finish tool called in single-turn mode: {request.name}")
        raise failure

    def _find_finish(self, requests: Sequence[ToolRequest]) -> tuple[Done | None, dict[str, ToolResult]]:
        """Return the end if one request is a valid ``__finish__``, else the failures of the invalid ones by id."""
        failures: dict[str, ToolResult] = {}
        for request in requests:
            if request.name != FINISH:
                continue
            try:
                if request.error is not None:
                    raise ParseError(f"Output validation failed: {request.error}")
                output = parse_output(self.module.final_output, request.call.arguments)
            except ParseError as error:
                failures[request.id] = request.fail(f"{error} {_AGAIN}")
                continue
            self._add_results([ToolResult(r.id, r.name, "Done." if r is request else _AFTER_FINISH) for r in requests])
            return Done(output), {}
        return None, failures

    def _parse_xml_output(self, reply: ModelReply) -> Done | None:
        """Return the end if the model wrote its output as XML instead of calling ``__finish__``."""
        model, tag = self.module.final_output, self.module.xml_output_root
        text = reply.get("content") or ""
        begin, end = text.find(f"<{tag}>"), text.rfind(f"</{tag}>")
        if model is None or begin == -1 or end < begin:
            return None
        try:
            return Done(xml_to_pydantic(text[begin : end + len(tag) + 3], model))
        except ParseError:
            return None  # the caller requests the output again

    # The history

    async def _request(
        self, tools: Sequence[ToolDefinition], *, must_call: bool = False
    ) -> tuple[ModelReply, list[ToolRequest]]:
        module = self.module
        question = Question(
            self.history,
            tools,
            build_settings(module, self.step.temperature, self.step.max_tokens),
            cache=self.cache,
            metadata=module.metadata,
            stream_options=module.stream_options,
            must_call=must_call,
            output=module.final_output,
        )
        on_stream = getattr(module, "on_stream", None) if module.stream else None
        response = await self.send(question, None if on_stream is None else lambda chunk: call_any(on_stream, chunk))
        response = extract_embedded_calls(response, {t.name: t.parameters_json_schema for t in tools})
        reply = ModelReply(response)
        self.history.append(reply)
        return reply, [ToolRequest.of(part) for part in response.parts if isinstance(part, ToolCallPart)]

    async def send(self, question: Question, on_chunk: OnChunk | None = None) -> ModelResponse:
        """Send a question to the model of this call, within its limits."""
        await self.slot.acquire()
        self.limits.check_budget()
        response = await send(self.models, [self.step.model, *self.module.model_fallbacks], question, on_chunk)
        self.limits.charge(response)
        return response

    def say(self, text: str) -> None:
        """Add a user message to the history."""
        self.history.append({"role": "user", "content": text})

    def _add_results(self, results: Sequence[ToolResult]) -> None:
        """Add results of calls that belong to no step to the history."""
        self.step = replace(self.step, tool_results=[])
        self._result_entries = {}
        for result in results:
            self._add_result(result)

    def _add_result(self, result: ToolResult) -> dict[str, Any]:
        entry = {"role": "tool", "tool_call_id": result.id, "content": result.text}
        self.history.append(entry)
        return entry

    def sync_results(self) -> None:
        """Update the history to the last step's ``tool_results``, which ``on_step`` may have changed."""
        results: Mapping[str, ToolResult] = {result.id: result for result in self.step.tool_results}
        for id_, (entry, text) in list(self._result_entries.items()):
            if id_ not in results:
                self.history[:] = [other for other in self.history if other is not entry]
                del self._result_entries[id_]
            elif results[id_].text != text:
                entry["content"] = results[id_].text
                self._result_entries[id_] = entry, results[id_].text
        for id_, result in results.items():
            if id_ not in self._result_entries:
                self._result_entries[id_] = self._add_result(result), result.text
