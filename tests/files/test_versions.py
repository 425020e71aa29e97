"""The diff between two branches of one parent, in every view."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from forkwise import Branch, BranchError, Workspace
from forkwise.files.versions import compare

IN_MEMORY = True


def nothing(_: Path) -> None:
    """Change nothing."""


def edit(root: Path) -> None:
    (root / "a.txt").write_text("uno\n")


def edit_otherwise(root: Path) -> None:
    (root / "a.txt").write_text("eins\n")


def delete(root: Path) -> None:
    (root / "a.txt").unlink()
    (root / "sub/c.txt").unlink()
    (root / "sub").rmdir()


def add(root: Path) -> None:
    (root / "new").mkdir()
    (root / "new/d.txt").write_text("four\n")


def make_executable(root: Path) -> None:
    (root / "a.txt").chmod(0o755)


def link(root: Path) -> None:
    (root / "a.txt").unlink()
    (root / "a.txt").symlink_to("sub/c.txt")


DEEDS = (nothing, edit, edit_otherwise, delete, add, make_executable, link)


@pytest.fixture(params=["overlay", "copy"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("one\n")
    (root / "sub/c.txt").write_text("three\n")
    return Workspace(root, view=request.param, state=tmp_path / "state")


def made(workspace: Workspace, name: str, deed: Callable[[Path], None]) -> Branch:
    """Create a branch and apply a change."""
    branch = workspace.branch(name)
    deed(branch.path)
    return branch


def content(root: Path) -> dict[str, object]:
    """Return the properties of a directory that git records."""
    found: dict[str, object] = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            report = os.readlink(path) if path.is_symlink() else (path.read_text(), os.access(path, os.X_OK))
            found[str(path.relative_to(root))] = report
    return found


@pytest.mark.parametrize("second", DEEDS, ids=lambda deed: deed.__name__)
@pytest.mark.parametrize("first", DEEDS, ids=lambda deed: deed.__name__)
def test_it_turns_the_one_into_the_other(
    workspace: Workspace, tmp_path: Path, first: Callable[[Path], None], second: Callable[[Path], None]
) -> None:
    one, two = made(workspace, "one", first), made(workspace, "two", second)
    text = compare(one, two)
    assert (text == "") == (content(one.path) == content(two.path))
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(one.path), str(copy)], check=True)
    if text:
        subprocess.run(["git", "apply", "-"], cwd=copy, input=text.encode(), check=True, env=alone(tmp_path))
    assert content(copy) == content(two.path)
    one.abort()
    two.abort()


def alone(directory: Path) -> dict[str, str]:
    """Return an environment in which git finds no repository around a directory."""
    return {**os.environ, "GIT_CEILING_DIRECTORIES": str(directory)}


def test_only_siblings_are_compared(workspace: Workspace) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    inner = two.branch("inner")
    with pytest.raises(BranchError, match="only siblings"):
        compare(one, inner)
    one.abort()
    two.abort()
