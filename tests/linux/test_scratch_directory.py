"""Scratch directories: those of killed processes are found, and nobody else's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.linux.scratch_directory import list_abandoned, remove_abandoned, scratch_directory

HOLD = """
import sys
from forkwise.linux.scratch_directory import scratch_directory
with scratch_directory("diff") as directory:
    open(f"{directory}/copy", "w").close()
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files of the test alone."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return directory


def test_it_is_private_and_ends_with_its_block(temporary: Path) -> None:
    with scratch_directory("diff") as directory:
        assert Path(directory).parent == temporary
        assert os.stat(directory).st_mode & 0o777 == 0o700
        assert list_abandoned() == []
        assert not remove_abandoned(directory)
    assert list(temporary.iterdir()) == []


def test_gc_removes_that_of_a_killed_process(tmp_path: Path, temporary: Path) -> None:
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws")
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().decode().strip())
        assert workspace.gc().removed == ()
        assert (directory / "copy").exists()
        process.kill()
    expected = f"temporary directory {directory}"
    assert workspace.gc(dry_run=True).removed == (expected,)
    assert directory.exists()
    assert workspace.gc().removed == (expected,)
    assert list(temporary.iterdir()) == []


def test_links_files_other_users_and_other_names_are_left(tmp_path: Path, temporary: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (temporary / "forkwise-scratch-diff-aaaaaaaa").symlink_to(outside)
    (temporary / "forkwise-scratch-diff-bbbbbbbb").write_text("")
    (temporary / "forkwise-scratch-diff-toolongname").mkdir()
    (temporary / "forkwise-diff-cccccccc").mkdir()
    other = temporary / "forkwise-scratch-diff-dddddddd"
    other.mkdir()
    if os.geteuid() == 0:
        os.chown(other, 1234, 1234)
    else:
        other.rmdir()
    before = sorted(temporary.iterdir())
    assert list_abandoned() == []
    assert not any(remove_abandoned(str(path)) for path in before)
    assert sorted(temporary.iterdir()) == before


def test_a_link_inside_is_removed_and_not_followed(tmp_path: Path, temporary: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_text("")
    left = temporary / "forkwise-scratch-git-aaaaaaaa"
    left.mkdir()
    (left / "objects").symlink_to(tmp_path / "outside")
    assert list_abandoned() == [str(left)]
    assert remove_abandoned(str(left))
    assert (tmp_path / "outside/kept").exists()
    assert not left.exists()


def test_an_interrupt_during_the_removal_leaves_nothing(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_tree = shutil.rmtree
    calls: list[str] = []

    def interrupt_once(path: str, **options: bool) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise KeyboardInterrupt
        remove_tree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupt_once)
    with pytest.raises(KeyboardInterrupt), scratch_directory("diff"):
        pass
    assert list(temporary.iterdir()) == []


INTERRUPTED = """
import fcntl
from forkwise.linux.scratch_directory import scratch_directory

def interrupt(*_):
    raise KeyboardInterrupt

fcntl.flock = interrupt
with scratch_directory("diff"):
    pass
"""


def test_an_interrupt_during_the_creation_leaves_nothing(temporary: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], env=environment, capture_output=True, check=False)
    assert b"KeyboardInterrupt" in ended.stderr
    assert list(temporary.iterdir()) == []
