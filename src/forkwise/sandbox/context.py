"""BranchContext: a Python function run in a sandboxed child of this very process, with its result handed back as data.

Nothing the child sends is unpickled or executed: it writes JSON into memory shared with the parent, which reads it when
the child is gone. The child is a fork, so in a program with threads it must not need a lock another thread held.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from pydantic_core import from_json, to_json

from forkwise.errors import ForkError, NamespaceError, ProcessBranchError
from forkwise.files.branch import Branch
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.first import failure, tell, watch
from forkwise.sandbox.holders import hold, let_go
from forkwise.sandbox.jail import (
    Jail,
    be_looked_into,
    clone,
    confine,
    join_groups,
    move_in,
    write_maps,
)
from forkwise.sandbox.network import Uplink
from forkwise.sandbox.plan import plan_jail
from forkwise.sandbox.process import Finished, SandboxProcess, signal_name
from forkwise.sandbox.sight import note_sandbox, seen_at
from forkwise.sandbox.supervision import Supervision

__all__ = ["BranchContext", "Result"]

_LARGEST = 256 << 20  # bytes of an answer that are read
_MOST_PARTS = 8_000_000  # lists and objects in it: an empty one takes two bytes there and thirty times that here
_ALL_SIGNALS = signal.valid_signals()

to_json([0])  # the first call loads modules; here it does so once, and not in every child


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a target: its ``value``, or its exception as text (``error`` is the type's name)."""

    value: Any = None
    error: str | None = None
    message: str = ""
    traceback: str = ""

    @property
    def ok(self) -> bool:
        """Whether the target returned."""
        return self.error is None


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
        self._owner = os.getpid()
        self._target = target
        self._branch = workspace if isinstance(workspace, Branch) else None
        self._workspace = os.path.realpath(workspace.workspace.path if isinstance(workspace, Branch) else workspace)
        self._confinement = Confinement.preset(confinement)
        self._close_fds = close_fds or self._confinement.name == "strict"
        self._process: SandboxProcess | None = None
        self._answer = -1
        self._result: Result | NamespaceError | None = None
        hold(self)

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
        return None if self._process is None else self._process.pid

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
        seen = self._workspace if self._branch is None else seen_at(self._branch)
        jail = plan_jail(self._workspace, seen, self._branch, self._confinement, os.environ)
        supervision = Supervision(limits, None if self._branch is None else self._branch.target)
        jail.limits = asdict(limits) if limits.asked() else {}
        jail.enforcement = dict(supervision.enforcement)
        jail.cgroups = list(supervision.group.paths)
        self._fork(jail, supervision)

    def _fork(self, jail: Jail, supervision: Supervision) -> None:
        gate, opener = os.pipe()
        status, told = os.pipe()
        self._answer = os.memfd_create("forkwise-answer", os.MFD_CLOEXEC)
        parent = os.pidfd_open(os.getpid())
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            try:
                pid = clone(jail.flags)
            except OSError as error:
                os.close(status)
                os.close(self._answer)
                self._answer = -1
                supervision.close()
                raise _no_process(error) from error
            if pid == 0:
                os.close(opener)
                os.close(status)
                self._be_first(jail, gate, told, parent)
            self._process = SandboxProcess(pid, os.pidfd_open(pid), status, supervision)
            self._let_begin(pid, jail, opener)
        finally:
            for fd in (gate, opener, told, parent):
                os.close(fd)

    def _let_begin(self, pid: int, jail: Jail, opener: int) -> None:
        assert self._process is not None
        try:
            write_maps(pid, jail)
            if self._confinement.network == "private":
                self._process.uplink = Uplink(pid)
            if self._branch is not None:
                note_sandbox(self._branch, pid)
            os.write(opener, b"1")
        except BaseException as error:
            self._result = Result(None, "NamespaceError", str(error))
            self._end()
            if isinstance(error, OSError):
                raise NamespaceError(f"the users of a new namespace could not be set: {error.strerror}") from error
            raise

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the child; ProcessBranchError where the target failed, TimeoutError where it takes too long."""
        self.start()
        if not self._is_done(timeout):
            raise TimeoutError(f"the target was not done within {timeout} seconds")
        result = self.result
        if result.error is not None:
            told = f"{result.error}: {result.message}\n{result.traceback}".rstrip()
            raise ProcessBranchError(f"the target failed: {told}")

    def abort(self, timeout: float = 5.0) -> None:
        """End the child and all its descendants, whatever they do about it."""
        if self._process is None or self._result is not None or self._owner != os.getpid():
            return
        self._process.kill()
        if not self._is_done(timeout):
            raise ProcessBranchError(f"process {self.pid} did not end within {timeout} seconds of being killed")

    def descriptors(self) -> list[int]:
        """Those that are not for other functions' processes."""
        return [self._answer]

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
            try:
                self._result = self._take(self._process.finished((), None, None))
            except NamespaceError as error:
                self._result = error
            finally:
                self._end()
        return self._result is not None

    def _end(self) -> None:
        """Leave nothing of the child: no process, not even a dead one, no descriptor, no control group."""
        assert self._process is not None
        pid = self._process.pid
        self._process.close()
        with suppress(ChildProcessError):  # somebody else in this process reaped it
            os.waitpid(pid, 0)
        os.close(self._answer)
        self._answer = -1

    def _take(self, done: Finished) -> Result:
        """The answer of a target that came to give one: it then ends with 0 or 1."""
        size = os.fstat(self._answer).st_size
        if not size or done.ending != "exit" or done.returncode not in (0, 1):
            return Result(None, "ProcessBranchError", _how_it_ended(done))
        if size > _LARGEST:
            return _unreadable(f"it has {size} bytes, more than {_LARGEST}; write it to the workspace")
        content = os.pread(self._answer, size, 0)
        if content.count(b"[") + content.count(b"{") > _MOST_PARTS:
            return _unreadable(f"it has more than {_MOST_PARTS} lists and objects; write it to the workspace")
        try:
            said = from_json(content)
            if "value" in said:
                return Result(value=said["value"])
            return Result(None, str(said["error"]), str(said["message"]), str(said["traceback"]))
        except (ValueError, TypeError, KeyError) as error:
            return _unreadable(str(error))

    # In the child

    def _be_first(self, jail: Jail, gate: int, told: int, parent: int) -> NoReturn:
        """The first process of the sandbox: sets it up, runs the target in another one, and ends when that does."""
        try:
            # No handler of the program whose fork this is runs here, whatever the target sends.
            before: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS))
            if os.read(gate, 1) != b"1":
                os._exit(1)
            os.setsid()  # else kill(0) would reach the parent's process group
            join_groups(jail)
            be_looked_into(False)
            started = time.monotonic()
            word, giver = os.pipe()
            target = os.fork()
            if target == 0:
                for fd in (gate, told, parent, giver):
                    os.close(fd)
                self._run_target(jail, before, word)
            move_in(jail)  # meanwhile the other one gets ready
            os.write(giver, b"1")
            tell(told, watch(target, started, self._confinement.limits.wall, awaited={signal.SIGCHLD}, parent=parent))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told, and this process ends
            tell(told, failure(error))
        finally:
            os._exit(0)

    def _run_target(self, jail: Jail, signals: set[int], word: int) -> NoReturn:
        code = 1
        try:
            be_looked_into(True)
            signal.set_wakeup_fd(-1)
            let_go(but=self._answer)
            self._set_environment()
            confine(jail, furnished=lambda: self._wait_for(word, jail.cwd))
            if self._close_fds:
                os.closerange(3, self._answer)
                os.closerange(self._answer + 1, 1 << 20)
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
            value = self._target(Path(self._workspace))
            self._tell(_as_json(value))
            code = 0
        except BaseException as error:  # noqa: BLE001
            self._tell(_as_failure(error))
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _wait_for(self, word: int, place: str) -> None:
        """Until the mounts are made."""
        if os.read(word, 1) != b"1":
            os._exit(1)  # they could not be, and that is told by whoever tried
        os.close(word)
        os.chdir(place)

    def _set_environment(self) -> None:
        wanted = self._confinement.environment(os.environ)
        if wanted != os.environ:
            os.environ.clear()
            _wipe_environment()
            os.environ.update(wanted)

    def _tell(self, content: bytes) -> None:
        view = memoryview(content)
        os.ftruncate(self._answer, 0)
        os.lseek(self._answer, 0, os.SEEK_SET)
        while view:
            view = view[os.write(self._answer, view) :]


def _no_process(error: OSError) -> NamespaceError | ForkError:
    if error.errno in (errno.EPERM, errno.ENOSPC, errno.EINVAL):
        return NamespaceError(
            f"no namespaces could be made for a sandbox: {error.strerror}; forkwise doctor says what is missing"
        )
    return ForkError(f"no process could be made: {error.strerror}")


def _wipe_environment() -> None:
    """Overwrite the variables that this program was started with: /proc/self/environ shows that memory."""
    with open("/proc/self/stat", "rb") as file:
        begin, end = file.read().rpartition(b")")[2].split()[47:49]
    ctypes.memset(int(begin), 0, int(end) - int(begin))


def _as_json(value: object) -> bytes:
    try:
        return b'{"value":' + to_json(value, inf_nan_mode="constants") + b"}"
    except Exception as error:  # noqa: BLE001 - of many types, from a target's own classes too
        raise TypeError(
            f"what the target returned, a {type(value).__name__}, cannot be handed to the parent: {error}. "
            "Return what JSON can express, or write it to the workspace"
        ) from None


def _as_failure(error: BaseException) -> bytes:
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the target's own exception may not even have a text
        message = "(its text could not be had)"
    told = {
        "error": type(error).__name__,
        "message": message,
        "traceback": "".join(traceback.format_exception(error)),
    }
    return to_json({key: text.encode(errors="backslashreplace").decode() for key, text in told.items()})


def _unreadable(why: str) -> Result:
    return Result(None, "ProcessBranchError", f"the child's answer could not be read: {why}")


def _how_it_ended(done: Finished) -> str:
    if done.ending == "signal":
        return f"killed by {signal_name(-done.returncode)}"
    if done.ending == "exit":
        return f"ended with exit code {done.returncode} before the target returned"
    if done.ending == "killed" and done.limit is None:
        return "killed"
    return f"stopped by its limit {done.limit}" + (": out of memory" if done.ending == "out of memory" else "")
