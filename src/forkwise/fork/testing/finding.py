"""Finding the test command of a project by itself, where the project makes it plain.

The first of these decides, in this order: pytest (its configuration, a conftest.py, test files of a Python project),
the test script of package.json, Cargo.toml, go.mod, and a Makefile with a target ``test``.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from forkwise.fork.testing.command import TestCommand, for_command

__all__ = ["find_test_command"]

_MAX_BYTES = 1 << 20

_PYTEST_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "conftest.py", "tests/conftest.py")
_PYTEST_SECTIONS = {"tox.ini": "pytest", "setup.cfg": "tool:pytest"}
_PYTHON_PROJECT = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
_TEST_FILES = ("test_*.py", "tests/**/test_*.py")
_VENVS = (".venv", "venv")

_LOCKS = {"pnpm-lock.yaml": "pnpm", "yarn.lock": "yarn", "bun.lock": "bun run", "bun.lockb": "bun run"}
_NPM_PLACEHOLDER = "no test specified"

_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
_MAKE_TARGET = re.compile(r"^test[ \t]*:(?!=)", re.MULTILINE)


class _Found(NamedTuple):
    """A command, why it is that one, and the script that it will run, where that is known."""

    text: str
    how: str
    script: str = ""


def find_test_command(
    directory: str | os.PathLike[str], *, junit: str | None = None, environ: Mapping[str, str] | None = None
) -> TestCommand | None:
    """The command that runs the tests of the project in a directory; None where it is not plain.

    Files are looked at, nothing is run, and the command is to be run in that directory. Its ``how_found`` says what
    decided. ``junit`` and ``environ`` are those of ``for_command``.
    """
    root = Path(directory)
    found = _pytest(root, environ) or _package_json(root) or _cargo(root) or _go(root) or _make(root)
    if found is None:
        return None
    command = for_command(found.text, junit=junit, environ=environ, how_found=found.how)
    if not found.script:
        return command
    # Some runners watch for changes and never end unless they are told that nobody looks.
    env = {**command.env, "CI": "true"}
    script = for_command(found.script)
    # A script is not rewritten: one that would have to be in order to report will not report.
    return replace(command, framework=script.framework if script.text == found.script else None, env=env)


def _pytest(root: Path, environ: Mapping[str, str] | None) -> _Found | None:
    how = _why_pytest(root)
    return None if how is None else _Found(f"{_pytest_program(root, environ)} -q", how)


def _why_pytest(root: Path) -> str | None:
    match _toml(root / "pyproject.toml"):
        case {"tool": {"pytest": {"ini_options": _}}}:
            return "pyproject.toml has [tool.pytest.ini_options]"
        case {"tool": {"pytest": _}}:
            return "pyproject.toml has [tool.pytest]"
    for name, section in _PYTEST_SECTIONS.items():
        if section in _ini_sections(root / name):
            return f"{name} has [{section}]"
    for name in _PYTEST_FILES:
        if (root / name).is_file():
            return f"there is {name}"
    if any((root / name).is_file() for name in _PYTHON_PROJECT):
        for pattern in _TEST_FILES:
            if test := next(root.glob(pattern), None):
                return f"it is a Python project with {test.relative_to(root)}"
    return None


def _pytest_program(root: Path, environ: Mapping[str, str] | None) -> str:
    """The project's own environment, if it has pytest; else what the path has."""
    for venv in _VENVS:
        if (root / venv / "bin/python").exists() and any(root.glob(f"{venv}/lib/python*/site-packages/pytest")):
            return f"{venv}/bin/python -m pytest"
    path = None if environ is None else environ.get("PATH")
    pytest, python = shutil.which("pytest", path=path), shutil.which("python3", path=path)
    # A pytest that lies beside another python belongs to that one.
    if pytest and (not python or Path(pytest).parent != Path(python).parent):
        return "pytest"
    return "python3 -m pytest"


def _package_json(root: Path) -> _Found | None:
    try:
        package = json.loads(_text(root / "package.json"))
    except (ValueError, RecursionError):
        return None
    match package:
        case {"scripts": {"test": str(script)}} if script.strip() and _NPM_PLACEHOLDER not in script:
            runner = next((runner for lock, runner in _LOCKS.items() if (root / lock).is_file()), "npm")
            return _Found(f"{runner} test", "package.json has a script test", script)
    return None


def _cargo(root: Path) -> _Found | None:
    # Without --no-fail-fast the binaries after the first that fails are not run, and their tests not counted.
    match _toml(root / "Cargo.toml"):
        case {"workspace": _}:
            return _Found("cargo test --workspace --no-fail-fast", "Cargo.toml has [workspace]")
        case {"package": _}:
            return _Found("cargo test --no-fail-fast", "Cargo.toml has [package]")
    return None


def _go(root: Path) -> _Found | None:
    return _Found("go test ./...", "there is go.mod") if (root / "go.mod").is_file() else None


def _make(root: Path) -> _Found | None:
    # Only the first of these is the one that make reads.
    name = next((name for name in _MAKEFILES if (root / name).is_file()), None)
    if name is None or not _MAKE_TARGET.search(_text(root / name)):
        return None
    return _Found("make test", f"{name} has a target test")


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except (ValueError, RecursionError):
        return {}


def _ini_sections(path: Path) -> list[str]:
    parser = configparser.ConfigParser()
    try:
        parser.read_string(_text(path))
    except configparser.Error:
        return []
    return parser.sections()


def _text(path: Path) -> str:
    """What a file says, up to a size that none of these has; nothing where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode("utf-8", "replace")
