"""One agent with forkwise's MCP server inside: registered by one line, it forks, waits, compares, picks and undoes.

Claude Code gets slash commands as well: each has to reach the model as the text of its file, with the arguments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from tools.agents.scripted_model import BROKEN, FORK_PROMPT, serve_model
from tools.agents.trial import SETUPS

__all__ = ["COMMANDS", "try_server"]

COMMANDS = {
    "claude": ("claude", "-p", FORK_PROMPT, "--dangerously-skip-permissions"),
    "codex": (
        *("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        FORK_PROMPT,
    ),
    "gemini": ("gemini", "--yolo", "--model", "gemini-2.5-pro", "-p", FORK_PROMPT),
    "opencode": ("opencode", "run", FORK_PROMPT),
}
"""How each agent is run without a terminal."""

_SLASH_COMMANDS = {"best-of": "2 add a test", "forks": "", "undo": "7"}
_TIMEOUT_S = 120


def try_server(name: str, path: str, url: str, top: Path) -> list[str]:
    """Register forkwise with an agent, and run the agent; return what does not hold."""
    setup = SETUPS[name]
    place = Path(tempfile.mkdtemp(prefix=f"{name}-server-", dir=top))
    home, project, programs = place / "home", place / "project", place / "bin"
    for directory in (home, project, programs):
        directory.mkdir()
    (project / "calc.py").write_text(BROKEN)
    script = programs / "forkwise"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -P -c "from forkwise.cli import main; main()" "$@"\n')
    script.chmod(0o755)
    for file, content in setup.files.items():
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(content.replace("{url}", url))
    env = {"PATH": f"{programs}:{path}:{os.environ['PATH']}", "HOME": str(home), "SHELL": "/bin/sh", "IS_SANDBOX": "1"}
    env["GEMINI_CLI_TRUST_WORKSPACE"] = "true"
    env |= {key: value.replace("{url}", url) for key, value in setup.environment.items()}

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=project,
            env=env | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    before = [file for file in home.rglob("*") if file.is_file()]
    registered = run("forkwise", "install", name, "--user", "--no-confirm", "--yes")
    if registered.returncode:
        return [f"not registered: {registered.stderr.strip()[-200:]}"]
    done = run(*COMMANDS[name])
    (place / "output").write_text(f"{done.stdout}\n{done.stderr}")
    commits = json.loads(run("forkwise", "log", "--json").stdout)["commits"]
    problems = []
    if [(commit["kind"], commit["undoes"]) for commit in commits][:1] != [("undo", 1)] or len(commits) != 2:
        said = (done.stdout or done.stderr).strip()[-200:]
        problems.append(f"{len(commits)} commits instead of a pick and its undo: {said!r}")
    if (project / "calc.py").read_text() != BROKEN or len(list(project.iterdir())) != 1:
        problems.append("the project is not as it was")
    if name == "claude":
        problems += _try_slash_commands(run, place)
    run("forkwise", "uninstall", name, "--user", "--yes")
    left = [str(file) for file in before if file.exists() and "forkwise" in file.read_text()]
    return problems + [f"still registered in {', '.join(left)}"] * bool(left)


def _try_slash_commands(run: Callable[..., subprocess.CompletedProcess[str]], place: Path) -> list[str]:
    """Run each slash command in Claude Code; return those whose text does not reach the model."""
    problems = []
    for name, arguments in _SLASH_COMMANDS.items():
        record = place / f"{name}.requests"
        with serve_model(record) as url:
            done = run("claude", "-p", f"/{name} {arguments}".strip(), ANTHROPIC_BASE_URL=url)
        lines = record.read_text().splitlines() if record.exists() else []
        received = " ".join(text for line in lines for text in _list_texts(json.loads(line)["request"].get("messages")))
        content = (files("forkwise.agents") / "claude_plugin" / f"{name}.md").read_text(encoding="utf-8")
        expected = content.split("---\n", 2)[2].replace("$ARGUMENTS", arguments)
        if " ".join(expected.split()) not in " ".join(received.split()):
            said = (done.stdout or done.stderr).strip()[-200:]
            problems.append(f"/{name} does not reach the model: {said!r}")
    return problems


def _list_texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(inner)
