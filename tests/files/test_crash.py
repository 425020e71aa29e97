"""Commits and undos killed at every step, at random moments and in the middle of their own recovery.

Whoever opens the workspace next must find the exact before or the exact after: types, content, modes, owners, times,
symlinks and attributes of everything. After a before the branch is as it was, too, and can still be committed.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.errors import BranchNotFoundError
from forkwise.files import trash
from tests.files.images import mounted_tmpfs
from tests.files.sample import Picture, alter, alter_again, grow, picture
from tests.files.steps import Steps, in_child

RANDOM_KILLS = 500
NOBODY = 65534


@pytest.fixture(scope="module", autouse=True)
def nothing_stays() -> Iterator[None]:
    before = Path("/proc/self/mountinfo").read_text()
    yield
    assert Path("/proc/self/mountinfo").read_text() == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory, nothing_stays: None) -> Iterator[Path]:
    """A filesystem on which syncing costs nothing."""
    where = tmp_path_factory.mktemp("memory")
    with mounted_tmpfs(where):
        yield where
        trash.wait()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, nothing_stays: None) -> Iterator[Path]:
    """Another one."""
    where = tmp_path_factory.mktemp("elsewhere")
    with mounted_tmpfs(where):
        yield where
        trash.wait()


class Scene:
    """A workspace with a branch of more than fifty changes: what is done to it can be killed and judged."""

    view: str | None = None

    def __init__(self, base: Path, state: Path | None = None, view: str = "overlay") -> None:
        self.base = base
        self.state = state or base / "state"
        self.root = base / "workspace"
        self.view = view
        os.environ["XDG_STATE_HOME"] = str(self.state)
        base.mkdir(exist_ok=True)
        self.prepare()
        self.before = self.look()
        self.delta = self.changes()

    def prepare(self) -> None:
        grow(self.root)
        branch = Workspace(self.root, view=self.view).branch("b")
        alter(branch.path)
        self.after = picture(branch.path)

    def act(self) -> None:
        """What is killed."""
        Workspace(self.root).open("b").commit()

    def look(self) -> Picture:
        """What must be before or after."""
        return picture(Workspace(self.root).path)

    def changes(self) -> object:
        branch = Workspace(self.root).open("b")
        return branch.delta(), differences(self.after, picture(branch.path))

    def judge(self) -> str:
        """``before`` or ``after``; anything else fails."""
        now = self.look()
        if now == self.after:
            self.is_after()
            return "after"
        assert now == self.before, differences(self.before, now) or differences(self.after, now)
        self.is_before()
        return "before"

    def is_before(self) -> None:
        assert self.changes() == self.delta

    def is_after(self) -> None:
        workspace = Workspace(self.root)
        with pytest.raises(BranchNotFoundError):
            workspace.open("b")
        assert [c.kind for c in workspace.history()] == ["commit"]

    def finish(self) -> None:
        """After a before: done once more, unharmed, it gives the after."""
        self.act()
        now = self.look()
        assert now == self.after, differences(self.after, now)
        self.is_after()

    def drop(self) -> None:
        for branch in reversed(Workspace(self.root).branches()):
            branch.abort()
        trash.wait()
        for path in (self.root, self.state):
            for child in os.listdir(path):
                shutil.rmtree(path / child) if (path / child).is_dir() and not (path / child).is_symlink() else (
                    path / child
                ).unlink()


class Undo(Scene):
    """The commit is done, and being taken back."""

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


class Nested(Scene):
    """A branch of a branch is committed into it; its parent is looked at through its own view."""

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

    def changes(self) -> object:
        branch = Workspace(self.root).open("p/b")
        return branch.delta(), differences(self.after, picture(branch.path))

    def is_after(self) -> None:
        with pytest.raises(BranchNotFoundError):
            Workspace(self.root).open("p/b")


def differences(wanted: Picture, found: Picture) -> dict[bytes, object]:
    return {p: (wanted.get(p), found.get(p)) for p in sorted({*wanted, *found}) if wanted.get(p) != found.get(p)}


def kill_everywhere(make: Callable[[], Scene], *, finish_every: int = 1) -> Counter[str]:
    """Kill at every step; a scene that is as before is used again, unless it is finished to see that it can be."""
    counts: Counter[str] = Counter()
    scene = make()
    step = 1
    while True:
        outcome = in_child(scene.act, Steps(step))
        if not outcome.killed:
            assert outcome.raised is None
            break
        state = scene.judge()
        counts[state] += 1
        if state == "before" and step % finish_every == 0:
            scene.finish()
            state = "after"
        if state == "after":
            scene.drop()
            scene = make()
        step += 1
    assert scene.judge() == "after"
    scene.drop()
    print(f"killed at {step - 1} steps: {dict(counts)}")
    assert counts["before"] > 50
    assert counts["after"] > 0
    return counts


@pytest.mark.parametrize("view", ["overlay", "copy"])
def test_commit_killed_at_every_step(memory: Path, view: str) -> None:
    kill_everywhere(lambda: Scene(memory, view=view), finish_every=1 if view == "overlay" else 7)


@pytest.mark.parametrize("view", ["overlay", "copy"])
def test_undo_killed_at_every_step(memory: Path, view: str) -> None:
    kill_everywhere(lambda: Undo(memory, view=view), finish_every=3)


@pytest.mark.parametrize("view", ["overlay", "copy"])
def test_commit_into_a_branch_killed_at_every_step(memory: Path, view: str) -> None:
    kill_everywhere(lambda: Nested(memory, view=view), finish_every=3 if view == "overlay" else 11)
