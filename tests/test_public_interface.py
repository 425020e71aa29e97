"""The rules a review would ask about, as tests, so that nobody has to ask."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Literal, get_origin

import pytest

import forkwise
from forkwise import errors

ROOT = Path(forkwise.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
MAX_LINES = 800
VAGUE = {"utils", "util", "helpers", "helper", "manager", "common", "misc", "base", "core"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


by_module = pytest.mark.parametrize("path", MODULES, ids=name_of)


@by_module
def test_a_module_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    if not text.strip():
        pytest.fail(f"{path} is empty: give it a docstring that says what the folder holds")
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring, f"{path} has no docstring"
    assert docstring.splitlines()[0].strip()


@by_module
def test_a_module_holds_one_noun(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{path} has {lines} lines: look for the seam between its two nouns"


@by_module
def test_a_module_is_named_after_a_noun(path: Path) -> None:
    assert path.stem.strip("_").lower() not in VAGUE


@by_module
def test_what_a_module_offers_is_sorted_documented_and_there(path: Path) -> None:
    module = importlib.import_module(name_of(path))
    names: list[str] = getattr(module, "__all__", [])
    assert names == sorted(names, key=_isort_style), f"{module.__name__}.__all__ is not sorted"
    assert len(names) == len(set(names))
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{module.__name__}.{name} has no docstring"


@pytest.mark.parametrize("name", [n for n in forkwise.__all__ if not n.startswith("__")])
def test_public_classes_and_their_members_are_documented(name: str) -> None:
    value = getattr(forkwise, name)
    if get_origin(value) is Literal:
        return  # an alias has no place for a docstring
    assert inspect.getdoc(value)
    if not inspect.isclass(value):
        return
    for member, thing in vars(value).items():
        if not member.startswith("_") and (inspect.isfunction(thing) or isinstance(thing, property | classmethod)):
            assert inspect.getdoc(thing), f"{name}.{member} has no docstring"


def test_every_exception_is_exported() -> None:
    assert set(errors.__all__) <= set(forkwise.__all__)


def test_the_tree_of_exceptions() -> None:
    parents = {
        "MountError": "BranchingError",
        "BranchError": "BranchingError",
        "BranchStaleError": "BranchError",
        "BranchNotFoundError": "BranchError",
        "CommitError": "BranchError",
        "ConflictError": "CommitError",
        "AbortError": "BranchError",
        "ProcessBranchError": "BranchingError",
        "ForkError": "ProcessBranchError",
        "NamespaceError": "ProcessBranchError",
        "MemoryBranchError": "BranchingError",
    }
    for child, parent in parents.items():
        assert getattr(errors, child).__base__ is getattr(errors, parent)
    assert errors.ForkwiseError is errors.BranchingError


def _isort_style(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, as the linter sorts them."""
    if name.isupper() and len(name) > 1:
        return 0, name
    return (1 if name[:1].isupper() else 2), name
