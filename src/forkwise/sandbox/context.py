"""BranchContext: a Python function run in a sandboxed child of this very process, with its result handed back as data.

The forkserver makes the sandbox and its first process; this process forks a child into it. The child is a fork, so in a
program with threads it must not need a lock another thread held.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from forkwise.errors import ForkError, NamespaceError, ProcessBranchError
from forkwise.files.branch import Branch
from forkwise.linux import fds
from forkwise.sandbox.child import Call, Entrance, ForkedChild, Result, read_answer, undisturbed
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.jail import Jail
from forkwise.sandbox.jail_plan import host_path, plan_jail, plan_landlock, register_sandbox
from forkwise.sandbox.launcher import start
from forkwise.sandbox.limits import Supervision
from forkwise.sandbox.network import Uplink
from forkwise.sandbox.process import Finished, SandboxProcess, signal_name

__all__ = ["BranchContext", "Result"]


class BranchContext:
    """A function that runs in a sandbox of its own, with one directory it may write to.

    ``target`` is called with the directory as a ``Path``; returning is success, raising is failure. What it returns
    must be expressible as JSON. With ``close_fds``, and always under ``strict``, the child keeps no descriptor but
    stdin, stdout and stderr; else it has those that this process has open, and what they lead to, as any fork does.
    Where ``workspace`` is a branch and not a directory, the target sees it at its workspace's own path.
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
        self._confinement = Confinement.preset(confinement)
        self._close_fds = close_fds or self._confinement.name == "strict"
        self._process: SandboxProcess | None = None
        self._answer = -1
        self._result: Result | NamespaceError | None = None
        self._ending = threading.RLock()

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
        """Start one child for each target in its workspace; none of them is left when the block ends."""
        if len(targets) != len(workspaces):
            raise ValueError(f"{len(targets)} targets need as many workspaces, not {len(workspaces)}")
        made = [
            cls(t, w, close_fds=close_fds, confinement=confinement) for t, w in zip(targets, workspaces, strict=True)
        ]
        try:
            for context in made:
                context.start()
            yield made
        finally:
            for context in made:
                context.abort()

    @property
    def pid(self) -> int | None:
        """The child's process number; None before it was started."""
        return None if self._process is None or self._process.offspring is None else self._process.offspring.pid

    @property
    def alive(self) -> bool:
        """Whether the child, or anything it started, still runs."""
        return self._process is not None and not self._is_done(0)

    @property
    def result(self) -> Result:
        """What came of the target; ask when it is done."""
        if not self._is_done(0):
            raise ProcessBranchError("the target is not done yet: wait() first")
        assert self._result is not None
        if isinstance(self._result, NamespaceError):
            raise self._result
        return self._result

    def start(self) -> None:
        """Start the child; entering the context does that."""
        if self._process is not None:
            return
        if not os.path.isdir(self._workspace):
            raise ForkError(f"{self._workspace!r} is not a directory: a target works in one that exists")
        limits = self._confinement.limits
        if limits.disk is not None and self._branch is None:
            raise NamespaceError(
                "the limit disk is that of a branch's layer, which is not known here: give the branch itself"
            )
        supervision = Supervision(limits, None if self._branch is None else self._branch.target)
        try:
            self._answer = fds.track(lambda: os.memfd_create("forkwise-answer", os.MFD_CLOEXEC))
            try:
                self._start(supervision)
            except NamespaceError:
                if not self._confinement.landlock_instead or self._process is not None:
                    raise
                self._start_beneath(supervision)
        except BaseException as error:
            self._end(Result(None, type(error).__name__, str(error)))
            supervision.close()
            raise

    def _start(self, supervision: Supervision) -> None:
        """Have the sandbox made, and while it is furnished, have the child born in it. Whoever is left of them when
        this is interrupted finds that the others closed what it reads from."""
        seen = self._workspace if self._branch is None else host_path(self._branch)
        call = self._call(plan_jail(self._workspace, seen, self._branch, self._confinement, os.environ), supervision)
        meeting = theirs = status = told = word = giver = -1
        try:
            meeting, theirs = fds.socketpair()
            status, told = fds.pipe()
            word, giver = fds.pipe()
            request = {"wall": self._confinement.limits.wall, "terminal": False}
            pid, first = start(call.jail, request, (theirs, told, word))
            child = ForkedChild()
            self._process = SandboxProcess(pid, first, status, supervision, offspring=child)
            with _forking(child) as signals:
                left = child.fork_into(first, call.jail.flags)
                if child.pid == 0:
                    call.run(Entrance(first, meeting, left), signals)
            supervision.group.add(child.pid)
            if self._confinement.network == "private":
                self._process.uplink = Uplink(pid)
            if self._branch is not None:
                register_sandbox(self._branch, pid)
            os.write(giver, b"1")
        finally:
            fds.close(meeting, theirs, told, word, giver)
            if self._process is None:
                fds.close(status)

    def _start_beneath(self, supervision: Supervision) -> None:
        """Without namespaces: the child is the first process of what stands for a sandbox."""
        own, given = self._workspace, {}
        if self._branch is not None:
            own = f"{self._branch.place.path}/tmp"
            os.makedirs(own, mode=0o700, exist_ok=True)
            given = {"TMPDIR": own}
        where = self._workspace if self._branch is None else os.fspath(self._branch.path)
        call = self._call(plan_landlock(where, own, self._confinement), supervision, given)
        status = told = parent = -1
        child = ForkedChild()
        try:
            status, told = fds.pipe()
            parent = fds.track(lambda: os.pidfd_open(os.getpid()))
            with _forking(child) as signals:
                child.fork()
                if child.pid == 0:
                    call.run_beneath(told, parent, self._confinement.limits.wall, signals)
            pidfd = fds.track(lambda: os.pidfd_open(child.pid))
            self._process = SandboxProcess(child.pid, pidfd, status, supervision, signal.SIGTERM, child)
        finally:
            fds.close(told, parent)
            if self._process is None:
                fds.close(status)

    def _call(self, jail: Jail, supervision: Supervision, given: Mapping[str, str] | None = None) -> Call:
        limits = self._confinement.limits
        jail.limits = asdict(limits) if limits.asked() else {}
        jail.enforcement = dict(supervision.enforcement)
        jail.cgroups = list(supervision.group.paths)
        own = dict(os.environ)
        environment = {**self._confinement.environment(own), **(given or {})}
        changed = None if environment == own else environment
        return Call(self._target, jail.cwd, jail, changed, self._close_fds, self._answer)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the child; ProcessBranchError where the target failed, TimeoutError where it takes too long."""
        self.start()
        if not self._is_done(timeout):
            raise TimeoutError(f"the target was not done within {timeout} seconds")
        result = self.result
        if result.error is not None:
            told = f"{result.error}: {result.message}\n{result.traceback}".rstrip()
            raise ProcessBranchError(f"the target failed: {told}")

    def kill(self) -> None:
        """Have the child and all its descendants end, and come back at once; from any thread."""
        if self._process is not None and self._owner is fds.process_token():
            self._process.kill()

    def abort(self, timeout: float = 5.0) -> None:
        """End the child and all its descendants, whatever they do about it."""
        if self._process is None or self._result is not None or self._owner is not fds.process_token():
            return
        self.kill()
        if not self._is_done(timeout):
            raise ProcessBranchError(f"process {self.pid} did not end within {timeout} seconds of being killed")

    def __enter__(self) -> BranchContext:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abort()

    def __del__(self) -> None:
        with suppress(Exception):
            self.abort()

    def _is_done(self, timeout: float | None) -> bool:
        """Wait for the end; at the first time that it is seen, take in what came of the target."""
        if self._result is None and self._process is not None and self._process.wait(timeout):
            with self._ending:
                if self._result is None:
                    self._end(self._take(self._process))
        return self._result is not None

    def _end(self, result: Result | NamespaceError) -> None:
        """Leave nothing of the child: no process, not even a dead one, no descriptor, no control group."""
        if self._process is not None:
            self._process.close()
        fds.close(self._answer)
        self._answer = -1
        self._result = result

    def _take(self, process: SandboxProcess) -> Result | NamespaceError:
        """The answer of a target that came to give one: it then ends with 0 or 1."""
        assert process.offspring is not None
        try:
            done = process.finished((), None, None)
            told = None if done.ending == "killed" else read_answer(self._answer)
        except NamespaceError as error:
            return error
        is_unknown = process.offspring.code is None  # somebody else in this program reaped it
        if told is not None and (is_unknown or (done.ending == "exit" and done.returncode in (0, 1))):
            return told
        how = "ended, and somebody else in this program knows how" if is_unknown else _how_it_ended(done)
        return Result(None, "ProcessBranchError", how)


@contextmanager
def _forking(child: ForkedChild) -> Iterator[set[int]]:
    """Undisturbed, and while nobody else makes descriptors; gives the signals that were blocked before."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        with fds.fork_lock(), undisturbed() as signals:
            yield signals
    except BaseException as error:
        if child.pid == 0:  # it must not go on with the program whose fork it is
            os._exit(1)
        child.end()
        if isinstance(error, OSError):
            raise ForkError(f"no process could be made: {error.strerror}") from error
        raise


def _how_it_ended(done: Finished) -> str:
    if done.ending == "signal":
        return f"killed by {signal_name(-done.returncode)}"
    if done.ending == "exit":
        return f"ended with exit code {done.returncode} before the target returned"
    if done.ending == "killed" and done.limit is None:
        return "killed"
    return f"stopped by its limit {done.limit}" + (": out of memory" if done.ending == "out of memory" else "")
