"""Attempts on the nodes of a cluster, through the command line; nodes and the user's process are killed meanwhile."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from forkwise import ObjectStore, collect_garbage
from forkwise.linux.mountinfo import mounts
from tests.cluster.ray_nodes import LOOPBACK, RayNodes
from tests.counts import rounds
from tests.need import need

pytestmark = pytest.mark.integration

FORKWISE = f"{sys.prefix}/bin/forkwise"
_DEADLINE_S = 600.0
_drivers: list[subprocess.Popen[bytes]] = []


def start(
    nodes: RayNodes, project: Path, *words: str, program: str = FORKWISE, **variables: str
) -> subprocess.Popen[bytes]:
    """Start forkwise on a project as a driver of the cluster."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "FORKWISE_STATE")}
    environment |= {
        **LOOPBACK,
        "RAY_ADDRESS": nodes.address,
        "XDG_STATE_HOME": str(project.parent / "xdg-state"),
        **variables,
    }
    driver = subprocess.Popen(
        [program, *words],
        cwd=project,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _drivers.append(driver)
    return driver


@pytest.fixture(autouse=True)
def _kill_drivers() -> Iterator[None]:
    """Kill the drivers that a failed test left."""
    yield
    while _drivers:
        driver = _drivers.pop()
        if driver.poll() is None:
            driver.kill()
            driver.communicate()


def finish(driver: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """Wait for forkwise, and return the ends of attempts that it printed with --json."""
    out, err = driver.communicate(timeout=_DEADLINE_S)
    assert driver.returncode == 0, (out + err).decode()
    return list_ends(out)


def list_ends(out: bytes) -> list[dict[str, Any]]:
    """Return the ends of attempts among lines of JSON."""
    events = [json.loads(line).get("event", {}) for line in out.splitlines() if line.startswith(b'{"event"')]
    return [{"attempt": event["attempt"], **event["data"]} for event in events if event["kind"] == "ended"]


def wait_until(condition: Callable[[], bool], driver: subprocess.Popen[bytes]) -> None:
    """Wait for something that a driver has to bring about."""
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        if driver.poll() is not None or time.monotonic() > deadline:
            driver.kill()
            out, err = driver.communicate()
            pytest.fail((out + err).decode())
        time.sleep(0.02)


def list_processes(text: str, file: str = "cmdline") -> list[str]:
    """Return the command lines of the processes with a text in their command line or another file of /proc."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            try:
                if text.encode() in Path("/proc", name, file).read_bytes():
                    found.append(f"{name} {Path('/proc', name, 'cmdline').read_text()}")
            except (OSError, UnicodeDecodeError):
                continue
    return found


class Record:
    """A directory in which attempts note that they begin, and wait for a file."""

    def __init__(self, project: Path) -> None:
        self.directory = project.parent / f"record-{secrets.token_hex(6)}"
        self.directory.mkdir()
        self.go = self.directory / "go"
        self.options = ("--on", "ray", "--writable", str(self.directory))
        self.begin = f"echo $FORKWISE_ATTEMPT >> {self.directory}/begun"
        self.wait = f"while [ ! -e {self.go} ]; do sleep 0.2; done"

    @property
    def begun(self) -> list[str]:
        """The numbers of the attempts, each as often as it began."""
        path = self.directory / "begun"
        return sorted(path.read_text().split()) if path.exists() else []


def check_nothing_left(record: Record, nodes: RayNodes) -> None:
    """Check that no process or mount of an attempt is left, and on no node the state of a branch."""
    assert [mount.point for mount in mounts() if mount.point.startswith(f"{record.directory.parent}/")] == []
    assert list_processes(str(record.directory)) == []
    for node in nodes.nodes:
        assert list(node.directory.glob("state/*/forkwise/*/branches/*")) == []


def test_attempts_run_at_the_same_path_and_are_tested_on_their_node(nodes: RayNodes, project: Path) -> None:
    line = 'pwd; echo "node $PWD" >&2; echo bye > greeting.txt; mkdir new; echo more > new/file; chmod 755 new/file'
    words = ["best-of", "2", "--on", "ray", "--test", "python3 -m unittest", "--json", "-c", line]
    ends = finish(start(nodes, project, *words))
    assert (project / "greeting.txt").read_text() == "bye\n"
    assert (project / "new" / "file").stat().st_mode & 0o777 == 0o755
    assert [(end["state"], end["exit_code"], end["files"]) for end in ends] == [("succeeded", 0, 2)] * 2
    assert all(sorted(end["tail"].split("\n")) == sorted(["", str(project), f"node {project}"]) for end in ends)
    assert len([tree for node in nodes.nodes for tree in node.directory.glob("snapshots/*/root/greeting.txt")]) in (
        1,
        2,
    )
    finish(start(nodes, project, "undo"))
    assert (project / "greeting.txt").read_text() == "hello\n"


def test_the_first_success_cancels_the_others_with_all_their_processes(nodes: RayNodes, project: Path) -> None:
    record = Record(project)
    slow = f"setsid sleep 7777 {record.directory} & {record.wait}"
    quick = f"while [ $(wc -l < {record.directory}/begun) -lt 2 ]; do sleep 0.2; done; echo bye > greeting.txt"
    lines = [f"{record.begin}; {slow}", f"{record.begin}; {quick}"]
    ends = finish(start(nodes, project, "speculate", *record.options, "--json", "-c", lines[0], "-c", lines[1]))
    assert {end["attempt"][-1]: end["state"] for end in ends} == {"1": "cancelled", "2": "succeeded"}
    assert (project / "greeting.txt").read_text() == "bye\n"
    check_nothing_left(record, nodes)


@pytest.mark.crash
def test_attempts_of_a_node_that_dies_run_again_elsewhere(nodes: RayNodes, project: Path) -> None:
    kills = rounds(1, 3)  # an attempt may run again three times
    for _ in range(rounds(1, 7)):
        record = Record(project)
        line = f"{record.begin}; {record.wait}; echo $FORKWISE_ATTEMPT > done.txt"
        driver = start(nodes, project, "best-of", "4", *record.options, "--no-commit", "--json", "-c", line)
        killed = []
        for count in range(4, 4 + 2 * kills, 2):  # two on each node
            wait_until(lambda record=record, count=count: len(record.begun) == count, driver)
            killed.append(nodes.nodes[0])
            nodes.kill(killed[-1])
            nodes.add()
        wait_until(lambda record=record: len(record.begun) == 4 + 2 * kills, driver)
        record.go.touch()
        ends = finish(driver)
        assert sorted((end["attempt"][-1], end["state"], end["files"]) for end in ends) == [
            (str(number), "succeeded", 1) for number in range(1, 5)
        ]
        check_nothing_left(record, nodes)
        for node in killed:
            assert list_processes(str(node.directory), "environ") == []


@pytest.mark.crash
def test_attempts_survive_the_process_that_started_them(nodes: RayNodes, project: Path) -> None:
    for number in range(rounds(1, 20)):
        record = Record(project)
        line = f"{record.begin}; {record.wait}; echo {number} > greeting.txt"
        driver = start(nodes, project, "best-of", "2", *record.options, "--json", "-c", line)
        wait_until(lambda record=record: len(record.begun) == 2, driver)
        if number % 3 == 0:
            record.go.touch()
        driver.kill()
        out, _ = driver.communicate()
        ends = list_ends(out)
        fork = json.loads(out.splitlines()[0])["event"]["fork"]
        resumed = start(nodes, project, "resume", fork, "--json")
        record.go.touch()
        ends += finish(resumed)
        assert {end["attempt"] for end in ends if end["state"] == "succeeded"} == {f"{fork}.1", f"{fork}.2"}
        assert (project / "greeting.txt").read_text() == f"{number}\n"
        assert record.begun == ["1", "2"]
        check_nothing_left(record, nodes)


def test_a_cluster_is_reached_through_rays_client(nodes: RayNodes, project: Path) -> None:
    address = f"ray://127.0.0.1:{nodes.client_port}"
    record = Record(project)
    slow = f"setsid sleep 7777 {record.directory} & {record.wait}"
    quick = (
        f"while [ $(wc -l < {record.directory}/begun) -lt 2 ]; do sleep 0.2; done; echo said; echo bye > greeting.txt"
    )
    options = ["--on", address, *record.options[2:], "--test", "python3 -m unittest", "--json"]
    commands = ["-c", f"{record.begin}; {slow}", "-c", f"{record.begin}; {quick}"]
    ends = finish(start(nodes, project, "speculate", *options, *commands, RAY_ADDRESS=""))
    assert {end["attempt"][-1]: end["state"] for end in ends} == {"1": "cancelled", "2": "succeeded"}
    assert [(end["files"], end["tail"]) for end in ends if end["state"] == "succeeded"] == [(1, "said\n")]
    assert (project / "greeting.txt").read_text() == "bye\n"
    check_nothing_left(record, nodes)


def list_left(location: str, options: Mapping[str, Any] | None = None) -> list[str]:
    """Collect the garbage of a store, and return everything that is left in it, apart from its format."""
    store = ObjectStore(location, options=options)
    collect_garbage(store)
    return [row[0] for kind in ("objects", "snapshots", "deltas", "writers") for row in store.list_under(kind)]


def test_files_travel_through_s3(nodes: RayNodes, project: Path) -> None:
    need(find_spec("moto") is not None, "moto is not installed")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=nodes.storage_port, verbose=False)
    server.start()
    try:
        with urlopen(Request(f"{nodes.storage['AWS_ENDPOINT']}/cluster", method="PUT")) as answer:
            assert answer.status == 200
        line = "cat greeting.txt; echo bye > greeting.txt"
        words = ["best-of", "2", "--on", "ray", "--store", "s3://cluster/team", "--json", "-c", line]
        ends = finish(start(nodes, project, *words, **nodes.storage))
        assert [(end["state"], end["files"], end["tail"]) for end in ends] == [("succeeded", 1, "hello\n")] * 2
        assert (project / "greeting.txt").read_text() == "bye\n"
        options = {
            "endpoint": nodes.storage["AWS_ENDPOINT"],
            "region": "us-east-1",
            "access_key_id": "test",
            "secret_access_key": "test",
            "client_options": {"allow_http": True},
        }
        assert list_left("s3://cluster/team", options) == []
    finally:
        server.stop()


@pytest.mark.crash
def test_nothing_is_left_in_a_store_after_kills(nodes: RayNodes, project: Path) -> None:
    location = str(project.parent / "store")
    for number in range(rounds(1, 5)):
        record = Record(project)
        line = f"{record.begin}; {record.wait}; echo {number} > greeting.txt"
        options = [*record.options, "--store", location, "--json"]
        driver = start(nodes, project, "best-of", "2", *options, "-c", line)
        wait_until(lambda record=record: len(record.begun) == 2, driver)
        nodes.kill(nodes.nodes[0])
        nodes.add()
        driver.kill()
        out, _ = driver.communicate()
        record.go.touch()
        finish(start(nodes, project, "resume", json.loads(out.splitlines()[0])["event"]["fork"], "--json"))
        assert (project / "greeting.txt").read_text() == f"{number}\n"
        assert list_left(location) == []
        check_nothing_left(record, nodes)


FUNCTIONS = """
import sys
from pathlib import Path
from forkwise import RayRunner, Reflexion, TreeOfThoughts, Workspace

def begin(path):
    assert str(path) == str(Path.cwd()) or path.is_dir()
    (path / "tree.txt").write_text("begun")
    return True, 1.0

def go_on(path):
    (path / "tree.txt").write_text((path / "tree.txt").read_text() + ", continued")
    return True, 2.0

def retry(path, attempt, feedback):
    if feedback is None:
        raise ValueError("not yet")
    (path / "feedback.txt").write_text(feedback)
    return True

workspace = Workspace(".")
runner = RayRunner()
outcome = TreeOfThoughts([begin], expand=lambda path, depth: [go_on], max_depth=2, runner=runner)(workspace)
assert outcome.committed, outcome
assert Path("tree.txt").read_text() == "begun, continued"
outcome = Reflexion(retry, 2, runner=runner)(workspace)
assert outcome.committed, outcome
assert "not yet" in Path("feedback.txt").read_text()
"""


def test_functions_and_attempts_on_top_of_others(nodes: RayNodes, project: Path) -> None:
    script = project.parent / "functions.py"
    script.write_text(FUNCTIONS)
    finish(start(nodes, project, str(script), program=sys.executable))


def test_an_edit_made_while_attempts_run_is_not_overwritten(nodes: RayNodes, project: Path) -> None:
    record = Record(project)
    line = f"{record.begin}; {record.wait}; echo theirs > greeting.txt"
    driver = start(nodes, project, "run", *record.options, "--json", "-c", line)
    wait_until(lambda: len(record.begun) == 1, driver)
    (project / "greeting.txt").write_text("mine\n")
    record.go.touch()
    out, err = driver.communicate(timeout=_DEADLINE_S)
    assert driver.returncode == 3, (out + err).decode()
    assert (project / "greeting.txt").read_text() == "mine\n"
    finish(start(nodes, project, "gc"))


def test_the_doctor_examines_each_node(nodes: RayNodes, project: Path) -> None:
    driver = start(nodes, project, "doctor", "--on", "ray", "--json")
    out, err = driver.communicate(timeout=_DEADLINE_S)
    assert driver.returncode == 0, (out + err).decode()
    found = json.loads(out)["nodes"]
    assert {node["directory"] for node in found} >= {str(node.directory) for node in nodes.nodes}
    assert all(node["works"] and node["findings"] for node in found)
