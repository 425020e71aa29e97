"""Grading tables: the parts of a project file that configure its tests, as opposed to those that do not grade.

``put_back`` returns an attempt's version of such a file with the grading tables of the base. The attempt's content is
not trusted: if it cannot be merged with certainty, the base's file is used.
"""

from __future__ import annotations

import configparser
import io
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from forkwise.testing.rust import put_back_tests

__all__ = ["put_back"]

_Path = tuple[str, ...]

# Paths of tables by file name. "*" stands for any key.
_TOML_TABLES: dict[str, tuple[_Path, ...]] = {
    "pyproject.toml": (
        ("tool", "pytest"),
        ("tool", "coverage"),
        ("tool", "tox"),
        ("tool", "nox"),
        ("tool", "hatch", "envs"),
        ("tool", "poe"),
        ("tool", "pdm", "scripts"),
        ("tool", "taskipy"),
        ("tool", "pytest_env"),
        ("project", "entry-points", "pytest11"),
    ),
    "Cargo.toml": (
        ("test",),
        ("bench",),
        ("lib", "test"),
        ("lib", "doctest"),
        ("lib", "harness"),
        ("profile", "test"),
        ("package", "autotests"),
        ("package", "build"),
    ),
}
_JSON_KEYS = {"package.json": ("scripts", "jest", "vitest", "mocha", "ava", "nyc", "c8", "babel")}
_INI_SECTIONS = {"setup.cfg": ("tool:pytest", "pytest", "coverage:", "tox:", "aliases", "options.entry_points")}


def put_back(path: str, theirs: bytes | None, base: bytes | None) -> bytes | None:
    """Return ``theirs``, an attempt's version of a file, with the grading tables of ``base``; None: there is no file.

    >>> put_back("package.json", b'{"name": "a", "scripts": {"test": "true"}}', b'{"scripts": {"test": "jest"}}')
    b'{\\n  "name": "a",\\n  "scripts": {\\n    "test": "jest"\\n  }\\n}\\n'
    """
    if theirs is None:
        return base
    name = PurePosixPath(path).name
    merge: Callable[[str, str, str], str]
    if name.endswith(".rs"):
        merge = _merge_rust
    elif name in _TOML_TABLES:
        merge = _merge_toml
    elif name in _JSON_KEYS:
        merge = _merge_json
    else:
        merge = _merge_ini
    try:
        return merge(name, theirs.decode(), (base or b"").decode()).encode()
    except (ValueError, RecursionError, configparser.Error):  # not readable as such a file
        return base


def _merge_rust(_name: str, theirs: str, base: str) -> str:
    return put_back_tests(theirs, base)


def _merge_toml(name: str, theirs: str, base: str) -> str:
    ours, wanted = tomllib.loads(theirs), tomllib.loads(base)
    differing = [path for path in _TOML_TABLES[name] if _get(ours, path) != _get(wanted, path)]
    if not differing:
        return theirs
    import tomlkit  # noqa: PLC0415 - loaded on use
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    try:
        document = tomlkit.parse(theirs)
        for path in differing:
            _set(document, path, _get(wanted, path))
        merged = tomlkit.dumps(document)
    except (TOMLKitError, KeyError, TypeError, AttributeError):
        return base
    found = tomllib.loads(merged)
    is_right = all(_get(found, path) == _get(wanted, path) for path in _TOML_TABLES[name])
    return merged if is_right else base


def _merge_json(name: str, theirs: str, base: str) -> str:
    ours, wanted = json.loads(theirs), json.loads(base or "{}")
    if not isinstance(ours, dict) or not isinstance(wanted, dict):
        return base
    for key in _JSON_KEYS[name]:
        if key in wanted:
            ours[key] = wanted[key]
        else:
            ours.pop(key, None)
    return json.dumps(ours, indent=2) + "\n"


def _merge_ini(name: str, theirs: str, base: str) -> str:
    ours, wanted = (configparser.RawConfigParser(strict=False) for _ in range(2))
    ours.read_string(theirs)
    wanted.read_string(base)
    for section in ours.sections():
        if section.startswith(_INI_SECTIONS[name]):
            ours.remove_section(section)
    for section in wanted.sections():
        if section.startswith(_INI_SECTIONS[name]):
            ours[section] = wanted[section]
    text = io.StringIO()
    ours.write(text)
    return text.getvalue()


def _get(document: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = document
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return found


def _set(document: Any, path: Sequence[str], value: Any) -> None:
    """Set a value of a TOML document, or remove it if the value is None."""
    import tomlkit  # noqa: PLC0415 - loaded on use

    *above, last = path
    for key in above:
        if key not in document:
            if value is None:
                return
            document[key] = tomlkit.table()
        document = document[key]
    if value is None:
        document.pop(last, None)
    else:
        document[last] = value
