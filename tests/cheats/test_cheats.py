"""Candidates that try to deceive the tests, and honest ones: no cheat succeeds, and the honest are judged right.

``make test`` judges the programs of make and unittest. ``make test-integration`` judges the others: those of pytest are
many, and the other runners need large toolchains.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.cheats.programs import Program, Suite, add_python, check_cheat, check_honest, parameters
from tests.need import need

# The first test of a project waits until all of its programs were judged, on a busy machine for several minutes.
pytestmark = pytest.mark.timeout(1800)

TOOLCHAINS = {"cargo": "cargo", "go": "go", "jest": "npm", "node": "node", "vitest": "npm"}
"""The runners that need a large toolchain, and its program."""


IN_INTEGRATION = {*TOOLCHAINS, "pytest"}


def _add_package(directory: Path, name: str) -> None:
    words = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-save", name]
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True)
    need(done.returncode == 0, f"npm could not install {name}: {done.stderr[-300:]}")


PREPARATIONS = {
    "make": add_python,
    "pytest": add_python,
    "unittest": add_python,
    "cargo": lambda directory: None,
    "go": lambda directory: None,
    "jest": lambda directory: _add_package(directory, "jest"),
    "node": lambda directory: None,
    "vitest": lambda directory: _add_package(directory, "vitest"),
}
"""Every runner, and what its projects need beside their own files."""


@cache
def _find_working(program: str) -> Path | None:
    """Find a program that works on the path: rustup may have put stand-ins without a toolchain there."""
    for directory in (*os.get_exec_path(), "/usr/bin"):
        path = Path(directory) / program
        words = [path, "version" if program == "go" else "--version"]
        if path.is_file() and subprocess.run(words, capture_output=True).returncode == 0:
            return path
    return None


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Suite]:
    return {name: Suite(name, tmp_path_factory.mktemp(name), prepare) for name, prepare in PREPARATIONS.items()}


@pytest.fixture
def suite(runner: str, suites: dict[str, Suite], monkeypatch: pytest.MonkeyPatch) -> Suite:
    if program := TOOLCHAINS.get(runner):
        path = _find_working(program)
        need(path is not None, f"{program} is not installed, or does not work")
        monkeypatch.setenv("PATH", str(path.parent), prepend=":")
    return suites[runner]


@pytest.mark.parametrize(("runner", "program"), parameters(PREPARATIONS, "cheats", integration=IN_INTEGRATION))
def test_a_cheat_does_not_win(suite: Suite, program: Program) -> None:
    check_cheat(suite, program)


@pytest.mark.parametrize(("runner", "program"), parameters(PREPARATIONS, "honest", integration=IN_INTEGRATION))
def test_an_honest_attempt_is_judged_right(suite: Suite, program: Program) -> None:
    check_honest(suite, program)
