"""The cost of an import: a workspace loads no code of terminals or agents, and few modules altogether."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import forkwise

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"

MOST_MODULES = 150
"""Modules, the standard library's included, that a workspace may load; 113 when this was written, in 70 ms of CPU."""

COUNT = """
import sys
before = set(sys.modules)
from forkwise import Workspace
print(len(set(sys.modules) - before))
"""

LOADED = """
import json, sys
from forkwise import {name}
print(json.dumps(sorted(sys.modules)))
"""

NOT_NEEDED = {"asyncio", "click", "pydantic", "ray", "rich", "sqlite3"}


def read_floors_above_files() -> tuple[str, ...]:
    """Read which packages are above ``files`` from the import contract."""
    contracts = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "floors")
    return tuple(re.findall(r"\w+", " ".join(layers[: layers.index("files")])))


HIGHER_FLOORS = read_floors_above_files()


def run(code: str) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=compiled).stdout


@pytest.mark.parametrize("name", ["Workspace", "Branch", "ConflictError"])
def test_loads_nothing_from_the_floors_above(name: str) -> None:
    loaded = set(json.loads(run(LOADED.format(name=name))))
    assert not loaded & NOT_NEEDED
    assert not [module for module in loaded if module.startswith(tuple(f"forkwise.{floor}" for floor in HIGHER_FLOORS))]


def test_an_exception_loads_no_files_floor() -> None:
    loaded = json.loads(run(LOADED.format(name="ConflictError")))
    assert not [module for module in loaded if module.startswith("forkwise.files")]


def test_a_workspace_loads_few_modules() -> None:
    assert int(run(COUNT)) <= MOST_MODULES


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


def test_every_public_name_is_loaded() -> None:
    for name in forkwise.__all__:
        assert getattr(forkwise, name) is not None
    assert set(dir(forkwise)) == set(forkwise.__all__)


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Wrokspace"):
        forkwise.Wrokspace  # noqa: B018


WITHOUT_PYDANTIC_AI = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "pydantic_ai" else find_spec(name, *rest)
sys.modules["pydantic_ai"] = None
from forkwise import *
print(Workspace.__name__, "Module" in globals())
try:
    from forkwise import Module
except ImportError as error:
    print(error)
"""


def test_a_star_import_works_without_the_extra_for_agents() -> None:
    assert run(WITHOUT_PYDANTIC_AI).splitlines() == [
        "Workspace False",
        "Module needs pydantic-ai: pip install 'forkwise[agents]'",
    ]
