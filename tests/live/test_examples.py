"""The examples in the docstrings, run unchanged."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import tempfile
from pathlib import Path

import pytest

from forkwise import live

MODULES = sorted(module.name for module in pkgutil.walk_packages(live.__path__, f"{live.__name__}."))


@pytest.mark.parametrize("name", [*MODULES, "forkwise.files.file_tree", "forkwise.concurrency"])
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert doctest.testmod(importlib.import_module(name)).failed == 0
