"""Service: something that several tools share (a connection, a store), set up before a module runs and torn down after.

Who shares one counts: it is set up by its first user and torn down by its last, whichever branch, task or thread
that is.
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
    """To be subclassed: ``setup`` and ``teardown`` as needed, and a method with ``@tool`` for each tool.

    ``async with service:`` is a use of it; the tools are named ``<class>__<method>``.
    """

    _lock: threading.Lock
    _users: int
    _change: Future[None] | None

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        service = super().__new__(cls)
        service._lock = threading.Lock()
        service._users = 0
        service._change = None  # done when the setup or teardown that is under way is over
        return service

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return type(self).__name__

    @property
    def description(self) -> str:
        """What it is, from its docstring."""
        return inspect.getdoc(type(self)) or ""

    async def setup(self) -> None:
        """Make it ready; called before its first use."""

    async def teardown(self) -> None:
        """Give back what it holds; called after its last use."""

    async def health(self) -> bool:
        """Whether it works."""
        return True

    def get_tools(self) -> list[Tool]:
        """Its methods that are tools, by names that tell whose they are."""
        prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", self.name).lower()
        names = [name for name in dir(type(self)) if is_tool(getattr(type(self), name))]
        return [Tool.of(getattr(self, name), name=f"{prefix}__{name}") for name in names]

    async def __aenter__(self) -> Self:
        if not await self._joined():
            try:
                await call_any(self.setup)
            except BaseException as error:
                self._over(users=0)
                if isinstance(error, Exception):
                    raise ServiceError(f"Service {self.name!r} setup failed: {error}", service=self.name) from error
                raise
            self._over(users=1)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self._begin()
        try:
            await call_any(self.teardown)
        except Exception as failure:  # noqa: BLE001 - what the module gave must not be lost for it, so it is said
            message = f"Service {self.name!r} teardown failed: {type(failure).__name__}: {failure}"
            warnings.warn(message, ForkwiseWarning, stacklevel=2)
        finally:
            self._over(users=0)

    async def _joined(self) -> bool:
        """Become a user of what is up; else it is up to the caller to set it up, and nobody else does meanwhile."""
        while True:
            with self._lock:
                if self._change is None:
                    if not self._users:
                        self._begin()
                        return False
                    self._users += 1
                    return True
                change = self._change
            await asyncio.wrap_future(change)

    def _begin(self) -> None:
        self._change = Future()
        self._change.set_running_or_notify_cancel()  # so that whoever stops waiting for it does not cancel it

    def _over(self, *, users: int) -> None:
        with self._lock:
            change, self._change = self._change, None
            self._users = users
        assert change is not None
        change.set_result(None)
