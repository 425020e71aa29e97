"""Pooled homes: a branch created from one is like any other, of the workspace at the time of the fork.

Whatever happened to the workspace, to the pooled home or to its process meanwhile must not show.
"""

from __future__ import annotations

import gc
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from forkwise import ConflictError, Workspace
from forkwise.files.store import pool, trash
from forkwise.files.store.pool import BranchPool
from forkwise.files.store.view import DetachedMount
from forkwise.linux.syscalls import filesystem_magic
from tests.files.snapshot import snapshot
from tests.files.steps import Steps, in_child
from tests.need import need

Open = Callable[..., Workspace]
IN_MEMORY = True
OVERLAYFS = 0x794C7630

MAKER = """
import os, signal, sys
from forkwise import Workspace
from forkwise.files.store import trash

workspace = Workspace(sys.argv[1], view="overlay", durable=False)
for number in range(4):
    workspace.branch(f"b{number}").abort()
trash.wait_until_empty()
assert [n for n in os.listdir(f"{workspace.state}/branches") if n.startswith(".spare-")]
os.kill(os.getpid(), int(sys.argv[2]))
"""

INTERRUPTED = f"""
{MAKER.rpartition("os.kill")[0]}
import gc
from forkwise.files.store import pool

remove_tree = pool.remove_tree

def interrupt(*_):
    pool.remove_tree = remove_tree
    raise KeyboardInterrupt

pool.remove_tree = interrupt
del workspace
gc.collect()
assert pool.remove_tree is remove_tree
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "d").mkdir(parents=True)
    (root / "f").write_text("f\n")
    (root / "d" / "a").write_text("a\n")
    (root / "gone").write_text("gone\n")
    return root


@pytest.fixture(params=["overlay", "fuse"])
def workspace(request: pytest.FixtureRequest, project: Path, open_workspace: Open) -> Workspace:
    need(os.geteuid() == 0, "mounting an overlay needs root")
    return fill_pool(open_workspace(project, view=request.param))


@pytest.fixture
def overlaid(project: Path, open_workspace: Open) -> Workspace:
    need(os.geteuid() == 0, "mounting an overlay needs root")
    return fill_pool(open_workspace(project, view="overlay"))


def pool_of(workspace: Workspace) -> BranchPool:
    own_pool = workspace._pool_for(workspace.child_view())
    assert own_pool is not None
    return own_pool


def fill_pool(workspace: Workspace) -> Workspace:
    """The workspace with a filled pool."""
    for number in range(4):
        workspace.branch(f"warm-{number}").abort()
    trash.wait_until_empty()
    need(bool(pooled_homes(workspace)), "the filesystem's clock is too coarse for a pool")
    return workspace


def pooled_homes(workspace: Workspace) -> list[str]:
    return [n for n in os.listdir(workspace.state / "branches") if n.startswith(".spare-")]


def taken(workspace: Workspace, name: str = "b") -> Path:
    """Create a branch from a pooled home and return its path."""
    trash.wait_until_empty()  # a home that is prepared meanwhile would be taken first
    before = set(pooled_homes(workspace))
    branch = workspace.branch(name)
    assert before - set(pooled_homes(workspace))
    return branch.path


def test_it_is_of_what_the_workspace_is_now(workspace: Workspace) -> None:
    root = workspace.path
    (root / "new").write_text("new\n")
    (root / "gone").unlink()
    (root / "f").write_text("another\n")
    (root / "d").rename(root.parent / "old")
    (root / "d").mkdir()
    (root / "d" / "b").write_text("b\n")
    seen = taken(workspace)
    assert snapshot(seen) == snapshot(root)
    assert not workspace.open("b").delta()


def test_it_looks_like_the_workspace_now(workspace: Workspace) -> None:
    root = workspace.path
    os.setxattr(root, "user.colour", b"red")
    os.chmod(root, 0o750)
    os.utime(root, ns=(1, 2_000_000_000))
    seen = taken(workspace)
    assert os.getxattr(seen, "user.colour") == b"red"
    assert stat.S_IMODE(seen.stat().st_mode) == 0o750
    assert seen.stat().st_mtime_ns == 2_000_000_000
    fill_pool(workspace)
    os.removexattr(root, "user.colour")
    os.chmod(root, 0o705)
    seen = taken(workspace, "c")
    assert "user.colour" not in os.listxattr(seen)
    assert stat.S_IMODE(seen.stat().st_mode) == 0o705
    (seen / "mine").write_text("mine\n")
    assert [c.path for c in workspace.open("c").delta().changes] == ["mine"]


def test_another_directory_in_the_place_of_the_workspace(overlaid: Workspace) -> None:
    root = overlaid.path
    root.rename(root.parent / "old")
    root.mkdir()
    (root / "other").write_text("other\n")
    seen = taken(overlaid)
    assert snapshot(seen) == snapshot(root)
    (seen / "other").write_text("changed\n")
    overlaid.open("b").commit()
    assert (root / "other").read_text() == "changed\n"
    assert not (root.parent / "old" / "other").exists()


def test_one_that_is_older_than_a_commit(overlaid: Workspace) -> None:
    with overlaid.branch("first") as first:
        (first.path / "f").write_text("first\n")
        (first.path / "d" / "b").write_text("first\n")
    seen = taken(overlaid)
    assert snapshot(seen) == snapshot(overlaid.path)
    branch = overlaid.open("b")
    assert branch.status == "open"
    (seen / "f").write_text("second\n")
    branch.commit()
    assert (overlaid.path / "f").read_text() == "second\n"
    overlaid.undo()
    assert (overlaid.path / "f").read_text() == "first\n"


def test_conflicts_count_from_when_it_was_asked_for(overlaid: Workspace) -> None:
    (overlaid.path / "f").write_text("before the fork\n")
    seen = taken(overlaid)
    (seen / "f").write_text("branch\n")
    overlaid.open("b").commit()
    assert (overlaid.path / "f").read_text() == "branch\n"
    fill_pool(overlaid)
    seen = taken(overlaid, "c")
    (overlaid.path / "f").write_text("after the fork\n")
    (seen / "f").write_text("branch again\n")
    with pytest.raises(ConflictError):
        overlaid.open("c").commit()
    assert (overlaid.path / "f").read_text() == "after the fork\n"


def test_another_process_looked_at_the_branch_first(overlaid: Workspace, open_workspace: Open) -> None:
    branch = overlaid.branch("b")
    other = open_workspace(overlaid.path).open("b")
    (other.path / "d" / "theirs").write_text("theirs\n")
    assert (branch.path / "d" / "theirs").read_text() == "theirs\n"
    assert len([c.path for c in branch.delta().changes]) == 1


def test_another_process_wrote_to_the_branch_and_took_its_view_down(overlaid: Workspace, open_workspace: Open) -> None:
    branch = overlaid.branch("b")
    other = open_workspace(overlaid.path).open("b")
    (other.path / "f").write_text("theirs\n")
    (other.path / "gone").unlink()
    other.view_kind.hide(other.home)
    assert (branch.path / "f").read_text() == "theirs\n"
    assert not (branch.path / "gone").exists()


def test_another_process_froze_the_branch_first(overlaid: Workspace, open_workspace: Open) -> None:
    branch = overlaid.branch("b")
    open_workspace(overlaid.path).open("b").freeze()
    with pytest.raises(OSError, match="Read-only"):
        (branch.path / "f").write_text("no\n")


def test_a_child_has_none_of_the_mounts(overlaid: Workspace) -> None:
    """A process that is confined to one branch must not reach others through an inherited descriptor."""
    branch = overlaid.branch("b")
    assert DetachedMount.count() > 1

    def look() -> tuple[int, int, str, str]:
        own = Workspace(overlaid.path).branch("of-the-child")
        read = (branch.path / "f").read_text(), (own.path / "f").read_text()
        return DetachedMount.count(), descriptors_on_an_overlay(), *read

    assert descriptors_on_an_overlay() > 1
    outcome = in_child(look)
    assert outcome.raised is None
    assert outcome.value == (0, 0, "f\n", "f\n")
    assert (branch.path / "f").read_text() == "f\n"
    assert (overlaid.branch("c").path / "f").read_text() == "f\n"


def descriptors_on_an_overlay() -> int:
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor that read the list
            found += filesystem_magic(f"/proc/self/fd/{fd}") == OVERLAYFS
    return found


def test_few_mounts_are_kept_for_unused_branches(
    project: Path, open_workspace: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(os.geteuid() == 0, "mounting an overlay needs root")
    gc.collect()
    monkeypatch.setattr(pool, "_MAX_MOUNTS", DetachedMount.count() + 3)
    workspace = open_workspace(project, view="overlay")
    made = []
    for number in range(30):
        made.append(workspace.branch(f"b{number}"))
        trash.wait_until_empty()
    assert DetachedMount.count() <= pool._MAX_MOUNTS
    assert {(branch.path / "f").read_text() for branch in made} == {"f\n"}


def test_a_commit_makes_nothing_that_can_lie_ready(overlaid: Workspace) -> None:
    (taken(overlaid) / "f").write_text("changed\n")
    outcome = in_child(lambda: overlaid.open("b").commit(durable=False), Steps())
    assert outcome.raised is None
    assert not {"mkdir", "symlink", "link"} & set(outcome.calls)
    assert (overlaid.path / "f").read_text() == "changed\n"
    overlaid.undo()
    assert (overlaid.path / "f").read_text() == "f\n"


def test_a_coarse_clock_has_no_pool(project: Path, open_workspace: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    need(os.geteuid() == 0, "mounting an overlay needs root")
    monkeypatch.setattr(pool, "_has_fine_clock", lambda _: False)
    workspace = open_workspace(project, view="overlay")
    for number in range(6):
        assert (workspace.branch(f"b{number}").path / "f").read_text() == "f\n"
    trash.wait_until_empty()
    assert pooled_homes(workspace) == []


def test_a_coarse_clock_is_distinguished_from_a_fine_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def has_fine_clock(*times: int) -> bool:
        seen = iter(times)

        class Found:
            def __init__(self) -> None:
                self.st_mtime_ns = next(seen)

        with monkeypatch.context() as patched:
            patched.setattr(pool.os, "stat", lambda _: Found())
            patched.setattr(pool.os, "utime", lambda _: None)
            return pool._has_fine_clock(str(tmp_path))

    tick = 4_000_000
    assert has_fine_clock(100, 250)
    assert has_fine_clock(100, 100 + tick, 100 + tick + 900)
    assert not has_fine_clock(100, 100)
    assert not has_fine_clock(100, 100 + tick, 100 + tick)
    assert not has_fine_clock(*range(0, 100 * tick, tick))


def test_an_idle_pool_is_dropped(overlaid: Workspace) -> None:
    own_pool = pool_of(overlaid)
    own_pool.drop_if_idle()
    assert pooled_homes(overlaid)
    own_pool._requested_at = float("-inf")
    own_pool.drop_if_idle()
    assert pooled_homes(overlaid) == []
    assert (overlaid.branch("b").path / "f").read_text() == "f\n"


def test_it_goes_with_the_workspace(project: Path) -> None:
    need(os.geteuid() == 0, "mounting an overlay needs root")
    gc.collect()
    before = DetachedMount.count()
    workspace = fill_pool(Workspace(project, view="overlay"))
    branches = workspace.state / "branches"
    del workspace
    gc.collect()
    trash.wait_until_empty()
    assert os.listdir(branches) == []
    assert DetachedMount.count() <= before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_goes_with_the_process(project: Path, open_workspace: Open, number: signal.Signals) -> None:
    """A killed process leaves names and no mount; gc removes those, and not those of running processes."""
    need(os.geteuid() == 0, "mounting an overlay needs root")
    done = subprocess.run(
        [sys.executable, "-c", MAKER, str(project), str(int(number))], capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0
    assert "AssertionError" not in done.stderr
    workspace = open_workspace(project, view="overlay")
    left = pooled_homes(workspace)
    assert bool(left) == (number == signal.SIGKILL)
    fill_pool(workspace)
    own = set(pooled_homes(workspace)) - set(left)
    workspace.gc()
    assert set(pooled_homes(workspace)) == own
    assert (taken(workspace) / "f").read_text() == "f\n"


def test_what_an_interrupted_removal_left_goes_with_its_process(project: Path, open_workspace: Open) -> None:
    need(os.geteuid() == 0, "mounting an overlay needs root")
    workspace = open_workspace(project, view="overlay")
    command = [sys.executable, "-c", INTERRUPTED, str(project)]
    ended = subprocess.run(command, env=os.environ | {"FORKWISE_STATE": str(workspace.state.parent)}, check=False)
    assert ended.returncode == 0
    assert pooled_homes(workspace) == []
