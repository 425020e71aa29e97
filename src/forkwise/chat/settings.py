"""The settings of a chat, stored in a workspace's TOML file, and the form of the next fork that they fill in.

This module stays light: the first frame of a chat loads it.
"""

from __future__ import annotations

import math
import os
import stat
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from forkwise.errors import BranchingError

__all__ = [
    "MOST_BRANCHES",
    "BranchRow",
    "ForkForm",
    "Settings",
    "SettingsError",
    "build_form",
    "load_settings",
    "parse_form",
    "save_settings",
    "settings_path",
]


#: The maximum number of branches of a fork.
MOST_BRANCHES = 10

_MAX_BYTES = 1_000_000  # far more than a file written by hand
_TABLE = "chat"


class SettingsError(BranchingError):
    """The settings cannot be read or written; ``path`` is their file."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a chat, most of them defaults of its next fork.

    ``models`` are the models of single branches, numbered from 1. ``judge`` is the judge's model, by default the
    chat's. ``test`` is the command that tests a branch, or ``auto``. ``ask`` are the tools that need approval.
    """

    branches: int = 2
    branch_budget: float | None = None
    fork_budget: float | None = None
    models: Mapping[int, str] = field(default_factory=dict)
    model: str | None = None
    judge: str | None = None
    test: str | None = None
    ask: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.branches <= MOST_BRANCHES:
            raise ValueError(f"a fork has 1 to {MOST_BRANCHES} branches, not {self.branches}")
        for name in ("branch_budget", "fork_budget"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be an amount of dollars above 0, not {value}")
        if wrong := [number for number in self.models if not 1 <= number <= MOST_BRANCHES]:
            raise ValueError(f"branches are numbered from 1 to {MOST_BRANCHES}, not {wrong[0]}")


def settings_path(workspace: Path) -> Path:
    """Return the settings file of a workspace."""
    return workspace / ".forkwise" / "config.toml"


def load_settings(workspace: Path) -> Settings:
    """Load the settings of a workspace. Raises SettingsError if the file is invalid."""
    path = settings_path(workspace)
    text = _read(path)
    if text is None:
        return Settings()
    try:
        table = tomllib.loads(text).get(_TABLE, {})
        if not isinstance(table, dict):
            raise ValueError(f"[{_TABLE}] is not a table")
        return _parse_table(table)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: {error}", path=str(path)) from error


def save_settings(workspace: Path, settings: Settings) -> None:
    """Save settings; the rest of the file, with its comments, stays as it is."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    path = settings_path(workspace)
    text = _read(path) or ""
    try:
        document = tomlkit.parse(text)
        table = document.setdefault(_TABLE, tomlkit.table())
        for name, value in _build_table(settings).items():
            if value is None:
                table.pop(name, None)
            elif table.get(name) != value:
                table[name] = value
        written = tomlkit.dumps(document)
    except (TOMLKitError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(f"{path}: {error}", path=str(path)) from error
    _write(path, written)


def _parse_table(table: Mapping[str, Any]) -> Settings:
    settings = Settings()
    for name, value in table.items():
        parse = _PARSERS.get(name)
        if parse is None:
            raise ValueError(f"[{_TABLE}] has no setting {name!r}; there are {', '.join(_PARSERS)}")
        settings = replace(settings, **{name: parse(name, value)})
    return settings


def _parse_count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    return value


def _parse_dollars(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name} must be an amount of dollars, not {value!r}")
    return float(value)


def _parse_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be non-empty text, not {value!r}")
    return value


def _parse_names(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list of names, not {value!r}")
    return tuple(_parse_text(name, item) for item in value)


def _parse_models(name: str, value: Any) -> dict[int, str]:
    if not isinstance(value, dict) or not all(str(key).isdecimal() for key in value):
        raise ValueError(f"{name} must be a table from branch numbers to models, not {value!r}")
    return {int(key): _parse_text(name, model) for key, model in value.items()}


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "branches": _parse_count,
    "branch_budget": _parse_dollars,
    "fork_budget": _parse_dollars,
    "models": _parse_models,
    "model": _parse_text,
    "judge": _parse_text,
    "test": _parse_text,
    "ask": _parse_names,
}


def _build_table(settings: Settings) -> dict[str, Any]:
    """Build the TOML table; values that are None are left out of the file."""
    return {
        "branches": settings.branches,
        "branch_budget": settings.branch_budget,
        "fork_budget": settings.fork_budget,
        "models": {str(number): model for number, model in sorted(settings.models.items())} or None,
        "model": settings.model,
        "judge": settings.judge,
        "test": settings.test,
        "ask": list(settings.ask) or None,
    }


def _read(path: Path) -> str | None:
    """Read a file; None if there is none. O_NONBLOCK: opening a FIFO must not block."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
        os.close(fd)
        raise SettingsError(f"{path} is not a regular file of at most {_MAX_BYTES} bytes", path=str(path))
    try:
        with open(fd, "rb") as file:
            return file.read(_MAX_BYTES).decode()
    except (UnicodeDecodeError, OSError) as error:
        raise SettingsError(f"{path}: {error}", path=str(path)) from error


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=".config-")
        try:
            with open(fd, "w", encoding="utf-8") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}", path=str(path)) from error


@dataclass(frozen=True, slots=True)
class BranchRow:
    """One branch: its label, steer, model (None: the chat's), budget and instructions."""

    label: str
    steer: str
    model: str | None = None
    budget_usd: float | None = None
    instructions: str | None = None


@dataclass(frozen=True, slots=True)
class ForkForm:
    """The branches of a fork to open, and their common budget."""

    rows: tuple[BranchRow, ...]
    budget_usd: float | None = None


def build_form(settings: Settings, task: str = "", branches: int | None = None) -> ForkForm:
    """Build a form with the models and budgets of the settings, and the same task for all branches."""
    count = settings.branches if branches is None else branches
    rows = [
        BranchRow(_default_label(number), task, settings.models.get(number + 1), settings.branch_budget)
        for number in range(count)
    ]
    return ForkForm(tuple(rows), settings.fork_budget)


def parse_form(settings: Settings, text: str) -> ForkForm:
    """Parse one task for all branches, or ``label: task | label: task``.

    >>> [row.label for row in parse_form(Settings(branches=3), "make it fast").rows]
    ['a', 'b', 'c']
    >>> [(row.label, row.steer) for row in parse_form(Settings(), "fast: use C | b: use a cache").rows]
    [('fast', 'use C'), ('b', 'use a cache')]
    """
    pieces = [piece.strip() for piece in text.split("|")]
    if len(pieces) == 1:
        return build_form(settings, text.strip())
    form = build_form(settings, branches=len(pieces))
    return replace(form, rows=tuple(_fill_row(row, piece) for row, piece in zip(form.rows, pieces, strict=True)))


def _fill_row(row: BranchRow, piece: str) -> BranchRow:
    label, colon, steer = piece.partition(":")
    if colon and label.strip() and " " not in label.strip():
        return replace(row, label=label.strip(), steer=steer.strip())
    return replace(row, steer=piece)


def _default_label(number: int, letters: Sequence[str] = ascii_lowercase) -> str:
    return letters[number] if number < len(letters) else f"branch-{number + 1}"
