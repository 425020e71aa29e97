"""Nothing outside the workspace is written, deleted or touched, whatever a branch contains."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forkwise import BranchingError, ConflictError, Workspace
from forkwise.linux.trees import open_directory, open_root
from tests.files.snapshot import snapshot

Open = Callable[..., Workspace]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A directory that must not change: content, modes, times, attributes and inodes."""
    made = tmp_path / "outside"
    for path in ("secret", "d/a", "d/deep/c", "new/x", "precious/p"):
        (made / path).parent.mkdir(parents=True, exist_ok=True)
        (made / path).write_text(f"outside {path}\n")
    (made / "secret").chmod(0o600)
    seen = look(made)
    yield made
    assert look(made) == seen


def look(root: Path) -> dict[str, object]:
    found = snapshot(root)
    inodes = {p: (root / p).lstat() for p in found}
    return {p: (s, inodes[p].st_ino, inodes[p].st_nlink, inodes[p].st_ctime_ns) for p, s in found.items()}


@pytest.fixture
def workspace(tmp_path: Path, view: str, open_workspace: Open) -> Workspace:
    project = tmp_path / "project"
    for path in ("f", "d/a", "d/b", "d/deep/c", "e/g"):
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(f"inside {path}\n")
    return open_workspace(project, view=view)


def become(path: Path, target: Path | str) -> None:
    """Replace an entry by a symlink."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(target)


# Symlinks and special files in a branch


@pytest.mark.parametrize("how", ["absolute", "relative", "by way of another"])
def test_planted_symlinks_are_committed_as_they_are(workspace: Workspace, outside: Path, how: str) -> None:
    branch = workspace.branch("b")
    target: Path | str = outside
    if how == "relative":
        target = "../outside"
    elif how == "by way of another":
        become(branch.path / "hop", outside)
        target = "hop"
    become(branch.path / "link", target)
    become(branch.path / "d", target)
    become(branch.path / "f", f"{target}/secret")
    become(branch.path / "up", "..")
    commit = branch.commit()
    assert os.readlink(workspace.path / "d") == str(target)
    assert os.readlink(workspace.path / "f") == f"{target}/secret"
    workspace.undo(commit)
    assert (workspace.path / "d" / "a").read_text() == "inside d/a\n"
    assert not (workspace.path / "link").is_symlink()


def test_a_planted_symlink_in_the_middle_of_a_later_commit_s_path(workspace: Workspace, outside: Path) -> None:
    """One branch replaces a directory by a symlink, a sibling writes and deletes below it."""
    one, two = workspace.branch("one"), workspace.branch("two")
    become(one.path / "d", outside / "d")
    (two.path / "d" / "a").write_text("two\n")
    (two.path / "d" / "b").unlink()
    (two.path / "d" / "new").write_text("two\n")
    (two.path / "d").chmod(0o700)
    one.commit()
    assert two.rebase().conflicts != ()
    with pytest.raises(ConflictError):
        two.commit()
    two.commit(on_conflict="ours")
    assert not (workspace.path / "d").is_symlink()
    assert (workspace.path / "d" / "a").read_text() == "two\n"


@pytest.mark.parametrize("choice", ["refuse", "ours", "theirs", "merge"])
@pytest.mark.parametrize("place", ["d", "d/deep"])
def test_a_third_party_s_symlink_in_the_place_of_a_directory(
    workspace: Workspace, outside: Path, choice: str, place: str
) -> None:
    branch = workspace.branch("b")
    (branch.path / "d" / "deep" / "c").write_text("branch\n")
    (branch.path / "d" / "deep" / "new").write_text("branch\n")
    (branch.path / "d" / "a").unlink()
    become(workspace.path / place, outside / place)
    with suppress(BranchingError):
        branch.commit(on_conflict=choice)  # type: ignore[arg-type]
    if choice in ("refuse", "merge", "theirs"):
        assert os.readlink(workspace.path / place) == str(outside / place)
    else:
        assert (workspace.path / "d" / "deep" / "c").read_text() == "branch\n"


def test_the_new_directory_of_a_branch_where_a_third_party_has_a_symlink(workspace: Workspace, outside: Path) -> None:
    branch = workspace.branch("b")
    (branch.path / "new").mkdir()
    (branch.path / "new" / "x").write_text("branch\n")
    (workspace.path / "new").symlink_to(outside / "new")
    with pytest.raises(ConflictError):
        branch.commit()
    commit = branch.commit(on_conflict="ours")
    assert (workspace.path / "new" / "x").read_text() == "branch\n"
    workspace.undo(commit)
    assert os.readlink(workspace.path / "new") == str(outside / "new")


def test_undo_through_a_symlink(workspace: Workspace, outside: Path) -> None:
    with workspace.branch("b") as branch:
        (branch.path / "d" / "a").write_text("branch\n")
        (branch.path / "d" / "deep" / "c").unlink()
        (branch.path / "d" / "new").write_text("branch\n")
    shutil.move(workspace.path / "d", workspace.path / "away")
    (workspace.path / "d").symlink_to(outside / "d")
    with pytest.raises(ConflictError):
        workspace.undo()
    assert (workspace.path / "away" / "a").read_text() == "branch\n"


def test_gc_and_abort_of_a_branch_full_of_symlinks(workspace: Workspace, outside: Path) -> None:
    for end in ("abort", "gc"):
        branch = workspace.branch(end)
        become(branch.path / "d", outside)
        become(branch.path / "link", outside / "precious")
        become(branch.path / "e" / "g", outside / "secret")
        if end == "abort":
            branch.abort()
    workspace.open("gc").abort()
    workspace.gc(force=True)
    assert workspace.branches() == []


def test_a_diff_shows_a_symlink_and_not_what_it_names(workspace: Workspace, outside: Path) -> None:
    branch = workspace.branch("b")
    become(branch.path / "f", outside / "secret")
    become(branch.path / "new", outside / "secret")
    shown = branch.diff()
    assert "outside secret" not in shown
    assert str(outside / "secret") in shown


def test_a_merge_does_not_read_through_a_symlink(workspace: Workspace, outside: Path) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    become(one.path / "f", outside / "secret")
    (two.path / "f").write_text("two\n")
    one.commit()
    assert [c.path for c in two.rebase().conflicts] == ["f"]
    two.commit(on_conflict="ours")
    assert (workspace.path / "f").read_text() == "two\n"
    assert not (workspace.path / "f").is_symlink()


def test_nested_branches_and_symlinks(workspace: Workspace, outside: Path) -> None:
    outer = workspace.branch("outer")
    become(outer.path / "d", outside / "d")
    inner = outer.branch("inner")
    (inner.path / "d").unlink()
    (inner.path / "d").mkdir()
    (inner.path / "d" / "a").write_text("inner\n")
    inner.commit()
    assert (outer.path / "d" / "a").read_text() == "inner\n"
    again = outer.branch("again")
    become(again.path / "d", outside)
    again.commit()
    outer.commit()
    assert os.readlink(workspace.path / "d") == str(outside)


# Names


@pytest.mark.parametrize(
    "name", ["..foo", "...", "new\nline", "-rf", "~", "a\\b", "$(touch x)", " ", "\x01", "%s", os.fsdecode(b"\xff\xfe")]
)
def test_names_that_look_like_something_else(workspace: Workspace, outside: Path, name: str) -> None:
    before = snapshot(workspace.path)
    branch = workspace.branch("b")
    (branch.path / name).mkdir()
    (branch.path / name / name).write_text("branch\n")
    (branch.path / "d" / name).write_text("branch\n")
    assert f"{name}/{name}" in branch.delta().added
    assert branch.diff()
    commit = branch.commit()
    assert (workspace.path / name / name).read_text() == "branch\n"
    assert f"d/{name}" in commit.added
    with workspace.branch("c") as other:
        shutil.rmtree(other.path / name)
    assert not (workspace.path / name).exists()
    workspace.undo()
    workspace.undo()
    assert snapshot(workspace.path) == before


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/abs", ".new-1-1", ".hidden", "a\0b", "x" * 300])
def test_names_that_no_branch_can_have(workspace: Workspace, outside: Path, name: str) -> None:
    before = sorted(os.listdir(workspace.state))
    with pytest.raises(BranchingError):
        workspace.branch(name)
    assert sorted(os.listdir(workspace.state)) == before
    assert workspace.branches() == []


@pytest.mark.parametrize(
    "name", ["../../outside", "b/../../x", "/main/../b", "b/..", "..", ".", "", "/", "/main", "b//"]
)
def test_paths_of_branches_that_lead_elsewhere(workspace: Workspace, outside: Path, name: str) -> None:
    workspace.branch("b")
    try:
        found = workspace.open(name)
    except BranchingError:
        return
    assert found.branch_path == "/main/b"
    assert Path(found.home).parent == workspace.state / "branches"


# Hard links


def test_a_hard_link_into_a_branch(workspace: Workspace, outside: Path, view: str) -> None:
    """A hard link to a file outside is not committed as a link.

    The kernel forbids it if the branch is a mount. Otherwise a commit writes a copy, so that later changes in the
    workspace do not change the file outside.
    """
    other = workspace.path.parent / "other"
    other.write_text("other\n")
    other.chmod(0o640)
    seen = other.stat()
    branch = workspace.branch("b")
    if view == "overlay":
        with pytest.raises(OSError, match="cross-device"):
            os.link(other, branch.path / "linked")
        return
    os.link(other, branch.path / "linked")
    branch.commit()
    assert not os.path.samefile(workspace.path / "linked", other)
    (workspace.path / "linked").write_text("changed\n")
    (workspace.path / "linked").chmod(0o600)
    workspace.gc()
    now = other.stat()
    assert other.read_text() == "other\n"
    assert (now.st_mode, now.st_mtime_ns, now.st_nlink) == (seen.st_mode, seen.st_mtime_ns, 1)


def test_a_hard_link_from_the_workspace_is_left_alone(workspace: Workspace, outside: Path) -> None:
    """A file of the workspace with a hard link outside changes only in the workspace."""
    shared = workspace.path.parent / "shared"
    os.link(workspace.path / "f", shared)
    seen = shared.stat()
    with workspace.branch("b") as branch:
        (branch.path / "f").write_text("branch\n")
        (branch.path / "f").chmod(0o600)
    assert shared.read_text() == "inside f\n"
    assert stat.S_IMODE(shared.stat().st_mode) == stat.S_IMODE(seen.st_mode)
    assert shared.stat().st_mtime_ns == seen.st_mtime_ns
    workspace.undo()
    assert os.path.samefile(workspace.path / "f", shared)


# A race


def write_beneath(root: Path, directory: str, name: str, content: str | None) -> None:
    """Write or delete a file in a branch, without following a symlink."""
    top = open_root(str(root))
    try:
        held = open_directory(top, directory)
        try:
            if content is None:
                os.unlink(name, dir_fd=held)
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(os.open(name, flags, 0o644, dir_fd=held), "w") as file:
                file.write(content)
            os.fchmod(held, 0o700)
        finally:
            os.close(held)
    finally:
        os.close(top)


@pytest.mark.parametrize("place", ["d", "d/deep"])
def test_a_directory_swapped_for_a_symlink_while_commits_run(workspace: Workspace, outside: Path, place: str) -> None:
    """A third party keeps exchanging a directory and a symlink to the outside.

    Meanwhile branches that write and delete below it are committed and undone.
    """
    real, hidden = workspace.path / place, workspace.path.parent / "hidden"
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            with suppress(OSError):
                real.rename(hidden)
                real.symlink_to(outside / place)
                real.unlink()
                hidden.rename(real)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for number in range(60):
            with suppress(BranchingError, OSError):
                branch = workspace.branch(f"b{number}")
                write_beneath(branch.path, "d/deep", "c", f"{number}\n")
                write_beneath(branch.path, "d/deep", f"new {number}", f"{number}\n")
                write_beneath(branch.path, "d", "a", None)
                branch.commit(on_conflict="ours")
            if number % 3 == 0:
                with suppress(BranchingError, OSError):
                    workspace.undo()
    finally:
        stop.set()
        swapper.join()
    for branch in workspace.branches():
        branch.abort()
