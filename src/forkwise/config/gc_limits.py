"""The limits of the automatic garbage collection, from ``[gc]`` in the user's own ``config.toml``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from forkwise.config.config_file import SETTINGS, read_user_config
from forkwise.errors import ConfigError

__all__ = ["GcLimits", "read_gc_limits"]

_TABLE = "gc"
_NAMES = ("max_age", "max_size", "min_age")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_VALUE = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([A-Za-z]+)\s*")


@dataclass(frozen=True, slots=True)
class GcLimits:
    """What the automatic garbage collection keeps, in seconds and bytes.

    Undo records and forks older than ``max_age`` are removed. If the state takes more than ``max_size``, the oldest
    ones are removed too, but none younger than ``min_age``.
    """

    max_age: float | None = None
    max_size: int | None = None
    min_age: float = 7 * 86400.0

    @property
    def are_set(self) -> bool:
        """Whether there is a limit at all."""
        return self.max_age is not None or self.max_size is not None


def read_gc_limits(workspace: Path) -> GcLimits:
    """Read the limits; there are none unless the user has the file and alone can change it. Raises ConfigError."""
    file = read_user_config(SETTINGS, workspace)
    table = {} if file is None or not file.is_trusted else file.tables.get(_TABLE, {})
    if file is None or not table:
        return GcLimits()
    if not isinstance(table, dict):
        raise ConfigError(f"{file.path}: [{_TABLE}] is not a table")
    for name in table:
        if name not in _NAMES:
            raise ConfigError(f"{file.path}: [{_TABLE}] has no setting {name!r}; there are {', '.join(_NAMES)}")
    limits = GcLimits(
        max_age=_parse(file.path, table, "max_age", _SECONDS, "30d"),
        max_size=None if (size := _parse(file.path, table, "max_size", _BYTES, "5GB")) is None else int(size),
    )
    if (min_age := _parse(file.path, table, "min_age", _SECONDS, "7d")) is not None:
        limits = GcLimits(limits.max_age, limits.max_size, min_age)
    return limits


def _parse(path: Path, table: dict[str, object], name: str, units: dict[str, int], example: str) -> float | None:
    value = table.get(name)
    if value is None:
        return None
    found = _VALUE.fullmatch(value) if isinstance(value, str) else None
    unit = None if found is None else units.get(found[2].lower())
    if found is None or unit is None:
        raise ConfigError(
            f"{path}: {name} in [{_TABLE}] is {value!r}; it takes a number and a unit, such as {example!r}"
        )
    return float(found[1]) * unit
