"""Finding the test command of a project by itself, where the project makes it plain.

The first of these decides, in this order: pytest (its configuration, a conftest.py, test files of a Python project),
the test script of package.json, Cargo.toml, go.mod, and a Makefile with a target ``test``.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal, NamedTuple

__all__ = [
    "Framework",
    "TestCommand",
    "find_test_command",
    "for_command",
]


#: Frameworks whose report can be read.
Framework = Literal["cargo", "go", "jest", "pytest", "unittest", "vitest"]

_OPERATOR = re.compile(r"[();<>|&\n]+")
_PYTHON = re.compile(r"python[\d.]*$")

# Words before the command proper: programs that run what follows them, their options and durations, assignments.
_WRAPPERS = {"bunx", "command", "env", "exec", "nice", "npx", "pnpm", "time", "timeout", "yarn"}
_WRAPPERS_WITH_RUN = {"bun", "coverage", "hatch", "pdm", "pipenv", "poetry", "rye", "uv"}
_SKIPPED = re.compile(r"-|[A-Za-z_]\w*=|\d+[smhd]?$")


@dataclass(frozen=True, slots=True)
class TestCommand:
    """A test command as a shell takes it.

    ``framework`` is the one whose report is to be expected, which ``read_report`` wants as its hint; None where it is
    not plain, and then every format is tried. ``junit`` is where a JUnit report will lie if pytest runs, and ``env``
    what the command needs in its environment. ``how_found`` says to people why it is this command.
    """

    __test__: ClassVar[bool] = False

    text: str
    framework: Framework | None
    how_found: str
    junit: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> tuple[str, ...]:
        """What to execute."""
        return "/bin/sh", "-c", self.text


def for_command(
    text: str,
    *,
    junit: str | None = None,
    environ: Mapping[str, str] | None = None,
    how_found: str = "it was given",
) -> TestCommand:
    """Work out what a command is, and have it report.

    ``junit`` is the absolute path, as the command sees it, at which pytest is to write its report, wherever in the
    command it runs; nothing may lie there before the run, or it would be taken for the report. A report that the
    command itself asks for stays where the command wants it. ``environ`` is the environment that the command would
    have, so that options for pytest that stand there are kept.

    >>> command = for_command("cd api && pytest -q | tee log", junit="/out/junit.xml")
    >>> command.framework, command.text
    ('pytest', 'cd api && pytest -q | tee log')
    >>> command.env["PYTEST_ADDOPTS"]
    '--junitxml=/out/junit.xml -o junit_logging=all -o junit_log_passing_tests=false'
    >>> for_command("go test ./...").text
    'go test -json ./...'
    """
    if not text.strip():
        raise ValueError("the test command is empty: it would exit with 0 and test nothing")
    commands, operators = _split(text)
    frameworks = [_framework(words) for words in commands]
    if "pytest" in frameworks:
        framework: Framework | None = "pytest"
    elif frameworks and operators <= {"&&", ";", "\n"}:
        framework = frameworks[-1]
    else:
        # It may not run, or what it prints may not be seen.
        framework = None
    if framework == "go" and "-json" not in commands[-1]:
        if text.count("go test") == 1:
            text = text.replace("go test", "go test -json")
        else:
            framework = None
    return TestCommand(text, framework, how_found, junit, _env(junit, environ or {}))


def _split(text: str) -> tuple[list[list[str]], set[str]]:
    """The words of each command in a shell line, and the operators between them; nothing where quotes do not match."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    commands: list[list[str]] = [[]]
    operators: set[str] = set()
    try:
        for word in lexer:
            if _OPERATOR.fullmatch(word):
                operators.add(word)
                commands.append([])
            else:
                commands[-1].append(word)
    except ValueError:
        return [], set()
    return [words for words in commands if words], operators


def _framework(words: list[str]) -> Framework | None:
    """The framework that one command runs, if it is plainly one that will report."""
    match _bare(words):
        case ["pytest" | "py.test", *_]:
            return "pytest"
        case ["unittest", *_]:
            return "unittest"
        case ["cargo", "test", *_]:
            return "cargo"
        case ["go", "test", *_]:
            return "go"
        case ["jest" | "vitest" as name, *options] if not any(word.startswith("--reporter") for word in options):
            return "jest" if name == "jest" else "vitest"
    return None


def _bare(words: list[str]) -> list[str]:
    """The command proper: without assignments, without what only runs it, and without its directory."""
    while words:
        name = PurePosixPath(words[0]).name
        if name in _WRAPPERS or _SKIPPED.match(words[0]) or (_PYTHON.match(name) and "-m" in words):
            words = words[1:]
        elif name in _WRAPPERS_WITH_RUN and words[1:2] == ["run"]:
            words = words[2:]
        else:
            return [name, *words[1:]]
    return []


def _env(junit: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    if junit is None:
        return {}
    # What a failing test printed and logged is worth reading; that of all others would only make the file large.
    options = ["-o", "junit_logging=all", "-o", "junit_log_passing_tests=false"]
    ours = shlex.join([f"--junitxml={junit}", *options])
    return {"PYTEST_ADDOPTS": f"{environ.get('PYTEST_ADDOPTS', '')} {ours}".strip()}


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
