"""`Service`: a resource that several tools share (a connection, a store), set up before a module runs.

Users are counted: the first sets the service up and the last tears it down, in whichever branch, task or thread. If a
service has plain functions, all its code runs in one thread, because some resources, such as SQLite connections, work
only in the thread that opened them.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial, wraps
from types import TracebackType
from typing import Any, Self

from forkwise.concurrency import LoopThread, call_any
from forkwise.errors import ForkwiseWarning, ServiceError
from forkwise.modules.tools import Tool, is_tool

__all__ = ["Service"]


class Service:
    """A base class: override ``setup`` and ``teardown`` as needed, and add a method with ``@tool`` for each tool.

    ``async with service:`` uses the service. Its tools are named ``<class>__<method>``. Unless ``setup`` and all tools
    are async, the service has its own thread: while it is in use, its public methods run there, one after another.
    """

    _lock: threading.Lock
    _users: int
    _change: Future[None] | None
    _thread: LoopThread | None

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        for name in dir(cls):
            method = inspect.getattr_static(cls, name)
            if not name.startswith("_") and name not in _OWN_METHODS and _is_wrappable(method):
                setattr(cls, name, _dispatch(method, lambda args: args[0]))

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        service = super().__new__(cls)
        service._lock = threading.Lock()
        service._users = 0
        service._change = None  # completes when the running setup or teardown ends
        service._thread = None
        return service

    @property
    def name(self) -> str:
        """The name in messages."""
        return type(self).__name__

    @property
    def description(self) -> str:
        """The description: the class's own docstring, empty if it has none."""
        return inspect.cleandoc(type(self).__doc__ or "")

    async def setup(self) -> None:
        """Set the service up, before its first use."""

    async def teardown(self) -> None:
        """Release the service's resources, after its last use."""

    async def health(self) -> bool:
        """Return whether the service works."""
        return True

    def get_tools(self) -> list[Tool]:
        """Return the methods that are tools, with names prefixed by the service's."""
        prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", self.name).lower()
        names = [name for name in dir(type(self)) if is_tool(getattr(type(self), name))]
        return [Tool.of(getattr(self, name), name=f"{prefix}__{name}") for name in names]

    def build_tools(self) -> list[Tool]:
        """Return the tools of `get_tools`. Functions among them run in the service's thread, if it has one."""
        return [self._bind(Tool.of(tool)) for tool in self.get_tools()]

    def _bind(self, tool: Tool) -> Tool:
        if not inspect.isfunction(tool.function):
            return tool  # a method
        return Tool.of(_dispatch(tool.function, lambda _: self), name=tool.name)

    async def __aenter__(self) -> Self:
        if not await self._join():
            try:
                self._thread = LoopThread(f"forkwise service {self.name}") if self._has_plain_functions() else None
                await self._run(self.setup)
            except BaseException as error:
                self._end_change(users=0)
                if isinstance(error, Exception):
                    raise ServiceError(f"Service {self.name!r} setup failed: {error}", service=self.name) from error
                raise
            self._end_change(users=1)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self._begin_change()
        if self._thread is not None and self._thread.is_busy:
            # A tool that was abandoned, such as after a timeout, still runs and cannot be killed: do not wait for it.
            self._thread.submit(self.teardown).add_done_callback(self._finish_teardown)
            return
        try:
            await self._run(self.teardown)
        except Exception as failure:  # noqa: BLE001 - a warning, because the module's output must not be lost
            self._warn(failure)
        finally:
            self._end_change(users=0)

    def _finish_teardown(self, done: Future[Any]) -> None:
        self._end_change(users=0)
        if (failure := done.exception()) is not None:
            self._warn(failure)

    def _warn(self, failure: BaseException) -> None:
        message = f"Service {self.name!r} teardown failed: {type(failure).__name__}: {failure}"
        warnings.warn(message, ForkwiseWarning, stacklevel=2)

    def _has_plain_functions(self) -> bool:
        if type(self).get_tools is not Service.get_tools:
            return True  # a subclass's own get_tools may return plain functions
        tools = [tool for name in dir(type(self)) if is_tool(tool := getattr(type(self), name))]
        return not all(map(inspect.iscoroutinefunction, [self.setup, self.teardown, *tools]))

    async def _run(self, function: Callable[[], Any]) -> None:
        await (call_any(function) if self._thread is None else self._thread.run(function))

    async def _join(self) -> bool:
        """Become a user if the service is up. Otherwise return False: the caller alone must set it up."""
        while True:
            with self._lock:
                if self._change is None:
                    if not self._users:
                        self._begin_change()
                        return False
                    self._users += 1
                    return True
                change = self._change
            await asyncio.wrap_future(change)

    def _begin_change(self) -> None:
        self._change = Future()
        self._change.set_running_or_notify_cancel()  # so that a cancelled waiter cannot cancel it

    def _end_change(self, *, users: int) -> None:
        with self._lock:
            change, self._change = self._change, None
            self._users = users
            if not users and self._thread is not None:
                self._thread.stop()
                self._thread = None
        assert change is not None
        change.set_result(None)


_OWN_METHODS = ("get_tools", "setup", "teardown")


def _is_wrappable(method: object) -> bool:
    """Return whether a class attribute is a method of a subclass that runs in the service's thread."""
    return (
        inspect.isfunction(method)
        and method is not Service.health
        and not hasattr(method, "_forkwise_dispatched")
        and not inspect.isgeneratorfunction(method)
        and not inspect.isasyncgenfunction(method)
    )


def _dispatch(function: Callable[..., Any], find_service: Callable[[tuple[Any, ...]], Service]) -> Callable[..., Any]:
    """Return a function that runs in a service's thread while the service is in use, whichever thread calls it.

    ``find_service`` is called with the arguments.
    """

    def find_thread(args: tuple[Any, ...]) -> LoopThread | None:
        thread = find_service(args)._thread
        return thread if thread is not None and thread.can_wait else None

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def dispatched(*args: Any, **kwargs: Any) -> Any:
            thread = find_thread(args)
            return await (
                function(*args, **kwargs) if thread is None else thread.run(partial(function, *args, **kwargs))
            )
    else:

        @wraps(function)
        def dispatched(*args: Any, **kwargs: Any) -> Any:
            thread = find_thread(args)
            if thread is None:
                return function(*args, **kwargs)
            return thread.submit(partial(function, *args, **kwargs)).result()

    dispatched._forkwise_dispatched = True  # type: ignore[attr-defined]
    return dispatched
