"""Directories that sandboxes share with the host for speed, from ``[sandbox]`` in ``config.toml``.

They are package caches in the home directory; otherwise a sandbox has its own view of that directory. A workspace's
file can add to the user's list once it is accepted; until then it can only leave some of them out.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forkwise.config.config_file import (
    SETTINGS,
    ConfigFile,
    format_ignored,
    read_user_config,
    read_workspace_config,
)
from forkwise.errors import ConfigError, ForkwiseWarning

__all__ = ["list_shared", "make_shared", "read_shared_paths"]

_TABLE = "sandbox"
_NAME = "shared"


def read_shared_paths(workspace: Path) -> dict[str, Path]:
    """Return the paths, each with the file that names it. Raises ConfigError.

    Only files that the user alone can change, or has accepted, share anything; a warning names what any other would
    share.
    """
    user, own = read_user_config(SETTINGS, workspace), read_workspace_config(workspace, SETTINGS)
    shared = {} if user is None or not user.is_trusted else dict.fromkeys(_find(user) or (), user.path)
    wanted = None if own is None else _find(own)
    if own is None or wanted is None:
        return shared
    if own.is_trusted:
        return dict.fromkeys(wanted, own.path) | shared
    if any(path not in shared for path in wanted):
        message = format_ignored(own, [f"{_NAME} of [{_TABLE}]"], workspace)
        warnings.warn(message, ForkwiseWarning, stacklevel=2)
    return {path: source for path, source in shared.items() if path in wanted}


def list_shared(file: ConfigFile) -> list[str]:
    """Return what a file shares, as a line to review; empty if it shares nothing. Raises ConfigError."""
    found = _find(file)
    return [f"[{_TABLE}] {_NAME} = {found!r}"] if found else []


def make_shared(paths: Sequence[str], source: Path, workspace: Path) -> tuple[str, ...]:
    """Create the directories that do not exist yet, and return their absolute paths.

    Raises ConfigError for one that is not below the home directory, or that contains the workspace or is in it.
    """
    home, project = os.path.realpath(os.path.expanduser("~")), os.path.realpath(workspace)
    made = []
    for path in paths:
        real = os.path.realpath(os.path.expanduser(path))
        if not path.startswith(("~/", "/")) or not real.startswith(f"{home.rstrip('/')}/"):
            raise ConfigError(f"{source}: {path!r} in {_NAME} is not below the home directory, as '~/.npm' is")
        if f"{project}/".startswith(f"{real}/") or f"{real}/".startswith(f"{project}/"):
            raise ConfigError(f"{source}: {path!r} in {_NAME} overlaps the workspace {workspace}, which is branched")
        try:
            os.makedirs(real, mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{source}: {path!r} in {_NAME} cannot be created: {error.strerror}") from error
        made.append(real)
    return tuple(dict.fromkeys(made))


def _find(file: ConfigFile) -> list[str] | None:
    """Return the paths that a file names; None if it says nothing about them."""
    table: Mapping[str, Any] = file.tables.get(_TABLE, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{file.path}: [{_TABLE}] is not a table")
    for name in table:
        if name != _NAME:
            raise ConfigError(f"{file.path}: [{_TABLE}] has no setting {name!r}; there is only {_NAME}")
    found = table.get(_NAME)
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(path, str) for path in found):
        raise ConfigError(f"{file.path}: {_NAME} in [{_TABLE}] is {found!r}; it takes a list of directories")
    return found
