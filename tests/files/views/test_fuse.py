"""The fuse view, as root and as an unprivileged user; its server exits with the view."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from forkwise import Workspace
from forkwise.errors import BranchError
from forkwise.files.store.view import Site
from forkwise.files.views import fuse
from forkwise.files.views.fuse import FuseView
from forkwise.linux.mountinfo import is_mount_point
from forkwise.linux.syscalls import CLONE_NEWNS, CLONE_NEWUSER, MS_BIND, MS_PRIVATE, MS_REC, mount, unshare
from forkwise.sandbox.jail import set_dumpable
from tests.files.images import loop_image, mounted_tmpfs
from tests.need import need, need_user_name

NOBODY = 65534
NAMELESS = 3_999_999_999  # an id that no user database has
VIEW = FuseView()


class Bench:
    """A workspace and the home of one branch of it."""

    def __init__(self, where: Path) -> None:
        self.workspace = where / "ws"
        self.home = where / "home"
        (self.workspace / "dir").mkdir(parents=True)
        (self.workspace / "file").write_text("as it was")
        (self.workspace / "dir/inner").write_text("inner")
        self.home.mkdir()
        self.lowers = [str(self.workspace)]

    def make(self) -> None:
        VIEW.make(str(self.home), self.lowers)

    def show(self, *, writable: bool = True) -> Path:
        return Path(VIEW.show(str(self.home), self.lowers, writable=writable))

    def hide(self) -> bool:
        return VIEW.hide(str(self.home))

    def freeze(self) -> None:
        VIEW.freeze(str(self.home), self.lowers)

    def release(self) -> None:
        VIEW.release(str(self.home))

    def has_server(self) -> bool:
        return not fuse._wait_for_exit(str(self.home), 0)


@pytest.fixture(params=["plain", "com,ma back\\slash new\nline \udcff"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    name: str = request.param
    (tmp_path / name).mkdir()
    return tmp_path / name


@pytest.fixture
def bench(where: Path) -> Iterator[Bench]:
    refused = VIEW.refusal(Site(str(where), str(where)))
    need(refused is None, f"no fuse view here: {refused}")
    bench = Bench(where)
    bench.make()
    yield bench
    bench.release()
    assert not is_mount_point(str(bench.home / "view"))
    assert not bench.has_server()


def test_a_branch_holds_everything_and_writes_to_its_layer_only(bench: Bench) -> None:
    seen = bench.show()
    assert (seen / "file").read_text() == "as it was"
    (seen / "file").write_text("changed")
    (seen / "dir/inner").unlink()
    (seen / "new").write_text("new")
    assert bench.hide() is True
    assert not bench.has_server()
    assert (bench.workspace / "file").read_text() == "as it was"
    layer = bench.home / "layer"
    assert (layer / "file").read_text() == "changed"
    assert os.getxattr(layer / "file", "user.fuseoverlayfs.origin") == b"file\0"
    assert os.listxattr(layer / "new") == []
    deleted = (layer / "dir/inner").lstat()
    assert stat.S_ISCHR(deleted.st_mode)
    assert deleted.st_rdev == 0
    seen = bench.show()
    assert (seen / "file").read_text() == "changed"
    assert not (seen / "dir/inner").exists()


def test_a_replaced_directory_hides_what_was_below(bench: Bench) -> None:
    seen = bench.show()
    shutil.rmtree(seen / "dir")
    (seen / "dir").mkdir()
    (seen / "dir/other").touch()
    assert bench.hide() is True
    names = set(os.listdir(bench.home / "layer/dir"))
    assert names - {".wh..opq", ".wh..wh..opq"} == {"other"}
    assert set(os.listxattr(bench.home / "layer/dir")) & {"trusted.overlay.opaque", "user.fuseoverlayfs.opaque"}
    assert os.listdir(bench.show() / "dir") == ["other"]


def test_lowers_are_read_nearest_first(bench: Bench) -> None:
    near = bench.home.parent / "near: with a colon"
    near.mkdir()
    (near / "file").write_text("nearer")
    bench.lowers.insert(0, str(near))
    seen = bench.show()
    assert (seen / "file").read_text() == "nearer"
    assert (seen / "dir/inner").read_text() == "inner"


def test_shown_twice_is_one_mount(bench: Bench) -> None:
    first = bench.show().stat()
    assert bench.show().stat().st_dev == first.st_dev
    assert bench.hide() is True
    assert not is_mount_point(str(bench.home / "view"))


def test_frozen_is_read_only_also_for_a_process_inside(bench: Bench) -> None:
    need(os.geteuid() == 0, "only root can remount or cut off a view that is in use")
    seen = bench.show()
    (seen / "new").touch()
    standing = os.open(seen, os.O_RDONLY)
    try:
        bench.freeze()
        with pytest.raises(OSError, match="Read-only"):
            os.open("another", os.O_CREAT | os.O_WRONLY, dir_fd=standing)
    finally:
        os.close(standing)
    assert bench.show(writable=False) == seen
    with pytest.raises(OSError, match="Read-only"):
        (seen / "another").touch()
    VIEW.thaw(str(bench.home), bench.lowers)
    (seen / "another").touch()
    assert sorted(os.listdir(bench.home / "layer")) == ["another", "new"]


def test_a_frozen_branch_is_first_shown_read_only(bench: Bench) -> None:
    bench.freeze()
    seen = bench.show(writable=False)
    with pytest.raises(OSError, match="Read-only"):
        (seen / "new").touch()
    assert (seen / "file").read_text() == "as it was"


def test_no_freeze_while_a_process_writes(bench: Bench) -> None:
    seen = bench.show()
    with open(seen / "file", "a"), pytest.raises(BranchError, match="Close its files"):
        bench.freeze()
    (seen / "file").write_text("still writable")


def test_hiding_a_view_in_use_returns_false(bench: Bench) -> None:
    with open(bench.show() / "file", "a") as file:
        assert bench.hide() is False
        assert not is_mount_point(str(bench.home / "view"))
        assert bench.has_server()
        file.write(", and more")
    assert bench.hide() is True
    assert (bench.home / "layer/file").read_text() == "as it was, and more"


def test_release_ends_the_server_of_a_view_in_use(bench: Bench) -> None:
    need(os.geteuid() == 0, "only root can remount or cut off a view that is in use")
    held = os.open(bench.show() / "file", os.O_RDONLY)
    bench.release()
    with pytest.raises(OSError, match="not connected"):
        os.close(held)
    assert not bench.has_server()
    assert not is_mount_point(str(bench.home / "view"))


def test_a_view_whose_server_died_is_mounted_again(bench: Bench) -> None:
    (bench.show() / "new").write_text("kept")
    fuse._signal_server(str(bench.home), signal.SIGKILL)
    assert fuse._wait_for_exit(str(bench.home), 60)
    assert (bench.show() / "new").read_text() == "kept"


def test_changes_are_read_and_committed_after_the_server_died(tmp_path: Path) -> None:
    """At once, while the kernel still answers from its cache of attributes."""
    need(shutil.which("fuse-overlayfs") is not None, "fuse-overlayfs is not installed")
    need(os.access("/dev/fuse", os.R_OK | os.W_OK), "/dev/fuse cannot be opened")
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/file").write_text("old")
    branch = Workspace(tmp_path / "ws", view="fuse", durable=False).branch("a")
    (branch.path / "file").write_text("new")
    assert [change.path for change in branch.delta()] == ["file"]
    os.stat(branch.path)
    fuse._signal_server(branch.home, signal.SIGKILL)
    assert fuse._wait_for_exit(branch.home, 60)
    assert [change.path for change in branch.delta()] == ["file"]
    branch.commit()
    assert (tmp_path / "ws/file").read_text() == "new"


class TestRefusals:
    def test_no_program(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        refused = VIEW.refusal(Site(str(tmp_path), str(tmp_path)))
        assert refused is not None
        assert refused.reason == "fuse-overlayfs is not installed"
        assert "apt install fuse-overlayfs" in refused.remedy

    def test_a_colon_in_the_state_directory(self, tmp_path: Path) -> None:
        need(shutil.which("fuse-overlayfs") is not None, "fuse-overlayfs is not installed")
        need(os.access("/dev/fuse", os.R_OK | os.W_OK), "/dev/fuse cannot be opened")
        (tmp_path / "a:b").mkdir()
        refused = VIEW.refusal(Site(str(tmp_path), str(tmp_path / "a:b")))
        assert refused is not None
        assert "colon" in refused.reason

    def test_a_device_that_cannot_be_opened(self, tmp_path: Path) -> None:
        need(os.geteuid() == 0, "only root can become nobody")
        need(shutil.which("fusermount3") is not None, "fusermount3 is not installed")

        def look(state: str) -> bool:
            refused = VIEW.refusal(Site(state, state))
            return refused is not None and refused.reason.startswith("/dev/fuse cannot be opened by this user")

        assert as_nobody(look, tmp_path, device_mode=0o600)

    def test_a_user_without_a_name(self, tmp_path: Path) -> None:
        need(os.geteuid() == 0, "only root can become another user")
        need_fuse_without_root()

        def look(state: str) -> bool:
            refused = VIEW.refusal(Site(state, state))
            return refused is not None and "/etc/passwd" in refused.remedy

        assert as_nobody(look, tmp_path, device_mode=0o666, user=NAMELESS)


def test_the_whole_life_of_a_branch_without_root(tmp_path: Path) -> None:
    assert without_root(live, tmp_path)


def live(where: str) -> bool:
    assert VIEW.refusal(Site(where, where)) is None
    bench = Bench(Path(where))
    bench.make()
    seen = bench.show()
    (seen / "file").write_text("changed")
    (seen / "dir/inner").unlink()
    shutil.rmtree(seen / "dir")
    with open(seen / "file"):
        try:
            bench.freeze()
        except BranchError:
            pass  # without root a view in use cannot be remounted, so it is not frozen
        else:
            return False
    bench.freeze()
    assert (bench.show(writable=False) / "file").read_text() == "changed"
    try:
        (seen / "new").touch()
    except OSError:
        VIEW.thaw(str(bench.home), bench.lowers)
    (seen / "new").touch()
    with open(seen / "file"):
        assert bench.hide() is False
    assert bench.hide() is True
    bench.show()
    bench.release()
    assert sorted(os.listdir(bench.home / "layer")) == ["dir", "file", "new"]
    return not bench.has_server()


def need_fuse_without_root() -> None:
    need(shutil.which("fuse-overlayfs") is not None, "fuse-overlayfs is not installed")
    need(shutil.which("fusermount3") is not None, "fusermount3 is not installed")
    need(os.path.exists("/dev/fuse"), "there is no /dev/fuse")
    need(os.geteuid() == 0 or os.access("/dev/fuse", os.R_OK | os.W_OK), "/dev/fuse cannot be opened")
    need_user_name()


def without_root(check: Callable[[str], bool], where: Path) -> bool:
    """Return the result of ``check`` without root: as nobody, or as this user if that is not root."""
    need_fuse_without_root()
    return as_nobody(check, where, device_mode=0o666) if os.geteuid() == 0 else check(str(where))


def test_without_root_a_view_in_use_is_frozen_and_thawed_in_place(tmp_path: Path) -> None:
    """Threads that read a branch while it is frozen and thawed never see an empty directory, nor do they prevent it."""
    assert without_root(freeze_while_others_read, tmp_path)


def freeze_while_others_read(where: str) -> bool:
    bench = Bench(Path(where))
    bench.make()
    seen = bench.show()
    (seen / "new").write_text("changed")
    missing: list[OSError] = []
    has_ended = threading.Event()

    def read() -> None:
        while not has_ended.is_set():
            try:
                if {"dir", "file", "new"} - set(os.listdir(seen)) or (seen / "new").read_text() != "changed":
                    missing.append(OSError("the view was empty"))
            except OSError as error:
                missing.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(3):
            bench.freeze()
            with pytest.raises(OSError, match="Read-only"):
                (seen / "another").touch()
            VIEW.thaw(str(bench.home), bench.lowers)
            (seen / "another").touch()
            (seen / "another").unlink()
    finally:
        has_ended.set()
        for reader in readers:
            reader.join()
        bench.release()
    return not missing and not bench.has_server() and sorted(os.listdir(bench.home / "layer")) == ["new"]


def test_without_root_a_file_that_became_unreadable_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its marks are user attributes, which cannot be read either."""
    monkeypatch.delenv("FORKWISE_STATE", raising=False)
    assert without_root(commit_unreadable, tmp_path)


def commit_unreadable(where: str) -> bool:
    project = Path(where, "project")
    project.mkdir()
    (project / "file").write_text("as it was")
    with patch.dict(os.environ, XDG_STATE_HOME=f"{where}/state"):
        branch = Workspace(project, view="fuse", durable=False).branch("b")
        (branch.path / "file").write_text("changed")
        (branch.path / "new").touch()
        for name in ("file", "new"):
            (branch.path / name).chmod(0)
        changes = (list(branch.delta().added), list(branch.delta().changed))
        branch.commit()
    modes = [stat.S_IMODE((project / name).stat().st_mode) for name in ("file", "new")]
    (project / "file").chmod(0o600)
    assert (changes, modes) == ((["new"], ["file"]), [0, 0])
    return (project / "file").read_text() == "changed"


def test_without_root_a_view_is_not_frozen_while_a_process_stays_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuse, "_READERS_TIMEOUT_S", 0.05)
    assert without_root(freeze_while_in_use, tmp_path)


def freeze_while_in_use(where: str) -> bool:
    bench = Bench(Path(where))
    bench.make()
    seen = bench.show()
    standing = os.open(seen, os.O_RDONLY)
    with pytest.raises(BranchError, match="leave its directories"):
        bench.freeze()
    os.close(os.open("by descriptor", os.O_CREAT | os.O_WRONLY, dir_fd=standing))
    (seen / "by path").touch()  # the same mount again, not a second one over the same layer
    same = os.fstat(standing).st_dev == os.stat(seen).st_dev
    os.close(standing)
    with mounted_elsewhere(seen), pytest.raises(BranchError, match="while processes use it"):
        bench.freeze()
    bench.freeze()
    bench.release()
    return same and not bench.has_server()


@contextmanager
def mounted_elsewhere(view: Path) -> Iterator[None]:
    """Start a process that has the view at another path in a mount namespace, as a sandbox of the branch does."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            unshare(CLONE_NEWUSER | CLONE_NEWNS)
            mount("none", "/", None, MS_REC | MS_PRIVATE)
            mount(str(view), "/tmp", None, MS_BIND)
            os.write(writer, b"1")
            signal.pause()
        os._exit(1)
    try:
        os.close(writer)
        need(os.read(reader, 1) == b"1", "user namespaces are not available")
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)


def test_a_branch_made_by_an_older_version_is_shown(bench: Bench) -> None:
    (bench.home / "shown").unlink()
    assert VIEW.visible_path(str(bench.home)) is None
    bench.freeze()
    (bench.show() / "new").touch()
    assert os.listdir(bench.home / "layer") == ["new"]


def as_nobody(check: object, where: Path, *, device_mode: int, user: int = NOBODY) -> bool:
    """Return the result of ``check`` as another user, with a /dev/fuse of that mode and ``where`` mounted at /mnt."""
    assert callable(check)
    os.chown(where, user, user)
    child = os.fork()
    if child == 0:
        code = 2
        try:
            unshare(CLONE_NEWNS)
            mount("none", "/", None, MS_REC | MS_PRIVATE)
            device = where / "fuse-device"
            os.mknod(device, stat.S_IFCHR | device_mode, os.stat("/dev/fuse").st_rdev)
            os.chmod(device, device_mode)
            mount(str(device), "/dev/fuse", None, MS_BIND)
            mount(str(where), "/mnt", None, MS_BIND)
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            set_dumpable(True)  # setresuid cleared it, and with it the access to /proc/self
            code = 0 if check("/mnt") else 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


@contextmanager
def _mounted_inside(workspace: Path, kind: str) -> Iterator[None]:
    """Make ``sub`` of a workspace another device: a tmpfs, or a subvolume of btrfs."""
    if kind == "tmpfs":
        (workspace / "sub").mkdir()
        with mounted_tmpfs(workspace / "sub"):
            yield
        return
    need(shutil.which("btrfs") is not None, "the program btrfs is not installed")
    subprocess.run(["btrfs", "--quiet", "subvolume", "create", str(workspace / "sub")], check=True)
    yield


@pytest.mark.parametrize("kind", ["tmpfs", "btrfs"])
def test_files_of_several_devices_with_equal_inode_numbers_stay_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    need(shutil.which("fuse-overlayfs") is not None, "fuse-overlayfs is not installed")
    with ExitStack() as stack:
        if kind == "btrfs":
            where = stack.enter_context(loop_image("btrfs", 128, tmp_path))
        else:
            (where := tmp_path / "where").mkdir()
            stack.enter_context(mounted_tmpfs(where))
        monkeypatch.setenv("FORKWISE_STATE", str(where / "state"))
        (workspace := where / "ws").mkdir()
        with _mounted_inside(workspace, kind):
            names = [f"{directory}{n}" for n in range(30) for directory in ("", "sub/")]
            for name in names:
                (workspace / name).write_text(name)
            numbers = [os.stat(workspace / name).st_ino for name in names]
            need(len(set(numbers)) < len(numbers), "no two files have the same inode number")
            with Workspace(workspace, view="fuse").branch("b") as branch:
                assert {name: (branch.path / name).read_text() for name in names} == {name: name for name in names}
                for name in names[::2]:
                    (branch.path / name).write_text(f"new {name}")
                now = {name: (branch.path / name).read_text() for name in names}
                assert now == {name: name if "/" in name else f"new {name}" for name in names}
                assert sorted(branch.delta().changed) == sorted(names[::2])
            assert {name: (workspace / name).read_text() for name in names} == now
