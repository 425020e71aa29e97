"""One agent with forkwise's MCP server inside: registered by one line, it forks, waits, compares, picks and undoes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.agents.scripted_model import BROKEN, FORK_PROMPT
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

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=project,
            env=env,
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
    run("forkwise", "uninstall", name, "--user", "--yes")
    left = [str(file) for file in before if file.exists() and "forkwise" in file.read_text()]
    return problems + [f"still registered in {', '.join(left)}"] * bool(left)
