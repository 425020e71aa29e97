"""Ignored files in the scratch branches of tests: on every view, and how much git and the filesystem are asked."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forkwise import BestOfN, Branch, MountError, Speculate, Tests, Workspace
from forkwise.fork.evaluation import scratch
from tests.files.filesystems import VIEWS, new_project, view_directories
from tests.need import need

__all__ = ["view_directories"]


@pytest.fixture(params=VIEWS)
def viewed(request: pytest.FixtureRequest, view_directories: dict[str, Path]) -> Iterator[Workspace]:
    view = str(request.param)
    project = new_project(view, view_directories[view], uuid.uuid4().hex[:8])
    for path in ("kept.py", "src/main.py", "src/old.log", "src/cut.log", "out.log/a/b", "out.log/c"):
        write(project / path, path)
    try:
        workspace = Workspace(project, view=view, state=project.parent / "state")
    except MountError as error:
        need(False, f"no {view} view here: {error}")
    yield workspace
    for branch in reversed(workspace.branches()):
        branch.abort()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def contents(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}


def test_a_scratch_branch_has_the_workspaces_ignored_files(viewed: Workspace) -> None:
    async def read(branch: Branch) -> tuple[dict[str, str], list[str]]:
        async with scratch(branch) as tested:
            directories = [str(p.relative_to(tested.path)) for p in tested.path.rglob("*") if p.is_dir()]
            return contents(tested.path), sorted(directories)

    branch = viewed.branch("attempt", None, None)
    branch.set_ignore(["*.log"])
    root = branch.path
    write(root / "kept.py", "changed")
    write(root / "src/deep/er/new.log", "new")
    write(root / "src/deep/er/new.py", "new")
    write(root / "all.log/x/y", "new")
    write(root / "src/old.log", "changed")
    (root / "src/cut.log").unlink()
    shutil.rmtree(root / "out.log")
    write(root / "out.log/new", "new")
    (root / "src/link.log").symlink_to("main.py")
    expected = contents(viewed.path) | {"kept.py": "changed", "src/deep/er/new.py": "new"}
    directories = ["out.log", "out.log/a", "src", "src/deep", "src/deep/er"]
    assert asyncio.run(read(branch)) == (expected, directories)
    inner = branch.branch("inner", None, None)
    write(inner.path / "src/deep/inner.log", "new")
    write(inner.path / "inner.py", "new")
    assert asyncio.run(read(inner)) == (expected | {"inner.py": "new"}, directories)
    assert (branch.path / "all.log/x/y").read_text() == "new"


def test_a_directory_of_ignored_files_takes_one_operation(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many files it has: each would otherwise be deleted through the view."""
    branch = workspace.branch("attempt", None, None)
    need(not branch.view_kind.whole, "no layered view here")
    branch.set_ignore(["*.log"])
    for number in range(300):
        write(branch.path / f"build.log/{number % 7}/deleted{number}", "x")
    deleted: list[str] = []
    unlink = os.unlink

    def counted(path: Any, **options: Any) -> None:
        deleted.extend([path] if "deleted" in str(path) else [])
        unlink(path, **options)

    async def list_layer() -> list[str]:
        async with scratch(branch) as tested:
            assert not (tested.path / "build.log").exists()
            return os.listdir(tested.target)

    monkeypatch.setattr(os, "unlink", counted)
    assert asyncio.run(list_layer()) == ["build.log"]
    monkeypatch.undo()
    assert deleted == []
    branch.abort()


def test_modes_and_times_of_the_directories_around_ignored_files(workspace: Workspace) -> None:
    (workspace.path / "d/e").mkdir(parents=True)
    (workspace.path / "d/e").chmod(0o750)
    os.utime(workspace.path / "d/e", (1, 2))
    branch = workspace.branch("attempt", None, None)
    branch.set_ignore(["*.log"])
    write(branch.path / "d/e/x.log", "x")
    os.utime(branch.path / "d/e", (1, 2))

    async def read() -> tuple[int, int]:
        async with scratch(branch) as tested:
            found = (tested.path / "d/e").stat()
            return found.st_mode & 0o777, int(found.st_mtime)

    assert asyncio.run(read()) == (0o750, 2)
    branch.abort()


@pytest.fixture
def repository(workspace: Workspace) -> Workspace:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=workspace.path, check=True)

    need(shutil.which("git") is not None, "git is not installed")
    git("init", "-q")
    write(workspace.path / ".gitignore", "*.log\nbuild/\n")
    git("add", ".")
    git("commit", "-qm", "first")
    return workspace


@pytest.fixture
def git_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    run: Callable[..., Any] = subprocess.run

    def counted(words: Any, *args: Any, **options: Any) -> Any:
        if os.path.basename(words[0]) == "git":
            calls.append(next(word for word in words if word in ("config", "check-ignore")))
        return run(words, *args, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    return calls


@pytest.mark.parametrize("files", [1, 200])
def test_questions_to_git(repository: Workspace, git_calls: list[str], files: int) -> None:
    """Each attempt asks twice: for its paths, and whether those that match are tracked. The commit asks once more."""

    def attempt(path: Path, _number: int) -> bool:
        for number in range(files):
            write(path / f"build/{number % 10}/{number}", "x")
            write(path / f"{number}.log", "x")
        return (path / "a.txt").write_text("new") > 0

    pattern = BestOfN(attempt, 3, evaluate=Tests("test ! -e build && test ! -e 0.log", repeat=3), ignore="git")
    assert pattern(repository).committed
    assert git_calls.count("check-ignore") <= 2 * 3 + 4
    assert git_calls.count("config") <= 2 * 3 + 8


def test_an_attempt_without_ignored_files_asks_once(repository: Workspace, git_calls: list[str]) -> None:
    def attempt(path: Path) -> bool:
        return (path / "a.txt").write_text("new") > 0

    assert Speculate([attempt], evaluate=Tests("true"), ignore="git", commit=False)(repository).winner is not None
    assert git_calls.count("check-ignore") == 1
    assert git_calls.count("config") <= 3


def test_rules_that_change_between_attempts_are_read_again(repository: Workspace) -> None:
    def attempt(path: Path) -> bool:
        write(path / "made.tmp", "x")
        return True

    assert Speculate([attempt], ignore="git")(repository).committed
    write(repository.path / ".gitignore", "*.tmp\n")
    (repository.path / "made.tmp").unlink()
    assert Speculate([attempt], ignore="git")(repository).committed
    assert not (repository.path / "made.tmp").exists()
