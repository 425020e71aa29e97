"""Attempts of ``true`` on three nodes of a Ray cluster on the loopback, beside bare tasks that start a sandbox."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from bench.figure import Figure
from bench.line import Line
from bench.rounds import timed
from bench.scratch import Scratch
from forkwise import BestOfN, Confinement, Workspace
from forkwise.fork.candidate import Candidate

__all__ = ["measure_cluster"]

_NODES = 3
_WARM = 12


def measure_cluster(scratch: Scratch) -> list[Line]:
    """Measure on a cluster that is started for it; return no line if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        return []
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    import ray
    from ray.cluster_utils import Cluster

    from forkwise import RayRunner

    attempts = scratch.rounds(1000, 60)
    scratch.report(f"starting {_NODES} nodes of Ray")
    workspace = Workspace(_write_files(scratch), state=scratch.make_directory("state"))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(_NODES):
            os.environ["FORKWISE_NODE_DIRECTORY"] = scratch.make_directory("node")
            cluster.add_node(num_cpus=1)
        runner = RayRunner(cluster.address)

        def run_ours(count: int) -> float:
            pattern = BestOfN(Candidate.of(("true",)), count, runner=runner, commit=False, allow_empty=True)
            results: list[Any] = []
            taken = timed(lambda: results.extend(pattern(workspace).all_results))
            assert all(one.success for one in results), next(one.reason for one in results if not one.success)
            return taken

        run_ours(_WARM)
        bare = ray.remote(_start_sandbox).options(num_cpus=1)
        path, state = os.fspath(workspace.path), scratch.make_directory("bare")
        ray.get([bare.remote(path, state) for _ in range(_WARM)])
        scratch.report(f"{attempts} attempts on {_NODES} nodes")
        samples: dict[str, list[float]] = {"ours": [], "bare": []}
        for _ in range(scratch.rounds(3, 1)):
            samples["bare"].append(timed(lambda: ray.get([bare.remote(path, state) for _ in range(attempts)])))
            samples["ours"].append(run_ours(attempts))
    finally:
        ray.shutdown()
        cluster.shutdown()
    line = Line(
        f"{attempts:,} attempts on {_NODES} nodes", Figure(tuple(samples["ours"])), Figure(tuple(samples["bare"]))
    )
    line.below_floor(3.0)
    return [line]


def _write_files(scratch: Scratch) -> str:
    root = scratch.make_directory("files")
    for number in range(100):
        with open(f"{root}/{number}.txt", "w") as file:
            file.write(f"{number}\n" * 100)
    return root


_opened: dict[str, Workspace] = {}


def _start_sandbox(path: str, state: str) -> None:
    """Start the sandbox of an attempt in a branch on a node, and nothing else."""
    if path not in _opened:
        _opened[path] = Workspace(path, state=f"{state}/{os.getpid()}")
    branch = _opened[path].branch(f"bare-{os.urandom(8).hex()}")
    branch.run(["true"], check=True, confinement=Confinement.standard(network="auto"))
    branch.abort()
