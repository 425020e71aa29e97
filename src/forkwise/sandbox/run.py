"""Running a command in a branch: at the workspace's own path, confined, with its output captured or passed on."""

from __future__ import annotations

import asyncio
import functools
import os
import selectors
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from forkwise.concurrency import run_in_thread
from forkwise.errors import NamespaceError
from forkwise.files.branch import Branch
from forkwise.linux import fds
from forkwise.linux.syscalls import CLONE_NEWPID
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.jail_plan import PrivateMount, find_temporary, list_layers, plan_jail, plan_landlock, reserved
from forkwise.sandbox.launcher import ForkserverClient, start_sandbox
from forkwise.sandbox.limits import Supervision
from forkwise.sandbox.network.gateway import NetworkLog, open_logged_network, resolve_network, share_network
from forkwise.sandbox.process import Finished, SandboxProcess, is_refusal

if TYPE_CHECKING:
    from forkwise.files.workspace import Workspace
    from forkwise.sandbox.jail import Jail
    from forkwise.sandbox.network.space import NetworkSpace

__all__ = ["RunOptions", "arun_in_branch", "run_in_branch", "shell_in_branch", "spawn"]

_BLOCK = 1 << 16
_TIMED_OUT = 124  # the exit code of timeout(1)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a command is run.

    After ``timeout`` seconds it is killed, which the result reports; nothing is raised. ``input`` is written to its
    stdin. ``capture`` keeps its output, ``text`` decodes it. ``on_output`` is called with ``"stdout"`` or ``"stderr"``
    and each piece as it arrives. ``cwd`` is the directory to start in, from the workspace's path. ``env`` replaces this
    process's environment. ``check`` raises if the command fails. ``space`` is the network that it shares with other
    sandboxes, instead of the confinement's. Without one, ``network_log`` opens the log of its connections.
    """

    confinement: str | Confinement = "standard"
    timeout: float | None = None
    input: bytes | str | None = None
    capture: bool = True
    text: bool = False
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    on_output: Callable[[str, bytes], None] | None = None
    check: bool = False
    space: NetworkSpace | None = None
    network_log: NetworkLog | None = None


def run_in_branch(branch: Branch | Workspace, argv: Sequence[str], **options: Any) -> Finished:
    """Run a command in a branch and wait for it. The options are those of RunOptions.

    In a workspace itself the command is confined as well, and changes the workspace.
    """
    return _CommandRun(branch, argv, RunOptions(**options)).finish()


async def arun_in_branch(branch: Branch | Workspace, argv: Sequence[str], **options: Any) -> Finished:
    """Run a command in a branch without blocking the event loop.

    Cancelling it kills the command with all descendants.
    """
    wanted = RunOptions(**options)
    runs: list[_CommandRun] = []
    cancelled = threading.Event()

    def work() -> Finished:
        run = _CommandRun(branch, argv, wanted)
        runs.append(run)
        if cancelled.is_set():
            run.process.kill()
        return run.finish()

    job = run_in_thread(work)
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        cancelled.set()  # in case the command is still being started
        for run in runs:
            run.process.kill()
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
    client: ForkserverClient | None = None,
    space: NetworkSpace | None = None,
    network_log: NetworkLog | None = None,
) -> SandboxProcess:
    """Start a command in a branch on given descriptors, and return at once.

    With a ``client`` whose forkserver is in the caller's session, the command can use the caller's terminal; otherwise
    it gets a session of its own. With a ``space`` the command is in that network, whatever the confinement says, and
    ends with it at the latest; ``client`` is then the one that created the space.
    """
    if not argv:
        raise ValueError("there is no command to run: argv is empty")
    requested = wanted = Confinement.preset(confinement)
    if space is None:
        wanted = resolve_network(wanted)
    if space is None and wanted.network in ("private", "proxy"):
        opened = open_logged_network(wanted, network_log, client=client)
        return _spawn_in_own_network(
            branch, argv, stdio, space=opened, client=client, confinement=requested, timeout=timeout, cwd=cwd, env=env
        )
    workspace_path = os.fspath(branch.workspace.path)
    environment = wanted.environment(os.environ if env is None else env)
    if space is not None:
        environment |= space.variables
        wanted = replace(wanted, network="none")  # not the host's: the space has its own connections
    start_options = _StartOptions(branch, wanted, timeout, cwd, client, space)
    if wanted.read_only and isinstance(branch, Branch):
        branch.mark_confined()
    try:
        with reserved(branch) as mount:
            jail = plan_jail(
                workspace_path,
                mount.view_path,
                branch,
                wanted,
                environment,
                joins_network=space is not None,
                answers_names=space is not None and space.answers_names,
            )
            mount.add_views(jail)
            environment |= find_temporary(environment, jail.mounts)
            return _start(jail, argv, environment, stdio, start_options, mount)
    except NamespaceError as error:
        if not wanted.landlock_instead or not is_refusal(error.errno):
            raise
    if space is not None and requested.network == "auto":
        share_network("mounts in namespaces are refused here, and Landlock is used instead")
        shared = replace(requested, network="host")
        return spawn(branch, argv, stdio, confinement=shared, timeout=timeout, cwd=cwd, env=env, client=client)
    temporary = f"{branch.state_dir.path}/tmp"
    os.makedirs(temporary, mode=0o700, exist_ok=True)
    weaker = plan_landlock(os.fspath(branch.path), temporary, wanted, environment)
    return _start(weaker, argv, environment | {"TMPDIR": temporary}, stdio, start_options)


def _spawn_in_own_network(
    branch: Branch | Workspace,
    argv: Sequence[str],
    stdio: tuple[int, int, int],
    *,
    space: NetworkSpace,
    **options: Any,
) -> SandboxProcess:
    """Start a command in a network that belongs to it and ends with it."""
    try:
        if isinstance(branch, Branch):
            space.register(branch)  # for forkwise open
        process = spawn(branch, argv, stdio, space=space, **options)
    except BaseException:
        space.close()
        raise
    process.on_close.append(space.close)
    return process


@dataclass(frozen=True, slots=True)
class _StartOptions:
    """The options of a start, besides its jail."""

    branch: Branch | Workspace
    confinement: Confinement
    timeout: float | None
    cwd: str | None
    client: ForkserverClient | None
    space: NetworkSpace | None


def _start(
    jail: Jail,
    argv: Sequence[str],
    environment: dict[str, str],
    stdio: tuple[int, int, int],
    wanted: _StartOptions,
    mount: PrivateMount | None = None,
) -> SandboxProcess:
    """Start the sandbox and the command in it."""
    supervision = Supervision(wanted.confinement.limits, list_layers(wanted.branch))
    try:
        passed_fds = (*(() if mount is None else mount.home_fds), *stdio)
        process, start_writer_fd = _start_sandbox(jail, argv, environment, passed_fds, supervision, wanted)
    except BaseException:
        supervision.close()
        raise
    try:
        if mount is not None:
            mount.set_sandbox(process)
        if wanted.confinement.landlock_instead:
            process.wait_until_ready()  # mounts may be refused although the namespaces are allowed
        process.start_command(start_writer_fd)
    except BaseException:
        process.close()
        raise
    finally:
        fds.close(start_writer_fd)
    return process


def _start_sandbox(
    jail: Jail,
    argv: Sequence[str],
    environment: dict[str, str],
    passed_fds: Sequence[int],
    supervision: Supervision,
    wanted: _StartOptions,
) -> tuple[SandboxProcess, int]:
    """Start the sandbox. Return it and the descriptor to which the go-ahead is written."""
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
        "terminal": wanted.client is not None,
        "reports_ready": wanted.confinement.landlock_instead,
    }
    status_fd = status_writer_fd = start_fd = start_writer_fd = -1
    try:
        status_fd, status_writer_fd = fds.pipe()
        start_fd, start_writer_fd = fds.pipe()
        client = wanted.client if wanted.space is None else wanted.space.client
        pid, pidfd = start_sandbox(jail, request, (*passed_fds, status_writer_fd, start_fd), client)
        kill_signal = signal.SIGKILL if jail.flags & CLONE_NEWPID else signal.SIGTERM
        process = SandboxProcess(pid, pidfd, status_fd, supervision, kill_signal)
        process.start_directory = jail.cwd if wanted.cwd else None
        return process, start_writer_fd
    except BaseException:
        fds.close(status_fd, start_writer_fd)
        raise
    finally:
        fds.close(status_writer_fd, start_fd)


def shell_in_branch(
    branch: Branch, argv: Sequence[str] = (), *, client: ForkserverClient | None = None, **options: Any
) -> int:
    """Run the user's shell, or a command, in a branch on this process's own terminal. Return its exit code.

    It is not confined (``open``) by default: a person's shell needs their files and their history. Signals from the
    keyboard go to it alone while it runs. ``client`` is a forkserver in this process's session, if there is one.
    """
    command = list(argv) or [os.environ.get("SHELL") or "/bin/sh"]
    keys = (signal.SIGINT, signal.SIGQUIT) if threading.current_thread() is threading.main_thread() else ()
    early: list[int] = []
    before = {number: signal.signal(number, lambda number, _: early.append(number)) for number in keys}
    own = ForkserverClient(own_session=False) if client is None else None
    try:
        process = spawn(branch, command, (0, 1, 2), client=own or client, **{"confinement": "open", **options})
        try:
            for number in keys:
                signal.signal(number, _ignore_signal)
            if early:  # the command did not run yet, so it got none of them
                raise KeyboardInterrupt
            process.wait()
            done = process.collect(command, None, None)
            return _TIMED_OUT if done.ending == "timeout" else done.returncode
        finally:
            process.close()
    finally:
        if own is not None:
            own.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signal(_number: int, _frame: object) -> None:
    """Ignore a signal through a handler, because the command would inherit SIG_IGN."""


class _CommandRun:
    """One command and the pipes to it."""

    def __init__(self, branch: Branch | Workspace, argv: Sequence[str], options: RunOptions) -> None:
        self.argv = list(argv)
        self.options = options
        self.pipes: dict[str, int] = {}
        self.output: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        data = options.input.encode() if isinstance(options.input, str) else options.input
        self.input_left = memoryview(data or b"")
        child_fds: list[int] = []
        try:
            self._connect(child_fds)
            self.process = spawn(
                branch,
                argv,
                (child_fds[0], child_fds[1], child_fds[2]),
                confinement=options.confinement,
                timeout=options.timeout,
                cwd=options.cwd,
                env=options.env,
                space=options.space,
                network_log=options.network_log,
            )
        except BaseException:
            self._disconnect()
            raise
        finally:
            fds.close(*child_fds)

    def _connect(self, child_fds: list[int]) -> None:
        """Open the pipes. Without input stdin is the null device; output that is not captured is this process's own."""
        if self.input_left:
            reader, self.pipes["stdin"] = fds.pipe()
            os.set_blocking(self.pipes["stdin"], False)
            child_fds.append(reader)
        else:
            child_fds.append(fds.track(lambda: os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)))
        for number, name in ((1, "stdout"), (2, "stderr")):
            if self.options.capture or self.options.on_output:
                self.pipes[name], writer = fds.pipe()
                child_fds.append(writer)
            else:
                child_fds.append(fds.track(functools.partial(os.dup, number)))

    def _disconnect(self) -> None:
        for name in list(self.pipes):
            fds.close(self.pipes.pop(name))

    def finish(self) -> Finished:
        """Write its input, read its output, wait for it, and return the result."""
        try:
            self._pump()
            self.process.wait()
            outputs = [b"".join(self.output[n]) if self.options.capture else None for n in ("stdout", "stderr")]
            results = [
                o.decode(errors="surrogateescape") if self.options.text and o is not None else o for o in outputs
            ]
            done = self.process.collect(self.argv, results[0], results[1])
        finally:
            self.process.close()
            self._disconnect()
        if self.options.check:
            done.check_returncode()
        return done

    def _pump(self) -> None:
        """Move bytes until the sandbox has ended and all its output was read."""
        with selectors.DefaultSelector() as selector:
            for name, fd in self.pipes.items():
                selector.register(fd, selectors.EVENT_WRITE if name == "stdin" else selectors.EVENT_READ, name)
            selector.register(self.process, selectors.EVENT_READ, "ended")
            while selector.get_map():
                ready = selector.select(self.process.supervision.interval)
                if not ready and self.process.supervision.is_exceeded():
                    self.process.kill()
                for key, _ in ready:
                    if key.data == "ended" or not self._transfer(key.data):
                        selector.unregister(key.fileobj)
                        if key.data == "stdin":
                            fds.close(self.pipes.pop("stdin"))

    def _transfer(self, name: str) -> bool:
        """Move one block through one pipe. Return False at the end of it."""
        if name == "stdin":
            try:
                self.input_left = self.input_left[os.write(self.pipes[name], self.input_left[:_BLOCK]) :]
            except BrokenPipeError:
                return False
            return bool(self.input_left)
        piece = os.read(self.pipes[name], _BLOCK)
        if piece and self.options.capture:
            self.output[name].append(piece)
        if piece and self.options.on_output is not None:
            self.options.on_output(name, piece)
        return bool(piece)
