"""Bug: a small program with one fault, its tests, its fix, and patches that do not fix it.

The programs are the files in ``bugs``. Of each, an attempt sees the module and the visible tests. The held-out tests
tell a fix from a patch that only satisfies the visible ones.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["Bug", "Kind", "Patch", "Project", "failing_cases", "load_bugs", "write_project"]

#: Files of a project by name.
Project = dict[str, str]
Kind = Literal["fix", "wrong", "cheat"]


@dataclass(frozen=True, slots=True)
class Patch:
    """What one attempt does to a project: files to write, and files to delete (None)."""

    name: str
    kind: Kind
    files: dict[str, str | None]

    @property
    def is_fix(self) -> bool:
        return self.kind == "fix"

    def apply(self, directory: Path) -> None:
        """Write the patch into a directory that contains the project."""
        for name, content in self.files.items():
            if content is None:
                (directory / name).unlink()
            else:
                (directory / name).write_text(content)


@dataclass(frozen=True, slots=True)
class Bug:
    """A program with one fault. ``visible`` and ``held_out`` are expressions that are true if the program is right."""

    name: str
    about: str
    module: str
    fixed: str
    wrong: tuple[str, ...]
    visible: tuple[str, ...]
    held_out: tuple[str, ...]

    @property
    def module_file(self) -> str:
        return f"{self.name}.py"

    @property
    def test_file(self) -> str:
        return f"test_{self.name}.py"

    @property
    def project(self) -> Project:
        """The files that every attempt starts from. The second test file has a test that passes before any change."""
        return {
            self.module_file: self.module,
            self.test_file: self.write_tests(self.visible),
            "test_documentation.py": (
                f"import {self.name}\n\n\ndef test_documentation():\n    assert {self.name}.__doc__\n"
            ),
        }

    @property
    def patches(self) -> list[Patch]:
        """The fix and the wrong patches; the cheats are in ``cheat``."""
        wrong = [Patch(f"wrong-{i}", "wrong", {self.module_file: text}) for i, text in enumerate(self.wrong, 1)]
        return [Patch("fix", "fix", {self.module_file: self.fixed}), *wrong]

    def write_tests(self, cases: Sequence[str]) -> str:
        """Return a test module with one test for each case."""
        tests = "".join(f"\n\ndef test_{i}():\n    assert {case}\n" for i, case in enumerate(cases, 1))
        return f"from {self.name} import *\n{tests}"


def load_bugs() -> list[Bug]:
    """Read all bugs, sorted by name."""
    return [_load(path) for path in sorted((Path(__file__).parent / "bugs").glob("*.toml"))]


def _load(path: Path) -> Bug:
    data = tomllib.loads(path.read_text())
    module = data["module"]

    def edit(old: str, new: str) -> str:
        if module.count(old) != 1:
            raise ValueError(f"{path.name}: {old!r} occurs {module.count(old)} times in the module, not once")
        return str(module.replace(old, new))

    return Bug(
        path.stem,
        data["about"],
        module,
        edit(*data["fix"]),
        tuple(edit(*one) for one in data["wrong"]),
        tuple(data["visible"]),
        tuple(data["held_out"]),
    )


def write_project(bug: Bug, directory: Path) -> None:
    """Write the files of a bug's project into a directory."""
    for name, content in bug.project.items():
        (directory / name).write_text(content)


def failing_cases(module: str, cases: Sequence[str]) -> list[str]:
    """Execute a module in this process and return the cases that do not hold; for the programs of ``bugs`` only."""
    names: dict[str, Any] = {"__name__": "bug"}
    exec(module, names)
    return [case for case in cases if not _holds(lambda: eval(case, names))]  # noqa: B023


def _holds(test: Callable[[], object]) -> bool:
    try:
        return bool(test())
    except Exception:  # noqa: BLE001 - whatever a wrong program raises, the case does not hold
        return False
