"""Changes that other programs make in a workspace while branches of it live: reported, with their paths."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from forkwise import BranchContext, Workspace
from forkwise.files.edits.edit_comparison import find_edits
from forkwise.files.edits.edit_watch import EditWatch
from forkwise.files.edits.fanotify import FileWatch
from tests.counts import rounds
from tests.need import need


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Create a workspace of a few files."""
    for name in ("a.txt", "b.txt", "src/c.txt", "src/deep/d.txt", ".git/index"):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text("one\n")
    return Workspace(tmp_path / "project", state=tmp_path / "state", durable=False)


class Reports:
    """The paths that a watch reported."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._changed = threading.Condition()

    def add(self, paths: Sequence[str]) -> None:
        with self._changed:
            self.paths += paths
            self._changed.notify_all()

    def wait_for(self, path: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: path in self.paths, 60), self.paths


def need_watch(directory: Path) -> None:
    need(os.geteuid() == 0, "only root can watch a filesystem")
    try:
        FileWatch(str(directory)).close()
    except OSError as error:
        need(False, f"this filesystem cannot be watched: {error.strerror}")


def shell(script: str, directory: Path) -> None:
    subprocess.run(["sh", "-c", script], cwd=directory, check=True)


COMMIT = """
import sys
from forkwise import BranchContext, Workspace
branch = Workspace(sys.argv[1], state=sys.argv[2], durable=False).branch("elsewhere")
(branch.path / "committed").write_text("x")
branch.commit()
"""


def test_the_kernel_reports_edits_of_others_as_they_happen(workspace: Workspace) -> None:
    need_watch(workspace.path)
    reports = Reports()
    with closing(EditWatch(workspace, 0, reports.add)) as watch:
        assert watch.is_active
        assert watch.is_complete
        (workspace.path / "own").write_text("this process, such as its commits")
        shell("echo x > .git/index; echo x > ../beside; echo two > b.txt", workspace.path)
        reports.wait_for("b.txt")
        shell("mkdir new; mv src/c.txt new/e.txt; rm a.txt", workspace.path)
        reports.wait_for("a.txt")
        shell("mv src moved; echo x > moved/deep/d.txt", workspace.path)
        reports.wait_for("moved/deep/d.txt")
        subprocess.run([sys.executable, "-c", COMMIT, workspace.path, workspace.state.parent], check=True)
        shell("echo x > last", workspace.path)
        reports.wait_for("last")
    assert not watch.is_active
    assert sorted(reports.paths) == sorted(
        ["b.txt", "new", "src/c.txt", "new/e.txt", "a.txt", "src", "moved", "moved/deep/d.txt", "last"]
    )


def test_a_storm_of_events_is_bounded(workspace: Workspace, tmp_path: Path) -> None:
    need_watch(workspace.path)
    count = rounds(3_000, 100_000)
    reports = Reports()
    with closing(EditWatch(workspace, 0, reports.add)):
        script = f"i=0; while [ $i -lt {count} ]; do i=$((i+1)); : > $i; done"
        shell(f"mkdir storm; cd storm; {script}; mkdir ../../beside; cd ../../beside; {script}", workspace.path)
    assert 1 <= len(reports.paths) <= 1000
    assert len(set(reports.paths)) == len(reports.paths)
    assert all(path.partition("/")[0] == "storm" for path in reports.paths)


def test_a_function_in_a_sandbox_cannot_read_the_reports(workspace: Workspace) -> None:
    need_watch(workspace.path)

    def list_descriptors(_: Path) -> list[str]:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
        return [os.readlink(f"/proc/self/fd/{n}") for n in numbers if os.path.lexists(f"/proc/self/fd/{n}")]

    with (
        closing(EditWatch(workspace, 0, lambda _: None)),
        workspace.branch("one", None) as branch,
        BranchContext(list_descriptors, branch) as context,
    ):
        context.wait(60)
        assert not [name for name in context.result.value if "fanotify" in name]
        branch.abort()


def test_without_the_right_to_watch_nothing_is_reported(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> FileWatch:
        raise PermissionError

    monkeypatch.setattr("forkwise.files.edits.edit_watch.FileWatch", refuse)
    watch = EditWatch(workspace, 0, lambda paths: None)
    assert not watch.is_active
    assert not watch.is_complete
    watch.close()


def test_edits_are_found_by_their_times(workspace: Workspace) -> None:
    root = workspace.path
    with workspace.branch("one", None) as branch:
        (branch.path / "src/c.txt").write_text("two\n")
        (branch.path / "src/deep/d.txt").write_text("two\n")
        (branch.path / "added").write_text("branch")
        assert find_edits(branch, 0) == []
        (root / "b.txt").write_text("edited")
        (root / ".git/index").write_text("edited")
        assert find_edits(branch, 0) == ["b.txt"]
        (root / "src/c.txt").write_text("edited")
        (root / "src/deep/d.txt").unlink()
        (root / "added").symlink_to("/etc/passwd")
        assert find_edits(branch, 0) == ["added", "b.txt", "src/c.txt", "src/deep/"]
        branch.abort()


def test_what_forkwise_commits_is_no_edit(workspace: Workspace) -> None:
    with workspace.branch("one", None) as one, workspace.branch("two", None) as two:
        for branch in (one, two):
            (branch.path / "src/c.txt").write_text("two\n")
        (two.path / "src/new").write_text("x")
        two.commit()
        assert find_edits(one, 0) == []
        (workspace.path / "b.txt").write_text("edited")
        assert find_edits(one, 0) == ["b.txt"]
        one.abort()


def test_the_cost_does_not_grow_with_the_tree(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    stat, scandir = os.stat, os.scandir
    counts = []

    def count(call: Callable[..., Any]) -> Callable[..., Any]:
        """Count the calls of this thread: another one empties the trash."""
        own = threading.get_ident()

        def counted(*args: Any, **options: Any) -> Any:
            seen.extend(args if threading.get_ident() == own else ())
            return call(*args, **options)

        return counted

    for number in range(3):
        with workspace.branch(f"branch-{number}", None) as branch:
            (branch.path / "src/c.txt").write_text(f"two {number}\n")
            branch.delta()
            with monkeypatch.context() as patch:
                patch.setattr(os, "stat", count(stat))
                patch.setattr(os, "scandir", count(scandir))
                find_edits(branch, 0)
            branch.abort()
        counts.append(len(seen))
        seen.clear()
        for name in range(300):
            (workspace.path / "src/deep" / f"{number}-{name}").write_text("x")
    assert counts[2] <= counts[1] <= counts[0]
