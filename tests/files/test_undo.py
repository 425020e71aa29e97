"""Undo by example: exact restoration, refusal if a path was changed since, and the undo of an undo."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forkwise import Commit, CommitError, ConflictError, Workspace
from tests.files.images import mounted_tmpfs
from tests.files.snapshot import Seen, snapshot

IN_MEMORY = True

Open = Callable[..., Workspace]

is_root = os.geteuid() == 0
LONG_AGO = 1_000_000_000_123_456_789


@pytest.fixture(params=["same filesystem", "across filesystems"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory with entries of every kind; across filesystems it is the root of a tmpfs of its own."""
    made = tmp_path / "project"
    made.mkdir()
    if request.param == "same filesystem":
        fill(made)
        yield made
    else:
        with mounted_tmpfs(made):
            fill(made)
            yield made


@pytest.fixture
def workspace(project: Path, view: str, open_workspace: Open) -> Workspace:
    return open_workspace(project, view=view)


def write(path: Path, text: str, mode: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if mode is not None:
        path.chmod(mode)
    return path


def fill(root: Path) -> None:
    write(root / "f", "f\n")
    write(root / "tool", "tool\n", 0o4755)
    write(root / "group", "group\n", 0o2751)
    write(root / "secret", "secret\n", 0o400)
    write(root / "d" / "a", "a\n")
    write(root / "d" / "deep" / "c", "c\n")
    write(root / "gone" / "deep" / "x", "x\n", 0o4711)
    write(root / "kept" / "k", "k\n")
    (root / "sticky").mkdir()
    (root / "sticky").chmod(0o3777)
    (root / "empty").mkdir()
    (root / "link").symlink_to("f")
    (root / "dangling").symlink_to("/no/such/thing")
    write(root / "attributes", "attributes\n")
    os.setxattr(root / "attributes", "user.colour", b"blue")
    os.setxattr(root / "d", "user.colour", b"green")
    paths = [Path(where, name) for where, dirs, files in os.walk(root) for name in [*dirs, *files]]
    for number, path in enumerate([*paths, root]):
        os.utime(path, ns=(LONG_AGO, LONG_AGO + number), follow_symlinks=False)


def alter(root: Path) -> None:
    """Make changes of every kind."""
    write(root / "f", "changed\n")
    (root / "tool").chmod(0o755)
    write(root / "group", "changed\n").chmod(0o640)
    (root / "secret").unlink()
    write(root / "d" / "a", "changed\n")
    write(root / "d" / "new", "new\n")
    (root / "d" / "deep" / "c").unlink()
    shutil.rmtree(root / "gone")
    write(root / "added" / "deep" / "y", "y\n", 0o4700)
    (root / "sticky").chmod(0o700)
    (root / "empty").rmdir()
    write(root / "empty", "a file now\n")
    (root / "link").unlink()
    (root / "link").mkdir()
    (root / "dangling").unlink()
    (root / "dangling").symlink_to("elsewhere")
    os.setxattr(root / "attributes", "user.colour", b"red")
    os.removexattr(root / "d", "user.colour")
    os.setxattr(root / "d", "user.shape", b"round")
    root.chmod(0o750)


def altered(workspace: Workspace) -> tuple[Commit, dict[str, Seen]]:
    branch = workspace.branch("b")
    alter(branch.path)
    shown = snapshot(branch.path)
    commit = branch.commit()
    assert snapshot(workspace.path) == shown
    return commit, shown


# Exactness


def test_undo_restores_everything_exactly(workspace: Workspace) -> None:
    before = snapshot(workspace.path)
    commit, _ = altered(workspace)
    undone = workspace.undo(commit)
    assert snapshot(workspace.path) == before
    assert undone.kind == "undo"
    assert undone.undoes == commit.id
    assert sorted(undone.added) == sorted(commit.deleted)
    assert sorted(undone.deleted) == sorted(commit.added)
    assert sorted(undone.changed) == sorted(commit.changed)


def test_undo_of_the_undo_brings_it_back_exactly(workspace: Workspace) -> None:
    before = snapshot(workspace.path)
    commit, after = altered(workspace)
    for _ in range(3):
        undone = workspace.undo(commit)
        assert snapshot(workspace.path) == before
        commit = workspace.undo(undone)
        assert commit.kind == "redo"
        assert snapshot(workspace.path) == after


def test_undo_by_a_fresh_workspace_object(workspace: Workspace, open_workspace: Open) -> None:
    before = snapshot(workspace.path)
    altered(workspace)
    open_workspace(workspace.path).undo()
    assert snapshot(workspace.path) == before


@pytest.mark.parametrize("project", ["same filesystem"], indirect=True)
def test_undo_keeps_hard_links_of_what_it_brings_back(workspace: Workspace) -> None:
    os.link(workspace.path / "f", workspace.path / "f2")
    os.link(workspace.path / "gone" / "deep" / "x", workspace.path / "gone" / "x2")
    before = snapshot(workspace.path)
    with workspace.branch("b") as branch:
        (branch.path / "f").unlink()
        write(branch.path / "f", "changed\n")
        shutil.rmtree(branch.path / "gone")
    assert (workspace.path / "f2").read_text() == "f\n"
    workspace.undo()
    assert snapshot(workspace.path) == before
    assert os.path.samefile(workspace.path / "f", workspace.path / "f2")
    assert os.path.samefile(workspace.path / "gone" / "deep" / "x", workspace.path / "gone" / "x2")


def test_undo_of_a_commit_that_changed_nothing(workspace: Workspace) -> None:
    before = snapshot(workspace.path)
    commit = workspace.branch("b").commit()
    assert commit.paths == ()
    assert snapshot(workspace.path) == before
    workspace.undo(commit)
    assert snapshot(workspace.path) == before


def test_undo_leaves_no_trace_of_the_stage(workspace: Workspace) -> None:
    commit, _ = altered(workspace)
    workspace.undo(commit)
    assert [n for n in os.listdir(workspace.path) if n.startswith(".")] == []


# Refusal

Change = Callable[[Path], None]


def edit(path: Path) -> None:
    path.write_text("edited since\n")


def chmod(path: Path) -> None:
    path.chmod(0o611)


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    beside = path.with_name("beside")
    beside.write_text("replaced since\n")
    beside.replace(path)


def rewrite_alike(path: Path) -> None:
    path.write_bytes(path.read_bytes())


def touch(path: Path) -> None:
    os.utime(path, ns=(LONG_AGO, LONG_AGO))


def to_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def to_symlink(path: Path) -> None:
    path.unlink()
    path.symlink_to("elsewhere")


def refuses(workspace: Workspace, commit: Commit, *paths: str) -> None:
    now = snapshot(workspace.path)
    with pytest.raises(ConflictError) as caught:
        workspace.undo(commit)
    assert set(paths) <= set(caught.value.paths)
    assert snapshot(workspace.path) == now
    assert workspace.history()[0].id == commit.id


@pytest.mark.parametrize("path", ["f", "d/new", "added/deep/y", "empty"])
@pytest.mark.parametrize("change", [edit, chmod, delete, replace, rewrite_alike, touch, to_directory, to_symlink])
def test_undo_refuses_where_a_file_was_changed_since(workspace: Workspace, change: Change, path: str) -> None:
    commit, _ = altered(workspace)
    change(workspace.path / path)
    refuses(workspace, commit, "added/deep" if change is delete and path == "added/deep/y" else path)


def add_file(root: Path) -> None:
    write(root / "added" / "deep" / "since", "since\n")


def add_deep(root: Path) -> None:
    write(root / "added" / "other" / "since", "since\n")


def move_in(root: Path) -> None:
    (root / "kept").rename(root / "added" / "kept")


def remove_inside(root: Path) -> None:
    shutil.rmtree(root / "added" / "deep")


def chmod_inside(root: Path) -> None:
    (root / "added" / "deep").chmod(0o711)


def remove_all(root: Path) -> None:
    shutil.rmtree(root / "added")


@pytest.mark.parametrize("change", [add_file, add_deep, move_in, remove_inside, chmod_inside, remove_all])
def test_undo_refuses_where_a_directory_it_would_remove_was_changed_since(workspace: Workspace, change: Change) -> None:
    commit, _ = altered(workspace)
    change(workspace.path)
    now = snapshot(workspace.path)
    with pytest.raises(ConflictError) as caught:
        workspace.undo(commit)
    assert all(p.split("/")[0] == "added" for p in caught.value.paths)
    assert snapshot(workspace.path) == now


@pytest.mark.parametrize("path", ["secret", "gone", "d/deep/c"])
def test_undo_refuses_if_a_deleted_path_exists_again(workspace: Workspace, path: str) -> None:
    commit, _ = altered(workspace)
    write(workspace.path / path, "there again\n")
    refuses(workspace, commit, path)


def test_undo_refuses_where_the_directory_to_restore_into_is_gone(workspace: Workspace) -> None:
    commit, _ = altered(workspace)
    shutil.rmtree(workspace.path / "d")
    refuses(workspace, commit, "d/deep/c")


def test_undo_refuses_where_the_directory_to_restore_into_is_a_symlink(workspace: Workspace, tmp_path: Path) -> None:
    commit, _ = altered(workspace)
    outside = tmp_path / "outside"
    shutil.copytree(workspace.path / "d", outside)
    shutil.rmtree(workspace.path / "d")
    (workspace.path / "d").symlink_to(outside)
    seen = snapshot(outside)
    refuses(workspace, commit, "d/a", "d/new", "d/deep/c")
    assert snapshot(outside) == seen


def test_undo_leaves_what_others_did_beside_it(workspace: Workspace) -> None:
    commit, _ = altered(workspace)
    write(workspace.path / "d" / "since", "since\n")
    write(workspace.path / "kept" / "k", "since\n")
    (workspace.path / "kept").chmod(0o711)
    workspace.undo(commit)
    assert (workspace.path / "d" / "since").read_text() == "since\n"
    assert (workspace.path / "d" / "a").read_text() == "a\n"
    assert (workspace.path / "kept" / "k").read_text() == "since\n"
    assert snapshot(workspace.path)["kept"].mode == 0o711


def test_undo_does_not_revert_a_mode_set_since(workspace: Workspace) -> None:
    commit, _ = altered(workspace)
    (workspace.path / "sticky").chmod(0o711)
    with suppress(ConflictError):
        workspace.undo(commit)
    assert snapshot(workspace.path)["sticky"].mode == 0o711


@pytest.mark.parametrize("kind", ["file", "symlink", "nothing"])
def test_undo_where_a_directory_whose_mode_it_would_set_is_no_more(workspace: Workspace, kind: str) -> None:
    with workspace.branch("b") as branch:
        (branch.path / "sticky").chmod(0o700)
        write(branch.path / "f", "changed\n")
    (workspace.path / "sticky").rmdir()
    if kind == "file":
        write(workspace.path / "sticky", "third\n", 0o604)
    elif kind == "symlink":
        (workspace.path / "sticky").symlink_to("d")
    seen = {p: s for p, s in snapshot(workspace.path).items() if p.startswith(("sticky", "d"))}
    with suppress(ConflictError):
        workspace.undo()
        assert (workspace.path / "f").read_text() == "f\n"
    assert {p: s for p, s in snapshot(workspace.path).items() if p.startswith(("sticky", "d"))} == seen


def test_undo_does_not_revert_attributes_set_since(workspace: Workspace) -> None:
    commit, _ = altered(workspace)
    os.setxattr(workspace.path / "d", "user.size", b"large")
    with suppress(ConflictError):
        workspace.undo(commit)
    assert os.getxattr(workspace.path / "d", "user.size") == b"large"


def test_a_refused_undo_leaves_the_next_one_to_decide_anew(workspace: Workspace) -> None:
    """The time of a directory shows that something changed, but not what: the undo stays refused."""
    commit, _ = altered(workspace)
    write(workspace.path / "added" / "since", "since\n")
    refuses(workspace, commit)
    (workspace.path / "added" / "since").unlink()
    refuses(workspace, commit, "added")


# Which commit


def commits(workspace: Workspace, *names: str) -> list[Commit]:
    made = []
    for name in names:
        branch = workspace.branch(name)
        write(branch.path / name, f"by {name}\n")
        made.append(branch.commit())
    return made


def test_undo_takes_the_last_commit_that_stands(workspace: Workspace) -> None:
    one, two, three = commits(workspace, "f", "new", "d/a".replace("/", "-"))
    assert workspace.undo().undoes == three.id
    assert workspace.undo().undoes == two.id
    assert workspace.undo().undoes == one.id
    with pytest.raises(CommitError, match="no commit to undo"):
        workspace.undo()


def test_undo_of_an_older_commit_when_later_ones_touch_other_paths(workspace: Workspace) -> None:
    one, two, three = commits(workspace, "f", "attributes", "new")
    workspace.undo(one)
    assert (workspace.path / "f").read_text() == "f\n"
    assert (workspace.path / "attributes").read_text() == "by attributes\n"
    assert (workspace.path / "new").read_text() == "by new\n"
    states = {c.id: c.undone_by for c in workspace.history()}
    assert states == {one.id: 4, two.id: None, three.id: None, 4: None}
    assert workspace.undo().undoes == three.id


def test_undo_of_an_older_commit_when_a_later_one_touches_the_same_path(workspace: Workspace) -> None:
    before = snapshot(workspace.path)
    (one,) = commits(workspace, "f")
    with workspace.branch("again") as branch:
        write(branch.path / "f", "again\n")
    now = snapshot(workspace.path)
    with pytest.raises(ConflictError) as caught:
        workspace.undo(one)
    assert caught.value.paths == ("f",)
    assert snapshot(workspace.path) == now
    workspace.undo()
    workspace.undo(one)
    assert snapshot(workspace.path) == before


def test_undo_sees_a_change_between_two_commits_when_both_are_undone(workspace: Workspace) -> None:
    with workspace.branch("one") as one:
        write(one.path / "new" / "x", "one\n")
        write(one.path / "new" / "y", "one\n")
    write(workspace.path / "new" / "y", "third\n")
    with workspace.branch("two") as two:
        write(two.path / "new" / "x", "two\n")
    workspace.undo()
    now = snapshot(workspace.path)
    with pytest.raises(ConflictError) as caught:
        workspace.undo()
    assert caught.value.paths == ("new/y",)
    assert snapshot(workspace.path) == now


def test_undo_sees_a_change_after_a_later_commit_was_undone(workspace: Workspace) -> None:
    commits(workspace, "f")
    with workspace.branch("again") as branch:
        write(branch.path / "f", "again\n")
    workspace.undo()
    write(workspace.path / "f", "third\n")
    with pytest.raises(ConflictError):
        workspace.undo()
    assert (workspace.path / "f").read_text() == "third\n"


def test_undo_of_a_directory_in_which_a_later_commit_was_undone(workspace: Workspace) -> None:
    before = snapshot(workspace.path)
    with workspace.branch("one") as one:
        write(one.path / "new" / "deep" / "x", "one\n")
    with workspace.branch("two") as two:
        write(two.path / "new" / "deep" / "x", "two\n")
        write(two.path / "new" / "deep" / "y", "two\n")
    workspace.undo()
    workspace.undo()
    assert snapshot(workspace.path) == before


def test_undo_all_of_it_in_reverse_restores_everything_exactly(workspace: Workspace) -> None:
    seen = [snapshot(workspace.path)]
    for n in range(4):
        branch = workspace.branch("b")
        if n == 2:
            alter(branch.path)
        else:
            write(branch.path / "f", f"{n}\n")
            write(branch.path / "d" / f"new {n}", f"{n}\n")
        branch.commit()
        seen.append(snapshot(workspace.path))
    for expected in reversed(seen[:-1]):
        workspace.undo()
        assert snapshot(workspace.path) == expected


def test_redo_refuses_where_what_it_was_made_on_is_undone(workspace: Workspace) -> None:
    for number in (1, 2):
        with workspace.branch("b") as branch:
            write(branch.path / "f", f"{number}\n")
    second = workspace.undo()
    first = workspace.undo()
    now = snapshot(workspace.path)
    with pytest.raises(ConflictError) as caught:
        workspace.undo(second)
    assert caught.value.paths == ("f",)
    assert snapshot(workspace.path) == now
    workspace.undo(first)
    workspace.undo(second)
    assert (workspace.path / "f").read_text() == "2\n"


def test_undo_twice_says_what_to_do_instead(workspace: Workspace) -> None:
    (one,) = commits(workspace, "f")
    undone = workspace.undo(one)
    with pytest.raises(CommitError, match=f"already undone, by {undone.id}; undo {undone.id} to restore it"):
        workspace.undo(one)
    with pytest.raises(CommitError, match="no commit to undo"):
        workspace.undo()
    assert workspace.undo(undone.id).kind == "redo"


def test_undo_of_a_number_that_never_was(workspace: Workspace) -> None:
    commits(workspace, "f")
    for number in (0, 2, -1):
        with pytest.raises(CommitError, match=f"no commit {number}"):
            workspace.undo(number)


def test_undo_of_a_collected_commit_is_a_clear_error(workspace: Workspace) -> None:
    one, two = commits(workspace, "f", "new")
    workspace.gc(keep=1)
    now = snapshot(workspace.path)
    with pytest.raises(CommitError, match="collected"):
        workspace.undo(one)
    assert snapshot(workspace.path) == now
    workspace.undo(two)
    assert not (workspace.path / "new").exists()


@pytest.mark.parametrize("project", ["same filesystem"], indirect=True)
def test_redo_of_a_collected_commit_is_a_clear_error(workspace: Workspace) -> None:
    (one,) = commits(workspace, "f")
    undone = workspace.undo(one)
    workspace.gc(keep=1)
    with pytest.raises(CommitError, match="collected"):
        workspace.undo(undone)
    assert (workspace.path / "f").read_text() == "f\n"


def test_undo_after_everything_was_collected(workspace: Workspace) -> None:
    commits(workspace, "f", "new")
    workspace.gc(keep=0)
    assert workspace.history() == []
    with pytest.raises(CommitError, match="no commit to undo"):
        workspace.undo()
    (again,) = commits(workspace, "kept2")
    assert again.id == 3
    workspace.undo()
    assert not (workspace.path / "kept2").exists()


def test_undo_of_a_commit_of_nested_branches(workspace: Workspace) -> None:
    before = snapshot(workspace.path)
    outer = workspace.branch("outer")
    write(outer.path / "f", "outer\n")
    inner = outer.branch("inner")
    alter(inner.path)
    shown = snapshot(inner.path)
    inner.commit()
    assert snapshot(outer.path) == shown
    outer.commit()
    assert snapshot(workspace.path) == shown
    workspace.undo()
    assert snapshot(workspace.path) == before
