"""Ignored and generated files: left out of deltas, diffs, commits and conflicts, as far as ``ignore`` says."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from forkwise import Branch, ConflictError, Workspace
from forkwise.git.ignore_rules import IgnoreRules
from tests.files.snapshot import snapshot
from tests.git.payloads import run_plain_git
from tests.need import need

Open = Callable[..., Workspace]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    write(made / "a.py", "a\n")
    write(made / "pkg/b.py", "b\n")
    write(made / "pkg/__pycache__/b.pyc", "old byte code")
    return made


@pytest.fixture
def workspace(project: Path, view: str, open_workspace: Open) -> Workspace:
    return open_workspace(project, view=view)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def change(branch: Branch, files: dict[str, str]) -> None:
    for name, text in files.items():
        write(branch.path / name, text)


CHANGES = {
    "a.py": "new\n",
    "__pycache__/a.pyc": "byte code",
    "pkg/__pycache__/b.pyc": "new byte code",
    "new/c.py": "c\n",
    "new/__pycache__/c.pyc": "byte code",
    "new/deep/d.py": "d\n",
    "new/deep/__pycache__/d.pyc": "byte code",
    "hollow/inner/__pycache__/e.pyc": "byte code",
}
KEPT = {"a.py", "new", "new/c.py", "new/deep", "new/deep/d.py"}


def test_a_commit_takes_everything_by_default(workspace: Workspace, project: Path) -> None:
    branch = workspace.branch("try")
    change(branch, CHANGES)
    assert set(CHANGES) < {change.path for change in branch.delta()}
    branch.commit()
    assert (project / "hollow/inner/__pycache__/e.pyc").exists()


def test_a_commit_leaves_out_ignored_paths_and_its_undo_agrees(workspace: Workspace, project: Path) -> None:
    before = snapshot(project)
    branch = workspace.branch("try")
    change(branch, CHANGES)
    assert {change.path for change in branch.delta(ignore="git")} == KEPT
    assert "pycache" not in branch.diff(ignore="git")
    assert "pycache" in branch.diff()
    commit = branch.commit(ignore="git")
    assert set(commit.paths) == KEPT
    assert (project / "pkg/__pycache__/b.pyc").read_text() == "old byte code"
    assert (project / "new/deep/d.py").read_text() == "d\n"
    assert not any((project / name).exists() for name in ("__pycache__", "hollow", "new/__pycache__"))
    assert not (project / "new/deep/__pycache__").exists()
    after = snapshot(project)
    undone = workspace.undo(commit)
    assert snapshot(project) == before
    workspace.undo(undone)
    assert snapshot(project) == after


def test_an_ignored_path_is_no_conflict(workspace: Workspace, project: Path) -> None:
    branch = workspace.branch("try")
    change(branch, CHANGES)
    write(project / "pkg/__pycache__/b.pyc", "edited meanwhile")
    with pytest.raises(ConflictError):
        branch.commit()
    branch.commit(ignore="git")
    assert (project / "pkg/__pycache__/b.pyc").read_text() == "edited meanwhile"
    assert (project / "a.py").read_text() == "new\n"


def test_a_rebase_reports_no_conflicts_on_ignored_paths(workspace: Workspace, project: Path) -> None:
    first, second = workspace.branch("first"), workspace.branch("second")
    second.set_ignore("git")
    for branch in (first, second):
        change(branch, {f"{branch.name}.py": "new\n", "pkg/__pycache__/b.pyc": branch.name})
    first.commit()
    assert second.rebase().conflicts == ()
    assert second.ignore == "git"
    second.commit()
    assert (project / "second.py").exists()
    assert (project / "pkg/__pycache__/b.pyc").read_text() == "first"


def test_deleted_ignored_paths_stay(workspace: Workspace, project: Path) -> None:
    branch = workspace.branch("try")
    shutil.rmtree(branch.path / "pkg")
    assert branch.commit(ignore="git").deleted == ("pkg/b.py",)
    assert [str(p.relative_to(project)) for p in sorted(project.rglob("*"))] == [
        "a.py",
        "pkg",
        "pkg/__pycache__",
        "pkg/__pycache__/b.pyc",
    ]


def test_a_file_may_replace_a_directory_with_ignored_files(workspace: Workspace, project: Path) -> None:
    branch = workspace.branch("try")
    shutil.rmtree(branch.path / "pkg")
    write(branch.path / "pkg", "a file now\n")
    branch.commit(ignore="git")
    assert (project / "pkg").read_text() == "a file now\n"


def test_a_directory_created_again_keeps_the_ignored_files(workspace: Workspace, project: Path) -> None:
    branch = workspace.branch("try")
    shutil.rmtree(branch.path / "pkg")
    change(branch, {"pkg/b.py": "again\n", "pkg/__pycache__/x.pyc": "x"})
    branch.commit(ignore="git")
    assert (project / "pkg/b.py").read_text() == "again\n"
    assert os.listdir(project / "pkg/__pycache__") == ["b.pyc"]


def test_what_was_set_is_kept_with_the_branch(workspace: Workspace) -> None:
    workspace.branch("try", None, None).set_ignore(["*.log", "/out"])
    branch = workspace.open("try")
    change(branch, {"a.log": "x", "out/x": "x", "b": "x"})
    assert [c.path for c in branch.delta()] == ["b"]
    assert len(branch.delta(ignore=())) == 4
    branch.set_ignore(lambda path: path == "b")
    assert [c.path for c in branch.delta()] == ["a.log", "out", "out/x"]
    branch.set_ignore(None)
    assert branch.ignore is None


@pytest.mark.parametrize("bad", ["svn", [""], [1], 7])
def test_other_values_are_refused(workspace: Workspace, bad: object) -> None:
    branch = workspace.branch("try")
    with pytest.raises((ValueError, TypeError), match="ignore"):
        branch.commit(ignore=bad)  # type: ignore[arg-type]
    branch.abort()


def test_a_branch_into_a_branch_takes_everything(workspace: Workspace, project: Path) -> None:
    outer = workspace.branch("outer")
    inner = outer.branch("inner")
    change(inner, {"new/x.pyc": "x", "new/x.py": "x"})
    inner.commit(ignore="git")
    assert (outer.path / "new/x.pyc").exists()
    outer.commit(ignore="git")
    assert os.listdir(project / "new") == ["x.py"]


def test_a_branch_cannot_hide_its_changes(workspace: Workspace, project: Path) -> None:
    need(shutil.which("git") is not None, "git is not installed")
    run_plain_git(project, "init", "--quiet")
    write(project / ".gitignore", "build/\n")
    branch = workspace.branch("try")
    change(branch, {".gitignore": "*\n", "evil.py": "x\n", "build/out": "x", ".git/info/exclude": "*\n"})
    branch.set_ignore("git")
    assert {c.path for c in branch.delta()} == {".gitignore", "evil.py", ".git/info/exclude"}
    branch.abort()


def test_git_is_asked_for_a_directory_and_not_for_its_files(
    workspace: Workspace, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def is_ignored(path: str) -> bool:
        asked.append(path)
        return path == "web/modules"

    branch = workspace.branch("try")
    change(branch, {f"web/modules/{n}/{n}.js": "x" for n in range(30)} | {"web/a.js": "x"})
    assert [c.path for c in branch.delta(ignore=is_ignored)] == ["web", "web/a.js"]
    assert not [path for path in asked if path.endswith(".js") and path != "web/a.js"]
    branch.abort()


LITTER = IgnoreRules((".helper*", "/cache/helper"))


def test_litter_is_in_no_delta_and_no_commit(workspace: Workspace, project: Path) -> None:
    write(project / ".helper.history", "mine\n")
    branch = workspace.branch("try")
    branch.set_ignore(LITTER)
    change(branch, {"a.py": "new\n", ".helper.history": "its\n", "pkg/.helper.d/x": "x", "cache/helper/y": "y"})
    change(branch, {"pkg/__pycache__/c.pyc": "byte code", "deep/cache/helper": "z\n"})
    write(project / ".helper.history", "mine, later\n")  # no conflict
    again = Workspace(project).branches()[0]
    assert again.ignore == LITTER
    assert {change.path for change in again.delta()} == {"a.py", "deep", "deep/cache", "deep/cache/helper"}
    again.commit()
    assert (project / "a.py").read_text() == "new\n"
    assert (project / ".helper.history").read_text() == "mine, later\n"
    assert not any((project / name).exists() for name in ("pkg/.helper.d", "cache", "pkg/__pycache__/c.pyc"))


def test_a_tracked_file_is_not_litter(project: Path, open_workspace: Open) -> None:
    run_plain_git(project, "init", "--quiet")
    write(project / ".helper.d/settings", "1\n")
    run_plain_git(project, "add", ".helper.d/settings")
    branch = open_workspace(project).branch("try")
    branch.set_ignore(LITTER)
    change(branch, {".helper.d/settings": "2\n", ".helper.d/log": "x\n", ".helper.history": "y\n"})
    run_plain_git(branch.path, "rm", "--quiet", "--cached", "-rf", ".helper.d")  # the workspace's index decides
    assert {change.path for change in branch.delta()} == {".helper.d/settings"}


@pytest.mark.parametrize("litter", [("",), ("/",), (1,), "x", ("[a",), ("a\\*",), ("a\0",)])
def test_litter_that_is_no_glob_is_refused(project: Path, open_workspace: Open, litter: object) -> None:
    with pytest.raises((TypeError, ValueError), match="globs"):
        open_workspace(project).branch("try").set_ignore(IgnoreRules(litter))  # type: ignore[arg-type]
