"""Files are synced together, by the kernel if it can, and an error of any of them is raised."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkwise.linux import sync
from forkwise.linux.sync import sync_files


@pytest.fixture(params=["together", "one by one"])
def synced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors that were synced one after the other, with and without support by the kernel."""
    if request.param == "one by one":
        monkeypatch.setattr(sync, "_NUMBERS", None)
        monkeypatch.setattr(sync, "_idle", [])
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
