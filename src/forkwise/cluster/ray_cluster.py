"""RayCluster: this process's connection to a cluster, the supervisor of a workspace there, and what nodes can do."""

from __future__ import annotations

import atexit
import hashlib
import importlib
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from forkwise.cluster.supervisor import Supervisor, examine_node
from forkwise.errors import NodeError

__all__ = ["RayCluster", "find_workspace_id"]

_NAMESPACE = "forkwise"
_HEAD = "node:__internal_head__"
_CONCURRENCY = 10_000
_lock = threading.Lock()
_connected: dict[str, RayCluster] = {}


class RayCluster:
    """A connection to a Ray cluster; a process has one at a time.

    ``address`` is ``ray://HOST:PORT`` (Ray's client), ``HOST:PORT`` for a process on one of the nodes, or ``local`` for
    a cluster of this machine alone, which is started now and ends with this process.
    """

    def __init__(self, address: str) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        if address == "local":  # otherwise Ray uses the address of another interface instead of 127.0.0.1
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        self.address = address
        try:
            self.ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            raise NodeError("attempts on a cluster need Ray: pip install 'forkwise[ray]'") from error
        options: dict[str, Any] = {"namespace": _NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
        if address == "local":
            options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            _call_in_lasting_thread(lambda: self.ray.init(address=address, **options))
        except Exception as error:
            raise NodeError(
                f"there is no connection to the Ray cluster at {address}: {_first_line(error)}; check that it runs "
                "(ray status), and that Ray and Python have the same versions there"
            ) from error

    @classmethod
    def connect(cls, address: str | None) -> RayCluster:
        """Return the connection to a cluster, made at the first use; None is ``$RAY_ADDRESS``, or a local cluster."""
        wanted = address or os.environ.get("RAY_ADDRESS") or "local"
        with _lock:
            if wanted not in _connected:
                if _connected:
                    raise NodeError(
                        f"this process is connected to the Ray cluster at {next(iter(_connected))}, and can use "
                        f"{wanted} only after that connection was closed"
                    )
                _connected[wanted] = cls(wanted)
                atexit.register(cls.close, _connected[wanted])
            return _connected[wanted]

    def close(self) -> None:
        """Close the connection; a local cluster ends."""
        with _lock:
            if _connected.pop(self.address, None) is not None:
                self.ray.shutdown()

    def find_supervisor(self, name: str) -> Any:
        """Return the handle of a workspace's supervisor, which is started on the head node if it does not run."""
        actor = self.ray.remote(Supervisor)
        return actor.options(
            name=f"forkwise-{name}",
            namespace=_NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            resources={_HEAD: 0.001},
            max_concurrency=_CONCURRENCY,
        ).remote()

    def ask(self, reference: Any) -> Any:
        """Wait for an answer. Raises NodeError if the cluster does not send one."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            raise NodeError(f"the Ray cluster at {self.address} did not answer: {_first_line(error)}") from error

    def examine(self) -> list[dict[str, Any]]:
        """Examine each living node, and return what works there."""
        strategy = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        task = self.ray.remote(examine_node)
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        asked = [
            task.options(num_cpus=0, scheduling_strategy=strategy(node["NodeID"], soft=False), max_retries=0).remote()
            for node in nodes
        ]
        found = []
        for node, reference in zip(nodes, asked, strict=True):
            facts = {
                "node": node["NodeID"][:12],
                "host": node["NodeManagerHostname"],
                "resources": {
                    name: amount for name, amount in node["Resources"].items() if not name.startswith("node:")
                },
            }
            try:
                facts |= self.ray.get(reference, timeout=120.0)
            except self.ray.exceptions.RayError as error:
                facts |= {"works": False, "problem": _first_line(error)}
            found.append(facts)
        return found


def _call_in_lasting_thread(function: Callable[[], object]) -> None:
    """Call a function in a thread that lasts as long as this process.

    The processes of a local cluster are killed by the kernel (PR_SET_PDEATHSIG) when the thread that started them ends.
    """
    done = threading.Event()
    errors: list[Exception] = []

    def work() -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - it is raised in the calling thread
            errors.append(error)
        done.set()
        threading.Event().wait()

    threading.Thread(target=work, name="ray", daemon=True).start()
    done.wait()
    if errors:
        raise errors[0]


def find_workspace_id(state: str) -> str:
    """Return a name for a workspace on this machine, which is created with its state directory."""
    path = f"{state}/cluster-id"
    with suppress(FileExistsError):
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            file.write(secrets.token_hex(16))
    with open(path) as file:
        own = file.read(64)
    return hashlib.sha256(f"{socket.gethostname()}\n{own}".encode()).hexdigest()[:24]


def _first_line(error: BaseException) -> str:
    error = getattr(error, "cause", None) or error  # what a task raised, without its traceback as text
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
