"""When the user wants a notice that a fork is decided, from ``[notify]`` in the user's own ``config.toml``."""

from __future__ import annotations

import re
from pathlib import Path

from forkwise.config.config_file import SETTINGS, read_user_config
from forkwise.errors import ConfigError

__all__ = ["read_notice_delay"]

_TABLE = "notify"
_NAME = "after"
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_VALUE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([smh])")


def read_notice_delay(workspace: Path) -> float | None:
    """Return the seconds after which the end of a fork is worth a notice; None if the user has not set it.

    Raises ConfigError if the setting is invalid.
    """
    file = read_user_config(SETTINGS, workspace)
    table = {} if file is None or not file.is_trusted else file.tables.get(_TABLE, {})
    if file is None or not table:
        return None
    if not isinstance(table, dict):
        raise ConfigError(f"{file.path}: [{_TABLE}] is not a table")
    for name in table:
        if name != _NAME:
            raise ConfigError(f"{file.path}: [{_TABLE}] has no setting {name!r}; there is only {_NAME}")
    value = table[_NAME]
    found = _VALUE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ConfigError(f"{file.path}: {_NAME} in [{_TABLE}] is {value!r}; it takes a duration such as '30s'")
    return float(found[1]) * _SECONDS[found[2]]
