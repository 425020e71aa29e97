"""Servers of a project on the command line: in attempts, in their tests, in branches, and what failures look like."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise.config.config_file import SERVERS, read_workspace_config

SERVE = """
import socket
server = socket.create_server(("127.0.0.1", 3000))
print("serving", flush=True)
while True:
    client = server.accept()[0]
    client.sendall(open("a.txt", "rb").read())
    client.close()
"""
ASK = "import socket, sys; sys.stdout.write(socket.create_connection(('127.0.0.1', 3000)).makefile().read())"


@pytest.fixture
def servers(project: Path) -> Callable[[str], None]:
    """Write the file of servers, and the programs that it names."""
    (project / "serve.py").write_text(SERVE)
    (project / "ask.py").write_text(ASK)

    def write(text: str) -> None:
        (project / ".forkwise").mkdir(exist_ok=True)
        (project / ".forkwise/servers.toml").write_text(text)

    write(f"[servers.web]\ncommand = ['{sys.executable}', '-IS', 'serve.py']\nready = {{ port = 3000 }}\n")
    return write


def explore(run: Callable[..., Result], *words: str, code: int = 0) -> Any:
    """Run an explore command, and return the last document of its stream, the outcome."""
    return json.loads(run(*words, "--json", code=code).stdout.splitlines()[-1])["outcome"]


def call(program: str) -> str:
    return f"{sys.executable} -IS {program}"


def test_attempts_and_their_tests_have_servers_on_the_same_port(
    run: Callable[..., Result], ask: Callable[..., Any], servers: Callable[[str], None], project: Path
) -> None:
    line = f"{call('ask.py')}; echo $FORKWISE_ATTEMPT > a.txt; {call('ask.py')}"
    test = f'{call("ask.py")} | grep -qx "$(cat a.txt)"'
    document = explore(run, "best-of", "2", "--test", test, "-c", line)
    fork = document["fork"]
    assert [attempt["state"] for attempt in document["attempts"]] == ["succeeded", "succeeded"]
    assert (project / "a.txt").read_text() == "1\n"
    assert run("show", f"{fork}.2", "--output").stdout == "one\n2\n"
    assert run("show", f"{fork}.2", "--server", "web").stdout == "serving\n"
    assert ask("show", f"{fork}.2", "--server", "web.tests")["output"] == "serving\n"
    assert "there are web, web.tests" in run("show", f"{fork}.2", "--server", "db", code=2).stderr


def test_no_servers(run: Callable[..., Result], servers: Callable[[str], None]) -> None:
    run("run", "--no-servers", "-c", f"echo two > a.txt; ! {call('ask.py')} 2>/dev/null")


def test_a_server_that_fails_is_a_fault(
    run: Callable[..., Result], servers: Callable[[str], None], project: Path
) -> None:
    servers("[servers.db]\ncommand = 'echo no space; exit 3'\nready.port = 5432")
    document = explore(run, "run", "-c", "echo two > a.txt", code=7)
    [attempt] = document["attempts"]
    assert (attempt["state"], attempt["fault"]) == ("faulted", "server")
    assert "'db' ended before it was ready (exit code 3)" in attempt["reason"]
    assert attempt["reason"].endswith("no space")
    assert (project / "a.txt").read_text() == "one\n"


def test_a_server_that_fails_on_the_base_ends_the_command(
    run: Callable[..., Result], ask: Callable[..., Any], servers: Callable[[str], None]
) -> None:
    servers("[servers.db]\ncommand = 'echo no space; exit 3'\nready.port = 5432")
    assert "no space" in run("run", "--test", "true", "-c", "echo two > a.txt", code=1).stderr
    [fork] = ask("ls")["forks"]
    assert fork["attempts"] in (0, {})


def test_branch_run_and_shell(run: Callable[..., Result], servers: Callable[[str], None], project: Path) -> None:
    run("branch", "create", "try")
    run("branch", "run", "try", "--", "sh", "-c", "echo two > a.txt")
    for verb in ("run", "shell"):
        run("branch", verb, "try", "--servers", "--", "sh", "-c", f"{call('ask.py')} > {verb}.txt")
    run("branch", "commit", "try")
    assert [(project / f"{verb}.txt").read_text() for verb in ("run", "shell")] == ["two\n", "two\n"]
    servers("")
    run("branch", "create", "other")
    assert "names any" in run("branch", "run", "other", "--servers", "--", "true", code=2).stderr


def test_an_attempt_cannot_change_the_servers(run: Callable[..., Result], servers: Callable[[str], None]) -> None:
    line = "printf '[servers.evil]\\ncommand = \"exit 9\"\\nready.port = 1\\n' > .forkwise/servers.toml"
    document = explore(run, "run", "--test", f"{call('ask.py')} | grep -q one", "-c", line, "--no-commit")
    assert document["attempts"][0]["state"] == "succeeded"


def test_trust_lists_what_reaches_outside(
    run: Callable[..., Result], ask: Callable[..., Any], servers: Callable[[str], None], project: Path
) -> None:
    servers("[servers.db]\ncommand = 'true'\nready.port = 5432\npasses = ['TOKEN']")
    assert "forkwise trust" in run("run", "--", "true", code=1).stderr
    [file] = ask("trust")["files"]
    assert file["allows"] == ["[servers.db] gets the variables TOKEN"]
    found = read_workspace_config(project, SERVERS)
    assert found is not None
    run("trust", "--sha256", found.sha256)
    assert ask("trust")["files"][0]["state"] == "accepted"


def test_the_database_of_the_winner_is_committed(
    run: Callable[..., Result], ask: Callable[..., Any], servers: Callable[[str], None], project: Path
) -> None:
    (project / "store").mkdir()
    (project / "store/rows").write_text("0\n")
    servers(
        f"[servers.web]\ncommand = ['{sys.executable}', '-IS', 'serve.py']\nready.port = 3000\ndata = 'store'\n"
        "after = 'echo migrated >> store/rows'"
    )
    document = explore(
        run, "run", "--test", "grep -q migrated store/rows", "-c", "echo two > a.txt; echo $$ > store/pid"
    )
    assert document["attempts"][0]["files"] == 2
    assert (project / "store/rows").read_text() == "0\nmigrated\n"
    assert run("diff", f"{document['fork']}.1").stdout.startswith("Database store: 2 files")
    changes = ask("show", f"{document['fork']}.1")["attempt"]["changes"]
    assert [(change["path"], change["files"]) for change in changes] == [("a.txt", 0), ("store", 2)]
