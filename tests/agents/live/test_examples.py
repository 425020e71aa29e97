"""The examples in the docstrings, run as they stand."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from forkwise.agents import live

MODULES = sorted(module.name for module in pkgutil.walk_packages(live.__path__, f"{live.__name__}."))


@pytest.mark.parametrize("name", [*MODULES, "forkwise.files.addressed", "forkwise.sandbox.threads"])
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
