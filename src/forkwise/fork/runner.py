"""The in-process runner: functions in threads or on the event loop of this program. Commands are for sandboxes."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from forkwise.concurrency import CallResult, run_in_thread, try_call
from forkwise.errors import ProcessBranchError
from forkwise.files.branch import Branch
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.context import BranchContext
from forkwise.sandbox.run import arun_in_branch

__all__ = [
    "Ended",
    "Ending",
    "Function",
    "InProcessRunner",
    "Job",
    "Runner",
    "SandboxRunner",
]


Ending = Literal["returned", "raised", "exit", "signal", "timeout", "out of memory", "killed"]

#: A function that is called with the branch's directory; what it returns may be awaitable.
Function = Callable[[Path], Any]


@dataclass(frozen=True, slots=True)
class Job:
    """A function or a command (``argv``), and the branch in which it is to run. ``timeout`` is its own wall clock.

    ``environment`` is added to a command's, ``writable`` to what it may write; ``on_output`` is called with
    ``"stdout"`` or ``"stderr"`` and each piece of what it prints.
    """

    branch: Branch
    function: Function | None = None
    argv: Sequence[str] | None = None
    timeout: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    writable: tuple[str, ...] = ()
    on_output: Callable[[str, bytes], None] | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended: a function ``returned`` its ``value`` or ``raised`` an ``error``, a command came to its
    ``exit_code``, or it was stopped. ``limit`` names the limit that stopped it."""

    ending: Ending
    value: Any = None
    error: BaseException | None = None
    exit_code: int | None = None
    wall: float = 0.0
    cpu: float | None = None
    memory: int | None = None
    limit: str | None = None


class Runner(ABC):
    """A place where jobs run. ``run`` may be awaited for many jobs at once."""

    @abstractmethod
    async def run(self, job: Job) -> Ended:
        """Run a job to its end. Cancelled, it ends the job first, with all descendants, where that can be done."""


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
            done = await arun_in_branch(
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
    work = run_in_thread(_wait, context, timeout)
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
        path = await run_in_thread(lambda: job.branch.path)
        begun = time.monotonic()
        work = asyncio.create_task(try_call(job.function, path))
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


async def _end(work: asyncio.Task[CallResult]) -> None:
    """Cancel what is not done; what will not be cancelled is left behind, as a thread would be."""
    if work.done():
        return
    work.cancel()
    await asyncio.wait([work], timeout=_GRACE)
    if not work.done():
        asyncio.tasks._unregister_task(work)  # else the program's end would wait for its end
        work._log_destroy_pending = False  # type: ignore[attr-defined]
