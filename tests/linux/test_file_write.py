"""Files are replaced whole or not at all, and synced together, by the kernel if it can."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkwise.linux import file_write
from forkwise.linux.file_write import replace_file, sync_files


@pytest.fixture(params=["together", "one by one"])
def synced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors that were synced one after the other, with and without support by the kernel."""
    if request.param == "one by one":
        monkeypatch.setattr(file_write, "_NUMBERS", None)
        monkeypatch.setattr(file_write, "_idle", [])
    fsync = os.fsync
    seen: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(fd), fsync(fd))[1])
    return seen


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[list[int]]:
    """More files than fit into one request, and their directory."""
    fds = [os.open(tmp_path / str(n), os.O_WRONLY | os.O_CREAT) for n in range(40)]
    fds.append(os.open(tmp_path, os.O_RDONLY))
    yield fds
    for fd in fds:
        os.close(fd)


def test_many_files_at_once(synced: list[int], opened: list[int]) -> None:
    sync_files(opened)
    sync_files(opened[:2])
    assert synced in ([], [*opened, *opened[:2]])


def test_none_and_one(synced: list[int], opened: list[int]) -> None:
    sync_files([])
    sync_files(opened[-1:])
    assert synced == opened[-1:]


def test_an_error_of_one_file_is_raised(synced: list[int], opened: list[int]) -> None:
    one, other = os.pipe()
    try:
        for fds in ([other, opened[0]], [*opened[:3], other], [*opened, other]):
            with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):  # a pipe cannot be synced
                sync_files(fds)
        sync_files(opened)
    finally:
        os.close(one)
        os.close(other)


def test_a_forked_child_syncs_as_well(opened: list[int]) -> None:
    sync_files(opened)
    child = os.fork()
    if not child:
        sync_files(opened)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    sync_files(opened)


def test_a_replacement_has_the_content_and_leaves_nothing_beside(tmp_path: Path) -> None:
    file = tmp_path / "file"
    replace_file(file, "old")
    replace_file(file, b"new", is_synced=True)
    assert file.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(("mode", "before", "after"), [(0o600, 0o644, 0o600), (0o664, None, 0o664)])
def test_a_replacement_has_the_requested_mode(tmp_path: Path, mode: int, before: int | None, after: int) -> None:
    file = tmp_path / "file"
    if before is not None:
        file.touch(before)
    replace_file(file, "text", mode=mode)
    assert file.stat().st_mode & 0o777 == after


def test_a_file_of_the_user_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "file"
    earlier = os.umask(0o077)
    try:
        replace_file(file, "text", mode=None)
        assert file.stat().st_mode & 0o777 == 0o600
        file.chmod(0o640)
        replace_file(file, "more", mode=None)
    finally:
        os.umask(earlier)
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("beside", [None, "beside"])
def test_a_failed_replacement_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: str | None
) -> None:
    """A disk takes a part of the content and is full then."""
    file = tmp_path / "file"
    file.write_text("old")
    write = os.write
    taken: list[int] = []

    def write_some(fd: int, data: bytes) -> int:
        if taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken.append(write(fd, data[:3]))
        return 3

    monkeypatch.setattr(os, "write", write_some)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        replace_file(file, "new content", beside=beside and tmp_path / beside)
    monkeypatch.undo()
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_replacement_reuses_the_file_of_a_killed_process(tmp_path: Path) -> None:
    beside = tmp_path / "file.new"
    beside.write_text("a longer text that a killed process left")
    replace_file(tmp_path / "file", "short", beside=beside)
    assert (tmp_path / "file").read_text() == "short"
    assert os.listdir(tmp_path) == ["file"]


def test_a_replacement_is_not_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    beside = tmp_path / "file.new"
    beside.symlink_to(victim)
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        replace_file(tmp_path / "file", "text", beside=beside)
    assert victim.read_text() == "kept"
