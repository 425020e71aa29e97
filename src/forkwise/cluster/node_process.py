"""NodeProcess: the node program as seen by the worker of Ray that starts it, and an attempt run through it."""

from __future__ import annotations

import base64
import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forkwise.cluster.node_request import NodeRequest, find_node_directory, parse_answer, read_frame, write_frame
from forkwise.errors import NodeError
from forkwise.linux.trees import closing_fd, open_root, remove_tree
from forkwise.snapshot.snapshot import Snapshot
from forkwise.snapshot.snapshot_cache import SnapshotCache, UnpackedSnapshot

if TYPE_CHECKING:
    from types import TracebackType

    from forkwise.snapshot.object_store import ObjectStore

__all__ = ["NodeProcess", "run_on_node"]

_POLL_S = 0.05  # how late a cancellation by Ray is noticed: it does not interrupt a system call
_PATIENCE_S = 20.0

#: Takes a stream (``stdout``, ``stderr``, that of a server) and a piece of output; both are empty while there is none.
OnOutput = Callable[[str, bytes], None]


class NodeProcess:
    """A running node program. It is used for one attempt after the other."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "forkwise.cluster.node_program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._request_fd, self._answer_fd = self._process.stdin.fileno(), self._process.stdout.fileno()
        try:
            first = self._read()
        except BaseException:
            self.close()
            raise
        if "problem" in first:
            self.close()
            raise NodeError(f"attempts cannot run on this node: {str(first['problem'])[:2000]}")

    def run(self, request: NodeRequest, on_output: OnOutput) -> dict[str, Any]:
        """Run an attempt and return its end, as JSON. An interrupt cancels the attempt, with all its processes."""
        try:
            write_frame(self._request_fd, b"r" + pickle.dumps(request))
            while True:
                answer = self._read(on_idle=lambda: on_output("", b""))
                if "end" in answer:
                    return _require_object(answer["end"])
                if "output" in answer:
                    stream, piece = answer["output"]
                    on_output(str(stream), base64.b64decode(piece))
                elif "server" in answer:
                    name, stream, piece = answer["server"]
                    on_output(f"{stream}:{name}", base64.b64decode(piece))
        except KeyboardInterrupt:
            self._cancel()
            raise
        except BrokenPipeError as error:
            raise _describe_death(self._process) from error

    def _cancel(self) -> None:
        """Wait until the attempt that runs has ended; kill the node program if that takes long."""
        deadline = time.monotonic() + _PATIENCE_S
        with suppress(OSError, NodeError):
            write_frame(self._request_fd, b"c")
            while time.monotonic() < deadline:
                answer = self._read(deadline)
                if "cancelled" in answer or "end" in answer:
                    return
        self.close()

    @property
    def is_alive(self) -> bool:
        """Whether the program runs."""
        return self._process.poll() is None

    def _read(self, deadline: float | None = None, on_idle: Callable[[], None] | None = None) -> dict[str, Any]:
        while not select.select([self._answer_fd], [], [], _POLL_S)[0]:
            if on_idle is not None:
                on_idle()
            if deadline is not None and time.monotonic() > deadline:
                raise NodeError("the node program did not answer in time")
        data = read_frame(self._answer_fd)
        if data is None:
            raise _describe_death(self._process)
        return parse_answer(data)

    def close(self) -> None:
        """End the program and everything that it runs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def _describe_death(process: subprocess.Popen[bytes]) -> NodeError:
    return NodeError(f"the process that runs attempts on this node ended with {process.poll()} in the middle of one")


def _require_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NodeError("a node process sent a malformed end of an attempt")
    return value


_process: NodeProcess | None = None
_held: tuple[str, UnpackedSnapshot] | None = None  # the last snapshot: the node process has it mounted


def run_on_node(request: NodeRequest, store: ObjectStore, on_output: OnOutput) -> dict[str, Any]:
    """Run an attempt on this node: unpack its snapshot once, run it, and copy its changes to the store.

    The node program, and what it has mounted, are kept for the next attempt of this process.
    """
    global _process
    unpacked = _unpack(request, store)
    if _process is None or not _process.is_alive:
        _process = NodeProcess()
    end = _process.run(replace(request, unpacked=os.fspath(unpacked.path)), on_output)
    if "objects" in end:
        _copy_objects(str(end.pop("objects")), store)
    return end


def _unpack(request: NodeRequest, store: ObjectStore) -> UnpackedSnapshot:
    """Return the snapshot of a request, unpacked, and hold it until another one is used."""
    global _held
    if _held is not None and _held[0] == request.snapshot:
        return _held[1]
    cache = SnapshotCache(f"{find_node_directory()}/snapshots", max_bytes=request.max_cache_bytes)
    if _held is not None:
        if _process is not None:  # it has the snapshot mounted
            _close_process()
        _held[1].release()
        _held = None
    found = cache.unpack(Snapshot.load(store, request.snapshot), store)
    _held = (request.snapshot, found)
    return found


def _close_process() -> None:
    global _process
    if _process is not None:
        _process.close()
        _process = None


def _copy_objects(directory: str, store: ObjectStore) -> None:
    """Copy a packed delta from a directory to the store, its header last, and remove the directory."""
    top, name = os.path.split(directory)
    if os.path.dirname(os.path.dirname(top)) != find_node_directory():
        raise NodeError(
            f"the changes of an attempt were not taken from {directory[:200]!r}, which is another directory"
        )
    try:
        with store.writer():
            for part in ("objects", "deltas"):
                for parent, _, files in os.walk(f"{directory}/{part}"):
                    for file in files:
                        with open(f"{parent}/{file}", "rb") as content:
                            store.put(os.path.relpath(f"{parent}/{file}", directory), content.read())
    finally:
        with closing_fd(open_root(top)) as fd:
            remove_tree(fd, name)
