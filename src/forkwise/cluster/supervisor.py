"""Supervisor: the actor on a cluster that owns the attempts of a workspace, so that they survive the user's process.

It submits attempts as tasks, which Ray runs again elsewhere if a node dies, keeps their output and their ends until the
user's process has them, and keeps snapshots and deltas in Ray's object store where no other store was given. It is
detached: a later process finds it by its name. It ends by itself when it has had nothing to do for a while.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import pickle
import secrets
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forkwise.errors import BranchingError, NodeError

if TYPE_CHECKING:
    from forkwise.cluster.node_request import NodeRequest

__all__ = ["RayBackend", "Supervisor", "examine_node"]

_IDLE_S = 300.0  # without attempts and questions
_ORPHANED_S = 3600.0  # how long attempts keep running after the user's process stopped asking
_KEPT_S = 86400.0  # how long an end is kept for a process that resumes
_WAIT_S = 120.0  # long, because each call costs both sides time, and a thousand attempts may be waited for
_MAX_OUTPUT = 8 << 20
_PIECE = 1 << 16
_CONCURRENT = 10_000
_CANCELLED = json.dumps({"ending": "killed", "fault": None}).encode()


def _load_ray() -> Any:
    return importlib.import_module("ray")


@dataclass(slots=True)
class _Entry:
    """One attempt: its task, its output so far, and its end."""

    ref: Any = None
    runs: list[str] = field(default_factory=list)  # the last one counts
    node: str = ""
    pieces: list[tuple[str, bytes]] = field(default_factory=list)
    first: int = 0  # how many pieces were dropped
    size: int = 0
    end: bytes | None = None
    asked: float = field(default_factory=time.monotonic)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    follower: asyncio.Task[None] | None = None

    def add(self, stream: str, piece: bytes) -> None:
        """Keep a piece of output; the oldest ones are dropped if it is too much."""
        self.pieces.append((stream, piece))
        self.size += len(piece)
        while self.size > _MAX_OUTPUT and len(self.pieces) > 1:
            self.size -= len(self.pieces.pop(0)[1])
            self.first += 1
        self.wake()

    def wake(self) -> None:
        """Wake the callers that wait for news."""
        self.changed.set()
        self.changed = asyncio.Event()


class Supervisor:
    """The actor. All of its methods run on one event loop."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._objects: dict[str, tuple[Any, int, datetime]] = {}
        self._asked = time.monotonic()
        self._watch: asyncio.Task[None] | None = None
        self._cancelled: deque[str] = deque(maxlen=_CONCURRENT)
        self._task: Any = None
        self._own: Any = None

    async def start(self, key: str, request: bytes, options: Mapping[str, Any], token: str) -> Any:
        """Submit an attempt, unless it is known, and return the first news of it, as ``wait`` does.

        ``token`` is the same as in ``cancel``, which may have overtaken this call.
        """
        if key not in self._entries and token in self._cancelled:
            return 0, [], _CANCELLED, ""
        if key not in self._entries:
            entry = self._entries[key] = _Entry()
            if self._task is None:  # create it once: each new one would be sent to all nodes, and get its own workers
                ray = _load_ray()
                self._task = ray.remote(run_attempt)
                self._own = ray.get_runtime_context().current_actor
            entry.ref = self._task.options(**options).remote(key, request, self._own)
            entry.follower = asyncio.create_task(self._follow(entry))
        return await self.wait(key, 0)

    async def _follow(self, entry: _Entry) -> None:
        """Wait for the end of a task."""
        ray = _load_ray()
        try:
            entry.end = await entry.ref
        except (ray.exceptions.TaskCancelledError, asyncio.CancelledError):
            entry.end = _CANCELLED
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            kind = "" if isinstance(cause, BranchingError) else f"{type(cause).__name__}: "
            entry.end = _describe_fault(f"{kind}{str(cause)[:2000]}")
        except ray.exceptions.RayError as error:
            entry.end = _describe_fault(
                f"the node that ran it was lost, and so were those that ran it again ({type(error).__name__}: "
                f"{str(error).strip().splitlines()[0][:300]})"
            )
        entry.ref = None
        entry.wake()

    async def begin(self, key: str, run: str, node: str) -> None:
        """Note that an attempt begins on a node, for the first time or again after its node was lost."""
        entry = self._entries.get(key)
        if entry is None or run in entry.runs:
            return
        if entry.runs:
            entry.add(
                "stderr", b"\nforkwise: the node that ran this attempt was lost; it starts again on another one\n"
            )
        entry.node, entry.runs = node, [*entry.runs, run]

    async def push(self, key: str, run: str, node: str, pieces: list[tuple[str, bytes]]) -> None:
        """Take pieces of output; those of a node that was lost meanwhile are dropped."""
        await self.begin(key, run, node)  # of two calls, either may arrive first
        entry = self._entries.get(key)
        if entry is not None and entry.runs[-1] == run:
            for stream, piece in pieces:
                entry.add(stream, piece)

    async def wait(self, key: str, cursor: int) -> tuple[int, list[tuple[str, bytes]], bytes | None, str] | None:
        """Return the output after ``cursor``, the end if there is one, and the node, as soon as there is news.

        Returns None for an attempt that is not known.
        """
        self._touch()
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.asked = time.monotonic()
        if cursor >= entry.first + len(entry.pieces) and entry.end is None:
            changed = entry.changed
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), _WAIT_S)
        entry.asked = time.monotonic()
        begin = max(cursor - entry.first, 0)
        return entry.first + len(entry.pieces), entry.pieces[begin:], entry.end, entry.node

    async def cancel(self, key: str, token: str) -> None:
        """Cancel an attempt, wait until its processes have ended, and forget it."""
        self._touch()
        entry = self._entries.get(key)
        if entry is None:
            self._cancelled.append(token)
            return
        if entry.ref is not None and entry.follower is not None:
            _load_ray().cancel(entry.ref, force=False)
            await asyncio.wait([entry.follower])
        self._entries.pop(key, None)

    async def forget(self, keys: list[str]) -> None:
        """Forget attempts that have ended."""
        self._touch()
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and entry.end is not None:
                del self._entries[key]

    async def list_attempts(self) -> dict[str, tuple[str, int, bool]]:
        """Return, for each attempt, the node, the number of starts, and whether it has ended."""
        self._touch()
        return {key: (one.node, len(one.runs), one.end is not None) for key, one in self._entries.items()}

    # The store

    async def put_object(self, path: str, data: bytes, *, only_new: bool = False) -> bool:
        """Store bytes; with ``only_new``, return False if the path exists already."""
        self._touch()
        if only_new and path in self._objects:
            return False
        ref = _load_ray().put(data)
        self._objects[path] = (ref, len(data), datetime.now(UTC))
        return True

    async def find_object(self, path: str) -> list[Any] | None:
        """Return the reference to the bytes at a path, with their size and time; None if there are none."""
        self._touch()
        found = self._objects.get(path)
        return None if found is None else list(found)

    async def list_objects(self, prefix: str) -> list[tuple[str, int, datetime]]:
        """List what is stored below a prefix."""
        self._touch()
        return [(path, size, at) for path, (_, size, at) in self._objects.items() if path.startswith(prefix)]

    async def delete_object(self, path: str) -> bool:
        """Delete a path; return whether it existed."""
        self._touch()
        return self._objects.pop(path, None) is not None

    # Its end

    def _touch(self) -> None:
        self._asked = time.monotonic()
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_time())

    async def _watch_time(self) -> None:
        """Cancel attempts that nobody asks about any more, and end this actor when it has nothing to do."""
        ray = _load_ray()
        while True:
            await asyncio.sleep(10.0)
            now = time.monotonic()
            for key, entry in list(self._entries.items()):
                if entry.end is None and now - entry.asked > _ORPHANED_S and entry.ref is not None:
                    ray.cancel(entry.ref, force=False)
                elif entry.end is not None and now - entry.asked > _KEPT_S:
                    del self._entries[key]
            if not self._entries and now - self._asked > _IDLE_S:
                os._exit(0)


def _describe_fault(text: str) -> bytes:
    error = {"type": NodeError.__name__, "message": text, "traceback": ""}
    return json.dumps({"ending": "raised", "error": error, "fault": "node", "has_started": True}).encode()


class RayBackend:
    """A store in a cluster's memory, with the methods of obstore that ObjectStore uses."""

    def __init__(self, supervisor: Any) -> None:
        self._supervisor = supervisor
        self._ray = _load_ray()

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._ray.get(getattr(self._supervisor, method).remote(*arguments, **options))

    def put(self, path: str, file: bytes, *, mode: Any = None) -> Any:
        if not self._ask("put_object", path, bytes(file), only_new=mode == "create"):
            from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415 - loaded on use

            raise AlreadyExistsError(path)
        return None

    def get(self, path: str) -> Any:
        found = self._ask("find_object", path)
        if found is None:
            raise FileNotFoundError(path)
        return _Content(self._ray.get(found[0]))

    def head(self, path: str) -> Any:
        found = self._ask("find_object", path)
        if found is None:
            raise FileNotFoundError(path)
        return {"path": path, "size": found[1], "last_modified": found[2]}

    def list(self, prefix: str | None = None) -> Any:
        rows = self._ask("list_objects", prefix or "")
        return [[{"path": path, "size": size, "last_modified": at} for path, size, at in rows]]

    def delete(self, paths: Any) -> Any:
        for path in [paths] if isinstance(paths, str) else list(paths):
            if not self._ask("delete_object", path):
                raise FileNotFoundError(path)


class _Content:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def bytes(self) -> bytes:
        return self._data


def run_attempt(key: str, request: bytes, supervisor: Any) -> bytes:
    """Run an attempt on the node of this task, and return its end as JSON. Ray calls this."""
    from forkwise import __version__  # noqa: PLC0415 - not before the task runs
    from forkwise.cluster.node_process import run_on_node  # noqa: PLC0415
    from forkwise.snapshot.object_store import ObjectStore  # noqa: PLC0415

    ray = _load_ray()
    run, node = secrets.token_hex(8), ray.get_runtime_context().get_node_id()
    supervisor.begin.remote(key, run, node)
    wanted: NodeRequest = pickle.loads(request)
    if wanted.version != __version__:
        raise NodeError(
            f"this node has forkwise {__version__}, and the attempt was sent by {wanted.version}: install the same "
            "version on all nodes"
        )
    location = RayBackend(supervisor) if wanted.location is None else wanted.location
    output = _Output(supervisor, key, run, node)
    end = run_on_node(wanted, ObjectStore(location, key=wanted.key), output.add)
    output.finish()
    return json.dumps(end).encode()


class _Output:
    """Sends output to the supervisor, each piece once the one before it has arrived."""

    def __init__(self, supervisor: Any, key: str, run: str, node: str) -> None:
        self._supervisor = supervisor
        self._attempt = (key, run, node)
        self._waiting: list[tuple[str, bytes]] = []
        self._size = 0
        self._ref: Any = None
        self._ray = _load_ray()

    def add(self, stream: str, piece: bytes) -> None:
        """Take a piece of output, and send what waits if nothing is in transit."""
        if not piece:
            if self._waiting and self._ray.wait([self._ref], timeout=0)[0]:
                self._send()
            return
        if self._waiting and self._waiting[-1][0] == stream:
            self._waiting[-1] = (stream, self._waiting[-1][1] + piece)
        else:
            self._waiting.append((stream, piece))
        self._size += len(piece)
        if self._ref is None or self._size > _PIECE or self._ray.wait([self._ref], timeout=0)[0]:
            self._send()

    def _send(self) -> None:
        if self._ref is not None:
            self._ray.get(self._ref)
        self._ref = self._supervisor.push.remote(*self._attempt, self._waiting)
        self._waiting, self._size = [], 0

    def finish(self) -> None:
        """Wait until everything has arrived."""
        if self._waiting:
            self._send()
        if self._ref is not None:
            self._ray.get(self._ref)


def examine_node() -> dict[str, Any]:
    """Return what works on the node of this task, as JSON. Ray calls this."""
    from forkwise import __version__  # noqa: PLC0415 - not before the task runs
    from forkwise.cluster.node_process import NodeProcess  # noqa: PLC0415
    from forkwise.cluster.node_request import find_node_directory  # noqa: PLC0415
    from forkwise.files.store.state import locate  # noqa: PLC0415
    from forkwise.sandbox.doctor import examine_confinement, examine_networks  # noqa: PLC0415

    facts: dict[str, Any] = {"version": __version__, "works": True, "problem": None}
    try:
        facts["directory"] = find_node_directory()
        with NodeProcess():
            pass
    except (BranchingError, OSError) as error:
        facts |= {"works": False, "problem": str(error)}
    found = [*examine_confinement(locate(facts.get("directory", "/"))), *examine_networks()]
    facts["findings"] = [
        {"name": one.name, "works": one.works, "detail": one.detail, "remedy": one.remedy} for one in found
    ]
    return facts
