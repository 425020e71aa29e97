"""Module: an agent with a declared input and output, which calls tools in a loop and spawns branches of itself.

The class says what the agent is; each call of an instance has a state of its own (see call.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel

from forkwise.concurrency import is_loop_running, run_on_shared_loop
from forkwise.modules.call import Call, branch_of, call_of, loop_here
from forkwise.modules.declaration import Declaration
from forkwise.modules.message_history import History
from forkwise.modules.spawn import begin, branch_by_hand, parents_model

__all__ = ["Module"]


class _FilesOfCall:
    """``self.workspace``: the files of the call in which code runs. A subclass says in its place what they are."""

    def __get__(self, module: Module | None, cls: type[Module]) -> Any:
        return self if module is None else _files(module)

    def __set__(self, module: Module, workspace: Any) -> None:
        module._declared.workspace = workspace


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

    #: How many turns it has. None is ten for what has tools or branches, else one, in which it must give its output.
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
    declared_workspace: ClassVar[Any] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "workspace" in vars(cls):
            cls.declared_workspace = vars(cls)["workspace"]
            del cls.workspace

    def __init__(self, *, workspace: Any = None) -> None:
        if not self.model:
            self.model = parents_model.get()
        _check_branches(self.branches)
        self._declared = Declaration(self, workspace)
        self._latest: Call | None = None
        self._history: History = []

    def __call__(self, /, **inputs: Any) -> Any:
        """Run it: gives its output, or, where an event loop runs in this thread, something to await that does."""
        return _here(_run(self, inputs))

    def run(self, /, **inputs: Any) -> Any:
        """Run it and wait for its output, wherever that is."""
        return run_on_shared_loop(_run(self, inputs), loop_here())

    def branch(self, module_class: Any, /, merge: Any = None, **inputs: Any) -> Any:
        """Run a branch of the call in which this is said, and tell its history what came of it.

        Gives the branch's output (or None), or something to await that does, like calling a module. Raises
        BranchError where the branch fails.
        """
        if not (isinstance(module_class, type) and issubclass(module_class, Module)):
            raise TypeError(f"a branch is a Module subclass, not {module_class!r}")
        call = _call_here(self)
        if call is None or call.loop is None:
            return _here(_branch_afterwards(self, module_class, merge, inputs))
        branch = branch_by_hand(call, module_class, merge, inputs)
        if not is_loop_running():
            return run_on_shared_loop(branch, call.loop)
        if asyncio.get_running_loop() is call.loop:
            return branch
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(branch, call.loop))

    @property
    def history(self) -> History:
        """What was said: in the call in which this code runs, else in the last one. It may be changed freely."""
        call = _call_here(self) or self._latest
        return self._history if call is None else call.history

    @history.setter
    def history(self, history: History) -> None:
        call = _call_here(self) or self._latest
        if call is None:
            self._history = history
        else:
            call.history = history


async def _run(module: Module, inputs: Mapping[str, Any]) -> BaseModel | None:
    call = module._latest = begin(module)
    async with call.opened():
        await call.tell(inputs)
        return await call.run()


async def _branch_afterwards(
    module: Module, cls: type[Module], merge: Any, inputs: Mapping[str, Any]
) -> BaseModel | None:
    """A branch of the last call, which is over."""
    history = module.history
    call = module._latest = begin(module)
    call.history = history
    async with call.opened():
        return await branch_by_hand(call, cls, merge, inputs)


def _call_here(module: Module) -> Call | None:
    """The call that code which runs now belongs to; a thread that somebody started belongs to the latest."""
    call = call_of(module)
    if call is None and module._latest is not None and module._latest.is_open:
        return module._latest
    return call


def _files(module: Module) -> Any:
    # A tool that a branch inherited works on the branch's files, though it is a method of the parent's module.
    call = branch_of(module) or module._latest
    return module._declared.files(None) if call is None else call.files


def _check_branches(branches: object) -> None:
    """Raise ValueError unless these are classes of modules, each by a name of its own."""
    if not isinstance(branches, list):
        raise ValueError("branches must be a list of Module classes")
    names: set[str] = set()
    for cls in branches:
        if not (isinstance(cls, type) and issubclass(cls, Module)):
            raise ValueError(f"{cls!r} in branches must be a Module subclass")
        if cls.__name__ in names:
            raise ValueError(f"Duplicate branch class name: {cls.__name__}")
        names.add(cls.__name__)


def _here(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine gives, or the coroutine itself where an event loop runs."""
    return coroutine if is_loop_running() else run_on_shared_loop(coroutine, loop_here())
