"""The suite of views once more, as a user with no privileges at all.

It runs in a process of its own, in a mount namespace of its own where /dev/fuse has the permissions it has on a normal
machine. The interpreter, the sources and the test tools are copied to where that user can read them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from forkwise.linux.syscalls import filesystem_magic
from tests.files.images import loop_image
from tests.need import need
from tests.unprivileged import UNPRIVILEGED, as_unprivileged, interpreter, readable_copy, with_fuse

TMPFS = 0x01021994
TOOLS = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "rapidfuzz")

# The run enters a namespace first, in which overlays can be mounted; the other views need none.
RUN = """
import sys
sys.path[:0] = {path!r}
if "overlay" in {views!r}:
    from forkwise.linux import namespace
    namespace.enter_namespace()
import pytest
sys.exit(pytest.main([
    "tests/files/test_views.py", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "-c", "/dev/null",
    "--import-mode=importlib", "-W", "error", "--basetemp", {basetemp!r},
]))
"""


@pytest.fixture(scope="module")
def readable() -> Iterator[Path]:
    """Create a world-readable directory with everything that a run needs."""
    with readable_copy(TOOLS) as directory:
        yield directory


@pytest.mark.parametrize("views", ["overlay", "fuse,copy", "btrfs", "reflink"])
def test_views_without_privileges(views: str, readable: Path, tmp_path: Path) -> None:
    home = readable / "home" / views
    home.mkdir(parents=True)
    os.chown(home, UNPRIVILEGED, UNPRIVILEGED)
    with ExitStack() as images:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "FORKWISE_TEST_VIEWS": views,
            "FORKWISE_MUST_WORK": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if views in ("btrfs", "reflink"):
            fstype, size = {"btrfs": ("btrfs", 256), "reflink": ("xfs", 400)}[views]
            directory = readable / f"image-{views}"
            directory.mkdir()
            mounted = images.enter_context(loop_image(fstype, size, directory))
            os.chown(mounted, UNPRIVILEGED, UNPRIVILEGED)
            environment[f"FORKWISE_TEST_DIRECTORY_{views.upper()}"] = str(mounted)
        program = RUN.format(
            path=[str(readable / d) for d in ("src", "tools", "")], views=views, basetemp=str(home / "tmp")
        )
        command = with_fuse(as_unprivileged([interpreter(), "-c", program]), tmp_path)
        done = subprocess.run(command, cwd=readable, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"^(\d+) passed in", done.stdout, re.MULTILINE)
    assert passed, done.stdout
    assert int(passed[1]) == 44 * len(views.split(",")), done.stdout


def is_tmpfs(path: str) -> bool:
    return os.path.isdir(path) and filesystem_magic(path) == TMPFS


SHARED = """
import os, sys
sys.path[:0] = {path!r}
from pathlib import Path
from forkwise import CommitError, Workspace
from forkwise.linux import namespace
if {is_inside!r}:
    namespace.enter_namespace()  # where root appears as user 65534, which is this one
    assert os.stat("/").st_uid == os.geteuid()
workspace = Workspace({workspace!r}, view="copy")  # fuse-overlayfs cannot delete a file of another user

def commit(*written):
    branch = workspace.branch("one", on_error="abort")
    with branch:
        assert branch.delta().changes == ()
        for name in written:
            (branch.path / name).unlink(missing_ok=True)
            (branch.path / name).write_text("theirs")
        done = branch.commit()
    return sorted([*done.added, *done.changed])

def content():
    return {{str(p.relative_to(workspace.path)): p.read_text() for p in workspace.path.rglob("*") if p.is_file()}}

before = content()
assert commit("old", "open/new") == ["old", "open/new"]
try:
    commit("more", "open/more", "closed/more")
except CommitError as error:
    assert "Permission denied" in str(error), error
else:
    raise AssertionError("a directory that only its owner may write to was written to")
assert content() == before | {{"old": "theirs", "open/new": "theirs"}}
workspace.undo()
assert content() == before
assert commit("more") == ["more"]
"""


@pytest.mark.parametrize("state_root", ["beside", "elsewhere"])
@pytest.mark.parametrize("is_inside", [False, True], ids=["plain", "namespace"])
def test_directories_of_another_user_that_all_may_write_to(readable: Path, is_inside: bool, state_root: str) -> None:
    """Their owner and their times do not change, even if a commit is rolled back.

    The state directory may be on another filesystem: then a commit creates a directory in the workspace.
    """
    need(is_tmpfs("/dev/shm"), "/dev/shm is not another filesystem")
    workspace = readable / f"shared-{is_inside}-{state_root}"
    for path in (workspace, workspace / "open", workspace / "closed"):
        path.mkdir()
        path.chmod(0o755 if path.name == "closed" else 0o777)
    (workspace / "old").write_text("ours")
    (workspace / "old").chmod(0o644)
    path = [str(readable / "src")]
    program = SHARED.format(path=path, workspace=str(workspace), is_inside=is_inside)
    with TemporaryDirectory(dir="/dev/shm" if state_root == "elsewhere" else readable) as state:
        os.chown(state, UNPRIVILEGED, UNPRIVILEGED)
        done = subprocess.run(
            as_unprivileged([interpreter(), "-c", program]),
            cwd="/",
            env={"PATH": os.environ["PATH"], "FORKWISE_STATE": state, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        need("could be entered" not in done.stderr, "user namespaces are not available")
    assert done.returncode == 0, done.stderr
    assert {path.stat().st_uid for path in (workspace, workspace / "open", workspace / "closed")} == {0}


OVERLAY_IN_ONE_LINE = """
import os, sys, warnings
sys.path[:0] = {path!r}
import forkwise
if {is_inside!r}:
    forkwise.enter_namespace()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    workspace = forkwise.Workspace({workspace!r}, durable=False)
    with workspace.branch("one") as branch:
        (branch.path / "0").write_text("changed")
        copied = len(os.listdir(branch.target))
print(branch.view, copied, *(str(w.message) for w in caught))
"""


@pytest.mark.parametrize("is_inside", [False, True], ids=["plain", "namespace"])
def test_one_line_gives_a_program_kernel_overlays(readable: Path, is_inside: bool) -> None:
    """Without it, and without FUSE, each branch copies the workspace, and a warning names the cost and the line."""
    workspace = readable / f"large-{is_inside}"
    workspace.mkdir()
    for number in range(1000):
        (workspace / str(number)).touch()
        os.chown(workspace / str(number), UNPRIVILEGED, UNPRIVILEGED)
    os.chown(workspace, UNPRIVILEGED, UNPRIVILEGED)
    home = readable / f"home-{is_inside}"
    home.mkdir()
    os.chown(home, UNPRIVILEGED, UNPRIVILEGED)
    program = OVERLAY_IN_ONE_LINE.format(
        path=[str(readable / d) for d in ("src", "tools")], workspace=str(workspace), is_inside=is_inside
    )
    hide_fuse = ["unshare", "--mount", "sh", "-c", 'mount --bind /dev/null /dev/fuse; exec "$@"', "sh"]
    done = subprocess.run(
        [*hide_fuse, *as_unprivileged([interpreter(), "-c", program])],
        cwd=readable,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    view, copied, warning = done.stdout.split(" ", 2) if not is_inside else (*done.stdout.split(), "")
    assert (view, int(copied)) == (("overlay", 1) if is_inside else ("copy", 1000))
    assert is_inside or ("more than 1,000" in warning and "forkwise.enter_namespace()" in warning)
    assert (workspace / "0").read_text() == "changed"
