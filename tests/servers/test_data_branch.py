"""Branches that are made while a server runs on a data directory of the workspace: of one moment, and it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forkwise import ServerError, Workspace
from forkwise.servers.data_branch import has_data_of_one_moment, hold_data, make_branch, record_data
from forkwise.servers.server_file import read_servers
from forkwise.servers.server_group import ServerGroup
from tests.files.images import loop_image

SERVERS = "[servers.db]\ncommand = 'echo up; exec sleep 600'\nready.log = 'up'\ndata = 'data'\n"
# Two threads that write the same number to 50 files, one file after the other.
WRITER = """
import itertools, sys, threading
def write(name):
    files = [open(f"{sys.argv[1]}/{name}{number}", "r+b", 0) for number in range(50)]
    for count in itertools.count():
        for file in files:
            file.seek(0)
            file.write(b"%09d" % count)
        if count == 3:
            print("writing", flush=True)
for name in "ab":
    threading.Thread(target=write, args=(name,), daemon=True).start()
sys.stdin.read()
"""
KILLED = """
import os, signal, sys
from forkwise import Workspace
from forkwise.servers.data_branch import hold_data
with hold_data(Workspace(sys.argv[1], view="reflink")):
    print("held", flush=True)
    signal.pause()
"""


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with loop_image("xfs", 320, tmp_path_factory.mktemp("xfs")) as directory:
        yield directory


@pytest.fixture
def project(mounted: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FORKWISE_STATE", str(mounted / "state"))
    directory = mounted / "project"
    if not directory.exists():
        (directory / "data").mkdir(parents=True)
        (directory / ".forkwise").mkdir()
        (directory / ".forkwise/servers.toml").write_text(SERVERS)
        for name in (f"{letter}{number}" for letter in "ab" for number in range(50)):
            (directory / "data" / name).write_bytes(b"%09d" % 0)
    yield directory
    for branch in reversed(Workspace(directory).branches()):
        branch.abort()


@pytest.fixture
def writer(project: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-ISc", WRITER, str(project / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def read_states(pid: int) -> set[str]:
    """Return the states of the threads of a process, such as S or t, which is a thread that a tracer has stopped."""
    threads = os.listdir(f"/proc/{pid}/task")
    return {Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] for thread in threads}


def read_numbers(data: Path, letter: str) -> list[int]:
    return [int((data / f"{letter}{number}").read_bytes()) for number in range(50)]


def test_files_of_one_moment_are_cloned_while_a_server_writes(project: Path, writer: subprocess.Popen[bytes]) -> None:
    workspace = Workspace(project, view="reflink")
    for name in ("one", "two", "three"):
        with hold_data(workspace) as data:
            branch = workspace.branch(name, None, None)
            assert read_states(writer.pid) == {"t"}
            seen = [read_numbers(project / "data", letter) for letter in "ab"]
        record_data(branch, data)
        assert "t" not in read_states(writer.pid)
        assert [read_numbers(branch.path / "data", letter) for letter in "ab"] == seen
        for numbers in seen:  # written in order: first some files with the newer number, then those with the older
            assert sorted(numbers, reverse=True) == numbers
            assert numbers[0] - numbers[-1] in (0, 1)
        assert has_data_of_one_moment(branch, "data")
        inner = branch.branch("inner", None, None)
        assert has_data_of_one_moment(inner, "data")
        inner.abort()


def test_several_branches_are_made_at_once(project: Path, writer: subprocess.Popen[bytes]) -> None:
    workspace = Workspace(project, view="reflink")
    with ThreadPoolExecutor(4) as pool:
        branches = list(pool.map(lambda number: make_branch(workspace, f"at-once-{number}"), range(4)))
    for branch in branches:
        assert branch.data_directories.still == ("data",)
        numbers = read_numbers(branch.path / "data", "a")
        assert sorted(numbers, reverse=True) == numbers
    assert "t" not in read_states(writer.pid)


def test_servers_start_on_such_data_and_not_on_other(project: Path, writer: subprocess.Popen[bytes]) -> None:
    workspace = Workspace(project, view="reflink")
    with hold_data(workspace) as data:
        branch = workspace.branch("held", None, None)
    record_data(branch, data)
    group = ServerGroup(read_servers(project), branch)
    group.start()
    group.stop()
    for other in (workspace.branch("not-held", None, None), Workspace(project).branch("overlay", None, None)):
        with pytest.raises(ServerError, match=r"in use by .*--frozen"):
            ServerGroup(read_servers(project), other).start()


def test_a_server_goes_on_after_a_kill(project: Path, writer: subprocess.Popen[bytes]) -> None:
    command = [sys.executable, "-c", KILLED, str(project)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert read_states(writer.pid) == {"t"}
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert "t" not in read_states(writer.pid)
    assert writer.poll() is None


def test_a_signal_that_arrives_meanwhile_is_not_lost(project: Path, writer: subprocess.Popen[bytes]) -> None:
    with hold_data(Workspace(project, view="reflink")):
        writer.send_signal(signal.SIGTERM)
        assert writer.poll() is None
    assert writer.wait(60) == -signal.SIGTERM


def test_nothing_is_paused_for_an_overlay_or_without_a_server(project: Path) -> None:
    with hold_data(Workspace(project, view="reflink")) as data:
        assert data.still == ()
    command = [sys.executable, "-ISc", WRITER, str(project / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with hold_data(Workspace(project, view="overlay")) as data:
            assert "t" not in read_states(process.pid)
            assert data.still == ()
        process.kill()
