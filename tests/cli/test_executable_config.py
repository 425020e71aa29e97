"""Executable configuration on the command line: every way to commit refuses it, and labels say what it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from forkwise import Workspace
from forkwise.fork.agent_workspace import AgentFiles

Run = Callable[..., Result]

LABEL = {"path": ".envrc", "executor": "direnv"}
REFUSED = "a confined program changed what your machine will run: .envrc (direnv)"
SHOWN = "This changes what your machine will run:\n  .envrc: direnv\n"


def test_an_exploration_refuses_it_and_keeps_the_branch(run: Run, project: Path) -> None:
    words = ("--", "sh", "-c", "echo x > .envrc")
    done = run("run", *words, code=1)
    assert REFUSED in done.stderr
    assert "--allow-executable-config" in done.stderr
    assert not (project / ".envrc").exists()
    [branch] = Workspace(project).branches()
    assert SHOWN in run("branch", "diff", "--stat", branch.name).stdout
    diff = run("branch", "diff", branch.name)
    assert "what your machine will run:\n  .envrc: direnv\n" in diff.stderr
    assert diff.stdout.startswith("diff --git")
    changes = json.loads(run("branch", "diff", "--json", branch.name).stdout)["changes"]
    assert [(change["path"], change["executor"]) for change in changes] == [(".envrc", "direnv")]
    assert REFUSED in run("branch", "commit", branch.name, code=1).stderr
    assert SHOWN in run("branch", "commit", "--allow-executable-config", branch.name).stdout
    outcome = json.loads(run("run", "--json", "-q", "--allow-executable-config", *words).stdout)["outcome"]
    assert outcome["commit"]["executable_config"] == [LABEL]


def test_pick_and_combine_refuse_it(run: Run, project: Path) -> None:
    run("speculate", "--all", "--no-commit", "-q", "-c", "echo x > .envrc", "-c", "echo y > other.txt")
    fork = run("ls").stdout.splitlines()[1].split()[0]
    assert SHOWN in run("show", f"{fork}.1").stdout
    shown = json.loads(run("show", "--json", f"{fork}.1").stdout)["attempt"]["changes"]
    assert [change["executor"] for change in shown] == ["direnv"]
    assert json.loads(run("diff", "--json", f"{fork}.1").stdout)["executable_config"] == [LABEL]
    assert REFUSED in run("combine", f"{fork}.1", f"{fork}.2", "--no-test", code=1).stderr
    assert not (project / ".envrc").exists()
    run("abort", fork)
    run("speculate", "--all", "--no-commit", "-q", "-c", "echo x > .envrc", "-c", "echo y > other.txt")
    fork = run("ls").stdout.splitlines()[1].split()[0]
    assert REFUSED in run("pick", f"{fork}.1", code=1).stderr
    assert not (project / ".envrc").exists()
    commit = json.loads(run("pick", "--json", "--allow-executable-config", f"{fork}.1").stdout)["commit"]
    assert commit["executable_config"] == [LABEL]


def test_an_unconfined_exploration_is_labelled(run: Run, project: Path) -> None:
    assert SHOWN in run("run", "--confinement", "open", "--", "sh", "-c", "echo x > .envrc").stdout
    assert (project / ".envrc").exists()


def test_an_agent_s_file_tools_count_as_confined(project: Path) -> None:
    branch = Workspace(project).branch("agent", None, None)
    AgentFiles(branch).tree().write(".envrc", b"x")
    assert branch.is_confined
    branch.abort()
