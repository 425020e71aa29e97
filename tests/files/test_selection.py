"""A branch created from chosen paths and hunks of the changes of several branches."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from forkwise import Branch, BranchError, BranchStaleError, ConflictError, Workspace
from forkwise.files.selection import AlignedPath, Choice, align_branches, select
from forkwise.text.merge3 import Hunk

IN_MEMORY = True

TEXT = "one\ntwo\nthree\nfour\nfive\n"


@pytest.fixture(params=["overlay", "copy"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path, open_workspace: Callable[..., Workspace]) -> Workspace:
    root = tmp_path / "project"
    (root / "sub/deep").mkdir(parents=True)
    (root / "a.txt").write_text(TEXT)
    (root / "b.txt").write_text("bee\n")
    (root / "sub/deep/c.txt").write_text("sea\n")
    (root / "link").symlink_to("a.txt")
    return open_workspace(root, view=request.param)


@pytest.fixture
def pair(workspace: Workspace) -> dict[str, Branch]:
    """Create two branches that changed entries of every kind."""
    first, second = workspace.branch("try-1", None, None), workspace.branch("try-2", None, None)
    one, two = first.path, second.path
    (one / "a.txt").write_text(TEXT.replace("one", "1").replace("five", "5"))
    (two / "a.txt").write_text(TEXT.replace("one", "eins").replace("three", "drei"))
    (one / "b.txt").unlink()
    (two / "b.txt").chmod(0o755)
    (one / "sub/deep/c.txt").unlink()
    (one / "sub/deep").rmdir()
    (two / "link").unlink()
    (two / "link").symlink_to("b.txt")
    (one / "new").mkdir()
    (one / "new/n.txt").write_text("new\n")
    (two / "image").write_bytes(b"\0\1")
    return {"first": first, "second": second}


def everything(found: list[AlignedPath], name: str) -> dict[str, Choice]:
    """Choose all changes of one branch."""
    return {
        one.path: frozenset(one.alignment.of(name)) if one.alignment else name for one in found if name in one.versions
    }


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return the content of a directory: modes, contents, targets."""
    found = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        held = str(path.readlink()).encode() if stat.S_ISLNK(mode) else b"" if path.is_dir() else path.read_bytes()
        found[str(path.relative_to(root))] = (mode, held)
    return found


def test_alignment(workspace: Workspace, pair: dict[str, Branch]) -> None:
    found = {one.path: one for one in align_branches(workspace, pair)}
    assert {path: (list(one.versions), one.alignment is not None) for path, one in found.items()} == {
        "a.txt": (["first", "second"], True),
        "b.txt": (["first", "second"], False),
        "image": (["second"], False),
        "link": (["second"], False),
        "new/n.txt": (["first"], False),
        "sub/deep/c.txt": (["first"], False),
    }
    alignment = found["a.txt"].alignment
    assert alignment is not None
    assert [(hunk.start, hunk.versions) for hunk in alignment.hunks] == [
        (0, ("first",)),
        (0, ("second",)),
        (2, ("second",)),
        (4, ("first",)),
    ]
    assert found["b.txt"].versions["first"] is None
    assert found["image"].base is None


@pytest.mark.parametrize("name", ["first", "second"])
def test_choosing_all_of_a_branch_is_that_branch(workspace: Workspace, pair: dict[str, Branch], name: str) -> None:
    made = select(workspace, pair, "made", everything(align_branches(workspace, pair), name))
    assert tree(made.path) == tree(pair[name].path)


def test_choosing_nothing_is_the_parent(workspace: Workspace, pair: dict[str, Branch]) -> None:
    made = select(workspace, pair, "made", {"a.txt": frozenset()})
    assert tree(made.path) == tree(workspace.path)
    assert made.diff() == ""


def test_some_of_both_is_committed_and_undone(workspace: Workspace, pair: dict[str, Branch]) -> None:
    before = tree(workspace.path)
    alignment = align_branches(workspace, pair)[0].alignment
    assert alignment is not None
    top, middle, bottom = alignment.regions
    hunks = frozenset([*top.of("second"), *middle.of("second"), *bottom.of("first")])
    made = select(workspace, pair, "made", {"a.txt": hunks, "b.txt": "second", "new/n.txt": "first"})
    made.commit()
    assert (workspace.path / "a.txt").read_text() == "eins\ntwo\ndrei\nfour\n5\n"
    assert (workspace.path / "b.txt").stat().st_mode & 0o777 == 0o755
    assert (workspace.path / "new/n.txt").exists()
    assert (workspace.path / "sub/deep/c.txt").exists()
    workspace.undo()
    assert tree(workspace.path) == before


@pytest.mark.parametrize(
    ("choice", "report"),
    [
        ({"a.txt": frozenset([Hunk(0, 1, (b"uno\n",), ("first",))])}, "change of line 1 is not one of"),
        ({"link": "first"}, "first did not change link"),
        ({"untouched.txt": "first"}, "first did not change untouched.txt"),
        ({"image": frozenset([Hunk(0, 0, (b"\0\1",), ("second",))])}, "image has no hunks"),
    ],
)
def test_invalid_choices(workspace: Workspace, pair: dict[str, Branch], choice: dict[str, Choice], report: str) -> None:
    with pytest.raises(BranchError, match=report):
        select(workspace, pair, "made", choice)
    assert {branch.name for branch in workspace.branches()} == {"try-1", "try-2"}


def test_a_choice_that_overlaps(workspace: Workspace, pair: dict[str, Branch]) -> None:
    alignment = align_branches(workspace, pair)[0].alignment
    assert alignment is not None
    with pytest.raises(BranchError, match="first and by second of line 1 overlap"):
        select(workspace, pair, "made", {"a.txt": frozenset(alignment.regions[0].hunks)})


def test_what_a_third_party_changed_is_not_overwritten(workspace: Workspace, pair: dict[str, Branch]) -> None:
    choice = everything(align_branches(workspace, pair), "first")
    (workspace.path / "a.txt").write_text("mine\n")
    with pytest.raises(ConflictError):
        select(workspace, pair, "made", choice)


def test_a_change_after_the_choice_is_a_conflict_of_its_commit(workspace: Workspace, pair: dict[str, Branch]) -> None:
    made = select(workspace, pair, "made", everything(align_branches(workspace, pair), "first"))
    (workspace.path / "a.txt").write_text("mine\n")
    with pytest.raises(ConflictError):
        made.commit()
    assert (workspace.path / "a.txt").read_text() == "mine\n"


def test_stale_branches_come_first(workspace: Workspace, pair: dict[str, Branch]) -> None:
    third = workspace.branch("third", None, None)
    (third.path / "t.txt").write_text("t\n")
    third.commit()
    with pytest.raises(BranchStaleError):
        align_branches(workspace, pair)


def test_a_link_put_in_a_directorys_place_is_not_followed(workspace: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside/deep"
    outside.mkdir(parents=True)
    first, second = workspace.branch("try-1", None, None), workspace.branch("try-2", None, None)
    for path in (first.path / "sub/deep/c.txt", second.path / "sub/deep/c.txt"):
        path.unlink()
    (first.path / "sub/deep").rmdir()
    (second.path / "sub/deep").rmdir()
    (second.path / "sub").rmdir()
    (second.path / "sub").symlink_to(outside.parent)
    with pytest.raises(BranchError, match="leads out of"):
        select(workspace, {"first": first, "second": second}, "made", {"sub": "second", "sub/deep/c.txt": "first"})
    assert outside.is_dir()
