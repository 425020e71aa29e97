"""One agent tried as one user: best-of 3 with one right, one wrong and one idle attempt, in an empty home directory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.unprivileged import interpreter

from forkwise.agents.preset import Agent, load_agents
from forkwise.sandbox.path_view import matches
from tools.agents.scripted_model import ANSWER, BROKEN, FIXED, PROMPTS

__all__ = ["SETUPS", "Setup", "Trial", "try_agent"]

_KEY = "test-key-of-nobody"
_TEST = "python3 -c 'import calc; assert calc.add(1, 2) == 3'"
_TIMEOUT_S = 600
_OWN_STATE = ".local/state/forkwise"


@dataclass(frozen=True)
class Setup:
    """How an agent is led to the scripted model; ``{url}`` in a value is its address.

    ``files`` are written to the home directory before the first run. ``has_tokens`` and ``has_session`` say what its
    output tells; without ``is_repository`` the project has no git repository.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    arguments: str = ""
    has_tokens: bool = True
    has_session: bool = True
    has_answer: bool = True
    is_repository: bool = False


_CODEX = """\
model_provider = "scripted"
model = "gpt-5"
[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""
_OPENCODE = """\
{"model": "anthropic/claude-sonnet-4-5", "provider": {"anthropic": {"options": {"baseURL": "{url}/v1"}, "models":
{"claude-sonnet-4-5": {"name": "scripted", "limit": {"context": 100000, "output": 8000}, "cost": {"input": 3,
"output": 15}}}}}}
"""
_PI = """\
{"providers": {"scripted": {"baseUrl": "{url}/v1", "api": "openai-completions", "apiKey": "OPENAI_API_KEY",
"models": [{"id": "scripted"}]}}}
"""
_CN = """\
name: scripted
version: 0.0.1
schema: v1
models:
  - name: scripted
    provider: openai
    model: scripted
    apiBase: "{url}/v1"
    apiKey: KEY
    roles: [chat]
    capabilities: [tool_use]
""".replace("KEY", _KEY)
_VIBE = """\
active_model = "scripted"
[[providers]]
name = "scripted"
api_base = "{url}/v1"
api_key_env_var = "MISTRAL_API_KEY"
api_style = "openai"
backend = "generic"
[[models]]
name = "scripted"
provider = "scripted"
alias = "scripted"
"""
_OPENAI = {"OPENAI_API_KEY": _KEY, "OPENAI_BASE_URL": "{url}/v1"}

SETUPS: dict[str, Setup] = {
    "claude": Setup({"ANTHROPIC_API_KEY": _KEY, "ANTHROPIC_BASE_URL": "{url}"}),
    "codex": Setup(_OPENAI, {".codex/config.toml": _CODEX}),
    "gemini": Setup(
        {"GEMINI_API_KEY": _KEY, "GOOGLE_GEMINI_BASE_URL": "{url}"},
        {".gemini/settings.json": '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'},
        model="gemini-2.5-pro",
    ),
    "opencode": Setup({"ANTHROPIC_API_KEY": _KEY}, {".config/opencode/opencode.json": _OPENCODE}),
    "goose": Setup(
        {"GOOSE_PROVIDER": "openai", "GOOSE_MODEL": "scripted", "GOOSE_DISABLE_KEYRING": "1", "OPENAI_HOST": "{url}"}
        | {"OPENAI_API_KEY": _KEY},
        has_session=False,
    ),
    "qwen": Setup(_OPENAI | {"OPENAI_MODEL": "scripted"}),
    "copilot": Setup(
        {"COPILOT_PROVIDER_BASE_URL": "{url}/v1", "COPILOT_PROVIDER_API_KEY": _KEY, "COPILOT_MODEL": "scripted"},
        has_tokens=False,
    ),
    "pi": Setup({"OPENAI_API_KEY": _KEY}, {".pi/agent/models.json": _PI}, model="scripted/scripted"),
    "cn": Setup({}, {".continue/config.yaml": _CN}, has_tokens=False, has_session=False, has_answer=False),
    "aider": Setup(
        {"OPENAI_API_KEY": _KEY, "OPENAI_API_BASE": "{url}/v1"},
        model="openai/scripted",
        arguments="--edit-format=diff",
        has_tokens=False,
        has_session=False,
        has_answer=False,
        is_repository=True,
    ),
    "mini": Setup(
        {"OPENAI_API_KEY": _KEY, "OPENAI_API_BASE": "{url}/v1", "MSWEA_CONFIGURED": "true"}
        | {"MSWEA_COST_TRACKING": "ignore_errors"},
        model="openai/scripted",
        has_tokens=False,
        has_session=False,
        has_answer=False,
    ),
    "vibe": Setup({"MISTRAL_API_KEY": _KEY}, {".vibe/config.toml": _VIBE}, has_tokens=False),
    "openhands": Setup(
        {"LLM_API_KEY": _KEY, "LLM_BASE_URL": "{url}/v1", "LLM_MODEL": "openai/scripted"},
        has_tokens=False,
        has_session=False,
        has_answer=False,
    ),
}


@dataclass(frozen=True)
class Trial:
    """What was seen of one agent, as one user."""

    agent: str
    version: str
    user: str
    problems: tuple[str, ...]


def try_agent(name: str, path: str, url: str, top: Path, user: int, sources: str | None) -> Trial:
    """Run an agent as ``user``; ``sources`` is the PYTHONPATH of a forkwise that the user can read."""
    setup = SETUPS[name]
    place = Path(tempfile.mkdtemp(prefix=f"{name}-{user}-", dir=top))
    home, project = place / "home", place / "project"
    home.mkdir()
    project.mkdir()
    (project / "calc.py").write_text(BROKEN)
    for file, content in setup.files.items():
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(content.replace("{url}", url))
    for one in (place, *place.rglob("*")):
        os.chown(one, user, user)
    env = {"PATH": f"{path}:{os.environ['PATH']}", "HOME": str(home), "SHELL": "/bin/sh"}
    env["FORKWISE_STATE"] = str(place / "state")
    env |= {key: value.replace("{url}", url) for key, value in setup.environment.items()}
    env |= {} if sources is None else {"PYTHONPATH": sources, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*words: str, directory: Path = project) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=directory,
            env=env,
            user=user or None,
            group=user or None,
            extra_groups=[] if user else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    if setup.is_repository:
        author = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
        run("git", "init", "-q")
        run("git", "add", "calc.py")
        run("git", *author, "commit", "-qm", "a function")
    before = _list_entries(home)
    forkwise = (interpreter() if user and sources else sys.executable, "-c", "from forkwise.cli import main; main()")
    words = [f"--vary=prompt={prompt}" for prompt in PROMPTS]
    words += [f"--model={setup.model}"] if setup.model else []
    words += [f"--agent-args={setup.arguments}"] if setup.arguments else []
    port = url.rpartition(":")[2]
    done = run(*forkwise, "best-of", "3", "--agent", name, f"--host-port={port}", *words, "--test", _TEST, "--json")
    problems = _find_problems(done, setup, project)
    problems += _find_leftovers(load_agents(project)[name], home, _list_entries(home) - before, os.fspath(project))
    (place / "output").write_text(f"{done.stdout}\n{done.stderr}")
    env.pop("PYTHONPATH", None)  # packages of another version of Python
    said = run(name, "--version", directory=place)  # some of them do more than that in a repository
    version = re.search(r"(?<![\d.])\d+\.\d+\.\d+", said.stdout or said.stderr)
    return Trial(name, version[0] if version else "?", "root" if not user else "another user", tuple(problems))


def _find_problems(done: subprocess.CompletedProcess[str], setup: Setup, project: Path) -> list[str]:
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    outcome: dict[str, Any] | None = next((line["outcome"] for line in lines if "outcome" in line), None)
    if outcome is None:
        return [f"no outcome: {(done.stderr or done.stdout).strip()[-300:]!r}"]
    attempts = outcome["attempts"]
    problems = [] if str(outcome["winner"]).endswith(".1") else [f"the winner is {outcome['winner']}"]
    problems += [
        f"{a['id']} {a['state']}: {a['reason']}"
        for a in attempts
        if a["fault"] or (a["id"].endswith(".1") and a["state"] == "failed")
    ]
    if setup.has_session:
        sessions = {a["session"] for a in attempts} - {None}
        problems += [] if len(sessions) == 3 else [f"{len(sessions)} sessions for 3 attempts"]
        problems += [] if outcome["continue"] else ["no command to continue"]
    if setup.has_tokens and not all((a["cost"] or {}).get("input_tokens") for a in attempts):
        problems.append("no tokens")
    if setup.has_answer and not all(a["answer"] == ANSWER for a in attempts):
        problems.append(f"closing messages {[a['answer'] for a in attempts]}")
    problems += [] if (project / "calc.py").read_text() == FIXED else ["not committed"]
    dropped = sorted(path.name for path in project.iterdir() if path.name not in ("calc.py", ".git"))
    return problems + [f"files beside the fix: {', '.join(dropped)}"] * bool(dropped)


def _list_entries(directory: Path) -> set[str]:
    """List the files and directories in a home directory, without what forkwise itself keeps there."""
    found = {os.fspath(path.relative_to(directory)) for path in directory.rglob("*")}
    return {path for path in found if not path.startswith(_OWN_STATE) and not _OWN_STATE.startswith(f"{path}/")}


def _find_leftovers(agent: Agent, home: Path, new: set[str], project: str) -> list[str]:
    """Say which new entries of the home directory belong to no kept session, and whether a session was kept."""
    slug = "".join(c if c.isalnum() else "-" for c in project)
    patterns = [
        p.removeprefix("~/").replace("{project}", slug) for p in (*agent.paths.sessions, *agent.paths.databases)
    ]
    sessions = {path for path in new if any(matches(path, pattern) for pattern in patterns)}
    problems = [] if sessions or not patterns else ["no session is kept"]
    left = sorted(path for path in new - sessions if not any(one.startswith(f"{path}/") for one in sessions))
    return problems + [f"left in the home directory: {', '.join(left[:5])}"] * bool(left)
