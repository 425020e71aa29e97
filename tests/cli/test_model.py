"""``forkwise model``: fetch, find, ask and remove the small local model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise.local_model.weights import weights_path
from tests.local_model.requirements import need_local_model
from tests.local_model.wheels import RIGHT, WRONG, make_wheel, only_wheels

pytestmark = pytest.mark.integration

Run = Callable[..., Result]
Ask = Callable[..., Any]

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "size": {"type": "integer", "minimum": 3, "maximum": 5}},
    "required": ["colour", "size"],
}


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the only directory in which pip looks for packages."""
    return only_wheels(tmp_path, monkeypatch)


@pytest.fixture
def schema(project: Path) -> str:
    """Write a schema, and return the name of its file."""
    (project / "schema.json").write_text(json.dumps(SCHEMA))
    return "schema.json"


def test_fetch_path_rm(run: Run, wheels: Path) -> None:
    make_wheel(wheels, RIGHT)
    path = str(weights_path())
    assert run("model", "fetch").stdout == f"Fetched {path} (13 B)\n"
    assert run("model", "fetch").stdout == f"Already fetched: {path} (13 B)\n"
    assert run("model", "path").stdout == f"{path}\n"
    assert run("model", "rm").stdout == "Freed 13 B.\n"
    missing = run("model", "path", code=1)
    assert missing.stdout == ""
    assert "forkwise model fetch" in missing.stderr


def test_fetch_path_rm_as_json(ask: Ask, wheels: Path) -> None:
    make_wheel(wheels, RIGHT)
    path = str(weights_path())
    assert ask("model", "fetch") == {"path": path, "size": 13, "fetched": True}
    assert ask("model", "fetch") == {"path": path, "size": 13, "fetched": False}
    assert ask("model", "path") == {"path": path}
    assert ask("model", "rm") == {"freed": 13}
    assert ask("model", "path", code=1)["error"]["remedy"] == "run: forkwise model fetch"


def test_fetch_quietly(run: Run, wheels: Path) -> None:
    make_wheel(wheels, RIGHT)
    said = run("model", "fetch", "--quiet")
    assert (said.stdout, said.stderr) == ("", "")
    assert weights_path().read_bytes() == RIGHT


def test_fetch_on_a_terminal_shows_how_far_it_is(run: Run, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(wheels, RIGHT)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "92.9/92.9 MB" in run("model", "fetch").stdout


def test_fetch_of_the_wrong_thing(run: Run, wheels: Path) -> None:
    make_wheel(wheels, WRONG)
    assert "were deleted" in run("model", "fetch", "--quiet", code=1).stderr
    assert not weights_path().exists()


def test_ask(run: Run) -> None:
    need_local_model()
    assert run("model", "ask", "Say hello.", "--max-tokens", "8").stdout.strip()


def test_ask_as_json(ask: Ask) -> None:
    need_local_model()
    assert list(ask("model", "ask", "Say hello.", "--max-tokens", "8")) == ["answer"]


def test_ask_with_a_schema(run: Run, schema: str) -> None:
    need_local_model()
    answer = json.loads(run("model", "ask", "--schema", schema, "A pear.").stdout)
    assert answer["colour"] in {"red", "green"}
    assert answer["size"] in range(3, 6)


def test_an_answer_that_is_cut_off_fills_no_schema(run: Run, schema: str) -> None:
    need_local_model()
    assert "no answer" in run("model", "ask", "--schema", schema, "--max-tokens", "2", "A pear.", code=1).stderr


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"type": "string"}'])
def test_an_invalid_schema(run: Run, project: Path, text: str) -> None:
    (project / "schema.json").write_text(text)
    assert "schema.json is not" in run("model", "ask", "--schema", "schema.json", "A pear.", code=2).stderr


@pytest.mark.usefixtures("wheels")
def test_ask_without_weights(run: Run) -> None:
    assert "forkwise model fetch" in run("model", "ask", "Say hello.", code=1).stderr


def test_the_command_line_loads_no_agents() -> None:
    code = "import json, sys, forkwise.cli.verbs; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
    assert "forkwise.cli.commands.agent.model" in loaded
    assert not [name for name in loaded if name.startswith(("pydantic_ai", "openai", "forkwise.modules"))]
