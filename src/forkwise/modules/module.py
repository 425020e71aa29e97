"""`Module`: an agent with a declared input and output, which calls tools in a loop and spawns branches of itself.

The class declares the agent; each call of an instance has its own state (see call.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel

from forkwise.concurrency import is_loop_running, run_on_loop, run_sync
from forkwise.modules.call import Call, current_loop, find_branch_call, find_call
from forkwise.modules.declaration import Declaration
from forkwise.modules.message_history import History
from forkwise.modules.spawn import parent_model, prepare_call, run_branch

__all__ = ["Module"]


class _WorkspaceDescriptor:
    """``self.workspace``: the files of the call in which code runs. A subclass declares them by the same name."""

    def __get__(self, module: Module | None, cls: type[Module]) -> Any:
        return self if module is None else _files(module)

    def __set__(self, module: Module, workspace: Any) -> None:
        module._declared.workspace = workspace


class Module:
    """An agent, declared by the attributes of its class and called with its inputs.

    A call from blocking code returns the output; a call in a running event loop returns an awaitable. ``run`` always
    blocks. A method ``on_step(self, step)`` is called after each step, and ``on_stream(self, chunk)`` with each piece
    of a response if ``stream`` is set; both may be async.
    """

    #: ``"provider/name"``, ``"provider:name"``, a dict with ``id``, or a model object of pydantic-ai.
    model: Any = ""
    model_fallbacks: list[Any] = []  # noqa: RUF012 - subclasses replace the lists, they do not change them
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

    #: The number of steps. None means ten with tools or branches, else a single turn that must produce the output.
    max_steps: int | None = None
    max_parse_retries: int = 2
    #: Text, the Path of a file next to the class's, a Template, or a method; by default the class's docstring.
    system_prompt: Any = ""
    initial_input: type[BaseModel] | None = None
    final_output: type[BaseModel] | None = None
    xml_input_root: str = "input"
    xml_output_root: str = "output"
    tools: list[Any] = []  # noqa: RUF012
    tool_discovery: str | None = None
    branches: list[Any] = []  # noqa: RUF012

    #: Limits of a call with all its branches: levels, branches in all, branches at once, seconds, dollars.
    max_depth: int = 5
    max_branches: int | None = None
    max_parallel: int | None = None
    timeout: float | None = None
    budget: float | None = None

    #: The files it works on: a directory, a Workspace or a Branch. With ``"branch"`` each branch has its own files.
    workspace: Any = _WorkspaceDescriptor()
    declared_workspace: ClassVar[Any] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "workspace" in vars(cls):
            cls.declared_workspace = vars(cls)["workspace"]
            del cls.workspace

    def __init__(self, *, workspace: Any = None) -> None:
        if not self.model:
            self.model = parent_model.get()
        _check_branches(self.branches)
        self._declared = Declaration(self, workspace)
        self._latest: Call | None = None
        self._history: History = []

    def __call__(self, /, **inputs: Any) -> Any:
        """Run the module. Return its output, or an awaitable if an event loop runs in this thread."""
        return _run_or_return(_run(self, inputs))

    def run(self, /, **inputs: Any) -> Any:
        """Run the module and block until it returns its output, even inside an event loop."""
        return run_sync(_run(self, inputs), current_loop())

    def branch(self, module_class: Any, /, merge: Any = "end_result", **kwargs: Any) -> Any:
        """Run a branch of the call in which this code runs, and add its result to that call's history.

        ``kwargs`` are the branch's inputs. Returns the branch's output (or None), or an awaitable, as a call of a
        module does. Raises `BranchError` if the branch fails.
        """
        if not (isinstance(module_class, type) and issubclass(module_class, Module)):
            raise TypeError(f"a branch is a Module subclass, not {module_class!r}")
        call = _current_call(self)
        if call is None or call.loop is None:
            return _run_or_return(_branch_last_call(self, module_class, merge, kwargs))
        branch = run_branch(call, module_class, merge, kwargs)
        if not is_loop_running():
            return run_sync(branch, call.loop)
        if asyncio.get_running_loop() is call.loop:
            return branch
        return run_on_loop(branch, call.loop)

    @property
    def history(self) -> History:
        """The history of the call in which this code runs, else of the last call. It may be changed."""
        call = _current_call(self) or self._latest
        return self._history if call is None else call.history

    @history.setter
    def history(self, history: History) -> None:
        call = _current_call(self) or self._latest
        if call is None:
            self._history = history
        else:
            call.history = history


async def _run(module: Module, inputs: Mapping[str, Any]) -> BaseModel | None:
    call = module._latest = prepare_call(module)
    async with call.open():
        await call.add_inputs(inputs)
        return await call.run()


async def _branch_last_call(
    module: Module, cls: type[Module], merge: Any, inputs: Mapping[str, Any]
) -> BaseModel | None:
    """Run a branch of the last call, which has ended."""
    history = module.history
    call = module._latest = prepare_call(module)
    call.history = history
    async with call.open():
        return await run_branch(call, cls, merge, inputs)


def _current_call(module: Module) -> Call | None:
    """Return the call in which this code runs. A thread without a call belongs to the latest open one."""
    call = find_call(module)
    if call is None and module._latest is not None and module._latest.is_open:
        return module._latest
    return call


def _files(module: Module) -> Any:
    # A tool that a branch inherited works on the branch's files, though it is a method of the parent's module.
    call = find_branch_call(module) or module._latest
    return module._declared.files(None) if call is None else call.files


def _check_branches(branches: object) -> None:
    """Raise ValueError unless ``branches`` is a list of Module classes with different names."""
    if not isinstance(branches, list):
        raise ValueError("branches must be a list of Module classes")
    names: set[str] = set()
    for cls in branches:
        if not (isinstance(cls, type) and issubclass(cls, Module)):
            raise ValueError(f"{cls!r} in branches must be a Module subclass")
        if cls.__name__ in names:
            raise ValueError(f"Duplicate branch class name: {cls.__name__}")
        names.add(cls.__name__)


def _run_or_return(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine, or the coroutine itself if an event loop runs in this thread."""
    return coroutine if is_loop_running() else run_sync(coroutine, current_loop())
