"""Runners: execute a job, a function or a command, in a branch and report how it ended.

``InProcessRunner`` calls functions in threads or on the event loop; ``SandboxRunner`` forks them into sandboxes.
Commands always run in sandboxes.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.concurrency import CallResult, finish, finish_then_cancel, run_in_thread, try_call
from forkwise.errors import ProcessBranchError, ServerError
from forkwise.fork.agent_paths.logins import take_logins
from forkwise.fork.agent_paths.paths import AgentPaths, create_missing
from forkwise.fork.fault import find_fault
from forkwise.fork.run_end import RunEnd, find_success, is_pair, is_real
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.network.gateway import NetworkLog, open_logged_network, resolve_network
from forkwise.sandbox.run import arun_in_branch
from forkwise.servers.server_group import ServerOutput, serve
from forkwise.text.redaction import add_secrets

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.fork.evaluation import Evaluator
    from forkwise.sandbox.context import BranchContext
    from forkwise.sandbox.network.space import NetworkSpace
    from forkwise.sandbox.process import Finished
    from forkwise.servers.server_file import Server
    from forkwise.testing.baseline import Baseline

__all__ = [
    "Function",
    "InProcessRunner",
    "Job",
    "Runner",
    "SandboxRunner",
    "run_function",
]


#: A function that is called with the branch's directory; its return value may be awaitable.
Function = Callable[[Path], Any]


@dataclass(frozen=True, slots=True)
class Job:
    """A function or a command (``argv``), and the branch in which to run it. ``timeout`` limits its wall-clock time.

    ``environment`` is added to a command's environment, ``writable`` to the paths it may write. ``on_output`` is called
    with ``"stdout"`` or ``"stderr"`` and each piece of its output, ``on_server_output`` with that of its servers.
    ``network_log`` opens the file that a command's connections are logged in, and returns its descriptor.

    ``tests`` are pairs of an evaluator and its baseline, for a runner that can judge a success where it ran, unless
    ``must_change`` says that it had to change something and it did not. ``has_feedback`` is that of the candidate.
    """

    branch: Branch
    function: Function | None = None
    argv: Sequence[str] | None = None
    timeout: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    writable: tuple[str, ...] = ()
    on_output: Callable[[str, bytes], None] | None = None
    on_server_output: ServerOutput | None = None
    network_log: NetworkLog | None = None
    tests: tuple[tuple[Evaluator, Baseline | None], ...] = ()
    must_change: bool = False
    has_feedback: bool = False


class Runner(ABC):
    """Runs jobs. ``run`` may be awaited for many jobs at once.

    ``max_parallel`` is how many jobs of a fork run at once by default; None depends on this machine. If ``is_remote``,
    jobs run on other machines, and their branches here change only when they end.
    """

    max_parallel: int | None = None
    is_remote: bool = False

    @abstractmethod
    async def run(self, job: Job) -> RunEnd:
        """Run a job to its end. Cancellation first kills the job and its descendants, if the runner can."""


#: The state directory for a workspace inside a sandbox: the host's is hidden there, and the sandbox has its own /tmp.
_SANDBOX_STATE = "/tmp/.forkwise"


class SandboxRunner(Runner):
    """Runs each job in a separate sandbox with ``confinement``.

    A function runs in a fork of this process: it sees a copy of the memory, and its changes to it are lost. Its return
    value is returned as JSON; a value that JSON cannot express is returned as True or False, its ``bool()``. A job may
    itself branch the workspace that it sees; what it commits there becomes part of its branch.

    The preset ``standard``, given by its name, has the network ``auto``: each command has ports of its own.

    ``agent_paths`` says what is taken from the ``branched`` paths of the confinement: refreshed logins when a command
    is over, and sessions of the winner. Commands start in ``subdirectory`` of their branch.

    ``servers`` run in the branch of each command while it runs, confined by ``server_confinement``, in a network that
    they share with the command; with ``servers_use_host`` that is the host's. A function runs in a fork of this
    process, which cannot join another network: it gets servers only with ``servers_use_host``, and a fault otherwise.
    """

    def __init__(
        self,
        confinement: str | Confinement = "standard",
        agent_paths: AgentPaths | None = None,
        *,
        subdirectory: str = "",
        servers: Sequence[Server] = (),
        server_confinement: str | Confinement = "standard",
        servers_use_host: bool = False,
    ) -> None:
        self._agent_paths = agent_paths
        self._subdirectory = subdirectory
        self._servers = tuple(servers)
        self._servers_use_host = servers_use_host
        self._server_confinement = Confinement.preset(server_confinement)
        base = Confinement.preset(confinement)
        if confinement == "standard":
            base = replace(base, network="auto")
        state = {"FORKWISE_STATE": _SANDBOX_STATE} if base.read_only else {}
        self.confinement = replace(base, given={**state, **base.given})
        add_secrets(base.given)

    async def run(self, job: Job) -> RunEnd:
        return await (self._run_command(job) if job.function is None else self._run_function(job, job.function))

    async def _run_command(self, job: Job) -> RunEnd:
        assert job.argv is not None
        confinement = replace(
            self.confinement,
            writable=(*self.confinement.writable, *job.writable),
            given={**self.confinement.given, **job.environment},
        )
        started = time.monotonic()
        if self._agent_paths is not None and confinement.branched:
            home = None if confinement.landlock_instead else confinement.find_home(confinement.environment(os.environ))
            missing = confinement.missing_directories()
            created = await finish_then_cancel(run_in_thread(create_missing, job.branch, missing, home))
        else:
            created = []
        paths = [*confinement.branched_paths(), *created]
        if self._agent_paths is not None and paths:
            await finish_then_cancel(run_in_thread(self._agent_paths.prepare, job.branch, paths))
        done: Finished | None = None
        try:
            async with (
                self._open_network(confinement, job) as space,
                serve(
                    self._servers,
                    job.branch,
                    confinement=self._server_confinement,
                    space=space,
                    uses_host_network=space is None,
                    on_output=job.on_server_output,
                ) as group,
            ):
                done = await arun_in_branch(
                    job.branch,
                    job.argv,
                    confinement=confinement,
                    timeout=job.timeout,
                    cwd=self._subdirectory or None,
                    capture=False,
                    on_output=job.on_output or _discard_output,
                    space=group.space,
                )
        except ServerError as error:
            wall = time.monotonic() - started
            return RunEnd("raised", error=error, wall=wall, fault="server", has_started=done is not None)
        except (ProcessBranchError, OSError) as error:
            return _end_with_error(error, time.monotonic() - started)
        finally:
            if self._agent_paths is not None and paths:
                await finish_then_cancel(run_in_thread(take_logins, job.branch))
        return RunEnd(
            done.ending,
            exit_code=done.returncode,
            wall=done.wall,
            cpu=done.cpu,
            memory=done.memory,
            limit=done.limit,
            # If the caller kills a whole sandbox, this line is not reached; so without a limit, it was killed from
            # outside.
            fault="sandbox" if done.ending == "killed" and done.limit is None else None,
        )

    @asynccontextmanager
    async def _open_network(self, confinement: Confinement, job: Job) -> AsyncIterator[NetworkSpace | None]:
        """Open the network of a command, registered for its branch, until the end of the block; None for the host's."""
        if self._servers and not self._servers_use_host and confinement.network == "host":
            confinement = replace(confinement, network="auto")
        wanted = await finish_then_cancel(run_in_thread(resolve_network, confinement))
        if wanted.network == "host":
            yield None
            return
        work = run_in_thread(_open_registered, wanted, job)
        try:
            space = await asyncio.shield(work)
        except asyncio.CancelledError:
            with suppress(ProcessBranchError, OSError):  # the cancellation takes precedence
                await finish(run_in_thread((await finish(work)).close))
            raise
        try:
            yield space
        finally:
            await finish(run_in_thread(space.close))

    async def _run_function(self, job: Job, function: Function) -> RunEnd:
        from forkwise.sandbox.context import BranchContext  # noqa: PLC0415 - commands need neither it nor pydantic

        started = time.monotonic()
        if self._servers and not self._servers_use_host:
            error = ServerError(
                f"server {self._servers[0].name!r} was not started: a function runs in a fork of this process, which "
                "cannot join the network of its branch's servers. Make the attempt a command, leave out servers= of "
                "the runner (tests have servers of their own), or start them on this machine's network with "
                "servers_use_host=True",
                server=self._servers[0].name,
            )
            return RunEnd("raised", error=error, fault="server", has_started=False)
        context = BranchContext(_InSandbox(function), job.branch, confinement=self.confinement)
        try:
            async with serve(
                self._servers,
                job.branch,
                confinement=self._server_confinement,
                uses_host_network=True,
                on_output=job.on_server_output,
            ):
                context.start()
                await _wait_for_target(context, job.timeout)
        except ServerError as error:
            wall = time.monotonic() - started
            return RunEnd("raised", error=error, wall=wall, fault="server", has_started=context.pid is not None)
        except TimeoutError:
            return RunEnd("timeout", wall=time.monotonic() - started, limit="wall")
        except (ProcessBranchError, OSError) as error:
            wall = time.monotonic() - started
            if context.is_killed:  # not by this process, which waits for it
                return RunEnd("killed", wall=wall, fault="sandbox")
            raised = _raised_error(context)
            return _end_with_error(error, wall) if raised is None else RunEnd("raised", error=raised, wall=wall)
        success, value, has_score = context.result.value
        value = tuple(value) if has_score else value
        return RunEnd("returned", value, wall=time.monotonic() - started, success=success)


def _open_registered(confinement: Confinement, job: Job) -> NetworkSpace:
    space = open_logged_network(confinement, job.network_log)
    try:
        space.register(job.branch)
    except BaseException:
        space.close()
        raise
    return space


def _end_with_error(error: ProcessBranchError | OSError, wall: float) -> RunEnd:
    """Build the end of a job whose sandbox failed."""
    fault = find_fault(error) or ("system" if isinstance(error, OSError) else None)
    return RunEnd("raised", error=error, wall=wall, fault=fault, has_started=fault is None)


async def _wait_for_target(context: BranchContext, timeout: float | None) -> None:
    """Wait for a target in a thread, the only reader of its result. On cancellation, kill the target first."""
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


def _raised_error(context: BranchContext) -> ProcessBranchError | None:
    """Rebuild the exception that the target raised from its JSON; None if the target never ran."""
    if context.pid is None or context.alive:
        return None
    try:
        result = context.result
    except ProcessBranchError:
        return None
    if result.error == ProcessBranchError.__name__:  # the target raised nothing; this describes how it ended
        return ProcessBranchError(result.message)
    error = ProcessBranchError(f"{result.error}: {result.message or 'no message'}")
    if result.traceback:
        error.add_note(result.traceback)
    return error


class _InSandbox:
    """A function, called in a process without an event loop, whose result is sent back as JSON.

    The answer is a list: whether it succeeded, the value, and whether the value is a tuple.
    """

    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(self, path: Path) -> Any:
        from pydantic_core import PydanticSerializationError, from_json, to_json  # noqa: PLC0415 - loaded before the fork

        value = self._function(path)
        value = asyncio.run(_await(value)) if inspect.isawaitable(value) else value
        success = find_success(value)
        if is_pair(value):
            return [success, [success, _to_json_number(value[1])], isinstance(value, tuple)]
        try:
            if isinstance(value, Iterator):
                raise ValueError("JSON would consume it, perhaps without end")
            from_json(to_json(value, inf_nan_mode="constants"))
        except (PydanticSerializationError, ValueError, RecursionError):
            value = success
        return [success, _to_json_number(value), isinstance(value, tuple)]


async def _await(value: Awaitable[Any]) -> Any:
    return await value


def _to_json_number(value: Any) -> Any:
    """Convert a number or bool of another library, such as NumPy, to a type that JSON has."""
    if type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    is_foreign = type(value).__module__ != "builtins" and is_real(value)
    return float(value) if is_foreign else value


def _discard_output(_stream: str, _piece: bytes) -> None:
    """Discard a piece of output. A command without a reader would block once its pipe is full."""


_GRACE = 1.0  # seconds for a cancelled coroutine to clean up


class InProcessRunner(Runner):
    """Runs functions in this process: a plain one in its own thread, an ``async`` one on the event loop.

    A thread cannot be killed. One that timed out, or whose fork was decided, is left to end by itself in a branch that
    no longer exists; forkwise does not wait for it. An ``async`` function is cancelled, and must not block the event
    loop. Commands run in sandboxes with ``confinement``.
    """

    def __init__(self, confinement: str | Confinement = "standard") -> None:
        self._commands = SandboxRunner(confinement)

    async def run(self, job: Job) -> RunEnd:
        if job.function is None:
            return await self._commands.run(job)
        return await run_function(job.function, await run_in_thread(lambda: job.branch.path), job.timeout)


async def run_function(function: Function, path: Path, timeout: float | None = None) -> RunEnd:
    """Run a function in this process, as `InProcessRunner` does."""
    started = time.monotonic()
    work = asyncio.create_task(_call(function, path))
    try:
        await asyncio.wait([work], timeout=timeout)
        is_late = not work.done()
    finally:
        await _cancel(work)
    wall = time.monotonic() - started
    if is_late:
        return RunEnd("timeout", wall=wall, limit="wall")
    result = work.result()
    if result.error is not None:
        return RunEnd("raised", result.value, error=result.error, wall=wall)
    value, success = result.value
    return RunEnd("returned", value, wall=wall, success=success)


async def _call(function: Function, path: Path) -> CallResult:
    """Call a function. The result is a pair of its value and `find_success` of that, or an error."""
    result = await try_call(function, path)
    if result.error is not None:
        return result
    if isinstance(result.value, bool):
        return CallResult((result.value, result.value))
    success = await try_call(find_success, result.value)
    return CallResult(result.value, success.error) if success.error else CallResult((result.value, success.value))


async def _cancel(work: asyncio.Task[CallResult]) -> None:
    """Cancel an unfinished task. A task that ignores that is abandoned, like a thread."""
    if work.done():
        return
    work.cancel()
    await asyncio.wait([work], timeout=_GRACE)
    if not work.done():
        asyncio.tasks._unregister_task(work)  # otherwise asyncio.run would wait for it at exit
        work._log_destroy_pending = False  # type: ignore[attr-defined]
