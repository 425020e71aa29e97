"""gc by example: it removes the leftovers of dead processes, nothing in use, and stays on its filesystem.

Also: other processes use branches whose process was killed, or whose machine was restarted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import forkwise
from forkwise import BranchError, BranchNotFoundError, CommitError, Workspace
from forkwise.errors import ForkwiseWarning, StateError
from forkwise.files.store import trash
from forkwise.files.store.trash import discard
from forkwise.files.store.view import View
from forkwise.files.views import view_named
from forkwise.linux.mountinfo import mounts
from tests.files.images import mounted_tmpfs
from tests.files.snapshot import snapshot
from tests.need import need

Open = Callable[..., Workspace]

MAKER = """
import os, signal, sys
from pathlib import Path
from forkwise import Workspace

IN_MEMORY = True

workspace = Workspace(sys.argv[1], view=sys.argv[2], durable=False)
for name in sys.argv[3:]:
    parent = workspace
    *above, last = name.split("/")
    for one in above:
        parent = parent.open(one) if parent is workspace else next(c for c in parent.children() if c.name == one)
    branch = parent.branch(last.removesuffix("+").removesuffix("!"))
    if last.endswith("+"):
        (branch.path / "f").write_text("changed\\n")
        (branch.path / "new").write_text("new\\n")
    elif last.endswith("!"):
        branch.keep()
    else:
        assert (branch.path / "f").read_text() == "f\\n"
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def workspace(tmp_path: Path, view: str, open_workspace: Open) -> Workspace:
    project = tmp_path / "project"
    (project / "d").mkdir(parents=True)
    (project / "f").write_text("f\n")
    (project / "d" / "a").write_text("a\n")
    return open_workspace(project, view=view)


def leave_behind(workspace: Workspace, *names: str) -> None:
    """Create branches in a process that dies. A name that ends in ``+`` has changes, one that ends in ``!`` is kept."""
    where = Path(forkwise.__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": str(where)}
    command = [sys.executable, "-c", MAKER, str(workspace.path), workspace.fstype, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr


def everything(workspace: Workspace) -> dict[str, object]:
    """Describe workspace and state completely, including times."""
    return {"workspace": snapshot(workspace.path), "state": sorted(map(str, workspace.state.rglob("*")))}


def names(workspace: Workspace) -> list[str]:
    return [b.branch_path for b in workspace.branches()]


# What is removed and what is not


def test_a_dead_process_s_branch_without_changes_goes(workspace: Workspace) -> None:
    leave_behind(workspace, "dead")
    assert names(workspace) == ["/main/dead"]
    assert not workspace.branches()[0].owner_alive
    collected = workspace.gc()
    assert collected.removed == ("/main/dead",)
    assert collected.listed == ()
    assert names(workspace) == []
    assert os.listdir(workspace.state / "trash") == []


def test_a_dead_process_s_branch_with_changes_is_listed_and_stays(workspace: Workspace) -> None:
    leave_behind(workspace, "dead+")
    collected = workspace.gc()
    assert collected.removed == ()
    assert collected.listed == ("/main/dead",)
    assert (workspace.open("dead").path / "f").read_text() == "changed\n"
    collected = workspace.gc(force=True)
    assert collected.removed == ("/main/dead",)
    assert collected.freed > 0
    assert names(workspace) == []
    assert (workspace.path / "f").read_text() == "f\n"


def test_branches_of_the_living_and_kept_ones_stay(workspace: Workspace) -> None:
    leave_behind(workspace, "kept!")
    mine = workspace.branch("mine")
    collected = workspace.gc(force=True)
    assert (collected.removed, collected.listed) == ((), ())
    assert names(workspace) == ["/main/kept", "/main/mine"]
    assert (mine.path / "f").read_text() == "f\n"


def test_a_chain_of_dead_branches_goes_as_a_whole(workspace: Workspace) -> None:
    leave_behind(workspace, "outer", "outer/inner", "outer/inner/innermost")
    wanted = {"/main/outer", "/main/outer/inner", "/main/outer/inner/innermost"}
    assert set(workspace.gc(dry_run=True).removed) == wanted
    assert set(workspace.gc().removed) == wanted
    assert names(workspace) == []


def test_a_dead_branch_stays_while_one_made_from_it_does(workspace: Workspace) -> None:
    leave_behind(workspace, "outer", "outer/inner+", "other", "other/kept!")
    collected = workspace.gc()
    assert collected.removed == ()
    assert collected.listed == ("/main/outer/inner",)
    assert names(workspace) == ["/main/other", "/main/other/kept", "/main/outer", "/main/outer/inner"]
    assert (workspace.open("outer/inner").path / "f").read_text() == "changed\n"


def test_unfinished_branches_are_removed(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    for place in (workspace.state / "branches", Path(branch.home) / "branches"):
        (place / ".new-1-1" / "layer").mkdir(parents=True)
        (place / ".new-1-1" / "layer" / "f").write_text("f")
    assert names(workspace) == ["/main/b"]
    workspace.gc()
    assert list(workspace.state.rglob(".new-*")) == []
    assert names(workspace) == ["/main/b"]


def test_a_trial_of_a_view_that_was_killed_goes_with_its_mount(workspace: Workspace) -> None:
    state = Path(workspace.site.state)
    dead = subprocess.Popen(["true"])
    dead.wait()
    trial, running = state / f".probe-{dead.pid}-00", state / f".probe-{os.getpid()}-00"
    for home in (trial, running):
        (home / "view").mkdir(parents=True)
    if os.geteuid() == 0:
        subprocess.run(["mount", "-t", "tmpfs", "none", str(trial / "view")], check=True)
    workspace.gc()
    assert not trial.exists()
    assert running.exists()
    assert str(trial) not in Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    shutil.rmtree(running)


KILLED_IN_A_TRIAL = """
import os, signal, sys
from forkwise import Workspace
from forkwise.files.views import overlay

overlay.umount2 = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
Workspace(sys.argv[1], durable=False).branch("b")
"""


def test_the_next_branch_removes_a_trial_mount_whose_process_was_killed(tmp_path: Path) -> None:
    need(os.geteuid() == 0, "only root can mount an overlay for all to see")
    project = tmp_path / "project"
    project.mkdir()
    done = subprocess.run([sys.executable, "-c", KILLED_IN_A_TRIAL, str(project)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    state = Workspace(project).state
    assert any(m.point.startswith(f"{state}/.probe-") for m in mounts())
    Workspace(project, durable=False).branch("b").abort()
    assert [m.point for m in mounts() if m.point.startswith(f"{state}/")] == []
    assert list(state.glob(".probe-*")) == []


def test_threads_that_branch_a_workspace_first_try_its_views_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that went on in one thread while another worked in its branch left its mount when both were killed."""
    (tmp_path / "project").mkdir()
    workspace = Workspace(tmp_path / "project", durable=False)
    tried: list[object] = []
    threads: list[threading.Thread] = []

    def choose_while_another_starts(site: object) -> View:
        tried.append(site)
        if len(tried) == 1:
            threads.append(threading.Thread(target=workspace.child_view))
            threads[0].start()
            threads[0].join(0.05)  # returns early only if the other thread did not wait for this one
        return view_named("copy")

    monkeypatch.setattr("forkwise.files.workspace.choose", choose_while_another_starts)
    workspace.child_view()
    threads[0].join()
    assert len(tried) == 1


def test_the_trash_is_emptied(workspace: Workspace) -> None:
    left = workspace.state / "trash" / "left-by-a-killed-process"
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "f").write_text("f" * 5000)
    collected = workspace.gc()
    assert collected.freed >= 5000
    assert os.listdir(workspace.state / "trash") == []


def test_history_is_pruned(workspace: Workspace) -> None:
    for number in range(5):
        with workspace.branch("b") as branch:
            (branch.path / "f").write_text(f"{number}\n")
    collected = workspace.gc(keep=2)
    assert sorted(collected.removed) == ["commit 1", "commit 2", "commit 3"]
    assert [c.id for c in workspace.history()] == [5, 4]
    assert sorted(os.listdir(workspace.state / "history")) == ["4", "5"]
    workspace.undo()
    assert (workspace.path / "f").read_text() == "3\n"
    workspace.undo()
    assert (workspace.path / "f").read_text() == "2\n"


def test_a_dry_run_says_the_same_and_changes_nothing(workspace: Workspace) -> None:
    leave_behind(workspace, "dead", "changed+", "outer", "outer/inner")
    for number in range(3):
        with workspace.branch("b") as branch:
            (branch.path / "f").write_text(f"{number}\n")
    (workspace.state / "trash" / "left").mkdir()
    (workspace.state / "branches" / ".new-1-1").mkdir()
    trash.wait_until_empty()
    before = everything(workspace)
    said = workspace.gc(keep=1, dry_run=True)
    assert everything(workspace) == before
    assert said == workspace.gc(keep=1)
    assert set(said.removed) == {"/main/dead", "/main/outer", "/main/outer/inner", "commit 1", "commit 2"}
    assert said.listed == ("/main/changed",)


def test_gc_of_nothing(workspace: Workspace) -> None:
    before = snapshot(workspace.path)
    collected = workspace.gc()
    assert (collected.removed, collected.listed, collected.freed) == ((), (), 0)
    assert snapshot(workspace.path) == before


def test_gc_thaws_what_a_dead_branch_had_frozen(workspace: Workspace) -> None:
    mine = workspace.branch("mine")
    leave_behind(workspace, "mine/dead")
    assert mine.status == "frozen"
    assert workspace.gc().removed == ("/main/mine/dead",)
    assert mine.status == "open"
    (mine.path / "f").write_text("writable again\n")
    assert mine.delta().changed == ("f",)


# Mounts


def test_a_mount_in_the_trash_is_not_followed(workspace: Workspace) -> None:
    home = workspace.state / "branches" / "left"
    (home / "mounted").mkdir(parents=True)
    with mounted_tmpfs(home / "mounted"):
        (home / "mounted" / "precious").write_text("precious\n")
        discard(workspace.state_dir, str(home))
        trash.wait_until_empty()
        workspace.gc()
        (found,) = (workspace.state / "trash").rglob("precious")
        assert found.read_text() == "precious\n"
        # The unmount at the end of the block goes by the old name.
        found.parent.parent.rename(home)
    shutil.rmtree(home)


@pytest.mark.parametrize("force", [False, True])
def test_a_mount_in_a_branch_s_layer_is_not_followed(workspace: Workspace, force: bool) -> None:
    leave_behind(workspace, "dead+")
    home = Path(workspace.open("dead").home)
    (home / "layer" / "mounted").mkdir()
    with mounted_tmpfs(home / "layer" / "mounted"):
        (home / "layer" / "mounted" / "precious").write_text("precious\n")
        collected = workspace.gc(force=force)
        if force:
            (gone,) = (workspace.state / "trash").iterdir()
            assert (gone / "layer" / "mounted" / "precious").read_text() == "precious\n"
            gone.rename(home)  # the unmount at the end of the block goes by the old name
        else:
            assert collected.listed == ("/main/dead",)
            assert (home / "layer" / "mounted" / "precious").read_text() == "precious\n"
            assert (home / "layer" / "f").read_text() == "changed\n"
    if force:
        shutil.rmtree(home)
    else:
        (home / "layer" / "mounted").rmdir()


def test_a_mount_in_a_workspace_is_not_followed(workspace: Workspace) -> None:
    mounted = workspace.path / "mounted"
    mounted.mkdir()
    with mounted_tmpfs(mounted):
        (mounted / "precious").write_text("precious\n")
        leave_behind(workspace, "dead", "changed+")
        workspace.gc(force=True)
        assert (mounted / "precious").read_text() == "precious\n"
        assert names(workspace) == []


# Another process continues with the branches of a dead one


def test_a_killed_process_s_branch_can_be_looked_at(workspace: Workspace, open_workspace: Open) -> None:
    leave_behind(workspace, "dead+")
    branch = open_workspace(workspace.path).open("dead")
    assert branch.status == "open"
    assert not branch.owner_alive
    assert (branch.path / "new").read_text() == "new\n"
    assert (branch.delta().added, branch.delta().changed) == (("new",), ("f",))
    assert "+changed" in branch.diff()


def test_a_killed_process_s_branch_can_be_committed(workspace: Workspace, open_workspace: Open) -> None:
    leave_behind(workspace, "dead+")
    again = open_workspace(workspace.path)
    commit = again.open("/main/dead").commit()
    assert (commit.added, commit.changed) == (("new",), ("f",))
    assert (workspace.path / "f").read_text() == "changed\n"
    again.undo()
    assert (workspace.path / "f").read_text() == "f\n"


def test_a_killed_process_s_branch_can_be_aborted(workspace: Workspace, open_workspace: Open) -> None:
    leave_behind(workspace, "dead+")
    before = snapshot(workspace.path)
    open_workspace(workspace.path).open("dead").abort()
    assert names(workspace) == []
    assert snapshot(workspace.path) == before
    with pytest.raises(BranchNotFoundError):
        workspace.open("dead")


def test_the_branch_of_a_killed_process_can_be_continued(workspace: Workspace) -> None:
    leave_behind(workspace, "dead+")
    branch = workspace.open("dead")
    (branch.path / "d" / "a").write_text("mine\n")
    child = branch.branch("child")
    (child.path / "new").unlink()
    child.commit()
    commit = branch.commit()
    assert commit.changed == ("d/a", "f")
    assert commit.added == ()


# After a restart


def restart(workspace: Workspace, name: str) -> None:
    """Pretend that the machine was restarted since the branch was created: its boot id differs."""
    path = Path(workspace.open(name).home) / "branch.json"
    data = json.loads(path.read_text())
    data["boot"] = "00000000-0000-0000-0000-000000000000"
    data["owner"][2] = data["boot"]
    path.write_text(json.dumps(data))


def test_after_a_restart_unsynced_changes_are_not_committed_unasked(workspace: Workspace, open_workspace: Open) -> None:
    leave_behind(workspace, "dead+")
    restart(workspace, "dead")
    branch = open_workspace(workspace.path).open("dead")
    assert not branch.owner_alive
    before = snapshot(workspace.path)
    with pytest.raises(CommitError, match="trust") as caught:
        branch.commit()
    assert set(caught.value.paths) == {"f", "new"}
    assert snapshot(workspace.path) == before
    assert (branch.path / "new").read_text() == "new\n"
    branch.commit(trust=True)
    assert (workspace.path / "new").read_text() == "new\n"


def test_after_a_restart_a_branch_without_changes_needs_no_trust(workspace: Workspace) -> None:
    leave_behind(workspace, "dead")
    restart(workspace, "dead")
    assert workspace.open("dead").commit().paths == ()


def test_after_a_restart_a_kept_branch_needs_no_trust(workspace: Workspace) -> None:
    leave_behind(workspace, "dead+")
    workspace.open("dead").keep()
    restart(workspace, "dead")
    assert set(workspace.open("dead").commit().paths) == {"f", "new"}


def test_after_a_restart_writes_to_a_kept_branch_need_trust(workspace: Workspace) -> None:
    leave_behind(workspace, "dead+")
    branch = workspace.open("dead").keep()
    (branch.path / "later").write_text("later\n")
    restart(workspace, "dead")
    with pytest.raises(CommitError, match="trust") as caught:
        workspace.open("dead").commit()
    assert caught.value.paths == ("later",)


def test_after_a_restart_a_deletion_needs_no_trust_and_a_rebase_gives_none(workspace: Workspace) -> None:
    leave_behind(workspace, "dead+")
    branch = workspace.open("dead").keep()
    (branch.path / "d" / "a").unlink()
    restart(workspace, "dead")
    branch = workspace.open("dead")
    branch.rebase()
    if branch.view == "overlay":
        assert "d/a" in branch.commit().deleted
    else:
        # A rebase wrote the whole tree again, in this boot or an earlier one; only its record says which.
        with pytest.raises(CommitError, match="trust"):
            branch.commit()
        assert "d/a" in branch.commit(trust=True).deleted


def test_after_a_restart_gc_collects_by_the_same_rules(workspace: Workspace) -> None:
    leave_behind(workspace, "dead", "changed+", "kept!")
    for name in ("dead", "changed", "kept"):
        restart(workspace, name)
    collected = workspace.gc()
    assert collected.removed == ("/main/dead",)
    assert collected.listed == ("/main/changed",)
    assert names(workspace) == ["/main/changed", "/main/kept"]


def test_after_a_restart_a_live_number_is_not_taken_for_the_owner(workspace: Workspace) -> None:
    """A process id and even a start time may recur; the boot id does not."""
    workspace.branch("mine")
    restart(workspace, "mine")
    assert not workspace.open("mine").owner_alive
    assert workspace.gc().removed == ("/main/mine",)


# After a power failure


@pytest.mark.parametrize("content", ["", "\0" * 300, None], ids=["empty", "zeros", "missing"])
def test_a_branch_that_a_power_failure_took_affects_no_other(workspace: Workspace, content: str | None) -> None:
    leave_behind(workspace, "lost+", "other+", "kept!")
    facts = workspace.state / "branches/lost/branch.json"
    facts.unlink()
    if content is not None:
        facts.write_text(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForkwiseWarning)
        assert [b.name for b in workspace.branches()] == ["kept", "other"]
        with pytest.raises(BranchNotFoundError if content is None else StateError):
            workspace.open("lost")
        workspace.open("other").abort()
        assert workspace.gc().listed == ("/main/lost",)
        assert workspace.gc(force=True).removed == ("/main/lost",)
    assert [b.name for b in workspace.branches()] == ["kept"]
    assert not facts.parent.exists()


def test_the_name_of_a_branch_that_a_power_failure_took_is_free(workspace: Workspace) -> None:
    leave_behind(workspace, "lost+")
    (workspace.state / "branches/lost/branch.json").write_bytes(b"")
    with workspace.branch("lost") as branch:
        assert (branch.path / "f").read_text() == "f\n"
        (branch.path / "f").write_text("again\n")
    assert (workspace.path / "f").read_text() == "again\n"


def test_a_copy_without_its_record_is_listed_and_can_be_removed(tmp_path: Path, open_workspace: Open) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/f").write_text("f\n")
    workspace = open_workspace(tmp_path / "project", view="copy")
    leave_behind(workspace, "torn")
    (workspace.state / "branches/torn/base.json").write_bytes(b"")
    assert workspace.gc().listed == ("/main/torn",)
    with pytest.raises(BranchError, match=r"base\.json is empty or damaged"):
        workspace.open("torn").delta()
    workspace.open("torn").abort()
    assert workspace.branches() == []
