"""TestCommand: how the tests of a project are run, and how they are made to report.

A command stays as it was given wherever that can be: pytest is asked for its JUnit report by the environment, which
works through pipes, scripts and make, and only a plain ``go test`` gets a flag.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import ClassVar, Literal

__all__ = ["Framework", "TestCommand", "for_command"]

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
