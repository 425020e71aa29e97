"""Agents by name: what ``--agent`` runs, read from TOML tables that users extend.

A table says how an agent is started without asking anybody, and what it needs that others do not get: its caches, its
configuration, its API keys. A network they all have.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

__all__ = ["Agent", "find_agent", "load_agents", "tables_of"]

PACKAGED = Path(__file__).with_name("agents.toml")

_PROMPT = "{prompt}"

# What earlier attempts taught is in a file that no agent looks for: it is made part of the prompt.
_WITH_FEEDBACK = """\
[ ! -s "$FORKWISE_FEEDBACK" ] || set -- "$1

This was tried before, and failed. What was wrong with it:

$(cat "$FORKWISE_FEEDBACK")"
exec """


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """How an agent is run. ``source`` is the file that said so last."""

    name: str
    command: tuple[str, ...]
    writable: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    environment_when_confined: dict[str, str] = field(default_factory=dict)
    install: str = ""
    source: Path = PACKAGED

    def argv(self, prompt: str) -> tuple[str, ...]:
        """The command that gives it a prompt, and tells it what earlier attempts taught where they taught something.

        >>> Agent(name="helper", command=("helper", "--do={prompt}")).argv("fix it")[2].splitlines()[-1]
        'exec helper --do="$1"'
        """
        words = (_PROMPT.join(map(_quoted, word.split(_PROMPT))).replace(_PROMPT, '"$1"') for word in self.command)
        return ("sh", "-c", _WITH_FEEDBACK + " ".join(words), self.name, prompt)


def _quoted(part: str) -> str:
    return shlex.quote(part) if part else ""


def find_agent(name: str, workspace: Path) -> Agent:
    """The agent of that name; UsageError where there is none, or where its program is not installed."""
    agents = load_agents(workspace)
    if name not in agents:
        raise click.UsageError(f"there is no agent {name!r}; there are {', '.join(sorted(agents))}")
    agent = agents[name]
    if shutil.which(agent.command[0]) is None:
        how = f"; to install it: {agent.install}" if agent.install else ""
        raise click.UsageError(f"agent {name!r} needs the program {agent.command[0]!r}, which is not on the PATH{how}")
    return agent


def tables_of(workspace: Path) -> Path:
    """Where a workspace has tables of its own, if it has any."""
    return workspace / ".forkwise" / "agents.toml"


def load_agents(workspace: Path) -> dict[str, Agent]:
    """All agents that are known in a workspace: those that come with forkwise, the user's, and the workspace's own."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    tables: dict[str, dict[str, Any]] = {}
    for source in (PACKAGED, config / "forkwise" / "agents.toml", tables_of(workspace)):
        for name, table in _read(source).items():
            tables[name] = {**tables.get(name, {}), **table, "source": source}
    return {name: _agent(name, table) for name, table in tables.items()}


def _read(source: Path) -> dict[str, dict[str, Any]]:
    """The tables of a file, of which each key has its right type; none where there is no file."""
    try:
        tables = tomllib.loads(source.read_text())
    except FileNotFoundError:
        return {}
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.ClickException(f"{source} is no TOML: {error}") from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise click.ClickException(f"{source}: {name} is no table; an agent is one, [{name}]")
        for key, value in table.items():
            if key not in _KEYS:
                raise click.ClickException(f"{source}: [{name}] has no key {key!r}; there are {', '.join(_KEYS)}")
            if not _KEYS[key](value):
                raise click.ClickException(f"{source}: {key} of [{name}] cannot be {value!r}")
    return tables


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_command(value: Any) -> bool:
    return _is_words(value) and bool(value) and any(_PROMPT in word for word in value[1:])


def _is_variables(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


_KEYS: dict[str, Callable[[Any], bool]] = {
    "command": _is_command,
    "writable": _is_words,
    "passes": _is_words,
    "environment": _is_variables,
    "environment_when_confined": _is_variables,
    "install": lambda value: isinstance(value, str),
}


def _agent(name: str, table: dict[str, Any]) -> Agent:
    if "command" not in table:
        raise click.ClickException(f"{table['source']}: [{name}] has no command, a list of words, one with {_PROMPT}")
    told: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return Agent(name=name, **told)
