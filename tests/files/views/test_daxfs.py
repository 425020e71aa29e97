"""The DaxFS driver: mount options, the limit on branches, and the calls of the new mount interface."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from forkwise.errors import BranchError, MountError
from forkwise.files.views import daxfs
from forkwise.files.views.daxfs import (
    MOST_BRANCHES,
    DaxFS,
    backing_options,
    branch_count,
    branch_options,
    find_mount,
    mount_new,
)
from forkwise.linux.mountinfo import MountEntry, is_mount_point
from forkwise.linux.syscalls import umount2
from tests.need import need

MAIN = MountEntry("/", "/mnt/main", "daxfs", "none", ("ro", "phys=0x100000000", "size=268435456", "branch=/main"))


def branch(number: int) -> MountEntry:
    options = ("rw", "phys=0x100000000", "size=268435456", f"branch=/main/b{number}")
    return MountEntry("/", f"/mnt/b{number}", "daxfs", "none", options)


def test_the_options_of_a_branch() -> None:
    assert branch_options("try", "main") == [("branch", "try"), ("parent", "main")]


@pytest.mark.parametrize("name", ["", "a,commit", "a b", "a/b", "a=b", "a\n", "x" * 32])
def test_names_that_would_be_misread(name: str) -> None:
    with pytest.raises(BranchError, match="cannot name"):
        branch_options(name, "main")
    with pytest.raises(BranchError, match="cannot name"):
        branch_options("fine", name)


def test_a_branch_is_on_the_memory_of_its_mount() -> None:
    assert backing_options(MAIN) == [("phys", "0x100000000"), ("size", "268435456")]


def test_branches_are_counted_once_and_with_main() -> None:
    elsewhere = MountEntry("/", "/mnt/e", "daxfs", "none", ("rw", "phys=0x1", "size=1", "branch=/main/e"))
    assert branch_count(MAIN, [MAIN, branch(1), branch(1), branch(2), elsewhere]) == 3


def test_no_more_than_the_maximum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daxfs, "mounts", lambda: [MAIN, *map(branch, range(MOST_BRANCHES - 1))])
    with pytest.raises(BranchError, match="256"):
        DaxFS("/mnt/main", str(tmp_path)).create("more")
    assert os.listdir(tmp_path) == []


def test_a_mount_that_is_not_daxfs(tmp_path: Path) -> None:
    assert find_mount(str(tmp_path)) is None
    with pytest.raises(MountError, match="not a DaxFS mount"):
        DaxFS(str(tmp_path), str(tmp_path)).create("one")


def test_the_mount_calls_take_strings_and_flags(tmp_path: Path) -> None:
    need(os.geteuid() == 0, "mounting needs root")
    mount_new("tmpfs", str(tmp_path), [("size", "1m"), ("noswap", None)])
    try:
        assert is_mount_point(str(tmp_path))
        found = os.statvfs(tmp_path)
        assert found.f_blocks * found.f_frsize == 1 << 20
    finally:
        umount2(str(tmp_path))


def test_a_refused_option_is_an_error(tmp_path: Path) -> None:
    need(os.geteuid() == 0, "mounting needs root")
    with pytest.raises(OSError, match="Invalid") as caught:
        mount_new("tmpfs", str(tmp_path), [("nonsense", "1")])
    assert caught.value.errno == errno.EINVAL
    assert not is_mount_point(str(tmp_path))
