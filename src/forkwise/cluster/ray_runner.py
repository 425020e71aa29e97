"""RayRunner: attempts on the nodes of a Ray cluster, each in a sandbox over a snapshot of the workspace."""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import os
import pickle
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from forkwise import __version__
from forkwise.cluster.node_request import NodeRequest, parse_answer
from forkwise.cluster.ray_cluster import RayCluster, find_workspace_id
from forkwise.cluster.supervisor import RayBackend
from forkwise.concurrency import finish, run_in_thread
from forkwise.errors import ConflictError, NodeError, ProcessBranchError, SnapshotNotFoundError
from forkwise.files.branch import Branch
from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.commit_plan import find_conflicts
from forkwise.fork.fault import Fault
from forkwise.fork.run_end import Ending, RunEnd
from forkwise.fork.runner import Job, Runner
from forkwise.linux.process_id import ProcessId
from forkwise.sandbox.confinement import Confinement
from forkwise.snapshot.object_store import ObjectStore
from forkwise.snapshot.packed_delta import PackedDelta, list_packed_deltas
from forkwise.snapshot.snapshot import Snapshot, list_snapshots
from forkwise.testing.report import Outcome, TestReport
from forkwise.text.redaction import add_secrets

if TYPE_CHECKING:
    from forkwise.files.workspace import Workspace
    from forkwise.fork.agent_paths.paths import AgentPaths
    from forkwise.servers.server_file import Server

__all__ = ["RayRunner"]

_FRESH_S = 5.0
_MAX_PARALLEL = 1000
_MAX_OUTCOMES = 200_000
_KEPT_S = 60.0  # after this time an end is in the ledger


class RayRunner(Runner):
    """Runs each job on a node of a Ray cluster, in a sandbox with ``confinement``, and applies its changes here.

    ``address`` is that of the cluster: ``ray://HOST:PORT``, ``HOST:PORT`` on one of its nodes, or None for
    ``$RAY_ADDRESS`` or else a local cluster, which ends with this process. ``resources`` are what a job occupies on a
    node: ``num_cpus``, ``num_gpus``, ``memory`` in bytes, and ``resources`` of the cluster's own. A job whose node dies
    runs again on another one, at most ``max_retries`` times; then it ends with a fault.

    ``store`` is the location of the ObjectStore through which snapshots and changes travel, which all nodes reach, or
    None for Ray's own object store. ``key`` is that of the store. Each node keeps at most ``max_cache_bytes`` of
    unpacked snapshots. The other arguments are those of SandboxRunner. Nodes need the same version of forkwise.

    If this process is killed, jobs keep running for up to an hour, and a process that resumes the fork receives their
    results.
    """

    max_parallel = _MAX_PARALLEL
    is_remote = True

    def __init__(
        self,
        address: str | None = None,
        resources: Mapping[str, Any] | None = None,
        store: str | None = None,
        *,
        key: bytes | None = None,
        max_retries: int = 3,
        max_cache_bytes: int = 20 << 30,
        confinement: str | Confinement = "standard",
        agent_paths: AgentPaths | None = None,
        subdirectory: str = "",
        servers: Sequence[Server] = (),
        server_confinement: str | Confinement = "standard",
    ) -> None:
        base = Confinement.preset(confinement)
        if confinement == "standard":
            base = replace(base, network="auto")
        if base.network == "host" or not base.read_only or base.landlock_instead:
            raise ValueError(
                "attempts on a cluster need a network and mounts of their own: on a node's network they could reach "
                "Ray and leave their sandbox. Use the confinement 'standard' or 'strict', and not the network 'host'"
            )
        unknown = set(resources or {}) - {"num_cpus", "num_gpus", "memory", "resources"}
        if unknown:
            raise ValueError(
                f"resources are num_cpus, num_gpus, memory and resources, not {', '.join(sorted(unknown))}"
            )
        self._address = address
        self._options = {"num_cpus": 1, **(resources or {}), "max_retries": max_retries}
        self._location = store
        self._key = key
        self._max_cache_bytes = max_cache_bytes
        self._confinement = base
        self._agent_paths = agent_paths
        self._subdirectory = subdirectory
        self._servers = tuple(servers)
        self._server_confinement = Confinement.preset(server_confinement)
        self._session: _Session | None = None
        self._lock = threading.Lock()
        add_secrets(base.given)

    async def run(self, job: Job) -> RunEnd:
        started = time.monotonic()
        try:
            session = await run_in_thread(self._open, job.branch)
            snapshot = await session.snapshots.find(cast("Workspace | Branch", job.branch.parent))
            request = await run_in_thread(self._build_request, job, session, snapshot)
            return await self._run(job, session, request)
        except NodeError as error:
            wall = time.monotonic() - started
            return RunEnd("raised", error=error, wall=wall, fault="node", has_started=False)

    def _open(self, branch: Branch) -> _Session:
        """Connect at the first job."""
        with self._lock:
            name = find_workspace_id(os.fspath(branch.state_dir.state))
            if self._session is None or self._session.name != name:
                cluster = RayCluster.connect(self._address)
                self._session = _Session(cluster, name, self._location, self._key)
            return self._session

    def _build_request(self, job: Job, session: _Session, snapshot: Snapshot) -> NodeRequest:
        branch = job.branch
        session.forget(now=time.monotonic(), again=branch.name)
        exchange = f"{branch.home}/exchange"
        files: dict[str, bytes] = {}
        for name in ("feedback", "prompt"):
            with suppress(FileNotFoundError):
                files[name] = Path(exchange, name).read_bytes()
        function = None
        if job.function is not None:
            function = importlib.import_module("ray.cloudpickle").dumps(job.function)
        return NodeRequest(
            version=__version__,
            workspace=os.fspath(branch.workspace.path),
            snapshot=snapshot.id,
            location=session.shared_location,
            owner=session.name,
            key=self._key,
            branch=branch.name,
            argv=None if job.argv is None else tuple(job.argv),
            function=function,
            timeout=job.timeout,
            environment=dict(job.environment),
            exchange_directory=exchange,
            exchange=files,
            confinement=self._confinement,
            agent_paths=self._agent_paths,
            subdirectory=self._subdirectory,
            servers=self._servers,
            server_confinement=self._server_confinement,
            tests=job.tests,
            ignore=None if callable(branch.ignore) else branch.ignore,
            must_change=job.must_change,
            has_feedback=job.has_feedback,
            max_cache_bytes=self._max_cache_bytes,
        )

    async def _run(self, job: Job, session: _Session, request: NodeRequest) -> RunEnd:
        key = job.branch.name
        token, end = secrets.token_hex(8), None
        try:
            news = await session.start(key, pickle.dumps(request), self._options, token)
            while True:
                if news is None:
                    raise NodeError("the cluster has forgotten the attempt: its head node was started again")
                cursor, pieces, end, _ = news
                for stream, piece in pieces:
                    _pass_on(job, stream, piece)
                if end is not None:
                    break
                news = await session.wait(key, cursor)
        except asyncio.CancelledError:
            await finish(run_in_thread(session.cancel, key, token))
            raise
        return await finish(run_in_thread(self._receive, job, session, key, parse_answer(end)))

    def _receive(self, job: Job, session: _Session, key: str, end: dict[str, Any]) -> RunEnd:
        """Apply the changes of an attempt to its branch here, and return how it ended."""
        found = _parse_end(end)
        if isinstance(score := end.get("score"), str) and job.argv is not None:
            Path(job.branch.home, "exchange", "score").write_bytes(base64.b64decode(score)[:300])
        delta = end.get("delta")
        if isinstance(delta, str):
            packed = PackedDelta.load(session.store, delta)
            try:
                _apply(packed, job.branch, session.store)
            finally:
                job.branch.hide()  # its view was only mounted to be written to
            session.deltas[key] = packed
        session.ended[key] = time.monotonic()
        return found


class _Session:
    """The supervisor of a workspace, its store, and this process's snapshots and attempts there."""

    def __init__(self, cluster: RayCluster, name: str, location: str | None, key: bytes | None) -> None:
        self.cluster = cluster
        self.name = name
        self.supervisor = cluster.find_supervisor(name)
        cluster.ask(self.supervisor.list_attempts.remote())
        self.shared_location = location
        self.store = ObjectStore(RayBackend(self.supervisor) if location is None else location, key=key)
        self.snapshots = _Snapshots(self.store, name)
        self.deltas: dict[str, PackedDelta] = {}
        self.ended: dict[str, float] = {}
        self._lock = threading.Lock()
        import atexit  # noqa: PLC0415

        atexit.register(self.close)

    async def start(self, key: str, request: bytes, options: Mapping[str, Any], token: str) -> Any:
        """Submit an attempt, or find the one that a killed process submitted, and wait for news of it."""
        return await self._hear(self.supervisor.start.remote(key, request, options, token))

    async def wait(self, key: str, cursor: int) -> Any:
        """Wait for news of an attempt."""
        return await self._hear(self.supervisor.wait.remote(key, cursor))

    async def _hear(self, reference: Any) -> Any:
        try:
            return await asyncio.wrap_future(reference.future())
        except self.cluster.ray.exceptions.RayError as error:
            raise NodeError(
                f"the Ray cluster at {self.cluster.address} was lost: {str(error).strip()[:300]}"
            ) from error

    def cancel(self, key: str, token: str) -> None:
        """Cancel an attempt on its node, with all its processes."""
        self.cluster.ask(self.supervisor.cancel.remote(key, token))

    def forget(self, now: float, again: str | None = None) -> None:
        """Let the cluster forget attempts whose ends are in the ledger by now, and one that starts again."""
        with self._lock:
            over = [key for key, at in self.ended.items() if key == again or now - at > _KEPT_S]
            for key in over:
                del self.ended[key]
            packed = [self.deltas.pop(key) for key in over if key in self.deltas]
        if over:
            self.cluster.ask(self.supervisor.forget.remote(over))
        for one in packed:
            one.delete(self.store)

    def close(self) -> None:
        """Remove what this process left in the store and at the supervisor."""
        with suppress(Exception):  # the interpreter ends, and the cluster may be gone
            self.forget(now=float("inf"))
            self.snapshots.delete()
            self._remove_abandoned()

    def _remove_abandoned(self) -> None:
        """Remove what killed processes left in the store for this workspace, unless its attempts are still known.

        The store is listed before the attempts are, so nothing of an attempt that began meanwhile is removed.
        """
        if self.shared_location is None:
            return
        snapshots = [one for one in list_snapshots(self.store) if self.snapshots.is_abandoned(one)]
        deltas = [one for one in list_packed_deltas(self.store) if one.owner == self.name]
        if not self.cluster.ask(self.supervisor.list_attempts.remote()):
            for delete in [one.delete for one in snapshots] + [one.delete for one in deltas]:
                with suppress(SnapshotNotFoundError):
                    delete(self.store)


class _Snapshots:
    """The snapshots of what is forked. Jobs that start at about the same time share one."""

    def __init__(self, store: ObjectStore, owner: str) -> None:
        self._store = store
        self._prefix = f"ray {owner} "
        self._made: dict[str, tuple[float, asyncio.Future[Snapshot]]] = {}
        self._all: list[Snapshot] = []

    async def find(self, parent: Workspace | Branch) -> Snapshot:
        """Return a snapshot of a workspace or a branch as it is now, or was a few seconds ago."""
        name = parent.branch_path
        known = self._made.get(name)
        is_frozen = isinstance(parent, Branch)
        if known is None or (
            known[1].done() and (not is_frozen or known[1].exception()) and time.monotonic() - known[0] > _FRESH_S
        ):
            known = self._made[name] = (time.monotonic(), asyncio.ensure_future(self._create(parent)))
        return await asyncio.shield(known[1])

    async def _create(self, parent: Workspace | Branch) -> Snapshot:
        name = self._prefix + json.dumps(ProcessId.current().dump())
        found = await run_in_thread(lambda: Snapshot.create(parent, self._store, name=name))
        if found not in self._all:
            self._all.append(found)
        return found

    def is_abandoned(self, snapshot: Snapshot) -> bool:
        """Return whether a snapshot was made here by a process that has ended."""
        if not snapshot.name.startswith(self._prefix):
            return False
        try:
            return not ProcessId.load(json.loads(snapshot.name.removeprefix(self._prefix))).alive
        except (ValueError, TypeError, RecursionError):
            return False

    def delete(self) -> None:
        """Delete the snapshots."""
        for one in self._all:
            with suppress(Exception):
                one.delete(self._store)


def _pass_on(job: Job, stream: str, piece: bytes) -> None:
    stream, _, server = stream.partition(":")
    if server and job.on_server_output is not None:
        job.on_server_output(server, stream, piece)
    elif not server and job.on_output is not None:
        job.on_output(stream, piece)


def _apply(packed: PackedDelta, branch: Branch, store: ObjectStore) -> None:
    """Apply changes to a branch; an edit that a commit would report as a conflict is left to the commit.

    Raises NodeError for an edit that was made between the snapshot and the branch, which no commit would report.
    """
    try:
        packed.apply(branch, store)
    except ConflictError as error:
        paths = {conflict.path for conflict in error.conflicts}
        packed.apply(branch, store, on_conflict="ours")
        silent = paths - _list_conflicts(branch)
        if silent:
            raise NodeError(
                f"{min(silent)} was changed in the workspace while its snapshot was sent to the cluster: the attempt "
                "was made from the version before that, and would overwrite the change; run it again"
            ) from error


def _list_conflicts(branch: Branch) -> set[str]:
    """Return the paths for which a commit of a branch would report a conflict."""
    with branch._lock():
        info = BranchInfo.load(branch.home)
        return {conflict.path for conflict in find_conflicts(branch._scan(), info.forked_at_earliest)}


def _parse_end(end: Mapping[str, Any]) -> RunEnd:
    """Build the end of a job from a node's JSON. Raises NodeError if it is malformed."""
    ending = end.get("ending")
    if ending not in get_args(Ending):
        raise NodeError(f"a node sent an unknown end of an attempt: {str(ending)[:40]!r}")
    fault = end.get("fault")
    error = None
    if ending == "raised":
        about = end.get("error")
        text = {k: str(v) for k, v in about.items()} if isinstance(about, dict) else {}
        message = text.get("message", "no message")[:4000]
        is_own = fault is None and text.get("type") not in (None, ProcessBranchError.__name__)
        error = ProcessBranchError(f"{text['type'][:100]}: {message}" if is_own else message)
        if text.get("traceback"):
            error.add_note(text["traceback"][:20_000])
    value = end.get("value")
    if end.get("is_tuple") is True and isinstance(value, list):
        value = tuple(value)
    return RunEnd(
        cast(Ending, ending),
        value,
        error=error,
        exit_code=_number(end.get("exit_code"), int),
        wall=_number(end.get("wall"), float) or 0.0,
        cpu=_number(end.get("cpu"), float),
        memory=_number(end.get("memory"), int),
        limit=str(end["limit"])[:40] if end.get("limit") is not None else None,
        success=end["success"] if isinstance(end.get("success"), bool) else None,
        fault=cast(Fault, fault) if fault in get_args(Fault) else None,
        has_started=end.get("has_started") is not False,
        reports=_parse_reports(end.get("reports")),
    )


def _number(value: Any, kind: type[int] | type[float]) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return kind(value) if is_number else None


def _parse_reports(reports: Any) -> tuple[TestReport | None, ...]:
    found: list[TestReport | None] = []
    for report in reports if isinstance(reports, list) else []:
        if not isinstance(report, dict):
            found.append(None)
            continue
        outcomes = report.pop("outcomes", {})
        try:
            parsed = TestReport.from_json(report)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise NodeError(f"a node sent a malformed test report: {str(error)[:100]}") from error
        if isinstance(outcomes, dict) and len(outcomes) <= _MAX_OUTCOMES:
            parsed = replace(parsed, outcomes={str(k): v for k, v in outcomes.items() if v in get_args(Outcome)})
        found.append(parsed)
    return tuple(found)
