"""Servers in the networks of branches, looked at through the listener, by this process and by the command."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from forkwise import Confinement, Workspace
from forkwise.cli import forkwise_command
from forkwise.preview.listener import PreviewListener
from forkwise.preview.target import TargetBook, find_target, list_targets
from forkwise.sandbox.network import ports
from forkwise.sandbox.run import spawn
from tests.fork.kill_at_point import becomes_so
from tests.preloaded import preloaded_command
from tests.preview.conftest import SERVE, Serve
from tests.sandbox.child import need_user_namespaces
from tests.unprivileged import as_unprivileged, interpreter, unprivileged_project


@pytest.fixture
def listener(workspace: Workspace) -> Iterator[PreviewListener]:
    book = TargetBook(workspace)
    with PreviewListener(book.connect) as opened:
        yield opened
    book.close()


def get(port: int, label: str, token: str) -> tuple[int, str]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    client.request("GET", "/", headers={"Host": f"{label}.localhost:{port}", "Forkwise-Token": token})
    answer = client.getresponse()
    text = answer.read().decode()
    client.close()
    return answer.status, text


def test_five_branches_are_looked_at_on_one_port(workspace: Workspace, serve: Serve, listener: PreviewListener) -> None:
    branches = [workspace.branch(f"k3f9ab-{number}") for number in range(1, 6)]
    for branch in branches:
        serve(branch, branch.name, 3000)
    labels = [f"{branch.name}--3000" for branch in branches] * 4
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda label: get(listener.port, label, listener.make_token(label)), labels))
    assert answers == [(200, branch.name) for branch in branches] * 4
    assert [(target.label, [one.port for one in target.list_ports()]) for target in list_targets(workspace)] == [
        (branch.name, [3000]) for branch in branches
    ]


def test_a_port_that_may_be_left_out_one_of_ipv6_and_one_that_nobody_has(
    workspace: Workspace, serve: Serve, listener: PreviewListener
) -> None:
    space = serve(workspace.branch("k3f9ab-1"), "six", 8000, host="::1")
    target = find_target(workspace.open("k3f9ab-1"))
    (one,) = target.list_ports()
    assert (one.port, one.host, one.pid is not None) == (8000, "::1", True)
    assert one.program.startswith("python") if one.program else False
    with space.listen(9999):  # of this process, which is outside: such as a proxy
        assert [port.port for port in target.list_ports()] == [8000]
        assert get(listener.port, "k3f9ab-1", listener.make_token("k3f9ab-1")) == (200, "six")
    label = "k3f9ab-1--3000"
    status, text = get(listener.port, label, listener.make_token(label))
    assert (status, "nothing answers on port 3000" in text, "listen on 8000" in text) == (502, True, True)


def test_a_port_that_is_closed_while_ports_are_listed_is_left_out(
    workspace: Workspace, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = serve(workspace.branch("k3f9ab-1"), "one", 8000)
    opened = space.listen(9999)  # of this process, which is outside
    find_owners = ports._find_owners

    def find_owners_late(inodes: set[str], space: str) -> dict[str, tuple[str, int, bool]]:
        opened.close()
        return find_owners(inodes, space)

    monkeypatch.setattr(ports, "_find_owners", find_owners_late)
    assert [one.port for one in find_target(workspace.open("k3f9ab-1")).list_ports()] == [8000]


def test_an_end_and_a_new_start_are_noticed(workspace: Workspace, serve: Serve, listener: PreviewListener) -> None:
    branch = workspace.branch("k3f9ab-1")
    label = "k3f9ab-1--3000"
    token = listener.make_token(label)
    space = serve(branch, "first", 3000)
    assert get(listener.port, label, token) == (200, "first")
    space.close()
    assert becomes_so(lambda: not space.process.alive)
    status, text = get(listener.port, label, token)
    assert (status, "nothing runs in a branch with the name k3f9ab-1" in text) == (404, True)
    serve(branch, "second", 3000)
    assert get(listener.port, label, token) == (200, "second")


def ask(workspace: Workspace, *words: str, code: int = 0) -> Any:
    result = CliRunner().invoke(forkwise_command, ["-C", str(workspace.path), *words, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_the_command_opens_a_port_until_nothing_runs(workspace: Workspace, serve: Serve, tmp_path: Path) -> None:
    space = serve(workspace.branch("Try_1"), "hello", 3000, 3001)
    workspace.branch("idle")
    first, second = ask(workspace, "port", "ls")["ports"]
    assert (first["name"], first["port"], second["port"]) == ("Try_1", 3000, 3001)
    assert "3000 (" in ask(workspace, "open", "Try_1", code=2)["error"]["message"]
    assert "nothing runs in idle" in ask(workspace, "open", "idle", code=1)["error"]["message"]
    browser = tmp_path / "bin/xdg-open"
    browser.parent.mkdir()
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\ncp "${{1#file://}}" {tmp_path}/page\n')
    browser.chmod(0o755)
    for end in (signal.SIGINT, None):
        program = subprocess.Popen(
            [preloaded_command(), "open", "Try_1", "3000", "--json", "--browser"],
            cwd=workspace.path,
            env={**os.environ, "PATH": f"{browser.parent}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.stdout is not None
        shown = json.loads(program.stdout.readline())["preview"]
        assert get(shown["listening_port"], shown["label"], shown["token"]) == (200, "hello")
        assert shown["url"].startswith(f"http://{shown['label']}.localhost:{shown['listening_port']}/?forkwise-token=")
        if end is None:
            space.close()
        else:
            program.send_signal(end)
        rest = json.loads(program.communicate(timeout=60)[0])
        if end is None:
            assert (program.returncode, rest) == (0, {"ended": "Try_1"})
        else:
            assert (program.returncode, rest["error"]["type"]) == (130, "Interrupted")
    assert ask(workspace, "port", "ls") == {"ports": []}
    assert becomes_so((tmp_path / "page").exists)
    assert shown["url"].partition("=")[2] in (tmp_path / "page").read_text()
    opened = (tmp_path / "opened").read_text().strip()  # the token is not among the arguments, and its file is gone
    assert (opened.endswith(".html"), os.path.exists(opened.removeprefix("file://"))) == (True, False)


def test_a_fork_is_opened_with_all_its_attempts(workspace: Workspace, serve: Serve) -> None:
    from forkwise.ledger.sqlite import open_ledger

    with open_ledger(workspace) as ledger:
        fork = ledger.begin_fork("best-of", workspace=str(workspace.path), spec={}).id
        first = serve(workspace.branch(f"{fork}-1"), "one", 3000)
        serve(workspace.branch("k3f9ab-1"), "of another fork", 3000)
        assert [one["name"] for one in ask(workspace, "port", "ls", fork)["ports"]] == [f"{fork}.1"]
        program = subprocess.Popen(
            [preloaded_command(), "open", fork, "--json"], cwd=workspace.path, stdout=subprocess.PIPE, text=True
        )
        assert program.stdout is not None
        shown = json.loads(program.stdout.readline())["preview"]
        second = serve(workspace.branch(f"{fork}-2"), "two", 3000)
        later = json.loads(program.stdout.readline())["preview"]
        assert [one["name"] for one in (shown, later)] == [f"{fork}.1", f"{fork}.2"]
        assert get(later["listening_port"], later["label"], later["token"]) == (200, "two")
        first.close()
        second.close()
        ledger.abort_fork(fork, "the test is over")
    assert json.loads(program.communicate(timeout=60)[0]) == {"ended": fork}


def test_a_command_in_a_network_of_its_own_is_found(workspace: Workspace) -> None:
    need_user_namespaces()
    branch = workspace.branch("try-1")
    reader, writer = os.pipe()
    command = [sys.executable, "-c", SERVE, "own", "127.0.0.1", "3000"]
    process = spawn(branch, command, (0, writer, 2), confinement=Confinement.standard(network="proxy"))
    os.close(writer)
    try:
        with open(reader) as ready:
            assert ready.readline() == "ready\n"
        assert [one.port for one in find_target(branch).list_ports()] == [3000]  # and not those of the proxy
    finally:
        process.close()
    assert find_target(branch).process is None


def test_an_attempt_is_looked_at_while_it_runs(workspace: Workspace) -> None:
    need_user_namespaces()

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen([preloaded_command(), *words], cwd=workspace.path, stdout=subprocess.PIPE, text=True)

    server = ("python3", "-m", "http.server", "3000")
    fork = start("best-of", "2", "--detach", "-q", "--", *server).communicate(timeout=60)[0].strip()
    program = start("open", fork, "--json")
    assert program.stdout is not None
    shown = [json.loads(program.stdout.readline())["preview"] for _ in range(2)]
    assert sorted(one["name"] for one in shown) == [f"{fork}.1", f"{fork}.2"]
    for one in shown:
        status, text = get(one["listening_port"], one["label"], one["token"])
        assert (status, "a.txt" in text) == (200, True)
    assert ask(workspace, "abort", fork)["aborted"] == fork
    assert json.loads(program.communicate(timeout=60)[0]) == {"ended": fork}


HOST = """
import subprocess, sys
from forkwise import Workspace
from forkwise.linux.namespace import enter_namespace
from forkwise.sandbox.network.space import NetworkSpace
from forkwise.sandbox.run import spawn

enter_namespace()  # as an explore command does
branch = Workspace(sys.argv[1], view="overlay").branch("k3f9ab-1", on_success=None, on_error=None)
with NetworkSpace() as space:
    space.register(branch)
    spawn(branch, [sys.executable, "-c", sys.argv[2], "hello", "127.0.0.1", "3000"], (0, 1, 2), space=space)
    sys.stdin.read()
"""
GUEST = """
import sys
from forkwise import Workspace
from forkwise.preview.target import TargetBook, list_targets

workspace = Workspace(sys.argv[1])
(target,) = list_targets(workspace)
print([(one.port, (one.program or "").startswith("python")) for one in target.list_ports()])
with TargetBook(workspace).connect(target.label, None) as opened:
    opened.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    print(b"".join(iter(lambda: opened.recv(4096), b"")).rpartition(b"\\n")[2].decode())
"""


def test_a_user_without_privileges_looks_into_a_branch() -> None:
    need_user_namespaces()
    with unprivileged_project(("rapidfuzz",)) as (home, environment):
        project = str(home / "project")
        with subprocess.Popen(
            as_unprivileged([interpreter(), "-c", HOST, project, SERVE]),
            env=environment,
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            command = as_unprivileged([interpreter(), "-c", GUEST, project])
            other = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True)
            assert other.stdout.splitlines() == ["[(3000, True)]", "hello"], other
            program.communicate()
