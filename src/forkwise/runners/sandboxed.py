"""The sandbox runner: commands and functions in sandboxes, each killed with all its descendants when its time is up."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from forkwise.errors import ProcessBranchError
from forkwise.runners.protocol import Ended, Function, Job, Runner
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.context import BranchContext
from forkwise.sandbox.running import arun
from forkwise.sandbox.threads import in_thread

__all__ = ["SandboxRunner"]


class SandboxRunner(Runner):
    """Runs each job in a sandbox of its own, confined as ``confinement`` says.

    A function runs in a fork of this process: it has what was in memory then, and what it changes there is lost. What
    it returns has to be expressible as JSON, and comes back as that.
    """

    def __init__(self, confinement: str | Confinement = "standard") -> None:
        self.confinement = Confinement.preset(confinement)

    async def run(self, job: Job) -> Ended:
        return await (self._command(job) if job.function is None else self._function(job, job.function))

    async def _command(self, job: Job) -> Ended:
        assert job.argv is not None
        confinement = replace(self.confinement, writable=(*self.confinement.writable, *job.writable))
        begun = time.monotonic()
        try:
            done = await arun(
                job.branch,
                job.argv,
                confinement=confinement,
                timeout=job.timeout,
                capture=False,
                env={**os.environ, **job.environment},
                on_output=job.on_output or _ignore,
            )
        except (ProcessBranchError, OSError) as error:
            return Ended("raised", error=error, wall=time.monotonic() - begun)
        return Ended(
            done.ending,
            exit_code=done.returncode,
            wall=done.wall,
            cpu=done.cpu,
            memory=done.memory,
            limit=done.limit,
        )

    async def _function(self, job: Job, function: Function) -> Ended:
        begun = time.monotonic()
        target = _Synchronous(function) if _is_async(function) else function
        context = BranchContext(target, job.branch, confinement=self.confinement)
        try:
            context.start()
            await in_thread(context.wait, job.timeout)
        except TimeoutError:
            return Ended("timeout", wall=time.monotonic() - begun, limit="wall")
        except (ProcessBranchError, OSError) as error:
            return Ended("raised", error=_told(context) or error, wall=time.monotonic() - begun)
        finally:
            context.abort()
        return Ended("returned", context.result.value, wall=time.monotonic() - begun)


def _told(context: BranchContext) -> ProcessBranchError | None:
    """What a target raised, as far as it crossed; None where it did not come to run."""
    if context.pid is None or context.alive:
        return None
    try:
        result = context.result
    except ProcessBranchError:
        return None
    told = ProcessBranchError(f"{result.error}: {result.message}")
    if result.traceback:
        told.add_note(result.traceback)
    return told


class _Synchronous:
    """An ``async`` function as one that can be called in a process that has no event loop."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(self, path: Path) -> Any:
        return asyncio.run(self._function(path))


def _is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function))


def _ignore(_stream: str, _piece: bytes) -> None:
    """For who does not want to see what a command prints; it must not fill a pipe that nobody reads."""
