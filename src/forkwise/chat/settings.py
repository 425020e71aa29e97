"""The settings of a chat, stored in TOML files, and the form of the next fork that they fill in.

The user's file comes first, then the workspace's. If the user has not accepted the latter, it can only restrict: add
tools that need approval, and lower budgets and the number of branches. Approvals and budgets that a workspace's file
once set stay in force until the user accepts a file without them.

This module stays light: the first frame of a chat loads it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from forkwise.config.config_file import (
    SETTINGS,
    ConfigFile,
    find_workspace_config,
    format_ignored,
    read_user_config,
    read_workspace_config,
)
from forkwise.config.trust import Acceptances
from forkwise.errors import ConfigError
from forkwise.linux.file_write import replace_file

__all__ = [
    "MOST_BRANCHES",
    "BranchRow",
    "ForkForm",
    "Settings",
    "SettingsError",
    "build_form",
    "list_limits",
    "list_widened_settings",
    "load_settings",
    "parse_form",
    "save_settings",
    "settings_path",
]


#: The maximum number of branches of a fork.
MOST_BRANCHES = 10

_TABLE = "chat"
_BUDGETS = ("branch_budget", "fork_budget")
_LIMITS = ("ask", *_BUDGETS)
_EXECUTE = "execute"
_MAX_NAMES, _MAX_NAME = 200, 100


class SettingsError(ConfigError):
    """The settings cannot be read or written; ``path`` is their file."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a chat, most of them defaults of its next fork.

    ``models`` are the models of single branches, numbered from 1. ``judge`` is the judge's model, by default the
    chat's. ``test`` is the command that tests a branch, or ``auto``. ``ask`` are the tools that need approval.
    ``notes`` are messages about settings that have no effect, because the user has not accepted them.
    """

    branches: int = 2
    branch_budget: float | None = None
    fork_budget: float | None = None
    models: Mapping[int, str] = field(default_factory=dict)
    model: str | None = None
    judge: str | None = None
    test: str | None = None
    ask: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

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
    return find_workspace_config(workspace, SETTINGS)


def load_settings(workspace: Path) -> Settings:
    """Load the settings for a workspace. Raises SettingsError if a file is invalid."""
    try:
        user = read_user_config(SETTINGS, workspace)
        own = read_workspace_config(workspace, SETTINGS)
    except ConfigError as error:
        raise SettingsError(str(error), path=error.path) from error
    settings = Settings()
    for file in (user, own):
        if file is not None:
            settings = _add_file(settings, file, workspace)
    return _apply_limits(settings, own, workspace)


def _add_file(settings: Settings, file: ConfigFile, workspace: Path) -> Settings:
    """Add the settings of a file: all of a trusted one, otherwise those that narrow."""
    table = _find_table(file)
    added = _parse_file(file, table)
    if file.is_trusted:
        values = {name: getattr(added, name) for name in table}
        return replace(settings, **values | {"ask": _join(settings.ask, added.ask)})
    narrowed = _narrow(settings, added, table)
    if not (ignored := _list_ignored(narrowed, added, table)):
        return narrowed
    return replace(narrowed, notes=(*narrowed.notes, format_ignored(file, ignored, workspace)))


def _narrow(settings: Settings, added: Settings, names: Collection[str]) -> Settings:
    """Return settings with the stricter of both values: all approvals, and the lower budgets and numbers."""
    changes: dict[str, Any] = {"ask": _join(settings.ask, added.ask)}
    for name in _BUDGETS:
        amounts = [getattr(one, name) for one in (settings, added) if getattr(one, name) is not None]
        changes[name] = min(amounts, default=None)
    if "branches" in names:
        changes["branches"] = min(settings.branches, added.branches)
    if "ask" in names and not added.ask:  # its only purpose is to remove approvals, and it is not known which ones
        changes["ask"] = _join(settings.ask, (_EXECUTE,))
    return replace(settings, **changes)


def _list_ignored(narrowed: Settings, added: Settings, table: Mapping[str, Any]) -> list[str]:
    """Return the names of settings in a table that have no effect."""
    return [
        name for name in table if getattr(narrowed, name) != getattr(added, name) and not (name == "ask" and added.ask)
    ]


def _apply_limits(settings: Settings, file: ConfigFile | None, workspace: Path) -> Settings:
    """Keep approvals and budgets in force that the workspace's file set when it was last used, but no longer sets."""
    acceptances, path = Acceptances(workspace), settings_path(workspace)
    now = {} if file is None else list_limits(file)
    if file is not None and file.is_trusted:
        acceptances.set_limits(path, now)
        return settings
    try:
        before = _parse_table(acceptances.limits(path))
    except ValueError:  # written by another version
        before = Settings()
    limits = _build_table(_narrow(before, _parse_table(now), ()))
    if limits["ask"]:  # bounded, and the oldest are kept: a long new list must not displace the earlier entries
        limits["ask"] = [name for name in limits["ask"] if len(name) <= _MAX_NAME][:_MAX_NAMES]
    acceptances.set_limits(path, {name: limits[name] for name in _LIMITS if limits[name] is not None})
    narrowed = _narrow(settings, before, ())
    if narrowed == settings:
        return settings
    names = [name for name in _LIMITS if getattr(narrowed, name) != getattr(settings, name)]
    note = (
        f"{path} no longer sets {', '.join(names)} as it did; its former limits apply until you accept "
        f"the change with: forkwise trust {workspace}"
    )
    return replace(narrowed, notes=(*narrowed.notes, note))


def list_limits(file: ConfigFile) -> dict[str, Any]:
    """Return the approvals and budgets that a file sets. Raises SettingsError if it is invalid."""
    table = _find_table(file)
    _parse_file(file, table)
    return {name: table[name] for name in _LIMITS if name in table}


def list_widened_settings(file: ConfigFile) -> list[str]:
    """Return the settings of a file that count only if it is accepted, one line for each."""
    table = _find_table(file)
    added = _parse_file(file, table)
    names = _list_ignored(_narrow(Settings(), added, table), added, table)
    return [f"[{_TABLE}] {name} = {table[name]!r}" for name in names]


def save_settings(workspace: Path, settings: Settings, names: Collection[str] | None = None) -> None:
    """Save settings in the workspace's file, and accept its new content; the rest of the file stays as it is.

    ``names`` are the settings to save, by default all. Raises SettingsError if the file is not accepted: its other
    content would be accepted with it.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    path = settings_path(workspace)
    try:
        file = read_workspace_config(workspace, SETTINGS)
    except ConfigError as error:
        raise SettingsError(str(error), path=str(path)) from error
    if file is not None and not file.is_trusted and (list_widened_settings(file) or set(file.tables) - {_TABLE}):
        message = f"cannot save settings: {path} is not accepted; review and accept it with: forkwise trust {workspace}"
        raise SettingsError(message, path=str(path))
    try:
        document = tomlkit.parse("" if file is None else file.data)
        table = document.setdefault(_TABLE, tomlkit.table())
        for name, value in _build_table(settings).items():
            if names is not None and name not in names:
                continue
            if value is None:
                table.pop(name, None)
            elif table.get(name) != value:
                table[name] = value
        written = tomlkit.dumps(document).encode()
    except (TOMLKitError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(f"{path}: {error}", path=str(path)) from error
    _write(path, written)
    # Accept the content that was written here, not what the file contains by now.
    saved = ConfigFile(path, written, tomllib.loads(written.decode()), is_trusted=True)
    try:
        Acceptances(workspace).accept(path, saved.sha256, list_limits(saved))
    except ConfigError as error:
        raise SettingsError(str(error), path=str(path)) from error


def _find_table(file: ConfigFile) -> dict[str, Any]:
    table = file.tables.get(_TABLE, {})
    if not isinstance(table, dict):
        raise SettingsError(f"{file.path}: [{_TABLE}] is not a table", path=str(file.path))
    return table


def _parse_file(file: ConfigFile, table: Mapping[str, Any]) -> Settings:
    try:
        return _parse_table(table)
    except ValueError as error:
        raise SettingsError(f"{file.path}: {error}", path=str(file.path)) from error


def _join(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


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


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        replace_file(path, data, mode=None)
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
