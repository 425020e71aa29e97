"""The in-process runner: functions in threads or on the event loop of this program. Commands are for sandboxes."""

from __future__ import annotations

import asyncio
import time

from forkwise.runners.protocol import Ended, Job, Runner
from forkwise.runners.sandboxed import SandboxRunner
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.threads import call, in_thread

__all__ = ["InProcessRunner"]


class InProcessRunner(Runner):
    """Runs functions in this process: a plain one in a thread of its own, an ``async`` one on the event loop.

    A thread cannot be killed. One that is over its time, or no longer wanted, is left to end by itself in a branch that
    is gone; nobody waits for it. Commands run in sandboxes, confined as ``confinement`` says.
    """

    def __init__(self, confinement: str | Confinement = "standard") -> None:
        self._commands = SandboxRunner(confinement)

    async def run(self, job: Job) -> Ended:
        if job.function is None:
            return await self._commands.run(job)
        begun = time.monotonic()
        path = await in_thread(lambda: job.branch.path)
        work = asyncio.ensure_future(call(job.function, path))
        try:
            await asyncio.wait([work], timeout=job.timeout)
        finally:
            if not work.done():
                work.cancel()
        wall = time.monotonic() - begun
        if not work.done() or work.cancelled():
            return Ended("timeout", wall=wall, limit="wall")
        error = work.exception()
        return Ended("returned", work.result(), wall=wall) if error is None else Ended("raised", error=error, wall=wall)
