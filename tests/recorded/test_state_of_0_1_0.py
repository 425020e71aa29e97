"""State written by version 0.1.0, before its modules moved, is read by this version.

``state-0.1.0.img.xz`` is an ext4 filesystem with a workspace and its state directory, made by ``record.sh``: inode
numbers, change times and extended attributes are as 0.1.0 left them. It is mounted at ``/mnt``, where it was recorded,
in a mount namespace of its own, together with the machine id under which it was recorded.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.need import need

RECORDED = Path(__file__).with_name("state-0.1.0.img.xz")
MACHINE_ID = "0123456789abcdef0123456789abcdef\n"
SOLVED, KILLED = "fpkgym", "m2zvj4"
"""A fork whose winner was committed and undone, and one whose process was killed."""

ENTER = """
set -eu
mount --make-rprivate /
mount --bind "$1" /etc/machine-id
mount -o loop "$2" /mnt
cd /mnt/project
shift 2
exec "$@"
"""

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command in the recorded workspace, in a mount namespace that ends with the command."""
    need(os.geteuid() == 0, "mounting an image needs root")
    need(shutil.which("unshare") is not None, "unshare is not installed")
    need(Path("/mnt").is_dir(), "there is no /mnt to mount over")
    need(Path("/etc/machine-id").exists(), "there is no /etc/machine-id to mount over")
    image, machine_id = tmp_path / "state.img", tmp_path / "machine-id"
    image.write_bytes(lzma.decompress(RECORDED.read_bytes()))
    machine_id.write_text(MACHINE_ID)
    environment = os.environ | {"FORKWISE_STATE": "/mnt/state", "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*words: str) -> str:
        enter = ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(machine_id), str(image)]
        done = subprocess.run([*enter, *words], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    return run


@pytest.fixture
def forkwise(run: Run) -> Callable[..., Any]:
    """Run a verb of the command line there and return the document that it printed."""

    def forkwise(*words: str) -> Any:
        printed = run(sys.executable, "-c", "from forkwise.cli import main; main()", *words, "--json")
        return [json.loads(line) for line in printed.splitlines()] if words[0] == "resume" else json.loads(printed)

    return forkwise


def test_forks_commits_and_branches_are_listed(forkwise: Callable[..., Any]) -> None:
    forks = {fork["id"]: fork for fork in forkwise("ls")["forks"]}
    assert {name: fork["state"] for name, fork in forks.items()} == {SOLVED: "resolved", KILLED: "interrupted"}
    log = forkwise("log")["commits"]
    assert [(entry["id"], entry["kind"]) for entry in log] == [(3, "undo"), (2, "commit"), (1, "commit")]
    names = {branch["branch_path"] for branch in forkwise("branch", "ls")["branches"]}
    assert names == {"/main/kept", f"/main/{KILLED}-0", f"/main/{KILLED}-1"}


def test_a_commit_is_undone(run: Run, forkwise: Callable[..., Any]) -> None:
    assert run("cat", "a.txt", "c.txt") == "one\nmore\nnew\n"
    forkwise("undo", "1")
    assert run("sh", "-c", "cat a.txt; ls") == "one\na.txt\nb.txt\ncheck.sh\n"


def test_an_undo_is_undone(run: Run, forkwise: Callable[..., Any]) -> None:
    forkwise("undo", "3")
    assert run("cat", "a.txt") == "one\nmore\nfixed\n"


def test_an_open_branch_is_committed(run: Run, forkwise: Callable[..., Any]) -> None:
    forkwise("branch", "commit", "--trust", "kept")  # it was written in another boot, and not synced since
    assert run("cat", "d.txt") == "open\n"


def test_a_killed_fork_is_resumed(run: Run, forkwise: Callable[..., Any]) -> None:
    run("touch", "go")  # or its commands sleep for five minutes
    forkwise("resume", KILLED)
    assert run("cat", "a.txt", "b.txt") == "one\nmore\nfixed\ntwo\nfixed\n"
    forks = {fork["id"]: fork["state"] for fork in forkwise("ls")["forks"]}
    assert forks[KILLED] == "resolved"
