"""The process on a node that runs attempts, one at a time, in branches over an unpacked snapshot.

It has a mount namespace of its own, in which the snapshot is mounted at the workspace's path, so that everything else
is as on the user's machine, and no mount outlives it. A worker of Ray starts it, sends it requests on stdin and reads
frames of JSON from it; it ends with the worker, and its sandboxes end with it. It has no connection to Ray.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import pickle
import secrets
import stat
import sys
import threading
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.cluster.node_request import NODE_DIRECTORY, NodeRequest, find_node_directory, read_frame, write_frame
from forkwise.concurrency import finish, post, run_in_thread
from forkwise.errors import BranchingError, NodeError
from forkwise.files.workspace import Workspace
from forkwise.fork.attempt import make_exchange_directory, read_regular_file
from forkwise.fork.candidate import error_as_data, judge
from forkwise.fork.fault import find_fault
from forkwise.fork.runner import Job, SandboxRunner
from forkwise.linux import namespace
from forkwise.linux.syscalls import CLONE_NEWNS, MNT_DETACH, MS_BIND, MS_PRIVATE, MS_REC, mount, umount2, unshare
from forkwise.linux.trees import closing_fd, open_root, remove_tree
from forkwise.sandbox.network.gateway import resolve_network
from forkwise.sandbox.network.uplink import find_uplink_program
from forkwise.snapshot.object_store import ObjectStore
from forkwise.snapshot.packed_delta import PackedDelta

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.fork.run_end import RunEnd
    from forkwise.testing.report import TestReport

__all__ = ["main"]

_BATCH = 1 << 18
_MAX_SCORE = 200
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # O_PATH, as of open_root, has no locks
_MAX_MESSAGE = 4000
_REQUEST, _CANCEL = b"r", b"c"


class _NodeState:
    """The state of the branches of this process: a directory with a lock, which the next process removes after a kill.

    In this process's namespace it is mounted over the directory that holds the state of all such processes, so that its
    sandboxes cannot see the others. ``directory`` is its path there, ``path`` its path for other processes.
    """

    def __init__(self, node: str) -> None:
        top = f"{node}/state"
        os.makedirs(top, mode=0o700, exist_ok=True)
        _remove_abandoned(top)
        self.name = f"run-{secrets.token_hex(8)}"
        self.path = f"{top}/{self.name}"
        self._top = top
        with closing_fd(os.open(top, _DIRECTORY)) as fd:
            fcntl.flock(fd, fcntl.LOCK_SH)  # nobody removes abandoned directories until the new one is locked
            os.mkdir(self.path, 0o700)
            self._lock_fd = os.open(self.path, _DIRECTORY)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        mount(self.path, top, None, MS_BIND)
        self.directory = top
        self.root = f"{top}/forkwise"  # sandboxes cover a directory of this name completely

    def remove(self) -> None:
        """Remove the directory."""
        umount2(self._top, MNT_DETACH)
        with closing_fd(open_root(self._top)) as fd:
            remove_tree(fd, self.name)
        os.close(self._lock_fd)


def _remove_abandoned(top: str) -> None:
    """Remove the state of processes that were killed."""
    with closing_fd(os.open(top, _DIRECTORY)) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        for name in os.listdir(fd):
            try:
                lock_fd = os.open(name, _DIRECTORY, dir_fd=fd)
            except OSError:
                continue
            with closing_fd(lock_fd), suppress(BlockingIOError):
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(fd, name)


class _Bound:
    """An unpacked snapshot mounted at the workspace's path, and the workspace there."""

    def __init__(self, unpacked: str, path: str, state: str, snapshots: str) -> None:
        self.key = (unpacked, path)
        self._snapshots = snapshots
        _make_mount_point(path)
        mount(unpacked, path, None, MS_BIND)
        mount("none", snapshots, "tmpfs", 0, "mode=700,size=4k")  # sandboxes see no other snapshots
        try:
            self.workspace = Workspace(path, state=state, durable=False)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unmount it."""
        umount2(self._snapshots, MNT_DETACH)
        umount2(self.key[1], MNT_DETACH)


def _make_mount_point(path: str) -> None:
    """Make a directory at ``path`` in this process's mount namespace; nothing is created on the node's disk.

    The nearest directory above that exists is covered by an empty one, in which everything it had is mounted again.
    """
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if above == "/" or not os.path.isdir(above) or os.path.realpath(above) != above:
        raise NodeError(
            f"the workspace's path {path} cannot be mounted on this node: {above} is no directory that could hold it; "
            "create the path on each node"
        )
    with closing_fd(open_root(above)) as fd:
        entries = [(entry.name, entry.stat(follow_symlinks=False)) for entry in os.scandir(fd)]
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        mount("none", above, "tmpfs", 0, f"mode={mode:o}")
        for name, found in entries:
            old, new = f"/proc/self/fd/{fd}/{name}", f"{above}/{name}"
            if stat.S_ISLNK(found.st_mode):
                os.symlink(os.readlink(old), new)
                continue
            if stat.S_ISDIR(found.st_mode):
                os.mkdir(new)
            else:
                os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
            mount(old, new, None, MS_BIND | MS_REC)
    os.makedirs(path)


class _NodeProgram:
    """Runs the requests of one worker."""

    def __init__(self, answer_fd: int) -> None:
        self._node = find_node_directory()
        self._state = _NodeState(self._node)
        self._answer_fd = answer_fd
        self._write_lock = threading.Lock()
        self._bound: _Bound | None = None

    def close(self) -> None:
        """Unmount and remove everything."""
        if self._bound is not None:
            self._bound.close()
        self._state.remove()

    def answer(self, **facts: Any) -> None:
        """Send a frame to the worker."""
        with self._write_lock:
            write_frame(self._answer_fd, json.dumps(facts).encode())

    async def run(self, request: NodeRequest) -> None:
        """Run one attempt and send its end; a cancelled one has no end."""
        try:
            end = await self._run(request)
        except asyncio.CancelledError:
            self.answer(cancelled=True)
            return
        except Exception as error:  # noqa: BLE001 - it is reported as a fault of this node
            fault = find_fault(error) or "node"
            end = {"ending": "raised", "error": error_as_data(error), "fault": fault, "has_started": False}
        self.answer(end=end)

    async def _run(self, request: NodeRequest) -> dict[str, Any]:
        workspace = self._bind(request)
        branch = workspace.branch(request.branch, None, None)
        try:
            if request.ignore is not None:
                branch.set_ignore(request.ignore)
            return await self._run_in(branch, request)
        finally:
            await finish(run_in_thread(branch.abort))

    def _bind(self, request: NodeRequest) -> Workspace:
        path = request.workspace
        if self._node == path or self._node.startswith(f"{path.rstrip('/')}/"):
            raise NodeError(
                f"the node's directory {self._node} is inside {path}, where the workspace is mounted: name another one "
                f"in {NODE_DIRECTORY} when the node is started"
            )
        if self._bound is not None and self._bound.key != (request.unpacked, path):
            self._bound.close()
            self._bound = None
        if self._bound is None:
            self._bound = _Bound(request.unpacked, path, self._state.root, f"{self._node}/snapshots")
        return self._bound.workspace

    async def _run_in(self, branch: Branch, request: NodeRequest) -> dict[str, Any]:
        exchange = make_exchange_directory(branch)
        for name, content in request.exchange.items():
            Path(exchange, os.path.basename(name)).write_bytes(content)
        environment = {
            name: value.replace(request.exchange_directory, exchange, 1)
            if request.exchange_directory and value.startswith(f"{request.exchange_directory}/")
            else value
            for name, value in request.environment.items()
        }
        confinement = await run_in_thread(resolve_network, request.confinement)
        _require_private(confinement.network)
        if request.function is not None and request.confinement.network == "auto":  # the proxy is for commands
            confinement = replace(confinement, network="private" if find_uplink_program() else "none")
        runner = SandboxRunner(
            confinement,
            request.agent_paths,
            subdirectory=request.subdirectory,
            servers=request.servers,
            server_confinement=request.server_confinement or confinement,
        )
        job = Job(
            branch,
            None if request.function is None else pickle.loads(request.function),
            request.argv,
            request.timeout,
            environment,
            (exchange,) if request.argv is not None else (),
            on_output=lambda stream, piece: self.answer(output=[stream, base64.b64encode(piece).decode()]),
            on_server_output=lambda name, stream, piece: self.answer(
                server=[name, stream, base64.b64encode(piece).decode()]
            ),
        )
        end = await runner.run(job)
        facts = _describe_end(end)
        score = await run_in_thread(read_regular_file, f"{exchange}/score", _MAX_SCORE)
        if score is not None:
            facts["score"] = base64.b64encode(score).decode()
        elif os.path.lexists(f"{exchange}/score"):
            facts["score"] = base64.b64encode(b"?" * (_MAX_SCORE + 1)).decode()
        if not os.path.isdir(branch.home):
            return facts
        delta = await run_in_thread(lambda: branch.delta(ignore=()))
        has_changed = bool(len(delta) or delta.repository)
        is_idle = request.must_change and not has_changed
        if judge(end, request.timeout, has_feedback=request.has_feedback).success and not is_idle:
            facts["reports"] = [await self._test(branch, one, baseline) for one, baseline in request.tests]
        if has_changed:
            facts["delta"], facts["objects"] = await run_in_thread(self._pack, branch, request)
        return facts

    async def _test(self, branch: Branch, evaluator: Any, baseline: Any) -> dict[str, Any] | None:
        """Run tests on the branch. Return None if a fault of this node prevented it: they run on the user's machine."""
        try:
            report: TestReport = await evaluator.judge_elsewhere(branch, baseline)
        except Exception as error:
            if find_fault(error) is None:
                raise
            return None
        return {**report.as_json(), "outcomes": dict(report.outcomes)}

    def _pack(self, branch: Branch, request: NodeRequest) -> tuple[str, str]:
        """Pack the changes into a directory that the worker copies to the store and removes."""
        name = f"delta-{secrets.token_hex(8)}"
        store = ObjectStore(f"{self._state.directory}/{name}", key=request.key)
        packed = PackedDelta.create(branch, store, owner=request.owner)
        return packed.id, f"{self._state.path}/{name}"


def _require_private(network: str) -> None:
    """Raise NodeError if a command would share the node's network."""
    if network == "host":
        raise NodeError(
            "the attempt was not started: in the node's own network it could reach Ray and run programs outside of its "
            "sandbox. Allow network namespaces on the nodes, or use --network none"
        )


def _describe_end(end: RunEnd) -> dict[str, Any]:
    """Convert the end of a job to JSON types."""
    facts: dict[str, Any] = {
        "ending": end.ending,
        "exit_code": end.exit_code,
        "wall": end.wall,
        "cpu": end.cpu,
        "memory": end.memory,
        "limit": end.limit,
        "success": end.success,
        "fault": end.fault,
        "has_started": end.has_started,
        "value": end.value,
        "is_tuple": isinstance(end.value, tuple),
    }
    if end.error is not None:
        facts["error"] = error_as_data(end.error)
    return facts


def _read_requests(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[bytes | None]) -> None:
    """Pass frames of stdin on to the event loop; None at its end, when the worker has ended."""
    frame: bytes | None = b""
    while frame is not None:
        try:
            frame = read_frame(0)
        except OSError:
            frame = None
        post(loop, queue.put_nowait, frame)


async def _serve(program: _NodeProgram) -> None:
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()
    threading.Thread(
        target=_read_requests, args=(asyncio.get_running_loop(), queue), name="requests", daemon=True
    ).start()
    program.answer(ready=True)
    work: asyncio.Task[None] | None = None
    while (frame := await queue.get()) is not None:
        if frame[:1] == _CANCEL:
            if work is not None:
                work.cancel()
        elif frame[:1] == _REQUEST:
            if work is not None:
                await work
            work = asyncio.create_task(program.run(pickle.loads(frame[1:])))
    if work is not None:
        work.cancel()
        with suppress(OSError):  # nobody reads the answer
            await work


def _enter_namespace() -> None:
    """Enter a mount namespace whose mounts no other process sees."""
    if namespace.may_mount():
        unshare(CLONE_NEWNS)
        mount("none", "/", None, MS_REC | MS_PRIVATE)
    else:
        namespace.enter_namespace()


def main() -> None:
    """Serve the requests on stdin until its end."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # anything printed goes to the worker's log
    warnings.simplefilter("ignore")
    try:
        _enter_namespace()
        program = _NodeProgram(answer_fd)
    except (BranchingError, OSError) as error:
        write_frame(answer_fd, json.dumps({"problem": str(error)[:_MAX_MESSAGE]}).encode())
        sys.exit(1)
    try:
        asyncio.run(_serve(program))
    finally:
        with suppress(OSError):
            program.close()


if __name__ == "__main__":
    main()
