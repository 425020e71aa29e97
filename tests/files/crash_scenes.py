"""Scenes for crash tests: a workspace with a branch of more than fifty changes, a commit or undo that is killed, and
the check that the result is either the exact state before or the exact state after.

The processes to be killed load this module: it imports pytest only in functions that they do not call, and modules that
forkwise imports on first use, which every killed child would import again.
"""

from __future__ import annotations

import copy
import encodings.ascii  # noqa: F401
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import forkwise.files.commit
import forkwise.files.versions
import forkwise.files.views.overlay
import forkwise.files.views.whole
import forkwise.linux.overlay_workdir  # noqa: F401
from forkwise import Workspace
from forkwise.errors import BranchNotFoundError
from forkwise.files.store import trash
from forkwise.linux.mountinfo import mounts
from forkwise.linux.syscalls import MNT_DETACH, mount, umount2
from tests.files.fork_helper import run_in_helper
from tests.files.sample import Picture, alter, alter_again, grow, picture
from tests.files.steps import Outcome, Steps, in_child

__all__ = ["Nested", "OnOverlay", "Scene", "Stage", "Undo", "UndoOnOverlay", "differences", "empty", "run_traced"]


def empty(where: Path) -> None:
    """Unmount everything below a filesystem that will be removed, even after a failed test."""
    trash.wait_until_empty()
    for found in reversed(mounts()):
        if found.point.startswith(f"{where}/"):
            umount2(found.point, MNT_DETACH)


class Scene:
    """A workspace with a branch of more than fifty changes, and an operation on it that can be killed and judged."""

    name = "b"

    def __init__(self, base: Path, view: str = "overlay", root: Path | None = None) -> None:
        self.state = base / "state"
        self.root = root or base / "workspace"
        self.view = view
        self.judged = 0
        os.environ["XDG_STATE_HOME"] = str(self.state)
        self.prepare()
        self.before = self.look()
        self.delta = self.changes()

    def prepare(self) -> None:
        if not self.root.exists() or not os.listdir(self.root):
            grow(self.root)
        branch = Workspace(self.root, view=self.view).branch("b")
        alter(branch.path)
        self.after = picture(branch.path)

    def act(self) -> None:
        """Run the operation that is killed."""
        Workspace(self.root).open("b").commit()

    def look(self) -> Picture:
        """Return the files that must be in the state before or after."""
        return picture(Workspace(self.root).path)

    def changes(self) -> object:
        """Return the delta or the history, as forkwise reports it."""
        changes = Workspace(self.root).open(self.name).delta().changes
        return [(c.path, c.kind, c.type, c.mode, c.type == "directory" or c.size) for c in changes]

    def judge(self) -> str:
        """Return ``before`` or ``after``; fail for any other state."""
        now = self.look()
        if now == self.after:
            self.is_after()
            return "after"
        assert now == self.before, differences(self.before, now) or differences(self.after, now)
        self.is_before()
        return "before"

    def is_before(self) -> None:
        assert self.changes() == self.delta
        self.judged += 1
        if self.name and self.judged % 3 == 0:  # this check is the slowest, and the branch is committed later anyway
            assert differences(self.after, picture(Workspace(self.root).open(self.name).path)) == {}

    def is_after(self) -> None:
        workspace = Workspace(self.root)
        assert_no_branch(workspace, "b")
        assert [c.kind for c in workspace.history()] == ["commit"]

    def finish(self) -> None:
        """Run the operation again, without a kill, and check that it leads to the state after."""
        self.act()
        now = self.look()
        assert now == self.after, differences(self.after, now)
        self.is_after()

    def abort(self) -> None:
        """Abort all branches; only the user whose state it is can do that."""
        for branch in reversed(Workspace(self.root).branches()):
            branch.abort()
        trash.wait_until_empty()

    def drop(self) -> None:
        """Abort all branches and remove all files."""
        self.abort()
        self.remove()

    def remove(self) -> None:
        """Remove all files."""
        for path in (self.root, self.state):
            for entry in os.scandir(path):
                shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)


class Undo(Scene):
    """A commit that is undone."""

    name = ""

    def prepare(self) -> None:
        super().prepare()
        self.after = picture(self.root)
        Workspace(self.root).open("b").commit()

    def act(self) -> None:
        Workspace(self.root).undo(1)

    def changes(self) -> object:
        return [c.id for c in Workspace(self.root).history()]

    def is_after(self) -> None:
        assert [(c.kind, c.undoes) for c in Workspace(self.root).history()] == [("undo", 1), ("commit", None)]


class OnOverlay(Scene):
    """A workspace in the lower layer of another overlay mount."""

    def __init__(self, base: Path) -> None:
        self.overlay_base = base / "overlay-base"
        for name in ("lower", "upper", "work", "merged"):
            (self.overlay_base / name).mkdir(parents=True)
        grow(self.overlay_base / "lower/workspace")
        # On an overlay, a linked file gets another inode number when it is renamed.
        (self.overlay_base / "lower/workspace/pair-2").unlink()
        layers = ",".join(f"{name}dir={self.overlay_base}/{name}" for name in ("lower", "upper", "work"))
        mount("overlay", f"{self.overlay_base}/merged", "overlay", 0, layers)
        super().__init__(self.overlay_base / "merged", "copy")

    def remove(self) -> None:
        super().remove()
        umount2(f"{self.overlay_base}/merged")
        shutil.rmtree(self.overlay_base)


class UndoOnOverlay(OnOverlay, Undo):
    """Undo of a commit, on an overlay."""


class Nested(Scene):
    """A nested branch that is committed into its parent branch, whose view is checked."""

    name = "p/b"

    def prepare(self) -> None:
        grow(self.root)
        parent = Workspace(self.root, view=self.view).branch("p")
        alter(parent.path)
        branch = parent.branch("b")
        alter_again(branch.path)
        self.after = picture(branch.path)

    def act(self) -> None:
        Workspace(self.root).open("p/b").commit()

    def look(self) -> Picture:
        return picture(Workspace(self.root).open("p").path)

    def is_after(self) -> None:
        assert_no_branch(Workspace(self.root), "p/b")


def assert_no_branch(workspace: Workspace, name: str) -> None:
    import pytest

    with pytest.raises(BranchNotFoundError):
        workspace.open(name)


def differences(wanted: Picture, found: Picture) -> dict[bytes, object]:
    return {p: (wanted.get(p), found.get(p)) for p in sorted({*wanted, *found}) if wanted.get(p) != found.get(p)}


class Stage:
    """A runner of scenes as some user, which reuses a scene as long as it is in the state before."""

    def __init__(self, make: Callable[[], Scene], user: int = 0) -> None:
        self.make = make
        self.user = user
        self.scene: Scene | None = None

    def play(self, job: Callable[[], object]) -> object:
        """Run a job as the user."""
        if not self.user:
            return job()
        outcome = in_child(job, user=self.user)
        if outcome.raised:
            raise outcome.raised
        return outcome.value

    def open(self) -> Scene:
        if self.scene is None:
            scene = self.play(self.make)
            assert isinstance(scene, Scene)
            self.scene = scene
            os.environ["XDG_STATE_HOME"] = str(scene.state)  # another process may have created it
        return self.scene

    def act(self, steps: Steps, what: str = "act", kill_after: float = -1) -> Outcome:
        scene = self.open()
        if self.user:
            return in_child(getattr(scene, what), steps, user=self.user, kill_after=kill_after)
        light = copy.copy(scene)
        light.before = light.after = {}
        light.delta = None
        return run_in_helper(getattr(light, what), steps, kill_after=kill_after)

    def judge(self, *, finish: bool) -> str:
        """Judge the scene, and finish it if it is in the state before."""
        assert self.scene is not None
        state = str(self.play(self.scene.judge))
        if state == "before" and finish:
            self.play(self.scene.finish)
        if state == "after" or finish:
            self.close()
        return state

    def close(self) -> None:
        if self.scene is not None:
            self.play(self.scene.abort)
            self.scene.remove()
            self.scene = None

    def count_steps(self, *, flagless: bool) -> list[str]:
        """List all steps of a run without a kill."""
        outcome = self.act(Steps(flagless=flagless))
        assert outcome.raised is None
        assert self.judge(finish=False) == "after"
        return outcome.calls


def run_traced(scene: Scene, tracer: list[str]) -> tuple[list[str], str] | None:
    """Run the operation in a new process under strace. Return its steps and its error; None if it was killed.

    strace is attached when the modules are loaded: it stops a process at every system call.
    """
    from tests.need import need

    need(shutil.which(tracer[0]) is not None, f"{tracer[0]} is not installed")
    program = f"""
import os
from pathlib import Path
from tests.files.crash_scenes import {type(scene).__name__}
from tests.files.steps import Steps
scene = object.__new__({type(scene).__name__})
scene.root = Path({str(scene.root)!r})
raised = ""
def mark():
    try: os.mkdir("/proc/forkwise")
    except OSError: pass
print("ready", flush=True)
os.read(0, 1)
mark()
with Steps().watched() as steps:
    try: scene.act()
    except Exception as error: raised = type(error).__name__
mark()
print(*steps.seen, sep=" ", end=":" + raised, flush=True)
os._exit(0)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-B", "-c", program], text=True, env=environment, **pipes) as process:
        assert process.stdout is not None
        is_ready = process.stdout.readline() == "ready\n"
        with subprocess.Popen([*tracer, "-p", str(process.pid)], text=True, stderr=subprocess.PIPE) as strace:
            assert strace.stderr is not None
            attached = strace.stderr.readline()
            output, errors = process.communicate("x")
            strace.communicate()
    assert is_ready, errors
    need("attached" in attached, f"strace may not trace here: {attached}")
    if process.returncode:
        assert "Traceback" not in errors, errors
        return None
    calls, _, raised = output.partition(":")
    return calls.split(), raised
