"""The same as ``test_cheats`` for runners that need large toolchains."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
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


@pytest.fixture(autouse=True)
def _need_runner(runner: str) -> None:
    need(shutil.which(PROGRAMS[runner]) is not None, f"{PROGRAMS[runner]} is not installed")


@pytest.mark.parametrize(("runner", "program"), parameters(RUNNERS, "cheats"))
def test_a_cheat_does_not_win(runner: str, program: Program, suites: dict[str, Suite]) -> None:
    check_cheat(suites[runner], program)


@pytest.mark.parametrize(("runner", "program"), parameters(RUNNERS, "honest"))
def test_an_honest_attempt_is_judged_right(runner: str, program: Program, suites: dict[str, Suite]) -> None:
    check_honest(suites[runner], program)
