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
from forkwise.files.views.mountpoint import mounts
from tests.files.images import mounted_tmpfs
from tests.files.sample import Picture, alter, alter_again, grow, picture
from tests.files.steps import Steps, in_child

RANDOM_KILLS = 500
LAST = 10  # steps around the moment at which it has happened: each of these is killed in a scene of its own
NOBODY = 65534


@pytest.fixture(scope="module", autouse=True)
def nothing_stays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    beneath = str(tmp_path_factory.getbasetemp())
    before = [m for m in mounts() if m.point.startswith(beneath)]
    yield
    assert [m for m in mounts() if m.point.startswith(beneath)] == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory, nothing_stays: None) -> Iterator[Path]:
    """A filesystem on which syncing costs nothing."""
    where = tmp_path_factory.mktemp("memory")
    with mounted_tmpfs(where):
        yield where
        empty(where)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, nothing_stays: None) -> Iterator[Path]:
    """Another one."""
    where = tmp_path_factory.mktemp("elsewhere")
    with mounted_tmpfs(where):
        yield where
        empty(where)


def empty(where: Path) -> None:
    """Leave nothing mounted beneath a filesystem that is to go, also where a test failed half way."""
    trash.wait()
    for mount in reversed(mounts()):
        if mount.point.startswith(f"{where}/"):
            syscalls.umount2(mount.point, syscalls.MNT_DETACH)


class Scene:
    """A workspace with a branch of more than fifty changes: what is done to it can be killed and judged."""

    def __init__(self, base: Path, view: str = "overlay", root: Path | None = None) -> None:
        self.state = base / "state"
        self.root = root or base / "workspace"
        self.view = view
        os.environ["XDG_STATE_HOME"] = str(self.state)
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
            for entry in os.scandir(path):
                shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)


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


def kill_everywhere(make: Callable[[], Scene], *, finish_every: int = 1, flagless: bool = False) -> None:
    """Kill at every step. A scene that is as before is used again, unless it is finished to see that it can be."""
    counts: Counter[str] = Counter()
    steps = len(count_steps(make, flagless=flagless))
    scene = make()
    for step in range(1, steps + 1):
        assert in_child(scene.act, Steps(step, flagless=flagless)).killed, f"step {step} of {steps}"
        state = scene.judge()
        counts[state] += 1
        if state == "before" and (step % finish_every == 0 or step > steps - LAST):
            scene.finish()
            state = "after"
        if state == "after":
            scene.drop()
            scene = make()
    scene.drop()
    print(f"killed at {steps} steps: {dict(counts)}")
    assert counts["before"] > 50
    assert counts["after"] > 0


def count_steps(make: Callable[[], Scene], *, flagless: bool = False) -> list[str]:
    """All there are when nobody is killed."""
    scene = make()
    outcome = in_child(scene.act, Steps(flagless=flagless))
    assert outcome.raised is None
    assert scene.judge() == "after"
    scene.drop()
    return outcome.calls


@pytest.mark.parametrize("view", ["overlay", "copy"])
def test_commit_killed_at_every_step(memory: Path, view: str) -> None:
    kill_everywhere(lambda: Scene(memory, view), finish_every=1 if view == "overlay" else 7)


@pytest.mark.parametrize("view", ["overlay", "copy"])
def test_undo_killed_at_every_step(memory: Path, view: str) -> None:
    kill_everywhere(lambda: Undo(memory, view), finish_every=3)


@pytest.mark.parametrize("view", ["overlay", "copy"])
def test_commit_into_a_branch_killed_at_every_step(memory: Path, view: str) -> None:
    kill_everywhere(lambda: Nested(memory, view), finish_every=3 if view == "overlay" else 11)


@pytest.mark.parametrize("kind", [Scene, Undo])
def test_state_on_another_filesystem_killed_at_every_step(memory: Path, elsewhere: Path, kind: type[Scene]) -> None:
    """What is staged inside the workspace is gone after every reopening, and does not show in the root's time."""
    kill_everywhere(lambda: kind(memory, root=elsewhere), finish_every=11)


@pytest.mark.parametrize("kind", [Scene, Undo])
def test_without_exchanging_renames_killed_at_every_step(memory: Path, kind: type[Scene]) -> None:
    """Some filesystems know plain renames only, and an exchange then takes three."""
    kill_everywhere(lambda: kind(memory), finish_every=5, flagless=True)


@pytest.mark.parametrize(
    ("kind", "view", "flagless"),
    [(Scene, "overlay", False), (Scene, "overlay", True), (Scene, "copy", False), (Undo, "overlay", True)],
)
def test_recovery_killed_at_every_step(memory: Path, kind: type[Scene], view: str, flagless: bool) -> None:
    kill_recovery_everywhere(lambda: kind(memory, view), flagless=flagless)


def test_recovery_of_a_branch_killed_at_every_step(memory: Path) -> None:
    kill_recovery_everywhere(lambda: Nested(memory))


@pytest.mark.parametrize("kind", [Scene, Undo])
def test_recovery_with_state_elsewhere_killed_at_every_step(
    memory: Path, elsewhere: Path, kind: type[Scene]
) -> None:
    kill_recovery_everywhere(lambda: kind(memory, root=elsewhere))


def kill_recovery_everywhere(make: Callable[[], Scene], *, flagless: bool = False) -> None:
    """Kill just before it has happened, then kill whoever takes that back, at every step of that."""
    last = count_steps(make, flagless=flagless).rindex("rename") + 1
    scene = make()
    killed = 0
    while True:
        assert in_child(scene.act, Steps(last, flagless=flagless)).killed
        if not in_child(scene.look, Steps(killed + 1, flagless=flagless)).killed:
            break
        killed += 1
        assert scene.judge() == "before"
        if killed % 5 == 0:
            scene.finish()
            scene.drop()
            scene = make()
    assert scene.judge() == "before"
    scene.finish()
    scene.drop()
    print(f"recovery killed at {killed} steps")
    assert killed > 50


def test_commit_killed_at_random_moments(memory: Path) -> None:
    """From outside and by the clock, with no regard to system calls."""
    chance = random.Random(2)
    counts: Counter[str] = Counter()
    for view in ("overlay", "copy"):
        duration = measure(lambda view=view: Scene(memory, view))
        scene = Scene(memory, view)
        for number in range(RANDOM_KILLS // 2):
            assert in_child(scene.act, kill_after=chance.uniform(0, 1.2 * duration)).killed
            state = scene.judge()
            counts[state] += 1
            if state == "before" and number % 5 == 0:
                scene.finish()
                state = "after"
            if state == "after":
                scene.drop()
                scene = Scene(memory, view)
        scene.drop()
    print(f"killed at {counts.total()} random moments: {dict(counts)}")
    assert counts.total() == RANDOM_KILLS
    assert counts["before"] > 0
    assert counts["after"] > 0


def measure(make: Callable[[], Scene]) -> float:
    """How long it takes, in seconds, typically."""
    taken = []
    for _ in range(5):
        scene = make()
        begun = time.perf_counter()
        assert in_child(scene.act).raised is None
        taken.append(time.perf_counter() - begun)
        scene.drop()
    return sorted(taken)[2]
