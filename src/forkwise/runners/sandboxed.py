"""The sandbox runner: commands and functions in sandboxes, each killed with all its descendants when its time is up."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

from forkwise.errors import ProcessBranchError
from forkwise.runners.protocol import Ended, Function, Job, Runner
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.context import BranchContext
from forkwise.sandbox.running import arun
from forkwise.sandbox.threads import in_thread

__all__ = ["SandboxRunner"]


#: Where a workspace inside a sandbox keeps its branches: the host's state is covered there, its /tmp is its own.
_STATE = "/tmp/.forkwise"


class SandboxRunner(Runner):
    """Runs each job in a sandbox of its own, confined as ``confinement`` says.

    A function runs in a fork of this process: it has what was in memory then, and what it changes there is lost. What
    it returns has to be expressible as JSON, and comes back as that. Either may itself branch the workspace that it
    sees; what it commits there is then part of its branch.
    """

    def __init__(self, confinement: str | Confinement = "standard") -> None:
        wanted = Confinement.preset(confinement)
        state = {"FORKWISE_STATE": _STATE} if wanted.read_only else {}
        self.confinement = replace(wanted, given={**state, **wanted.given})

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
        context = BranchContext(_InSandbox(function), job.branch, confinement=self.confinement)
        try:
            context.start()
            await _finish(context, job.timeout)
        except TimeoutError:
            return Ended("timeout", wall=time.monotonic() - begun, limit="wall")
        except (ProcessBranchError, OSError) as error:
            return Ended("raised", error=_told(context) or error, wall=time.monotonic() - begun)
        return Ended("returned", context.result.value, wall=time.monotonic() - begun)


async def _finish(context: BranchContext, timeout: float | None) -> None:
    """Wait for a target in a thread, which alone takes in its end; who is cancelled has it killed first."""
    work = in_thread(_wait, context, timeout)
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        context.kill()
        await asyncio.wait([work])
        work.exception()
        raise


def _wait(context: BranchContext, timeout: float | None) -> None:
    try:
        context.wait(timeout)
    finally:
        context.abort()


def _told(context: BranchContext) -> ProcessBranchError | None:
    """What a target raised, as far as it crossed; None where it did not come to run."""
    if context.pid is None or context.alive:
        return None
    try:
        result = context.result
    except ProcessBranchError:
        return None
    if result.error == ProcessBranchError.__name__:  # it raised nothing: this says how it was ended
        return ProcessBranchError(result.message)
    told = ProcessBranchError(f"{result.error}: {result.message or 'no message'}")
    if result.traceback:
        told.add_note(result.traceback)
    return told


class _InSandbox:
    """A function as it is called in a process that has no event loop, and whose result crosses as JSON."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(self, path: Path) -> Any:
        value = self._function(path)
        return _plain(asyncio.run(_await(value)) if inspect.isawaitable(value) else value)


async def _await(value: Awaitable[Any]) -> Any:
    return await value


def _plain(value: Any) -> Any:
    """Numbers and truth in types that JSON has; libraries for numbers have their own."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value] if len(value) == 2 else value
    if type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    is_foreign = isinstance(value, Real) and type(value).__module__ != "builtins"
    return float(value) if is_foreign else value


def _ignore(_stream: str, _piece: bytes) -> None:
    """For who does not want to see what a command prints; it must not fill a pipe that nobody reads."""
