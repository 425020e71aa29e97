"""Trust: what the user accepted of a workspace's configuration files, in the workspace's state directory.

That directory is outside the workspace and belongs to the user, so that no attempt can write there. One JSON file for
each configuration file holds the hash of the content that was accepted last, and the limits that the file set when it
was last used: a limit that disappears from a file stays in force until the user accepts that. Content that was accepted
earlier is no longer accepted: otherwise an attempt could restore it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from forkwise.errors import ConfigError, MountError, StateError
from forkwise.files.store.document import read_document
from forkwise.files.store.state import FORMAT, locate
from forkwise.linux.file_write import replace_file

__all__ = ["Acceptances"]

_FOLDER = "accepted"


class Acceptances:
    """The acceptances of a workspace's configuration files."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace

    @cached_property
    def _directory(self) -> str:
        """The directory of the records. Raises MountError if the workspace has no state directory."""
        return f"{locate(self._workspace).state}/{_FOLDER}"

    def has(self, path: Path, sha256: str) -> bool:
        """Return whether the user accepted the file with this content."""
        return self._load(path).get("sha256") == sha256

    def accept(self, path: Path, sha256: str, limits: Mapping[str, Any] | None = None) -> None:
        """Accept the content with this hash, and put ``limits`` into force. Raises ConfigError if storing fails."""
        self._save(path, {"sha256": sha256, "limits": dict(limits or {})})

    def revoke(self, path: Path) -> bool:
        """Forget the accepted content of a file, but not its limits. Return whether there was one."""
        record = self._load(path)
        if not record.get("sha256"):
            return False
        self._save(path, {"sha256": "", "limits": record["limits"]})
        return True

    def limits(self, path: Path) -> dict[str, Any]:
        """Return the limits that the file set when it was last used."""
        return dict(self._load(path).get("limits", {}))

    def set_limits(self, path: Path, limits: Mapping[str, Any]) -> None:
        """Store the limits that a file sets, if they changed. Raises ConfigError if they cannot be stored."""
        record = self._load(path)
        if record.get("limits", {}) != dict(limits):
            self._save(path, {"sha256": record.get("sha256", ""), "limits": dict(limits)})

    def _record_path(self, path: Path) -> str:
        """Return the file that holds the record of a configuration file, which is named by its location."""
        real = os.path.join(os.path.realpath(path.parent), path.name)
        return f"{self._directory}/{hashlib.sha256(os.fsencode(real)).hexdigest()[:32]}.json"

    def _load(self, path: Path) -> dict[str, Any]:
        """Load a record; return an empty one if there is none, or if another user could have written it."""
        try:
            record, _ = read_document(self._record_path(path), newest=FORMAT)
        except (OSError, MountError, StateError):
            return {}
        is_valid = isinstance(record.get("sha256"), str) and isinstance(record.get("limits"), dict)
        return record if is_valid else {}

    def _save(self, path: Path, record: Mapping[str, Any]) -> None:
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            replace_file(self._record_path(path), json.dumps({"format": FORMAT, "path": os.fspath(path), **record}))
        except MountError as error:
            raise ConfigError(f"cannot store what you accepted of {path}: {error}", path=str(path)) from error
        except OSError as error:
            message = f"cannot store what you accepted of {path} in {self._directory}: {error.strerror}"
            raise ConfigError(message, path=str(path)) from error
