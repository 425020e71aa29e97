"""BranchContext: a Python function that runs in a sandboxed child of this process, and returns its result as data.

The forkserver makes the sandbox and its init; this process forks a child into it. As after any fork, in a program with
threads the function must not need a lock that another thread held.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from forkwise.errors import ForkError, NamespaceError, ProcessBranchError
from forkwise.files.branch import Branch
from forkwise.linux import fds
from forkwise.sandbox.child import (
    Entrance,
    ForkedChild,
    FunctionCall,
    Result,
    block_signals,
    make_answer_memory,
    read_answer,
)
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.jail_plan import PrivateMount, find_temporary, list_layers, plan_jail, plan_landlock, reserved
from forkwise.sandbox.launcher import start_sandbox
from forkwise.sandbox.limits import Supervision
from forkwise.sandbox.network.uplink import Uplink
from forkwise.sandbox.process import Finished, SandboxProcess, is_refusal, signal_name

if TYPE_CHECKING:
    from forkwise.sandbox.jail import Jail

__all__ = ["BranchContext", "Result"]

_INIT_EXIT_TIMEOUT_S = 5.0  # of an init process that no child can be forked into


class BranchContext:
    """A function that runs in a sandbox of its own, with one directory it may write to.

    ``target`` is called with the directory as a ``Path``. Returning is success, raising is failure, and the returned
    value must be expressible as JSON. With ``close_fds``, and always under ``strict``, the child keeps only stdin,
    stdout and stderr; otherwise it has the descriptors that this process has open, as after any fork. If ``workspace``
    is a branch and not a directory, the target sees it at its workspace's own path.
    """

    def __init__(
        self,
        target: Callable[[Path], Any],
        workspace: str | os.PathLike[str] | Branch,
        *,
        close_fds: bool = False,
        confinement: str | Confinement = "standard",
    ) -> None:
        self._owner = fds.process_token()
        self._target = target
        self._branch = workspace if isinstance(workspace, Branch) else None
        self._workspace = os.path.realpath(workspace.workspace.path if isinstance(workspace, Branch) else workspace)
        wanted = Confinement.preset(confinement)
        if wanted.network == "proxy":
            raise NamespaceError(
                "a function cannot use the network 'proxy', which is for commands: use 'host', 'none' or 'private'"
            )
        self._confinement = replace(wanted, network="host") if wanted.network == "auto" else wanted
        self._close_fds = close_fds or self._confinement.name == "strict"
        self._process: SandboxProcess | None = None
        self._answer_fd = -1
        self._result: Result | NamespaceError | None = None
        self._is_killed = False
        self._result_lock = threading.RLock()

    @classmethod
    @contextmanager
    def create(
        cls,
        targets: Sequence[Callable[[Path], Any]],
        workspaces: Sequence[str | os.PathLike[str] | Branch],
        *,
        close_fds: bool = False,
        confinement: str | Confinement = "standard",
    ) -> Iterator[list[BranchContext]]:
        """Start one child for each target in its workspace. All have ended when the block ends."""
        if len(targets) != len(workspaces):
            raise ValueError(f"{len(targets)} targets need as many workspaces, not {len(workspaces)}")
        contexts = [
            cls(t, w, close_fds=close_fds, confinement=confinement) for t, w in zip(targets, workspaces, strict=True)
        ]
        try:
            for context in contexts:
                context.start()
            yield contexts
        finally:
            for context in contexts:
                context.abort()

    @property
    def pid(self) -> int | None:
        """The child's process number, or None before it was started."""
        return None if self._process is None or self._process.child is None else self._process.child.pid

    @property
    def alive(self) -> bool:
        """Whether the child, or anything it started, still runs."""
        return self._process is not None and not self._wait_for_result(0)

    @property
    def is_killed(self) -> bool:
        """Whether the whole sandbox was killed: by ``kill``, or from outside, but not for a limit."""
        return self._wait_for_result(0) and self._is_killed

    @property
    def result(self) -> Result:
        """The result of the target, once it is done."""
        if not self._wait_for_result(0):
            raise ProcessBranchError("the target is not done yet: call wait() first")
        assert self._result is not None
        if isinstance(self._result, NamespaceError):
            raise self._result
        return self._result

    def start(self) -> None:
        """Start the child. Entering the context does that."""
        if self._process is not None:
            return
        if not os.path.isdir(self._workspace):
            raise ForkError(f"{self._workspace!r} is not a directory: a target needs one that exists")
        if self._confinement.read_only and self._branch is not None:
            self._branch.mark_confined()
        limits = self._confinement.limits
        if limits.disk is not None and self._branch is None:
            raise NamespaceError(
                "the limit disk counts a branch's layer, which a path does not name: pass the Branch as workspace"
            )
        try:
            self._answer_fd = fds.track(make_answer_memory)
            try:
                with self._supervise() as supervision, self._reserve_mount() as mount:
                    self._start(supervision, mount)
            except NamespaceError as error:
                if not self._confinement.landlock_instead or not is_refusal(error.errno):
                    raise
                self._drop_process()
                with self._supervise() as supervision:
                    self._start_without_namespaces(supervision)
        except BaseException as error:
            self._close_with(Result(None, type(error).__name__, str(error)))
            raise

    def _drop_process(self) -> None:
        """Close a sandbox that could not be set up."""
        if self._process is not None:
            self._process.close()
            self._process = None

    @contextmanager
    def _supervise(self) -> Iterator[Supervision]:
        """Yield the supervision of a child that the block starts. Close it if no process took it over."""
        supervision = Supervision(self._confinement.limits, [] if self._branch is None else list_layers(self._branch))
        try:
            yield supervision
        except BaseException:
            if self._process is None:
                supervision.close()
            raise

    def _reserve_mount(self) -> AbstractContextManager[PrivateMount]:
        return nullcontext(PrivateMount(None, self._workspace)) if self._branch is None else reserved(self._branch)

    def _start(self, supervision: Supervision, mount: PrivateMount) -> None:
        """Have the forkserver make the sandbox, and fork the child into it while its mounts are made.

        If this is interrupted, the processes that exist already read end-of-file and exit.
        """
        jail = plan_jail(self._workspace, mount.view_path, self._branch, self._confinement, os.environ)
        mount.add_views(jail)
        call = self._build_call(jail, supervision, find_temporary(os.environ, jail.mounts))
        init_socket = function_socket = status_fd = status_writer_fd = start_fd = start_writer_fd = -1
        try:
            init_socket, function_socket = fds.socketpair()
            status_fd, status_writer_fd = fds.pipe()
            start_fd, start_writer_fd = fds.pipe()
            waits_for_mounts = self._confinement.landlock_instead  # they may be refused, and then there is no child yet
            request = {
                "wall": self._confinement.limits.wall,
                "terminal": False,
                "reports_ready": waits_for_mounts,
            }
            pid, init_pidfd = start_sandbox(
                call.jail, request, (*mount.home_fds, function_socket, status_writer_fd, start_fd)
            )
            # Now only the sandbox has these: its end is end-of-file for this process and for the child.
            fds.close(function_socket, status_writer_fd, start_fd)
            function_socket = status_writer_fd = start_fd = -1
            child = ForkedChild()
            self._process = SandboxProcess(pid, init_pidfd, status_fd, supervision, child=child)
            mount.set_sandbox(self._process)
            if waits_for_mounts:
                self._process.wait_until_ready()
            try:
                with _guard_fork(child) as signals:
                    flags_left = child.fork_into(init_pidfd, call.jail.flags)
                    if child.pid == 0:
                        call.run(Entrance(init_pidfd, init_socket, flags_left), signals)
            except ForkError as error:
                # An init process that has ended reported why. With ENOMEM, fork(2) refuses to enter its PID namespace.
                if error.errno in (errno.ESRCH, errno.ENOMEM) and self._process.wait(_INIT_EXIT_TIMEOUT_S):
                    self._process.read_outcome()
                raise
            supervision.group.add(child.pid)
            if self._confinement.network == "private":
                self._process.on_close.append(Uplink(pid).close)
            self._process.start_command(start_writer_fd)
        finally:
            fds.close(init_socket, function_socket, status_writer_fd, start_fd, start_writer_fd)
            if self._process is None:
                fds.close(status_fd)

    def _start_without_namespaces(self, supervision: Supervision) -> None:
        """Start the child without namespaces: it acts as the init of the sandbox."""
        temporary, variables = self._workspace, {}
        if self._branch is not None:
            temporary = f"{self._branch.state_dir.path}/tmp"
            os.makedirs(temporary, mode=0o700, exist_ok=True)
            variables = {"TMPDIR": temporary}
        directory = self._workspace if self._branch is None else os.fspath(self._branch.path)
        call = self._build_call(
            plan_landlock(directory, temporary, self._confinement, os.environ), supervision, variables
        )
        status_fd = status_writer_fd = parent_pidfd = -1
        child = ForkedChild()
        try:
            status_fd, status_writer_fd = fds.pipe()
            parent_pidfd = fds.track(lambda: os.pidfd_open(os.getpid()))
            with _guard_fork(child) as signals:
                child.fork()
                if child.pid == 0:
                    call.run_without_namespaces(status_writer_fd, parent_pidfd, self._confinement.limits.wall, signals)
            pidfd = fds.track(lambda: os.pidfd_open(child.pid))
            self._process = SandboxProcess(child.pid, pidfd, status_fd, supervision, signal.SIGTERM, child)
        finally:
            fds.close(status_writer_fd, parent_pidfd)
            if self._process is None:
                fds.close(status_fd)

    def _build_call(
        self, jail: Jail, supervision: Supervision, variables: Mapping[str, str] | None = None
    ) -> FunctionCall:
        limits = self._confinement.limits
        jail.limits = asdict(limits) if limits.asked() else {}
        jail.enforcement = dict(supervision.enforcement)
        jail.cgroups = list(supervision.group.paths)
        inherited = dict(os.environ)
        environment = {**self._confinement.environment(inherited), **(variables or {})}
        changed = None if environment == inherited else environment
        return FunctionCall(self._target, jail.cwd, jail, changed, self._close_fds, self._answer_fd)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the child. Raise ProcessBranchError if the target failed, TimeoutError after ``timeout`` seconds."""
        self.start()
        if not self._wait_for_result(timeout):
            raise TimeoutError(f"the target was not done within {timeout} seconds")
        result = self.result
        if result.error is not None:
            details = f"{result.error}: {result.message}\n{result.traceback}".rstrip()
            raise ProcessBranchError(f"the target failed: {details}")

    def kill(self) -> None:
        """Kill the child and all its descendants without waiting for their end. Any thread may call this."""
        if self._process is not None and self._owner is fds.process_token():
            self._process.kill()

    def abort(self, timeout: float = 5.0) -> None:
        """Kill the child and all its descendants, and wait for their end."""
        if self._process is None or self._result is not None or self._owner is not fds.process_token():
            return
        self.kill()
        if not self._wait_for_result(timeout):
            raise ProcessBranchError(f"process {self.pid} did not end within {timeout} seconds of being killed")

    def __enter__(self) -> BranchContext:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.abort()

    def __del__(self) -> None:
        with suppress(Exception):
            self.abort()

    def _wait_for_result(self, timeout: float | None) -> bool:
        """Wait for the end of the sandbox and read the result, once. Return whether it has ended."""
        if self._result is None and self._process is not None and self._process.wait(timeout):
            with self._result_lock:
                if self._result is None:
                    self._close_with(self._read_result(self._process))
        return self._result is not None

    def _close_with(self, result: Result | NamespaceError) -> None:
        """Set the result, and close everything of the child: processes and zombies, descriptors, control groups."""
        if self._process is not None:
            self._process.close()
        fds.close(self._answer_fd)
        self._answer_fd = -1
        self._result = result

    def _read_result(self, process: SandboxProcess) -> Result | NamespaceError:
        """Return the target's answer if it wrote one, in which case it exits with 0 or 1; otherwise an error."""
        assert process.child is not None
        try:
            done = process.collect((), None, None)
            self._is_killed = done.ending == "killed" and done.limit is None
            answer = None if done.ending == "killed" else read_answer(self._answer_fd)
        except NamespaceError as error:
            return error
        is_unknown = process.child.code is None  # other code in this program reaped it
        if answer is not None and (is_unknown or (done.ending == "exit" and done.returncode in (0, 1))):
            return answer
        if is_unknown:
            end = "ended; its exit code is unknown, other code in this program reaped it"
        else:
            end = _describe_end(done)
        return Result(None, "ProcessBranchError", end)


@contextmanager
def _guard_fork(child: ForkedChild) -> Iterator[set[int]]:
    """Hold the fork lock and block signals during the block. Yield the signals that were blocked before."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        with fds.fork_lock(), block_signals() as signals:
            yield signals
    except BaseException as error:
        if child.pid == 0:  # the child must not continue this program
            os._exit(1)
        child.kill_and_reap()
        if isinstance(error, OSError):
            raise ForkError(
                f"the process of the target could not be forked: {error.strerror}", errno=error.errno
            ) from error
        raise


def _describe_end(done: Finished) -> str:
    if done.ending == "signal":
        return f"killed by {signal_name(-done.returncode)}"
    if done.ending == "exit":
        return f"ended with exit code {done.returncode} before the target returned"
    if done.ending == "killed" and done.limit is None:
        return "killed"
    return f"stopped by its limit {done.limit}" + (": out of memory" if done.ending == "out of memory" else "")
