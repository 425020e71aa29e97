"""Module: an agent with a declared input and output, which calls tools in a loop and spawns branches of itself.

The class says what the agent is; each call of an instance has a state of its own (see call.py).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from forkwise.agents.branching import BRANCH, PARENT_TOOL, branch_by_hand, parents_model, special_tools
from forkwise.agents.call import Call, call_of, innermost
from forkwise.agents.discovery import SEARCH
from forkwise.agents.finish import FINISH
from forkwise.agents.history import History
from forkwise.agents.isolation import ISOLATED, files_named
from forkwise.agents.models import check_cache, check_model
from forkwise.agents.service import Service
from forkwise.agents.template import Template
from forkwise.agents.tool import Tool, is_tool
from forkwise.agents.xml import pydantic_to_xml
from forkwise.errors import ToolConflictError
from forkwise.sandbox.threads import call as call_any

__all__ = ["Module"]


class _FilesOfCall:
    """``self.workspace``: the files of the call in which code runs. A subclass says in its place what they are."""

    def __get__(self, module: Module | None, cls: type[Module]) -> Any:
        return self if module is None else module._files()

    def __set__(self, module: Module, workspace: Any) -> None:
        module._workspace = workspace


class Module:
    """An agent, declared by the attributes of its class, and called with its inputs.

    Called from plain code it gives its output; called where an event loop runs, something to await. ``run`` always
    waits. An ``on_step(self, step)`` is called after each step, an ``on_stream(self, chunk)`` with what the model says
    if ``stream`` is set; both may be async or plain.
    """

    #: ``"provider/name"``, ``"provider:name"``, a dict with ``id``, or a model object of pydantic-ai.
    model: Any = ""
    model_fallbacks: list[Any] = []  # noqa: RUF012 - subclasses put a list of their own here, as with those below
    temperature: float | None = 0.7
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    cache: Any = None

    #: How many turns it has; None is one, in which it must give its output.
    max_steps: int | None = None
    max_parse_retries: int = 2
    #: Text, the Path of a file beside the class's, a Template, or a method; without it, the class's docstring.
    system_prompt: Any = ""
    initial_input: type[BaseModel] | None = None
    final_output: type[BaseModel] | None = None
    xml_input_root: str = "input"
    xml_output_root: str = "output"
    tools: list[Any] = []  # noqa: RUF012
    tool_discovery: str | None = None
    branches: list[Any] = []  # noqa: RUF012

    #: Of a call and all branches below it: levels, branches in all, branches at once, seconds, dollars.
    max_depth: int = 5
    max_branches: int | None = None
    max_parallel: int | None = None
    timeout: float | None = None
    budget: float | None = None

    #: The files it works on: a directory, a Workspace, a Branch. ``"branch"`` gives each branch files of its own.
    workspace: Any = _FilesOfCall()
    _declared_workspace: ClassVar[Any] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "workspace" in vars(cls):
            cls._declared_workspace = vars(cls)["workspace"]
            del cls.workspace

    def __init__(self, *, workspace: Any = None) -> None:
        if not self.model:
            self.model = parents_model.get()
        _check(self)
        self._workspace = workspace
        self._latest: Call | None = None
        self._history: History = []
        self.services = [tool for tool in self.tools if isinstance(tool, Service)]
        self._tools = self._collected()

    # Calling it

    def __call__(self, /, **inputs: Any) -> Any:
        """Run it: gives its output, or, where an event loop runs in this thread, something to await that does."""
        return _here(lambda: self._call(inputs))

    def run(self, /, **inputs: Any) -> Any:
        """Run it and wait for its output, wherever that is."""
        if not _is_in_loop():
            return asyncio.run(self._call(inputs))
        return _in_other_thread(lambda: asyncio.run(self._call(inputs)))

    def branch(self, module_class: type[Module], /, merge: Any = None, **inputs: Any) -> Any:
        """Run a branch of the call in which this is said, and tell its history what came of it.

        Gives the branch's output (or None), or something to await that does, like calling a module. Raises
        BranchError where the branch fails.
        """
        call = self._call_here()
        if call is None or call.loop is None:
            return _here(lambda: self._branch_afterwards(module_class, merge, inputs))
        branch = branch_by_hand(call, module_class, merge, inputs)
        if not _is_in_loop():
            return asyncio.run_coroutine_threadsafe(branch, call.loop).result()
        if asyncio.get_running_loop() is call.loop:
            return branch
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(branch, call.loop))

    @property
    def history(self) -> History:
        """What was said: in the call in which this code runs, else in the last one. It may be changed freely."""
        call = self._call_here() or self._latest
        return self._history if call is None else call.history

    @history.setter
    def history(self, history: History) -> None:
        call = self._call_here() or self._latest
        if call is None:
            self._history = history
        else:
            call.history = history

    # What a call needs of it

    @property
    def isolates_files(self) -> bool:
        """Whether branches of it, and itself as a branch, have files of their own."""
        return bool(self._declared_workspace == ISOLATED)

    def begin(self, parent: Call | None = None) -> Call:
        """A call that is not open yet; of a branch, where it has a parent."""
        tools = {tool.name: tool for tool in self._tools}
        if parent is not None:
            tools = {**parent.tools, **tools}
        named = self._workspace if self._workspace is not None else self._declared_workspace
        files = parent.files if parent is not None and named in (None, ISOLATED) else files_named(named)
        call = Call(self, list(tools.values()), parent, files)
        call.specials = special_tools(call)
        self._latest = call
        return call

    async def tell(self, call: Call, inputs: Mapping[str, Any]) -> None:
        """Put the system prompt before a call's history, and the inputs behind it."""
        call.history.insert(0, {"role": "system", "content": await self._prompt()})
        call.inherited += 1
        if self.initial_input is None:
            call.say(str(dict(inputs)))
        else:
            call.say(pydantic_to_xml(self.initial_input(**inputs), self.xml_input_root))

    async def _call(self, inputs: Mapping[str, Any]) -> BaseModel | None:
        call = self.begin()
        async with call.opened():
            await self.tell(call, inputs)
            return await call.run()

    async def _branch_afterwards(self, cls: type[Module], merge: Any, inputs: Mapping[str, Any]) -> BaseModel | None:
        history = self.history
        call = self.begin()
        call.history = history
        async with call.opened():
            return await branch_by_hand(call, cls, merge, inputs)

    async def _prompt(self) -> str:
        prompt = self.system_prompt
        if isinstance(prompt, Template):
            return prompt.render()
        if isinstance(prompt, Path):
            source = sys.modules[type(self).__module__].__dict__.get("__file__", "")
            return (Path(source).parent / prompt).read_text(encoding="utf-8")
        if callable(prompt):
            return str(await call_any(prompt))
        return str(prompt) or inspect.cleandoc(type(self).__doc__ or "")

    def _call_here(self) -> Call | None:
        """The call that code which runs now belongs to; a thread that somebody started belongs to the latest."""
        call = call_of(self)
        if call is None and self._latest is not None and self._latest.is_open:
            return self._latest
        return call

    def _files(self) -> Any:
        # A tool that a branch inherited works on the branch's files, though it is a method of the parent's module.
        own = self._call_here() or self._latest
        here = innermost() if call_of(self) is not None else own
        return files_named(self._workspace) if here is None else here.files

    def _collected(self) -> list[Tool]:
        found: dict[str, Tool] = {}
        marked = {name: None for cls in reversed(type(self).__mro__) for name, it in vars(cls).items() if is_tool(it)}
        own = [getattr(self, name) for name in marked if is_tool(getattr(self, name, None))]
        reserved = {FINISH, PARENT_TOOL} | ({BRANCH} if self.branches else set())
        reserved |= {SEARCH} if self.tool_discovery else set()
        for given in [*self.tools, *own]:
            for tool in given.get_tools() if isinstance(given, Service) else [Tool.of(given)]:
                if tool.name in found or tool.name in reserved:
                    raise ToolConflictError(f"Duplicate tool name: {tool.name}", tool=tool.name)
                found[tool.name] = tool
        return list(found.values())


def _check(module: Module) -> None:
    """Raise ValueError where what a class declares cannot be."""
    check_model(module.model)
    for fallback in module.model_fallbacks:
        check_model(fallback)
    check_cache(module.cache)
    for name in ("initial_input", "final_output"):
        declared = getattr(module, name)
        if declared is not None and not (isinstance(declared, type) and issubclass(declared, BaseModel)):
            raise ValueError(f"{name} must be a pydantic model, not {declared!r}")
    if module.max_steps is None and module.final_output is None:
        raise ValueError("a module of one turn (max_steps=None) must have a final_output")
    if module.tool_discovery not in (None, "search"):
        raise ValueError(f"tool_discovery is None or 'search', not {module.tool_discovery!r}")
    if not isinstance(module.branches, list):
        raise ValueError("branches must be a list of Module classes")
    names: set[str] = set()
    for cls in module.branches:
        if not (isinstance(cls, type) and issubclass(cls, Module)):
            raise ValueError(f"{cls!r} in branches must be a Module subclass")
        if cls.__name__ in names:
            raise ValueError(f"Duplicate branch class name: {cls.__name__}")
        names.add(cls.__name__)


def _is_in_loop() -> bool:
    return asyncio._get_running_loop() is not None


def _here(start: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """What a coroutine gives, or the coroutine itself where an event loop runs."""
    return start() if _is_in_loop() else asyncio.run(start())


def _in_other_thread(function: Callable[[], Any]) -> Any:
    """What a function gives that cannot be called in this thread; what it raises is raised here."""
    outcome: list[Any] = []
    failure: list[BaseException] = []
    context = contextvars.copy_context()

    def work() -> None:
        try:
            outcome.append(context.run(function))
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            failure.append(error)

    thread = threading.Thread(target=work, name="forkwise run", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
