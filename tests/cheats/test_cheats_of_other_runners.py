"""The same as ``test_cheats`` for runners that need large toolchains."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.cheats.programs import Program, Suite, check_cheat, check_honest, parameters
from tests.need import need

RUNNERS = ("cargo", "go", "jest", "vitest")
PROGRAMS = {"cargo": "cargo", "go": "go", "jest": "npm", "vitest": "npm"}

pytestmark = pytest.mark.integration


def _add_packages(name: str) -> Callable[[Path], None]:
    def install(directory: Path) -> None:
        words = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-save", name]
        done = subprocess.run(words, cwd=directory, capture_output=True, text=True)
        need(done.returncode == 0, f"npm could not install {name}: {done.stderr[-300:]}")

    return install


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Suite]:
    prepare = {name: _add_packages(name) for name in ("jest", "vitest")}
    return {
        runner: Suite(runner, tmp_path_factory.mktemp(runner), prepare.get(runner, lambda _: None))
        for runner in RUNNERS
    }


@pytest.fixture(autouse=True, scope="module")
def _use_programs_that_work() -> Iterator[None]:
    """Put directories of programs that work first on PATH: that of rustup may contain stand-ins without a toolchain."""
    found = [path for program in ("cargo", "go", "npm") if (path := _find_working(program)) is not None]
    with pytest.MonkeyPatch.context() as patch:
        for path in found:
            patch.setenv("PATH", str(path.parent), prepend=":")
        yield


@cache
def _find_working(program: str) -> Path | None:
    for directory in (*os.get_exec_path(), "/usr/bin"):
        path = Path(directory) / program
        words = [path, "version" if program == "go" else "--version"]
        if path.is_file() and subprocess.run(words, capture_output=True).returncode == 0:
            return path
    return None


@pytest.fixture(autouse=True)
def _need_runner(runner: str) -> None:
    need(_find_working(PROGRAMS[runner]) is not None, f"{PROGRAMS[runner]} is not installed, or does not work")


@pytest.mark.parametrize(("runner", "program"), parameters(RUNNERS, "cheats"))
def test_a_cheat_does_not_win(runner: str, program: Program, suites: dict[str, Suite]) -> None:
    check_cheat(suites[runner], program)


@pytest.mark.parametrize(("runner", "program"), parameters(RUNNERS, "honest"))
def test_an_honest_attempt_is_judged_right(runner: str, program: Program, suites: dict[str, Suite]) -> None:
    check_honest(suites[runner], program)
