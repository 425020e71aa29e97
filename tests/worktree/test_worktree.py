"""Worktrees: real ones of git, with the whole checkout in them; nothing is lost, and nothing is left half done."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.errors import BranchError, BranchNotFoundError, GitError, MountError
from forkwise.files.gc import collect_orphans
from forkwise.files.store.state import locate
from forkwise.linux.syscalls import MNT_DETACH, umount2
from forkwise.worktree import worktree
from forkwise.worktree.worktree import (
    Worktree,
    add_worktree,
    default_path,
    find_work,
    find_worktree,
    list_worktrees,
    mount_worktree,
    remove_worktree,
)
from tests.counts import rounds
from tests.files.images import loop_image
from tests.fork.kill_at_point import becomes_so
from tests.need import need
from tests.worktree.conftest import Git, make_checkout, run_git

VIEWS = ["overlay", "fuse", "copy"]
every_view = pytest.mark.parametrize("view", VIEWS)


def add(checkout: Path, name: str = "fix", *, view: str | None = None, **options: object) -> Worktree:
    need(view != "overlay" or os.geteuid() == 0, "only root can mount an overlay that others see")
    need(view != "fuse" or bool(shutil.which("fuse-overlayfs")), "fuse-overlayfs is not installed")
    return add_worktree(checkout, default_path(checkout, name), view=view, **options)  # type: ignore[arg-type]


def check_nothing_is_left(checkout: Path) -> None:
    assert list_worktrees(checkout) == []
    assert run_git(checkout, "worktree", "list").count("\n") == 1
    assert run_git(checkout, "branch", "--format=%(refname:short)").split() == ["main"]
    assert not os.path.lexists(f"{checkout}.worktrees")
    homes = f"{locate(checkout).state}/worktrees"
    assert not os.path.isdir(homes) or os.listdir(homes) == ["lock"]
    assert not os.path.isdir(checkout / ".git/worktrees") or os.listdir(checkout / ".git/worktrees") == []


@every_view
def test_it_is_a_linked_worktree_with_all_files(checkout: Path, git: Git, view: str) -> None:
    (checkout / "b.txt").write_text("uncommitted\n")
    (checkout / "a.txt").write_text("staged\n")
    git("add", "a.txt")
    made = add(checkout, view=view)
    path = Path(made.path)
    assert (path / "node_modules/m/index.js").read_text() == "module\n"
    assert os.readlink(path / "link") == "a.txt"
    assert f"{path} " in git("worktree", "list")
    assert git("-C", made.path, "rev-parse", "--abbrev-ref", "HEAD") == "fix\n"
    # Plumbing, which does not refresh the index: only what really differs is listed, so no file is hashed.
    assert git("-C", made.path, "diff-files", "--name-only") == "b.txt\n"
    assert git("-C", made.path, "status", "--short") == git("status", "--short") == "M  a.txt\n M b.txt\n"
    (path / "new.txt").write_text("new\n")
    git("-C", made.path, "add", "new.txt")
    git("-C", made.path, "commit", "--quiet", "-m", "in the worktree")
    assert git("log", "--format=%s", "fix").split("\n")[0] == "in the worktree"
    assert git("rev-parse", "--abbrev-ref", "HEAD") == "main\n"
    assert git("status", "--short") == "M  a.txt\n M b.txt\n"
    assert not (checkout / "new.txt").exists()
    assert (checkout / ".git").is_dir()
    git("fsck", "--strict")
    remove_worktree(checkout, made, force=True)
    assert git("branch", "--format=%(refname:short)").split() == ["fix", "main"], "its commits stay"
    assert list_worktrees(checkout) == []


@every_view
def test_removal_takes_everything_along(checkout: Path, view: str) -> None:
    made = add(checkout, view=view)
    (Path(made.path) / "x.log").write_text("ignored\n")
    assert remove_worktree(checkout, made)
    check_nothing_is_left(checkout)


@every_view
def test_uncommitted_work_is_not_removed(checkout: Path, git: Git, view: str) -> None:
    (checkout / "b.txt").write_text("of the checkout\n")
    made = add(checkout, view=view)
    assert find_work(made) == "", "the checkout has the same change"
    (Path(made.path) / "new.txt").write_text("new\n")
    with pytest.raises(BranchError, match=r"uncommitted changes of 1 file \('new.txt'\)"):
        remove_worktree(checkout, made)
    git("-C", made.path, "add", "new.txt")
    (Path(made.path) / "new.txt").unlink()
    with pytest.raises(BranchError, match="uncommitted"):
        remove_worktree(checkout, made, keeps_commits=True)
    git("-C", made.path, "commit", "--quiet", "-m", "work")
    git("-C", made.path, "checkout", "--quiet", "new.txt")
    with pytest.raises(BranchError, match="1 commit that no other branch and no remote has"):
        remove_worktree(checkout, made)
    assert list_worktrees(checkout)[0].state == "ready"
    git("merge", "--quiet", "--ff-only", "fix")
    (Path(made.path) / "b.txt").unlink()
    with pytest.raises(BranchError, match=r"'b.txt'"):
        remove_worktree(checkout, made)
    (Path(made.path) / "b.txt").write_text("of the checkout\n")
    assert not remove_worktree(checkout, made), "its branch was used, and stays"


def test_commits_of_a_detached_head_are_not_lost(checkout: Path, git: Git) -> None:
    made = add(checkout)
    git("-C", made.path, "checkout", "--quiet", "--detach")
    git("-C", made.path, "commit", "--quiet", "--allow-empty", "-m", "loose")
    with pytest.raises(BranchError, match="which loses them"):
        remove_worktree(checkout, made, keeps_commits=True)


def test_after_a_restart_it_is_mounted_again(checkout: Path, git: Git) -> None:
    made = add(checkout, view="overlay")
    (Path(made.path) / "new.txt").write_text("new\n")
    umount2(made.path, MNT_DETACH)
    assert [one.state for one in list_worktrees(checkout)] == ["not mounted"]
    git("worktree", "prune", "--expire=now")
    Workspace(checkout).gc(force=True)
    with pytest.raises(BranchError, match="uncommitted"):
        remove_worktree(checkout, made)
    umount2(made.path, MNT_DETACH)
    (Path(made.path) / "stray").write_text("")
    with pytest.raises(BranchError, match="files of its own"):
        mount_worktree(checkout, made)
    (Path(made.path) / "stray").unlink()
    mount_worktree(checkout, made)
    assert (Path(made.path) / "new.txt").read_text() == "new\n"
    assert git("-C", made.path, "status", "--short") == "?? new.txt\n"


def test_removed_by_git(checkout: Path, git: Git) -> None:
    mounted, copied = add(checkout, "one", view="overlay"), add(checkout, "two", view="copy")
    git("worktree", "remove", copied.path)
    assert list_worktrees(checkout)[1].state == "unknown to git"
    remove_worktree(checkout, list_worktrees(checkout)[1], force=True)
    with pytest.raises(Exception, match="non-zero"):
        git("worktree", "remove", mounted.path)  # locked: it would empty the mount and then fail
    assert (Path(mounted.path) / "a.txt").exists()
    with pytest.raises(Exception, match="non-zero"):
        git("worktree", "remove", "--force", "--force", mounted.path)  # a mount point cannot be removed
    check_nothing_is_left(checkout)


def test_the_state_of_a_worktree_survives_its_checkout(checkout: Path) -> None:
    made = add(checkout, view="overlay")
    (Path(made.path) / "new.txt").write_text("new\n")
    shutil.move(checkout, checkout.with_name("moved"))
    assert "the worktree fix has its files" in collect_orphans(force=True, dry_run=False)[0].reason
    assert (Path(made.path) / "new.txt").read_text() == "new\n"


def test_from_a_commit_and_clean(checkout: Path, git: Git) -> None:
    git("rm", "--quiet", "a.txt")
    git("commit", "--quiet", "-m", "second")
    (checkout / "b.txt").write_text("uncommitted\n")
    (checkout / "untracked").write_text("untracked\n")
    made = add(checkout, "old", start="HEAD~1")
    assert (Path(made.path) / "a.txt").read_text() == "a.txt\n"
    assert git("-C", made.path, "status", "--short") == "?? untracked\n"
    clean = add(checkout, "clean", clean=True)
    assert git("-C", clean.path, "status", "--short") == ""
    assert (Path(clean.path) / "b.txt").read_text() == "b.txt\n"
    assert (Path(clean.path) / "node_modules/m/index.js").exists()
    with pytest.raises(GitError, match="names no commit"):
        add(checkout, "none", start="--output=x")
    assert (checkout / "b.txt").read_text() == "uncommitted\n"


def test_from_a_worktree_without_a_commit_and_from_a_directory(checkout: Path, git: Git) -> None:
    first = add(checkout, "first", view="overlay")
    (Path(first.path) / "sub/new.txt").write_text("new\n")
    second = add_worktree(Path(first.path) / "sub", checkout.parent / "second", view="copy")
    assert (checkout.parent / "second/sub/new.txt").read_text() == "new\n"
    assert [one.name for one in list_worktrees(second.path)] == ["first", "second"]
    with pytest.raises(BranchError, match="remove that first"):
        remove_worktree(checkout, first, force=True)
    git("update-ref", "-d", "HEAD")
    unborn = add(checkout, "unborn", view="overlay")
    assert git("-C", unborn.path, "symbolic-ref", "HEAD") == "refs/heads/unborn\n"
    git("-C", unborn.path, "commit", "--quiet", "-m", "begun there")


def test_a_merge_in_progress_is_not_taken_over(checkout: Path, git: Git) -> None:
    (checkout / ".git/MERGE_HEAD").write_text(git("rev-parse", "HEAD"))
    with pytest.raises(GitError, match="a merge is unfinished"):
        add(checkout)
    check_nothing_is_left(checkout)
    assert git("-C", add(checkout, clean=True).path, "status", "--short") == ""


@every_view
def test_submodules_and_inner_worktrees_do_not_lead_back(checkout: Path, git: Git, tmp_path: Path, view: str) -> None:
    make_checkout(tmp_path / "library")
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "library"), "lib")
    git("commit", "--quiet", "-m", "submodule")
    git("worktree", "add", "--quiet", "inner")
    before = git("-C", "inner", "rev-parse", "HEAD"), git("-C", "lib", "rev-parse", "HEAD")
    made = add(checkout, view=view)
    assert (Path(made.path) / "lib/a.txt").exists()
    for name in ("lib", "inner"):
        assert git("-C", f"{made.path}/{name}", "rev-parse", "--show-toplevel") == f"{made.path}\n"
    assert git("-C", made.path, "status", "--short") == "?? inner/\n"
    assert (git("-C", "inner", "rev-parse", "HEAD"), git("-C", "lib", "rev-parse", "HEAD")) == before


@pytest.mark.parametrize("kind", ["--assume-unchanged", "--skip-worktree", "submodule"])
def test_work_that_git_status_does_not_show_is_not_removed(checkout: Path, git: Git, tmp_path: Path, kind: str) -> None:
    make_checkout(tmp_path / "library")
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "library"), "lib")
    git("commit", "--quiet", "-m", "submodule")
    made = add(checkout)
    name = "lib/a.txt" if kind == "submodule" else "a.txt"
    if kind != "submodule":
        git("-C", made.path, "update-index", kind, name)
    Path(made.path, name).write_text("work\n")
    with pytest.raises(BranchError, match=f"uncommitted changes of 1 file \\('{name}'\\)"):
        remove_worktree(checkout, made)
    Path(made.path, name).write_text(f"{Path(name).name}\n")
    remove_worktree(checkout, made)
    check_nothing_is_left(checkout)


@pytest.mark.parametrize("name", ["-x", "..", ".hidden", "a\nb", "", "x" * 300, "a\x1b[31m"])
def test_hostile_names(checkout: Path, name: str) -> None:
    with pytest.raises((GitError, BranchError)):
        add(checkout, name)
    check_nothing_is_left(checkout)


@pytest.mark.parametrize(
    "branch", ["-x", "../x", "a..b", "a b", "HEAD", "x.lock", "a\nb", "", "refs/heads/../x", "@{-1}"]
)
def test_hostile_branches(checkout: Path, branch: str) -> None:
    with pytest.raises(GitError, match="not a valid name"):
        add(checkout, branch=branch)
    check_nothing_is_left(checkout)


def test_what_exists_is_not_overwritten(checkout: Path, git: Git, tmp_path: Path) -> None:
    git("branch", "taken")
    git("branch", "deep/er")
    for branch in ("taken", "main", "deep", "main/x"):
        with pytest.raises(GitError, match="give another name"):
            add(checkout, branch=branch)
    for path in (checkout / "inside", checkout / ".git/x", checkout, tmp_path / "gitconfig", tmp_path):
        with pytest.raises(BranchError):
            add_worktree(checkout, path, branch="new")
    (tmp_path / "linked").symlink_to(checkout)
    with pytest.raises(BranchError, match="inside the checkout"):
        add_worktree(checkout, tmp_path / "linked/x", branch="new")
    git("branch", "-D", "taken", "deep/er")
    check_nothing_is_left(checkout)
    odd = add_worktree(checkout, tmp_path / 'a, b:c \\ d"e', branch="feature/odd")
    assert git("-C", odd.path, "status", "--short") == ""
    (tmp_path / "empty").mkdir()
    add_worktree(checkout, tmp_path / "empty")
    with pytest.raises(GitError, match="give another name"):
        add_worktree(checkout, tmp_path / "other", branch="empty")
    assert git("rev-parse", "empty") == git("rev-parse", "HEAD"), "the branch of the first is still there"
    with pytest.raises(BranchError, match="exists already"):
        add_worktree(checkout, tmp_path / "empty", branch="again")


def test_an_unavailable_view_names_the_reason(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MountError, match="no view 'zip'"):
        add(checkout, view="zip")
    monkeypatch.setenv(
        "PATH", os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if "fuse" in p) or "/none"
    )
    git_path = shutil.which("git", path=os.defpath + ":/usr/local/bin")
    need(git_path is not None, "git is not in a standard directory")
    monkeypatch.setenv("PATH", str(_only(git_path, checkout.parent / "bin")))
    with pytest.raises(MountError, match="fuse-overlayfs is not installed"):
        add_worktree(checkout, checkout.parent / "w", view="fuse")
    check_nothing_is_left(checkout)


def _only(program: str | None, directory: Path) -> Path:
    directory.mkdir()
    (directory / "git").symlink_to(program or "")
    return directory


def test_two_at_once(checkout: Path) -> None:
    results: list[object] = []

    def work(number: int) -> None:
        try:
            results.append(add_worktree(checkout, checkout.parent / f"w{number}/same", branch=f"b{number}"))
        except (GitError, BranchError, OSError) as error:
            results.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(result, Worktree) for result in results), results
    assert len({one.name for one in list_worktrees(checkout)}) == 4
    for one in list_worktrees(checkout):
        remove_worktree(checkout, one)
    check_nothing_is_left(checkout)


def test_reflinks(tmp_path: Path) -> None:
    with loop_image("xfs", 400, tmp_path) as directory:
        checkout = directory / "checkout"
        make_checkout(checkout)
        made = add(checkout, view="reflink")
        assert run_git(checkout, "-C", made.path, "diff-files", "--name-only") == ""
        (checkout / "b.txt").write_text("later\n")
        assert (Path(made.path) / "b.txt").read_text() == "b.txt\n", "it is independent of the checkout"
        with pytest.raises(MountError, match="different filesystems"):
            add_worktree(checkout, tmp_path / "elsewhere", view="reflink")
        elsewhere = add_worktree(checkout, tmp_path / "elsewhere", view="overlay")
        assert (tmp_path / "elsewhere/node_modules/m/index.js").exists()
        remove_worktree(checkout, elsewhere)
        assert remove_worktree(checkout, made)


def test_find(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = add(checkout, "fix", branch="topic/fix")
    monkeypatch.chdir(Path(made.path).parent)
    for name in ("fix", "./fix", made.path, "topic/fix", f"{made.path}/"):
        assert find_worktree(checkout, name) == made
    with pytest.raises(BranchNotFoundError, match="worktree list"):
        find_worktree(checkout, "other")


EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "subprocess.Popen", "shutil.rmtree"}


def run_and_kill(action: object, number: int) -> bool:
    """Run a function in a child that kills itself before the system call ``number``; return whether it got that far."""
    pid = os.fork()
    if pid == 0:
        seen = 0

        def count(event: str, _: object) -> None:
            nonlocal seen
            if event in EVENTS:
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            action()  # type: ignore[operator]
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def list_settled(checkout: Path) -> list[Worktree]:
    """List the worktrees as soon as copying programs of a killed process have ended, and what they left is gone."""
    found: list[Worktree] = []

    def is_settled() -> bool:
        found[:] = list_worktrees(checkout)
        return run_git(checkout, "worktree", "list").count("\n") == len(found) + 1

    assert becomes_so(is_settled)
    return found


def test_a_kill_between_the_reservation_of_a_name_and_its_record_leaves_nothing(checkout: Path) -> None:
    pid = os.fork()
    if pid == 0:
        setattr(worktree, "_save", lambda *_: os.kill(os.getpid(), signal.SIGKILL))  # noqa: B010 - mypy
        try:
            add(checkout)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert os.listdir(checkout / ".git/worktrees") == ["fix"]
    assert list_settled(checkout) == []
    check_nothing_is_left(checkout)


@pytest.mark.crash
@pytest.mark.parametrize("view", ["overlay", "copy"])
def test_a_kill_leaves_nothing_half_done(
    checkout: Path, view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # for what killed processes leave
    made = add(checkout, view=view)  # loads what the children need
    remove_worktree(checkout, made)
    step = rounds(13, 1)
    number = 1
    while run_and_kill(lambda: add(checkout, view=view), number):
        left = list_settled(checkout)
        if left:
            assert run_git(Path(left[0].path), "status", "--short") == ""
            remove_worktree(checkout, left[0])
        check_nothing_is_left(checkout)
        number += step
    number = 1
    while True:
        [made] = list_settled(checkout) or [add(checkout, view=view)]
        if not run_and_kill(lambda one=made: remove_worktree(checkout, one), number):
            break
        number += step
    assert list_settled(checkout) == []
    check_nothing_is_left(checkout)
