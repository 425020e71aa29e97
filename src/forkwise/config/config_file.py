"""A configuration file, read once: its content, its hash, and whether it may widen rights.

Files in the user's own configuration directory may. Those of a workspace come with the workspace, and an attempt may
have written them: they may only narrow rights, until the user has accepted that very content (trust.py). The same holds
for a user's file that is itself inside the workspace: the home directory may be the workspace, or a link may lead
there.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkwise.config.trust import Acceptances
from forkwise.errors import ConfigError
from forkwise.files.executable_config import find_config_directory

__all__ = [
    "AGENTS",
    "SERVERS",
    "SETTINGS",
    "ConfigFile",
    "find_workspace_config",
    "format_ignored",
    "read_user_config",
    "read_workspace_config",
]

#: The names of configuration files: the tables of agents, those of servers, and the settings of chats.
AGENTS, SERVERS, SETTINGS = "agents.toml", "servers.toml", "config.toml"

_FOLDER = ".forkwise"
_MAX_BYTES = 256 * 1024  # far more than a file written by hand
_MAX_KEY_PARTS = 50
_KEY_PART = re.compile(r"""[^\S\n]*(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')[^\S\n]*""")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The content of a configuration file. If it is not trusted, ``reason`` says why.

    A file that is part of the workspace can be accepted, a user's file that other users can change cannot.
    """

    path: Path
    data: bytes
    tables: Mapping[str, Any]
    is_trusted: bool
    is_part_of_workspace: bool = False
    reason: str = ""

    @property
    def sha256(self) -> str:
        """The hash by which the content is accepted."""
        return hashlib.sha256(self.data).hexdigest()


def find_workspace_config(workspace: Path, name: str) -> Path:
    """Return the path of a workspace's file, whether or not it exists."""
    return workspace / _FOLDER / name


def read_user_config(name: str, workspace: Path) -> ConfigFile | None:
    """Read a file of the user's configuration directory; None if there is none. Raises ConfigError if it is invalid.

    It is trusted unless it is inside the workspace, or another user owns it or may change it.
    """
    path = Path(find_config_directory(), name)
    fd = _open(path, os.fspath(path), None)
    if fd is None:
        return None
    try:
        real = os.readlink(f"/proc/self/fd/{fd}")
        reason = _find_owner_problem(os.fstat(fd))
        if reason == "" and _is_inside(real, workspace):
            return _build(path, fd, Acceptances(workspace), "it is inside the workspace")
        return _build(path, fd, None, reason)
    finally:
        os.close(fd)


def read_workspace_config(workspace: Path, name: str) -> ConfigFile | None:
    """Read a file of a workspace, following no links; None if there is none. Raises ConfigError if it is invalid.

    It is trusted if the user accepted its content.
    """
    path = find_workspace_config(workspace, name)
    folder_fd = _open_folder(path.parent)
    if folder_fd is None:
        return None
    try:
        fd = _open(path, name, folder_fd)
    finally:
        os.close(folder_fd)
    if fd is None:
        return None
    try:
        return _build(path, fd, Acceptances(workspace), "it is part of the workspace")
    finally:
        os.close(fd)


def format_ignored(file: ConfigFile, ignored: Sequence[str], workspace: Path) -> str:
    """Return the message about parts of a file that have no effect because it is not trusted."""
    remedy = f"review and accept it with: forkwise trust {workspace}"
    if not file.is_part_of_workspace:
        remedy = "make it your own, writable by nobody else"
    return f"{file.path} is not accepted ({file.reason}), so these parts have no effect: {', '.join(ignored)}; {remedy}"


def _is_inside(path: str, workspace: Path) -> bool:
    """Return whether a file is inside a workspace: by inode, because a bind mount gives a directory another path."""
    root = os.stat(workspace)
    return any(os.path.samestat(root, os.stat(parent)) for parent in Path(path).parents)


def _open_folder(path: Path) -> int | None:
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if path.is_symlink():
            raise ConfigError(f"{path} is a symbolic link: make it a directory", path=str(path)) from error
        raise _unreadable_error(path, error) from error


def _open(path: Path, name: str, folder_fd: int | None) -> int | None:
    """Open a file, without waiting for a FIFO's writer. In a workspace's folder, follow no link."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if folder_fd is None else os.O_NOFOLLOW)
    try:
        return os.open(name, flags, dir_fd=folder_fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable_error(path, error) from error


def _unreadable_error(path: Path, error: OSError) -> ConfigError:
    hint = "; check its permissions, and that HOME is your own directory" if error.errno == errno.EACCES else ""
    return ConfigError(f"cannot read {path}: {error.strerror}{hint}", path=str(path))


def _build(path: Path, fd: int, acceptances: Acceptances | None, reason: str) -> ConfigFile:
    """Read the file and decide about its content. The bytes that are hashed are those that are parsed."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
        raise ConfigError(f"{path} is not a regular file of at most {_MAX_BYTES} bytes", path=str(path))
    try:
        with open(fd, "rb", closefd=False) as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    if len(data) > _MAX_BYTES:  # it has grown meanwhile
        raise ConfigError(f"{path} has more than {_MAX_BYTES} bytes", path=str(path))
    tables = _parse(path, data)
    if acceptances is None:
        return ConfigFile(path, data, tables, is_trusted=not reason, reason=reason)
    is_accepted = acceptances.has(path, hashlib.sha256(data).hexdigest())
    return ConfigFile(path, data, tables, is_accepted, is_part_of_workspace=True, reason="" if is_accepted else reason)


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()
        _check_keys(text)
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"{path} is not valid TOML: {error}", path=str(path)) from error


def _check_keys(text: str) -> None:
    """Raise ValueError for a dotted key of very many parts, for which tomllib takes quadratic time."""
    count = 0
    for part in text.split("."):
        count = count + 1 if _KEY_PART.fullmatch(part) else 0
        if count > _MAX_KEY_PARTS:
            raise ValueError(f"a key has more than {_MAX_KEY_PARTS} parts")


def _find_owner_problem(status: os.stat_result) -> str:
    """Return why a user's own file cannot be trusted. Group access is fine for a group of the owner's own."""
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to the user with id {status.st_uid}"
    if status.st_mode & 0o002 or (status.st_mode & 0o020 and status.st_gid != status.st_uid):
        return "other users may write to it"
    return ""
