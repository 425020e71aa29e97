"""``forkwise gc --all``: the state of workspaces that no longer exist."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forkwise import Workspace
from forkwise.files.gc import collect_orphans

Ask = Callable[..., Any]


@pytest.fixture(autouse=True)
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


def open_workspace(path: Path, *, commits: int = 1) -> Path:
    """Create a workspace with a commit, and return its state directory."""
    path.mkdir(parents=True)
    workspace = Workspace(path)
    for number in range(commits):
        with workspace.branch("b") as branch:
            (branch.path / f"{number}.txt").write_text("x")
    return workspace.state


def found(ask: Ask, *words: str) -> dict[str, tuple[bool, str]]:
    """Return, by the state's directory, whether it was removed and why not."""
    answer = ask("gc", "--all", *words)
    return {orphan["state"]: (orphan["removed"], orphan["reason"]) for orphan in answer["orphans"]}


@pytest.mark.parametrize("how", ["deleted", "renamed", "replaced by a file"])
def test_the_state_of_a_workspace_that_is_gone_is_removed(ask: Ask, tmp_path: Path, how: str) -> None:
    gone, there = open_workspace(tmp_path / "gone"), open_workspace(tmp_path / "there")
    if how == "renamed":
        (tmp_path / "gone").rename(tmp_path / "new-name")
    else:
        shutil.rmtree(tmp_path / "gone")
    if how == "replaced by a file":
        shutil.rmtree(tmp_path / "there")
        (tmp_path / "there").mkdir()
    assert found(ask, "--dry-run") == {str(gone): (True, "")}
    assert gone.exists()
    assert found(ask) == {str(gone): (True, "")}
    assert not gone.exists()
    assert there.exists()
    assert found(ask) == {}


def test_roots_next_to_a_workspace_are_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORKWISE_STATE")
    (tmp_path / "work/ws").mkdir(parents=True)
    root = tmp_path / "work" / f".forkwise-{os.geteuid()}"
    root.mkdir(mode=0o700)
    state = Workspace(tmp_path / "work/ws", state=root).state
    shutil.rmtree(tmp_path / "work/ws")
    [orphan] = collect_orphans(force=False, dry_run=False)
    assert (orphan.state, orphan.workspace, orphan.reason) == (str(state), str(tmp_path / "work/ws"), "")
    assert not state.exists()


def test_uncommitted_changes_are_kept_unless_forced(ask: Ask, tmp_path: Path) -> None:
    state = open_workspace(tmp_path / "gone")
    branch = Workspace(tmp_path / "gone").branch("work").keep()
    (branch.path / "a.txt").write_text("a day's work")
    branch.hide()
    shutil.rmtree(tmp_path / "gone")
    assert found(ask) == {str(state): (False, "its branch work has changes that were not committed")}
    assert (state / "branches/work/layer/a.txt").exists()
    assert found(ask, "--force") == {str(state): (True, "")}
    assert not state.exists()


def test_a_branch_of_a_running_process_is_kept_even_if_forced(ask: Ask, tmp_path: Path) -> None:
    state = open_workspace(tmp_path / "gone")
    Workspace(tmp_path / "gone").branch("mine")
    shutil.rmtree(tmp_path / "gone")
    assert found(ask, "--force") == {str(state): (False, "a running process uses its branch mine")}


@pytest.mark.parametrize("what", ["nothing", "another path", "torn", "relative"])
def test_state_that_does_not_say_whose_it_is_is_kept(ask: Ask, tmp_path: Path, what: str) -> None:
    state = open_workspace(tmp_path / "sub/gone")
    shutil.rmtree(tmp_path / "sub")
    file = state / "workspace.json"
    document = json.loads(file.read_text())
    if what == "nothing":
        file.unlink()
    elif what == "torn":
        file.write_text("")
    else:
        file.write_text(json.dumps({**document, "path": "/nowhere" if what == "another path" else "nowhere"}))
    assert found(ask, "--force") == {str(state): (False, "its workspace is not known")}
    assert state.exists()


def test_state_of_a_filesystem_that_is_not_mounted_is_kept(ask: Ask, tmp_path: Path) -> None:
    state = open_workspace(tmp_path / "disk/gone")
    document = json.loads((state / "workspace.json").read_text())
    (state / "workspace.json").write_text(json.dumps({**document, "mount": str(tmp_path / "disk")}))
    shutil.rmtree(tmp_path / "disk/gone")
    [(removed, reason)] = found(ask, "--force").values()
    assert not removed
    assert "no filesystem is mounted at" in reason


def test_nothing_else_in_a_root_is_touched(ask: Ask, tmp_path: Path) -> None:
    root = open_workspace(tmp_path / "there").parent
    (root / "notes-0123456789abcdef").mkdir()
    (root / "link-0123456789abcdef").symlink_to(tmp_path / "there")
    assert found(ask, "--force") == {}
    assert (root / "notes-0123456789abcdef").exists()
