"""Conflicts by example: what counts as one, what each resolution does, and that nothing is lost."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from forkwise import Branch, BranchError, BranchStaleError, CommitError, ConflictError, Workspace
from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.changes import Commit
from forkwise.files.store.record import Record
from tests.files.snapshot import snapshot

IN_MEMORY = True

Open = Callable[..., Workspace]

LINES = "".join(f"line {n}\n" for n in range(1, 10))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    write(made / "f", LINES)
    write(made / "other", "other\n")
    write(made / "d" / "a", "a\n")
    write(made / "d" / "b", "b\n")
    write(made / "d" / "deep" / "c", "c\n")
    return made


@pytest.fixture
def workspace(project: Path, view: str, open_workspace: Open) -> Workspace:
    return open_workspace(project, view=view)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def line(number: int, text: str) -> str:
    """Return Return LINES with one line changed."""
    return LINES.replace(f"line {number}\n", f"{text}\n")


def replace(path: Path, text: str) -> None:
    """Replace a file as editors do: rename a new file over the old one."""
    beside = path.with_name("beside")
    write(beside, text)
    beside.replace(path)


def edit(path: Path, by: str) -> None:
    path.write_text(f"edited by {by}\n")


def append(path: Path, by: str) -> None:
    with path.open("a") as file:
        file.write(f"{by}\n")


def delete(path: Path, by: str) -> None:
    path.unlink()


def rewrite(path: Path, by: str) -> None:
    replace(path, f"rewritten by {by}\n")


def chmod(path: Path, by: str) -> None:
    path.chmod(0o640 if by == "branch" else 0o604)


def to_directory(path: Path, by: str) -> None:
    path.unlink()
    write(path / "inside", f"{by}\n")


def to_symlink(path: Path, by: str) -> None:
    path.unlink()
    path.symlink_to(f"to {by}")


CHANGES = [edit, append, delete, rewrite, chmod, to_directory, to_symlink]


def refused(branch: Branch, *paths: str) -> ConflictError:
    """Expect a commit that is refused, names the paths, and leaves workspace and branch unchanged."""
    before, shown = snapshot(branch.workspace.path), snapshot(branch.path)
    with pytest.raises(ConflictError) as caught:
        branch.commit()
    assert set(paths) <= set(caught.value.paths), caught.value
    assert snapshot(branch.workspace.path) == before
    assert snapshot(branch.path) == shown
    assert branch.status == "open"
    assert branch.workspace.history() == [] or branch.workspace.history()[0].branch != branch.branch_path
    return caught.value


# A third party's change of the same file


def is_seen(view: str, mine: Callable[[Path, str], None], theirs: Callable[[Path, str], None]) -> bool:
    """Return whether a pair of changes is detected as a conflict.

    A layer does not record that a new file replaced an old one. If a third party deletes the old file, the branch's
    file counts as added, which loses nothing.
    """
    if theirs is delete:
        return mine is not delete and (view == "copy" or mine in (edit, append, chmod))
    return True


@pytest.mark.parametrize("theirs", CHANGES)
@pytest.mark.parametrize("mine", CHANGES)
def test_change_of_the_same_path_is_refused(
    workspace: Workspace, view: str, mine: Callable[[Path, str], None], theirs: Callable[[Path, str], None]
) -> None:
    branch = workspace.branch("b")
    mine(branch.path / "f", "branch")
    edit(branch.path / "other", "branch")
    wanted = snapshot(branch.path)
    theirs(workspace.path / "f", "third")
    if is_seen(view, mine, theirs):
        error = refused(branch, "f")
        kind = "deleted" if theirs is delete else "changed"
        assert [c.kind for c in error.conflicts if c.path == "f"] == [kind]
        assert "on_conflict" in str(error)
    else:
        commit = branch.commit()
        assert commit.conflicts == ()
        assert snapshot(workspace.path, times=False) == {p: s._replace(mtime=0) for p, s in wanted.items()}


@pytest.mark.parametrize("theirs", CHANGES)
@pytest.mark.parametrize("mine", CHANGES)
def test_ours_takes_the_branch_s_and_undo_gives_back_theirs(
    workspace: Workspace, mine: Callable[[Path, str], None], theirs: Callable[[Path, str], None]
) -> None:
    branch = workspace.branch("b")
    mine(branch.path / "f", "branch")
    edit(branch.path / "other", "branch")
    wanted = beneath(branch.path, "f")
    theirs(workspace.path / "f", "third")
    before = snapshot(workspace.path)
    commit = branch.commit(on_conflict="ours")
    assert beneath(workspace.path, "f") == wanted
    assert (workspace.path / "other").read_text() == "edited by branch\n"
    workspace.undo(commit)
    assert snapshot(workspace.path) == before


@pytest.mark.parametrize("theirs", CHANGES)
@pytest.mark.parametrize("mine", CHANGES)
def test_theirs_keeps_the_parent_s_and_commits_the_rest(
    workspace: Workspace, view: str, mine: Callable[[Path, str], None], theirs: Callable[[Path, str], None]
) -> None:
    branch = workspace.branch("b")
    mine(branch.path / "f", "branch")
    edit(branch.path / "other", "branch")
    theirs(workspace.path / "f", "third")
    before = beneath(workspace.path, "f")
    commit = branch.commit(on_conflict="theirs")
    if is_seen(view, mine, theirs):
        assert beneath(workspace.path, "f") == before
        assert {c.path.split("/")[0] for c in commit.conflicts} == {"f"}
        assert commit.paths == ("other",)
    assert (workspace.path / "other").read_text() == "edited by branch\n"


def beneath(root: Path, path: str) -> dict[str, object]:
    return {p: s for p, s in snapshot(root).items() if p == path or p.startswith(f"{path}/")}


@pytest.mark.parametrize("change", [edit, delete, rewrite, to_symlink])
def test_the_same_change_on_both_sides_is_no_conflict(
    workspace: Workspace, change: Callable[[Path, str], None]
) -> None:
    branch = workspace.branch("b")
    change(branch.path / "f", "both")
    change(workspace.path / "f", "both")
    before = beneath(workspace.path, "f")
    commit = branch.commit()
    assert commit.conflicts == ()
    assert beneath(workspace.path, "f") == before


def test_the_same_directory_made_on_both_sides_is_no_conflict(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    write(branch.path / "new" / "mine", "m")
    write(workspace.path / "new" / "theirs", "t")
    branch.commit()
    assert sorted(os.listdir(workspace.path / "new")) == ["mine", "theirs"]


def test_the_same_new_path_with_another_content_conflicts(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    write(branch.path / "new" / "x", "mine")
    write(workspace.path / "new" / "x", "theirs")
    refused(branch, "new/x")


def test_what_a_third_party_moves_into_place_conflicts_however_old_it_is(workspace: Workspace, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "x", "older than the fork")
    branch = workspace.branch("b")
    write(branch.path / "new" / "x", "mine")
    (tmp_path / "elsewhere").rename(workspace.path / "new")
    refused(branch, "new/x")


def test_a_directory_a_third_party_exchanges_conflicts_however_old_its_files_are(
    workspace: Workspace, view: str, tmp_path: Path
) -> None:
    write(tmp_path / "elsewhere" / "a", "older than the fork")
    branch = workspace.branch("b")
    edit(branch.path / "d" / "a", "branch")
    (workspace.path / "d").rename(tmp_path / "gone")
    (tmp_path / "elsewhere").rename(workspace.path / "d")
    before = snapshot(workspace.path)
    with pytest.raises(ConflictError) as caught:
        branch.commit()
    assert caught.value.paths == ("d/a",)
    assert snapshot(workspace.path) == before


def test_changes_of_other_paths_are_no_conflict(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    edit(branch.path / "d" / "a", "branch")
    write(branch.path / "d" / "mine", "m")
    edit(workspace.path / "d" / "b", "third")
    edit(workspace.path / "f", "third")
    write(workspace.path / "d" / "theirs", "t")
    shutil.rmtree(workspace.path / "d" / "deep")
    commit = branch.commit()
    assert commit.conflicts == ()
    assert sorted(os.listdir(workspace.path / "d")) == ["a", "b", "mine", "theirs"]
    assert (workspace.path / "d" / "b").read_text() == "edited by third\n"


# Renames


def test_a_moved_file_is_no_conflict(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    shutil.move(branch.path / "f", branch.path / "d" / "g")
    shutil.move(branch.path / "d" / "a", branch.path / "a")
    edit(branch.path / "a", "branch")
    write(workspace.path / "unrelated", "u")
    write(workspace.path / "d" / "unrelated", "u")
    commit = branch.commit()
    assert commit.conflicts == ()
    assert commit.added == ("a", "d/g")
    assert commit.deleted == ("d/a", "f")


def test_a_file_moved_to_a_name_and_its_old_name_used_again(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    shutil.move(branch.path / "f", branch.path / "g")
    write(branch.path / "f", "a new one")
    write(workspace.path / "unrelated", "u")
    commit = branch.commit()
    assert (commit.added, commit.changed) == (("g",), ("f",))


def test_files_that_exchanged_their_names(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    for old, new in [("f", "t"), ("other", "f"), ("t", "other")]:
        shutil.move(branch.path / old, branch.path / new)
    branch.commit()
    assert (workspace.path / "f").read_text() == "other\n"
    assert (workspace.path / "other").read_text() == LINES


def test_a_moved_file_whose_source_was_changed_meanwhile_conflicts(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    shutil.move(branch.path / "f", branch.path / "g")
    edit(workspace.path / "f", "third")
    refused(branch, "f")


def test_a_moved_file_whose_target_appeared_meanwhile_conflicts(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    shutil.move(branch.path / "f", branch.path / "g")
    write(workspace.path / "g", "third")
    refused(branch, "g")


def test_a_moved_file_s_hard_links(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    os.link(branch.path / "f", branch.path / "hard")
    commit = branch.commit()
    assert "hard" in commit.added
    assert (workspace.path / "hard").read_text() == LINES


# Conflicts inside directories that are removed or replaced


def remove(path: Path) -> None:
    shutil.rmtree(path)


def renew(path: Path) -> None:
    shutil.rmtree(path)
    write(path / "fresh", "fresh\n")


def become_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("a file now\n")


def move_away(path: Path) -> None:
    shutil.move(path, path.with_name("moved"))


FATES = [remove, renew, become_file, move_away]


def is_same_place(view: str, fate: Callable[[Path], None]) -> bool:
    """A new directory often gets the inode number of the deleted one.

    A copy identifies directories by inode number, so a recreated directory counts as the old one with deletions: files
    that third parties added there stay, and are no conflict.
    """
    return view == "copy" and fate is renew


@pytest.mark.parametrize("place", ["d", "d/deep"])
@pytest.mark.parametrize("fate", FATES)
def test_files_added_meanwhile_to_a_deleted_directory_are_not_lost(
    workspace: Workspace, view: str, fate: Callable[[Path], None], place: str
) -> None:
    branch = workspace.branch("b")
    fate(branch.path / "d")
    edit(branch.path / "other", "branch")
    write(workspace.path / place / "added", "third\n")
    if not is_same_place(view, fate):
        refused(branch, f"{place}/added")
    before = snapshot(workspace.path)
    commit = branch.commit(on_conflict="theirs")
    assert (workspace.path / place / "added").read_text() == "third\n"
    assert set(commit.deleted) == set(before) - set(snapshot(workspace.path))
    assert set(commit.added) == set(snapshot(workspace.path)) - set(before)
    assert (workspace.path / "other").read_text() == "edited by branch\n"
    workspace.undo(commit)
    assert snapshot(workspace.path) == before


@pytest.mark.parametrize("change", [edit, rewrite, chmod, to_directory])
@pytest.mark.parametrize("fate", FATES)
def test_files_changed_meanwhile_in_a_deleted_directory_are_not_lost(
    workspace: Workspace, fate: Callable[[Path], None], change: Callable[[Path, str], None]
) -> None:
    branch = workspace.branch("b")
    fate(branch.path / "d")
    edit(branch.path / "other", "branch")
    change(workspace.path / "d" / "deep" / "c", "third")
    refused(branch, "d/deep/c")
    before, kept = snapshot(workspace.path), beneath(workspace.path, "d/deep/c")
    commit = branch.commit(on_conflict="theirs")
    assert beneath(workspace.path, "d/deep/c") == kept
    assert (workspace.path / "other").read_text() == "edited by branch\n"
    workspace.undo(commit)
    assert snapshot(workspace.path) == before


@pytest.mark.parametrize("fate", FATES)
def test_ours_takes_the_directory_as_the_branch_has_it(
    workspace: Workspace, view: str, fate: Callable[[Path], None]
) -> None:
    branch = workspace.branch("b")
    fate(branch.path / "d")
    wanted = beneath(branch.path, "d") | beneath(branch.path, "moved")
    write(workspace.path / "d" / "added", "third\n")
    edit(workspace.path / "d" / "deep" / "c", "third")
    before = snapshot(workspace.path)
    commit = branch.commit(on_conflict="ours")
    if not is_same_place(view, fate):
        assert beneath(workspace.path, "d") | beneath(workspace.path, "moved") == wanted
    workspace.undo(commit)
    assert snapshot(workspace.path) == before


def test_what_theirs_kept_is_not_said_to_be_deleted(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    shutil.rmtree(branch.path / "d")
    (workspace.path / "d").chmod(0o711)
    before = beneath(workspace.path, "d")
    commit = branch.commit(on_conflict="theirs")
    assert beneath(workspace.path, "d") == before
    assert commit.paths == ()


@pytest.mark.parametrize("mine", ["edits", "adds", "deletes"])
def test_a_directory_deleted_meanwhile_in_which_the_branch_changed_something(workspace: Workspace, mine: str) -> None:
    branch = workspace.branch("b")
    if mine == "edits":
        edit(branch.path / "d" / "deep" / "c", "branch")
    elif mine == "adds":
        write(branch.path / "d" / "deep" / "new", "n")
    else:
        (branch.path / "d" / "deep" / "c").unlink()
    shutil.rmtree(workspace.path / "d")
    if mine == "deletes":
        branch.commit(on_conflict="theirs")
        assert not (workspace.path / "d").exists()
        return
    before = snapshot(workspace.path)
    with pytest.raises(ConflictError) as caught:
        branch.commit()
    assert caught.value.conflicts[0].kind == "deleted"
    assert snapshot(workspace.path) == before
    wanted = branch.path / "d" / "deep" / ("c" if mine == "edits" else "new")
    text = wanted.read_text()
    commit = branch.commit(on_conflict="ours")
    assert (workspace.path / "d" / "deep" / wanted.name).read_text() == text
    workspace.undo(commit)
    assert snapshot(workspace.path) == before


@pytest.mark.parametrize("mine", ["edits", "adds"])
def test_theirs_leaves_a_deleted_directory_deleted(workspace: Workspace, mine: str) -> None:
    branch = workspace.branch("b")
    write(branch.path / "d" / "deep" / ("c" if mine == "edits" else "new"), "branch\n")
    edit(branch.path / "other", "branch")
    shutil.rmtree(workspace.path / "d")
    commit = branch.commit(on_conflict="theirs")
    assert not (workspace.path / "d").exists()
    assert commit.paths == ("other",)


@pytest.mark.parametrize("replacement", ["file", "symlink"])
def test_a_directory_that_became_something_else_meanwhile(
    workspace: Workspace, replacement: str, tmp_path: Path
) -> None:
    branch = workspace.branch("b")
    edit(branch.path / "d" / "a", "branch")
    shutil.rmtree(workspace.path / "d")
    outside = tmp_path / "outside"
    write(outside / "a", "outside")
    if replacement == "file":
        (workspace.path / "d").write_text("a file")
    else:
        (workspace.path / "d").symlink_to(outside)
    before = snapshot(workspace.path)
    with pytest.raises(ConflictError):
        branch.commit()
    assert snapshot(workspace.path) == before
    branch.commit(on_conflict="ours")
    assert (workspace.path / "d" / "a").read_text() == "edited by branch\n"
    assert not (workspace.path / "d").is_symlink()
    assert (outside / "a").read_text() == "outside"


# Directories' own metadata


def test_modes_of_a_directory_changed_on_both_sides_conflict(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    (branch.path / "d").chmod(0o700)
    (workspace.path / "d").chmod(0o711)
    error = refused(branch, "d")
    assert error.conflicts[0].kind == "metadata"
    branch.commit(on_conflict="ours")
    assert stat.S_IMODE((workspace.path / "d").stat().st_mode) == 0o700


def test_theirs_keeps_a_directory_s_mode(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    (branch.path / "d").chmod(0o700)
    edit(branch.path / "d" / "a", "branch")
    (workspace.path / "d").chmod(0o711)
    commit = branch.commit(on_conflict="theirs")
    assert stat.S_IMODE((workspace.path / "d").stat().st_mode) == 0o711
    assert commit.paths == ("d/a",)
    assert (workspace.path / "d" / "a").read_text() == "edited by branch\n"


# Staleness


def test_the_first_commit_wins_and_the_others_are_stale(workspace: Workspace) -> None:
    """The README lists the error twice: ``BranchStaleError``, "a sibling branch was already committed", and, below
    ``CommitError``, ``ConflictError``, "another branch already committed".
    """
    one, two = workspace.branch("one"), workspace.branch("two")
    edit(one.path / "f", "one")
    edit(two.path / "other", "two")
    one.commit()
    assert two.status == "stale"
    before = snapshot(workspace.path)
    for choice in ("refuse", "ours", "theirs", "merge"):
        with pytest.raises(BranchStaleError):
            two.commit(on_conflict=choice)
    for kind in (BranchStaleError, ConflictError, CommitError, BranchError):
        with pytest.raises(kind):
            two.commit()
    assert snapshot(workspace.path) == before
    two.abort()
    assert snapshot(workspace.path) == before


def test_undo_makes_branches_stale_too(workspace: Workspace) -> None:
    one = workspace.branch("one")
    edit(one.path / "f", "one")
    one.commit()
    two = workspace.branch("two")
    edit(two.path / "other", "two")
    workspace.undo()
    with pytest.raises(BranchStaleError):
        two.commit()


def test_a_branch_with_branches_of_its_own_is_neither_committed_nor_rebased(workspace: Workspace) -> None:
    parent = workspace.branch("parent")
    child = parent.branch("child")
    for attempt in (parent.commit, parent.rebase, parent.thaw):
        with pytest.raises(BranchError, match="of its own"):
            attempt()
    child.abort()
    parent.commit()


# Three-way merges at commit


def git(project: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", "-C", str(project), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(project: Path) -> Path:
    git(project, "init")
    git(project, "add", ".")
    git(project, "commit", "-m", "first")
    return project


THEIRS = {
    "edited": (),
    "staged": ("add", "f"),
    "committed": ("commit", "-am", "theirs"),
    "pulled": ("pull", "--ff-only", "../theirs", "main"),
}


@pytest.mark.parametrize("how", THEIRS)
@pytest.mark.parametrize("operation", ["commit", "rebase"])
def test_git_s_index_is_no_ancestor(repository: Path, workspace: Workspace, how: str, operation: str) -> None:
    """Another person's lines survive, also if git's index equals their version when the branch is merged."""
    git(repository, "clone", str(repository), str(repository.parent / "theirs"))
    branch = workspace.branch("b")
    write(branch.path / "f", line(2, "branch"))
    theirs = repository.parent / "theirs" if how == "pulled" else repository
    write(theirs / "f", line(8, "third"))
    if how == "pulled":
        git(theirs, "commit", "-am", "theirs")
    if THEIRS[how]:
        git(repository, *THEIRS[how])
    if operation == "rebase":
        rebased = branch.rebase()
        assert [(c.path, c.kind) for c in rebased.conflicts] == [("f", "unmerged")]
    with pytest.raises(ConflictError) as caught:
        branch.commit(on_conflict="merge" if operation == "commit" else "refuse")
    assert [c.path for c in caught.value.conflicts] == ["f"]
    assert (workspace.path / "f").read_text() == line(8, "third")


def test_merge_takes_its_ancestor_from_the_branch_s_own_record(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    write(branch.path / "f", line(2, "branch"))
    branch.record_bases()
    write(workspace.path / "f", line(8, "third"))
    refused(branch, "f")
    commit = branch.commit(on_conflict="merge")
    assert (workspace.path / "f").read_text() == line(2, "branch").replace("line 8\n", "third\n")
    assert [c.path for c in commit.conflicts] == ["f"]
    assert commit.changed == ("f",)
    workspace.undo(commit)
    assert (workspace.path / "f").read_text() == line(8, "third")


def test_a_version_that_was_edited_after_the_fork_is_not_recorded(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    write(branch.path / "f", line(2, "branch"))
    write(workspace.path / "f", line(8, "third"))
    branch.keep()
    write(workspace.path / "f", line(8, "fourth"))
    with pytest.raises(ConflictError, match="not known"):
        branch.commit(on_conflict="merge")
    assert (workspace.path / "f").read_text() == line(8, "fourth")


def test_a_record_is_not_an_ancestor_after_a_rebase(workspace: Workspace) -> None:
    """After the rebase the branch starts from the third party's version: a line changed back there stays so."""
    branch = workspace.branch("b")
    write(branch.path / "f", line(2, "branch"))
    branch.keep()
    write(workspace.path / "f", line(8, "third"))
    assert branch.rebase().merged == ("f",)
    write(workspace.path / "f", LINES)
    with pytest.raises(ConflictError, match="not known"):
        branch.commit(on_conflict="merge")
    assert (workspace.path / "f").read_text() == LINES


def test_a_version_older_than_the_fork_is_no_ancestor(repository: Path, workspace: Workspace) -> None:
    """A line that was changed before the fork, in no commit and no index, and changed back after it, stays so."""
    start = line(5, "not in git")
    write(workspace.path / "f", start)
    branch = workspace.branch("b")
    write(branch.path / "f", start.replace("line 2\n", "branch\n"))
    write(workspace.path / "f", LINES)
    with pytest.raises(ConflictError, match="not known"):
        branch.commit(on_conflict="merge")
    assert (workspace.path / "f").read_text() == LINES


def test_an_old_file_moved_into_place_after_the_fork_is_no_ancestor(workspace: Workspace) -> None:
    """Its modification time is from before the fork: only its change time shows that it came later."""
    write(workspace.path / "old", line(8, "third"))
    first = workspace.branch("first")
    write(first.path / "f", line(2, "first"))
    (workspace.path / "old").rename(workspace.path / "f")
    second = workspace.branch("second")
    write(second.path / "f", line(8, "third").replace("line 5\n", "second\n"))
    second.commit()
    assert [c.path for c in first.rebase().conflicts] == ["f"]
    with pytest.raises(ConflictError):
        first.commit()
    assert "third\n" in (workspace.path / "f").read_text()


def test_merge_of_the_same_lines_reports_and_changes_nothing(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    write(branch.path / "f", line(5, "branch"))
    edit(branch.path / "other", "branch")
    branch.keep()
    write(workspace.path / "f", line(5, "third"))
    before = snapshot(workspace.path)
    with pytest.raises(ConflictError) as caught:
        branch.commit(on_conflict="merge")
    assert [(c.path, c.kind) for c in caught.value.conflicts] == [("f", "unmerged")]
    assert "same lines" in caught.value.conflicts[0].detail
    assert snapshot(workspace.path) == before


def test_merge_without_an_ancestor_reports_and_changes_nothing(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    write(branch.path / "f", line(2, "branch"))
    write(workspace.path / "f", line(8, "third"))
    before = snapshot(workspace.path)
    with pytest.raises(ConflictError) as caught:
        branch.commit(on_conflict="merge")
    assert [(c.path, c.kind) for c in caught.value.conflicts] == [("f", "unmerged")]
    assert "not known" in caught.value.conflicts[0].detail
    assert snapshot(workspace.path) == before


def test_merge_of_binary_content_reports(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    (branch.path / "f").write_bytes(b"\0branch" * 10)
    branch.keep()
    (workspace.path / "f").write_bytes(b"\0third" * 10)
    with pytest.raises(ConflictError, match="not text"):
        branch.commit(on_conflict="merge")


# Rebase


def test_rebase_of_disjoint_siblings(workspace: Workspace) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    edit(one.path / "d" / "a", "one")
    write(one.path / "d" / "new-one", "1")
    edit(two.path / "d" / "b", "two")
    write(two.path / "d" / "new-two", "2")
    one.commit()
    rebased = two.rebase()
    assert (rebased.merged, rebased.conflicts) == ((), ())
    assert two.status == "open"
    assert (two.path / "d" / "a").read_text() == "edited by one\n"
    assert (two.path / "d" / "b").read_text() == "edited by two\n"
    assert two.delta().added == ("d/new-two",)
    assert two.delta().changed == ("d/b",)
    two.commit()
    assert sorted(os.listdir(workspace.path / "d")) == ["a", "b", "deep", "new-one", "new-two"]
    assert (workspace.path / "d" / "a").read_text() == "edited by one\n"


def test_rebase_merges_text_both_changed(workspace: Workspace) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    write(one.path / "f", line(2, "one"))
    write(two.path / "f", line(8, "two"))
    one.commit()
    rebased = two.rebase()
    both = line(2, "one").replace("line 8\n", "two\n")
    assert (rebased.merged, rebased.conflicts) == (("f",), ())
    assert (two.path / "f").read_text() == both
    two.commit()
    assert (workspace.path / "f").read_text() == both
    workspace.undo()
    assert (workspace.path / "f").read_text() == line(2, "one")


def test_rebase_over_several_commits_takes_the_version_of_the_fork(workspace: Workspace) -> None:
    late = workspace.branch("late")
    write(late.path / "f", line(8, "late"))
    text = LINES
    for number in (1, 2, 3):
        text = text.replace(f"line {number}\n", f"changed {number}\n")
        with workspace.branch(f"early-{number}") as early:
            write(early.path / "f", text)
    assert late.rebase().merged == ("f",)
    late.commit()
    assert (workspace.path / "f").read_text() == text.replace("line 8\n", "late\n")


def test_rebase_does_not_guess_an_ancestor_that_was_collected(workspace: Workspace) -> None:
    """A later record's version is not the fork's: a merge based on it would undo the changes in between."""
    early = workspace.branch("early")
    write(early.path / "f", line(1, "early"))
    late = workspace.branch("late")
    write(late.path / "f", line(8, "late"))
    early.commit()
    with workspace.branch("between") as between:
        write(between.path / "f", line(1, "early").replace("line 3\n", "between\n"))
    workspace.gc(keep=1)
    rebased = late.rebase()
    assert rebased.merged == ()
    assert [c.path for c in rebased.conflicts] == ["f"]
    assert (late.path / "f").read_text() == line(8, "late")


def test_rebase_after_an_undo_finds_the_version_of_the_fork(workspace: Workspace) -> None:
    with workspace.branch("one") as one:
        write(one.path / "f", line(2, "one"))
    two = workspace.branch("two")
    write(two.path / "f", line(2, "one").replace("line 8\n", "two\n"))
    workspace.undo()
    assert two.rebase().merged == ("f",)
    two.commit()
    assert (workspace.path / "f").read_text() == line(8, "two")


def test_rebase_over_a_commit_its_undo_and_its_redo(workspace: Workspace) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    write(one.path / "f", line(2, "one"))
    write(two.path / "f", line(8, "two"))
    commit = one.commit()
    undone = workspace.undo(commit)
    workspace.undo(undone)
    assert two.rebase().merged == ("f",)
    two.commit()
    assert (workspace.path / "f").read_text() == line(2, "one").replace("line 8\n", "two\n")


def test_rebase_over_a_commit_and_its_undo(workspace: Workspace) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    write(one.path / "f", line(5, "one"))
    write(two.path / "f", line(5, "two"))
    one.commit()
    workspace.undo()
    two.rebase()
    two.commit(on_conflict="ours")
    assert (workspace.path / "f").read_text() == line(5, "two")


def test_files_restored_by_an_undo_conflict_only_if_changed_since(workspace: Workspace) -> None:
    """Also for files that cannot be merged, and with ``merge=False``."""
    write(workspace.path / "binary", "\0one")
    for is_changed in (False, True):
        one, two = workspace.branch("one"), workspace.branch("two")
        for branch in (one, two):
            write(branch.path / "binary", f"\0{branch.name}")
            write(branch.path / "f", line(5, branch.name))
        one.commit()
        workspace.undo()
        if is_changed:
            write(workspace.path / "binary", "\0edited")
        assert [c.path for c in two.rebase(merge=False).conflicts] == (["binary"] if is_changed else [])
        two.abort()


def unmerged(workspace: Workspace) -> Branch:
    one, two = workspace.branch("one"), workspace.branch("two")
    write(one.path / "f", line(5, "one"))
    write(two.path / "f", line(5, "two"))
    edit(two.path / "other", "two")
    one.commit()
    rebased = two.rebase()
    assert rebased.merged == ()
    assert [(c.path, c.kind) for c in rebased.conflicts] == [("f", "unmerged")]
    assert (two.path / "f").read_text() == line(5, "two")
    refused(two, "f")
    return two


def test_what_a_rebase_could_not_merge_is_committed_once_it_is_edited(workspace: Workspace) -> None:
    two = unmerged(workspace)
    write(two.path / "f", line(5, "one and two"))
    two.commit()
    assert (workspace.path / "f").read_text() == line(5, "one and two")
    assert (workspace.path / "other").read_text() == "edited by two\n"


def test_what_a_rebase_could_not_merge_can_be_dropped_from_the_branch(workspace: Workspace) -> None:
    two = unmerged(workspace)
    write(two.path / "f", line(5, "one"))
    two.commit()
    assert (workspace.path / "f").read_text() == line(5, "one")


@pytest.mark.parametrize("choice", ["ours", "theirs"])
def test_what_a_rebase_could_not_merge_is_decided_by_on_conflict(workspace: Workspace, choice: str) -> None:
    two = unmerged(workspace)
    two.commit(on_conflict=choice)  # type: ignore[arg-type]
    assert (workspace.path / "f").read_text() == line(5, "two" if choice == "ours" else "one")
    assert (workspace.path / "other").read_text() == "edited by two\n"


def test_a_second_rebase_does_not_forget_what_the_first_left(workspace: Workspace) -> None:
    two = unmerged(workspace)
    assert [c.path for c in two.rebase().conflicts] == ["f"]
    refused(two, "f")


def test_a_rebase_over_another_commit_does_not_forget_what_the_first_left(workspace: Workspace) -> None:
    two = unmerged(workspace)
    with workspace.branch("three") as three:
        write(three.path / "unrelated", "3")
    assert [c.path for c in two.rebase().conflicts] == ["f"]
    refused(two, "f")


def test_rebase_where_a_sibling_deleted_what_the_branch_changed(workspace: Workspace) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    (one.path / "f").unlink()
    edit(two.path / "f", "two")
    one.commit()
    rebased = two.rebase()
    assert [c.path for c in rebased.conflicts] == ["f"]
    assert (two.path / "f").read_text() == "edited by two\n"
    refused(two, "f")
    append(two.path / "f", "decided")
    two.commit()
    assert (workspace.path / "f").read_text() == "edited by two\ndecided\n"


def test_rebase_where_a_sibling_deleted_the_directory_in_which_the_branch_changed_something(
    workspace: Workspace,
) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    shutil.rmtree(one.path / "d")
    edit(two.path / "d" / "deep" / "c", "two")
    one.commit()
    assert two.rebase().conflicts != ()
    with pytest.raises(ConflictError):
        two.commit()
    two.commit(on_conflict="ours")
    assert (workspace.path / "d" / "deep" / "c").read_text() == "edited by two\n"


@pytest.mark.parametrize("choice", ["ours", "theirs"])
def test_rebase_where_a_sibling_changed_what_the_branch_deleted(workspace: Workspace, choice: str) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    edit(one.path / "f", "one")
    (two.path / "f").unlink()
    one.commit()
    assert [c.path for c in two.rebase().conflicts] == ["f"]
    assert not (two.path / "f").exists()
    refused(two, "f")
    two.commit(on_conflict=choice)  # type: ignore[arg-type]
    assert (workspace.path / "f").exists() == (choice == "theirs")


def test_rebase_where_a_sibling_changed_inside_a_directory_the_branch_deleted(workspace: Workspace) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    edit(one.path / "d" / "deep" / "c", "one")
    write(one.path / "d" / "added", "one\n")
    shutil.rmtree(two.path / "d")
    one.commit()
    assert {"d/added", "d/deep/c"} <= {c.path for c in two.rebase().conflicts}
    refused(two, "d/added", "d/deep/c")
    two.commit(on_conflict="theirs")
    assert (workspace.path / "d" / "deep" / "c").read_text() == "edited by one\n"
    assert (workspace.path / "d" / "added").read_text() == "one\n"
    assert not (workspace.path / "d" / "a").exists()


def test_rebase_of_binary_files_keeps_the_branch_s(workspace: Workspace) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    (one.path / "f").write_bytes(b"\0one")
    (two.path / "f").write_bytes(b"\0two")
    one.commit()
    assert [c.kind for c in two.rebase().conflicts] == ["unmerged"]
    assert (two.path / "f").read_bytes() == b"\0two"
    refused(two, "f")


def test_rebase_sees_what_a_sibling_made_before_the_branch_was_forked(workspace: Workspace) -> None:
    """The sibling's files are older than the fork, its commit is not."""
    one = workspace.branch("one")
    write(one.path / "new" / "x", "one\n")
    two = workspace.branch("two")
    write(two.path / "new" / "x", "two\n")
    one.commit()
    assert [c.path for c in two.rebase().conflicts] == ["new/x"]
    refused(two, "new/x")


def test_rebase_sees_a_directory_that_a_sibling_replaced_before_the_branch_was_forked(workspace: Workspace) -> None:
    one = workspace.branch("one")
    renew(one.path / "d")
    write(one.path / "d" / "a", "one\n")
    two = workspace.branch("two")
    write(two.path / "d" / "a", "two\n")
    one.commit()
    assert [c.path for c in two.rebase().conflicts] == ["d/a"]
    refused(two, "d/a")


def test_rebase_keeps_modes_that_only_the_sibling_changed(workspace: Workspace) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    (one.path / "d").chmod(0o711)
    (one.path / "f").chmod(0o755)
    one.path.chmod(0o751)
    edit(two.path / "d" / "a", "two")
    write(two.path / "f", line(2, "two"))
    one.commit()
    rebased = two.rebase()
    assert rebased.conflicts == ()
    two.commit()
    assert stat.S_IMODE((workspace.path / "d").stat().st_mode) == 0o711
    assert stat.S_IMODE((workspace.path / "f").stat().st_mode) == 0o755
    assert stat.S_IMODE(workspace.path.stat().st_mode) == 0o751
    assert (workspace.path / "f").read_text() == line(2, "two")


def test_rebase_keeps_modes_that_only_the_branch_changed(workspace: Workspace) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    edit(one.path / "d" / "a", "one")
    write(one.path / "f", line(2, "one"))
    (two.path / "d").chmod(0o711)
    (two.path / "f").chmod(0o755)
    one.commit()
    two.rebase()
    two.commit(on_conflict="ours")
    assert stat.S_IMODE((workspace.path / "d").stat().st_mode) == 0o711
    assert stat.S_IMODE((workspace.path / "f").stat().st_mode) == 0o755
    assert (workspace.path / "f").read_text() == line(2, "one")


@pytest.mark.parametrize("choice", ["ours", "theirs", "edited"])
def test_rebase_of_a_mode_both_changed_is_refused_until_it_is_decided(workspace: Workspace, choice: str) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    (one.path / "d").chmod(0o711)
    (two.path / "d").chmod(0o700)
    one.commit()
    assert [c.path for c in two.rebase().conflicts] == ["d"]
    refused(two, "d")
    if choice == "edited":
        (two.path / "d").chmod(0o750)
        two.commit()
    else:
        two.commit(on_conflict=choice)  # type: ignore[arg-type]
    wanted = {"ours": 0o700, "theirs": 0o711, "edited": 0o750}[choice]
    assert stat.S_IMODE((workspace.path / "d").stat().st_mode) == wanted


def test_rebase_after_a_third_party_s_edit(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    write(branch.path / "f", line(2, "branch"))
    branch.keep()
    write(workspace.path / "f", line(8, "third"))
    assert branch.rebase().merged == ("f",)
    branch.commit()
    assert (workspace.path / "f").read_text() == line(2, "branch").replace("line 8\n", "third\n")


def test_rebase_of_a_fresh_branch_changes_nothing(workspace: Workspace) -> None:
    branch = workspace.branch("b")
    edit(branch.path / "f", "branch")
    shown, delta = snapshot(branch.path), branch.delta()
    rebased = branch.rebase()
    assert (rebased.merged, rebased.conflicts) == ((), ())
    assert snapshot(branch.path) == shown
    assert branch.delta() == delta


def test_rebase_in_nested_branches(workspace: Workspace) -> None:
    parent = workspace.branch("parent")
    write(parent.path / "made-by-parent", LINES)
    one, two = parent.branch("one"), parent.branch("two")
    for name in ("f", "made-by-parent"):
        write(one.path / name, line(2, "one"))
        write(two.path / name, line(8, "two"))
    edit(two.path / "other", "two")
    one.commit()
    with pytest.raises(BranchStaleError):
        two.commit()
    both = line(2, "one").replace("line 8\n", "two\n")
    assert two.rebase().merged == ("f", "made-by-parent")
    two.commit()
    for name in ("f", "made-by-parent"):
        assert (parent.path / name).read_text() == both
    assert (workspace.path / "f").read_text() == LINES
    parent.commit()
    assert (workspace.path / "made-by-parent").read_text() == both
    assert (workspace.path / "f").read_text() == both
    assert (workspace.path / "other").read_text() == "edited by two\n"


def test_rebase_in_nested_branches_takes_no_ancestor_that_the_parent_hid(workspace: Workspace) -> None:
    """The workspace's file is not the branches' base: their parent had replaced its directory."""
    write(workspace.path / "d" / "a", LINES)
    parent = workspace.branch("parent")
    renew(parent.path / "d")
    one, two = parent.branch("one"), parent.branch("two")
    write(one.path / "d" / "a", line(2, "one"))
    write(two.path / "d" / "a", line(8, "two"))
    one.commit()
    rebased = two.rebase()
    assert rebased.merged == ()
    assert [c.path for c in rebased.conflicts] == ["d/a"]


def test_a_directory_s_name_deleted_in_nested_branches_is_gone(workspace: Workspace) -> None:
    """Every name in a listing of the parent's directory must also be accessible."""
    parent = workspace.branch("parent")
    write(parent.path / "new" / "deep" / "x", "x")
    write(parent.path / "new" / "y", "y")
    child = parent.branch("child")
    (child.path / "new" / "y").unlink()
    shutil.rmtree(child.path / "new" / "deep")
    child.commit()
    assert os.listdir(parent.path / "new") == []
    assert list(parent.delta().added) == ["new"]
    parent.commit()
    assert os.listdir(workspace.path / "new") == []


def test_theirs_in_nested_branches_leaves_only_what_conflicts(workspace: Workspace) -> None:
    parent = workspace.branch("parent")
    one, two = parent.branch("one"), parent.branch("two")
    (one.path / "d").chmod(0o711)
    write(one.path / "d" / "a", line(5, "one"))
    (two.path / "d").chmod(0o700)
    write(two.path / "d" / "a", line(5, "two"))
    write(two.path / "d" / "new", "two\n")
    one.commit()
    two.rebase()
    two.commit(on_conflict="theirs")
    assert (parent.path / "d" / "a").read_text() == line(5, "one")
    assert (parent.path / "d" / "new").read_text() == "two\n"


@pytest.mark.parametrize("fate", FATES)
def test_theirs_in_nested_branches_keeps_changes_in_a_deleted_directory(
    workspace: Workspace, fate: Callable[[Path], None]
) -> None:
    parent = workspace.branch("parent")
    one, two = parent.branch("one"), parent.branch("two")
    write(one.path / "d" / "deep" / "c", "one\n")
    fate(two.path / "d")
    edit(two.path / "other", "two")
    one.commit()
    assert "d/deep/c" in [c.path for c in two.rebase().conflicts]
    two.commit(on_conflict="theirs")
    assert (parent.path / "d" / "deep" / "c").read_text() == "one\n"
    assert (parent.path / "other").read_text() == "edited by two\n"


def test_a_moved_file_edited_in_a_nested_branch_is_no_conflict(workspace: Workspace) -> None:
    parent = workspace.branch("parent")
    shutil.move(parent.path / "f", parent.path / "g")
    child = parent.branch("child")
    edit(child.path / "g", "child")
    child.commit()
    write(workspace.path / "unrelated", "u")
    assert parent.commit().added == ("g",)


def test_rebase_leaves_a_frozen_branch_frozen(workspace: Workspace) -> None:
    one, two = workspace.branch("one"), workspace.branch("two")
    edit(one.path / "f", "one")
    edit(two.path / "other", "two")
    two.freeze()
    one.commit()
    two.rebase()
    assert two.status == "frozen"
    assert (two.path / "f").read_text() == "edited by one\n"


def test_conflict_in_nested_branches(workspace: Workspace) -> None:
    parent = workspace.branch("parent")
    one, two = parent.branch("one"), parent.branch("two")
    write(one.path / "f", line(5, "one"))
    write(two.path / "f", line(5, "two"))
    one.commit()
    assert [c.path for c in two.rebase().conflicts] == ["f"]
    refused(two, "f")
    two.commit(on_conflict="theirs")
    assert (parent.path / "f").read_text() == line(5, "one")


def test_a_third_party_s_edit_is_found_when_the_outermost_branch_is_committed(workspace: Workspace) -> None:
    parent = workspace.branch("parent")
    child = parent.branch("child")
    edit(child.path / "f", "child")
    edit(workspace.path / "f", "third")
    if parent.view == "overlay":
        child.commit()
        refused(parent, "f")
    else:
        child.commit()
        with pytest.raises(ConflictError):
            parent.commit()
    parent.commit(on_conflict="ours")
    assert (workspace.path / "f").read_text() == "edited by child\n"


def test_a_file_moved_in_a_nested_branch_is_no_conflict(workspace: Workspace) -> None:
    parent = workspace.branch("parent")
    write(parent.path / "new", "n")
    child = parent.branch("child")
    shutil.move(child.path / "f", child.path / "g")
    shutil.move(child.path / "new", child.path / "newer")
    child.commit()
    assert parent.delta().added == ("g", "newer")
    write(workspace.path / "unrelated", "u")
    commit = parent.commit()
    assert (commit.added, commit.deleted) == (("g", "newer"), ("f",))


# The clock


def test_a_write_right_before_the_fork_is_never_a_conflict(workspace: Workspace) -> None:
    for n in range(200):
        (workspace.path / "f").write_text(f"before {n}")
        branch = workspace.branch("b")
        (branch.path / "f").write_text(f"in branch {n}")
        assert branch.commit().conflicts == ()
        assert (workspace.path / "f").read_text() == f"in branch {n}"


def test_a_write_right_after_the_fork_is_always_a_conflict(workspace: Workspace) -> None:
    for n in range(200):
        branch = workspace.branch("b")
        (workspace.path / "f").write_text(f"after {n}")
        (branch.path / "f").write_text(f"in branch {n}")
        with pytest.raises(ConflictError):
            branch.commit()
        branch.abort()
    assert (workspace.path / "f").read_text() == "after 199"


def test_a_write_right_after_a_commit_is_always_a_conflict_for_undo(workspace: Workspace) -> None:
    for n in range(100):
        branch = workspace.branch("b")
        (branch.path / "f").write_text(f"in branch {n}")
        commit = branch.commit()
        (workspace.path / "f").write_text(f"after {n}")
        with pytest.raises(ConflictError):
            workspace.undo(commit)
    assert (workspace.path / "f").read_text() == "after 99"


def test_a_clock_that_was_set_back_hides_no_change(workspace: Workspace) -> None:
    """The branch was forked while the clock was an hour ahead; everything since then looks older than the fork."""
    branch = workspace.branch("b")
    info = BranchInfo.load(branch.home)
    hour = 3_600_000_000_000
    info.forked, info.made, info.clock = info.forked + hour, info.made + hour, info.clock + hour
    info.save(branch.home)
    write(branch.path / "f", "by the branch\n")
    write(branch.path / "other", "by the branch\n")
    (branch.path / "d/deep/c").unlink()
    assert [change.path for change in branch.delta()] == ["d/deep/c", "f", "other"]
    write(workspace.path / "f", "by an editor\n")
    refused(branch, "f")
    branch.commit(on_conflict="theirs")
    assert (workspace.path / "f").read_text() == "by an editor\n"
    assert (workspace.path / "other").read_text() == "by the branch\n"


def set_ahead(workspace: Workspace, commit: Commit, by: int) -> None:
    """Change a commit's record as if the clock had been ahead when it was made, and were set back since."""
    directory = workspace.state_dir.history(commit.id)
    record, finished = Record.load(directory), Record.finished(directory)
    assert record is not None
    record.started, record.clock = record.started + by, record.clock + by
    record.save(directory, sync=False)
    os.utime(f"{directory}/record.json", ns=(finished + by, finished + by))


def test_a_clock_that_was_set_back_hides_no_change_from_an_undo(workspace: Workspace) -> None:
    hour = 3_600_000_000_000
    with workspace.branch("b") as branch:
        write(branch.path / "f", "by the branch\n")
    set_ahead(workspace, workspace.history()[0], hour)
    write(workspace.path / "f", "by an editor\n")
    with pytest.raises(ConflictError):
        workspace.undo()
    assert (workspace.path / "f").read_text() == "by an editor\n"
    with workspace.branch("b") as branch:
        write(branch.path / "f", "once more\n")
    set_ahead(workspace, workspace.history()[0], hour)
    workspace.undo()
    assert (workspace.path / "f").read_text() == "by an editor\n"


def test_a_clock_that_a_restart_set_back_hides_no_change(workspace: Workspace) -> None:
    """The time of the fork is still to come, by the clock that the machine has since its restart."""
    branch = workspace.branch("b")
    info = BranchInfo.load(branch.home)
    day = 86_400_000_000_000
    write(branch.path / "f", "by the branch\n")
    info.forked, info.made, info.synced = info.forked + day, info.made + day, info.forked + 2 * day
    info.boot = "another"
    info.save(branch.home)
    write(workspace.path / "f", "by an editor\n")
    refused(branch, "f")
