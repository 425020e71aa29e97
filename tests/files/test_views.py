"""One suite for every view: the files of a branch, its commit, and the undo.

The central check is the same everywhere: after a commit the workspace equals what the branch showed before, including
every mode bit and nanosecond; after an undo it equals its earlier state.
"""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import stat
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forkwise import Branch, BranchError, ConflictError, ForkwiseWarning, Workspace
from forkwise.linux.trees import open_directory, open_root
from tests.files.filesystems import VIEWS, new_project, view_directories
from tests.files.snapshot import snapshot
from tests.need import need

__all__ = ["view_directories"]

is_root = os.geteuid() == 0


@pytest.fixture(params=VIEWS)
def view(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def project(view: str, view_directories: dict[str, Path]) -> Iterator[Path]:
    """An empty directory on a filesystem that supports the view."""
    made = new_project(view, view_directories[view], uuid.uuid4().hex[:8])
    yield made
    for branch in Workspace(made, state=made.parent / "state").branches():
        branch.abort()


@pytest.fixture
def workspace(view: str, project: Path) -> Callable[[], Workspace]:
    """A function that opens the project with the view under test, once its files exist."""

    def open_workspace() -> Workspace:
        refusal = _refusal(view, project)
        need(refusal is None, f"no {view} view here: {refusal}")
        return Workspace(project, view=view, state=project.parent / "state")

    return open_workspace


def _refusal(view: str, project: Path) -> str | None:
    from forkwise.files.store.state import locate
    from forkwise.files.views import view_named

    refusal = view_named(view).refusal(locate(project, project.parent / "state"))
    return None if refusal is None else refusal.reason


def write(path: Path, text: str = "", mode: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if mode is not None:
        path.chmod(mode)
    return path


def commit_and_undo(ws: Workspace, branch: Branch) -> None:
    """Check that a commit applies exactly what the branch shows, and that an undo restores the state before."""
    before = snapshot(ws.path)
    if branch.view == "fuse":
        branch.view_kind.hide(branch.home)  # the kernel caches attributes of a fuse directory for a second
    shown = snapshot(branch.path)
    assert shown != before, "the branch changed nothing, so nothing is tested"
    commit = branch.commit()
    assert snapshot(ws.path) == shown
    ws.undo()
    assert snapshot(ws.path) == before
    ws.undo(ws.history()[0])
    assert snapshot(ws.path) == shown
    assert commit.paths


# What a branch is


def test_a_branch_shows_the_workspace_and_keeps_its_writes(project: Path, workspace: Callable[[], Workspace]) -> None:
    write(project / "a.txt", "one")
    ws = workspace()
    branch = ws.branch("attempt")
    assert (branch.path / "a.txt").read_text() == "one"
    write(branch.path / "a.txt", "two")
    write(branch.path / "deep/er/b.txt", "new")
    assert (project / "a.txt").read_text() == "one"
    assert not (project / "deep").exists()
    delta = branch.delta()
    assert delta.changed == ("a.txt",)
    assert delta.added == ("deep", "deep/er", "deep/er/b.txt")
    commit_and_undo(ws, branch)


def test_siblings_do_not_see_each_other(project: Path, workspace: Callable[[], Workspace]) -> None:
    write(project / "a", "0")
    ws = workspace()
    one, two = ws.branch("one"), ws.branch("two")
    write(one.path / "a", "1")
    write(two.path / "a", "2")
    assert [(b.path / "a").read_text() for b in (one, two)] == ["1", "2"]
    one.abort()
    assert (two.path / "a").read_text() == "2"
    assert not Path(one.home).exists()
    assert (project / "a").read_text() == "0"


def test_an_empty_workspace_and_an_empty_delta(project: Path, workspace: Callable[[], Workspace]) -> None:
    ws = workspace()
    branch = ws.branch("nothing")
    assert list(branch.path.iterdir()) == []
    assert not branch.delta()
    assert branch.diff() == ""
    commit = branch.commit()
    assert commit.paths == ()


# Changes


def test_deletes(project: Path, workspace: Callable[[], Workspace]) -> None:
    write(project / "gone", "x")
    write(project / "dir/kept", "x")
    write(project / "dir/gone", "x")
    write(project / "tree/a/b/c", "x")
    write(project / "tree/d", "x")
    ws = workspace()
    branch = ws.branch("b")
    (branch.path / "gone").unlink()
    (branch.path / "dir/gone").unlink()
    shutil.rmtree(branch.path / "tree")
    assert branch.delta().deleted == ("dir/gone", "gone", "tree", "tree/a", "tree/a/b", "tree/a/b/c", "tree/d")
    commit_and_undo(ws, branch)


def test_type_changes(project: Path, workspace: Callable[[], Workspace]) -> None:
    for name in ("file-dir", "file-link"):
        write(project / name, "file")
    for name in ("dir-file", "dir-link", "dir-dir"):
        write(project / name / "inside/deeper", "old")
    for name in ("link-file", "link-dir"):
        (project / name).symlink_to("file-dir")
    ws = workspace()
    branch = ws.branch("b")
    root = branch.path
    (root / "file-dir").unlink()
    write(root / "file-dir/now/a", "dir")
    (root / "file-link").unlink()
    (root / "file-link").symlink_to("elsewhere")
    for name in ("dir-file", "dir-link", "dir-dir"):
        shutil.rmtree(root / name)
    write(root / "dir-file", "file")
    (root / "dir-link").symlink_to("/nowhere")
    write(root / "dir-dir/other", "new")
    (root / "link-file").unlink()
    write(root / "link-file", "file")
    (root / "link-dir").unlink()
    write(root / "link-dir/x", "dir")
    commit_and_undo(ws, branch)


def test_renames(project: Path, workspace: Callable[[], Workspace]) -> None:
    write(project / "a", "a")
    write(project / "b", "b")
    write(project / "dir/one", "1")
    write(project / "dir/sub/two", "2")
    write(project / "other/three", "3")
    ws = workspace()
    branch = ws.branch("b")
    root = branch.path
    (root / "a").rename(root / "dir/moved")
    (root / "b").rename(root / "other/three")
    shutil.move(root / "dir", root / "renamed")
    shutil.move(root / "other", root / "dir")
    commit_and_undo(ws, branch)


def test_a_directory_deleted_and_made_again_hides_what_was_in_it(
    project: Path, workspace: Callable[[], Workspace]
) -> None:
    write(project / "dir/old", "old")
    write(project / "dir/same", "same")
    ws = workspace()
    branch = ws.branch("b")
    shutil.rmtree(branch.path / "dir")
    (branch.path / "dir").mkdir()
    write(branch.path / "dir/same", "another")
    assert branch.delta().deleted == ("dir/old",)
    commit_and_undo(ws, branch)


def test_empty_directories(project: Path, workspace: Callable[[], Workspace]) -> None:
    (project / "was/empty").mkdir(parents=True)
    ws = workspace()
    branch = ws.branch("b")
    (branch.path / "is/empty").mkdir(parents=True)
    (branch.path / "was/empty").rmdir()
    commit_and_undo(ws, branch)


def test_modes(project: Path, workspace: Callable[[], Workspace]) -> None:
    write(project / "script", "#!", 0o644)
    write(project / "tool", "x", 0o755)
    write(project / "dir/inside", "x")
    ws = workspace()
    branch = ws.branch("b")
    (branch.path / "script").chmod(0o755)
    (branch.path / "tool").chmod(0o4755)
    (branch.path / "dir").chmod(0o2750)
    write(branch.path / "new", "x", 0o6711)
    (branch.path / "sticky").mkdir()
    (branch.path / "sticky").chmod(0o1777)
    assert {"script", "tool", "dir"} <= set(branch.delta().changed)
    commit_and_undo(ws, branch)


def test_mtimes(project: Path, workspace: Callable[[], Workspace]) -> None:
    write(project / "dir/a", "x")
    write(project / "touched", "x")
    ws = workspace()
    branch = ws.branch("b")
    os.utime(branch.path / "touched", ns=(1, 1_234_567_890_123_456_789))
    write(branch.path / "dir/b", "x")
    os.utime(branch.path / "dir/b", ns=(1, 987_654_321_000_000_001))
    os.utime(branch.path / "dir", ns=(1, 555_555_555_555_555_555))
    commit_and_undo(ws, branch)


def test_symlinks(project: Path, workspace: Callable[[], Workspace]) -> None:
    write(project / "dir/file", "x")
    (project / "to-dir").symlink_to("dir")
    ws = workspace()
    branch = ws.branch("b")
    root = branch.path
    (root / "dangling").symlink_to("no/such/thing")
    (root / "absolute").symlink_to("/etc/hostname")
    (root / "dir-link").symlink_to("dir", target_is_directory=True)
    (root / "up").symlink_to("../../..")
    write(root / "to-dir/through", "by way of the link")
    (root / "long").symlink_to("x" * 1000)
    commit_and_undo(ws, branch)
    assert (project / "dir/through").read_text() == "by way of the link"


def test_hard_links_made_in_a_branch_stay_links(project: Path, workspace: Callable[[], Workspace], view: str) -> None:
    write(project / "a", "x")
    ws = workspace()
    branch = ws.branch("b")
    write(branch.path / "one", "same")
    os.link(branch.path / "one", branch.path / "two")
    commit_and_undo(ws, branch)
    if not ws.child_view().whole:
        assert (project / "one").stat().st_ino == (project / "two").stat().st_ino


def test_fifos_and_sockets_are_left_out_with_a_warning(project: Path, workspace: Callable[[], Workspace]) -> None:
    write(project / "a", "x")
    ws = workspace()
    branch = ws.branch("b")
    root = branch.path
    os.mkfifo(root / "pipe")
    (root / "run").mkdir()
    os.mkfifo(root / "run/pipe")
    write(root / "run/pid", "1")
    listener = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(root)  # a socket's address is limited to 108 bytes, less than the path of a test
    try:
        listener.bind("sock")
    finally:
        os.chdir(here)
        listener.close()
    with pytest.warns(ForkwiseWarning, match="not committed: pipe, run/pipe, sock"):
        commit = branch.commit()
    assert commit.skipped == ("pipe", "run/pipe", "sock")
    assert sorted(snapshot(project)) == ["", "a", "run", "run/pid"]
    ws.undo()
    assert sorted(snapshot(project)) == ["", "a"]


def test_a_fifo_of_the_workspace_is_no_trap(project: Path, workspace: Callable[[], Workspace]) -> None:
    os.mkfifo(project / "pipe")
    write(project / "a", "x")
    ws = workspace()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForkwiseWarning)  # the copy view warns that it did not copy it
        branch = ws.branch("b")
    write(branch.path / "a", "y")
    branch.commit()
    assert stat.S_ISFIFO((project / "pipe").stat().st_mode)
    ws.undo()
    assert stat.S_ISFIFO((project / "pipe").stat().st_mode)


def test_extended_attributes(project: Path, workspace: Callable[[], Workspace]) -> None:
    os.setxattr(write(project / "a", "x"), "user.kept", b"1")
    write(project / "dir/b", "x")
    os.setxattr(project / "dir", "user.dropped", b"old")
    ws = workspace()
    branch = ws.branch("b")
    root = branch.path
    os.setxattr(root / "a", "user.added", b"2")
    os.setxattr(write(root / "new", "x"), "user.fresh", b"\x00\xff")
    os.setxattr(root / "dir", "user.added", b"3")
    os.removexattr(root / "dir", "user.dropped")
    (root / "made").mkdir()
    os.setxattr(root / "made", "user.of-dir", b"4")
    commit_and_undo(ws, branch)
    held = {p: [a for a, _ in seen.attributes] for p, seen in snapshot(project).items() if seen.attributes}
    assert held == {
        "a": ["user.added", "user.kept"],
        "new": ["user.fresh"],
        "dir": ["user.added"],
        "made": ["user.of-dir"],
    }


def test_sparse_and_large_files(project: Path, workspace: Callable[[], Workspace]) -> None:
    write(project / "a", "x")
    ws = workspace()
    branch = ws.branch("b")
    with open(branch.path / "sparse", "wb") as file:
        file.write(b"begin")
        file.seek(3 << 30)
        file.write(b"end")
    branch.commit()
    found = (project / "sparse").stat()
    assert found.st_size == (3 << 30) + 3
    assert found.st_blocks * 512 < 1 << 20, "the holes were filled"
    with open(project / "sparse", "rb") as file:
        assert file.read(6) == b"begin\0"
        file.seek(-4, os.SEEK_END)
        assert file.read() == b"\0end"


def test_names_no_encoding_knows(project: Path, workspace: Callable[[], Workspace]) -> None:
    odd = [os.fsdecode(n) for n in (b"caf\xe9", b"new\nline", b" space ", b"tab\t", b'quo"te', b"back\\slash", b"-rf")]
    for name in odd:
        write(project / name, "old")
    ws = workspace()
    branch = ws.branch("b")
    for name in odd:
        write(branch.path / name, "new")
        write(branch.path / "dir" / name, "fresh")
    (branch.path / odd[0]).unlink()
    assert odd[0] in branch.delta().deleted
    assert "caf\\351" in branch.diff()
    commit_and_undo(ws, branch)


def test_paths_longer_than_the_kernel_takes(project: Path, workspace: Callable[[], Workspace], view: str) -> None:
    _dig(project, "old")
    ws = workspace()
    branch = ws.branch("b")
    if view == "fuse":  # fuse-overlayfs itself uses complete paths
        with pytest.raises(OSError, match="File name too long"):
            _dig(branch.path, "new")
        return
    _dig(branch.path, "new")
    _write_at_bottom(branch.path, "old", b"changed")
    assert max(len(p) for p in snapshot(branch.path)) > 4096
    commit_and_undo(ws, branch)


def _dig(root: Path, prefix: str) -> None:
    """Directories 60 deep with names of 80 characters: 4,800 bytes of path."""
    fd = open_root(str(root))
    for number in range(60):
        name = _link(prefix, number)
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_PATH | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
    os.close(fd)


def _link(prefix: str, number: int) -> str:
    return f"{prefix}-{number:03}-".ljust(80, "x")


def _write_at_bottom(root: Path, prefix: str, content: bytes) -> None:
    top = open_root(str(root))
    fd = open_directory(top, "/".join(_link(prefix, n) for n in range(60)), os.O_PATH)
    with open(os.open("bottom", os.O_WRONLY | os.O_TRUNC, dir_fd=fd), "wb") as file:
        file.write(content)
    os.close(fd)
    os.close(top)


def test_read_only_files_and_directories(project: Path, workspace: Callable[[], Workspace], view: str) -> None:
    write(project / "locked/file", "x", 0o444)
    write(project / "locked/sub/deep", "x", 0o400)
    write(project / "replaced/file", "x")
    (project / "locked/sub").chmod(0o555)
    (project / "locked").chmod(0o555)
    (project / "replaced").chmod(0o555)
    ws = workspace()
    branch = ws.branch("b")
    root = branch.path
    if view == "fuse" and not is_root:  # fuse-overlayfs cannot copy up a directory that its user may not write to
        with pytest.raises(PermissionError):
            (root / "locked").chmod(0o755)
        return
    for path in ("locked", "locked/sub", "replaced"):
        (root / path).chmod(0o755)
    write(root / "locked/new", "x", 0o400)
    (root / "locked/file").unlink()
    write(root / "locked/file", "another", 0o444)
    (root / "locked/sub/deep").unlink()
    (root / "locked/sub").rmdir()
    shutil.rmtree(root / "replaced")
    write(root / "replaced/other", "y")
    write(root / "fresh/only", "z", 0o400)
    for path in ("locked", "replaced", "fresh"):
        (root / path).chmod(0o555)
    commit_and_undo(ws, branch)
    for path in ("locked", "replaced", "fresh", "locked/sub"):
        if (project / path).exists():
            (project / path).chmod(0o755)


# Concurrent changes during a commit


def test_a_file_open_for_writing_while_committed(project: Path, workspace: Callable[[], Workspace]) -> None:
    write(project / "log", "start\n")
    ws = workspace()
    branch = ws.branch("b")
    with open(branch.path / "log", "a") as late:
        late.write("before the commit\n")
        late.flush()
        branch.commit()
        assert (project / "log").read_text() == "start\nbefore the commit\n"
        late.write("after the commit\n")
        late.flush()
    assert (project / "log").read_text() == "start\nbefore the commit\n"


def test_a_file_mapped_for_writing_while_committed(project: Path, workspace: Callable[[], Workspace]) -> None:
    write(project / "data", "0" * 4096)
    ws = workspace()
    branch = ws.branch("b")
    with open(branch.path / "data", "r+b") as file, mmap.mmap(file.fileno(), 4096) as mapped:
        mapped[:4] = b"once"
        mapped.flush()
        branch.commit()
        mapped[:4] = b"late"
        mapped.flush()
    assert (project / "data").read_bytes()[:5] == b"once0"


def test_a_directory_that_is_a_working_directory_while_committed(
    project: Path, workspace: Callable[[], Workspace]
) -> None:
    write(project / "dir/a", "x")
    ws = workspace()
    branch = ws.branch("b")
    write(branch.path / "dir/a", "y")
    fd = os.open(branch.path / "dir", os.O_RDONLY | os.O_DIRECTORY)
    try:
        branch.commit()
        assert (project / "dir/a").read_text() == "y"
        with suppress(OSError):  # even better: the view is read-only already
            os.close(os.open("late", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    finally:
        os.close(fd)
    assert sorted(snapshot(project)) == ["", "dir", "dir/a"]


# Branches of branches


def test_nested_branches_commit_into_their_parent(project: Path, workspace: Callable[[], Workspace]) -> None:
    write(project / "a", "0")
    write(project / "dir/kept", "0")
    write(project / "dir/gone", "0")
    write(project / "tree/x", "0")
    ws = workspace()
    before = snapshot(project)
    with ws.branch("outer") as outer:
        write(outer.path / "a", "outer")
        shutil.rmtree(outer.path / "tree")
        assert not (outer.path / "dir/new").exists()  # a lookup that must not be cached
        with outer.branch("inner") as inner:
            assert (inner.path / "a").read_text() == "outer"
            assert not (inner.path / "tree").exists()
            write(inner.path / "a", "inner")
            (inner.path / "dir/gone").unlink()
            write(inner.path / "dir/new", "inner")
            write(inner.path / "tree/y", "inner")
            with inner.branch("innermost") as innermost:
                assert (innermost.path / "tree/y").read_text() == "inner"
                write(innermost.path / "tree/z", "innermost")
                (innermost.path / "dir/new").unlink()
            assert not (inner.path / "dir/new").exists()
            assert inner.branch_path == "/main/outer/inner"
        assert snapshot(project) == before
        shown = snapshot(outer.path)
        assert (outer.path / "a").read_text() == "inner"
        assert sorted(p for p in shown if p.startswith("tree")) == ["tree", "tree/y", "tree/z"]
        write(outer.path / "after", "writable again")
        shown = snapshot(outer.path)
    assert snapshot(project) == shown
    ws.undo()
    assert snapshot(project) == before


def test_a_parent_is_frozen_while_its_children_live(
    project: Path, workspace: Callable[[], Workspace], view: str
) -> None:
    write(project / "a", "0")
    ws = workspace()
    outer = ws.branch("outer")
    write(outer.path / "a", "1")
    inner = outer.branch("inner")
    assert outer.status == "frozen"
    if is_root or view in ("overlay", "btrfs", "fuse"):
        with pytest.raises(OSError, match="Read-only"):
            write(outer.path / "a", "2")
    with pytest.raises(BranchError, match="inner"):
        outer.commit()
    inner.abort()
    assert outer.status == "open"
    write(outer.path / "a", "3")
    outer.freeze()
    assert outer.status == "frozen"
    outer.thaw()
    write(outer.path / "a", "4")
    outer.commit()
    assert (project / "a").read_text() == "4"


def test_a_nested_branch_deletes_beside_what_its_parent_changed(
    project: Path, workspace: Callable[[], Workspace]
) -> None:
    write(project / "d/a", "a")
    write(project / "d/b", "b")
    ws = workspace()
    outer = ws.branch("outer", on_success=None)
    write(outer.path / "d/b", "changed")
    with outer.branch("inner") as inner:
        (inner.path / "d/a").unlink()
    assert sorted(p.name for p in (outer.path / "d").iterdir()) == ["b"]
    outer.commit()
    assert sorted(p.name for p in (project / "d").iterdir()) == ["b"]
    assert (project / "d/b").read_text() == "changed"


def test_siblings_of_a_nested_level_turn_stale_and_can_be_rebased(
    project: Path, workspace: Callable[[], Workspace]
) -> None:
    write(project / "text", "one\ntwo\nthree\nfour\nfive\n")
    write(project / "dir/a", "a")
    ws = workspace()
    outer = ws.branch("outer")
    first, second = outer.branch("first"), outer.branch("second")
    write(first.path / "text", "ONE\ntwo\nthree\nfour\nfive\n")
    write(first.path / "dir/of-first", "1")
    write(second.path / "text", "one\ntwo\nthree\nfour\nFIVE\n")
    write(second.path / "dir/of-second", "2")
    first.commit()
    assert second.status == "stale"
    rebase = second.rebase()
    assert rebase.merged == ("text",)
    assert rebase.conflicts == ()
    assert (second.path / "text").read_text() == "ONE\ntwo\nthree\nfour\nFIVE\n"
    assert (second.path / "dir/of-first").read_text() == "1"
    second.commit()
    outer.commit()
    assert (project / "text").read_text() == "ONE\ntwo\nthree\nfour\nFIVE\n"
    assert sorted(os.listdir(project / "dir")) == ["a", "of-first", "of-second"]


def test_a_rebase_with_read_only_directories(project: Path, workspace: Callable[[], Workspace], view: str) -> None:
    write(project / "locked/text", "one\ntwo\nthree\nfour\nfive\n", 0o444)
    (project / "locked").chmod(0o555)
    ws = workspace()
    first, second = ws.branch("first"), ws.branch("second")
    write(first.path / "other", "1")
    write(second.path / "fresh/sub/only", "z", 0o400)
    for path in ("fresh/sub", "fresh"):
        (second.path / path).chmod(0o555)
    is_copied_up = view != "fuse" or is_root  # fuse-overlayfs cannot, if its user may not write to the directory
    for branch, old, new in ((first, "one", "ONE"), (second, "five", "FIVE")) if is_copied_up else ():
        locked, text = branch.path / "locked", branch.path / "locked/text"
        locked.chmod(0o755)
        text.chmod(0o644)
        text.write_text(text.read_text().replace(old, new))
        text.chmod(0o444)
        locked.chmod(0o555)
    first.commit()
    rebase = second.rebase()
    assert rebase.conflicts == ()
    assert rebase.merged == (("locked/text",) if is_copied_up else ())
    shown = snapshot(second.path)
    second.commit()
    assert snapshot(project) == shown
    modes = {path: stat.S_IMODE((project / path).stat().st_mode) for path in ("locked", "fresh", "fresh/sub")}
    assert set(modes.values()) == {0o555}
    assert stat.S_IMODE((project / "locked/text").stat().st_mode) == 0o444
    if is_copied_up:
        assert (project / "locked/text").read_text() == "ONE\ntwo\nthree\nfour\nFIVE\n"
    for path in modes:
        (project / path).chmod(0o755)


# Other processes


def test_another_handle_sees_the_same_branch(project: Path, workspace: Callable[[], Workspace], view: str) -> None:
    write(project / "a", "0")
    ws = workspace()
    branch = ws.branch("shared")
    write(branch.path / "a", "1")
    other = Workspace(project, state=project.parent / "state").open("shared")
    assert other.view == view
    assert (other.path / "a").read_text() == "1"
    assert [b.branch_path for b in ws.branches()] == ["/main/shared"]
    other.commit()
    assert (project / "a").read_text() == "1"


def test_a_view_taken_down_comes_up_again(project: Path, workspace: Callable[[], Workspace]) -> None:
    write(project / "a", "0")
    ws = workspace()
    branch = ws.branch("b")
    write(branch.path / "a", "1")
    for _ in range(3):
        branch.view_kind.hide(branch.home)
        assert (branch.path / "a").read_text() == "1"
    write(branch.path / "b", "2")
    commit_and_undo(ws, branch)


def test_everything_at_once(project: Path, workspace: Callable[[], Workspace]) -> None:
    """Many entries in many directories, so that steps of all kinds meet in one commit."""
    for number in range(60):
        write(project / f"d{number % 7}/s{number % 3}/f{number}", str(number))
    ws = workspace()
    branch = ws.branch("b")
    root = branch.path
    for number in range(0, 60, 2):
        write(root / f"d{number % 7}/s{number % 3}/f{number}", "changed")
    for number in range(1, 60, 6):
        (root / f"d{number % 7}/s{number % 3}/f{number}").unlink()
    shutil.rmtree(root / "d3")
    write(root / "d3", "a file now")
    shutil.move(root / "d4", root / "d5/moved")
    for number in range(20):
        write(root / f"new{number % 4}/x/f{number}", "new")
    commit_and_undo(ws, branch)


# What counts as a conflict is the same in every view


def to_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("new\n")


def to_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("new\n")


def edit(path: Path) -> None:
    path.write_text("edited\n")


def replace(path: Path) -> None:
    (path.parent / "beside").write_text("replaced\n")
    (path.parent / "beside").rename(path)


#: What the branch does, what another program does to the workspace afterwards, and the path of the conflict.
CLASHES: dict[str, tuple[Callable[[Path], object], Callable[[Path], object], str]] = {
    "directory deleted, file in it edited": (
        lambda b: shutil.rmtree(b / "d"),
        lambda w: edit(w / "d/deep/c"),
        "d/deep/c",
    ),
    "file edited, its directory deleted": (lambda b: edit(b / "d/deep/c"), lambda w: shutil.rmtree(w / "d"), "d"),
    "file edited, its directory replaced": (lambda b: edit(b / "d/deep/c"), lambda w: to_file(w / "d"), "d"),
    "file deleted, replaced by a directory": (lambda b: (b / "f").unlink(), lambda w: to_directory(w / "f"), "f"),
    "file replaced by a directory, deleted": (lambda b: to_directory(b / "f"), lambda w: (w / "f").unlink(), "f"),
    "file replaced by a directory, edited": (lambda b: to_directory(b / "f"), lambda w: edit(w / "f"), "f"),
    "file edited, replaced by a directory": (lambda b: edit(b / "f"), lambda w: to_directory(w / "f"), "f"),
    "file replaced, deleted": (lambda b: replace(b / "f"), lambda w: (w / "f").unlink(), "f"),
    "directory replaced by a file, deleted": (lambda b: to_file(b / "d"), lambda w: shutil.rmtree(w / "d"), "d"),
    "directory replaced by a file, edited inside": (
        lambda b: to_file(b / "d"),
        lambda w: edit(w / "d/deep/c"),
        "d/deep/c",
    ),
    "directory deleted, replaced by a file": (lambda b: shutil.rmtree(b / "d"), lambda w: to_file(w / "d"), "d"),
}


@pytest.mark.parametrize("clash", CLASHES)
def test_a_clash_with_another_program_is_a_conflict_in_every_view(
    project: Path, workspace: Callable[[], Workspace], clash: str
) -> None:
    (project / "d/deep").mkdir(parents=True)
    (project / "d/deep/c").write_text("old\n")
    (project / "f").write_text("old\n")
    mine, theirs, path = CLASHES[clash]
    branch = workspace().branch("b")
    mine(branch.path)
    branch.record_bases()  # as at the end of every attempt: a layer does not show what a new entry replaced
    theirs(project)
    before = snapshot(project)
    with pytest.raises(ConflictError) as caught:
        branch.commit()
    assert path in caught.value.paths
    assert snapshot(project) == before


@pytest.mark.parametrize("mark", ["user.overlay.", "user.fuseoverlayfs.", "trusted.overlay."])
def test_marks_that_a_program_sets_itself_delete_nothing(
    project: Path, workspace: Callable[[], Workspace], mark: str
) -> None:
    """A mark of one view is an ordinary attribute in another: what the branch shows is what is committed."""
    (project / "d").mkdir()
    (project / "d/kept").write_text("old\n")
    branch = workspace().branch("b")
    (branch.path / "d/new").write_text("new\n")
    for name in ("opaque", "redirect", "origin"):
        with suppress(OSError):  # refused by a view whose own mark it is, and by filesystems
            os.setxattr(branch.path / "d", mark + name, b"y")
    shown = sorted(os.listdir(branch.path / "d"))
    assert [change.path for change in branch.delta() if change.kind == "deleted"] == []
    branch.commit()
    assert sorted(os.listdir(project / "d")) == shown == ["kept", "new"]
