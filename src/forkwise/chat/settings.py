"""ForkForm: what a fork is asked for, row by row, as a picker shows it and as one line says it."""

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
    "blank_form",
    "form_of",
    "load_settings",
    "save_settings",
    "settings_path",
]


#: The most branches that a fork has.
MOST_BRANCHES = 10

_LARGEST = 1_000_000  # bytes; nobody writes more by hand
_TABLE = "chat"


class SettingsError(BranchingError):
    """The settings cannot be read or written; ``path`` is the file."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True)
class Settings:
    """What the next fork is made with, unless it is told otherwise.

    ``models`` are those of single branches, by their numbers from 1. ``judge`` is the model that judges, the chat's own
    where it is None; ``test`` the command that says how good a branch is. ``ask`` are tools that are called only when
    somebody approves.
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
                raise ValueError(f"{name} is a number of dollars above 0, not {value}")
        if wrong := [number for number in self.models if not 1 <= number <= MOST_BRANCHES]:
            raise ValueError(f"branches are numbered from 1 to {MOST_BRANCHES}, not {wrong[0]}")


def settings_path(workspace: Path) -> Path:
    """Where the settings of a workspace are."""
    return workspace / ".forkwise" / "config.toml"


def load_settings(workspace: Path) -> Settings:
    """The settings of a workspace; SettingsError where there is a file that holds none."""
    path = settings_path(workspace)
    text = _read(path)
    if text is None:
        return Settings()
    try:
        table = tomllib.loads(text).get(_TABLE, {})
        if not isinstance(table, dict):
            raise ValueError(f"[{_TABLE}] is no table")
        return _settings(table)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: {error}", path=str(path)) from error


def save_settings(workspace: Path, settings: Settings) -> None:
    """Write settings down; comments in the file, and what else is in it, stay as they are."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    path = settings_path(workspace)
    text = _read(path) or ""
    try:
        document = tomlkit.parse(text)
        table = document.setdefault(_TABLE, tomlkit.table())
        for name, value in _table(settings).items():
            if value is None:
                table.pop(name, None)
            elif table.get(name) != value:
                table[name] = value
        written = tomlkit.dumps(document)
    except (TOMLKitError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(f"{path}: {error}", path=str(path)) from error
    _write(path, written)


def _settings(table: Mapping[str, Any]) -> Settings:
    found = Settings()
    for name, value in table.items():
        reader = _READERS.get(name)
        if reader is None:
            raise ValueError(f"[{_TABLE}] knows {', '.join(_READERS)}; not {name!r}")
        found = replace(found, **{name: reader(name, value)})
    return found


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} is a whole number, not {value!r}")
    return value


def _dollars(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name} is a number of dollars, not {value!r}")
    return float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is text, not {value!r}")
    return value


def _names(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is a list of names, not {value!r}")
    return tuple(_text(name, one) for one in value)


def _models(name: str, value: Any) -> dict[int, str]:
    if not isinstance(value, dict) or not all(str(key).isdecimal() for key in value):
        raise ValueError(f"{name} is a table of models by the numbers of branches, not {value!r}")
    return {int(key): _text(name, model) for key, model in value.items()}


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "branches": _count,
    "branch_budget": _dollars,
    "fork_budget": _dollars,
    "models": _models,
    "model": _text,
    "judge": _text,
    "test": _text,
    "ask": _names,
}


def _table(settings: Settings) -> dict[str, Any]:
    """As TOML holds it; None is not written."""
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
    """What a file holds; None where there is none. What is no plain file is never waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
        os.close(fd)
        raise SettingsError(f"{path} is no plain file of at most {_LARGEST} bytes", path=str(path))
    try:
        with open(fd, "rb") as file:
            return file.read(_LARGEST).decode()
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
        raise SettingsError(f"{path} cannot be written: {error.strerror}", path=str(path)) from error


@dataclass(frozen=True, slots=True)
class BranchRow:
    """One branch: what it is called, what it is told, which model runs it (None: the chat's), what it may cost."""

    label: str
    steer: str
    model: str | None = None
    budget_usd: float | None = None
    instructions: str | None = None


@dataclass(frozen=True, slots=True)
class ForkForm:
    """All branches of a fork, and what they may cost together."""

    rows: tuple[BranchRow, ...]
    budget_usd: float | None = None


def blank_form(settings: Settings, task: str = "", branches: int | None = None) -> ForkForm:
    """As many rows as the settings say, with their models and budgets; all are told the task."""
    count = settings.branches if branches is None else branches
    rows = [
        BranchRow(_letter(number), task, settings.models.get(number + 1), settings.branch_budget)
        for number in range(count)
    ]
    return ForkForm(tuple(rows), settings.fork_budget)


def form_of(settings: Settings, text: str) -> ForkForm:
    """What a line asks for: one task for all branches, or ``label: task | label: task``.

    >>> [row.label for row in form_of(Settings(branches=3), "make it fast").rows]
    ['a', 'b', 'c']
    >>> [(row.label, row.steer) for row in form_of(Settings(), "fast: use C | b: use a cache").rows]
    [('fast', 'use C'), ('b', 'use a cache')]
    """
    pieces = [piece.strip() for piece in text.split("|")]
    if len(pieces) == 1:
        return blank_form(settings, text.strip())
    form = blank_form(settings, branches=len(pieces))
    return replace(form, rows=tuple(_filled(row, piece) for row, piece in zip(form.rows, pieces, strict=True)))


def _filled(row: BranchRow, piece: str) -> BranchRow:
    label, colon, steer = piece.partition(":")
    if colon and label.strip() and " " not in label.strip():
        return replace(row, label=label.strip(), steer=steer.strip())
    return replace(row, steer=piece)


def _letter(number: int, letters: Sequence[str] = ascii_lowercase) -> str:
    return letters[number] if number < len(letters) else f"branch-{number + 1}"
