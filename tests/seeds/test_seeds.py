"""Every example of the documentation that forkwise follows runs unchanged except for the import.

For root, those as another user are integration tests.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from tests.branchfs import mounted
from tests.seeds.process import User, run_page

#: The pages, each with a module of the same name that runs its examples.
PAGES = (
    "branchcontext",
    *(pytest.param(name, marks=pytest.mark.integration) for name in ("acorn", "bots", "pydantic_deep")),
)


@pytest.mark.parametrize("user", ["root", "unprivileged"])
@pytest.mark.parametrize("name", PAGES)
def test_examples_run_unchanged_except_for_the_import(name: str, user: User, tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    page = importlib.import_module(f"tests.seeds.{name}").page
    assert list(page.examples) == list(page.blocks), "every block of the page has its function, in the page's order"
    assert run_page(name, user, project, home).splitlines() == list(page.blocks)


def test_examples_of_branchcontext_run_on_a_mount(tmp_path: Path) -> None:
    """Seed: "You just create a `Workspace` pointed at a mounted path - the backend is detected automatically." """
    (tmp_path / "home").mkdir()
    page = importlib.import_module("tests.seeds.branchcontext").page
    with mounted(tmp_path) as mount:
        user: User = "root" if os.geteuid() == 0 else "unprivileged"
        assert run_page("branchcontext", user, mount, tmp_path / "home").splitlines() == list(page.blocks)
