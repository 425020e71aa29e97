"""Keys of model providers that the user gave to forkwise, for agents whose own environment has none.

They are variables with values, in a file that only the user can read, or in the system's keyring. Sandboxes hide the
file; an attempt gets a key only if its agent is listed as using that variable.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from forkwise.errors import ConfigError
from forkwise.files.executable_config import find_config_directory
from forkwise.linux.file_write import replace_file

__all__ = ["KeyStore", "StoredKey"]

_FILE = "keys.json"
_SERVICE = "forkwise"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MAX_VALUE = 64 << 10
_MAX_FILE = 4 << 20
_DANGEROUS = re.compile(
    r"(?:LD|DYLD|GIT|NODE|PERL|RUBY|FORKWISE|XDG)_.*|PYTHON.*|BASH.*|PATH|HOME|ENV|IFS|SHELL|TMPDIR"
)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One variable, and whether its value is in the system's keyring."""

    name: str
    is_in_keyring: bool


class KeyStore:
    """The user's keys. Every operation raises ConfigError if the file or the keyring cannot be used."""

    def __init__(self) -> None:
        self.path = Path(find_config_directory(), _FILE)

    def list_keys(self) -> list[StoredKey]:
        """Return the keys without their values, sorted by name."""
        return [StoredKey(name, value is None) for name, value in sorted(self._load().items())]

    def read_all(self) -> dict[str, str]:
        """Return all keys with their values."""
        return {name: self._read_keyring(name) if value is None else value for name, value in self._load().items()}

    def set_key(self, name: str, value: str, *, in_keyring: bool = False) -> None:
        """Store a key, replacing an older value wherever that was."""
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is not the name of an environment variable, such as ANTHROPIC_API_KEY")
        if _DANGEROUS.fullmatch(name):
            raise ConfigError(f"{name} changes how programs run and is not a key: set it in your shell instead")
        if not value:
            raise ConfigError(f"no value was given for {name}")
        if len(value) > _MAX_VALUE or not value.isprintable():
            raise ConfigError(f"the value of {name} must be one line of at most {_MAX_VALUE >> 10} KiB")
        keys = self._load()
        had_keyring = name in keys and keys[name] is None
        if in_keyring:
            _call_keyring("set_password", _SERVICE, name, value)
        self._save(keys | {name: None if in_keyring else value})
        if had_keyring and not in_keyring:
            _call_keyring("delete_password", _SERVICE, name)

    def remove_key(self, name: str) -> None:
        """Remove a key. Raises ConfigError if there is none of this name."""
        keys = self._load()
        if name not in keys:
            raise ConfigError(f"there is no key {name!r}: forkwise keys ls lists them")
        if keys.pop(name) is None:
            _call_keyring("delete_password", _SERVICE, name)
        self._save(keys)

    def _read_keyring(self, name: str) -> str:
        found = _call_keyring("get_password", _SERVICE, name)
        if not isinstance(found, str):
            raise ConfigError(f"the keyring no longer has {name}: set it again with forkwise keys set {name}")
        return found

    def _load(self) -> dict[str, str | None]:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}") from error
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise ConfigError(
                    f"{self.path} is not used: it must be your own file that nobody else can read (chmod 600)"
                )
            content = file.read(_MAX_FILE)
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{self.path} is damaged, correct or remove it: {error}") from error
        if not isinstance(document, dict) or not all(_is_entry(*entry) for entry in document.items()):
            raise ConfigError(f"{self.path} is damaged, correct or remove it: it must map variables to strings")
        return document

    def _save(self, keys: dict[str, str | None]) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            content = json.dumps(dict(sorted(keys.items())), indent=2) + "\n"
            replace_file(self.path, content, mode=0o600, is_synced=True)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}") from error


def _is_entry(name: str, value: object) -> bool:
    return bool(_NAME.fullmatch(name)) and not _DANGEROUS.fullmatch(name) and (value is None or isinstance(value, str))


def _call_keyring(operation: str, *words: str) -> Any:
    """Call the package keyring. Raises ConfigError if it is missing, or has no keyring to use."""
    try:
        keyring, errors = import_module("keyring"), import_module("keyring.errors")
    except ImportError:
        raise ConfigError(
            "the system's keyring needs the package keyring: pip install 'forkwise[mcp]', or leave out --keyring"
        ) from None
    try:
        return getattr(keyring, operation)(*words)
    except errors.KeyringError as error:
        problem = " ".join(str(error).split()).partition(". ")[0] or type(error).__name__
        raise ConfigError(f"the system's keyring cannot be used: {problem}; leave out --keyring for a file") from error
