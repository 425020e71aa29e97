"""The whole views: a complete tree, a base with its original content, and a freeze if mounting is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from forkwise.errors import BranchError, ForkwiseWarning, MountError
from forkwise.files.store.view import Site, View
from forkwise.files.views.btrfs import BtrfsView, is_subvolume
from forkwise.files.views.reflink import ReflinkView
from forkwise.files.views.whole import CopyView
from forkwise.linux.syscalls import MNT_DETACH, umount2
from forkwise.linux.trees import open_root, remove_tree
from tests.files.images import loop_image
from tests.need import need

NOBODY = 65534


@dataclass
class Bench:
    """One view with a small workspace on a filesystem that supports it."""

    view: View
    site: Site

    def home(self, name: str) -> str:
        home = f"{self.site.state}/{name}"
        os.mkdir(home)
        return home

    def branch(self, name: str = "one") -> str:
        home = self.home(name)
        self.view.make(home, [self.site.workspace])
        return home


@pytest.fixture(params=["copy", "reflink-xfs", "reflink-btrfs", "btrfs"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    name, _, fstype = request.param.partition("-")
    if name == "copy":
        (tmp_path / "plain").mkdir()
        yield from benches(CopyView(), tmp_path / "plain", subvolume=False)
    else:
        view = BtrfsView() if name == "btrfs" else ReflinkView()
        with loop_image(fstype or name, 320, tmp_path) as image:
            yield from benches(view, image, subvolume=name == "btrfs")


def benches(view: View, where: Path, *, subvolume: bool) -> Iterator[Bench]:
    workspace, state = where / "ws", where / "state"
    if subvolume:
        make_subvolume(workspace)
    else:
        workspace.mkdir()
    state.mkdir()
    (workspace / "dir/sub").mkdir(parents=True)
    (workspace / "dir/file").write_text("as it was")
    (workspace / os.fsdecode(b"\xff")).write_text("not UTF-8")
    yield Bench(view, Site(str(workspace), str(state)))
    for home in state.iterdir():
        view.release(str(home))
        shutil.rmtree(home)


def make_subvolume(path: Path) -> None:
    need(shutil.which("btrfs") is not None, "btrfs-progs are not installed")
    subprocess.run(["btrfs", "subvolume", "create", str(path)], check=True, capture_output=True)


def test_a_branch_holds_everything_and_writes_to_itself_only(bench: Bench) -> None:
    assert bench.view.refusal(bench.site) is None
    home = bench.branch()
    seen = Path(bench.view.show(home, [bench.site.workspace], writable=True))
    assert seen == Path(home) / "layer"
    assert (seen / "dir/file").read_text() == "as it was"
    (seen / "dir/file").write_text("changed")
    (seen / "new").touch()
    assert (Path(bench.site.workspace) / "dir/file").read_text() == "as it was"
    assert not (Path(bench.site.workspace) / "new").exists()
    assert bench.view.hide(home) is False


def test_the_base_has_the_original_content(bench: Bench) -> None:
    home = bench.branch()
    layer = Path(home) / "layer"
    inode = (layer / "dir").stat().st_ino
    (layer / "dir/file").unlink()
    (layer / "dir/new").touch()
    base = bench.view.base(home)
    assert base is not None
    assert base.directory("") == (layer.stat().st_ino, frozenset({"dir", os.fsdecode(b"\xff")}))
    assert base.directory("dir") == (inode, frozenset({"file", "sub"}))
    assert base.directory("dir/file") is None
    assert base.directory("nowhere") is None


def test_a_branch_of_a_frozen_branch(bench: Bench) -> None:
    parent = bench.branch()
    (Path(parent) / "layer/dir/file").write_text("parent's")
    bench.view.freeze(parent, [bench.site.workspace])
    child = bench.home("child")
    bench.view.make(child, [f"{parent}/layer", bench.site.workspace])
    assert (Path(child) / "layer/dir/file").read_text() == "parent's"
    (Path(child) / "layer/dir/file").write_text("child's")
    assert (Path(parent) / "layer/dir/file").read_text() == "parent's"


def test_frozen_is_read_only_until_shown_writable(bench: Bench) -> None:
    need(os.geteuid() == 0, "a read-only mount needs root")
    home = bench.branch()
    bench.view.freeze(home, [bench.site.workspace])
    seen = Path(bench.view.show(home, [bench.site.workspace], writable=False))
    with pytest.raises(OSError, match="Read-only"):
        (seen / "new").touch()
    seen = Path(bench.view.show(home, [bench.site.workspace], writable=True))
    (seen / "new").touch()
    assert (seen / "new").exists()


def test_no_freeze_while_a_process_writes(bench: Bench) -> None:
    home = bench.branch()
    with open(f"{home}/layer/dir/file", "a"), pytest.raises(BranchError, match=str(os.getpid())):
        bench.view.freeze(home, [bench.site.workspace])
    Path(home, "layer/dir/file").write_text("still writable")
    with open(f"{home}/layer/dir/file"):
        bench.view.freeze(home, [bench.site.workspace])


def test_release_leaves_plain_files_only(bench: Bench) -> None:
    home = bench.branch()
    bench.view.freeze(home, [bench.site.workspace])
    bench.view.release(home)
    bench.view.release(home)
    shutil.rmtree(home)
    assert os.listdir(bench.site.state) == []


def test_a_branch_that_lost_its_tree_can_be_hidden(bench: Bench) -> None:
    """A power failure may leave a branch that was never synced without its tree."""
    assert bench.view.hide(bench.home("lost")) is False


def test_special_files_are_left_out_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "home").mkdir()
    os.mkfifo(tmp_path / "ws/fifo")
    with pytest.warns(ForkwiseWarning, match="fifo"):
        CopyView().make(str(tmp_path / "home"), [str(tmp_path / "ws")])
    assert os.listdir(tmp_path / "home/layer") == []


def test_a_branch_that_cannot_be_created_names_the_path(tmp_path: Path) -> None:
    with loop_image("ext4", 32, tmp_path) as image:
        (image / "ws").mkdir()
        (image / "home").mkdir()
        (image / "ws/file").write_text("1")
        with pytest.raises(MountError, match="file") as caught:
            ReflinkView().make(str(image / "home"), [str(image / "ws")])
        assert "copy" in caught.value.remedy


class TestRefusals:
    def test_reflink_on_a_filesystem_that_cannot_clone(self, tmp_path: Path) -> None:
        with loop_image("ext4", 32, tmp_path) as image:
            refused = ReflinkView().refusal(Site(str(image), str(image)))
        assert refused is not None
        assert "cannot clone" in refused.reason
        assert "XFS" in refused.remedy

    def test_reflink_across_filesystems(self, tmp_path: Path) -> None:
        with loop_image("xfs", 320, tmp_path) as image:
            refused = ReflinkView().refusal(Site(str(tmp_path), str(image)))
        assert refused is not None
        assert "different filesystems" in refused.reason

    def test_reflink_across_subvolumes_of_one_btrfs(self, tmp_path: Path) -> None:
        with loop_image("btrfs", 128, tmp_path) as image:
            make_subvolume(image / "ws")
            make_subvolume(image / "state")
            assert ReflinkView().refusal(Site(str(image / "ws"), str(image / "state"))) is None

    def test_btrfs_elsewhere(self, tmp_path: Path) -> None:
        with loop_image("ext4", 32, tmp_path) as image:
            refused = BtrfsView().refusal(Site(str(image), str(image)))
        assert refused is not None
        assert "not on btrfs" in refused.reason

    def test_btrfs_needs_a_subvolume_and_a_state_beside_it(self, tmp_path: Path) -> None:
        (tmp_path / "state").mkdir()
        with loop_image("btrfs", 128, tmp_path) as image:
            (image / "dir").mkdir()
            refused = BtrfsView().refusal(Site(str(image / "dir"), str(image)))
            assert refused is not None
            assert "not a btrfs subvolume" in refused.reason
            refused = BtrfsView().refusal(Site(str(image), str(tmp_path / "state")))
            assert refused is not None
            assert "state directory" in refused.remedy

    @pytest.mark.parametrize("view", [CopyView(), ReflinkView(), BtrfsView()], ids=lambda view: view.name)
    def test_a_state_directory_that_cannot_be_written(self, tmp_path: Path, view: View) -> None:
        (tmp_path / "state").mkdir(mode=0o555)
        tmp_path.chmod(0o755)

        def look() -> bool:
            refused = view.refusal(Site(".", "state"))
            return refused is not None and "cannot be written" in refused.reason

        assert as_nobody(look, tmp_path)


def test_btrfs_without_root(tmp_path: Path) -> None:
    """Use a branch from creation to removal as another user, with neither root nor a mount option."""
    with loop_image("btrfs", 128, tmp_path) as image:
        make_subvolume(image / "ws")
        (image / "ws/dir").mkdir()
        (image / "ws/dir/file").write_text("as it was")
        (image / "home").mkdir()
        for path in (image / "ws", image / "ws/dir", image / "ws/dir/file", image / "home"):
            os.chown(path, NOBODY, NOBODY)
        site, home = Site(str(image / "ws"), str(image / "home")), str(image / "home")
        view = BtrfsView()

        def live() -> bool:
            if view.refusal(Site("ws", "home")) is not None:
                return False
            view.make("home", ["ws"])
            with open("home/layer/dir/file", "w") as file:
                file.write("changed")
            view.freeze("home", ["ws"])
            try:
                open("home/layer/new", "w").close()
            except OSError:
                view.release("home")
            return os.listdir("home") == []

        assert as_nobody(live, image)
        assert os.listdir(home) == []
        assert is_subvolume(site.workspace)


def as_nobody(check: Callable[[], bool], where: Path) -> bool:
    """Return the result of ``check`` in an unprivileged child process whose working directory is ``where``."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.chdir(where)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            code = 0 if check() else 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def test_a_frozen_copy_keeps_the_flags_of_its_mount(tmp_path: Path) -> None:
    with loop_image("ext4", 32, tmp_path, "nosuid,nodev") as image:
        (image / "ws").mkdir()
        (image / "home").mkdir()
        home = str(image / "home")
        CopyView().make(home, [str(image / "ws")])
        CopyView().freeze(home, [])
        try:
            flags = os.statvfs(f"{home}/layer").f_flag
        finally:
            umount2(f"{home}/layer", MNT_DETACH)
        assert flags & os.ST_RDONLY
        assert flags & os.ST_NOSUID
        assert flags & os.ST_NODEV


def test_a_home_that_was_never_released_can_be_deleted(bench: Bench) -> None:
    home = bench.branch()
    root = open_root(bench.site.state)
    try:
        assert remove_tree(root, os.path.basename(home)) == []
    finally:
        os.close(root)
    assert os.listdir(bench.site.state) == []
