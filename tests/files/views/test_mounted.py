"""Workspaces on a branching filesystem: the public interface on a BranchFS stand-in, on recorded calls of DaxFS, and
on the real ones if there are any.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkwise import (
    Branch,
    BranchError,
    BranchNotFoundError,
    BranchStaleError,
    Commit,
    ExecutableConfigError,
    ForkwiseWarning,
    MountError,
    Workspace,
)
from forkwise.files.combine import combine
from forkwise.files.mounted import MountedWorkspace, find_branching_mount
from forkwise.files.views import branchfs
from forkwise.linux.mountinfo import mounts
from tests.branchfs import BUILDS, install, mounted
from tests.daxfs import RecordedDaxfs

#: For tests of what does not depend on the build of BranchFS.
one_build = pytest.mark.parametrize("branchfs_mount", BUILDS[:1], indirect=True)


@pytest.fixture
def ws(branchfs: Path) -> Iterator[Workspace]:
    workspace = Workspace(branchfs)
    yield workspace
    for branch in reversed(workspace.branches()):
        branch.abort()


def test_a_branch_is_made_committed_and_aborted_by_the_filesystem(ws: Workspace) -> None:
    """Seed: "You just create a `Workspace` pointed at a mounted path - the backend is detected automatically." """
    assert ws.fstype == "branchfs"
    with ws.branch("one") as one:
        assert isinstance(one, Branch)
        assert one.path.parent == ws.path
        assert one.branch_path == "/main/one"
        assert [b.branch_path for b in ws.branches()] == ["/main/one"]
        (one.path / "a.txt").write_text("two\n")
        (one.path / "new").mkdir()
        (one.path / "new/file").write_text("new")
        (one.path / "sub/x").unlink()
        assert (ws.path / "a.txt").read_text() == "one\n"
    assert one.status == "committed"
    assert (ws.path / "a.txt").read_text() == "two\n"
    assert (ws.path / "new/file").read_text() == "new"
    assert not (ws.path / "sub/x").exists()
    with pytest.raises(FileNotFoundError), ws.branch("two") as two:
        (two.path / "a.txt").rename(two.path / "nowhere/a.txt")
    assert (ws.path / "a.txt").read_text() == "two\n"
    assert ws.branches() == []
    assert [(c.id, c.branch, c.paths) for c in ws.history()] == [(1, "/main/one", ())]


def test_executable_configuration_of_a_confined_program_is_refused(ws: Workspace) -> None:
    outer = ws.branch("outer", None, None)
    inner = outer.branch("inner", None, None)
    (inner.path / ".envrc").write_text("x")
    inner.mark_confined()
    inner.commit()
    with pytest.raises(ExecutableConfigError) as caught:
        outer.commit()
    assert caught.value.executors == {".envrc": "direnv"}
    assert not (ws.path / ".envrc").exists()
    outer.commit(allow_executable_config=True)
    assert (ws.path / ".envrc").exists()


def test_branches_nest(ws: Workspace) -> None:
    """Seed: "v1 auto-commits into a on success", "a auto-commits into main on success"."""
    with ws.branch("a") as a:
        (a.path / "strategy").write_text("a")
        with a.branch("v1") as v1:
            assert v1.branch_path == "/main/a/v1"
            assert (v1.path / "strategy").read_text() == "a"
            (v1.path / "variant").write_text("1")
            with pytest.raises(BranchError, match="still open: v1"):
                a.commit()
        assert (a.path / "variant").read_text() == "1"
        assert not (ws.path / "variant").exists()
    assert (ws.path / "variant").read_text() == "1"


@one_build
def test_a_branch_with_branches_is_dropped_with_them(ws: Workspace) -> None:
    outer = ws.branch("outer", None, None)
    outer.branch("inner", None, None).branch("innermost", None, None)
    outer.abort()
    assert ws.branches() == []


@pytest.mark.parametrize("branchfs_mount", BUILDS[1:], indirect=True)
@pytest.mark.parametrize("name", ["main", "with space", "@at", "a,b=c", "ä" * 60])
def test_any_name_that_a_branch_may_have(ws: Workspace, name: str) -> None:
    """The filesystem's own names are others: there a name must be unique, short and free of some characters."""
    outer = ws.branch("outer", None, None)
    inner = outer.branch(name, None, None)
    with ws.branch(name) as branch:
        (branch.path / "a.txt").write_text(name)
    assert (ws.path / "a.txt").read_text() == name
    inner.abort()
    outer.abort()


def test_a_loser_is_refused(ws: Workspace) -> None:
    """Seed: "BranchStaleError: a sibling branch was already committed"."""
    one, two = ws.branch("one"), ws.branch("two")
    assert isinstance(one.commit(), Commit)
    assert two.status == "stale"
    with pytest.raises(BranchStaleError):
        two.commit()
    assert Workspace(ws.path).open("two").status == "stale"
    two.abort()


def test_the_filesystem_itself_finds_a_loser(ws: Workspace) -> None:
    """A commit that forkwise knows nothing about makes a branch stale, too."""
    one, two = ws.branch("one"), Workspace(ws.path / "sub").branch("two")
    two.commit()
    assert one.status == "open"
    with pytest.raises(BranchStaleError, match="sibling"):
        one.commit()
    assert ws.history() == []
    one.abort()


@one_build
def test_the_changes_of_a_branch(ws: Workspace) -> None:
    """A diff compares both trees; a file that was only touched is not in it."""
    branch = ws.branch("one")
    (branch.path / "a.txt").write_text("two\n")
    (branch.path / "sub/x").touch()
    (branch.path / "new").mkdir()
    (branch.path / "new/link").symlink_to("x")
    changes = {c.path: (c.kind, c.type) for c in branch.delta()}
    added = {"new": ("added", "directory"), "new/link": ("added", "symlink")}
    assert changes == {"a.txt": ("changed", "file"), **added}
    assert "-one\n+two\n" in branch.diff()


@one_build
def test_requested_operations_that_it_lacks_are_errors(ws: Workspace) -> None:
    branch = ws.branch("one")
    for request in (branch.rebase, branch.freeze, branch.thaw, ws.undo):
        with pytest.raises(BranchError, match="branchfs cannot"):
            request()
    with pytest.raises(MountError, match="has its own branches"):
        Workspace(ws.path, view="copy")
    with pytest.raises(ValueError, match="on_conflict"):
        branch.commit(on_conflict="nonsense")  # type: ignore[arg-type]


@one_build
def test_branches_are_not_combined(ws: Workspace) -> None:
    several = [ws.branch(name) for name in ("one", "two")]
    with pytest.raises(BranchError, match="cannot be combined on branchfs"):
        combine(ws, several, "both")


@one_build
def test_a_branch_is_opened_by_name_in_another_process(ws: Workspace) -> None:
    ws.branch("strategy", None, None).branch("variant", None, None).keep()
    program = "import sys; from forkwise import Workspace; Workspace(sys.argv[1]).open('strategy/variant').commit()"
    subprocess.run([sys.executable, "-c", program, str(ws.path)], check=True)
    assert [b.name for b in ws.branches()] == ["strategy"]
    with pytest.raises(BranchNotFoundError):
        ws.open("strategy/variant")


@one_build
def test_a_branch_that_was_ended_without_forkwise(ws: Workspace) -> None:
    branch = ws.branch("one")
    path = branch.path
    (path / "a.txt").write_text("two\n")
    branchfs.BranchFS(str(ws.path)).abort(path.name[1:])
    with pytest.raises(BranchNotFoundError, match="without forkwise"):
        branch.commit()
    with pytest.raises(BranchNotFoundError, match="without forkwise"):
        _ = branch.path
    assert ws.branches() == []
    with ws.branch("one") as again:
        (again.path / "a.txt").write_text("three\n")
    assert (ws.path / "a.txt").read_text() == "three\n"


@one_build
class TestPathsBelowTheMount:
    def test_a_subdirectory_is_opened_as_that_directory(self, ws: Workspace) -> None:
        inner = Workspace(ws.path / "sub")
        assert inner.path == ws.path / "sub"
        with inner.branch("one") as one:
            assert sorted(os.listdir(one.path)) == ["x"]
            (one.path / "x").write_text("changed")
            assert [c.path for c in one.delta()] == ["x"]
        assert (ws.path / "sub/x").read_text() == "changed"

    def test_the_directory_of_a_branch_is_opened_as_that_branch(self, ws: Workspace) -> None:
        branch = ws.branch("outer")
        (branch.path / "a.txt").write_text("outer\n")
        inner = Workspace(branch.path)
        assert inner.path == branch.path
        with inner.branch("inner") as variant:
            assert (variant.path / "a.txt").read_text() == "outer\n"
            (variant.path / "a.txt").write_text("inner\n")
        assert (branch.path / "a.txt").read_text() == "inner\n"
        assert (ws.path / "a.txt").read_text() == "one\n"
        branch.commit()
        assert (ws.path / "a.txt").read_text() == "inner\n"

    def test_a_subdirectory_of_a_branch(self, ws: Workspace) -> None:
        branch = ws.branch("outer")
        with Workspace(branch.path / "sub").branch("inner") as variant:
            (variant.path / "x").write_text("inner")
        assert (branch.path / "sub/x").read_text() == "inner"
        assert (ws.path / "sub/x").read_text() == "x"

    def test_a_state_directory_on_the_mount_is_refused(self, ws: Workspace) -> None:
        for path in (ws.path, ws.path / "sub"):
            with pytest.raises(MountError, match="inside the workspace"):
                Workspace(path, state=ws.path / "state")
        assert sorted(os.listdir(ws.path)) == ["a.txt", "sub"]


_KILLED = """
import os, signal, sys
from forkwise import Workspace
with Workspace(sys.argv[1], view=sys.argv[2] or None).branch("attempt") as branch:
    if sys.argv[3]:
        (branch.path / "a.txt").write_text(sys.argv[3])
        os.kill(os.getpid(), signal.SIGKILL)
    branch.path
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run_killed(path: Path, view: str, content: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", _KILLED, str(path), view, content])
    assert done.returncode == -signal.SIGKILL


class TestAbandonedBranches:
    """Seed: `with ws.branch("attempt") as b:`, in a program that was killed there and runs again."""

    @one_build
    def test_on_a_mount(self, ws: Workspace) -> None:
        self.assert_it_runs_again(ws)

    @pytest.mark.parametrize("view", ["", "copy"])
    def test_on_a_plain_directory(self, tmp_path: Path, view: str) -> None:
        (tmp_path / "plain").mkdir()
        (tmp_path / "plain/a.txt").write_text("one\n")
        self.assert_it_runs_again(Workspace(tmp_path / "plain", view=view or None), view)

    def assert_it_runs_again(self, ws: Workspace, view: str = "") -> None:
        run_killed(ws.path, view, "")
        run_killed(ws.path, view, "killed\n")
        with pytest.warns(ForkwiseWarning, match=r"/main/attempt-abandoned-1"), ws.branch("attempt") as branch:
            (branch.path / "a.txt").write_text("again\n")
        assert (ws.path / "a.txt").read_text() == "again\n"
        [left] = ws.branches()
        assert (left.name, left.kept) == ("attempt-abandoned-1", True)
        assert (left.path / "a.txt").read_text() == "killed\n"
        left.abort()

    def test_a_branch_that_is_in_use_or_kept_is_not_renamed(self, tmp_path: Path) -> None:
        (tmp_path / "plain").mkdir()
        ws = Workspace(tmp_path / "plain", view="copy")
        program = (
            "import sys; from forkwise import Workspace; Workspace(sys.argv[1], view='copy').branch('kept').keep()"
        )
        subprocess.run([sys.executable, "-c", program, str(ws.path)], check=True)
        own = ws.branch("own", None, None)
        for name in ("own", "kept"):
            with pytest.raises(BranchError, match="already exists"):
                ws.branch(name)
        own.abort()
        ws.open("kept").abort()

    def test_a_branch_whose_branches_are_in_use_is_not_renamed(self, tmp_path: Path) -> None:
        (tmp_path / "plain").mkdir()
        (tmp_path / "plain/a.txt").write_text("one\n")
        ws = Workspace(tmp_path / "plain", view="copy")
        run_killed(ws.path, "copy", "killed\n")
        inner = ws.open("attempt").branch("inner", None, None)
        with pytest.raises(BranchError, match="already exists"):
            ws.branch("attempt")
        inner.abort()
        with pytest.warns(ForkwiseWarning, match="abandoned"):
            ws.branch("attempt", None, None).abort()
        ws.open("attempt-abandoned-1").abort()

    def test_long_names(self, tmp_path: Path) -> None:
        (tmp_path / "plain").mkdir()
        ws = Workspace(tmp_path / "plain")
        assert len(os.fsencode(ws._free_name("ä" * 100))) <= 200


@one_build
class TestInterruptedCommits:
    """A commit by the filesystem, and a process that was killed before or after it."""

    def interrupt(self, ws: Workspace, *, before: bool) -> None:
        program = (
            "import os, signal, sys\n"
            "from forkwise import Workspace\n"
            "from forkwise.files.views.branchfs import BranchFS\n"
            "commit = BranchFS.commit\n"
            "def killed(self, name):\n"
            f"    {'None' if before else 'commit(self, name)'}\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "BranchFS.commit = killed\n"
            "branch = Workspace(sys.argv[1]).branch('one')\n"
            "(branch.path / 'a.txt').write_text('two')\n"
            "branch.commit()\n"
        )
        done = subprocess.run([sys.executable, "-c", program, str(ws.path)])
        assert done.returncode == -signal.SIGKILL

    def test_before_the_filesystem_committed(self, ws: Workspace) -> None:
        self.interrupt(ws, before=True)
        again = Workspace(ws.path)
        assert (again.path / "a.txt").read_text() == "one\n"
        assert again.history() == []
        assert again.open("one").status == "open"
        again.open("one").commit()
        assert [c.id for c in again.history()] == [1]

    def test_after_the_filesystem_committed(self, ws: Workspace) -> None:
        self.interrupt(ws, before=False)
        again = Workspace(ws.path)
        assert (again.path / "a.txt").read_text() == "two"
        assert [(c.id, c.branch) for c in again.history()] == [(1, "/main/one")]
        assert again.branches() == []


@one_build
def test_gc_removes_the_branches_of_dead_processes(ws: Workspace) -> None:
    run_killed(ws.path, "", "")
    assert [b.name for b in ws.branches()] == ["attempt"]
    assert ws.gc().removed == ("/main/attempt",)
    run_killed(ws.path, "", "killed\n")
    gone = ws.branch("gone")
    branchfs.BranchFS(str(ws.path)).abort(gone.path.name[1:])
    assert ws.gc().listed == ("/main/attempt",)
    assert os.listdir(ws.state / "branches") == ["attempt"]
    assert ws.gc(force=True).removed == ("/main/attempt",)
    assert [name for name in os.listdir(ws.path) if name.startswith("@")] == []


@one_build
def test_gc_drops_a_branch_whose_creation_was_interrupted(ws: Workspace) -> None:
    program = (
        "import os, signal, sys\n"
        "from forkwise import Workspace\n"
        "from forkwise.files.store.branch_info import BranchInfo\n"
        "BranchInfo.create = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "Workspace(sys.argv[1]).branch('one')\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(ws.path)]).returncode == -signal.SIGKILL
    assert ws.branches() == []
    [home] = os.listdir(ws.state / "branches")
    name = os.readlink(ws.state / "branches" / home / "mount-branch")
    assert branchfs.BranchFS(str(ws.path)).exists(name)
    ws.gc()
    assert not branchfs.BranchFS(str(ws.path)).exists(name)
    assert os.listdir(ws.state / "branches") == []


def test_a_server_that_died(tmp_path: Path) -> None:
    """No branch counts as committed because the filesystem does not answer."""
    with mounted(tmp_path) as mount:
        ws = Workspace(mount)
        branch = ws.branch("one", None, None)
        server = int((tmp_path / "storage/pid-mount").read_text())
        os.kill(server, signal.SIGKILL)
        for request in (branch.commit, ws.branches, branch.abort):
            with pytest.raises(MountError, match="does not answer"):
                request()
        with pytest.raises(MountError, match="not a directory"):
            Workspace(mount)
    assert os.listdir(ws.state / "branches") == ["one"]


def test_the_state_of_a_mount_is_not_that_of_the_directory_below_it(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        ws = Workspace(mount)
        ws.branch("one").commit()
        ws.branch("two").keep()
    below = Workspace(mount)
    assert (below.history(), below.branches()) == ([], [])


class TestMount:
    def test_each_mount_has_a_storage_of_its_own(self, tmp_path: Path) -> None:
        """A second mount on BranchFS's default storage would show, and change, the files of the first."""
        program = install(tmp_path)
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text(name)
        with (
            Workspace.mount(tmp_path / "a", branchfs_bin=program) as a,
            Workspace.mount(tmp_path / "b", tmp_path / "mountpoint", branchfs_bin=program) as b,
        ):
            assert b.path == tmp_path / "mountpoint"
            assert [(w.path / "file").read_text() for w in (a, b)] == ["a", "b"]
            with b.branch("attempt") as branch:
                (branch.path / "file").write_text("changed")
            assert [(w.path / "file").read_text() for w in (a, b)] == ["a", "changed"]
            with pytest.raises(MountError, match="already"):
                Workspace.mount(tmp_path / "a", b.path, branchfs_bin=program)
        assert (tmp_path / "a/file").read_text() == "a"
        assert (tmp_path / "b/file").read_text() == "changed"
        assert not [m for m in mounts() if m.source == "branchfs" and m.point in (str(a.path), str(b.path))]
        assert not a.path.parent.exists()
        a.close()

    def test_a_kept_branch_keeps_its_storage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        (tmp_path / "base").mkdir()
        ws = Workspace.mount(tmp_path / "base", binary=install(tmp_path))
        branch = ws.branch("kept").keep()
        (branch.path / "work").write_text("done")
        with pytest.warns(ForkwiseWarning, match="storage") as warned:
            ws.close()
        [storage] = [word.rstrip(",") for word in str(warned[0].message).split() if word.endswith("storage,")]
        assert list(Path(storage).rglob("work"))

    @pytest.mark.parametrize("has_branch", [False, True])
    def test_gc_collects_that_of_a_killed_process(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_branch: bool
    ) -> None:
        """Its server and its mount outlive the process. A branch in it is dropped only on request."""
        temporary = tmp_path / "tmp"
        for path in (temporary, tmp_path / "base", tmp_path / "ws"):
            path.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        program = (
            "import os, signal; from forkwise import Workspace; "
            f"ws = Workspace.mount({str(tmp_path / 'base')!r}, binary={install(tmp_path)!r}); "
            f"{has_branch} and (ws.branch('left').path / 'work').write_text('x'); "
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(temporary)}, check=False)
        [directory] = temporary.iterdir()
        mountpoint = str(directory / "mount")
        assert mountpoint in [m.point for m in mounts()]
        workspace = Workspace(tmp_path / "ws")
        name = f"temporary directory {directory}"
        if has_branch:
            assert (workspace.gc().removed, workspace.gc().listed) == ((), (name,))
            assert list(directory.rglob("work"))
        assert workspace.gc(force=has_branch).removed == (name,)
        assert mountpoint not in [m.point for m in mounts()]
        assert list(temporary.iterdir()) == []

    def test_gc_leaves_those_in_use_and_those_that_were_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for path in (tmp_path / "tmp", tmp_path / "base", tmp_path / "ws"):
            path.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
        workspace = Workspace(tmp_path / "ws")
        mounted_one = Workspace.mount(tmp_path / "base", binary=install(tmp_path))
        branch = mounted_one.branch("kept").keep()
        (branch.path / "work").write_text("done")
        assert workspace.gc(force=True).removed == ()
        with pytest.warns(ForkwiseWarning, match="storage"):
            mounted_one.close()
        assert workspace.gc(force=True).removed == ()
        assert list((tmp_path / "tmp").rglob("work"))

    def test_a_base_that_does_not_exist(self, tmp_path: Path) -> None:
        with pytest.raises(MountError, match="no such base"):
            Workspace.mount(tmp_path / "nowhere", tmp_path / "mountpoint", branchfs_bin=install(tmp_path))

    def test_mounting_needs_a_binary(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("FORKWISE_BRANCHFS", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(MountError, match="no BranchFS binary") as caught:
            Workspace.mount(tmp_path)
        assert "FORKWISE_BRANCHFS" in caught.value.remedy

    def test_an_ordinary_workspace_can_be_closed(self, tmp_path: Path) -> None:
        with Workspace(tmp_path) as ws:
            assert find_branching_mount(str(tmp_path)) is None
            assert type(ws) is Workspace


class TestDaxfs:
    @pytest.fixture
    def kernel(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedDaxfs:
        (tmp_path / "main").mkdir()
        (tmp_path / "main/a.txt").write_text("one\n")
        return RecordedDaxfs(tmp_path / "main", monkeypatch)

    def test_a_branch_is_a_mount_of_its_own(self, kernel: RecordedDaxfs) -> None:
        """Seed: "DaxFS: Separate mount per branch." """
        ws = MountedWorkspace(kernel.main)
        assert ws.fstype == "daxfs"
        branch = ws.branch("one")
        path = str(branch.path)
        name = os.path.basename(path)
        assert kernel.take() == [
            ("fsopen", "daxfs"),
            ("fsconfig", 1, "phys", "0x100000000"),
            ("fsconfig", 1, "size", "268435456"),
            ("fsconfig", 1, "branch", name),
            ("fsconfig", 1, "parent", "main"),
            ("fsconfig", 6, None, None),
            ("fsmount",),
            ("move_mount", path),
        ]
        assert not path.startswith(kernel.main)
        (branch.path / "a.txt").write_text("two\n")
        assert [c.path for c in branch.delta()] == ["a.txt"]
        branch.commit()
        assert kernel.take() == [("mount", path, "commit"), ("umount", path)]
        assert not os.path.exists(path)
        failed = ws.branch("two")
        path = str(failed.path)
        failed.abort()
        assert kernel.take()[-2:] == [("mount", path, "abort"), ("umount", path)]

    def test_a_commit_includes_the_branches_around_it(self, kernel: RecordedDaxfs) -> None:
        """Seed: "v1 auto-commits into a on success", "a auto-commits into main on success": on DaxFS at once."""
        ws = MountedWorkspace(kernel.main)
        with ws.branch("a") as a:
            (a.path / "strategy").write_text("a")
            outer = str(a.path)
            loser = a.branch("loser")
            with a.branch("v1") as v1:
                inner = str(v1.path)
                assert (v1.path / "strategy").read_text() == "a"
                kernel.take()
            assert a.status == v1.status == "committed"
            assert kernel.take() == [
                ("mount", inner, "commit"),
                ("umount", inner),
                ("umount", str(loser.target)),
                ("umount", outer),
            ]
            commit = a.commit()
        assert kernel.branches == []
        assert ws.branches() == []
        assert [(c.id, c.branch) for c in ws.history()] == [(commit.id, "/main/a")]

    def test_a_nested_branch_is_dropped_alone(self, kernel: RecordedDaxfs) -> None:
        ws = MountedWorkspace(kernel.main)
        a = ws.branch("a")
        v1 = a.branch("v1")
        inner = str(v1.path)
        kernel.take()
        v1.abort()
        assert kernel.take() == [("umount", inner)]
        assert a.status == "open"
        a.abort()

    def test_an_outer_branch_that_is_stale(self, kernel: RecordedDaxfs) -> None:
        ws = MountedWorkspace(kernel.main)
        a, b = ws.branch("a"), ws.branch("b")
        inner = a.branch("inner")
        b.commit()
        with pytest.raises(BranchStaleError, match="/main/a is stale"):
            inner.commit()
        a.abort()
        assert kernel.branches == []

    def test_the_directory_of_a_branch_is_opened_as_that_branch(self, kernel: RecordedDaxfs) -> None:
        branch = MountedWorkspace(kernel.main).branch("a")
        name = branch.path.name
        inner = MountedWorkspace(branch.path).branch("inner")
        assert ("fsconfig", 1, "parent", name) in kernel.take()
        inner.abort()
        branch.abort()


def _real_daxfs() -> list[str]:
    """Return the path of a DaxFS mount in ``FORKWISE_DAXFS``, if the kernel has DaxFS."""
    with open("/proc/filesystems") as file:
        known = file.read().split()
    path = os.environ.get("FORKWISE_DAXFS", "")
    return [path] if "daxfs" in known and os.path.ismount(path) else []


if _real_daxfs():  # not collected otherwise, because no test may be skipped

    def test_a_real_daxfs() -> None:
        workspace = Workspace(_real_daxfs()[0])
        assert workspace.fstype == "daxfs"
        with workspace.branch("attempt") as branch:
            (branch.path / "forkwise-test").write_text("one")
            assert [c.path for c in branch.delta()] == ["forkwise-test"]
        assert workspace.branches() == []
