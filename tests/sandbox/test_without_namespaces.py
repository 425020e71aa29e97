"""Machines that forbid user namespaces: an error that names the cause, or Landlock if it is accepted.

A user namespace in which no further ones may be created imitates such a machine; the tests run inside it as a user
without privileges.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.need import need
from tests.unprivileged import as_unprivileged, interpreter, unprivileged_project

TOOLS = ("rapidfuzz", "pydantic_core", "typing_extensions")

PROGRAM = """
import json, os, signal, sys
from forkwise import BranchContext, Confinement, Limits, NamespaceError, ProcessBranchError, Workspace
said = {}
ws = Workspace(sys.argv[1])
branch = ws.branch("b")
try:
    branch.run(["true"])
except NamespaceError as error:
    said["error"] = str(error)
weaker = Confinement.standard(landlock_instead=True)
script = "pwd; echo two > a.txt; echo x > $TMPDIR/x; echo y > " + sys.argv[2] + "; (setsid sleep 1000 &) ; true"
done = branch.run(["sh", "-c", script], confinement=weaker, text=True)
said |= {"path": str(branch.path), "stdout": done.stdout, "stderr": done.stderr, "changed": branch.delta().changed}
late = branch.run(["sh", "-c", "setsid sleep 1000 & sleep 1000"], confinement=weaker, timeout=0.3)
said["ending"] = late.ending
try:
    branch.run(["true"], confinement=Confinement.strict(landlock_instead=True))
except NamespaceError as error:
    said["strict"] = str(error)
own = os.environ["HOME"] + "/own"
os.mkdir(own)
try:
    branch.run(["true"], confinement=Confinement.standard(landlock_instead=True, branched=(own,)))
except NamespaceError as error:
    said["branched"] = str(error)
said["functions"] = []

def work(path):
    (path / "made").write_text(os.environ.get("TMPDIR", ""))
    tried = []
    for place in (sys.argv[2], str(path) + "/../../beside"):
        try:
            open(place, "w").close()
        except OSError as error:
            tried.append(error.strerror)
    return [str(path), os.getcwd(), tried]

def stubborn(path):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        os.execvp("sleep", ["sleep", "1000"])
    signal.pause()

def run_target(target, where, confinement, end=None):
    context = BranchContext(target, where, confinement=confinement)
    try:
        context.start()
        if end is not None:
            end(context)
        context.wait(60)
        return context.result.value
    except (NamespaceError, ProcessBranchError) as error:
        return str(error).splitlines()[0]

for where in (branch, sys.argv[1]):
    said["functions"].append(run_target(work, where, weaker))
said["function refused"] = run_target(work, branch, "standard")
said["function strict"] = run_target(work, branch, Confinement.strict(landlock_instead=True))
said["aborted"] = run_target(stubborn, branch, weaker, lambda context: context.abort(60))
limited = Confinement.standard(landlock_instead=True, limits=Limits(wall=0.3))
said["limited"] = run_target(stubborn, branch, limited)
said["crashed"] = run_target(lambda _: os.kill(os.getpid(), 9), branch, weaker)
with open("/proc/self/task/" + str(os.getpid()) + "/children") as file:
    said["servers"] = len(file.read().split())
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said() -> Iterator[dict[str, object]]:
    """Return the output of a program that ran without user namespaces."""
    with unprivileged_project(TOOLS) as (home, environment):
        forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
        program = [interpreter(), "-c", PROGRAM, str(home / "project"), str(home / "outside")]
        command = as_unprivileged(["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", *program])
        done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
        need("unshare failed" not in done.stderr, "no user namespace to forbid others in")
        assert done.returncode == 0, done.stderr
        yield {**json.loads(done.stdout), "outside": (home / "outside").exists(), "left": _left(str(home))}


def _left(home: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if f"HOME={home}".encode() in environ:
            found.append(Path(f"/proc/{pid}/cmdline").read_text())
    return found


def test_the_error_names_what_forbids_them(said: dict[str, object]) -> None:
    assert "user.max_user_namespaces is 0" in str(said["error"])
    assert "landlock_instead" in str(said["error"])


def test_landlock_keeps_writes_to_the_branch(said: dict[str, object]) -> None:
    assert said["stdout"] == f"{said['path']}\n"
    assert said["changed"] == ["a.txt"]
    assert "Permission denied" in str(said["stderr"])
    assert said["outside"] is False


def test_nothing_is_left_although_processes_are_numbered_together(said: dict[str, object]) -> None:
    assert said["ending"] == "timeout"
    assert said["left"] == []


def test_what_it_cannot_do_it_refuses(said: dict[str, object]) -> None:
    assert "network 'none' needs network namespaces" in str(said["strict"])


def test_functions_are_kept_by_landlock_too(said: dict[str, object]) -> None:
    in_branch, in_directory = said["functions"]  # type: ignore[misc]
    assert in_branch == [said["path"], said["path"], ["Permission denied"] * 2]
    assert in_directory[0] == in_directory[1] != said["path"]
    assert in_directory[2] == ["Permission denied"] * 2
    assert "user.max_user_namespaces is 0" in str(said["function refused"])
    assert "network 'none' needs network namespaces" in str(said["function strict"])


def test_functions_end_with_all_their_descendants(said: dict[str, object]) -> None:
    assert said["aborted"] == "the target failed: ProcessBranchError: killed"
    assert said["limited"] == "the target failed: ProcessBranchError: stopped by its limit wall"
    assert said["crashed"] == "the target failed: ProcessBranchError: killed by SIGKILL"
    assert said["servers"] == 1


def test_a_view_of_another_path_is_refused_with_a_remedy(said: dict[str, str]) -> None:
    assert "/own needs mount namespaces" in said["branched"]
    assert "--writable" in said["branched"]
