"""What an import costs: whoever wants a workspace loads nothing of terminals or agents, and waits for nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import forkwise

LIMIT_SECONDS = 0.100
RUNS = 7

MEASURE = """
import time
start = time.process_time()
from forkwise import Workspace
print(time.process_time() - start)
"""

LOADED = """
import json, sys
from forkwise import {name}
print(json.dumps(sorted(sys.modules)))
"""

NOT_NEEDED = {"asyncio", "click", "pydantic", "ray", "rich", "sqlite3"}
HIGHER_FLOORS = (
    "cli",
    "tui",
    "display",
    "chat",
    "live",
    "modules",
    "local_model",
    "conversation",
    "explore",
    "fork",
    "testing",
    "ledger",
    "sandbox",
)


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=compiled).stdout


@pytest.mark.parametrize("name", ["Workspace", "Branch", "ConflictError"])
def test_loads_nothing_from_the_floors_above(name: str) -> None:
    loaded = set(json.loads(run(LOADED.format(name=name))))
    assert not loaded & NOT_NEEDED
    assert not [module for module in loaded if module.startswith(tuple(f"forkwise.{f}" for f in HIGHER_FLOORS))]


def test_an_exception_loads_no_files_floor() -> None:
    loaded = json.loads(run(LOADED.format(name="ConflictError")))
    assert not [module for module in loaded if module.startswith("forkwise.files")]


def test_a_workspace_is_imported_in_under_100_ms_of_cpu() -> None:
    run("from forkwise import Workspace")  # so that the byte code is written
    assert min(float(run(MEASURE)) for _ in range(RUNS)) < LIMIT_SECONDS


def test_help_loads_neither_rich_nor_the_files_floor() -> None:
    code = """
import json, sys
from forkwise.cli import forkwise_command
try:
    forkwise_command.main(["branch", "create", "--help"], prog_name="forkwise")
except SystemExit:
    print("\\n" + json.dumps(sorted(sys.modules)))
"""
    loaded = json.loads(run(code).splitlines()[-1])
    assert not [m for m in loaded if m.split(".")[0] == "rich" or m.startswith("forkwise.files.")]


def test_every_name_can_be_had() -> None:
    for name in forkwise.__all__:
        assert getattr(forkwise, name) is not None
    assert set(dir(forkwise)) == set(forkwise.__all__)


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Wrokspace"):
        forkwise.Wrokspace  # noqa: B018
