"""Frozen workspaces: their branches do not see what is edited beneath them after the fork."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from forkwise import MountError, Workspace
from tests.files.filesystems import VIEWS, new_project, view_directories

__all__ = ["view_directories"]


@pytest.mark.parametrize("view", [name for name in VIEWS if name in ("btrfs", "reflink")])
def test_a_frozen_branch_does_not_see_later_edits(view: str, view_directories: dict[str, Path]) -> None:
    """The view is chosen without naming it."""
    project = new_project(view, view_directories[view], "frozen")
    for name in ("edited", "replaced", "deleted"):
        (project / name).write_text("before\n")
    workspace = Workspace(project, state=project.parent / "state", frozen=True, durable=False)
    assert workspace.fstype == view
    branch = workspace.branch("attempt")
    (project / "edited").write_text("after\n")
    (project / "new").write_text("after\n")
    (project / "beside").write_text("after\n")
    (project / "beside").rename(project / "replaced")
    (project / "deleted").unlink()
    assert sorted(path.name for path in branch.path.iterdir()) == ["deleted", "edited", "replaced"]
    assert {path.read_text() for path in branch.path.iterdir()} == {"before\n"}
    (branch.path / "made").write_text("made\n")
    assert branch.commit().added == ("made",)
    assert sorted(path.name for path in project.iterdir()) == ["edited", "made", "new", "replaced"]


def test_elsewhere_it_is_an_error_with_a_remedy() -> None:
    """A filesystem in memory has neither snapshots nor clones."""
    with TemporaryDirectory(dir="/dev/shm") as memory:
        project, state = Path(memory, "project"), Path(memory, "state")
        project.mkdir()
        with pytest.raises(MountError, match=r"cannot be frozen \(btrfs: .*reflink: ") as caught:
            Workspace(project, state=state, frozen=True)
        assert "view='copy'" in caught.value.remedy
        for view in ("overlay", "fuse"):
            with pytest.raises(MountError, match=f"cannot be frozen with the view {view}"):
                Workspace(project, state=state, frozen=True, view=view)
        assert Workspace(project, state=state, frozen=True, view="copy").fstype == "copy"
