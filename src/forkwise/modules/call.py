"""Call: one call of a module, with its own history, tools and place in a tree of branches.

All that a call changes is here and not in the module, so that one instance can be called many times at once.
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
from forkwise.modules.declaration import Declaration, Forks
from forkwise.modules.message_history import History, ModelReply
from forkwise.modules.models import Models, settings_of
from forkwise.modules.request import Question, send
from forkwise.modules.tools import (
    FINISH,
    SEARCH,
    Discovery,
    Tool,
    by_name,
    explained,
    finish_definition,
    finished,
    shown,
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
    "branch_of",
    "call_of",
    "with_embedded_calls",
]


@dataclass
class ToolCall:
    """A model's call of a tool."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass
class ToolResult:
    """What came of a call: an output, or an error."""

    id: str
    name: str
    output: Any
    error: str | None = None

    @property
    def text(self) -> str:
        """What the model reads."""
        return shown(self.output) if self.error is None else f"Error: {self.error}"


@dataclass
class Step:
    """A turn: what the model answered, what it called, and what came of that.

    What ``on_step`` sets here holds from the next turn on: ``model``, ``temperature``, ``max_tokens``, ``tools``. What
    it does to ``tool_results`` is what the model is told.
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
        """Give the model another tool from the next turn on; branches have it too."""
        self.tools[:] = by_name([*self.tools, function], {FINISH}).values()

    def remove_tool(self, name: str) -> None:
        """Take a tool away from the next turn on."""
        kept = [tool for tool in self.tools if Tool.of(tool).name != name]
        if len(kept) == len(self.tools):
            raise ValueError(f"there is no tool {name!r}")
        self.tools[:] = kept

    def finish(self, **output: Any) -> None:
        """End the call with this output, once ``on_step`` returns."""
        self.finishing = output


@dataclass(frozen=True)
class ToolRequest:
    """A call, the text of its arguments, and what is wrong with that if something is."""

    call: ToolCall
    raw: str
    error: str | None = None

    @classmethod
    def of(cls, part: ToolCallPart) -> ToolRequest:
        """A part of a response."""
        raw = part.args if isinstance(part.args, str) else json.dumps(part.args or {})
        try:
            arguments = json.loads(raw or "{}")
        except (ValueError, RecursionError) as error:
            return cls(ToolCall(part.tool_call_id, part.tool_name, {}), raw, f"the arguments are no JSON: {error}")
        if not isinstance(arguments, dict):
            return cls(ToolCall(part.tool_call_id, part.tool_name, {}), raw, "the arguments are no JSON object")
        return cls(ToolCall(part.tool_call_id, part.tool_name, arguments), raw)

    @property
    def id(self) -> str:
        """The id of the call."""
        return self.call.id

    @property
    def name(self) -> str:
        """The name of the tool that is called."""
        return self.call.name

    def failed(self, why: str) -> ToolResult:
        """The result of a call that failed."""
        return ToolResult(self.id, self.name, None, why)


_CALL = re.compile(r"<tool_call>\s*([\w-]+)(.*?)</tool_call>", re.DOTALL)
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def with_embedded_calls(response: ModelResponse, parameters: Mapping[str, Mapping[str, Any]]) -> ModelResponse:
    """A response with the calls in its text made calls, if it makes no other. ``parameters`` are the schemas of the
    tools there are, by their names; what only looks like a call of another stays text."""
    if any(isinstance(part, ToolCallPart) for part in response.parts):
        return response
    calls: list[ModelResponsePart] = []
    parts: list[ModelResponsePart] = []
    for part in response.parts:
        if isinstance(part, TextPart | ThinkingPart):
            found = [call for call in _CALL.finditer(part.content) if call[1] in parameters]
            calls += [_call(call[1], call[2], parameters[call[1]]) for call in found]
            if found and isinstance(part, TextPart):
                part = replace(part, content=_without(part.content, found))
        parts.append(part)
    return replace(response, parts=[*parts, *calls]) if calls else response


def _call(name: str, text: str, schema: Mapping[str, Any]) -> ToolCallPart:
    properties = schema.get("properties", {})
    arguments = {key: _value(value, properties.get(key, {})) for key, value in _ARGUMENT.findall(text)}
    return ToolCallPart(name, json.dumps(arguments), f"embedded_{secrets.token_hex(4)}")


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """All that is written is text; where the schema says that it is something else, it is read as JSON."""
    if schema.get("type") in ("integer", "number", "boolean", "array", "object"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _without(text: str, found: list[re.Match[str]]) -> str:
    for call in reversed(found):
        text = text[: call.start()] + text[call.end() :]
    return text


@dataclass
class LimitTracker:
    """The limits of a call, and what was used of them by it and by all below it."""

    name: str
    outer: LimitTracker | None
    max_depth: int
    max_branches: int | None
    max_parallel: int | None
    budget: float | None
    branches: int = 0
    spent: Decimal = Decimal(0)
    places: asyncio.Semaphore | None = field(init=False)

    def __post_init__(self) -> None:
        self.places = asyncio.Semaphore(self.max_parallel) if self.max_parallel is not None else None

    @property
    def depth(self) -> int:
        """How many calls this one is below the first."""
        return 0 if self.outer is None else self.outer.depth + 1

    def admit_branch(self) -> None:
        """Count a branch of this call, or raise LimitError where it would be one too many, or too deep."""
        for bounds in self._outwards():
            if self.depth + 1 - bounds.depth > bounds.max_depth:
                raise LimitError(
                    f"{bounds.name} allows {bounds.max_depth} levels of branches, and this would be one more",
                    limit="max_depth",
                )
            if bounds.max_branches is not None and bounds.branches >= bounds.max_branches:
                raise LimitError(f"{bounds.name} has had all its {bounds.max_branches} branches", limit="max_branches")
        for bounds in self._outwards():
            bounds.branches += 1

    def place(self) -> Slot:
        """Where this call works: it takes one of the places that all it is inside of have for their branches."""
        taken = [b.places for b in self._outwards() if b is not self and b.places is not None]
        return Slot(taken[::-1])

    def check_budget(self) -> None:
        """Raise LimitError where there is nothing left to spend."""
        for bounds in self._outwards():
            if bounds.budget is not None and bounds.spent >= Decimal(str(bounds.budget)):
                raise LimitError(f"{bounds.name} has spent ${bounds.spent} of its ${bounds.budget}", limit="budget")

    def charge(self, response: ModelResponse) -> None:
        """Count what a response cost, in all bounds. Where there is a budget, a model without a price is an error."""
        if all(bounds.budget is None for bounds in self._outwards()):
            return
        try:
            cost = response.usage.cost if response.usage.cost is not None else response.cost().total_price
        except (LookupError, ValueError, AssertionError) as error:
            raise LimitError(
                f"there is a budget, and nobody knows what {response.model_name} costs: {error}", limit="budget"
            ) from error
        for bounds in self._outwards():
            bounds.spent += Decimal(cost)

    def _outwards(self) -> Iterator[LimitTracker]:
        bounds: LimitTracker | None = self
        while bounds is not None:
            yield bounds
            bounds = bounds.outer


class Slot:
    """A place to work among others. Whoever waits for branches of its own lends its place meanwhile: else they and it
    would wait for each other."""

    def __init__(self, semaphores: Sequence[asyncio.Semaphore]) -> None:
        self._semaphores = semaphores
        self._held: list[asyncio.Semaphore] = []

    async def take(self) -> None:
        """Have the place, once there is one."""
        for semaphore in self._semaphores[len(self._held) :]:
            await semaphore.acquire()
            self._held.append(semaphore)

    def lend(self) -> None:
        """Give it away, until it is taken again."""
        while self._held:
            self._held.pop().release()


_current: ContextVar[Call | None] = ContextVar("forkwise_call", default=None)

_STEPS = 10
_NUDGE = f"Please call one of the tools you have. When you are done, call {FINISH}."
_AFTER_FINISH = "Not carried out: the task was finished in the same turn."
_OUT_OF_STEPS = f"Not carried out: there are no steps left. Call {FINISH} now."
_AGAIN = f"Please call {FINISH} again with valid arguments."


class Done(NamedTuple):
    """The end of a call, and what it gives."""

    output: BaseModel | None


def call_of(module: Module) -> Call | None:
    """The call of a module in which this code runs, be it inside a branch of it."""
    call = _current.get()
    while call is not None and call.module is not module:
        call = call.around
    return call


def branch_of(module: Module) -> Call | None:
    """The innermost branch of a module's call in which this code runs; where there is none, the call itself."""
    call = _current.get()
    while call is not None:
        above: Call | None = call
        while above is not None:
            if above.module is module:
                return call
            above = above.parent
        call = call.around
    return None


def loop_here() -> asyncio.AbstractEventLoop | None:
    """The loop of the call in which this code runs: what plain code of it calls runs there too."""
    call = _current.get()
    return call.loop if call is not None and call.is_open else None


class Call:
    """A call of a module: as a branch where it has a ``parent``.

    ``step`` has what holds for the next turn: the model, its settings, the tools. ``files`` is what it works on.
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
        self.around: Call | None = parent if parent is not None else _current.get()
        self.files = files
        self.history: History = []
        self.inherited = 0
        self.specials: list[Tool] = []
        self.step = Step(0, module.model, module.temperature, module.max_tokens, list(tools))
        self.bounds: LimitTracker = LimitTracker(
            type(module).__name__,
            None if parent is None else parent.bounds,
            module.max_depth,
            module.max_branches,
            module.max_parallel,
            module.budget,
        )
        self.place = self.bounds.place()
        self.forks = Forks()
        self.models: Models = Models() if parent is None else parent.models
        self.cache = module.cache
        self.is_open = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.branches_by_hand: set[asyncio.Task[Any]] = set()
        self._answers: dict[str, tuple[dict[str, Any], str]] = {}
        self._discovery = Discovery(lambda: list(self.tools.values())) if module.tool_discovery == "search" else None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Call]:
        """While it is open, code that it runs finds it, its services are up, and its time runs."""
        self.loop = asyncio.get_running_loop()
        token = _current.set(self)
        try:
            async with self._within_time(), AsyncExitStack() as stack:
                if self.parent is None:
                    await stack.enter_async_context(self.models)
                for service in self.declared.services:
                    await stack.enter_async_context(service)
                stack.push_async_callback(self._end_branches)
                self.is_open = True
                yield self
        finally:
            self.is_open = False
            self.place.lend()
            _current.reset(token)

    @asynccontextmanager
    async def _within_time(self) -> AsyncIterator[None]:
        limit = self.module.timeout
        try:
            async with asyncio.timeout(limit) as clock:
                yield
        except TimeoutError as error:
            if clock.expired():
                raise LimitError(f"{self.bounds.name} took more than its {limit:g} seconds", limit="timeout") from error
            raise

    async def _end_branches(self) -> None:
        left = [task for task in self.branches_by_hand if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    # The tools there are

    @property
    def tools(self) -> dict[str, Tool]:
        """The module's own tools and those it inherited, by their names, as they are now."""
        return {tool.name: tool for tool in map(Tool.of, self.step.tools)}

    def _at_hand(self) -> dict[str, Tool]:
        specials = {tool.name: tool for tool in self.specials}
        if self._discovery is not None:
            specials[SEARCH] = self._discovery.tool
        return {**self.tools, **specials}

    def _offered(self) -> list[ToolDefinition]:
        hidden = self._discovery.hidden(self.tools) if self._discovery is not None else frozenset()
        offered = [tool.definition for name, tool in self._at_hand().items() if name not in hidden]
        return [*offered, finish_definition(self.module.final_output)]

    # The way from the input to the output

    async def tell(self, inputs: Mapping[str, Any]) -> None:
        """Put the system prompt before the history, and the inputs behind it."""
        self.history.insert(0, {"role": "system", "content": await self.declared.prompt()})
        self.inherited += 1
        if self.module.initial_input is None:
            self.say(str(dict(inputs)))
        else:
            self.say(pydantic_to_xml(self.module.initial_input(**inputs), self.module.xml_input_root))

    async def run(self) -> BaseModel | None:
        """Go on from the history until there is an output."""
        limit = self._limit()
        if limit is None:
            return await self._demand_output()
        silent = 0
        for counter in range(1, limit + 1):
            said, requests = await self._ask(self._offered())
            if not requests:
                if (done := self._written(said)) is not None:
                    return done.output
                silent += 1
                if silent > self.module.max_parse_retries:
                    tries = self.module.max_parse_retries
                    raise ModuleError(f"No tool calls in agentic loop step after {tries} retries")
                self.say(_NUDGE)
                continue
            silent = 0
            done = await self._carry_out(counter, said, requests)
            if done is not None:
                return done.output
        return None if self.module.final_output is None else await self._demand_output(after=limit)

    def _limit(self) -> int | None:
        """How many turns it has. Where nothing is said, those that have something to call have several."""
        if self.module.max_steps is None and (self.tools or self.module.branches):
            return _STEPS
        return self.module.max_steps

    async def _carry_out(self, counter: int, said: ModelReply, requests: Sequence[ToolRequest]) -> Done | None:
        """One step: the calls, what came of them, and what ``on_step`` makes of it."""
        done, failures = self._finished(requests)
        if done is not None:
            return done
        others = [request for request in requests if request.id not in failures]
        results = await asyncio.gather(*(self._use(request) for request in others))
        told = {**failures, **{result.id: result for result in results}}
        self.step = replace(
            self.step,
            counter=counter,
            tools=list(self.step.tools),
            response=said,
            tool_calls=[request.call for request in requests],
            tool_results=[told[request.id] for request in requests],
            finishing=None,
        )
        self._answers = {result.id: (self._tell(result), result.text) for result in self.step.tool_results}
        on_step: Callable[[Step], Any] | None = getattr(self.module, "on_step", None)
        if on_step is not None:
            returned = await call_any(on_step, self.step)
            if isinstance(returned, Step):
                self.step = returned
            elif returned is not None:
                raise ModuleError(f"on_step returns the step, not {returned!r}")
        self.step.tools = list(by_name(self.step.tools, {FINISH}).values())
        self.settle()
        if self.step.finishing is not None:
            return Done(finished(self.module.final_output, self.step.finishing))
        return None

    async def _use(self, request: ToolRequest) -> ToolResult:
        if request.error is not None:
            return request.failed(request.error)
        tool = self._at_hand().get(request.name)
        if tool is None:
            return request.failed(f"Tool {request.name!r} not found")
        try:
            return ToolResult(request.id, request.name, await tool.use(request.call.arguments))
        except Exception as error:  # noqa: BLE001 - the model is told, whatever it is, and may do something else
            return request.failed(explained(error))

    async def _demand_output(self, after: int | None = None) -> BaseModel | None:
        """Ask for the output, and for nothing else: after so many steps, or at once."""
        tries = self.module.max_parse_retries
        failure = ModuleError(
            f"No tool called in single-turn mode after {tries} retries"
            if after is None
            else f"Module reached max_steps ({after}) without calling {FINISH}"
        )
        for _ in range(tries + 1):
            said, requests = await self._ask([finish_definition(self.module.final_output)], must_call=True)
            done, failures = self._finished(requests)
            done = done or (self._written(said) if not requests else None)
            if done is not None:
                return done.output
            self._answer([failures.get(r.id) or r.failed(_OUT_OF_STEPS) for r in requests])
            if not requests:
                self.say(_NUDGE)
            for request in requests:
                if request.id in failures:
                    failure = ParseError(failures[request.id].error or "", raw_output=request.raw)
                elif after is None:
                    raise ModuleError("Non-finish tool called in single-turn mode")
        raise failure

    def _finished(self, requests: Sequence[ToolRequest]) -> tuple[Done | None, dict[str, ToolResult]]:
        """The end, where one of the calls is a valid one of ``__finish__``; else what is wrong with those."""
        failures: dict[str, ToolResult] = {}
        for request in requests:
            if request.name != FINISH:
                continue
            try:
                if request.error is not None:
                    raise ParseError(f"Output validation failed: {request.error}")
                output = finished(self.module.final_output, request.call.arguments)
            except ParseError as error:
                failures[request.id] = request.failed(f"{error} {_AGAIN}")
                continue
            self._answer([ToolResult(r.id, r.name, "Done." if r is request else _AFTER_FINISH) for r in requests])
            return Done(output), {}
        return None, failures

    def _written(self, said: ModelReply) -> Done | None:
        """The end, where a model wrote its output as XML instead of calling for it."""
        model, tag = self.module.final_output, self.module.xml_output_root
        text = said.get("content") or ""
        begin, end = text.find(f"<{tag}>"), text.rfind(f"</{tag}>")
        if model is None or begin == -1 or end < begin:
            return None
        try:
            return Done(xml_to_pydantic(text[begin : end + len(tag) + 3], model))
        except ParseError:
            return None  # it is asked for once more

    # What is said

    async def _ask(
        self, tools: Sequence[ToolDefinition], *, must_call: bool = False
    ) -> tuple[ModelReply, list[ToolRequest]]:
        module = self.module
        question = Question(
            self.history,
            tools,
            settings_of(module, self.step.temperature, self.step.max_tokens),
            cache=self.cache,
            metadata=module.metadata,
            stream_options=module.stream_options,
            must_call=must_call,
            output=module.final_output,
        )
        on_stream = getattr(module, "on_stream", None) if module.stream else None
        response = await self.send(question, None if on_stream is None else lambda chunk: call_any(on_stream, chunk))
        response = with_embedded_calls(response, {t.name: t.parameters_json_schema for t in tools})
        said = ModelReply(response)
        self.history.append(said)
        return said, [ToolRequest.of(part) for part in response.parts if isinstance(part, ToolCallPart)]

    async def send(self, question: Question, hear: Any = None) -> ModelResponse:
        """Ask the model of this call, within the bounds."""
        await self.place.take()
        self.bounds.check_budget()
        response = await send(self.models, [self.step.model, *self.module.model_fallbacks], question, hear)
        self.bounds.charge(response)
        return response

    def say(self, text: str) -> None:
        """Add a user's message to the history."""
        self.history.append({"role": "user", "content": text})

    def _answer(self, results: Sequence[ToolResult]) -> None:
        """Say what came of calls that are no step's."""
        self.step = replace(self.step, tool_results=[])
        self._answers = {}
        for result in results:
            self._tell(result)

    def _tell(self, result: ToolResult) -> dict[str, Any]:
        entry = {"role": "tool", "tool_call_id": result.id, "content": result.text}
        self.history.append(entry)
        return entry

    def settle(self) -> None:
        """Let the history say of the last step's calls what the step says now."""
        results: Mapping[str, ToolResult] = {result.id: result for result in self.step.tool_results}
        for id_, (entry, text) in list(self._answers.items()):
            if id_ not in results:
                self.history[:] = [other for other in self.history if other is not entry]
                del self._answers[id_]
            elif results[id_].text != text:
                entry["content"] = results[id_].text
                self._answers[id_] = entry, results[id_].text
        for id_, result in results.items():
            if id_ not in self._answers:
                self._answers[id_] = self._tell(result), result.text
