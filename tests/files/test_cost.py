"""The system calls of a branch grow with its changes, never with the workspace.

Workspaces of 20 and of 5,000 files go through the same actions in a separate process under strace. Time is not
measured: it depends on the machine, the number of calls does not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.need import need

Calls = dict[str, Counter[str]]

_ACTIONS = ("create", "look", "delta", "diff", "commit", "undo", "abort")

# Each action is between two calls of getppid, which nothing else calls. One complete round runs first, unmarked, so
# that modules are loaded, the view is chosen, the workspace has a history and the background thread runs.
_SCRIPT = """
import os, sys
from forkwise import Workspace
from forkwise.files.store import pool
from forkwise.files.store import trash

pool._CAPACITY = 0  # homes are created on request, and not by chance before

root, changed, durable = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "durable"
workspace = Workspace(root, view="overlay", durable=durable)

def marked(action):
    trash.wait_until_empty()
    os.getppid()
    result = action()
    os.getppid()
    return result

def turn(measure):
    def write(branch):
        path = branch.path
        for number in range(changed):
            (path / f"d{number // 100}" / f"f{number % 100}").write_bytes(b"changed")
        (path / "d0" / "added").write_bytes(b"added")
        (path / "d0" / "f19").unlink()

    branch = measure(lambda: workspace.branch("a"))
    measure(lambda: branch.path)
    write(branch)
    measure(branch.delta)
    measure(branch.diff)
    measure(branch.commit)
    measure(workspace.undo)
    dropped = workspace.branch("b")
    write(dropped)
    measure(dropped.abort)

turn(lambda action: (trash.wait_until_empty(), action())[1])
turn(marked)
"""


@pytest.fixture(autouse=True)
def strace_works(tmp_path: Path) -> None:
    need(os.geteuid() == 0, "the overlay view that every process sees needs root")
    need(shutil.which("strace") is not None, "strace is not installed")
    tried = subprocess.run(["strace", "-o", str(tmp_path / "tried"), "true"], capture_output=True, text=True)
    need(tried.returncode == 0, f"strace may not trace here: {tried.stderr.strip()}")


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Calls]:
    """Return the system calls of the calling thread for each action, by the numbers of files and of changed files."""

    @cache
    def count_them(files: int, changed: int, durable: str = "") -> Calls:
        return _count(tmp_path_factory.mktemp("cost"), files, changed, durable)

    return count_them


def _count(base: Path, files: int, changed: int, durable: str) -> Calls:
    root = base / f"workspace-{files}-{changed}"
    for number in range(files):
        path = root / f"d{number // 100}" / f"f{number % 100}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"old")
    log = base / f"{root.name}.strace"
    command = [sys.executable, "-c", _SCRIPT, str(root), str(changed), durable]
    # Settings are looked for below the home directory, with more calls the deeper that is.
    environment = os.environ | {"XDG_CONFIG_HOME": str(base)}
    subprocess.run(["strace", "-ff", "-qq", "-o", str(log), *command], check=True, timeout=120, env=environment)
    # With -ff strace writes one file per thread; the marks are in that of the calling thread.
    (caller,) = (text for p in base.glob(f"{log.name}.*") if "getppid()" in (text := p.read_text(errors="replace")))
    made: dict[str, Counter[str]] = {}
    for action, section in zip(_ACTIONS, caller.split("getppid()")[1::2], strict=True):
        made[action] = Counter(re.findall(r"^(\w+)\(", section, re.MULTILINE))
        for unrelated in ("brk", "futex", "madvise", "mmap", "munmap", "mremap"):
            del made[action][unrelated]
    return made


def test_no_cost_grows_with_the_workspace(calls: Callable[..., Calls]) -> None:
    assert calls(20, 10) == calls(5_000, 10)


def test_a_commit_makes_few_calls_for_a_file(calls: Callable[..., Calls]) -> None:
    few, many = calls(300, 10), calls(300, 210)
    for action, most in {"commit": 13, "undo": 13, "delta": 8}.items():  # six of them look for other writers
        assert (many[action].total() - few[action].total()) / 200 <= most, action


def test_an_abort_does_not_depend_on_the_changes(calls: Callable[..., Calls]) -> None:
    few, many = calls(300, 10), calls(300, 210)
    for action in ("create", "look", "abort"):
        assert few[action] == many[action], action


def test_a_small_commit_makes_few_calls(calls: Callable[..., Calls]) -> None:
    """Of a file that is changed, one that is added and one that is deleted, in one directory."""
    assert calls(20, 1)["commit"].total() <= 146


def test_a_durable_commit_waits_for_the_disk_four_times(calls: Callable[..., Calls]) -> None:
    """For the content and the record, for the record's name, for what the steps changed, and for the commit itself."""
    commit = calls(20, 1, "durable")["commit"]
    assert commit["fsync"] + commit["io_submit"] <= 4
    assert commit["syncfs"] == 0
