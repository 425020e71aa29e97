"""Which changed paths are ignored: by git's own rules in a repository, by a list of caches elsewhere."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from forkwise import ForkwiseWarning
from forkwise.git.ignore_rules import select_ignored
from tests.git.payloads import plant, run_plain_git
from tests.need import need


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    need(shutil.which("git") is not None, "git is not installed")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "gitconfig").write_text(
        f"[user]\n\tname = Ada\n\temail = ada@example.org\n[core]\n\texcludesFile = {tmp_path}/mine\n"
    )
    (tmp_path / "mine").write_text("*.swp\n")
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    run_plain_git(root, "init", "--quiet")
    (root / ".gitignore").write_text("build/\n*.pyc\n*.log\n!keep.log\nd/*\n!d/keep\n/top\n")
    (root / "sub/.gitignore").write_text("local\n")
    (root / ".git/info").mkdir(exist_ok=True)
    (root / ".git/info/exclude").write_text("excluded\n")
    (root / "tracked.pyc").write_text("tracked although it is ignored\n")
    run_plain_git(root, "add", "--force", ".")
    run_plain_git(root, "commit", "--quiet", "-m", "first")
    return root


def test_the_rules_are_those_of_git(project: Path) -> None:
    ignored = {"build/", "a.pyc", "x/b.pyc", "x.log", "d/x", "top", "sub/local", "excluded", "a.swp", "build/in/it"}
    kept = {"build", "keep.log", "d/", "d/keep", "sub/top", "local", "tracked.pyc", "a.py", "new/"}
    assert select_ignored(project, [*ignored, *kept]) == ignored


def test_a_workspace_may_be_a_part_of_a_repository(project: Path) -> None:
    assert select_ignored(project / "sub", ["local", "a.pyc", "build/", "top", "a.py"]) == {"local", "a.pyc", "build/"}


def test_a_directory_with_a_tracked_file_is_not_ignored(project: Path) -> None:
    (project / "build").mkdir()
    (project / "build/kept").write_text("tracked\n")
    run_plain_git(project, "add", "--force", "build/kept")
    assert select_ignored(project, ["build/", "build/kept", "build/new"]) == {"build/new"}


def test_names_are_data(project: Path) -> None:
    hostile = [":(exclude)a.pyc", ":!b.pyc", "-x.pyc", "new\nline.pyc", "sp ace.pyc", os.fsdecode(b"\xff.pyc")]
    assert select_ignored(project, [*hostile, ":x", "!a"]) == set(hostile)


def test_paths_that_git_refuses_spoil_no_others(project: Path) -> None:
    (project / "link").symlink_to("sub")
    (project / "other.log").symlink_to("sub")
    run_plain_git(project, "init", "--quiet", "inner")
    (project / "inner/f").write_text("f\n")
    run_plain_git(project / "inner", "add", ".")
    run_plain_git(project / "inner", "commit", "--quiet", "-m", "inner")
    run_plain_git(project, "-c", "advice.addEmbeddedRepo=false", "add", "inner")
    shutil.rmtree(project / "inner")  # in git's index it is a submodule still
    asked = ["link/a.pyc", "other.log/x", "inner/b.pyc", "c.pyc", "d.py"]
    assert select_ignored(project, asked) == {"other.log/x", "c.pyc"}


def test_the_directory_of_git_is_never_ignored(project: Path) -> None:
    (project / ".gitignore").write_text("*\n")
    assert select_ignored(project, [".git/hooks/pre-commit", "sub/.git/config", ".git/"]) == set()


def test_no_program_of_the_repository_runs(project: Path, tmp_path: Path) -> None:
    plant(project, tmp_path / "witness")
    assert select_ignored(project, ["a.pyc", "a.py"]) == {"a.pyc"}
    assert not (tmp_path / "witness").exists()


def test_elsewhere_caches_and_byte_code_are_ignored(tmp_path: Path) -> None:
    caches = {
        "__pycache__/",
        "a/__pycache__/b.pyc",
        "x.pyc",
        ".pytest_cache/",
        "web/node_modules/.cache/x",
        ".DS_Store",
    }
    kept = {"a.py", "build/", "node_modules/", ".env", "x.log", "pycache"}
    assert select_ignored(tmp_path, [*caches, *kept]) == caches


def test_globs_and_functions(tmp_path: Path) -> None:
    assert select_ignored(tmp_path, ["a.log", "b/c.log", "b/"], ["*.log"]) == {"a.log", "b/c.log"}
    assert select_ignored(tmp_path, ["out/x", "a/out/x"], ["/out"]) == {"out/x"}
    assert select_ignored(tmp_path, ["out/", "a"], lambda path: path == "out") == {"out/"}


def test_a_repository_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (root / ".git").symlink_to("/nowhere")
    with pytest.warns(ForkwiseWarning, match="follows no link"):
        assert select_ignored(root, ["a.pyc", "a.py"]) == {"a.pyc"}
