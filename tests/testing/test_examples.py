"""The examples in the docstrings work as written."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import tempfile
from pathlib import Path

import pytest

from forkwise import testing

MODULES = sorted(module.name for module in pkgutil.walk_packages(testing.__path__, f"{testing.__name__}."))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert doctest.testmod(importlib.import_module(name)).failed == 0
