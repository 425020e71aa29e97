"""The command line on a BranchFS mount."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise import Workspace
from forkwise.files.mounted import BranchfsView
from tests.branchfs import BUILDS

Run = Callable[..., Result]
Ask = Callable[..., Any]

pytestmark = pytest.mark.parametrize("branchfs_mount", BUILDS[:1], indirect=True)


@pytest.fixture
def project(branchfs: Path, state: Path) -> Iterator[Path]:
    """The mount, as the project of ``run``, ``ask`` and ``command``."""
    yield branchfs
    for branch in reversed(Workspace(branchfs).branches()):
        branch.abort()


def test_branches_by_name(run: Run, ask: Ask, command: Run, project: Path) -> None:
    """Seed: "Create a branch", "Merge changes into parent", "Roll back to parent", from one process to the next."""
    path = Path(ask("branch", "create", "try")["branch"]["path"])
    assert path.parent == project
    (path / "a.txt").write_text("two\n")
    assert [b["branch_path"] for b in ask("branch", "ls")["branches"]] == ["/main/try"]
    assert run("branch", "path", "try").stdout == f"{path}\n"
    assert "-one\n+two\n" in run("branch", "diff", "try").stdout
    done = command("branch", "shell", "try", "--", "sh", "-c", "cat a.txt; pwd; echo three > b.txt")
    assert done.stdout == f"two\n{project}\n"
    variant = ask("branch", "create", "variant", "--from", "try")["branch"]
    assert Path(variant["path"], "b.txt").read_text() == "three\n"
    assert ask("branch", "abort", "/main/try/variant") == {"aborted": "/main/try/variant"}
    printed = run("branch", "commit", "try").stdout
    assert printed == f"Committed /main/try as 1: its paths are not recorded.\n{BranchfsView.limits}.\n"
    assert ((project / "a.txt").read_text(), (project / "b.txt").read_text()) == ("two\n", "three\n")
    assert [commit["branch"] for commit in ask("log")["commits"]] == ["/main/try"]
    assert "branchfs cannot undo" in run("undo", code=1).stderr


def test_an_exploration(run: Run, ask: Ask, project: Path) -> None:
    """Seed: "Run the same task N times and commit the highest-scoring success"."""
    printed = run("best-of", "3", "--", "sh", "-c", 'echo $FORKWISE_ATTEMPT > a.txt; cp a.txt "$FORKWISE_SCORE"').stdout
    assert printed.count("cannot be undone") == 1
    assert "Undo with" not in printed
    assert (project / "a.txt").read_text() == "3\n"
    fork = ask("ls")["forks"][0]["id"]
    assert "cannot be undone" in run("show", fork).stdout
    assert ask("gc")["removed"] == []


def test_an_exploration_with_tests_and_a_pick(run: Run, ask: Ask, project: Path) -> None:
    words = (
        "speculate",
        "--all",
        "--test",
        "grep -q b a.txt",
        "--no-commit",
        "--keep",
        "-c",
        "echo a > a.txt",
        "-c",
        "echo b > a.txt",
    )
    run(*words)
    fork = ask("ls")["forks"][0]["id"]
    assert "+b" in run("diff", f"{fork}.2").stdout
    commit = ask("pick", f"{fork}.2")["commit"]
    assert (commit["undo_id"], commit["note"]) == (None, BranchfsView.limits)
    assert (project / "a.txt").read_text() == "b\n"


def test_a_patch_and_a_git_commit_that_are_requested(
    run: Run, project: Path, branchfs_mount: Path, tmp_path: Path
) -> None:
    for words in (("init", "-q"), ("add", "a.txt"), ("-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "x")):
        subprocess.run(["git", *words], cwd=branchfs_mount / "base", check=True)
    for key in ("user.name", "user.email"):
        subprocess.run(["git", "config", key, "a"], cwd=branchfs_mount / "base", check=True)
    run("run", "--commit-to-git", "--output-patch", str(tmp_path / "patch"), "--", "sh", "-c", "echo two > a.txt")
    assert "+two" in (tmp_path / "patch").read_text()
    log = subprocess.run(["git", "show", "--stat", "HEAD"], cwd=project, capture_output=True, text=True, check=True)
    assert "a.txt" in log.stdout


def test_doctor_says_what_the_mount_lacks(ask: Ask, run: Run, project: Path) -> None:
    report = ask("doctor")
    [row] = [view for view in report["views"] if view["name"] == "branchfs"]
    assert (report["chosen"], row["works"]) == ("branchfs", True)
    assert BranchfsView.limits in row["detail"]
    assert [view["name"] for view in report["views"] if view["works"]] == ["branchfs"]
    assert not report["state"].startswith(str(project))


def test_a_branch_without_a_mount_by_name(ask: Ask, run: Run, tmp_path: Path) -> None:
    """The same commands on a plain directory."""
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "a.txt").write_text("one\n")
    there = ("-C", str(plain))
    path = Path(ask("branch", "create", "try", *there)["branch"]["path"])
    (path / "a.txt").write_text("two\n")
    assert "+two" in run("branch", "diff", "try", *there).stdout
    assert [b["name"] for b in ask("branch", "ls", *there)["branches"]] == ["try"]
    run("branch", "commit", "try", *there)
    assert (plain / "a.txt").read_text() == "two\n"
