"""Copies preserve metadata; no function follows a symlink, crosses a mount, or is limited by depth or descriptors."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkwise.linux import trees as beneath
from forkwise.linux.trees import CopiedTree, copy_entry, copy_tree, open_beneath, remove_tree
from tests.counts import examples
from tests.files.images import loop_image, mounted_tmpfs
from tests.need import need


@contextmanager
def opened(*paths: Path | str) -> Iterator[list[int]]:
    with ExitStack() as stack:
        fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in paths]
        for fd in fds:
            stack.callback(os.close, fd)
        yield fds


def copied(src: Path, dst: Path, *, reflink_only: bool = False) -> CopiedTree:
    dst.mkdir()
    with opened(src, dst) as (source, target):
        return copy_tree(source, target, reflink_only=reflink_only)


def copied_entry(src: Path, dst: Path, *, sync: bool = False) -> None:
    with opened(src.parent, dst.parent) as (source, target):
        copy_entry(source, src.name, target, dst.name, sync=sync)


def removed(path: Path) -> list[str]:
    with opened(path.parent) as (parent,):
        return remove_tree(parent, path.name)


@pytest.fixture
def no_openat2(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(directory: int, path: str, flags: int, resolve: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), path)

    monkeypatch.setattr(beneath, "openat2", refuse)


@pytest.fixture(params=["openat2", "by hand"])
def either_way(request: pytest.FixtureRequest) -> None:
    if request.param == "by hand":
        request.getfixturevalue("no_openat2")


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def make_chain(top: Path, depth: int) -> None:
    """Create nested directories with a file in the deepest."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deeper", dir_fd=here)
        below = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def check_depth(tmp_path: Path, depth: int) -> None:
    make_chain(tmp_path / "a", depth)
    tree = copied(tmp_path / "a", tmp_path / "b")
    assert len(tree.directories) == depth + 1
    with opened(tmp_path / "b") as (root,):
        os.close(open_beneath(root, "/".join(["deeper"] * depth + ["bottom"]), os.O_RDONLY))
    for name in ("a", "b"):
        assert removed(tmp_path / name) == []
        assert not (tmp_path / name).exists()


class TestFiles:
    @pytest.mark.parametrize("sync", [False, True])
    def test_content_mode_and_times(self, tmp_path: Path, sync: bool) -> None:
        source = tmp_path / "a"
        source.write_bytes(os.urandom(3_000_001))
        source.chmod(0o6751)
        os.utime(source, ns=(1_000_000_001, 2_000_000_002))
        copied_entry(source, tmp_path / "b", sync=sync)
        found = (tmp_path / "b").stat()
        assert (tmp_path / "b").read_bytes() == source.read_bytes()
        assert stat.S_IMODE(found.st_mode) == 0o6751
        assert (found.st_atime_ns, found.st_mtime_ns) == (1_000_000_001, 2_000_000_002)

    def test_owner(self, tmp_path: Path) -> None:
        need(os.geteuid() == 0, "giving a file away needs root")
        source = tmp_path / "a"
        source.touch()
        os.chown(source, 12345, 54321)
        source.chmod(0o4755)
        copied_entry(source, tmp_path / "b")
        found = (tmp_path / "b").stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 54321, 0o4755)

    def test_an_owner_that_cannot_be_given_takes_the_set_id_bits_along(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = tmp_path / "a"
        source.touch()
        source.chmod(0o6755)

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "chown", refuse)
        copied_entry(source, tmp_path / "b")
        assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o755

    def test_xattrs_are_kept_but_not_those_of_a_layer(self, tmp_path: Path) -> None:
        source = tmp_path / "a"
        source.touch()
        for name in ("user.mine", "user.overlay.origin", "user.fuseoverlayfs.opaque"):
            os.setxattr(source, name, b"\0value")
        if os.geteuid() == 0:
            os.setxattr(source, "trusted.overlay.origin", b"x")
        copied_entry(source, tmp_path / "b")
        assert os.listxattr(tmp_path / "b") == ["user.mine"]
        assert os.getxattr(tmp_path / "b", "user.mine") == b"\0value"

    def test_file_capabilities_survive_the_change_of_owner(self, tmp_path: Path) -> None:
        need(os.geteuid() == 0, "file capabilities need root")
        capability = bytes.fromhex("0100000200040000000000000000000000000000")
        source = tmp_path / "a"
        source.touch()
        os.chown(source, 12345, 12345)
        os.setxattr(source, "security.capability", capability)
        copied_entry(source, tmp_path / "b")
        assert os.getxattr(tmp_path / "b", "security.capability") == capability

    @pytest.mark.parametrize("kernel_copies", [True, False])
    def test_holes_are_kept_in_a_large_sparse_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel_copies: bool
    ) -> None:
        if not kernel_copies:

            def refuse(*_: object) -> int:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

            monkeypatch.setattr(os, "copy_file_range", refuse)
        pieces = {0: b"head", 1 << 30: b"x" * 100_000, (3 << 30) - 8192: b"tail"}
        source = tmp_path / "a"
        with open(source, "wb") as file:
            for offset, data in pieces.items():
                file.seek(offset)
                file.write(data)
            file.truncate(3 << 30)
        copied_entry(source, tmp_path / "b")
        with open(tmp_path / "b", "rb") as copy:
            for offset, data in pieces.items():
                copy.seek(offset)
                assert copy.read(len(data)) == data
        found = (tmp_path / "b").stat()
        assert found.st_size == 3 << 30
        assert found.st_blocks * 512 < 1 << 20

    def test_an_empty_file_and_one_that_is_only_a_hole(self, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        with open(tmp_path / "hole", "wb") as file:
            file.truncate(1 << 20)
        for name in ("empty", "hole"):
            copied_entry(tmp_path / name, tmp_path / f"{name}2")
            assert (tmp_path / f"{name}2").read_bytes() == (tmp_path / name).read_bytes()

    def test_nothing_is_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("new")
        (tmp_path / "b").write_text("old")
        with pytest.raises(FileExistsError):
            copied_entry(tmp_path / "a", tmp_path / "b")
        assert (tmp_path / "b").read_text() == "old"

    def test_a_symlink_stays_a_symlink_with_its_time(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to("/etc/passwd")
        os.utime(tmp_path / "a", ns=(5, 7), follow_symlinks=False)
        copied_entry(tmp_path / "a", tmp_path / "b")
        assert os.readlink(tmp_path / "b") == "/etc/passwd"
        assert (tmp_path / "b").lstat().st_mtime_ns == 7

    def test_special_files_are_skipped(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "a")
        copied_entry(tmp_path / "a", tmp_path / "b")
        assert not os.path.lexists(tmp_path / "b")

    @settings(max_examples=examples(50))
    @given(
        extents=st.lists(st.tuples(st.integers(0, 400_000), st.binary(min_size=1, max_size=20_000)), max_size=6),
        tail=st.integers(0, 100_000),
    )
    def test_any_layout_of_data_and_holes(
        self, tmp_path_factory: pytest.TempPathFactory, extents: list[tuple[int, bytes]], tail: int
    ) -> None:
        where = tmp_path_factory.mktemp("layout")
        with open(where / "a", "wb") as file:
            for offset, data in extents:
                file.seek(offset)
                file.write(data)
            file.truncate(file.seek(0, os.SEEK_END) + tail)
        copied_entry(where / "a", where / "b")
        assert (where / "b").read_bytes() == (where / "a").read_bytes()


@pytest.mark.usefixtures("either_way")
class TestTrees:
    def test_every_directory_is_reported_with_its_copys_inode_and_names(self, tmp_path: Path) -> None:
        source = tmp_path / "a"
        (source / "x/y").mkdir(parents=True)
        (source / "x/file").write_text("1")
        (source / "link").symlink_to("x")
        tree = copied(source, tmp_path / "b")
        copy = tmp_path / "b"
        assert tree.directories == {
            "": (copy.stat().st_ino, frozenset({"x", "link"})),
            "x": ((copy / "x").stat().st_ino, frozenset({"y", "file"})),
            "x/y": ((copy / "x/y").stat().st_ino, frozenset()),
        }
        assert tree.skipped == ()
        assert (copy / "x/file").read_text() == "1"

    def test_directories_keep_mode_times_and_xattrs(self, tmp_path: Path) -> None:
        source = tmp_path / "a"
        (source / "x").mkdir(parents=True)
        (source / "x/file").touch()
        os.setxattr(source / "x", "user.mine", b"1")
        (source / "x").chmod(0o3555)
        source.chmod(0o2700)
        os.utime(source / "x", ns=(1, 2))
        os.utime(source, ns=(3, 4))
        copied_entry(source, tmp_path / "b", sync=True)
        for name in ("", "x"):
            found, wanted = (tmp_path / "b" / name).stat(), (source / name).stat()
            assert (found.st_mode, found.st_mtime_ns) == (wanted.st_mode, wanted.st_mtime_ns)
        assert os.getxattr(tmp_path / "b/x", "user.mine") == b"1"

    def test_hard_links_stay_hard_links(self, tmp_path: Path) -> None:
        source = tmp_path / "a"
        (source / "x/y").mkdir(parents=True)
        (source / "one").write_text("1")
        os.link(source / "one", source / "x/two")
        os.link(source / "one", source / "x/y/three")
        os.link(source / "one", tmp_path / "outside")
        copied(source, tmp_path / "b")
        found = (tmp_path / "b/one").stat()
        assert found.st_nlink == 3
        assert found.st_ino == (tmp_path / "b/x/two").stat().st_ino == (tmp_path / "b/x/y/three").stat().st_ino
        assert found.st_ino != (source / "one").stat().st_ino

    def test_special_files_are_reported(self, tmp_path: Path) -> None:
        source = tmp_path / "a"
        (source / "x").mkdir(parents=True)
        os.mkfifo(source / "x/fifo")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(source / "socket"))
        tree = copied(source, tmp_path / "b")
        assert sorted(tree.skipped) == ["socket", "x/fifo"]
        assert tree.directories["x"][1] == frozenset()

    def test_names_that_are_not_utf8(self, tmp_path: Path) -> None:
        source = tmp_path / "a"
        name = os.fsdecode(b"\xff\xfe caf\xe9\n")
        (source / name).mkdir(parents=True)
        (source / name / name).write_text("1")
        tree = copied(source, tmp_path / "b")
        assert (tmp_path / "b" / name / name).read_text() == "1"
        assert tree.directories[name][1] == frozenset({name})
        assert removed(tmp_path / "b") == []

    @pytest.mark.usefixtures("few_descriptors")
    def test_deeper_than_there_are_descriptors(self, tmp_path: Path) -> None:
        check_depth(tmp_path, 300)

    def test_a_mount_becomes_an_empty_directory(self, tmp_path: Path) -> None:
        source = tmp_path / "a"
        (source / "x/inner").mkdir(parents=True)
        with mounted_tmpfs(source / "x/inner"):
            (source / "x/inner/file").touch()
            tree = copied(source, tmp_path / "b")
            copied_entry(source / "x/inner", tmp_path / "c")
        assert tree.directories["x/inner"][1] == frozenset()
        assert os.listdir(tmp_path / "b/x/inner") == os.listdir(tmp_path / "c") == []

    def test_removal_leaves_a_mount_and_what_it_holds(self, tmp_path: Path) -> None:
        source = tmp_path / "a"
        (source / "x/inner").mkdir(parents=True)
        (source / "x/file").touch()
        with mounted_tmpfs(source / "x/inner"):
            (source / "x/inner/file").write_text("precious")
            assert removed(source) == ["a/x/inner"]
            assert (source / "x/inner/file").read_text() == "precious"
            assert os.listdir(source / "x") == ["inner"]
        assert removed(source) == []
        assert not source.exists()

    def test_a_bind_mount_of_the_same_filesystem_is_a_mount_too(self, tmp_path: Path) -> None:
        need(os.geteuid() == 0, "bind mounts need root")
        from forkwise.linux.syscalls import MS_BIND, mount, umount2

        (tmp_path / "precious").mkdir()
        (tmp_path / "precious/file").touch()
        (tmp_path / "a/dir").mkdir(parents=True)
        (tmp_path / "a/file").touch()
        mount(str(tmp_path / "precious"), str(tmp_path / "a/dir"), None, MS_BIND)
        mount(str(tmp_path / "precious/file"), str(tmp_path / "a/file"), None, MS_BIND)
        try:
            tree = copied(tmp_path / "a", tmp_path / "b")
            left = removed(tmp_path / "a")
        finally:
            umount2(str(tmp_path / "a/dir"))
            umount2(str(tmp_path / "a/file"))
        assert os.listdir(tmp_path / "b") == ["dir"]
        assert os.listdir(tmp_path / "b/dir") == []
        assert tree.skipped == ("file",)
        assert sorted(left) == ["a/dir", "a/file"]
        assert (tmp_path / "precious/file").exists()

    def test_no_symlink_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside/file").write_text("precious")
        (tmp_path / "a").mkdir()
        (tmp_path / "a/link").symlink_to(tmp_path / "outside")
        (tmp_path / "top").symlink_to(tmp_path / "outside")
        copied(tmp_path / "a", tmp_path / "b")
        assert (tmp_path / "b/link").is_symlink()
        with opened(tmp_path) as (root,), pytest.raises(OSError, match=r"link|symbolic") as caught:
            open_beneath(root, "a/link/file", os.O_RDONLY)
        assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)
        assert removed(tmp_path / "a") == removed(tmp_path / "top") == []
        assert (tmp_path / "outside/file").read_text() == "precious"


@pytest.mark.usefixtures("few_descriptors")
def test_deeper_than_a_path_can_be(tmp_path: Path) -> None:
    depth = 600
    assert depth * len("deeper/") > os.pathconf(tmp_path, "PC_PATH_MAX")
    check_depth(tmp_path, depth)


def test_removal_of_a_missing_path_is_fine(tmp_path: Path) -> None:
    assert removed(tmp_path / "nothing") == []


def test_removal_opens_directories_that_lack_permission(tmp_path: Path) -> None:
    """Run in a child process of another user if this one is root, because root needs no permission."""
    top = tmp_path / "a"
    (top / "x/y").mkdir(parents=True)
    (top / "x/y/file").touch()
    (top / "x/y").chmod(0o000)
    (top / "x").chmod(0o500)
    parent = os.open(tmp_path, os.O_RDONLY)
    if os.geteuid() == 0:
        for path in (tmp_path, top, top / "x", top / "x/y", top / "x/y/file"):
            os.chown(path, 65534, 65534)
    child = os.fork()
    if child == 0:
        with ExitStack() as stack:
            stack.callback(os._exit, 1)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            if remove_tree(parent, "a") == []:
                os._exit(0)
    _, status = os.waitpid(child, 0)
    os.close(parent)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not top.exists()


def test_reflink_only_refuses_where_blocks_cannot_be_shared(tmp_path: Path) -> None:
    with loop_image("ext4", 32, tmp_path) as ext4:
        (ext4 / "a").mkdir()
        (ext4 / "a/file").write_text("1")
        (ext4 / "a/empty").touch()
        with pytest.raises(OSError, match="file") as caught:
            copied(ext4 / "a", ext4 / "b", reflink_only=True)
        assert caught.value.filename == "file"


@pytest.mark.parametrize("fstype", ["xfs", "btrfs"])
def test_reflinks_share_blocks(tmp_path: Path, fstype: str) -> None:
    with loop_image(fstype, 320, tmp_path) as image:
        (image / "a").mkdir()
        (image / "a/file").write_bytes(os.urandom(64 << 20))
        os.sync()
        before = os.statvfs(image)
        copied(image / "a", image / "b", reflink_only=True)
        os.sync()
        after = os.statvfs(image)
        assert (image / "b/file").read_bytes() == (image / "a/file").read_bytes()
        assert (before.f_bfree - after.f_bfree) * before.f_frsize < 16 << 20


def test_a_nested_subvolume_is_not_copied_and_is_removed_once_empty(tmp_path: Path) -> None:
    import subprocess

    with loop_image("btrfs", 128, tmp_path) as image:
        (image / "a").mkdir()
        subprocess.run(["btrfs", "subvolume", "create", str(image / "a/nested")], check=True, capture_output=True)
        (image / "a/nested/file").touch()
        tree = copied(image / "a", image / "b")
        assert tree.directories["nested"][1] == frozenset()
        assert os.listdir(image / "b/nested") == []
        assert removed(image / "a") == []
        assert not (image / "a").exists()
