"""The servers of one branch while they run: started in order, watched, and stopped cleanly.

Each server is a sandbox of its own over the branch, in the network of the branch: it has its own processes, and ends
with the group. Whether it is ready is checked from outside.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from forkwise.concurrency import finish, finish_then_cancel, run_in_thread
from forkwise.errors import BranchingError, ProcessBranchError, ServerError
from forkwise.files.store.branch_info import hold_serving
from forkwise.linux import fds
from forkwise.linux.directory_user import find_directory_user
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.jail_plan import is_private
from forkwise.sandbox.network.gateway import NetworkLog, open_logged_network
from forkwise.sandbox.path_view import make_path_view
from forkwise.sandbox.process import signal_name
from forkwise.sandbox.run import run_in_branch, spawn
from forkwise.servers.data_branch import has_data_of_one_moment
from forkwise.text.clean import clean_text
from forkwise.text.redaction import redact

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.sandbox.launcher import ForkserverConnection
    from forkwise.sandbox.network.space import NetworkSpace
    from forkwise.sandbox.process import SandboxProcess
    from forkwise.servers.server_file import Server

__all__ = ["BranchNetwork", "ServerGroup", "ServerOutput", "serve"]

#: Called with the name of a server, ``stdout`` or ``stderr``, and a piece of its output.
ServerOutput = Callable[[str, str, bytes], None]

_BLOCK = 1 << 16
_TAIL = 8192  # bytes of the end of the output that are kept for messages
_SHOWN_LINES = 20
_LONGEST_LINE = 4096
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.25
_REQUEST_TIMEOUT_S = 5.0
_GOOD_STATUS = range(200, 400)
_WHOLE_PATH_VIEWS = ("overlay", "reflink")


class BranchNetwork:
    """The network that the sandboxes of one branch share: that of ``confinement``, but never the host's."""

    def __init__(
        self,
        confinement: Confinement,
        *,
        client: ForkserverConnection | None = None,
        network_log: NetworkLog | None = None,
    ) -> None:
        if confinement.network in ("host", "auto"):
            confinement = replace(confinement, network="proxy")
        self.space = open_logged_network(confinement, network_log, client=client)

    def close(self) -> None:
        """End it, with everything that still runs in it."""
        self.space.close()


class ServerGroup:
    """The servers of one branch.

    ``confinement`` is that of the branch's tests. ``space`` is the network that the branch's sandboxes share; None for
    the host's. ``on_output`` gets what the servers print.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        branch: Branch,
        *,
        confinement: str | Confinement = "standard",
        space: NetworkSpace | None = None,
        on_output: ServerOutput | None = None,
    ) -> None:
        self._servers = tuple(servers)
        self._branch = branch
        self._confinement = Confinement.preset(confinement)
        self.space = space
        self._on_output = on_output
        self._runs: list[_ServerRun] = []
        self._serving_fd = -1
        self._is_cancelled = threading.Event()

    def start(self) -> None:
        """Start all servers, each once the one before it is ready, and block until the last one is ready.

        Raises ServerError if one does not become ready, after killing the others.
        """
        if self._servers and is_private(self._branch):
            raise ServerError(
                f"{self._branch.branch_path} is an overlay that one sandbox at a time can mount, and its servers need "
                "one each: call forkwise.enter_namespace() when the program starts, or use the view fuse",
                server=self._servers[0].name,
            )
        try:
            if self._servers:
                self._serving_fd = hold_serving(self._branch.home)
            if self._servers and self.space is not None:
                self.space.register(self._branch)  # for forkwise open
            for server in self._servers:
                self._start_server(server)
        except BaseException:
            self.kill()
            raise

    def _check_data(self, server: Server) -> None:
        """Raise ServerError if the server's data is not part of the branch, or is in use and not a snapshot.

        While a process uses the data, the files that the branch shows keep changing and are incomplete, unless the
        branch has a snapshot of them: see ``hold_data``.
        """
        if server.data is None:
            return
        if server.outer_data is not None:
            self._check_outer_data(server, server.outer_data)
            return
        root = os.fspath(self._branch.workspace.path)
        path = os.path.join(root, server.data)
        if os.path.realpath(path) != path:
            raise ServerError(
                f"server {server.name!r} was not started: its data directory {server.data} is reached through a "
                "symbolic link, and what that leads to is not part of the branch: move it into the workspace",
                server=server.name,
            )
        if os.path.isdir(path) and os.stat(path).st_dev != os.stat(root).st_dev:
            raise ServerError(
                f"server {server.name!r} was not started: its data directory {server.data} is on another filesystem "
                "than the workspace, and is not part of its branches: move it, or move the workspace to the same one",
                server=server.name,
            )
        if has_data_of_one_moment(self._branch, server.data):
            return
        user = find_directory_user(path)
        if user is not None:
            raise ServerError(
                f"server {server.name!r} was not started: its data directory {server.data} is in use by {user} in the "
                "workspace, so that the branch has no consistent copy. Stop that process; attempts get servers of "
                "their own. On btrfs, or XFS with reflinks, it may continue to run with --frozen",
                server=server.name,
            )

    def _check_outer_data(self, server: Server, path: str) -> None:
        """Raise ServerError if the branch cannot have a view of a data directory that is outside of the workspace."""
        problem = _find_outer_problem(path, self._branch)
        if not problem:
            try:
                kind = make_path_view(self._branch, path).kind
            except (BranchingError, OSError) as error:
                problem = str(error)
            else:
                if kind not in _WHOLE_PATH_VIEWS:
                    problem = (
                        "neither an overlay nor reflinks of it can be made here, and copies leave out large files. Set "
                        "FORKWISE_STATE to a directory on ext4, XFS, btrfs or tmpfs"
                    )
        if problem:
            raise ServerError(
                f"server {server.name!r} was not started on a view of its data directory {path}: {problem}",
                server=server.name,
            )

    def _start_server(self, server: Server) -> None:
        self._check_data(server)
        for command in server.before:
            self._run_command(server, command, "before it was started", has_data=True)
        port = server.ready.served_port
        if port is not None and self._can_connect(port):
            others = ", ".join(run.server.name for run in self._runs)
            raise ServerError(
                f"server {server.name!r} was not started: port {port} is taken already"
                + (f", by one of {others}" if others else " by another program on this machine")
                + "; give it another port",
                server=server.name,
            )
        run = self._spawn(server)
        self._runs.append(run)
        self._wait_until_ready(run)
        for command in server.after:
            self._run_command(server, command, "after it was ready")
            self._check_run(run)

    def _spawn(self, server: Server) -> _ServerRun:
        reader = writer = null = -1
        try:
            reader, writer = fds.pipe()
            null = fds.track(lambda: os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
            process = spawn(
                self._branch,
                self._build_argv(server, server.command),
                (null, writer, writer),
                confinement=self._confine(server, has_data=True),
                space=self.space,
            )
        except (BranchingError, OSError) as error:
            fds.close(reader)
            raise ServerError(f"server {server.name!r} could not be started: {error}", server=server.name) from error
        except BaseException:
            fds.close(reader)
            raise
        finally:
            fds.close(*(fd for fd in (writer, null) if fd >= 0))
        return _ServerRun(server, process, reader, self._on_output)

    def _confine(self, server: Server, *, has_data: bool = False) -> Confinement:
        """Return the confinement of a command of a server.

        Only one sandbox at a time can have the view of a data directory outside the workspace; ``has_data`` selects it.
        """
        views = () if server.outer_data is None or not has_data else (server.outer_data,)
        passed = {name: os.environ[name] for name in server.passed if name in os.environ}
        return replace(
            self._confinement,
            branched=(*self._confinement.branched, *views),
            given={**self._confinement.given, **passed, **server.env},
            limits=replace(self._confinement.limits, wall=None),
        )

    def _build_argv(self, server: Server, command: Sequence[str]) -> list[str]:
        """Return the command line. Root runs it as the server's user, because databases refuse to run as root."""
        account = self._find_account(server)
        if account is None:
            return list(command)
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise ServerError(
                f"server {server.name!r} cannot run as the user with id {account[0]}: setpriv, of the package "
                "util-linux, is not installed",
                server=server.name,
            )
        return [setpriv, f"--reuid={account[0]}", f"--regid={account[1]}", "--clear-groups", "--", *command]

    def _find_account(self, server: Server) -> tuple[int, int] | None:
        """Return the user and group to switch to; None to keep those of this process."""
        if os.geteuid() != 0:
            return None
        if server.user is not None:
            try:
                found = pwd.getpwnam(server.user)
            except KeyError:
                raise ServerError(
                    f"server {server.name!r} cannot run as {server.user!r}: there is no such user", server=server.name
                ) from None
            return (found.pw_uid, found.pw_gid) if found.pw_uid else None
        if server.data is None:
            return None
        try:
            status = os.lstat(os.path.join(self._branch.path, server.data))
        except OSError:
            return None
        return (status.st_uid, status.st_gid) if status.st_uid else None

    def _run_command(self, server: Server, command: Sequence[str], when: str, *, has_data: bool = False) -> None:
        """Run a command that prepares a server. Raises ServerError if it fails."""
        tail = bytearray()

        def keep(stream: str, piece: bytes) -> None:
            tail.extend(piece)
            del tail[:-_TAIL]
            if self._on_output is not None:
                self._on_output(server.name, stream, piece)

        try:
            done = run_in_branch(
                self._branch,
                self._build_argv(server, command),
                confinement=self._confine(server, has_data=has_data),
                timeout=server.timeout,
                capture=False,
                on_output=keep,
                space=self.space,
            )
        except (ProcessBranchError, OSError) as error:
            raise ServerError(
                f"a command for server {server.name!r}, {when}, could not be run: {error}", server=server.name
            ) from error
        if self._is_cancelled.is_set():
            raise ServerError(f"server {server.name!r} was cancelled", server=server.name)
        if done.returncode != 0:
            how = f"did not end within {server.timeout:g} s" if done.ending == "timeout" else f"failed ({done.ending}"
            how = how if done.ending == "timeout" else f"{how} {done.returncode})"
            raise ServerError(
                f"the command {' '.join(command)!r} for server {server.name!r}, {when}, {how}",
                server=server.name,
                output=_format_tail(bytes(tail)),
            )

    # Readiness

    def _wait_until_ready(self, run: _ServerRun) -> None:
        server = run.server
        deadline = time.monotonic() + server.timeout
        pause = _FIRST_PAUSE_S
        while True:
            if self._is_cancelled.is_set():
                raise ServerError(f"server {server.name!r} was cancelled before it was ready", server=server.name)
            self._check_run(run, "before it was ready")
            if self._is_ready(run, deadline):
                self._check_run(run)
                return
            if time.monotonic() >= deadline:
                raise ServerError(
                    f"server {server.name!r} was not ready after {server.timeout:g} s (it waits for {server.ready}). "
                    "Correct its command or what it waits for, or allow more time with timeout",
                    server=server.name,
                    output=run.read_tail(),
                )
            run.wait_for_event(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)

    def _is_ready(self, run: _ServerRun, deadline: float) -> bool:
        ready = run.server.ready
        if ready.log is not None:
            return run.has_printed_line.is_set()
        if ready.port is not None:
            return self._can_connect(ready.port)
        if ready.url is not None:
            return self._can_get(ready.url)
        assert ready.command is not None
        try:
            done = run_in_branch(
                self._branch,
                self._build_argv(run.server, ready.command),
                confinement=self._confine(run.server),
                timeout=max(deadline - time.monotonic(), 0.1),
                space=self.space,
            )
        except ProcessBranchError as error:
            raise ServerError(
                f"whether server {run.server.name!r} is ready cannot be checked: {error}", server=run.server.name
            ) from error
        return done.returncode == 0

    def _connect(self, port: int) -> socket.socket:
        if self.space is not None:
            return self.space.connect(port, timeout=_REQUEST_TIMEOUT_S)
        return socket.create_connection(("127.0.0.1", port), timeout=_REQUEST_TIMEOUT_S)

    def _can_connect(self, port: int) -> bool:
        try:
            self._connect(port).close()
        except OSError:
            return False
        return True

    def _can_get(self, url: str) -> bool:
        """Return whether a GET request is answered with a good status. Only the first line of the answer is read."""
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        request = f"GET {target} HTTP/1.0\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
        try:
            with self._connect(parts.port or 80) as connection:
                connection.settimeout(_REQUEST_TIMEOUT_S)
                connection.sendall(request.encode("ascii"))
                answer = connection.recv(_LONGEST_LINE)
        except OSError:
            return False
        words = answer.split(None, 2)
        is_http = len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() and len(words[1]) == 3
        return is_http and int(words[1]) in _GOOD_STATUS

    # While they run, and their end

    def check(self) -> None:
        """Raise ServerError if a server has ended by itself."""
        for run in self._runs:
            self._check_run(run)

    def _check_run(self, run: _ServerRun, when: str = "while it was needed") -> None:
        if run.process.alive:
            return
        how = run.describe_end()
        hint = ""
        if how == "exit code 0":
            hint = "; a server has to stay in the foreground: one that detaches itself is ended with its first process"
        raise ServerError(
            f"server {run.server.name!r} ended {when} ({how}){hint}", server=run.server.name, output=run.read_tail()
        )

    def stop(self) -> None:
        """Stop the servers in reverse order, each by its signal, and wait for their ends."""
        for run in reversed(self._runs):
            run.stop()
        self.kill()

    def kill(self) -> None:
        """Kill the servers at once."""
        for run in reversed(self._runs):
            run.close()
        self._runs.clear()
        if self._serving_fd >= 0:
            os.close(self._serving_fd)
            self._serving_fd = -1

    def cancel(self) -> None:
        """Make ``start``, running in another thread, raise soon; it then kills the servers."""
        self._is_cancelled.set()


@asynccontextmanager
async def serve(
    servers: Sequence[Server],
    branch: Branch,
    *,
    confinement: str | Confinement = "standard",
    space: NetworkSpace | None = None,
    uses_host_network: bool = False,
    on_output: ServerOutput | None = None,
    network_log: NetworkLog | None = None,
) -> AsyncIterator[ServerGroup]:
    """Run servers in a branch while the block runs.

    The branch gets a network of its own, ``ServerGroup.space``, unless there are no servers, or ``space`` is given, or
    ``uses_host_network`` asks for the host's. ``network_log`` opens the log of the connections of such a network.

    Raises ServerError if one does not become ready, or has ended by itself before the block ends. They are stopped
    cleanly at the end of the block, and killed if it raises.
    """
    if not servers:
        yield ServerGroup((), branch, space=space)
        return
    network: BranchNetwork | None = None
    if space is None and not uses_host_network:
        wanted = Confinement.preset(confinement)
        network = await finish_then_cancel(run_in_thread(lambda: BranchNetwork(wanted, network_log=network_log)))
        space = network.space
    group = ServerGroup(servers, branch, confinement=confinement, space=space, on_output=on_output)
    start = run_in_thread(group.start)
    try:
        try:
            await asyncio.shield(start)
        except asyncio.CancelledError:
            group.cancel()
            with suppress(BaseException):  # the cancellation takes precedence
                await finish(start)
            raise
        yield group
        await finish_then_cancel(run_in_thread(group.check))
        await finish_then_cancel(run_in_thread(group.stop))
    finally:
        await finish(run_in_thread(group.kill))
        if network is not None:
            await finish(run_in_thread(network.close))


class _ServerRun:
    """One server while it runs: its sandbox, and a thread that reads its output."""

    def __init__(self, server: Server, process: SandboxProcess, output_fd: int, on_output: ServerOutput | None) -> None:
        self.server = server
        self.process = process
        self.has_printed_line = threading.Event()
        self._event = threading.Event()
        self._output_fd = output_fd
        self._on_output = on_output
        self._tail = bytearray()
        self._lock = threading.Lock()
        self._line = b""
        self._end: str | None = None
        self._reader = threading.Thread(target=self._read_output, name=f"forkwise server {server.name}", daemon=True)
        self._reader.start()

    def _read_output(self) -> None:
        wanted = None if self.server.ready.log is None else os.fsencode(self.server.ready.log).split(b"*")
        while piece := os.read(self._output_fd, _BLOCK):
            with self._lock:
                self._tail.extend(piece)
                del self._tail[:-_TAIL]
            if self._on_output is not None:
                self._on_output(self.server.name, "stdout", piece)
            if wanted is not None and not self.has_printed_line.is_set():
                *lines, self._line = (self._line + piece).split(b"\n")
                self._line = self._line[-_LONGEST_LINE:]
                if any(_has_parts(line, wanted) for line in (*lines, self._line)):
                    self.has_printed_line.set()
                    self._event.set()
        self._event.set()

    def wait_for_event(self, timeout_s: float) -> None:
        """Wait until the awaited line was printed, or all output was read because the server has ended."""
        self._event.wait(timeout_s)

    def read_tail(self) -> str:
        """Return the last lines of its output."""
        if not self.process.alive:
            self._reader.join(_REQUEST_TIMEOUT_S)
        with self._lock:
            return _format_tail(bytes(self._tail))

    def describe_end(self) -> str:
        """Describe how it ended; call it only after the end."""
        if self._end is None:
            try:
                done = self.process.collect(self.server.command, None, None)
            except ProcessBranchError as error:
                self._end = str(error)
            else:
                self._end = f"exit code {done.returncode}"
                if done.ending != "exit":
                    self._end = f"{done.ending} {signal_name(-done.returncode)}"
        return self._end

    def stop(self) -> None:
        """Send it its signal, wait for its end, and kill it if that takes too long."""
        rule = self.server.stop
        if self.process.alive and _signal_command(self.process.pid, rule.signal):
            self.process.wait(rule.timeout)
        self.close()

    def close(self) -> None:
        """Kill it if it still runs, and read the rest of its output."""
        self.process.close()
        self._reader.join()
        if self._output_fd >= 0:
            fds.close(self._output_fd)
            self._output_fd = -1


def _find_outer_problem(path: str, branch: Branch) -> str:
    """Return why a directory outside of the workspace cannot be the data directory of a server in a branch."""
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        return "there is no such directory; create it with the server's own program first"
    if real != path:
        return f"it is reached through a symbolic link: name {real}"
    near = [os.fspath(branch.workspace.path), branch.state_dir.state, os.path.expanduser("~"), os.sep]
    for other in map(os.path.realpath, near):
        if f"{other}/".startswith(f"{real.rstrip('/')}/"):
            return f"it contains {other}; name the directory of the database itself"
    if f"{real}/".startswith(f"{os.path.realpath(branch.workspace.path)}/"):
        return "it is in the workspace: name it relative to that"
    user = find_directory_user(real)
    if user is not None:
        return (
            f"it is in use by {user}, so that no branch has a consistent copy. Stop that process; attempts get servers "
            "of their own"
        )
    return ""


def _has_parts(line: bytes, parts: Sequence[bytes]) -> bool:
    """Return whether a line contains all parts in order; unlike a regular expression, this takes linear time."""
    position = 0
    for part in parts:
        found = line.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return True


def _signal_command(init_pid: int, number: signal.Signals) -> bool:
    """Send a signal to the command of a sandbox: the first child of its init process. Return whether there was one."""
    with suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{init_pid}/task/{init_pid}/children") as file:
            pid = int(file.read().split()[0])
        pidfd = os.pidfd_open(pid)
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # the number may have been reused before the pidfd was opened
                parent = int(file.read().rpartition(b")")[2].split()[1])
            if parent == init_pid:
                signal.pidfd_send_signal(pidfd, number)
                return True
        finally:
            os.close(pidfd)
    return False


def _format_tail(tail: bytes) -> str:
    """Return the last lines of an output as plain text without known secrets."""
    lines = redact(clean_text(tail)).rstrip().splitlines()[-_SHOWN_LINES:]
    return "\n".join(line[:_LONGEST_LINE] for line in lines)
