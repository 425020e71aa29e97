"""Attempts on three nodes of a Ray cluster on the loopback, beside bare tasks, ``working_dir`` and ``git clone``.

Ray is a large component: if it is not in this environment, these rows run in that of the integration tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.figure import Figure
from bench.line import Line
from bench.rounds import timed
from bench.scratch import Scratch
from forkwise import BestOfN, Confinement, Workspace
from forkwise.fork.candidate import Candidate

__all__ = ["measure_cluster", "measure_travel", "open_cluster"]

_NODES = 3
_WARM = 12
_FILE_MB = 4
#: Ray refuses a ``working_dir`` that is larger, after compression.
_REFUSED_MB = 512

#: Runs a number of attempts of a command, in a workspace that may be given, and returns the seconds that it took.
Run = Callable[..., float]

_WORKING_DIRECTORY = """
import sys, time, ray
try:
    ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False, runtime_env={"working_dir": sys.argv[2]})
    started = time.perf_counter()
    ray.get(ray.remote(lambda: None).remote())
    print("took", time.perf_counter() - started)
except Exception as error:
    print("refused", " ".join(str(error).split()))
"""
_HAS_RAY = "import importlib.util, sys; sys.exit(importlib.util.find_spec('ray') is None)"
_ROOT = Path(__file__).parents[2]


def measure_cluster(scratch: Scratch) -> list[Line]:
    """Measure many short attempts on a cluster that is started for it; return no line if Ray is not installed."""
    return _measure_with_ray(scratch, "cluster", _measure_attempts)


def measure_travel(scratch: Scratch) -> list[Line]:
    """Measure how a large workspace gets to the nodes; return no line if Ray is not installed."""
    return _measure_with_ray(scratch, "travel", _measure_travel)


def _measure_with_ray(scratch: Scratch, row: str, measure: Callable[[Scratch, Run], Line]) -> list[Line]:
    """Measure in this environment, or run the row in that of the integration tests if Ray is only there."""
    if importlib.util.find_spec("ray") is not None:
        with open_cluster(scratch) as run:
            return [measure(scratch, run)]
    python = _ROOT / ".venv-integration/bin/python"
    if not python.exists() or subprocess.run([python, "-c", _HAS_RAY], check=False).returncode:
        return []
    scratch.report(f"measuring {row} in {python.parents[1].name}")
    figures = scratch.new_path("figures")
    words = [python, "-m", "bench", "--rows", row, "--json", figures, "--at", scratch.path]
    subprocess.run([*words, *["--quick"] * scratch.quick], check=True, stdout=subprocess.DEVNULL, cwd=_ROOT)
    with open(figures) as file:
        return [Line.load(line) for line in json.load(file)["rows"]]


@contextmanager
def open_cluster(scratch: Scratch) -> Iterator[Run]:
    """Start a head and three nodes with a processor each, and yield a function that runs attempts there."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    import ray
    from ray.cluster_utils import Cluster

    from forkwise import RayRunner

    scratch.report(f"starting {_NODES} nodes of Ray")
    small = Workspace(_write_files(scratch), state=scratch.make_directory("state"))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(_NODES):
            os.environ["FORKWISE_NODE_DIRECTORY"] = scratch.make_directory("node")
            cluster.add_node(num_cpus=1)

        def run(count: int, argv: tuple[str, ...], workspace: Workspace = small, store: str | None = None) -> float:
            runner = runners.setdefault(store, RayRunner(cluster.address, store=store))
            pattern = BestOfN(Candidate.of(argv), count, runner=runner, commit=False, allow_empty=True)
            results: list[Any] = []
            taken = timed(lambda: results.extend(pattern(workspace).all_results))
            assert all(one.success for one in results), next(one.reason for one in results if not one.success)
            return taken

        runners: dict[str | None, RayRunner] = {}
        run.address = cluster.address  # type: ignore[attr-defined]
        yield run
    finally:
        ray.shutdown()
        cluster.shutdown()


def _measure_attempts(scratch: Scratch, run: Run) -> Line:
    import ray

    attempts = scratch.rounds(1000, 60)
    run(_WARM, ("true",))
    bare = ray.remote(_start_sandbox).options(num_cpus=1)
    path, state = _write_files(scratch), scratch.make_directory("bare")
    ray.get([bare.remote(path, state) for _ in range(_WARM)])
    scratch.report(f"{attempts} attempts on {_NODES} nodes")
    samples: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(scratch.rounds(3, 1)):
        samples["bare"].append(timed(lambda: ray.get([bare.remote(path, state) for _ in range(attempts)])))
        samples["ours"].append(run(attempts, ("true",)))
    line = Line(
        f"{attempts:,} attempts on {_NODES} nodes", Figure(tuple(samples["ours"])), Figure(tuple(samples["bare"]))
    )
    line.below_floor(3.0)
    return line


def _measure_travel(scratch: Scratch, run: Run) -> Line:
    """Bring a large workspace to the nodes and run ``true`` there, three times; beside what else Ray users have."""
    size_mb = scratch.rounds(1024, _REFUSED_MB + 48)
    scratch.report(f"writing {size_mb} MB")
    root = scratch.make_directory("large")
    for number in range(size_mb // _FILE_MB):
        with open(f"{root}/{number}", "wb") as file:
            file.write(os.urandom(_FILE_MB << 20))
    scratch.report(f"a workspace of {size_mb} MB to {_NODES} nodes")
    workspace = Workspace(root, state=scratch.make_directory("state"))
    ours = run(_NODES, ("true",), workspace, scratch.make_directory("store"))
    words = [sys.executable, "-c", _WORKING_DIRECTORY, run.address, root]  # type: ignore[attr-defined]
    kind, _, rest = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip().partition(" ")
    line = Line(f"{size_mb:,} MB to {_NODES} nodes", Figure((ours,)))
    line.peers["working_dir"] = Figure((float(rest),)) if kind == "took" else f"refused: {_shorten(rest)}"
    has_git = shutil.which("git") is not None
    line.peers["git clone for each task"] = Figure((_clone(scratch, root),)) if has_git else None
    return line


def _shorten(message: str) -> str:
    """Return which limit Ray names in its message, or the beginning of the message."""
    _, verb, limit = message.partition("exceeds ")
    return (verb + limit).partition(". ")[0][:60] if verb else message[:60]


def _clone(scratch: Scratch, root: str) -> float:
    import ray

    repository, git = scratch.make_directory("repository"), ["git", "-c", "core.compression=0"]
    shutil.copytree(root, repository, dirs_exist_ok=True)
    author = ["-c", "user.name=bench", "-c", "user.email=bench@example.com"]
    # Packed, as on a server: a clone sends the pack as it is, without a search for deltas.
    pack = ["-c", "pack.window=0", "repack", "-q", "-a", "-d"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "files"], pack):
        subprocess.run([*git, *words], cwd=repository, check=True)
    clone = ray.remote(_clone_repository).options(num_cpus=1)
    return timed(lambda: ray.get([clone.remote(repository, scratch.new_path("clone")) for _ in range(_NODES)]))


def _clone_repository(repository: str, path: str) -> None:
    subprocess.run(["git", "clone", "-q", f"file://{repository}", path], check=True)


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
