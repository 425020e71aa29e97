"""The command line without the right to mount: it uses the kernel's overlay in a private namespace."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from forkwise.sandbox.confinement import AGENT_CREDENTIALS, CREDENTIAL_STORES
from tests.need import need
from tests.unprivileged import UNPRIVILEGED, as_unprivileged, interpreter, readable_copy, with_fuse_namespace

TOOLS = ("click", "rich", "pygments", "markdown_it", "mdurl", "rapidfuzz", "pydantic_core", "typing_extensions")
NAMESPACES = "import sys; from forkwise.linux import namespace; sys.exit(not namespace.available())"


@pytest.fixture(scope="module")
def readable() -> Iterator[Path]:
    """Create a directory that every user can read, with everything that the command line needs."""
    with readable_copy(TOOLS) as room:
        for found in Path(click.__file__).parents[1].glob("opentelemetry*"):  # some parts by their metadata
            shutil.copytree(found, room / "tools" / found.name)
        subprocess.run(["chmod", "-R", "a+rX", str(room / "tools")], check=True)
        yield room


@pytest.fixture
def place(readable: Path) -> Iterator[Path]:
    """Create a directory that the unprivileged user can write to, with a project in it."""
    root = readable / "home"
    (root / "project").mkdir(parents=True)
    (root / "project" / "a.txt").write_text("one\n")
    for path in (root, root / "project", root / "project" / "a.txt"):
        os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
    yield root
    subprocess.run(["rm", "-rf", str(root)], check=True)


@pytest.fixture
def run_unprivileged(place: Path) -> Callable[..., tuple[int, str, str]]:
    """Run one command as that user, and return its exit code, stdout and stderr."""

    def run_unprivileged(*words: str) -> tuple[int, str, str]:
        done = python(place, "from forkwise.cli import main; main()", *words)
        return done.returncode, done.stdout, done.stderr

    return run_unprivileged


def variables(place: Path) -> dict[str, str]:
    """Return the environment of that user."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{place.parent}/src:{place.parent}/tools",
        "PYTHONDONTWRITEBYTECODE": "1",
        "FORKWISE_STATE": str(place / "state"),
        "HOME": str(place),
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
    }


def python(place: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run some Python as that user."""
    command = as_unprivileged([interpreter(), "-c", code, *words])
    return subprocess.run(command, cwd=place / "project", env=variables(place), capture_output=True, text=True)


def test_a_branch_from_creation_to_undo(run_unprivileged: Callable[..., tuple[int, str, str]], place: Path) -> None:
    need(python(place, NAMESPACES).returncode == 0, "no user namespaces for unprivileged users")
    code, out, err = run_unprivileged("branch", "create", "try-1", "--json")
    assert code == 0, (out, err)
    made = json.loads(out)["branch"]
    assert (made["view"], made["path"]) == ("overlay", None)

    code, _, err = run_unprivileged("branch", "path", "try-1")
    assert code == 6
    assert "forkwise branch shell try-1" in err

    work = 'test "$FORKWISE_BRANCH" = /main/try-1 && echo uno > a.txt && mkdir sub && exit 5'
    code, out, err = run_unprivileged("branch", "shell", "try-1", "--", "sh", "-c", work)
    assert code == 5, (out, err)
    assert (place / "project/a.txt").read_text() == "one\n"

    assert run_unprivileged("branch", "create", "inner", "--from", "try-1")[1].endswith("shell /main/try-1/inner\n")
    assert run_unprivileged("branch", "shell", "try-1/inner", "--", "sh", "-c", "rm a.txt; echo b > b.txt")[0] == 0
    assert run_unprivileged("branch", "commit", "try-1/inner")[0] == 0
    assert "1 added, 0 changed, 1 deleted" in run_unprivileged("branch", "diff", "try-1", "--stat")[1].replace(
        "2 added", "1 added"
    )

    code, out, err = run_unprivileged("branch", "commit", "try-1")
    assert code == 0, (out, err)
    assert sorted(os.listdir(place / "project")) == ["b.txt", "sub"]
    assert run_unprivileged("undo")[0] == 0
    assert (place / "project/a.txt").read_text() == "one\n"
    assert os.listdir(place / "project") == ["a.txt"]


def test_a_view_that_everybody_sees_can_be_asked_for(
    run_unprivileged: Callable[..., tuple[int, str, str]], place: Path
) -> None:
    code, out, err = run_unprivileged("branch", "create", "plain", "--view", "copy")
    assert code == 0, (out, err)
    path = Path(out.splitlines()[1])
    assert (path / "a.txt").read_text() == "one\n"
    assert run_unprivileged("branch", "path", "plain")[1] == f"{path}\n"
    (path / "a.txt").write_text("uno\n")
    assert run_unprivileged("branch", "commit", "plain")[0] == 0
    assert (place / "project/a.txt").read_text() == "uno\n"


def test_doctor_says_both(run_unprivileged: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = run_unprivileged("doctor")
    assert code == 0, (out, err)
    assert "CAP_SYS_ADMIN" in out or "overlay   yes" in out


def test_exploring(run_unprivileged: Callable[..., tuple[int, str, str]], place: Path) -> None:
    need(python(place, NAMESPACES).returncode == 0, "no user namespaces for unprivileged users")
    work = 'echo $FORKWISE_ATTEMPT > a.txt; echo $FORKWISE_ATTEMPT > "$FORKWISE_SCORE"; grep " $PWD " /proc/mounts'
    code, out, err = run_unprivileged("best-of", "2", "--json", "--no-commit", "--", "sh", "-c", work)
    assert (code, err) == (0, ""), out
    *events, last = map(json.loads, out.splitlines())
    assert last["outcome"]["winner"].endswith(".2")
    ended = [e["event"]["data"] for e in events if e["event"]["kind"] == "ended"]
    assert ["overlay" in data["tail"] for data in ended] == [True, True]
    assert (place / "project/a.txt").read_text() == "one\n"
    code, out, err = run_unprivileged("best-of", "2", "-q", "--", "sh", "-c", work)
    assert code == 0, err
    assert (place / "project/a.txt").read_text() == "2\n"


KILLED_WITH_BRANCHES = """
import os, signal
from pathlib import Path
from forkwise import Workspace
from forkwise.files.store import trash
from forkwise.linux import namespace
namespace.enter_namespace()
workspace = Workspace(".")
for number in range(20):  # enough to use branches of the pool, and to refill it
    branch = workspace.branch(f"b{number}", on_success=None, on_error=None)
    if number % 2:
        Path(branch.path, "a.txt").write_text("changed")
    if number % 5 == 0:
        branch.abort()
trash.wait_until_empty()  # the pool is refilled by the same thread
os.kill(os.getpid(), signal.SIGKILL)
"""

KILLED_IN_A_FORK = """
import os, signal, subprocess, sys, time
attempts = [sys.executable, "-c", "from forkwise.cli import main; main()", "best-of", "3", "--", "sh", "-c"]
process = subprocess.Popen([*attempts, "echo > started; sleep 60"], start_new_session=True)
time.sleep(float(sys.argv[1]))
os.killpg(process.pid, signal.SIGKILL)
process.wait()
"""


KILLED_RIGHT_AFTER_A_MOUNT = """
import os, signal
from forkwise import Workspace
from forkwise.files.views import overlay
from forkwise.linux import namespace
namespace.enter_namespace()
overlay.make_removable = lambda workdir_fd: os.kill(os.getpid(), signal.SIGKILL)
Workspace(".").branch("b", on_success=None, on_error=None)
"""


def _remove_state(place: Path) -> None:
    assert list((place / "state").iterdir())
    deadline = time.monotonic() + 10
    while True:  # sandboxes outlive a killed process for a moment, and may still write
        done = subprocess.run(as_unprivileged(["rm", "-rf", str(place / "state")]), capture_output=True, text=True)
        if done.returncode == 0 or time.monotonic() > deadline:
            break
        if "Permission denied" in done.stderr:  # killed between a mount and the change of the mode
            assert python(place, "from forkwise.cli import main; main()", "gc", "--force").returncode == 0
        elif "Directory not empty" not in done.stderr:
            break
    assert (done.returncode, done.stderr) == (0, "")


def test_the_owner_can_remove_the_state(run_unprivileged: Callable[..., tuple[int, str, str]], place: Path) -> None:
    """The kernel creates an overlay's work directory with mode 000; ``rm -rf`` must work anyway."""
    need(python(place, NAMESPACES).returncode == 0, "no user namespaces for unprivileged users")
    assert run_unprivileged("branch", "create", "left")[0] == 0
    assert run_unprivileged("branch", "shell", "left", "--", "sh", "-c", "rm a.txt; mkdir d; echo > d/f")[0] == 0
    assert run_unprivileged("best-of", "2", "-q", "--", "sh", "-c", "echo $FORKWISE_ATTEMPT > a.txt")[0] == 0
    _remove_state(place)


def test_the_owner_can_remove_the_state_of_a_killed_process(place: Path) -> None:
    need(python(place, NAMESPACES).returncode == 0, "no user namespaces for unprivileged users")
    assert python(place, KILLED_WITH_BRANCHES).returncode == -signal.SIGKILL
    _remove_state(place)


def test_gc_removes_what_a_process_left_that_was_killed_right_after_a_mount(
    run_unprivileged: Callable[..., tuple[int, str, str]], place: Path
) -> None:
    need(python(place, NAMESPACES).returncode == 0, "no user namespaces for unprivileged users")
    assert python(place, KILLED_RIGHT_AFTER_A_MOUNT).returncode == -signal.SIGKILL
    closed = [path for path in (place / "state").rglob("work") if path.stat().st_mode & 0o777 == 0]
    assert closed
    code, out, err = run_unprivileged("gc", "--force")
    assert code == 0, (out, err)
    assert not any(path.exists() for path in closed)
    _remove_state(place)


@pytest.mark.parametrize("seconds", [0.5, 0.8, 1.5, 3])
def test_the_owner_can_remove_the_state_of_a_killed_fork(place: Path, seconds: float) -> None:
    need(python(place, NAMESPACES).returncode == 0, "no user namespaces for unprivileged users")
    (place / "state").mkdir()
    os.chown(place / "state", UNPRIVILEGED, UNPRIVILEGED)
    done = python(place, KILLED_IN_A_FORK, str(seconds))
    assert done.returncode == 0, done.stderr
    if list((place / "state").iterdir()):
        _remove_state(place)


@pytest.mark.parametrize("view", ["fuse", "copy"])
def test_worktrees(place: Path, view: str, tmp_path: Path) -> None:
    need(view == "copy" or shutil.which("fuse-overlayfs") is not None, "fuse-overlayfs is not installed")
    with with_fuse_namespace(tmp_path) as (enter, pid):
        _use_worktrees(place, view, enter)
        assert str(place) not in Path(f"/proc/{pid}/mounts").read_text(errors="surrogateescape")


def _use_worktrees(place: Path, view: str, enter: list[str]) -> None:
    project = place / "project"

    def start(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [*enter, *as_unprivileged(["env", "-C", str(project), *words])]
        return subprocess.run(command, env=variables(place), input=stdin, capture_output=True, text=True)

    def run(*words: str, stdin: str = "", code: int = 0) -> str:
        done = start(interpreter(), "-c", "from forkwise.cli import main; main()", *words, stdin=stdin)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def git(*words: str, at: Path = project) -> str:
        done = start("git", "-C", str(at), "-c", "user.name=U", "-c", "user.email=u@example.org", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    git("init", "-q", "-b", "main")
    git("add", "a.txt")
    git("commit", "-qm", "first")
    made = json.loads(run("worktree", "add", "fix", "--view", view, "--json"))["worktree"]
    path = Path(made["path"])
    try:
        assert git("rev-parse", "--abbrev-ref", "HEAD", at=path) == "fix\n"
        assert git("status", "--porcelain", at=path) == ""
        assert start("sh", "-c", f"echo due > {path}/a.txt").returncode == 0
        assert "uncommitted changes of 1 file" in run("worktree", "remove", "fix", code=1)
        git("commit", "-qam", "second", at=path)
        assert str(path) in git("worktree", "list")
        event = {"hook_event_name": "WorktreeRemove", "worktree_path": str(path), "cwd": str(project)}
        run("worktree", "hook", stdin=json.dumps(event))
        assert not path.exists()
        assert git("log", "--format=%s", "fix") == "second\nfirst\n"
        event = {"hook_event_name": "WorktreeCreate", "name": "again", "cwd": str(project)}
        path = Path(run("worktree", "hook", stdin=json.dumps(event)).strip())
        assert git("hash-object", "a.txt", at=path) == git("rev-parse", "HEAD:a.txt"), "only that user sees the files"
        assert "again" in run("worktree", "list")
    finally:
        run("worktree", "remove", path.name, "--force")
    assert git("worktree", "list").count("\n") == 1


@pytest.mark.parametrize("level", ["standard", "strict"])
def test_credentials_are_hidden(run_unprivileged: Callable[..., tuple[int, str, str]], place: Path, level: str) -> None:
    tables = [*CREDENTIAL_STORES.values(), *AGENT_CREDENTIALS.values()]
    paths = sorted({place / path[2:] for paths in tables for path in paths if path.startswith("~/")})
    assert len(paths) > 50
    secrets = [path if path.suffix or path.name.startswith(".") else path / "key" for path in paths]
    for path in [*secrets, place / "visible"]:
        if not any(parent.is_file() for parent in path.parents) and not path.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("SECRET")
    subprocess.run(["chown", "-R", f"{UNPRIVILEGED}:{UNPRIVILEGED}", str(place)], check=True)
    search = f"grep -rls SECRET {place} > found.txt; true"
    code, out, err = run_unprivileged("run", "--confinement", level, "--quiet", "--", "sh", "-c", search)
    assert code == 0, (out, err)
    found = (place / "project/found.txt").read_text().split()
    assert found == [str(place / "visible")]


@pytest.mark.integration
def test_edits_by_other_programs_are_found_by_comparison(
    run_unprivileged: Callable[..., tuple[int, str, str]], place: Path
) -> None:
    """The kernel reports edits to root only: for others, the workspace is compared when an attempt is evaluated."""
    need(python(place, NAMESPACES).returncode == 0, "no user namespaces for unprivileged users")
    pipes = place / "pipes"
    make = f"mkdir {pipes}; mkfifo {pipes}/ready {pipes}/go; mkdir -p project/deep; echo x > project/deep/kept"
    subprocess.run(as_unprivileged(["sh", "-c", make]), cwd=place, check=True)
    words = ("run", "--json", "--writable", str(pipes), "--test", "true", "--", "sh", "-c")
    script = f"echo two > b.txt; echo three > deep/new; echo > {pipes}/ready; read line < {pipes}/go"
    command = as_unprivileged([interpreter(), "-c", "from forkwise.cli import main; main()", *words, script])
    ready, go = (os.open(pipes / name, os.O_RDWR | os.O_NONBLOCK) for name in ("ready", "go"))
    try:
        with subprocess.Popen(
            command, cwd=place / "project", env=variables(place), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert select.select([ready], [], [], 300)[0], "the attempt has not started"
            edit = "echo x > edited; echo y >> a.txt; echo z > deep/other"
            subprocess.run(as_unprivileged(["sh", "-c", edit]), cwd=place / "project", check=True)
            os.write(go, b"\n")
            out, err = process.communicate(timeout=300)
        assert process.returncode == 0, (out, err)
    finally:
        os.close(ready)
        os.close(go)
    outcome = next(json.loads(line)["outcome"] for line in out.splitlines() if b'"outcome"' in line)
    shown = run_unprivileged("show", outcome["fork"], "--json")[1]
    assert sorted(json.loads(shown)["fork"]["edits"]["paths"]) == ["a.txt", "deep/", "edited"]
    assert (place / "project/a.txt").read_text() == "one\ny\n"
    assert (place / "project/b.txt").read_text() == "two\n"
    code, out_again, err_again = run_unprivileged("run", "--json", "--", "sh", "-c", "echo four > c.txt")
    assert code == 0, err_again
    second = next(json.loads(line)["outcome"]["fork"] for line in out_again.splitlines() if '"outcome"' in line)
    assert json.loads(run_unprivileged("show", second, "--json")[1])["fork"]["edits"] is None
