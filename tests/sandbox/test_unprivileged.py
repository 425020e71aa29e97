"""A user without privileges, whose branches are kernel overlays that only their sandboxes see."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkwise.linux.syscalls import MNT_DETACH, mount, umount2
from tests.sandbox.child import need_user_namespaces
from tests.unprivileged import UNPRIVILEGED, as_unprivileged, interpreter, unprivileged_project

TOOLS = ("rapidfuzz", "pydantic_core", "typing_extensions")

PROGRAM = """
import json, os, signal, sys, threading
from pathlib import Path
from forkwise import BranchContext, Confinement, Workspace

said = {}
branch = Workspace(sys.argv[1], view="overlay").branch("b", on_success=None, on_error=None)
said["view"] = branch.view

def work(path):
    (path / f"function-{len(os.listdir(path))}").write_text("x")
    try:
        Path(sys.argv[2]).write_text("escaped")
    except OSError as error:
        refused = error.strerror
    return [os.getcwd(), (path / "a.txt").read_text(), sorted(os.listdir(path)), refused, os.getpid(), os.getuid()]

def call(confinement):
    with BranchContext(work, branch, confinement=confinement) as context:
        context.wait(120)
        return context.result.value

stop = threading.Event()
for confinement in ("standard", "strict"):
    script = "pwd; cat a.txt; echo x > command-$(ls | wc -l); ls; echo x > " + sys.argv[2]
    done = branch.run(["sh", "-c", script], confinement=confinement, text=True)
    said[f"command {confinement}"] = done.stdout
    said[f"refused {confinement}"] = done.stderr
    said[f"function {confinement}"] = call(confinement)
    thread = threading.Thread(target=stop.wait)
    thread.start()
    said[f"function {confinement} with threads"] = call(confinement)
    stop.set()
    thread.join()

def stubborn(path):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
    signal.pause()

for number in range(6):
    context = BranchContext(stubborn, branch, confinement="strict" if number % 2 else "standard")
    context.start()
    context.abort(60)
with open(f"/proc/self/task/{os.getpid()}/children") as file:
    said["children"] = len(file.read().split())  # the forkserver
own = Path(os.environ["HOME"], "own")
own.mkdir()
(own / "settings").write_text("mine")
copied = Workspace(sys.argv[1], view="copy").branch("c", on_success=None, on_error=None)
script = f"cd {own} && printf hook > settings && cat settings && mkdir new && rm settings && ls"
views = Confinement.standard(branched=(str(own),))
said["views"] = [one.run(["sh", "-c", script], confinement=views, text=True).stdout for one in (branch, copied)]
copied.abort()
said["own"] = [(own / "settings").read_text(), os.listdir(own)]
said["added"] = sorted(branch.delta().added)
branch.commit()
said["committed"] = sorted(os.listdir(sys.argv[1]))
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said() -> Iterator[dict[str, Any]]:
    """Return the output of a program of such a user."""
    need_user_namespaces()
    with unprivileged_project(TOOLS) as (home, environment):
        program = [interpreter(), "-c", PROGRAM, str(home / "project"), "/etc/escaped"]
        done = subprocess.run(
            as_unprivileged(program), env=environment, cwd="/", capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stderr
        yield {**json.loads(done.stdout), **_run_with_home(environment), "project": str(home / "project")}


HOME = """
import json, os, sys
from forkwise import Workspace, enter_namespace

if sys.argv[2] == "entered":
    enter_namespace()
branch = Workspace(sys.argv[1], view="overlay").branch("home", on_success=None, on_error=None)
script = "mkdir -p ~/.cache/new ~/.npm/new; cd; ls -A .npm .cache .local/state/forkwise; cat .ssh/id data/file"
done = branch.run(["sh", "-c", script], text=True)
again = branch.run(["sh", "-c", "ls ~/.npm ~/.cache"], text=True).stdout
branch.abort()
print(json.dumps([done.stdout, done.stderr, again]))
"""


def _run_with_home(environment: dict[str, str]) -> dict[str, Any]:
    """Run a program that writes to its home directory: also in a namespace, and with a mount in that directory.

    The directory is not in /tmp, of which a sandbox has its own.
    """
    said = {}
    with tempfile.TemporaryDirectory(prefix="forkwise-home-", dir="/var/lib") as made:
        home = Path(made)
        for name in ("", ".ssh", ".cache", "data", "project"):
            (home / name).mkdir(exist_ok=True)
            os.chown(home / name, UNPRIVILEGED, UNPRIVILEGED)
        (home / ".ssh/id").write_text("the-key")
        (home / "data/file").write_text("below\n")
        for case in ("plain", "entered", "mounted"):
            if case == "mounted":
                mount("test", str(home / "data"), "tmpfs", 0, "size=64k,mode=755")
                (home / "data/file").write_text("on the mount\n")
            try:
                program = as_unprivileged([interpreter(), "-c", HOME, str(home / "project"), case])
                variables = {**environment, "HOME": str(home)}
                done = subprocess.run(program, env=variables, cwd="/", capture_output=True, text=True, check=False)
            finally:
                if case == "mounted":
                    umount2(str(home / "data"), MNT_DETACH)
            assert done.returncode == 0, done.stderr
            said[f"home {case}"] = json.loads(done.stdout)
        said["left at home"] = sorted(str(p.relative_to(home)) for p in home.glob(".[cn]*/*"))
    return said


@pytest.mark.parametrize("case", ["plain", "entered"])
def test_the_home_directory_is_a_view(said: dict[str, Any], case: str) -> None:
    first, problems, again = said[f"home {case}"]
    assert first == ".cache:\nnew\n\n.local/state/forkwise:\n\n.npm:\nnew\nbelow\n"
    assert "Permission denied" in problems
    assert again.split().count("new") == 2
    assert said["left at home"] == []


def test_with_a_mount_in_the_home_directory_only_the_cache_is_a_view(said: dict[str, Any]) -> None:
    # The kernel lets an unprivileged user mount no overlay of a directory in which root has mounted something.
    first, problems, again = said["home mounted"]
    assert first == ".cache:\nnew\n\n.local/state/forkwise:\non the mount\n"
    assert "Read-only file system" in problems
    assert "new" not in again  # in memory, so it ended with the command


@pytest.mark.parametrize("confinement", ["standard", "strict"])
def test_commands_and_functions_see_the_branch_where_the_workspace_is(said: dict[str, Any], confinement: str) -> None:
    assert said["view"] == "overlay"
    lines = said[f"command {confinement}"].splitlines()
    assert lines[:2] == [said["project"], "one"]
    for kind in ("", " with threads"):
        where, content, names, refused, number, user = said[f"function {confinement}{kind}"]
        assert (where, content) == (said["project"], "one\n")
        assert set(lines[2:]) <= set(names)  # made by the command before in the same branch
        assert refused in ("Read-only file system", "Permission denied")
        assert number < 10
        assert user == UNPRIVILEGED
    assert "escaped" in said[f"refused {confinement}"]
    assert not Path("/etc/escaped").exists()


def test_all_lands_in_the_branch_and_is_committed(said: dict[str, Any]) -> None:
    assert len(said["added"]) == 6
    assert said["committed"] == sorted(["a.txt", *said["added"]])


def test_nothing_is_left_of_those_that_were_aborted(said: dict[str, Any]) -> None:
    assert said["children"] == 1


TWICE = """
import json, os, subprocess, sys
from forkwise import BranchContext, BranchError, Workspace
from forkwise.linux import namespace

said = {}
ws = Workspace(sys.argv[1], view="overlay")
branch = ws.branch("b", on_success=None, on_error=None)

def attempt(work):
    try:
        work()
    except BranchError as error:
        return str(error)
    return "mounted twice"

def run_during_the_start():
    if not said:
        said["during the start"] = ""
        said["during the start"] = attempt(lambda: branch.run(["true"]))

os.register_at_fork(before=run_during_the_start)
with BranchContext(lambda _: 0, branch) as context:
    said["during the run"] = attempt(lambda: branch.run(["true"]))
    context.wait(120)
said["afterwards"] = attempt(lambda: branch.run(["true"]))
said["after a start that failed"] = attempt(lambda: branch.run(["true"], cwd="../.."))
said["then"] = attempt(lambda: branch.run(["true"]))

OTHER = '''
import sys
from forkwise import Workspace
from forkwise.linux import namespace
namespace.enter_namespace()
branch = Workspace(sys.argv[1]).open("b")
print(branch.path, flush=True)
sys.stdin.read()
'''
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
other = subprocess.Popen([sys.executable, "-c", OTHER, sys.argv[1]], **pipes)
said["mounted by"] = bool(other.stdout.readline())
said["by a sandbox beside a shell"] = attempt(lambda: branch.run(["true"]))
third = subprocess.run([sys.executable, "-c", OTHER, sys.argv[1]], input="", capture_output=True, text=True)
said["by two shells"] = third.stderr or third.stdout
other.communicate("")
said["left"] = sorted(os.listdir(branch.home))
branch.abort()
print(json.dumps(said))
"""


def test_a_layer_is_mounted_once_at_a_time() -> None:
    need_user_namespaces()
    with unprivileged_project(TOOLS) as (home, environment):
        program = [interpreter(), "-c", TWICE, str(home / "project")]
        done = subprocess.run(
            as_unprivileged(program), env=environment, cwd="/", capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert "in use by another sandbox" in said["during the start"]
    assert "in use by another sandbox" in said["during the run"]
    assert said["afterwards"] == said["after a start that failed"] == said["then"] == "mounted twice"  # none was left
    assert said["mounted by"]
    assert "in use by another sandbox" in said["by a sandbox beside a shell"]
    assert "mounted by another process" in said["by two shells"]
    assert not [name for name in said["left"] if name.startswith(".private")]


def test_views_of_other_paths_leave_these_unchanged(said: dict[str, Any]) -> None:
    assert said["views"] == ["hooknew\n", "hooknew\n"]
    assert said["own"] == ["mine", ["settings"]]
