"""Call: one call of a module, with its own history, tools and place in a tree of branches.

All that a call changes is here and not in the module, so that one instance can be called many times at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.tools import ToolDefinition

from forkwise.agents.asking import Question, ask
from forkwise.agents.declaration import Declaration
from forkwise.agents.discovery import SEARCH, Discovery
from forkwise.agents.embedded import with_embedded_calls
from forkwise.agents.finish import FINISH, finish_definition, finished
from forkwise.agents.history import History, Said
from forkwise.agents.isolation import Forks
from forkwise.agents.limits import Bounds
from forkwise.agents.models import Models, settings_of
from forkwise.agents.requested import Requested
from forkwise.agents.step import Step, ToolResult
from forkwise.agents.tool import Tool, by_name, explained
from forkwise.agents.xml import pydantic_to_xml, xml_to_pydantic
from forkwise.errors import LimitError, ModuleError, ParseError
from forkwise.files.parent import Parent
from forkwise.sandbox.threads import call as call_any

if TYPE_CHECKING:
    from forkwise.agents.module import Module

__all__ = ["Call", "Done", "branch_of", "call_of"]

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
        self.bounds: Bounds = Bounds(
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

    async def _carry_out(self, counter: int, said: Said, requests: Sequence[Requested]) -> Done | None:
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

    async def _use(self, request: Requested) -> ToolResult:
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

    def _finished(self, requests: Sequence[Requested]) -> tuple[Done | None, dict[str, ToolResult]]:
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

    def _written(self, said: Said) -> Done | None:
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

    async def _ask(self, tools: Sequence[ToolDefinition], *, must_call: bool = False) -> tuple[Said, list[Requested]]:
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
        response = await self.ask(question, None if on_stream is None else lambda chunk: call_any(on_stream, chunk))
        response = with_embedded_calls(response, {t.name: t.parameters_json_schema for t in tools})
        said = Said(response)
        self.history.append(said)
        return said, [Requested.of(part) for part in response.parts if isinstance(part, ToolCallPart)]

    async def ask(self, question: Question, hear: Any = None) -> ModelResponse:
        """Ask the model of this call, within the bounds."""
        await self.place.take()
        self.bounds.check_budget()
        response = await ask(self.models, [self.step.model, *self.module.model_fallbacks], question, hear)
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
