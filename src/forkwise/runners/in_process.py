"""The in-process runner: functions in threads or on the event loop of this program. Commands are for sandboxes."""

from __future__ import annotations

import asyncio
import time

from forkwise.runners.asking import Answer, ask
from forkwise.runners.protocol import Ended, Job, Runner
from forkwise.runners.sandboxed import SandboxRunner
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.threads import in_thread

__all__ = ["InProcessRunner"]

_GRACE = 1.0  # seconds that a coroutine gets to tidy up when it is cancelled


class InProcessRunner(Runner):
    """Runs functions in this process: a plain one in a thread of its own, an ``async`` one on the event loop.

    A thread cannot be killed. One that is over its time, or no longer wanted, is left to end by itself in a branch that
    is gone; nobody waits for it. An ``async`` function is cancelled, and must not block: nothing else runs meanwhile.
    Commands run in sandboxes, confined as ``confinement`` says.
    """

    def __init__(self, confinement: str | Confinement = "standard") -> None:
        self._commands = SandboxRunner(confinement)

    async def run(self, job: Job) -> Ended:
        if job.function is None:
            return await self._commands.run(job)
        path = await in_thread(lambda: job.branch.path)
        begun = time.monotonic()
        work = asyncio.create_task(ask(job.function, path))
        try:
            await asyncio.wait([work], timeout=job.timeout)
            is_late = not work.done()
        finally:
            await _end(work)
        wall = time.monotonic() - begun
        if is_late:
            return Ended("timeout", wall=wall, limit="wall")
        answer = work.result()
        if answer.error is not None:
            return Ended("raised", error=answer.error, wall=wall)
        return Ended("returned", answer.value, wall=wall)


async def _end(work: asyncio.Task[Answer]) -> None:
    """Cancel what is not done; what will not be cancelled is left behind, as a thread would be."""
    if work.done():
        return
    work.cancel()
    await asyncio.wait([work], timeout=_GRACE)
    if not work.done():
        asyncio.tasks._unregister_task(work)  # else the program's end would wait for its end
        work._log_destroy_pending = False  # type: ignore[attr-defined]
