"""``forkwise worktree``: add, list, mount, remove and the hooks of agents, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from forkwise.cli import forkwise_command
from forkwise.linux.mountinfo import mounts
from forkwise.linux.syscalls import MNT_DETACH, umount2

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def repository(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the project a git repository, and unmount its worktrees afterwards."""
    home = project.parent
    (home / "gitconfig").write_text("[user]\nname = Ada\nemail = ada@example.org\n[init]\ndefaultBranch = main\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=project, check=True)
    yield project
    for entry in reversed(mounts()):
        if entry.point.startswith(f"{home}/project.worktrees/"):
            umount2(entry.point, MNT_DETACH)


def send(event: Any, *words: str, code: int = 0) -> Result:
    text = event if isinstance(event, str) else json.dumps(event)
    result = CliRunner().invoke(forkwise_command, ["worktree", "hook", *words], input=text)
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def test_add_list_and_remove(run: Run, ask: Callable[..., Any], project: Path) -> None:
    assert "No worktrees" in run("worktree", "list").stdout
    made = ask("worktree", "add", "fix")["worktree"]
    assert made["path"] == f"{project}.worktrees/fix"
    assert (made["name"], made["branch"], made["state"]) == ("fix", "fix", "ready")
    assert ask("worktree", "list")["worktrees"] == [made]
    Path(made["path"], "new.txt").write_text("new\n")
    refused = run("worktree", "remove", "fix", code=1).stderr
    assert "uncommitted changes of 1 file ('new.txt')" in refused
    assert "--force" in refused
    assert ask("worktree", "remove", "fix", "--force")["removed"]["branch_removed"] is True
    assert ask("worktree", "list")["worktrees"] == []


def test_a_name_that_is_not_utf_8(run: Run, ask: Callable[..., Any], project: Path) -> None:
    made = ask("worktree", "add", "fix\udcff")["worktree"]
    assert (made["path"], made["branch"]) == (f"{project}.worktrees/fix\udcff", "fix\udcff")
    assert r"fix\xff and its branch" in run("worktree", "remove", "fix\udcff").stdout
    assert ask("worktree", "list")["worktrees"] == []


def test_after_a_restart(run: Run, project: Path) -> None:
    run("worktree", "add", "fix", "--view", "overlay")
    umount2(f"{project}.worktrees/fix", MNT_DETACH)
    listed = run("worktree", "list").stdout
    assert "not mounted" in listed
    assert "forkwise worktree mount" in listed
    assert run("worktree", "mount").stdout == f"{project}.worktrees/fix\n"
    assert run("worktree", "mount", "fix").stdout == "Nothing to mount.\n"


def test_exit_codes(run: Run, project: Path) -> None:
    assert "not a valid name" in run("worktree", "add", "fix", "--branch", "a b", code=1).stderr
    assert "already exists" in run("worktree", "add", "fix", "--branch", "main", code=1).stderr
    assert "inside the checkout" in run("worktree", "add", "./inside", code=1).stderr
    assert "cannot clone" in run("worktree", "add", "fix", "--view", "reflink", code=6).stderr
    assert "worktree list" in run("worktree", "remove", "none", code=5).stderr
    run("worktree", "add", "fix", "--view", "zip", code=2)
    assert "git init" in run("worktree", "add", "fix", "-C", str(project.parent), code=1).stderr


def test_the_hooks_of_an_agent(run: Run, project: Path, tmp_path: Path) -> None:
    create = {"hook_event_name": "WorktreeCreate", "session_id": "s", "cwd": str(project / "sub"), "name": "bold-otter"}
    path = f"{project}.worktrees/bold-otter"
    assert send(create).stdout == f"{path}\n", "only the path"
    assert send(create).stdout == f"{path}\n", "a resumed session gets the same"
    head = subprocess.run(["git", "-C", path, "branch", "--show-current"], capture_output=True, text=True, check=True)
    assert head.stdout == "worktree-bold-otter\n"
    remove = {"hook_event_name": "WorktreeRemove", "cwd": path, "worktree_path": path}
    Path(path, "new.txt").write_text("new\n")
    refused = send(remove, code=1)
    assert refused.stdout == ""
    assert "uncommitted" in refused.stderr
    assert Path(path, "new.txt").exists()
    subprocess.run("git add . && git commit -qm work", shell=True, cwd=path, check=True)
    assert send(remove).stdout == "", "its commits stay on the branch"
    assert not os.path.lexists(path)
    assert b"work" in subprocess.run(["git", "log", "worktree-bold-otter"], cwd=project, capture_output=True).stdout


def test_a_relative_path_in_an_event_begins_at_its_directory(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    event = {"hook_event_name": "WorktreeCreate", "cwd": str(project), "name": "x", "worktree_path": "../beside"}
    path = f"{project.parent}/beside"
    assert send(event).stdout == f"{path}\n"
    send({"hook_event_name": "WorktreeRemove", "cwd": str(project), "worktree_path": "../beside"})
    assert not os.path.lexists(path)


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ("", 2),
        ("[]", 2),
        ("{", 2),
        ("[" * 100_000, 2),
        ({"hook_event_name": "Stop"}, 2),
        ({"hook_event_name": "WorktreeCreate"}, 2),
        ({"hook_event_name": "WorktreeCreate", "name": 1}, 2),
        ({"hook_event_name": "WorktreeCreate", "name": "../x"}, 1),
        ({"hook_event_name": "WorktreeCreate", "name": "-x"}, 1),
        ({"hook_event_name": "WorktreeCreate", "name": "a\nb"}, 1),
        ({"hook_event_name": "WorktreeCreate", "name": "\ud800"}, 2),
        ({"hook_event_name": "WorktreeCreate", "name": "x", "worktree_path": "a\0b"}, 2),
        ({"hook_event_name": "WorktreeRemove"}, 2),
        ({"hook_event_name": "WorktreeRemove", "worktree_path": "/"}, 5),
        ({"hook_event_name": "WorktreeRemove", "worktree_path": "."}, 5),
    ],
)
def test_hostile_events(run: Run, project: Path, event: Any, code: int) -> None:
    assert send(event, code=code).stdout == ""
    assert not os.path.lexists(f"{project}.worktrees")
    assert (project / "a.txt").exists()
