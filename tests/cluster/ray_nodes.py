"""A Ray cluster of several nodes as processes on the loopback, each with a directory of its own, to be killed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["LOOPBACK", "RayNode", "RayNodes", "has_ray", "list_descendants"]

LOOPBACK = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Without the second, Ray takes the address of another interface for 127.0.0.1."""


def has_ray() -> bool:
    """Return whether Ray is installed."""
    return importlib.util.find_spec("ray") is not None


def list_descendants(pid: int) -> list[int]:
    """Return the living descendants of a process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    children.setdefault(int(fields[1]), []).append(int(name))
    found, pending = [], [pid]
    while pending:
        found += (more := children.get(pending.pop(), []))
        pending += more
    return found


@dataclass(frozen=True)
class RayNode:
    """A node: its raylet, and its directory."""

    raylet: int
    directory: Path

    def kill(self) -> None:
        """Kill the raylet and its workers, but nothing that these started: that has to end by itself."""
        ray = [pid for pid in list_descendants(self.raylet) if _read_name(pid).startswith("ray::")]
        for pid in (self.raylet, *ray):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _read_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class RayNodes:
    """A cluster: a head without processors for attempts, and nodes with two processors each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.client_port, self.storage_port = _find_port(), _find_port()
        #: Variables by which obstore finds an S3 server on the loopback.
        self.storage = {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self.storage_port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        self.temporary = f"/tmp/fr-{os.getpid()}"  # sockets in it need short paths
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | LOOPBACK
        environment |= {
            **self.storage,
            "FORKWISE_NODE_DIRECTORY": str(directory / "head"),
            "PYTHONPATH": os.getcwd(),
            "RAY_TMPDIR": self.temporary,
            "RAY_health_check_initial_delay_ms": "0",
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_failure_threshold": "3",
        }
        self._log = open(directory / "host.log", "wb")  # noqa: SIM115 - closed by stop
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.ray_host", str(self.client_port)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.nodes: list[RayNode] = []
        self._count = 0
        try:
            self.address = str(self._read()["address"])
        except RuntimeError:
            self.stop()
            raise

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError((self.directory / "host.log").read_text()[-4000:])
        found: dict[str, Any] = json.loads(line)
        return found

    def add(self) -> RayNode:
        """Start a further node."""
        assert self.process.stdin is not None
        self._count += 1
        directory = self.directory / f"node-{self._count}"
        self.process.stdin.write(f"add {directory}\n".encode())
        self.process.stdin.flush()
        node = RayNode(int(self._read()["raylet"]), directory)
        self.nodes.append(node)
        return node

    def kill(self, node: RayNode) -> None:
        """Kill a node."""
        self.nodes.remove(node)
        node.kill()

    def stop(self) -> None:
        """End all nodes, and remove what they left in ``/tmp``."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        found = list_descendants(self.process.pid)
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._log.close()
        for pid in found:
            if "ray" in _read_name(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.temporary, ignore_errors=True)
