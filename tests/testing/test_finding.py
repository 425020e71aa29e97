"""Detection of the test command of a project."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from forkwise.testing import find_test_command

PYTEST = "python3 -m pytest -q"
NOWHERE = {"PATH": "/nowhere"}


def fill(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def package(script: str) -> str:
    return json.dumps({"scripts": {"test": script}})


@pytest.mark.parametrize(
    ("files", "text", "framework", "how"),
    [
        (
            {"pyproject.toml": "[tool.pytest.ini_options]\n"},
            PYTEST,
            "pytest",
            "pyproject.toml has [tool.pytest.ini_options]",
        ),
        ({"pyproject.toml": "[tool.pytest]\n"}, PYTEST, "pytest", "pyproject.toml has [tool.pytest]"),
        ({"pytest.ini": ""}, PYTEST, "pytest", "there is pytest.ini"),
        ({"tox.ini": "[tox]\n[pytest]\n"}, PYTEST, "pytest", "tox.ini has [pytest]"),
        ({"setup.cfg": "[tool:pytest]\nx = 50%\n"}, PYTEST, "pytest", "setup.cfg has [tool:pytest]"),
        ({"conftest.py": ""}, PYTEST, "pytest", "there is conftest.py"),
        (
            {"setup.py": "", "tests/unit/test_it.py": ""},
            PYTEST,
            "pytest",
            "it is a Python project with tests/unit/test_it.py",
        ),
        ({"package.json": package("jest")}, "npm test", "jest", "package.json has a script test"),
        (
            {"package.json": package("eslint . && vitest run"), "pnpm-lock.yaml": ""},
            "pnpm test",
            "vitest",
            "package.json has a script test",
        ),
        ({"package.json": package("mocha"), "yarn.lock": ""}, "yarn test", None, "package.json has a script test"),
        ({"package.json": package("go test"), "bun.lock": ""}, "bun run test", None, "package.json has a script test"),
        ({"Cargo.toml": "[package]\n"}, "cargo test --no-fail-fast", "cargo", "Cargo.toml has [package]"),
        (
            {"Cargo.toml": "[package]\n[workspace]\n"},
            "cargo test --workspace --no-fail-fast",
            "cargo",
            "Cargo.toml has [workspace]",
        ),
        ({"go.mod": "module x\n"}, "go test -json ./...", "go", "there is go.mod"),
        ({"Makefile": ".PHONY: test\ntest : build\n\techo\n"}, "make test", None, "Makefile has a target test"),
    ],
)
def test_found(tmp_path: Path, files: dict[str, str], text: str, framework: str | None, how: str) -> None:
    fill(tmp_path, files)
    command = find_test_command(tmp_path, environ=NOWHERE)
    assert command
    assert (command.text, command.framework, command.how_found) == (text, framework, how)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"README.md": "run pytest"},
        {"pyproject.toml": "[project]\n", "src/it.py": ""},
        {"tests/helper.py": ""},
        {"tox.ini": "[tox]\n"},
        {"package.json": package('echo "Error: no test specified" && exit 1')},
        {"package.json": package(" ")},
        {"package.json": '{"scripts": {"test": 3}}'},
        {"Makefile": "test := 3\ntests:\n\techo\n"},
        {"GNUmakefile": "all:\n", "Makefile": "test:\n\techo\n"},
        {"pyproject.toml": "[tool.pytest", "setup.cfg": "[[", "package.json": "{", "Cargo.toml": "\xff"},
        {"pyproject.toml": "a = " + "[" * 5000, "package.json": "[" * 100_000},
    ],
)
def test_not_plain(tmp_path: Path, files: dict[str, str]) -> None:
    fill(tmp_path, files)
    assert find_test_command(tmp_path) is None


def test_precedence(tmp_path: Path) -> None:
    everything = {
        "pytest.ini": "",
        "package.json": package("jest"),
        "Cargo.toml": "[package]",
        "go.mod": "",
        "Makefile": "test:\n",
    }
    fill(tmp_path, everything)
    found = []
    for name in everything:
        command = find_test_command(tmp_path, environ=NOWHERE)
        assert command
        found.append(command.text.split()[0])
        (tmp_path / name).unlink()
    assert found == ["python3", "npm", "cargo", "go", "make"]


def test_the_projects_own_environment_runs_pytest_if_it_has_it(tmp_path: Path) -> None:
    fill(tmp_path, {"pytest.ini": "", ".venv/bin/python": "", ".venv/lib/python3.11/site-packages/x.py": ""})
    without = find_test_command(tmp_path, environ=NOWHERE)
    fill(tmp_path, {".venv/lib/python3.11/site-packages/pytest/__init__.py": ""})
    having = find_test_command(tmp_path, environ=NOWHERE)
    assert without
    assert without.text == PYTEST
    assert having
    assert having.text == ".venv/bin/python -m pytest -q"
    assert having.framework == "pytest"


def test_an_environment_above_the_subdirectory_runs_pytest(tmp_path: Path) -> None:
    top = tmp_path / "top"
    venv = {"bin/python": "", "lib/python3.11/site-packages/pytest/__init__.py": ""}
    fill(top, {"apps/web/pytest.ini": "", **{f".venv/{name}": text for name, text in venv.items()}})
    fill(tmp_path, {f"venv/{name}": text for name, text in venv.items()})
    below = find_test_command(top / "apps/web", environ=NOWHERE, top=top)
    assert below
    assert (below.text, below.framework) == ("../../.venv/bin/python -m pytest -q", "pytest")
    for highest in (None, top / "apps", tmp_path / "elsewhere"):
        found = find_test_command(top / "apps/web", environ=NOWHERE, top=highest)
        assert found
        assert found.text == PYTEST, "an environment outside the workspace is not used"
    fill(top / "apps", {f"venv/{name}": text for name, text in venv.items()})
    nearest = find_test_command(top / "apps/web", environ=NOWHERE, top=top)
    assert nearest
    assert nearest.text == "../venv/bin/python -m pytest -q"


@pytest.mark.parametrize(
    ("programs", "text"),
    [
        ({"a/pytest": "", "b/python3": ""}, "pytest -q"),
        ({"a/pytest": "", "a/python3": ""}, PYTEST),
        ({"b/python3": ""}, PYTEST),
    ],
)
def test_the_pytest_of_the_path(tmp_path: Path, programs: dict[str, str], text: str) -> None:
    fill(tmp_path, {"pytest.ini": "", **programs})
    for name in programs:
        (tmp_path / name).chmod(0o755)
    command = find_test_command(tmp_path, environ={"PATH": os.pathsep.join(f"{tmp_path}/{d}" for d in "ab")})
    assert command
    assert command.text == text


def test_detected_commands_write_a_report(tmp_path: Path) -> None:
    fill(tmp_path, {"package.json": package("jest")})
    command = find_test_command(tmp_path, junit="/out/junit.xml")
    assert command
    assert command.junit == "/out/junit.xml"
    assert shlex.split(command.env["PYTEST_ADDOPTS"])[0] == "--junitxml=/out/junit.xml"
    assert command.env["CI"] == "true"
