"""The BranchFS driver: ioctl numbers, text commands for builds without ioctls, and error codes."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from forkwise.errors import AbortError, BranchError, BranchNotFoundError, BranchStaleError, CommitError, MountError
from forkwise.files.views.branchfs import (
    ABORT,
    COMMIT,
    CREATE,
    BranchFS,
    find_mount,
    is_branchfs,
    mount_branchfs,
    unmount_branchfs,
)
from forkwise.linux.mountinfo import find_entry, parse_mountinfo


@pytest.fixture
def plain(tmp_path: Path) -> BranchFS:
    """Imitate a mount by a plain directory: like those of older builds, its control files accept no ioctl."""
    for directory in (tmp_path, tmp_path / "@one"):
        directory.mkdir(exist_ok=True)
        (directory / ".branchfs_ctl").touch()
    return BranchFS(str(tmp_path))


def answer(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def ioctl(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "ioctl", ioctl)


def test_ioctl_numbers() -> None:
    assert (CREATE, COMMIT, ABORT) == (0x80806200, 0x6201, 0x6202)


class TestWords:
    def test_create(self, plain: BranchFS) -> None:
        assert plain.create("two") == "two"
        assert plain.create("three", "one") == "three"
        assert Path(plain.mount, ".branchfs_ctl").read_text() == "create:two"
        assert Path(plain.path("one"), ".branchfs_ctl").read_text() == "create:three"

    def test_commit(self, plain: BranchFS) -> None:
        plain.commit("one")
        assert Path(plain.mount, "@one/.branchfs_ctl").read_text() == "commit"
        assert Path(plain.mount, ".branchfs_ctl").read_text() == ""

    def test_abort(self, plain: BranchFS) -> None:
        plain.abort("one")
        assert Path(plain.mount, "@one/.branchfs_ctl").read_text() == "abort"

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "@a", "a\n", "x" * 128])
    def test_names_that_would_be_misread(self, plain: BranchFS, name: str) -> None:
        with pytest.raises(BranchError, match="cannot name"):
            plain.create(name)
        assert Path(plain.mount, ".branchfs_ctl").read_text() == ""


class TestIoctls:
    def test_create_gives_the_name_the_filesystem_chose(self, plain: BranchFS, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []

        def ioctl(fd: int, request: int, buffer: bytearray) -> int:
            asked.append((os.readlink(f"/proc/self/fd/{fd}"), request, len(buffer)))
            buffer[:9] = b"branch-42"
            return 0

        monkeypatch.setattr(fcntl, "ioctl", ioctl)
        assert plain.create("ignored", "one") == "branch-42"
        assert asked == [(f"{plain.mount}/@one/.branchfs_ctl", CREATE, 128)]
        assert Path(plain.mount, "@one/.branchfs_ctl").read_text() == ""

    def test_commit_and_abort(self, plain: BranchFS, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[int] = []
        monkeypatch.setattr(fcntl, "ioctl", lambda _, request: asked.append(request))
        plain.commit("one")
        plain.abort("one")
        assert asked == [COMMIT, ABORT]
        assert Path(plain.mount, "@one/.branchfs_ctl").read_text() == ""


class TestAnswers:
    def test_stale(self, plain: BranchFS, monkeypatch: pytest.MonkeyPatch) -> None:
        answer(monkeypatch, errno.ESTALE)
        with pytest.raises(BranchStaleError, match="sibling") as caught:
            plain.commit("one")
        assert caught.value.branch == "one"

    def test_children(self, plain: BranchFS, monkeypatch: pytest.MonkeyPatch) -> None:
        answer(monkeypatch, errno.EIO)
        with pytest.raises(CommitError, match="children"):
            plain.commit("one")
        with pytest.raises(AbortError, match="children"):
            plain.abort("one")
        with pytest.raises(BranchError, match="children"):
            plain.create("two", "one")

    def test_gone(self, plain: BranchFS) -> None:
        with pytest.raises(BranchNotFoundError, match="@nowhere"):
            plain.commit("nowhere")


class TestMounts:
    TABLE = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
        "40 22 0:50 / /mnt/a\\040b\\134c rw,nosuid - fuse branchfs rw,user_id=0,group_id=0\n"
        "41 22 0:51 / /mnt/typed rw shared:7 master:2 - fuse.branchfs branchfs rw\n"
        "42 22 0:52 / /mnt/other rw - fuse.sshfs host:/ rw\n"
        "43 40 0:53 / /mnt/a\\040b\\134c/over rw - tmpfs branchfs rw\n"
        "44 22 0:50 /@one /mnt/bound rw - fuse branchfs rw\n"
    )

    @pytest.mark.parametrize(
        ("path", "point"),
        [
            ("/mnt/a b\\c", "/mnt/a b\\c"),
            ("/mnt/a b\\c/@one/file", "/mnt/a b\\c"),
            ("/mnt/typed/x", "/mnt/typed"),
            ("/mnt/typedother", None),
            ("/mnt/other", None),
            ("/mnt/a b\\c/over/file", None),
            ("/mnt/bound", None),
            ("/home", None),
        ],
    )
    def test_which_paths_are_on_branchfs(self, path: str, point: str | None) -> None:
        found = find_entry(path, parse_mountinfo(self.TABLE))
        assert found is not None
        assert (found.point if is_branchfs(found) else None) == point

    def test_a_plain_directory_is_not(self, tmp_path: Path) -> None:
        assert find_mount(str(tmp_path)) is None


class TestBinary:
    def binary(self, tmp_path: Path, script: str) -> str:
        path = tmp_path / "branchfs"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(stat.S_IRWXU)
        return str(path)

    def test_the_command_line(self, tmp_path: Path) -> None:
        binary = self.binary(tmp_path, f'printf "%s|" "$@" > {tmp_path}/asked')
        unmount_branchfs(binary, "/mnt/x", "/var/storage")
        assert (tmp_path / "asked").read_text() == "unmount|--storage|/var/storage|/mnt/x|"

    def test_a_failure_quotes_the_binary(self, tmp_path: Path) -> None:
        binary = self.binary(tmp_path, f'printf "%s|" "$@" > {tmp_path}/asked; echo no such base >&2; exit 1')
        with pytest.raises(MountError, match="no such base"):
            mount_branchfs(binary, "/base", "/mnt/x", "/var/storage")
        assert (tmp_path / "asked").read_text() == "mount|--base|/base|--storage|/var/storage|/mnt/x|"

    def test_no_binary(self, tmp_path: Path) -> None:
        with pytest.raises(MountError, match="No such file"):
            mount_branchfs(str(tmp_path / "nowhere"), "/base", "/mnt/x")
