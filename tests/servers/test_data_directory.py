"""Data directories of servers: committed as a whole or not at all, never merged, never while a server runs on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forkwise import Branch, ConflictError, Workspace
from forkwise.errors import CommitError, ForkwiseWarning
from forkwise.files.combine import combine
from forkwise.files.store.branch_info import DataDirectories
from forkwise.files.undo import rewind_to
from forkwise.fork.land import land
from forkwise.live.backends.branch_overlay import BranchOverlay
from forkwise.live.backends.local import LocalBackend

OPEN_FILE = "import os, sys; os.chdir(sys.argv[1]); print('here', flush=True); sys.stdin.read()"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "project"
    (directory / "data/base").mkdir(parents=True)
    for name in ("control", "log", "base/1", "base/2"):
        (directory / "data" / name).write_text(f"{name} of the base\n" * 10)
    (directory / "app.py").write_text("one\n")
    yield directory
    for branch in reversed(Workspace(directory).branches()):
        branch.abort()


def fork(project: Path, name: str = "try", **data: tuple[str, ...]) -> Branch:
    branch = Workspace(project).branch(name, on_success=None, on_error=None)
    branch.set_data_directories(DataDirectories(**(data or {"whole": ("data",)})))
    return branch


@contextmanager
def in_use(directory: Path) -> Iterator[int]:
    """Run a process that works in a directory, and return its number."""
    command = [sys.executable, "-ISc", OPEN_FILE, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        user.stdout.readline()
        yield user.pid
        user.communicate()


def test_it_is_one_change_and_one_line_of_a_diff(project: Path) -> None:
    branch = fork(project)
    for name in ("control", "base/1", "base/new"):
        (branch.path / "data" / name).write_bytes(b"\0binary")
    (branch.path / "app.py").write_text("two\n")
    delta = branch.delta()
    assert [(c.path, c.kind, c.files) for c in delta] == [("app.py", "changed", 0), ("data", "changed", 3)]
    diff = branch.diff()
    assert diff.startswith("Database data: 3 files, 21 bytes\n")
    assert "control" not in diff
    applied = subprocess.run(["git", "apply", "--check", "-"], input=diff, text=True, cwd=project, check=False)
    assert applied.returncode == 0
    commit = branch.commit()
    assert (project / "data/base/new").read_bytes() == b"\0binary"
    Workspace(project).undo(commit.id)
    assert (project / "data/control").read_text() == "control of the base\n" * 10
    assert not (project / "data/base/new").exists()


def test_a_combination_takes_it_from_one_branch(project: Path) -> None:
    workspace, (one, two, three) = Workspace(project), [fork(project, name) for name in ("one", "two", "three")]
    for branch, changed in ((one, ("control", "log")), (two, ("control", "base/1"))):
        for name in changed:
            (branch.path / "data" / name).write_text(f"{name} of {branch.name}\n")
    (three.path / "app.py").write_text("three\n")

    mixed = combine(workspace, [one, two, three], "mixed")
    assert [(clash.path, clash.branches) for clash in mixed.conflicts] == [("data", ("one", "two"))]
    with pytest.raises(ConflictError):
        mixed.branch.commit()
    assert (project / "app.py").read_text() == "one\n"
    chosen = combine(workspace, [one, two, three], "chosen", prefer={"data": "two"})
    assert chosen.clean
    chosen.branch.commit()
    assert (project / "app.py").read_text() == "three\n"
    assert (project / "data/base/1").read_text() == "base/1 of two\n"
    assert (project / "data/log").read_text() == "log of the base\n" * 10


@pytest.mark.parametrize("edited", ["data/log", "data/base/2", "data/base/fresh", "data/base/gone"])
@pytest.mark.parametrize("on_conflict", ["refuse", "merge", "ours"])
def test_an_edit_of_another_file_in_it_is_a_conflict(project: Path, edited: str, on_conflict: str) -> None:
    (project / "data/base/gone").write_text("to be removed")
    branch = fork(project)
    (branch.path / "data/control").write_text("changed by the branch\n")
    (branch.path / "app.py").write_text("two\n")
    if edited.endswith("gone"):
        (project / edited).unlink()
    else:
        (project / edited).write_text("changed in the workspace\n")
    with pytest.raises(ConflictError) as raised:
        branch.commit(on_conflict=on_conflict)  # type: ignore[arg-type]
    assert [conflict.path for conflict in raised.value.conflicts] == ["data"]
    assert (project / "app.py").read_text() == "one\n"
    branch.commit(on_conflict="theirs")
    assert (project / "app.py").read_text() == "two\n"
    assert (project / "data/control").read_text() == "control of the base\n" * 10


def test_ours_takes_it_if_nothing_else_in_it_changed(project: Path) -> None:
    branch = fork(project)
    (branch.path / "data/control").write_text("changed by the branch\n")
    (project / "data/control").write_text("changed in the workspace\n")
    with pytest.raises(ConflictError):
        branch.commit(on_conflict="merge")
    commit = branch.commit(on_conflict="ours")
    assert [conflict.path for conflict in commit.conflicts] == ["data"]
    assert (project / "data/control").read_text() == "changed by the branch\n"


def test_text_in_it_is_not_merged_by_a_rebase(project: Path) -> None:
    first, second = fork(project, "first"), fork(project, "second")
    (first.path / "data/log").write_text("log of the base\n" * 10 + "first\n")
    (second.path / "data/control").write_text("second\n")
    first.commit()
    rebase = second.rebase()
    assert [conflict.path for conflict in rebase.conflicts] == ["data"]
    for choice in ("refuse", "ours", "merge"):
        with pytest.raises(ConflictError, match="data"):
            second.commit(on_conflict=choice)
    second.commit(on_conflict="theirs")
    assert (project / "data/control").read_text() == "control of the base\n" * 10


def test_a_branch_that_left_it_alone_has_no_conflict(project: Path) -> None:
    branch = fork(project)
    (branch.path / "app.py").write_text("two\n")
    (project / "data/log").write_text("changed in the workspace\n")
    branch.commit()
    assert (project / "app.py").read_text() == "two\n"


def test_it_is_committed_although_git_ignores_it(project: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    (project / ".gitignore").write_text("data\ncache\n")
    branch = fork(project)
    branch.set_ignore("git")
    (branch.path / "data/control").write_text("changed by the branch\n")
    (branch.path / "cache").write_text("ignored")
    assert [change.path for change in branch.delta()] == ["data"]
    branch.commit()
    assert (project / "data/control").read_text() == "changed by the branch\n"
    assert not (project / "cache").exists()


def test_what_is_dropped_is_in_no_delta_diff_or_commit(project: Path) -> None:
    branch = fork(project, dropped=("data",))
    (branch.path / "data/control").write_text("changed by the branch\n")
    (branch.path / "data/new").write_text("new\n")
    (branch.path / "app.py").write_text("two\n")
    (project / "data/control").write_text("changed in the workspace\n")
    assert [change.path for change in branch.delta()] == ["app.py"]
    assert "data" not in branch.diff()
    assert branch.commit().paths == ("app.py",)
    assert (project / "data/control").read_text() == "changed in the workspace\n"
    assert not (project / "data/new").exists()


def test_nothing_is_committed_while_a_process_uses_it(project: Path) -> None:
    branch = fork(project)
    (branch.path / "data/control").write_text("changed by the branch\n")
    with in_use(project / "data") as pid, pytest.raises(CommitError, match=rf"\(process {pid}\) uses data.*Stop it"):
        branch.commit()
    branch.commit()


@pytest.mark.parametrize("way", ["undo", "redo", "rewind"])
def test_nothing_is_undone_while_a_process_uses_it(project: Path, way: str) -> None:
    workspace, branch = Workspace(project), fork(project)
    (branch.path / "data/control").write_text("changed by the branch\n")
    (branch.path / "app.py").write_text("two\n")
    commit = branch.commit()
    if way == "redo":
        commit = workspace.undo()
    before = (project / "data/control").read_text(), (project / "app.py").read_text()
    with in_use(project / "data") as pid:
        with pytest.raises(CommitError, match=rf"not undone.*\(process {pid}\) uses data.*Stop it"):
            rewind_to(workspace, 0) if way == "rewind" else workspace.undo(commit.id)
        assert ((project / "data/control").read_text(), (project / "app.py").read_text()) == before
    workspace.undo(commit.id)
    assert ((project / "data/control").read_text(), (project / "app.py").read_text()) != before


def test_a_commit_that_left_it_alone_is_undone_while_a_process_uses_it(project: Path) -> None:
    branch = fork(project)
    (branch.path / "app.py").write_text("two\n")
    branch.commit()
    with in_use(project / "data"):
        Workspace(project).undo()
    assert (project / "app.py").read_text() == "one\n"


def test_a_lock_file_that_a_killed_server_left_does_not_count(project: Path) -> None:
    branch = fork(project)
    (branch.path / "data/postmaster.pid").write_text(f"2\n{project}/data\n")
    (project / "data/postmaster.pid").write_text(f"{os.getpid()}\n{project}/data\n")
    os.utime(project / "data/postmaster.pid")
    with pytest.raises(ConflictError):
        branch.commit()
    branch.commit(on_conflict="theirs")


def test_branches_of_agents_and_of_live_forks_know_it(project: Path) -> None:
    (project / ".forkwise").mkdir()
    (project / ".forkwise/servers.toml").write_text(
        "[servers.db]\ncommand = 'x'\nready.port = 1\ndata = 'data'\n"
        "[servers.cache]\ncommand = 'x'\nready.port = 2\ndata = 'cache'\nkeep = 'drop'\n"
    )
    backend = LocalBackend(project)
    overlay = BranchOverlay(backend)
    assert overlay.branch.data_directories == DataDirectories(whole=("data",), dropped=("cache",))
    inner = BranchOverlay(overlay)
    assert inner.branch.data_directories == overlay.branch.data_directories
    inner.execute("echo inner > data/control; mkdir cache; echo 1 > cache/a")
    assert [change.path for change in inner.branch.delta()] == ["data"]
    inner.branch.abort()
    overlay.branch.abort()
    with in_use(project / "data"), pytest.raises(CommitError, match="uses data"):
        backend.execute("echo agent > data/control")
    assert (project / "data/control").read_text() == "control of the base\n" * 10


def test_a_decision_for_newer_files_does_not_mix_two_databases(project: Path) -> None:
    branch = fork(project)
    (branch.path / "data/control").write_text("changed by the branch\n")
    (branch.path / "app.py").write_text("two\n")
    (project / "data/log").write_text("changed in the workspace\n")
    with pytest.warns(ForkwiseWarning, match="its version of the database data was dropped"):
        landed = land(branch, "keep_newer")
    assert landed.kept is None
    assert [conflict.path for conflict in landed.conflicts] == ["data"]
    assert (project / "app.py").read_text() == "two\n"
    assert (project / "data/control").read_text() == "control of the base\n" * 10
