"""Every example of the documentation that forkwise follows runs unchanged except for the import."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.seeds.process import User, run_page

#: The page, and the package that its examples import.
PAGES = ("branchcontext",)


@pytest.mark.parametrize("user", ["root", "unprivileged"])
@pytest.mark.parametrize("name", PAGES)
def test_examples_run_unchanged_except_for_the_import(name: str, user: User, tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    page = importlib.import_module(f"tests.seeds.{name}").page
    assert list(page.examples) == list(page.blocks), "every block of the page has its function, in the page's order"
    assert run_page(name, user, project, home).splitlines() == list(page.blocks)
