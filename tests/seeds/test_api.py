"""The API reference of BranchContext's README: names, parameters with their defaults, fields, and exceptions."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import forkwise
from forkwise import SpeculationOutcome, SpeculationResult, Workspace
from forkwise.explore.pattern import Pattern

PATTERNS = {
    "Speculate": "(candidates, *, first_wins=True, max_parallel=None, isolate_processes=False, timeout=None)",
    "BestOfN": "(task, n=3, *, timeout=None)",
    "Reflexion": "(task, max_retries=3, *, critique=None)",
    "TreeOfThoughts": "(strategies, *, evaluate=None, expand=None, max_depth=1, timeout=None)",
    "Tournament": "(task, n=4, *, judge, timeout=None)",
}
METHODS = {
    "Workspace.branch": "(self, name, on_success='commit', on_error='abort')",
    "Branch.branch": "(self, name)",
    "Branch.commit": "(self)",
    "Branch.abort": "(self)",
    "BranchContext": "(target, workspace, *, close_fds=False)",
    "BranchContext.create": "(targets, workspaces, *, close_fds=False)",
    "BranchContext.wait": "(self, timeout=None)",
    "BranchContext.abort": "(self, timeout=5.0)",
}
PROPERTIES = {
    "Workspace": ("path", "fstype"),
    "Branch": ("name", "path", "branch_path"),
    "BranchContext": ("pid", "alive"),
}
EXCEPTIONS = """
BranchingError                  # base for all errors
├── MountError                  # filesystem mount/unmount failed
├── BranchError                 # branch operation failed
│   ├── BranchStaleError        # a sibling branch was already committed
│   ├── BranchNotFoundError     # branch does not exist
│   ├── CommitError             # commit failed
│   │   └── ConflictError       # another branch already committed
│   └── AbortError              # abort failed
├── ProcessBranchError          # sandboxed child process failed
│   ├── ForkError               # fork() failed
│   └── NamespaceError          # sandbox setup failed
└── MemoryBranchError           # memory branching failed
"""


def _find(path: str) -> Any:
    found: Any = forkwise
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _documented(signature: str) -> list[inspect.Parameter]:
    names: dict[str, Any] = {}
    exec(f"def documented{signature}: ...", names)
    return list(inspect.signature(names["documented"]).parameters.values())


@pytest.mark.parametrize(("name", "signature"), METHODS.items(), ids=list(METHODS))
def test_signatures(name: str, signature: str) -> None:
    """ "`on_success` accepts `"commit"` or `None`. `on_error` accepts `"abort"` or `None`."."""
    found = inspect.signature(_find(name)).parameters
    for parameter in _documented(signature):
        assert found[parameter.name].default == parameter.default
        assert found[parameter.name].kind == parameter.kind


@pytest.mark.parametrize(("name", "signature"), PATTERNS.items(), ids=list(PATTERNS))
def test_patterns(name: str, signature: str) -> None:
    """ "All patterns: instantiate with config, call with a `Workspace`, get a `SpeculationOutcome`."."""
    own = inspect.signature(_find(name)).parameters
    common = inspect.signature(Pattern).parameters  # what all patterns take, by keyword
    for parameter in _documented(signature):
        found = own.get(parameter.name) or common[parameter.name]
        assert found.default == parameter.default
        assert found.kind == parameter.kind


def test_properties() -> None:
    for name, properties in PROPERTIES.items():
        for attribute in properties:
            found = inspect.getattr_static(_find(name), attribute)
            assert inspect.isdatadescriptor(found), f"{name}.{attribute} is no property"


def test_results() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(SpeculationResult)}
    assert {"branch_index", "success", "score", "return_value", "exception", "branch_path"} <= set(fields)
    assert fields["score"] == 0.0  # "Quality score (default 0.0)"
    assert fields["exception"] is None  # "Exception if failed, else `None`"
    assert {"committed", "winner", "all_results"} <= {field.name for field in dataclasses.fields(SpeculationOutcome)}


def test_exceptions() -> None:
    above: list[type] = []
    for line in EXCEPTIONS.strip().splitlines():
        drawn = re.match(r"([│├└─ ]*)(\w+) +# ", line)
        assert drawn is not None
        kind, depth = _find(drawn[2]), len(drawn[1]) // 4
        assert all(issubclass(kind, parent) for parent in above[:depth])
        above[depth:] = [kind]


def test_the_full_path_of_a_branch(tmp_path: Path) -> None:
    """ "`.branch_path`: Full path (e.g. `"/main/feature"`)"."""
    (tmp_path / "project").mkdir()
    with Workspace(tmp_path / "project", durable=False).branch("feature") as branch:
        assert branch.branch_path == "/main/feature"
