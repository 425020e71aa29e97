"""The servers of a workspace: ``.forkwise/servers.toml``, read from the base and checked.

The file comes with the workspace, so it is untrusted. What it starts is confined to the branch and needs no acceptance.
What reaches outside the branch is refused until the user accepts the content: variables of the user's environment, and
views of data directories that are not in the workspace.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from forkwise.config.config_file import SERVERS, ConfigFile, read_workspace_config
from forkwise.errors import ConfigError
from forkwise.files.store.branch_info import DataDirectories
from forkwise.text.clean import truncate

__all__ = [
    "Readiness",
    "Server",
    "Shutdown",
    "find_data_directories",
    "list_widened_servers",
    "read_servers",
]

_TABLE = "servers"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_KINDS = ("port", "url", "log", "command")
_SIGNALS = ("TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "KILL")
_LAST_PORT = 65535
_LONGEST_TEXT = 4096
_MOST_ITEMS = 100
_MOST_SERVERS = 20
_LONGEST_TIMEOUT_S = 3600.0
_LOOPBACK = ("localhost", "127.0.0.1")

Command = tuple[str, ...]
Keep = Literal["files", "drop"]


@dataclass(frozen=True, slots=True)
class Readiness:
    """How forkwise finds out that a server is ready. Exactly one of the fields is set.

    ``port``: it accepts connections. ``url``: a GET request is answered with a status below 400. ``log``: a line of its
    output contains the text, in which ``*`` is any text. ``command``: a command in the branch exits with 0.
    """

    port: int | None = None
    url: str | None = None
    log: str | None = None
    command: Command | None = None

    @property
    def served_port(self) -> int | None:
        """The port that the server has to open; None if that is not known."""
        if self.url is not None:
            return urlsplit(self.url).port or 80
        return self.port

    def __str__(self) -> str:
        if self.port is not None:
            return f"port {self.port}"
        if self.command is not None:
            return f"the command {' '.join(self.command)!r}"
        return self.url or f"the line {self.log!r}"


@dataclass(frozen=True, slots=True)
class Shutdown:
    """How a server is stopped: by a signal, and by SIGKILL if it has not ended ``timeout`` seconds later."""

    signal: signal.Signals = signal.SIGTERM
    timeout: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A program that serves inside a branch.

    ``before`` are commands that run before it is started, ``after`` those that run once it is ready, within ``timeout``
    seconds each. ``passed`` are variables of the user's environment that it gets. ``data`` is its data directory,
    relative to the workspace; with ``keep="drop"`` changes in it are not part of the branch's result, and it may be an
    absolute path outside of the workspace. ``user`` is the account under which root runs it; by default the owner of
    the data directory.
    """

    name: str
    command: Command
    ready: Readiness
    timeout: float = 60.0
    env: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    before: tuple[Command, ...] = ()
    after: tuple[Command, ...] = ()
    stop: Shutdown = Shutdown()
    keep: Keep = "files"
    data: str | None = None
    user: str | None = None

    @property
    def outer_data(self) -> str | None:
        """The data directory if it is outside of the workspace."""
        return self.data if self.data is not None and os.path.isabs(self.data) else None


def read_servers(workspace: Path) -> tuple[Server, ...]:
    """Read the servers of a workspace, in the order of the file; none if there is no file.

    Raises ConfigError if the file is invalid, or needs an acceptance that the user has not given.
    """
    file = read_workspace_config(workspace, SERVERS)
    if file is None:
        return ()
    servers = _parse_file(file)
    widened = [] if file.is_trusted else _list_widened(servers)
    if widened:
        raise ConfigError(
            f"{file.path} is not accepted ({file.reason}), and reaches outside the branch: {'; '.join(widened)}. "
            f"Review and accept it with: forkwise trust {workspace}",
            path=str(file.path),
        )
    return servers


def list_widened_servers(file: ConfigFile) -> list[str]:
    """List everything outside the branch that a file's servers use, for the user to accept. Raises ConfigError."""
    return _list_widened(_parse_file(file))


def find_data_directories(workspace: Path) -> DataDirectories:
    """Return the data directories inside a workspace, relative to it. Raises ConfigError if the file is invalid."""
    file = read_workspace_config(workspace, SERVERS)
    whole: list[str] = []
    dropped: list[str] = []
    for server in () if file is None else _parse_file(file):
        if server.data is not None and server.outer_data is None:
            (whole if server.keep == "files" else dropped).append(server.data)
    return DataDirectories(tuple(whole), tuple(dropped))


def _list_widened(servers: Sequence[Server]) -> list[str]:
    widened = []
    for server in servers:
        if server.passed:
            widened.append(f"[servers.{server.name}] gets the variables {', '.join(server.passed)}")
        if server.outer_data is not None:
            widened.append(f"[servers.{server.name}] works on a copy-on-write view of {server.outer_data}")
    return widened


# The file's tables


class _ValueError(Exception):
    """A value is not valid for its key; the message says what is."""


def _parse_file(file: ConfigFile) -> tuple[Server, ...]:
    try:
        unknown = [key for key in file.tables if key != _TABLE]
        if unknown:
            raise _ValueError(f"it has no table {unknown[0]!r}{_suggest(unknown[0], [_TABLE])}")
        tables = file.tables.get(_TABLE, {})
        if not isinstance(tables, dict) or len(tables) > _MOST_SERVERS:
            raise _ValueError(f"[{_TABLE}] takes at most {_MOST_SERVERS} tables, one for each server")
        servers = tuple(_parse_server(name, table) for name, table in tables.items())
        _check_ports(servers)
        _check_data(servers)
    except _ValueError as error:
        raise ConfigError(f"{file.path}: {error}", path=str(file.path)) from None
    return servers


def _suggest(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name[:_LONGEST_TEXT], known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"


def _check_ports(servers: Sequence[Server]) -> None:
    by_port: dict[int, str] = {}
    for server in servers:
        port = server.ready.served_port
        if port is not None and by_port.setdefault(port, server.name) != server.name:
            raise _ValueError(f"the servers {by_port[port]!r} and {server.name!r} have the same port, {port}")


def _check_data(servers: Sequence[Server]) -> None:
    by_path: dict[str, str] = {}
    for server in servers:
        if server.data is None:
            continue
        for path, other in by_path.items():
            if f"{path}/".startswith(f"{server.data}/") or f"{server.data}/".startswith(f"{path}/"):
                raise _ValueError(
                    f"the servers {other!r} and {server.name!r} have the same data directory, {server.data}, or one "
                    "inside the other"
                )
        by_path[server.data] = server.name


def _parse_server(name: str, table: object) -> Server:
    if not _NAME.fullmatch(name):
        raise _ValueError(
            f"{name[:64]!r} is not a valid name for a server: use at most 32 lower-case letters, digits, '-' and '_'"
        )
    where = f"[{_TABLE}.{name}]"
    if not isinstance(table, dict):
        raise _ValueError(f"{where} is not a table")
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _READERS:
            raise _ValueError(f"{where} has no key {key[:64]!r}{_suggest(key, list(_READERS))}")
        field_name, read = _READERS[key]
        try:
            values[field_name] = read(value)
        except _ValueError as error:
            raise _ValueError(f"{key} in {where} takes {error}, not {truncate(repr(value), 100)}") from None
    for key in ("command", "ready"):
        if key not in values:
            raise _ValueError(f"{where} has no {key}")
    if values.get("keep") == "drop" and "data" not in values:
        raise _ValueError(f'keep = "drop" in {where} is about a data directory: name it with data')
    server = Server(name=name, **values)
    if server.outer_data is not None and server.keep != "drop":
        raise _ValueError(
            f"data in {where} is outside of the workspace, and a commit changes the workspace alone, so that a kill "
            'cannot leave the files of one branch beside the database of another. Set keep = "drop" to start each '
            "branch with a copy-on-write view of it, which is dropped with the branch, or move it into the workspace"
        )
    return server


def _read_text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _LONGEST_TEXT or "\0" in value:
        raise _ValueError(f"a string of at most {_LONGEST_TEXT} characters")
    return value


def _read_command(value: object) -> Command:
    """Read a command: words, or a line for the shell."""
    if isinstance(value, str):
        return ("sh", "-c", _read_text(value))
    is_list = isinstance(value, list) and 0 < len(value) <= _MOST_ITEMS
    if not is_list or not all(isinstance(word, str) and "\0" not in word for word in cast("list[object]", value)):
        raise _ValueError("a shell command, or a list of words")
    words = tuple(cast("list[str]", value))
    if not words[0]:
        raise _ValueError("a shell command, or a list of words")
    return words


def _read_commands(value: object) -> tuple[Command, ...]:
    """Read one shell command, or a list of commands."""
    if isinstance(value, str):
        return (_read_command(value),)
    if not isinstance(value, list) or len(value) > _MOST_ITEMS:
        raise _ValueError("a shell command, or a list of commands")
    return tuple(map(_read_command, value))


def _read_seconds(value: object) -> float:
    if type(value) not in (int, float) or not 0 < cast("float", value) <= _LONGEST_TIMEOUT_S:
        raise _ValueError(f"a number of seconds of at most {_LONGEST_TIMEOUT_S:g}")
    return float(cast("float", value))


def _read_port(value: object) -> int:
    if type(value) is not int or not 0 < value <= _LAST_PORT:
        raise _ValueError(f"a port from 1 to {_LAST_PORT}")
    return value


def _read_url(value: object) -> str:
    url = _read_text(value)
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme == "http" and parts.hostname in _LOOPBACK and parts.username is None
        is_valid = is_valid and (parts.port is None or parts.port > 0) and url.isprintable() and " " not in url
    except ValueError:
        is_valid = False
    if not is_valid or not url.isascii():
        raise _ValueError("a URL such as 'http://localhost:3000/health'")
    return url


def _read_readiness(value: object) -> Readiness:
    if not isinstance(value, dict) or len(value) != 1:
        raise _ValueError("a table with one of port, url, log and command, such as { port = 5432 }")
    [(kind, wanted)] = value.items()
    if kind not in _KINDS:
        raise _ValueError(f"one of {', '.join(_KINDS)}{_suggest(str(kind), _KINDS)}")
    readers: dict[str, Callable[[object], Any]] = {
        "port": _read_port,
        "url": _read_url,
        "log": _read_text,
        "command": _read_command,
    }
    return Readiness(**{kind: readers[kind](wanted)})


def _read_stop(value: object) -> Shutdown:
    if not isinstance(value, dict) or not set(value) <= {"signal", "timeout"}:
        raise _ValueError('a table with signal and timeout, such as { signal = "INT", timeout = 10 }')
    name = str(value.get("signal", "TERM")).removeprefix("SIG")
    if name not in _SIGNALS:
        raise _ValueError(f"as its signal one of {', '.join(_SIGNALS)}")
    return Shutdown(signal.Signals[f"SIG{name}"], _read_seconds(value.get("timeout", 10)))


def _read_variables(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > _MOST_ITEMS:
        raise _ValueError("a table of variables with string values")
    for name, text in value.items():
        if not _VARIABLE.fullmatch(name) or not isinstance(text, str) or "\0" in text:
            raise _ValueError("a table of variables with string values")
    return dict(value)


def _read_names(value: object) -> tuple[str, ...]:
    is_list = isinstance(value, list) and len(value) <= _MOST_ITEMS
    if not is_list or not all(isinstance(name, str) and _VARIABLE.fullmatch(name) for name in cast("list[Any]", value)):
        raise _ValueError("a list of names of variables")
    return tuple(cast("list[str]", value))


def _read_keep(value: object) -> Keep:
    if value not in ("files", "drop"):
        raise _ValueError("'files' or 'drop'")
    return value


def _read_data(value: object) -> str:
    text = _read_text(value)
    path = os.path.normpath(os.path.expanduser(text) if text.startswith("~/") else text)
    is_inside = path != "." and path.partition("/")[0] not in ("..", ".git") and not path.startswith("~")
    if not is_inside or not path.isprintable():
        raise _ValueError("the path of a directory in the workspace, relative to it, or an absolute path")
    return path.replace("//", "/", 1) if path.startswith("//") else path


_READERS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "command": ("command", _read_command),
    "ready": ("ready", _read_readiness),
    "timeout": ("timeout", _read_seconds),
    "env": ("env", _read_variables),
    "passes": ("passed", _read_names),
    "before": ("before", _read_commands),
    "after": ("after", _read_commands),
    "stop": ("stop", _read_stop),
    "keep": ("keep", _read_keep),
    "data": ("data", _read_data),
    "user": ("user", _read_text),
}
