"""A small project to run the command line on, and two ways of running it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from forkwise import Workspace
from forkwise.cli import forkwise_command
from forkwise.linux import namespace
from tests.need import need

FILES = {"a.txt": "one\n", "b.txt": "two\n", "sub/c.txt": "three\n"}


@pytest.fixture(autouse=True, scope="session")
def private_mounts() -> None:
    """Without root, enter the namespace that commands enter, while this process has one thread, as a command has."""
    if os.geteuid() != 0 and threading.active_count() == 1 and namespace.available():
        namespace.enter_namespace()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the state of forkwise in the test's own directory, and its output free of colours."""
    place = tmp_path / "state"
    monkeypatch.setenv("FORKWISE_STATE", str(place))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("FORCE_COLOR", "COLORTERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return place


@pytest.fixture
def project(tmp_path: Path, state: Path) -> Iterator[Path]:
    """Create a workspace, and drop all of its branches afterwards."""
    root = tmp_path / "project"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    yield root
    for branch in reversed(Workspace(root).branches()):
        branch.abort()


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command line in this process, with the project as current directory."""
    monkeypatch.chdir(project)

    def run(*words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(forkwise_command, list(words))
        said = result.stdout + result.stderr  # with --json, errors are on standard output
        need("and may have only one" not in said, "a process with threads cannot enter a user namespace")
        assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
        return result

    return run


@pytest.fixture
def ask(run: Callable[..., Result]) -> Callable[..., Any]:
    """Run the command line with ``--json``, and return the document that it prints."""

    def ask(*words: str, code: int = 0) -> Any:
        at = words.index("--") if "--" in words else len(words)
        document = json.loads(run(*words[:at], "--json", *words[at:], code=code).stdout)
        if isinstance(document, dict) and document.get("branch", {}).get("path", "") is None:
            need(os.geteuid() == 0, "without privileges a branch is visible only inside a sandbox")
        return document

    return ask


@pytest.fixture
def command(project: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line as a process of its own."""

    def command(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", "from forkwise.cli import main; main()", *words]
        return subprocess.run(program, cwd=project, capture_output=True, text=True, env=dict(os.environ), **options)

    return command
