"""Which paths of an agent are branched, and which files in them are sessions and logins: as values, and as recorded."""

from __future__ import annotations

import glob
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from forkwise.errors import ForkwiseWarning
from forkwise.fork.agent_paths.replacement import create_directory
from forkwise.linux.file_write import replace_file
from forkwise.sandbox.path_view import PathView, can_view_below, list_path_views, make_path_view, paths_directory

if TYPE_CHECKING:
    from forkwise.files.branch import Branch

__all__ = [
    "PENDING",
    "WAL",
    "AgentPaths",
    "Login",
    "create_missing",
    "describe_file",
    "expand",
    "load_recorded",
    "relative_to",
]

_FILE = "agent.json"
_PROJECT = "{project}"

WAL = "-wal"
"""The suffix of an SQLite database's log."""

PENDING = (WAL, "-journal")
"""The suffixes of files with data that is not in the SQLite database itself yet."""


@dataclass(frozen=True, slots=True)
class Login:
    """A JSON file with a login, and the values in it that a refresh changes.

    ``file`` is a path or a pattern. ``keys`` are paths of keys such as ``tokens.access_token``; a ``*`` is any one key.
    ``newest`` is the key of a time, a number or an ISO date, that grows with each refresh; without it the file's mtime
    counts.
    """

    file: str
    keys: tuple[str, ...]
    newest: str | None = None


@dataclass(frozen=True, slots=True)
class AgentPaths:
    """The paths of an agent that are ``branched``, and the patterns of its ``sessions`` and its ``logins`` in them.

    ``{project}`` in the pattern of a session is the workspace's path with hyphens for all but letters and digits.
    ``databases`` are SQLite files with sessions: the winner's replaces the user's as a whole, if that has not changed
    since. ``before`` is recorded with the views of an attempt: the state of logins and databases when the views were
    created.
    """

    branched: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    logins: tuple[Login, ...] = ()
    databases: tuple[str, ...] = ()
    before: Mapping[str, list[Any]] = field(default_factory=dict, compare=False)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AgentPaths:
        """Build it from the JSON form of ``dataclasses.asdict``."""
        logins = (Login(one["file"], tuple(one["keys"]), one.get("newest")) for one in data.get("logins", ()))
        branched, sessions, databases = (tuple(data.get(key, ())) for key in ("branched", "sessions", "databases"))
        return cls(branched, sessions, tuple(logins), databases, dict(data.get("before", {})))

    def __add__(self, other: AgentPaths) -> AgentPaths:
        return AgentPaths(
            tuple(dict.fromkeys((*self.branched, *other.branched))),
            tuple(dict.fromkeys((*self.sessions, *other.sessions))),
            tuple(dict.fromkeys((*self.logins, *other.logins))),
            tuple(dict.fromkeys((*self.databases, *other.databases))),
        )

    def prepare(self, branch: Branch, paths: Sequence[str]) -> None:
        """Create the views of ``paths`` in the branch of an attempt, and record what may be taken from them later."""
        workspace = os.fspath(branch.workspace.path)
        paths = [path for path in paths if os.path.realpath(path) != workspace]
        for path in paths:
            make_path_view(
                branch, path, [p for s in self.sessions if (p := relative_to(s.replace(_PROJECT, "*"), path))]
            )
            if os.path.realpath(path).startswith(f"{workspace}/"):
                warnings.warn(
                    f"{path} is inside the workspace and the agent's own: what attempts change there is not committed",
                    ForkwiseWarning,
                    stacklevel=2,
                )
        if paths:
            project = glob.escape(re.sub("[^A-Za-z0-9]", "-", workspace))
            recorded = AgentPaths(
                tuple(map(expand, self.branched)),
                tuple(expand(pattern).replace(_PROJECT, project) for pattern in self.sessions),
                tuple(replace(login, file=expand(login.file)) for login in self.logins),
                tuple(map(expand, self.databases)),
            )
            files = (*recorded.databases, *(login.file for login in recorded.logins))
            recorded = replace(recorded, before={file: describe_file(file) for file in files})
            path = f"{paths_directory(branch.home)}/{_FILE}"
            replace_file(path, json.dumps(asdict(recorded)), beside=f"{path}.new")


def create_missing(branch: Branch, missing: Mapping[str, str], home: str | None) -> list[str]:
    """Return the missing directories that a sandbox can create in its view of ``home``; create the others, empty.

    ``missing`` are real paths by the paths that were given. A view needs a directory that exists, on the host or in the
    view around it.
    """
    inside = []
    for given, path in missing.items():
        if home is not None and can_view_below(branch, home, path):
            inside.append(given)
        else:
            with suppress(OSError):
                create_directory(path)
    return inside


def expand(path: str) -> str:
    """Return a path that may begin with ``~`` as an absolute one."""
    return os.path.abspath(os.path.expanduser(path))


def relative_to(pattern: str, directory: str) -> str | None:
    """Return a pattern relative to a directory; None if it is not below it."""
    expanded = expand(pattern)
    return expanded[len(directory) + 1 :] if expanded.startswith(f"{directory}/") else None


def describe_file(path: str) -> list[Any]:
    """Describe a file of the user's, and what SQLite keeps beside a database, to find out whether it was changed."""
    described: list[Any] = []
    for suffix in ("", *PENDING):
        try:
            found = os.lstat(path + suffix)
        except OSError:
            described.append(None)
        else:
            described.append([found.st_ino, found.st_size, found.st_mtime_ns])
    return described


def load_recorded(directory: str) -> Iterator[tuple[PathView, AgentPaths]]:
    """Yield the path views in a directory with the agent's paths that were recorded with them."""
    for view in list_path_views(directory):
        try:
            with open(f"{os.path.dirname(view.home)}/{_FILE}") as file:
                yield view, AgentPaths.from_json(json.load(file))
        except FileNotFoundError:
            continue  # views that another caller of the sandbox made
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            message = f"{view.home} is damaged, and nothing is taken from it: {error}"
            warnings.warn(message, ForkwiseWarning, stacklevel=2)
