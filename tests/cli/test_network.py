"""The network of attempts from the command line: own ports by default, rules, ports of the host, and the log."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from forkwise import Confinement
from forkwise.sandbox.network.gateway import explain_refusal

Run = Callable[..., Result]

SERVE = "python3 -c \"import socket; socket.create_server(('', 3000)); open('served-'+'$FORKWISE_ATTEMPT', 'w')\""
ASK = (
    "python3 -c \"import os, urllib.request as r; open('got', 'w').write(r.urlopen(os.environ['MODEL_BASE_URL'])"
    '.read().decode())"'
)


@pytest.fixture
def host_port() -> Iterator[int]:
    """Serve one answer after the other on this machine's loopback."""
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while not is_over.is_set():
                with server.accept()[0] as accepted:
                    if not accepted.recv(9999):
                        continue
                    accepted.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\nof host")

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        is_over.set()
        socket.create_connection(server.getsockname()).close()
        thread.join()


def test_attempts_serve_the_same_port_at_once(run: Run, project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # a port of this machine that is in use
        line = SERVE.replace("3000", str(server.getsockname()[1]))
        fork = json.loads(run("best-of", "3", "-c", line, "--json").stdout.splitlines()[-1])["outcome"]["fork"]
    attempts = json.loads(run("show", fork, "--json").stdout)["fork"]["attempts"]
    assert [attempt["state"] for attempt in attempts] == ["succeeded"] * 3, attempts


def test_what_was_asked_for_is_logged_for_each_attempt(run: Run, project: Path) -> None:
    fetch = "python3 -c \"import urllib.request as r; r.urlopen('http://example.org/')\"; touch x"
    shown = run("run", "--deny-host", "*.org", "-c", fetch, "--json")
    attempt = json.loads(shown.stdout.splitlines()[-1])["outcome"]["fork"] + ".1"
    entries = json.loads(run("show", attempt, "--network", "--json").stdout)["connections"]
    assert [(e["host"], e["port"], e["allowed"]) for e in entries] == [("example.org", 80, False)]
    assert "denied by --deny-host" in run("show", attempt, "--network").stdout
    assert "only an attempt has connections" in run("show", attempt.partition(".")[0], "--network", code=2).stderr


@pytest.mark.parametrize("has_servers", [False, True])
def test_what_tests_asked_for_is_logged_as_theirs(run: Run, project: Path, has_servers: bool) -> None:
    if has_servers:
        (project / ".forkwise").mkdir()
        (project / ".forkwise/servers.toml").write_text(
            "[servers.idle]\ncommand = 'echo up; exec sleep 600'\nready = { log = 'up' }\n"
        )
    fetch = "python3 -c \"import urllib.request as r; r.urlopen('http://{}.org/')\" 2> /dev/null"
    line = f"{fetch.format('attempt')}; touch x"
    test = f"{fetch.format('tests')}; true"
    done = run("run", "--deny-host", "*.org", "--no-baseline", "--test", test, "-c", line, "--json")
    attempt = json.loads(done.stdout.splitlines()[-1])["outcome"]["fork"] + ".1"
    entries = json.loads(run("show", attempt, "--network", "--json").stdout)["connections"]
    assert [(e["host"], e["of_tests"]) for e in entries] == [("attempt.org", False), ("tests.org", True)]
    assert " tests " in run("show", attempt, "--network").stdout


def test_a_port_of_this_machine_is_opened_by_name(run: Run, project: Path, host_port: int) -> None:
    url = f"MODEL_BASE_URL=http://localhost:{host_port}/"
    run("run", "-c", ASK, "--env", url, code=7)
    run("run", "-c", ASK, "--env", url, "--host-port", str(host_port))
    assert (project / "got").read_text() == "of host"


def test_an_agent_reaches_the_model_server_that_its_variables_name(
    run: Run, project: Path, host_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MODEL_BASE_URL", f"http://127.0.0.1:{host_port}/v1")
    agents = tmp_path / "config/forkwise/agents.toml"
    agents.parent.mkdir(parents=True)
    agents.write_text(f"[local]\ncommand = ['sh', '-c', '''{ASK}''', '{{prompt}}']\npasses = ['MODEL_*']\n")
    shown = run("run", "--agent", "local", "do it")
    assert f"reach port {host_port} of this machine, which MODEL_BASE_URL names" in shown.stderr + shown.stdout
    assert (project / "got").read_text() == "of host"


def test_rules_need_the_proxy(run: Run, project: Path) -> None:
    for network in ("host", "private", "none"):
        message = run("run", "--network", network, "--allow-host", "a.org", "-c", "true", code=2).stderr
        assert "--network proxy" in message
    assert "65535" in run("run", "--host-port", "70000", "-c", "true", code=2).stderr


def test_a_branch_command_has_its_own_ports_too(run: Run, project: Path, host_port: int) -> None:
    run("branch", "create", "try")
    probe = f"import socket; socket.create_connection(('127.0.0.1', {host_port}))"
    run("branch", "run", "try", "--", "python3", "-c", probe, code=1)
    run("branch", "run", "try", "--host-port", str(host_port), "--", "python3", "-c", probe)
    run("branch", "run", "try", "--network", "host", "--", "python3", "-c", probe)


def test_a_refused_connection_of_the_baseline_names_the_flag(run: Run, project: Path, host_port: int) -> None:
    (project / "check.sh").write_text(f"echo 'Error: connect ECONNREFUSED 127.0.0.1:{host_port}'; exit 1\n")
    shown = run("run", "--test", "sh check.sh", "-c", "touch x", code=7)
    assert f"--host-port {host_port} lets the tests and the attempts reach it" in shown.stderr + shown.stdout
    (project / "check.sh").write_text("echo 'Error: connect ECONNREFUSED 127.0.0.1:1'; exit 1\n")
    shown = run("run", "--test", "sh check.sh", "-c", "touch x", code=7)
    assert "--host-port" not in shown.stderr + shown.stdout


@pytest.mark.parametrize(
    "line",
    [
        "Error: connect ECONNREFUSED 127.0.0.1:{port}",
        'connection to server at "localhost" (127.0.0.1), port {port} failed: Connection refused',
        "HTTPConnectionPool(host='localhost', port={port}): [Errno 111] Connection refused",
        "Error 111 connecting to localhost:{port}. Connection refused.",
        "ConnectionRefusedError: [Errno 111] Connect call failed ('127.0.0.1', {port})",
    ],
)
def test_messages_of_common_clients_are_understood(line: str, host_port: int) -> None:
    confinement = Confinement.standard(network="auto")
    assert f"--host-port {host_port} " in explain_refusal(confinement, f"x\n{line.format(port=host_port)}\n")
    assert explain_refusal(replace(confinement, network="host"), line.format(port=host_port)) == ""
