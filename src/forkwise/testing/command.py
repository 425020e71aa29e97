"""Test command: recognise the framework that a command runs, and detect a project's command from its files.

Detection tries, in this order: pytest (its configuration, a conftest.py, test files of a Python project), the test
script of package.json, Cargo.toml, go.mod, a Makefile with a target ``test``, and test files of Python by themselves.
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
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    from forkwise.testing.evidence import Injection

__all__ = [
    "Framework",
    "TestCommand",
    "find_test_command",
    "for_command",
    "read_recipe",
    "resolve_script",
]


#: Frameworks whose report can be read.
Framework = Literal["cargo", "go", "jest", "pytest", "unittest", "vitest"]

_OPERATOR = re.compile(r"[();<>|&\n]+")
_PYTHON = re.compile(r"python[\d.]*$")

# Words before the actual command: programs that run another one, their options and durations, assignments.
_WRAPPERS = {"bunx", "command", "env", "exec", "nice", "npx", "pnpm", "time", "timeout", "yarn"}
_WRAPPERS_WITH_RUN = {"bun", "coverage", "hatch", "pdm", "pipenv", "poetry", "rye", "uv"}
_SKIPPED = re.compile(r"-|[A-Za-z_]\w*=|\d+[smhd]?$")


@dataclass(frozen=True, slots=True)
class TestCommand:
    """A test command as a shell line.

    ``framework`` is the framework whose report is expected, the hint for ``read_report``; None if it is not known, and
    then every format is tried. ``junit`` is the path of the JUnit report if pytest runs, and ``env`` the environment
    variables that the command needs. ``how_found`` tells the user why this command was chosen.
    """

    __test__: ClassVar[bool] = False

    text: str
    framework: Framework | None
    how_found: str
    junit: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> tuple[str, ...]:
        """The words to execute."""
        return "/bin/sh", "-c", self.text


def for_command(
    text: str,
    *,
    junit: str | None = None,
    environ: Mapping[str, str] | None = None,
    how_found: str = "it was given",
    injection: Injection | None = None,
) -> TestCommand:
    """Recognise the framework of a command, and make it write a report; with ``injection`` also evidence.

    ``junit`` is the absolute path, as the command sees it, at which pytest writes its report, wherever in the line it
    runs; the file must not exist before the run, or it would be taken for the report. A report that the command
    requests itself keeps its own path. ``environ`` is the command's environment; options for pytest in it are kept.

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
    frameworks = [_find_framework(words) for words in commands]
    if "pytest" in frameworks:
        framework: Framework | None = "pytest"
    elif frameworks and operators <= {"&&", ";", "\n"}:
        framework = frameworks[-1]
    else:
        # The command may not run, or its output may be redirected.
        framework = None
    if framework == "go" and "-json" not in commands[-1]:
        if text.count("go test") == 1:
            text = text.replace("go test", "go test -json")
        else:
            framework = None
    env = _build_env(junit, environ or {})
    if injection is not None:
        text = _add_report_options(text, framework, operators)
        given = (environ or {}).get("PYTEST_ADDOPTS", "")
        env |= injection.environment(environ or {}, env.get("PYTEST_ADDOPTS", given))
        if framework == "unittest" and text.count("-m unittest") == 1:
            text = text.replace("-m unittest", shlex.quote(injection.unittest_main))
    return TestCommand(text, framework, how_found, junit, env)


def _add_report_options(text: str, framework: Framework | None, operators: set[str]) -> str:
    """Make a runner report every test by its name, and all of them even if some fail."""
    if framework == "cargo" and text.count("cargo test") == 1 and not operators:
        if "--no-fail-fast" not in text:
            text = text.replace("cargo test", "cargo test --no-fail-fast")
        return f"{text} 2>&1"  # in one stream, the name of each program precedes what it prints
    if framework in _REPORT_OPTIONS and "--json" not in text and "--outputFile" not in text:
        return f"{text} {_REPORT_OPTIONS[framework]}"
    return text


_REPORT_OPTIONS: Mapping[str | None, str] = {
    "jest": "--json --bail=0",
    "vitest": "--reporter=default --reporter=json --bail=0",
}
_SCRIPT_COMMAND = re.compile(r"(?:CI=\S+ )?(npm|pnpm|yarn|bun) (?:run )?test")


def _add_script(command: TestCommand, script: str, injection: Injection | None) -> TestCommand:
    """Return a command that runs a script of package.json, with the framework and the options of the script."""
    inner = for_command(script)
    # A script cannot be rewritten: if for_command changed it, the script itself will not report.
    framework = inner.framework if inner.text == script else None
    text = command.text
    if injection is not None and framework in _REPORT_OPTIONS and (runner := _SCRIPT_COMMAND.fullmatch(text)):
        separator = " --" if runner[1] == "npm" else ""
        text = f"{text}{separator} {_REPORT_OPTIONS[framework]}"
    return replace(command, text=text, framework=framework)


def _split(text: str) -> tuple[list[list[str]], set[str]]:
    """Split a shell line into the words of its commands, and its operators; both are empty if quotes do not match."""
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


def _find_framework(words: list[str]) -> Framework | None:
    """Return the framework that a command runs, if its output is known to contain a report."""
    match _strip_wrappers(words):
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


def _strip_wrappers(words: list[str]) -> list[str]:
    """Remove assignments, wrapper programs and the program's directory from a command."""
    while words:
        name = PurePosixPath(words[0]).name
        if name in _WRAPPERS or _SKIPPED.match(words[0]) or (_PYTHON.match(name) and "-m" in words):
            words = words[1:]
        elif name in _WRAPPERS_WITH_RUN and words[1:2] == ["run"]:
            words = words[2:]
        else:
            return [name, *words[1:]]
    return []


def _build_env(junit: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    if junit is None:
        return {}
    # Only the output and logs of failing tests: those of all others would make the file large.
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


class _DetectedCommand(NamedTuple):
    """A command, why it was detected, and the script of package.json that it runs."""

    text: str
    reason: str
    script: str = ""


def find_test_command(
    directory: str | os.PathLike[str],
    *,
    junit: str | None = None,
    environ: Mapping[str, str] | None = None,
    injection: Injection | None = None,
    top: str | os.PathLike[str] | None = None,
) -> TestCommand | None:
    """Detect the command that runs the tests of the project in ``directory``; None if its files do not show one.

    Reads files and runs nothing. The command must be run in ``directory``; its ``how_found`` says why it was chosen.
    A virtual environment is found in ``directory`` and in those above it up to ``top``, which is by default the same.
    ``junit``, ``environ`` and ``injection`` are those of ``for_command``.
    """
    root = Path(directory)
    highest = root if top is None else Path(top)
    found = (
        _detect_pytest(root, environ, highest)
        or _detect_package_json(root)
        or _detect_cargo(root)
        or _detect_go(root)
        or _detect_make(root)
        or _detect_test_files(root, environ, highest)
    )
    if found is None:
        return None
    command = for_command(found.text, junit=junit, environ=environ, how_found=found.reason, injection=injection)
    if not found.script:
        return command
    # Without CI=true some runners watch the files for changes and never end.
    return replace(_add_script(command, found.script, injection), env={**command.env, "CI": "true"})


def resolve_script(
    command: TestCommand, directory: str | os.PathLike[str], injection: Injection | None = None
) -> TestCommand:
    """Return a given command such as ``npm test`` with the framework that its script runs in ``directory``."""
    found = _detect_package_json(Path(directory)) if _SCRIPT_COMMAND.fullmatch(command.text) else None
    return command if found is None else _add_script(command, found.script, injection)


def read_recipe(command: TestCommand, directory: str | os.PathLike[str]) -> str:
    """Return the text that a command takes its own commands from: a Makefile, or the test script of package.json."""
    root = Path(directory)
    programs = {PurePosixPath(word).name for word in command.text.split()}
    if programs & {"make", "gmake"}:
        return "\n".join(_read_text(root / name) for name in _MAKEFILES)
    found = _detect_package_json(root) if programs & {"npm", "pnpm", "yarn", "bun"} else None
    return "" if found is None else found.script


def _detect_pytest(root: Path, environ: Mapping[str, str] | None, top: Path) -> _DetectedCommand | None:
    reason = _find_pytest_reason(root)
    return None if reason is None else _DetectedCommand(f"{_find_pytest_program(root, environ, top)} -q", reason)


def _find_pytest_reason(root: Path) -> str | None:
    match _read_toml(root / "pyproject.toml"):
        case {"tool": {"pytest": {"ini_options": _}}}:
            return "pyproject.toml has [tool.pytest.ini_options]"
        case {"tool": {"pytest": _}}:
            return "pyproject.toml has [tool.pytest]"
    for name, section in _PYTEST_SECTIONS.items():
        if section in _read_ini_sections(root / name):
            return f"{name} has [{section}]"
    for name in _PYTEST_FILES:
        if (root / name).is_file():
            return f"there is {name}"
    if any((root / name).is_file() for name in _PYTHON_PROJECT):
        for pattern in _TEST_FILES:
            if test := next(root.glob(pattern), None):
                return f"it is a Python project with {test.relative_to(root)}"
    return None


def _find_pytest_program(root: Path, environ: Mapping[str, str] | None, top: Path) -> str:
    """Return the pytest of the nearest virtual environment of the project, or else the one on the path."""
    depth = len(root.relative_to(top).parts) if root.is_relative_to(top) else 0
    for up in (PurePosixPath(*[".."] * level) for level in range(depth + 1)):
        for venv in _VENVS:
            found = root / up / venv
            if (found / "bin/python").exists() and any(found.glob("lib/python*/site-packages/pytest")):
                return f"{up / venv}/bin/python -m pytest"
    path = None if environ is None else environ.get("PATH")
    pytest, python = shutil.which("pytest", path=path), shutil.which("python3", path=path)
    # A pytest in another directory than python3 belongs to another Python.
    if pytest and (not python or Path(pytest).parent != Path(python).parent):
        return "pytest"
    return "python3 -m pytest"


def _detect_package_json(root: Path) -> _DetectedCommand | None:
    try:
        package = json.loads(_read_text(root / "package.json"))
    except (ValueError, RecursionError):
        return None
    match package:
        case {"scripts": {"test": str(script)}} if script.strip() and _NPM_PLACEHOLDER not in script:
            runner = next((runner for lock, runner in _LOCKS.items() if (root / lock).is_file()), "npm")
            return _DetectedCommand(f"{runner} test", "package.json has a script test", script)
    return None


def _detect_cargo(root: Path) -> _DetectedCommand | None:
    # Without --no-fail-fast, cargo skips the binaries after the first failing one, and their tests are not counted.
    match _read_toml(root / "Cargo.toml"):
        case {"workspace": _}:
            return _DetectedCommand("cargo test --workspace --no-fail-fast", "Cargo.toml has [workspace]")
        case {"package": _}:
            return _DetectedCommand("cargo test --no-fail-fast", "Cargo.toml has [package]")
    return None


def _detect_go(root: Path) -> _DetectedCommand | None:
    return _DetectedCommand("go test ./...", "there is go.mod") if (root / "go.mod").is_file() else None


def _detect_make(root: Path) -> _DetectedCommand | None:
    # make reads only the first of these.
    name = next((name for name in _MAKEFILES if (root / name).is_file()), None)
    if name is None or not _MAKE_TARGET.search(_read_text(root / name)):
        return None
    return _DetectedCommand("make test", f"{name} has a target test")


def _detect_test_files(root: Path, environ: Mapping[str, str] | None, top: Path) -> _DetectedCommand | None:
    for pattern in _TEST_FILES:
        if test := next(root.glob(pattern), None):
            program = _find_pytest_program(root, environ, top)
            return _DetectedCommand(f"{program} -q", f"there is {test.relative_to(root)}")
    return None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read_text(path))
    except (ValueError, RecursionError):
        return {}


def _read_ini_sections(path: Path) -> list[str]:
    parser = configparser.ConfigParser()
    try:
        parser.read_string(_read_text(path))
    except configparser.Error:
        return []
    return parser.sections()


def _read_text(path: Path) -> str:
    """Read a file up to a size limit; an empty string if it does not exist."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode("utf-8", "replace")
