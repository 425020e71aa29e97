"""Seal: which changed paths decide the outcome of an attempt's tests, and so must be taken from the base.

Only paths are looked at, so the cost depends on what an attempt changed. Files that do more than grade, such as
``pyproject.toml``, are not replaced as a whole: ``tables`` puts the base's grading tables into them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from forkwise.testing.command import TestCommand

__all__ = ["Seal", "SealRole", "list_test_names"]

#: ``whole``: the base's version is used; ``tables``: its grading tables are; ``module``: removed if it was added;
#: ``script``: the base's version is used if it has one; ``generated``: so is it, and it says nothing about the attempt.
SealRole = Literal["whole", "tables", "module", "script", "generated"]

_RUNNER_PACKAGES = ("pytest", "_pytest", "pluggy", "py", "iniconfig", "xdist", "unittest")


@dataclass(frozen=True, slots=True)
class _Rules:
    """What grades for one kind of runner: directories by name, files by a pattern for the name or the path."""

    directories: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()
    mixed_ends: tuple[str, ...] = ()


_PYTHON = _Rules(
    directories=("tests", "test"),
    files=(
        "test_*.py",
        "*_test.py",
        "tests.py",
        "test.py",
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "noxfile.py",
        ".coveragerc",
        ".env",
        ".env.*",
        "sitecustomize.py",
        "usercustomize.py",
        "*.pth",
        "*.egg-link",
        "pyvenv.cfg",
        "*.dist-info/entry_points.txt",
        "*.egg-info/entry_points.txt",
        "*bin/python*",
        "*bin/pytest",
        "*bin/py.test",
        *(f"*site-packages/{name}" for name in _RUNNER_PACKAGES),
        *(f"*site-packages/{name}/*" for name in _RUNNER_PACKAGES),
        *(f"*site-packages/{name}.py" for name in _RUNNER_PACKAGES),
    ),
    mixed=("pyproject.toml", "setup.cfg"),
)
_NODE = _Rules(
    directories=("__tests__", "__mocks__", "__snapshots__", "tests", "test", "spec"),
    files=(
        "*.test.*",
        "*.spec.*",
        "jest.config.*",
        "jest.setup.*",
        "vitest.config.*",
        "vitest.workspace.*",
        "vitest.setup.*",
        ".mocharc.*",
        ".babelrc*",
        "babel.config.*",
        ".env",
        ".env.*",
        ".npmrc",
        "*node_modules/.bin/*",
        *(f"*node_modules/{name}" for name in ("jest*/*", "@jest/*", "vitest/*", "@vitest/*", "expect/*", "mocha/*")),
    ),
    mixed=("package.json",),
)
_GO = _Rules(directories=("testdata",), files=("*_test.go", "go.work"))
_RUST = _Rules(
    directories=("tests",), files=(".cargo/*", "rust-toolchain*"), mixed=("Cargo.toml",), mixed_ends=(".rs",)
)
_MAKE = _Rules(files=("Makefile", "makefile", "GNUmakefile", "*.mk"))
_ALL = (_PYTHON, _NODE, _GO, _RUST, _MAKE)

_BY_FRAMEWORK: dict[str, _Rules] = {
    "pytest": _PYTHON,
    "unittest": _PYTHON,
    "jest": _NODE,
    "vitest": _NODE,
    "go": _GO,
    "cargo": _RUST,
}
_BY_PROGRAM: dict[str, _Rules] = {
    **dict.fromkeys(("pytest", "py.test", "tox", "nox", "hatch", "coverage"), _PYTHON),
    **dict.fromkeys(("npm", "npx", "pnpm", "yarn", "bun", "bunx", "node", "jest", "vitest", "mocha"), _NODE),
    **dict.fromkeys(("go", "gotestsum"), _GO),
    **dict.fromkeys(("cargo",), _RUST),
    **dict.fromkeys(("make", "gmake"), _MAKE),
}
_SCRIPT = re.compile(r"(?:^|[_.-])(?:tests?|checks?|specs?)(?:[_.-]|$)")
_WORD = re.compile(r"[^\s();<>|&'\"`$]+")
_INTERPRETER = re.compile(r"(?:ba|da|z|k)?sh$|python[\d.]*$|node$|deno$|perl$|ruby$|php$")
_CHECKS = re.compile(r"test|check|verif|valid|grade|judge|spec|lint|eval|score|\.(?:ba)?sh$", re.IGNORECASE)


_TEST_NAMES = (
    (re.compile(r"(?:test_.*|.*_test|tests?)\.py"), re.compile(r"^[ \t]*(?:async +)?def +(test\w*)", re.MULTILINE)),
    (re.compile(r".*_test\.go"), re.compile(r"^func +(Test\w*)", re.MULTILINE)),
    (re.compile(r".*\.(?:test|spec)\.\w+"), re.compile(r"\b(?:test|it) *\( *([\"'`][^\"'`\n]+)")),
)
_MAX_TEXT = 1 << 20


def list_test_names(path: str, content: bytes | None) -> set[str]:
    """Return the names that look like tests in a test file of Python, Go or JavaScript; none for other files.

    >>> sorted(list_test_names("tests/test_sum.py", b"def test_b(): pass\\nclass A:\\n    def test_a(self): pass\\n"))
    ['test_a', 'test_b']
    """
    name = path.rpartition("/")[2]
    for file_name, test in _TEST_NAMES:
        if content is not None and len(content) <= _MAX_TEXT and file_name.fullmatch(name):
            return set(test.findall(content.decode("utf-8", "replace")))
    return set()


@dataclass(frozen=True, slots=True)
class Seal:
    """Which paths grade, for one test command.

    ``extra`` are the user's own patterns: a path that one matches grades, and with a leading ``!`` does not; the last
    match decides. A pattern without ``/`` is compared with names, and ``*`` also matches ``/``.

    >>> from forkwise.testing.command import for_command
    >>> seal = Seal.of_command(for_command("pytest -q"), extra=("golden/*", "!tests/data/*"))
    >>> seal.role("tests/test_sum.py"), seal.role("src/sum.py"), seal.role("pyproject.toml"), seal.role("golden/a/b")
    ('whole', None, 'tables', 'whole')
    >>> seal.role("tests/data/input.json"), seal.role("random.py"), seal.role("src/pytest/__init__.py")
    (None, 'module', 'module')
    """

    rules: tuple[_Rules, ...]
    scripts: frozenset[str] = frozenset()
    extra: tuple[str, ...] = ()

    @classmethod
    def of_command(cls, command: TestCommand, extra: Sequence[str] = (), recipe: str = "") -> Seal:
        """Build the seal of a test command; if it is not known what the command runs, all rules apply.

        ``recipe`` is the text that the command takes its own commands from, such as a Makefile: a script that it names
        grades if the script's name says that it tests.
        """
        words = _WORD.findall(command.text)
        programs = {PurePosixPath(word).name for word in words}
        found = {_BY_PROGRAM[name] for name in programs if name in _BY_PROGRAM}
        if command.framework is not None:
            found.add(_BY_FRAMEWORK[command.framework])
        # make runs anything, and so does a command that is not known.
        rules = _ALL if not found or _MAKE in found else tuple(found)
        if command.framework is None and found == {_MAKE}:
            rules = _ALL
        paths = (PurePosixPath(word) for word in _WORD.findall(recipe))
        scripts = {*_find_scripts(words), *(str(path) for path in paths if _SCRIPT.search(path.name))}
        return cls(rules, frozenset(scripts), tuple(extra))

    def role(self, path: str) -> SealRole | None:
        """Return how a changed path grades; None if it does not."""
        for pattern in reversed(self.extra):
            if _matches(path, pattern.removeprefix("!")):
                return None if pattern.startswith("!") else "whole"
        return self._own_role(path)

    def select(self, paths: Iterable[str]) -> dict[str, SealRole]:
        """Return the paths that grade, with their roles."""
        return {path: role for path in paths if (role := self.role(path)) is not None}

    def _own_role(self, path: str) -> SealRole | None:
        if path in self.scripts:
            return "script"
        *above, name = path.split("/")
        if _PYTHON in self.rules and name.endswith((".pyc", ".pyo")):
            return "generated"
        for rules in self.rules:
            if name in rules.mixed:
                return "tables"
            if name in rules.directories or any(part in rules.directories for part in above):
                return "whole"
            if any(name.endswith(end) for end in rules.mixed_ends):
                return "tables"
            if any(_matches(path, pattern) for pattern in rules.files):
                return "whole"
        if _PYTHON in self.rules and _shadows(path):
            return "module"
        return None


def _matches(path: str, pattern: str) -> bool:
    pattern = pattern.rstrip("/")
    if fnmatchcase(path, pattern) or path.startswith(f"{pattern}/"):
        return True
    return "/" not in pattern and any(fnmatchcase(part, pattern) for part in path.split("/"))


def _shadows(path: str) -> bool:
    """Whether a path is that of a module which Python would import instead of the runner or the standard library."""
    name = path.removeprefix("src/").removesuffix("/__init__.py").removesuffix(".py")
    return name in _RUNNER_PACKAGES or name in sys.stdlib_module_names


def _find_scripts(words: Sequence[str]) -> Iterator[str]:
    """Yield the scripts that a command runs and that, by their names, check something; others may be what is tested."""
    for before, word in zip(("", *words), words, strict=False):
        is_run = "/" in word or _INTERPRETER.search(PurePosixPath(before).name)
        if is_run and _CHECKS.search(PurePosixPath(word).name):
            yield str(PurePosixPath(word))
