"""The coding agents that ``--agent`` knows by name, read from TOML tables that users can extend.

A table holds the command that runs an agent non-interactively, and what only this agent may use: views of its caches
and its configuration, its API keys. All agents get network access. A workspace's tables that the user has not accepted
can only take permissions away.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import Any

from forkwise.agents.stream import FORMATS
from forkwise.config.config_file import AGENTS, ConfigFile, format_ignored, read_user_config, read_workspace_config
from forkwise.errors import AgentError, ConfigError
from forkwise.fork.agent_paths.paths import AgentPaths
from forkwise.git.ignore_rules import is_litter_glob

__all__ = ["Agent", "find_agent", "find_resume_argv", "list_widened", "load_agents"]

PACKAGED = Path(__file__).with_name("agents.toml")
"""The tables that come with forkwise."""

_ACP = "acp:"
_PROMPT = "{prompt}"
_PROMPT_FILE = "{prompt_file}"
_MODEL = "{model}"
_OF_ATTEMPT = {"{uuid}": '"$FORKWISE_UUID"', "{attempt}": '"$FORKWISE_ATTEMPT"'}
"""Placeholders whose values differ from attempt to attempt: variables of the attempt's own environment."""

_SESSION = "{session}"
_USD = "{usd}"
_LONGEST_ARGUMENT = 96 << 10  # bytes; the kernel takes 128 KiB, and feedback on earlier attempts may be added
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")
_PATHS = ("writable", "shared", "credentials", "branched", "sessions", "databases", "litter")
"""Keys that list paths, each a permission. ``logins`` is not one: without a refreshed login the user is logged out."""

# No agent reads the feedback file by itself, so a shell adds it to the prompt.
_WITH_FEEDBACK = """\
[ ! -s "$FORKWISE_FEEDBACK" ] || set -- "$1

This was tried before. Feedback on that:

$(cat "$FORKWISE_FEEDBACK")"
exec """

_WITH_PROMPT_FILE = """\
prompt=$FORKWISE_PROMPT
if [ -s "$FORKWISE_FEEDBACK" ]; then
    prompt=$FORKWISE_PROMPT-with-feedback
    {
        cat "$FORKWISE_PROMPT"
        printf '\\n\\nThis was tried before. Feedback on that:\\n\\n'
        cat "$FORKWISE_FEEDBACK"
    } > "$prompt"
fi
exec """


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The command and the permissions of an agent.

    ``source`` is the last file that defined it. ``notes`` are messages about parts of files that have no effect.
    ``long_command`` runs it with a prompt that is too long for an argument: it reads a file, or its standard input.
    ``shared`` are caches below the home directory that attempts share with the host. ``litter`` are globs of files that
    it leaves in a workspace, which are not part of its changes.
    ``model`` is the one that was named with it, as in ``claude:opus``. ``stream`` names the format in which it prints
    what it does, ``resume`` is the command that continues a session. ``provider`` names the service whose limits it
    shares with other agents, ``at_once`` is how many attempts may use that at the same time.
    ``untested`` says that nobody tests this table.
    """

    name: str
    command: tuple[str, ...]
    long_command: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    litter: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    paths: AgentPaths = field(default_factory=AgentPaths)
    passes: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    environment_when_confined: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    stream: str | None = None
    provider: str = ""
    at_once: int | None = None
    resume: tuple[str, ...] = ()
    install: str = ""
    untested: bool = False
    source: Path = PACKAGED
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its name, with the model that was named with it."""
        return self.name if self.model is None else f"{self.name}:{self.model}"

    def argv(
        self, prompt: str, model: str | None = None, arguments: Sequence[str] = (), *, usd: float | None = None
    ) -> tuple[str, ...]:
        """Return the command that runs the agent with ``prompt``, and with the feedback on earlier attempts if any.

        ``usd`` is what it may spend, for an agent with a limit of its own.

        Raises AgentError if the agent cannot be told which ``model`` to use, or cannot take a prompt of this length.

        >>> Agent(name="helper", command=("helper", "--do={prompt}")).argv("fix it")[2].splitlines()[-1]
        'exec helper --do="$1"'
        """
        if model is not None and not any(_MODEL in word for word in self.command):
            raise AgentError(
                f"agent {self.name!r} does not say how it is given a model: add a word with {_MODEL} to its command in "
                "agents.toml, or configure the agent itself"
            )
        size = len(prompt.encode())
        given = {
            _MODEL: None if model is None else quote(model),
            _USD: None if usd is None else f"{usd:g}",
            **_OF_ATTEMPT,
        }
        is_option = prompt.startswith("-")  # an agent would take it for one
        if size <= _LONGEST_ARGUMENT and not (is_option and self.long_command):
            prompt = f" {prompt}" if is_option else prompt
            line = _format_line((*self.command, *arguments), {_PROMPT: '"$1"', **given})
            return ("sh", "-c", _WITH_FEEDBACK + line, self.name, prompt)
        if not self.long_command:
            raise AgentError(
                f"the prompt has {size} bytes, but agent {self.name!r} takes at most {_LONGEST_ARGUMENT} as an "
                f"argument: give it a long_command in agents.toml, with {_PROMPT_FILE} or for its standard input"
            )
        line = _format_line((*self.long_command, *arguments), {_PROMPT_FILE: '"$prompt"', **given})
        is_file = any(_PROMPT_FILE in word for word in self.long_command)
        return ("sh", "-c", _WITH_PROMPT_FILE + line + ("" if is_file else ' < "$prompt"'), self.name)

    def resume_argv(self, session: str) -> tuple[str, ...]:
        """Return the command that continues a session in a terminal; empty if the agent has none.

        A session's id comes out of a sandbox, so AgentError is raised for a text that might not be an id.
        """
        if not _ID.fullmatch(session):
            raise AgentError(
                f"agent {self.name!r} gave its session an impossible id: {session[:80]!r}", agent=self.name
            )
        return tuple(word.replace(_SESSION, session) for word in self.resume)


def _format_line(words: Sequence[str], values: Mapping[str, str | None]) -> str:
    """Format words for a shell. A word whose placeholder has no value is left out, and so is the option before it."""
    empty = [name for name, value in values.items() if value is None]
    kept: list[str] = []
    for word in words:
        if not any(name in word for name in empty):
            kept.append(word)
        elif word in empty and kept and kept[-1].startswith("-"):
            kept.pop()  # "--model" before "{model}"
    parts = re.compile("|".join(f"({re.escape(name)})" for name in values))
    return " ".join(
        "".join(values.get(part) or _quote(part) for part in parts.split(word) if part) or "''" for word in kept
    )


def _quote(part: str) -> str:
    return quote(part) if part else ""


def find_agent(name: str, workspace: Path) -> Agent:
    """Return the agent ``name``; AgentError if it is unknown, or if its program is not installed.

    ``NAME:MODEL`` names a model as well. ``acp:COMMAND`` is any program that speaks the Agent Client Protocol.
    """
    sources = _Sources(workspace)
    if name.startswith(_ACP):
        return _build_protocol_agent(name, sources, workspace)
    beginning, _, model = name.partition(":")
    if name not in sources.tables and beginning in sources.tables and model.strip():
        return replace(find_agent(beginning, workspace), model=model)
    if name not in sources.tables:
        notes = sources.notes.get(name, ["known agents: " + ", ".join(sorted(sources.tables))])
        raise AgentError(f"unknown agent {name!r}; {'; '.join(notes)}")
    agent = sources.build(name)
    return _check_program(agent, agent.command[0], workspace)


def _check_program(agent: Agent, word: str, workspace: Path) -> Agent:
    name = agent.name
    program = shutil.which(word)
    if program is None:
        remedy = f"; install it with: {agent.install}" if agent.install else ""
        raise AgentError(f"agent {name!r} needs the program {word!r}, which is not on the PATH{remedy}")
    if os.path.realpath(program).startswith(f"{os.path.realpath(workspace).rstrip('/')}/"):
        note = f"agent {name!r} runs {program}, which is inside the workspace: an attempt may have changed it"
        return replace(agent, notes=(*agent.notes, note))
    return agent


def _build_protocol_agent(name: str, sources: _Sources, workspace: Path) -> Agent:
    """Build the agent ``acp:COMMAND``. It gets the permissions of the agent whose program COMMAND is, if there is one.

    The program of a known agent has its name, alone or before a hyphen: ``gemini``, ``claude-code-acp``.
    """
    try:
        words = shlex.split(name.removeprefix(_ACP))
    except ValueError as error:
        raise AgentError(f"agent {name!r}: {error}") from error
    if not words:
        raise AgentError(f"agent {name!r} names no command: write {_ACP}COMMAND, such as '{_ACP}gemini --acp'")
    if importlib.util.find_spec("acp") is None:
        raise AgentError(f"agent {name!r} needs agent-client-protocol: pip install 'forkwise[acp]'")
    program = os.path.basename(words[0])
    known = next((n for n in sources.tables if program == n or program.startswith(f"{n}-")), None)
    base = Agent(name=name, command=()) if known is None else sources.build(known)
    client = (sys.executable, "-I", "-m", "forkwise.agents.acp_client")
    agent = replace(
        base,
        name=name,
        command=(*client, f"--prompt={_PROMPT}", "--", *words),
        long_command=(*client, "--", *words),
        stream="acp",
    )
    return _check_program(agent, words[0], workspace)


def load_agents(workspace: Path) -> dict[str, Agent]:
    """Return all agents by name: those of forkwise, overridden by the user's, overridden by the workspace's."""
    sources = _Sources(workspace)
    return {name: sources.build(name) for name in sources.tables}


def find_resume_argv(name: str | None, session: str | None, workspace: Path) -> tuple[str, ...]:
    """Return the command that continues a session of the agent ``name``; empty if there is none."""
    if name is None or session is None:
        return ()
    try:
        agent = load_agents(workspace).get(name)
        return () if agent is None else agent.resume_argv(session)
    except (AgentError, ConfigError):
        return ()


def list_widened(file: ConfigFile, workspace: Path) -> list[str]:
    """Return what a file of tables allows beyond the files before it, one line for each agent and key."""
    sources = _Sources(workspace, until=file.path)
    lines = []
    for name, table in _check_tables(file.path, file.tables).items():
        ignored = _narrow(sources.tables.get(name), table)[1]
        lines += [f"[{name}] {key} = {table[key]!r}" for key in ignored]
    return lines


@lru_cache(maxsize=1)
def _load_packaged() -> dict[str, Any]:
    """Load the tables that come with forkwise; a run needs them several times."""
    return tomllib.loads(PACKAGED.read_text("utf-8"))


class _Sources:
    """The merged tables of all files that apply to a workspace; with ``until``, only of the files before that one."""

    def __init__(self, workspace: Path, until: Path | None = None) -> None:
        self.tables: dict[str, dict[str, Any]] = {}
        self.notes: dict[str, list[str]] = {}
        packaged = ConfigFile(PACKAGED, b"", _load_packaged(), is_trusted=True)
        for file in (packaged, read_user_config(AGENTS, workspace), read_workspace_config(workspace, AGENTS)):
            if file is None:
                continue
            if file.path == until:
                break
            for name, table in _check_tables(file.path, file.tables).items():
                self._add(name, table, file, workspace)

    def _add(self, name: str, table: dict[str, Any], file: ConfigFile, workspace: Path) -> None:
        before = self.tables.get(name)
        if file.is_trusted:
            self.tables[name] = {**(before or {}), **table, "source": file.path}
            return
        narrowed, ignored = _narrow(before, table)
        if narrowed is not None and narrowed != before:
            self.tables[name] = {**narrowed, "source": file.path}
        if ignored:
            keys = [f"{key} of [{name}]" for key in ignored]
            self.notes.setdefault(name, []).append(format_ignored(file, keys, workspace))

    def build(self, name: str) -> Agent:
        """Build an agent of the tables. Raises ConfigError if it has no command."""
        table = self.tables[name]
        if "command" not in table:
            raise ConfigError(
                f"{table['source']}: [{name}] needs a command: a list of words, one of which contains {_PROMPT}"
            )
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
        moved = values.pop("moved_by", {})
        paths = AgentPaths.from_json(
            {key: values.pop(key, ()) for key in ("branched", "sessions", "logins", "databases")}
        )
        for path in (*paths.sessions, *paths.databases, *(login.file for login in paths.logins)):
            if paths.branched and not any(path == parent or path.startswith(f"{parent}/") for parent in paths.branched):
                raise ConfigError(
                    f"{table['source']}: {path} in [{name}] is not below one of its branched paths: add the directory "
                    "to branched"
                )
        return Agent(name=name, paths=_move(paths, moved), notes=tuple(self.notes.get(name, ())), **values)


def _narrow(before: dict[str, Any] | None, table: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """Return a table without the permissions that another one leaves out, and the keys that would add something."""
    if before is None:
        return None, list(table)
    narrowed, ignored = dict(before), []
    for key, value in table.items():
        own = before.get(key, [])
        if key in _PATHS:
            # Only by name: a path inside an allowed one may be a link that an agent has made there.
            narrowed[key] = [path for path in own if path in value]
            is_more = any(path not in own for path in value)
        elif key == "passes":
            narrowed[key] = [name for name in value if _is_passed(name, own)]
            is_more = narrowed[key] != value
        else:
            is_more = value != own
        if is_more:
            ignored.append(key)
    return narrowed, ignored


def _is_passed(name: str, patterns: list[str]) -> bool:
    """Return whether patterns allow a name; if the name is itself a pattern, it must be one of them."""
    return name in patterns or (not set("*?[") & set(name) and any(fnmatchcase(name, known) for known in patterns))


def _check_tables(source: Path, tables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables of a file. Raises ConfigError if one is invalid."""
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{source}: {name} is not a table; define the agent as [{name}]")
        for key, value in table.items():
            if key not in _KEYS:
                raise ConfigError(f"{source}: unknown key {key!r} in [{name}]; known keys: {', '.join(_KEYS)}")
            if not _KEYS[key](value):
                raise ConfigError(f"{source}: invalid {key} in [{name}]: {value!r}")
    return dict(tables)


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_litter(value: Any) -> bool:
    """Return whether a value is a list of globs, none of which matches every name."""
    return _is_words(value) and all(
        is_litter_glob(glob) and any(set(part) - set("*?.") for part in glob.split("/")) for glob in value
    )


def _is_command(value: Any) -> bool:
    return _is_words(value) and bool(value) and any(_PROMPT in word for word in value[1:])


def _is_long_command(value: Any) -> bool:
    return _is_words(value) and bool(value) and not any(_PROMPT in word for word in value)


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
    "long_command": _is_long_command,
    "writable": _is_words,
    "shared": _is_words,
    "litter": _is_litter,
    "credentials": _is_words,
    "branched": _is_words,
    "sessions": _is_words,
    "databases": _is_words,
    "logins": lambda value: isinstance(value, list) and all(map(_is_login, value)),
    "moved_by": _is_variables,
    "passes": _is_words,
    "environment": _is_variables,
    "environment_when_confined": _is_variables,
    "stream": lambda value: isinstance(value, str) and value in FORMATS,
    "provider": lambda value: isinstance(value, str) and bool(value),
    "at_once": lambda value: type(value) is int and value > 0,
    "resume": lambda value: _is_words(value) and any(_SESSION in word for word in value[1:]),
    "install": lambda value: isinstance(value, str),
    "untested": lambda value: isinstance(value, bool),
}


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
        tuple(map(move, paths.databases)),
    )
