"""Programs that try to be judged better than they are, and honest ones beside them, as files.

``RUNNER/projects/NAME.sh`` builds a small project in an empty directory; one of its tests fails. ``RUNNER/cheats/`` and
``RUNNER/honest/`` hold the candidates, one program each. The comment lines at the beginning of a file are its
description and its settings:

- ``command`` (projects): the test command. Without one, it is detected.
- ``extends`` (projects): the project that is built before this one.
- ``project`` (candidates): the project that the program is meant for; ``plain`` by default.
- ``unsealed`` (candidates): the user accepts changes of the tests.
- ``expect`` (honest candidates): ``succeeded`` by default, or ``failed``, or ``succeeded, not the winner``.

``RUNNER/preamble.sh`` comes before every candidate of the runner: shell functions that several of them use.

All candidates for one project are attempts of one fork, so that a suite of many programs stays cheap.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from forkwise import Speculate, SpeculationOutcome, Tests, Workspace

__all__ = ["Program", "Suite", "add_python", "check_cheat", "check_honest", "find_programs", "parameters"]

ROOT = Path(__file__).parent
FIX = "fix"
"""The honest candidate that does nothing but what was asked for: one is in every fork."""

_PACKAGES = ("_pytest", "iniconfig", "packaging", "pluggy", "py", "pygments", "pytest", "exceptiongroup", "tomli")


@dataclass(frozen=True)
class Program:
    """A shell program: its name, its text, and the settings in its first lines."""

    name: str
    text: str
    settings: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Program:
        text = path.read_text()
        preamble = path.parent.parent / "preamble.sh"
        settings = {}
        for line in text.splitlines():
            if not line.startswith("# "):
                break
            key, separator, value = line[2:].partition(": ")
            if separator or key == "unsealed":
                settings[key] = value
        if path.parent.name != "projects" and preamble.exists():
            text = preamble.read_text() + text
        return cls(path.stem, text, settings)

    @property
    def project(self) -> str:
        return self.settings.get("project", "plain")

    @property
    def is_unsealed(self) -> bool:
        return "unsealed" in self.settings

    @property
    def expected(self) -> str:
        return self.settings.get("expect", "succeeded")

    def run(self, directory: Path) -> None:
        subprocess.run(["sh", "-euc", self.text], cwd=directory, check=True)


def find_programs(runner: str, kind: str) -> list[Program]:
    return [Program.read(path) for path in sorted((ROOT / runner / kind).glob("*.sh"))]


class Suite:
    """The programs of one runner, judged when first asked for, one fork for each project."""

    def __init__(self, runner: str, directory: Path, prepare: Callable[[Path], None] = lambda _: None) -> None:
        self.runner = runner
        self._directory = directory
        self._prepare = prepare
        self._outcomes: dict[tuple[str, bool], tuple[list[Program], SpeculationOutcome]] = {}

    def judge(self, project: str, is_unsealed: bool = False) -> tuple[list[Program], SpeculationOutcome]:
        """Return the candidates for a project in their order, and the outcome of their fork."""
        key = project, is_unsealed
        if key not in self._outcomes:
            found = [program for kind in ("cheats", "honest") for program in find_programs(self.runner, kind)]
            candidates = [program for program in found if (program.project, program.is_unsealed) == key]
            fix = next(program for program in found if program.name == FIX)
            if fix not in candidates and not is_unsealed:
                candidates.append(fix)
            directory = self._directory / f"{project}-unsealed" if is_unsealed else self._directory / project
            directory.mkdir()
            self._prepare(directory)
            command = self._build(project, directory)
            workspace = Workspace(directory, durable=False)
            tests = Tests(command)
            words = [["sh", "-euc", program.text] for program in candidates]
            speculate = Speculate(
                words, first_wins=False, evaluate=tests, commit=False, max_parallel=2 * (os.cpu_count() or 1)
            )
            self._outcomes[key] = candidates, speculate(workspace)
        return self._outcomes[key]

    def _build(self, project: str, directory: Path) -> str | None:
        program = Program.read(ROOT / self.runner / "projects" / f"{project}.sh")
        if base := program.settings.get("extends"):
            self._build(base, directory)
        program.run(directory)
        return program.settings.get("command")


def parameters(runners: Iterable[str], kind: str, integration: Collection[str] = ()) -> list[ParameterSet]:
    """Return the parameters of a test for every program of these runners. Those in ``integration`` get that marker."""
    return [
        pytest.param(
            runner,
            program,
            id=f"{runner}-{program.name}",
            marks=[pytest.mark.integration] if runner in integration else [],
        )
        for runner in runners
        for program in find_programs(runner, kind)
    ]


def check_cheat(suite: Suite, program: Program) -> None:
    """Assert that a cheat is judged as one: it does not succeed, and an honest attempt wins."""
    candidates, outcome = suite.judge(program.project)
    result = outcome.all_results[candidates.index(program)]
    assert not result.success, result.tests
    assert result.tests is not None, f"it has to fail by the tests, not because {result.reason}"
    assert outcome.winner is not None
    assert candidates[outcome.winner.branch_index].name in {one.name for one in find_programs(suite.runner, "honest")}


def check_honest(suite: Suite, program: Program) -> None:
    """Assert that an honest attempt is judged as its file says."""
    candidates, outcome = suite.judge(program.project, program.is_unsealed)
    result = outcome.all_results[candidates.index(program)]
    assert result.success == program.expected.startswith("succeeded"), result.reason
    assert outcome.winner is not None
    if "not the winner" in program.expected:
        assert candidates[outcome.winner.branch_index] != program


def add_python(directory: Path) -> None:
    """Add a virtual environment with pytest and nothing else: other plugins would only cost time."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = directory / ".venv/lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (directory / ".venv/bin").mkdir()
    (directory / ".venv/bin/python").symlink_to(os.path.realpath(sys.executable))
    home = os.path.dirname(os.path.realpath(sys.executable))
    (directory / ".venv/pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            origin = Path(spec.origin)
            source = origin.parent if origin.name == "__init__.py" else origin
            (packages / source.name).symlink_to(source)
