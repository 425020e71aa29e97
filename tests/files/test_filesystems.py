"""Workspaces on every kind of filesystem: tmpfs, a mount root, another overlay, mounts inside, state elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forkwise import Branch, CommitError, MountError, Workspace
from forkwise.files.store.state import same_mount
from forkwise.linux.syscalls import MNT_DETACH, mount, umount2
from tests.files.images import loop_image, mounted_tmpfs
from tests.files.snapshot import Seen, snapshot
from tests.need import need

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 and os.environ.get("FORKWISE_MUST_WORK") != "1",
    reason="these tests mount filesystems: run as root",
)


def fill(project: Path) -> None:
    """Create a project with entries of every kind."""
    for name in ("kept", "changed", "gone", "replaced-by-directory", "dir/inner", "tree/a/b", "tree/c", "swapped/old"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    (project / "link").symlink_to("kept")
    os.setxattr(project / "kept", "user.mine", b"1")


def change(root: Path) -> None:
    """Change entries of every kind."""
    (root / "changed").write_text("by the branch")
    (root / "gone").unlink()
    (root / "replaced-by-directory").unlink()
    (root / "replaced-by-directory/x").mkdir(parents=True)
    (root / "dir/inner").write_text("by the branch")
    (root / "dir/added").write_text("by the branch")
    (root / "dir").chmod(0o750)
    shutil.rmtree(root / "tree")
    shutil.rmtree(root / "swapped")
    (root / "swapped").mkdir()
    (root / "swapped/new").write_text("by the branch")
    (root / "link").unlink()
    (root / "link").symlink_to("changed")
    (root / "new/deep").mkdir(parents=True)
    (root / "new/deep/file").write_text("by the branch")
    os.setxattr(root / "kept", "user.mine", b"2")


def look(branch: Branch) -> dict[str, Seen]:
    """Return the content of a branch, uncached: the kernel caches attributes of a fuse directory for a second."""
    if branch.view == "fuse":
        branch.view_kind.hide(branch.home)
    return snapshot(branch.path)


def check_round_trip(ws: Workspace) -> None:
    """Fork, change, commit, undo, redo, and once more through a nested branch."""
    before = snapshot(ws.path)
    branch = ws.branch("attempt")
    change(branch.path)
    shown = look(branch)
    branch.commit()
    assert snapshot(ws.path) == shown
    undone = ws.undo()
    assert snapshot(ws.path) == before
    ws.undo(undone)
    assert snapshot(ws.path) == shown
    ws.undo()
    with ws.branch("outer") as outer:
        (outer.path / "outer").write_text("outer")
        with outer.branch("inner") as inner:
            change(inner.path)
        shown = look(outer)
    assert snapshot(ws.path) == shown
    assert not [n for n in os.listdir(ws.path) if n.startswith(".forkwise")]
    ws.undo()
    assert snapshot(ws.path) == before
    ws.branch("dropped").abort()


@pytest.fixture(params=["overlay", "fuse", "copy"])
def view(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_workspace_on_tmpfs(view: str, tmp_path: Path) -> None:
    (tmp_path / "ram").mkdir()
    with mounted_tmpfs(tmp_path / "ram"):
        project = tmp_path / "ram/project"
        project.mkdir()
        fill(project)
        ws = Workspace(project, view=view)
        assert same_mount(str(ws.state), str(project)), "the state belongs beside the workspace, on its filesystem"
        check_round_trip(ws)


def test_a_workspace_that_is_the_top_of_a_mount(view: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    with mounted_tmpfs(project):
        fill(project)
        ws = Workspace(project, view=view)
        assert not same_mount(str(ws.state), str(project)), "its parent is not writable"
        check_round_trip(ws)


def test_state_on_another_filesystem(view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    fill(project)
    with loop_image("ext4", 64, tmp_path) as elsewhere:
        monkeypatch.setenv("FORKWISE_STATE", str(elsewhere / "state"))
        ws = Workspace(project, view=view)
        assert ws.state.is_relative_to(elsewhere)
        check_round_trip(ws)


@contextmanager
def container(tmp_path: Path) -> Iterator[Path]:
    """A root like that of a container: an overlay whose lower layer holds a project."""
    need(os.geteuid() == 0, "mounting an overlay needs root")
    for name in ("image", "upper", "work", "root"):
        (tmp_path / name).mkdir()
    fill(tmp_path / "image/project")
    options = ",".join(
        f"{k}={tmp_path / v}" for k, v in (("lowerdir", "image"), ("upperdir", "upper"), ("workdir", "work"))
    )
    mount("container", str(tmp_path / "root"), "overlay", 0, options)
    try:
        yield tmp_path / "root"
    finally:
        umount2(str(tmp_path / "root"), MNT_DETACH)


def test_a_workspace_on_overlayfs(view: str, tmp_path: Path) -> None:
    with container(tmp_path) as root:
        # An overlay cannot be the upper layer of another, so the state must be elsewhere.
        ws = Workspace(root / "project", view=view, state=tmp_path / "outside")
        check_round_trip(ws)


def test_a_container_with_nothing_but_its_overlay(tmp_path: Path) -> None:
    with container(tmp_path) as root:
        for layered in ("overlay", "fuse"):
            with pytest.raises(MountError, match="FORKWISE_STATE"):
                Workspace(root / "project", view=layered, state=root / "state")
        ws = Workspace(root / "project", state=root / "state")
        assert ws.fstype == "copy"
        check_round_trip(ws)


def test_mount_points_in_a_workspace(view: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    fill(project)
    (project / "mounted").mkdir()
    with mounted_tmpfs(project / "mounted"):
        (project / "mounted/precious").write_text("of another filesystem")
        ws = Workspace(project, view=view)
        with ws.branch("beside") as branch:
            # fuse-overlayfs shows the mounted files, the other views the directory below the mount.
            assert os.listdir(branch.path / "mounted") == (["precious"] if view == "fuse" else [])
            (branch.path / "changed").write_text("by the branch")
        assert (project / "changed").read_text() == "by the branch"

        inside = ws.branch("inside")
        (inside.path / "mounted/new").write_text("by the branch")
        assert inside.delta().added == ("mounted/new",)
        with pytest.raises(CommitError, match="mounted at mounted"):
            inside.commit()
        check_not_committable(ws)
        assert Workspace(project).history()[0].branch == "/main/beside", "the workspace opens, and nothing happened"
        assert (project / "mounted/precious").read_text() == "of another filesystem"
        inside.abort()
        ws.undo()
    assert (project / "changed").read_text() == "changed"


def check_not_committable(ws: Workspace) -> None:
    """A change of the mount point itself is refused as well."""
    branch = ws.branch("over-the-mount-point")
    shutil.rmtree(branch.path / "mounted")
    (branch.path / "mounted").write_text("a file now")
    before = snapshot(ws.path)
    with pytest.raises(CommitError):
        branch.commit()
    assert snapshot(ws.path) == before
    branch.abort()
