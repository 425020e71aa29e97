"""Running a command in a branch: at the workspace's own path, confined, with its output captured or passed on."""

from __future__ import annotations

import asyncio
import functools
import os
import selectors
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forkwise.concurrency import run_in_thread
from forkwise.errors import NamespaceError
from forkwise.files.branch import Branch
from forkwise.files.workspace import Workspace
from forkwise.linux import fds
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.jail import CLONE_NEWPID, Jail
from forkwise.sandbox.jail_plan import host_path, plan_jail, plan_landlock, register_sandbox
from forkwise.sandbox.launcher import Server, start
from forkwise.sandbox.limits import Supervision
from forkwise.sandbox.network import Uplink
from forkwise.sandbox.process import Finished, SandboxProcess

__all__ = ["RunOptions", "arun_in_branch", "run_in_branch", "shell_in_branch", "spawn"]

_BLOCK = 1 << 16
_TIMED_OUT = 124  # as timeout(1) says it


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a command is run. ``timeout`` in seconds ends it, which is told and not raised. ``input`` is fed to it.
    ``capture`` keeps its output, ``text`` decodes that. ``on_output`` is called with ``"stdout"`` or ``"stderr"`` and
    each piece as it comes. ``env`` stands for this process's environment. ``check`` raises where it fails."""

    confinement: str | Confinement = "standard"
    timeout: float | None = None
    input: bytes | str | None = None
    capture: bool = True
    text: bool = False
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    on_output: Callable[[str, bytes], None] | None = None
    check: bool = False


def run_in_branch(branch: Branch | Workspace, argv: Sequence[str], **options: Any) -> Finished:
    """Run a command in a branch and wait for it; the options are those of RunOptions. In a workspace itself it is
    confined as well, and changes that."""
    return _Run(branch, argv, RunOptions(**options)).finish()


async def arun_in_branch(branch: Branch | Workspace, argv: Sequence[str], **options: Any) -> Finished:
    """The same for asyncio programs; cancelled, it ends the command with all descendants."""
    wanted = RunOptions(**options)
    held: list[_Run] = []
    cancelled = threading.Event()

    def work() -> Finished:
        running = _Run(branch, argv, wanted)
        held.append(running)
        if cancelled.is_set():
            running.process.kill()
        return running.finish()

    job = run_in_thread(work)
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        cancelled.set()  # for one that is only being started
        for running in held:
            running.process.kill()
        await asyncio.wait([job])
        raise


def spawn(
    branch: Branch | Workspace,
    argv: Sequence[str],
    stdio: tuple[int, int, int],
    *,
    confinement: str | Confinement = "standard",
    timeout: float | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    server: Server | None = None,
) -> SandboxProcess:
    """Start a command in a branch on given descriptors, and come back at once.

    A ``server`` of the caller's session lets it use the caller's terminal; else it gets a session of its own.
    """
    if not argv:
        raise ValueError("there is no command to run")
    wanted = Confinement.preset(confinement)
    where = os.fspath(branch.workspace.path)
    environment = wanted.environment(os.environ if env is None else env)
    jail = plan_jail(where, host_path(branch), branch, wanted, environment)
    supervision = Supervision(wanted.limits, branch.target)
    try:
        process, giver = _start(
            jail, argv, environment, stdio, supervision, _Start(branch, wanted, timeout, cwd, server)
        )
    except BaseException:
        supervision.close()
        raise
    try:
        if wanted.network == "private":
            process.uplink = Uplink(process.pid)
        register_sandbox(branch, process.pid)
        os.write(giver, b"1")
    except BaseException:
        process.close()
        raise
    finally:
        fds.close(giver)
    return process


@dataclass(frozen=True, slots=True)
class _Start:
    """What a start needs to know beside its jail."""

    branch: Branch | Workspace
    confinement: Confinement
    timeout: float | None
    cwd: str | None
    server: Server | None


def _start(
    jail: Jail,
    argv: Sequence[str],
    environment: dict[str, str],
    stdio: tuple[int, int, int],
    supervision: Supervision,
    wanted: _Start,
) -> tuple[SandboxProcess, int]:
    """Have the sandbox made; gives it, and the descriptor to which the word to begin is written."""
    limits = wanted.confinement.limits
    jail.limits = asdict(limits) if limits.asked() else {}
    jail.enforcement = dict(supervision.enforcement)
    jail.cgroups = list(supervision.group.paths)
    if wanted.cwd:
        jail.cwd = os.path.join(jail.cwd, wanted.cwd)
    request = {
        "argv": list(argv),
        "env": environment | {"PWD": jail.cwd, "FORKWISE_BRANCH": wanted.branch.branch_path},
        "wall": limits.wall if wanted.timeout is None else wanted.timeout,
        "terminal": wanted.server is not None,
    }
    status = told = word = giver = -1
    try:
        status, told = fds.pipe()
        word, giver = fds.pipe()
        pid, pidfd = start(jail, request, (*stdio, told, word), wanted.server)
        ended_by = signal.SIGKILL if jail.flags & CLONE_NEWPID else signal.SIGTERM
        return SandboxProcess(pid, pidfd, status, supervision, ended_by), giver
    except NamespaceError:
        fds.close(status, giver)
        if not wanted.confinement.landlock_instead or not jail.flags:
            raise
        own = f"{wanted.branch.place.path}/tmp"
        os.makedirs(own, mode=0o700, exist_ok=True)
        weaker = plan_landlock(os.fspath(wanted.branch.path), own, wanted.confinement)
        return _start(weaker, argv, environment | {"TMPDIR": own}, stdio, supervision, wanted)
    except BaseException:
        fds.close(status, giver)
        raise
    finally:
        fds.close(told, word)


def shell_in_branch(branch: Branch, argv: Sequence[str] = (), **options: Any) -> int:
    """Run the user's shell, or a command, in a branch on this process's own terminal; gives its exit code.

    Unless told otherwise it is not confined (``open``): a person's shell has their files and their history. What the
    keyboard sends while it runs is for it alone.
    """
    command = list(argv) or [os.environ.get("SHELL") or "/bin/sh"]
    keys = (signal.SIGINT, signal.SIGQUIT) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, _stay) for number in keys}
    server = Server(own_session=False)
    try:
        process = spawn(branch, command, (0, 1, 2), server=server, **{"confinement": "open", **options})
        try:
            process.wait()
            done = process.finished(command, None, None)
            return _TIMED_OUT if done.ending == "timeout" else done.returncode
        finally:
            process.close()
    finally:
        server.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _stay(_number: int, _frame: object) -> None:
    """By a handler, and not by ignoring: what is ignored stays so in a command."""


class _Run:
    """One command with pipes to it."""

    def __init__(self, branch: Branch | Workspace, argv: Sequence[str], options: RunOptions) -> None:
        self.argv = list(argv)
        self.options = options
        self.pipes: dict[str, int] = {}
        self.got: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        given = options.input.encode() if isinstance(options.input, str) else options.input
        self.left = memoryview(given or b"")
        theirs: list[int] = []
        try:
            self._connect(theirs)
            self.process = spawn(
                branch,
                argv,
                (theirs[0], theirs[1], theirs[2]),
                confinement=options.confinement,
                timeout=options.timeout,
                cwd=options.cwd,
                env=options.env,
            )
        except BaseException:
            self._disconnect()
            raise
        finally:
            fds.close(*theirs)

    def _connect(self, theirs: list[int]) -> None:
        """Pipes where something is to pass; nothing is put in, and what is not captured goes where this process's
        output does."""
        if self.left:
            reading, self.pipes["stdin"] = fds.pipe()
            os.set_blocking(self.pipes["stdin"], False)
            theirs.append(reading)
        else:
            theirs.append(fds.track(lambda: os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)))
        for number, name in ((1, "stdout"), (2, "stderr")):
            if self.options.capture or self.options.on_output:
                self.pipes[name], writing = fds.pipe()
                theirs.append(writing)
            else:
                theirs.append(fds.track(functools.partial(os.dup, number)))

    def _disconnect(self) -> None:
        for name in list(self.pipes):
            fds.close(self.pipes.pop(name))

    def finish(self) -> Finished:
        """Feed it, drain it, wait for it."""
        try:
            self._pump()
            self.process.wait()
            outputs = [b"".join(self.got[n]) if self.options.capture else None for n in ("stdout", "stderr")]
            shown = [o.decode(errors="surrogateescape") if self.options.text and o is not None else o for o in outputs]
            done = self.process.finished(self.argv, shown[0], shown[1])
        finally:
            self.process.close()
            self._disconnect()
        if self.options.check:
            done.check_returncode()
        return done

    def _pump(self) -> None:
        """Move bytes until the sandbox is gone and all it wrote was read."""
        with selectors.DefaultSelector() as selector:
            for name, fd in self.pipes.items():
                selector.register(fd, selectors.EVENT_WRITE if name == "stdin" else selectors.EVENT_READ, name)
            selector.register(self.process, selectors.EVENT_READ, "gone")
            while selector.get_map():
                ready = selector.select(self.process.supervision.interval)
                if not ready and self.process.supervision.is_exceeded():
                    self.process.kill()
                for key, _ in ready:
                    if key.data == "gone" or not self._move(key.data):
                        selector.unregister(key.fileobj)
                        if key.data == "stdin":
                            fds.close(self.pipes.pop("stdin"))

    def _move(self, name: str) -> bool:
        """One step of one pipe; False where there is no more to come or to go."""
        if name == "stdin":
            try:
                self.left = self.left[os.write(self.pipes[name], self.left[:_BLOCK]) :]
            except BrokenPipeError:
                return False
            return bool(self.left)
        piece = os.read(self.pipes[name], _BLOCK)
        if piece and self.options.capture:
            self.got[name].append(piece)
        if piece and self.options.on_output is not None:
            self.options.on_output(name, piece)
        return bool(piece)
