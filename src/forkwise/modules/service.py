"""`Service`: a resource that several tools share (a connection, a store), set up before a module runs.

Users are counted: the first sets the service up and the last tears it down, in whichever branch, task or thread.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
import warnings
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from forkwise.concurrency import call_any
from forkwise.errors import ForkwiseWarning, ServiceError
from forkwise.modules.tools import Tool, is_tool

__all__ = ["Service"]


class Service:
    """A base class: override ``setup`` and ``teardown`` as needed, and add a method with ``@tool`` for each tool.

    ``async with service:`` uses the service. Its tools are named ``<class>__<method>``.
    """

    _lock: threading.Lock
    _users: int
    _change: Future[None] | None

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        service = super().__new__(cls)
        service._lock = threading.Lock()
        service._users = 0
        service._change = None  # completes when the running setup or teardown ends
        return service

    @property
    def name(self) -> str:
        """The name in messages."""
        return type(self).__name__

    @property
    def description(self) -> str:
        """The description, from the class's docstring."""
        return inspect.getdoc(type(self)) or ""

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

    async def __aenter__(self) -> Self:
        if not await self._join():
            try:
                await call_any(self.setup)
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
        try:
            await call_any(self.teardown)
        except Exception as failure:  # noqa: BLE001 - a warning, because the module's output must not be lost
            message = f"Service {self.name!r} teardown failed: {type(failure).__name__}: {failure}"
            warnings.warn(message, ForkwiseWarning, stacklevel=2)
        finally:
            self._end_change(users=0)

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
        assert change is not None
        change.set_result(None)
