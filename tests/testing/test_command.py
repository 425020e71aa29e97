"""The framework that a command is recognised as, and how it is made to report."""

from __future__ import annotations

import shlex

import pytest

from forkwise.testing import for_command

JUNIT = "/out/junit.xml"


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("pytest", "pytest"),
        ("py.test -x", "pytest"),
        ("python -m pytest -q tests", "pytest"),
        ("python3.12 -I -m pytest", "pytest"),
        (".venv/bin/pytest -q", "pytest"),
        ("/usr/bin/env python3 -m pytest", "pytest"),
        ("PYTHONPATH=. DEBUG=1 pytest", "pytest"),
        ("uv run pytest", "pytest"),
        ("uv run --frozen pytest", "pytest"),
        ("poetry run python -m pytest", "pytest"),
        ("timeout 60 pytest", "pytest"),
        ("coverage run --branch -m pytest", "pytest"),
        ("cd 'my project' && pytest -q", "pytest"),
        ("pip install -e . && pytest -q && echo fine", "pytest"),
        ("pytest -q | tee log; exit 0", "pytest"),
        ("cd x\npytest\n", "pytest"),
        ("python -m unittest discover", "unittest"),
        ("cargo test --workspace", "cargo"),
        ("cd a#b; cargo test", "cargo"),
        ("cd api && go test -json ./...", "go"),
        ("npx jest --ci", "jest"),
        ("yarn jest", "jest"),
        ("node_modules/.bin/vitest run", "vitest"),
        ("pnpm exec vitest", "vitest"),
        # If a report may not reach the output, none is expected.
        ("make test", None),
        ("npm test", None),
        ("pip install pytest", None),
        ("uv pip install pytest", None),
        ("echo pytest", None),
        ("python run.py -m pytest", None),
        ("cargo build", None),
        ("cargo test | tail -3", None),
        ("cargo test > log", None),
        ("test -e done || cargo test", None),
        ("python -c pytest", None),
        ("cargo test; true", None),
        ("cargo test && ./more", None),
        ("vitest run --reporter=dot", None),
        ("jest --reporters=./mine", None),
        ("echo 'unbalanced", None),
    ],
)
def test_the_framework_whose_report_is_expected(text: str, framework: str | None) -> None:
    command = for_command(text)
    assert command.framework == framework
    assert command.text == text
    assert command.argv == ("/bin/sh", "-c", text)


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("go test ./...", "go test -json ./..."),
        ("cd api && CGO_ENABLED=0 go test", "cd api && CGO_ENABLED=0 go test -json"),
    ],
)
def test_go_is_asked_for_its_events(text: str, becomes: str) -> None:
    command = for_command(text)
    assert (command.text, command.framework) == (becomes, "go")


@pytest.mark.parametrize("text", ["go test ./... | grep ok", "go  test", "echo go test && go test", "go test; true"])
def test_go_is_left_alone_where_that_is_not_plainly_safe(text: str) -> None:
    command = for_command(text)
    assert (command.text, command.framework) == (text, None)


@pytest.mark.parametrize("text", ["pytest", "make test"])
def test_pytest_is_asked_for_a_report_wherever_it_may_run(text: str) -> None:
    command = for_command(text, junit=JUNIT)
    assert command.junit == JUNIT
    assert shlex.split(command.env["PYTEST_ADDOPTS"])[0] == f"--junitxml={JUNIT}"


def test_a_path_with_spaces_is_one_word() -> None:
    command = for_command("pytest", junit="/my out/junit.xml")
    assert shlex.split(command.env["PYTEST_ADDOPTS"])[0] == "--junitxml=/my out/junit.xml"


def test_options_that_are_there_come_first() -> None:
    command = for_command("pytest", junit=JUNIT, environ={"PYTEST_ADDOPTS": "-x --tb 'short'"})
    assert command.env["PYTEST_ADDOPTS"].startswith(f"-x --tb 'short' --junitxml={JUNIT} ")


def test_without_a_path_nothing_is_asked_for() -> None:
    command = for_command("pytest", environ={"PYTEST_ADDOPTS": "-x"})
    assert (command.junit, command.env) == (None, {})


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_command_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="test command is empty"):
        for_command(text)
