"""The coding agents that ``--agent`` knows by name, read from TOML tables that users can extend.

A table holds the command that runs an agent without questions, and what only this agent may use: views of its caches
and its configuration, its API keys. All agents get network access.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from forkwise.fork.agent_paths import AgentPaths

__all__ = ["Agent", "find_agent", "load_agents", "workspace_agents_file"]

PACKAGED = Path(__file__).with_name("agents.toml")
"""The tables that come with forkwise."""

_PROMPT = "{prompt}"

# No agent reads the feedback file by itself, so a shell adds it to the prompt.
_WITH_FEEDBACK = """\
[ ! -s "$FORKWISE_FEEDBACK" ] || set -- "$1

This was tried before, and failed. What was wrong with it:

$(cat "$FORKWISE_FEEDBACK")"
exec """


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The command and the permissions of an agent. ``source`` is the last file that defined it."""

    name: str
    command: tuple[str, ...]
    writable: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    paths: AgentPaths = field(default_factory=AgentPaths)
    passes: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    environment_when_confined: dict[str, str] = field(default_factory=dict)
    install: str = ""
    source: Path = PACKAGED

    def argv(self, prompt: str) -> tuple[str, ...]:
        """Return the command that runs the agent with ``prompt``, and with the feedback on earlier attempts if any.

        >>> Agent(name="helper", command=("helper", "--do={prompt}")).argv("fix it")[2].splitlines()[-1]
        'exec helper --do="$1"'
        """
        words = (_PROMPT.join(map(_quote, word.split(_PROMPT))).replace(_PROMPT, '"$1"') for word in self.command)
        return ("sh", "-c", _WITH_FEEDBACK + " ".join(words), self.name, prompt)


def _quote(part: str) -> str:
    return shlex.quote(part) if part else ""


def find_agent(name: str, workspace: Path) -> Agent:
    """Return the agent ``name``; UsageError if it is unknown, or if its program is not installed."""
    agents = load_agents(workspace)
    if name not in agents:
        raise click.UsageError(f"unknown agent {name!r}; known agents: {', '.join(sorted(agents))}")
    agent = agents[name]
    if shutil.which(agent.command[0]) is None:
        remedy = f"; install it with: {agent.install}" if agent.install else ""
        raise click.UsageError(
            f"agent {name!r} needs the program {agent.command[0]!r}, which is not on the PATH{remedy}"
        )
    return agent


def workspace_agents_file(workspace: Path) -> Path:
    """Return the path of the workspace's own tables, whether or not the file exists."""
    return workspace / ".forkwise" / "agents.toml"


def load_agents(workspace: Path) -> dict[str, Agent]:
    """Return all agents by name: those of forkwise, overridden by the user's, overridden by the workspace's."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    tables: dict[str, dict[str, Any]] = {}
    for source in (PACKAGED, config / "forkwise" / "agents.toml", workspace_agents_file(workspace)):
        for name, table in _read_tables(source).items():
            tables[name] = {**tables.get(name, {}), **table, "source": source}
    return {name: _build_agent(name, table) for name, table in tables.items()}


def _read_tables(source: Path) -> dict[str, dict[str, Any]]:
    """Read and check the tables of a file; return none if the file does not exist."""
    try:
        tables = tomllib.loads(source.read_text())
    except FileNotFoundError:
        return {}
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.ClickException(f"{source} is not valid TOML: {error}") from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise click.ClickException(f"{source}: {name} is not a table; define the agent as [{name}]")
        for key, value in table.items():
            if key not in _KEYS:
                raise click.ClickException(f"{source}: unknown key {key!r} in [{name}]; known keys: {', '.join(_KEYS)}")
            if not _KEYS[key](value):
                raise click.ClickException(f"{source}: invalid {key} in [{name}]: {value!r}")
    return tables


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_command(value: Any) -> bool:
    return _is_words(value) and bool(value) and any(_PROMPT in word for word in value[1:])


def _is_login(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) - {"newest"} == {"file", "keys"}
        and isinstance(value["file"], str)
        and _is_words(value["keys"])
        and isinstance(value.get("newest", ""), str)
    )


def _is_variables(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


_KEYS: dict[str, Callable[[Any], bool]] = {
    "command": _is_command,
    "writable": _is_words,
    "credentials": _is_words,
    "branched": _is_words,
    "sessions": _is_words,
    "logins": lambda value: isinstance(value, list) and all(map(_is_login, value)),
    "moved_by": _is_variables,
    "passes": _is_words,
    "environment": _is_variables,
    "environment_when_confined": _is_variables,
    "install": lambda value: isinstance(value, str),
}


def _build_agent(name: str, table: dict[str, Any]) -> Agent:
    if "command" not in table:
        raise click.ClickException(
            f"{table['source']}: [{name}] needs a command: a list of words, one of which contains {_PROMPT}"
        )
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    moved = values.pop("moved_by", {})
    paths = AgentPaths.from_json({key: values.pop(key, ()) for key in ("branched", "sessions", "logins")})
    for path in (*paths.sessions, *(login.file for login in paths.logins)):
        if paths.branched and not any(path == parent or path.startswith(f"{parent}/") for parent in paths.branched):
            raise click.ClickException(
                f"{table['source']}: {path} in [{name}] is not below one of its branched paths: add the directory to "
                "branched"
            )
    return Agent(name=name, paths=_move(paths, moved), **values)


def _move(paths: AgentPaths, moved: dict[str, str]) -> AgentPaths:
    """Replace the directories that environment variables move, such as CODEX_HOME."""
    targets = {path: target for variable, path in moved.items() if (target := os.environ.get(variable))}

    def move(path: str) -> str:
        found = next((p for p in targets if path == p or path.startswith(f"{p}/")), None)
        return path if found is None else targets[found] + path[len(found) :]

    return AgentPaths(
        tuple(map(move, paths.branched)),
        tuple(map(move, paths.sessions)),
        tuple(replace(login, file=move(login.file)) for login in paths.logins),
    )
