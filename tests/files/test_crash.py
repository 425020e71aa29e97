"""Commits and undos killed at every step, at random moments and in the middle of their own recovery.

``make test`` takes some of the steps, more of the plainest cases than of the others; ``make crash`` takes (nearly) all.

The next process that opens the workspace must find exactly the state before or the state after: types, content, modes,
owners, times, symlinks and attributes. In the state before, the branch is unchanged too and can still be committed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forkwise.files.store import transaction
from forkwise.files.store.record import is_rolled_back
from forkwise.linux.mountinfo import mounts
from tests.counts import rounds
from tests.files.crash_scenes import Nested, OnOverlay, Scene, Stage, Undo, UndoOnOverlay, empty, run_traced
from tests.files.fork_helper import stop_helper
from tests.files.images import mounted_tmpfs
from tests.files.steps import CALLS, Steps

pytestmark = pytest.mark.crash

RANDOM_KILLS = rounds(8, 500)
LAST = 10  # steps around the commit point: each of these is killed in a new scene
JOURNAL = ("rename", "renameat2", "symlink", "fsync", "syncfs")
NOBODY = 65534


@pytest.fixture(scope="module", autouse=True)
def nothing_stays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    beneath = f"{tmp_path_factory.getbasetemp()}/"  # with the slash: another run may have pytest-12 beside pytest-1
    before = [m for m in mounts() if m.point.startswith(beneath)]
    yield
    stop_helper()
    assert [m for m in mounts() if m.point.startswith(beneath)] == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory, nothing_stays: None) -> Iterator[Path]:
    """A filesystem on which syncs are free."""
    where = tmp_path_factory.mktemp("memory")
    with mounted_tmpfs(where):
        yield where
        empty(where)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, nothing_stays: None) -> Iterator[Path]:
    """Another such filesystem."""
    where = tmp_path_factory.mktemp("elsewhere")
    with mounted_tmpfs(where):
        yield where
        empty(where)


@pytest.fixture
def public() -> Iterator[Path]:
    """A filesystem that every user can reach and write to."""
    where = Path(tempfile.mkdtemp())
    where.chmod(0o755)
    with mounted_tmpfs(where):
        where.chmod(0o1777)
        # Once as root: other users may not be able to read modules that are imported on first use.
        Stage(partial(Undo, where, "copy")).count_steps(flagless=False)
        for name in os.listdir(where):
            shutil.rmtree(where / name)
        yield where
        empty(where)
    where.rmdir()


def kill_everywhere(
    make: Callable[[], Scene],
    *,
    finish_every: int = 1,
    flagless: bool = False,
    copies: bool = False,
    every: int = 1,
    user: int = 0,
) -> None:
    """Kill at every step, or at each ``every``-th step and the last ones.

    A scene in the state before is used again, unless it is finished to check that this is possible. With ``copies``,
    most steps only copy content into the undo record; of those each ninth is taken.
    """
    stage = Stage(make, user)
    counts: Counter[str] = Counter()
    calls = stage.count_steps(flagless=flagless)
    for step, name in enumerate(calls, 1):
        is_last = step > len(calls) - LAST
        is_copy = copies and name not in JOURNAL and step % 9 != 0
        if is_copy or (step % every and not is_last):
            continue
        assert stage.act(Steps(step, flagless=flagless)).killed, f"step {step} of {len(calls)}"
        counts[stage.judge(finish=step % finish_every == 0 or is_last)] += 1
    stage.close()
    print(f"killed at {counts.total()} of {len(calls)} steps: {dict(counts)}")
    assert counts["before"] > 20 // every
    assert counts["after"] > 0 or user


@pytest.mark.parametrize("view", ["overlay", "copy"])
def test_commit_killed_at_every_step(memory: Path, view: str) -> None:
    every = rounds(29 if view == "overlay" else 41, 1)
    kill_everywhere(
        lambda: Scene(memory, view), every=every, finish_every=3 if view == "overlay" else 9, copies=view == "copy"
    )


@pytest.mark.parametrize("view", ["overlay", "copy"])
def test_undo_killed_at_every_step(memory: Path, view: str) -> None:
    every = rounds(29, 1)
    kill_everywhere(lambda: Undo(memory, view), finish_every=7, every=every)


@pytest.mark.parametrize("view", ["overlay", "copy"])
def test_commit_into_a_branch_killed_at_every_step(memory: Path, view: str) -> None:
    every = rounds(29, 1)
    kill_everywhere(lambda: Nested(memory, view), finish_every=7, copies=view == "copy", every=every)


@pytest.mark.parametrize("kind", [Scene, Undo])
def test_state_on_another_filesystem_killed(memory: Path, elsewhere: Path, kind: type[Scene]) -> None:
    """Files staged inside the workspace are removed by every reopening, which does not change the root's time."""
    kill_everywhere(lambda: kind(memory, root=elsewhere), finish_every=23, copies=True, every=rounds(67, 2))


@pytest.mark.parametrize("kind", [Scene, Undo])
def test_without_exchanging_renames_killed(memory: Path, kind: type[Scene]) -> None:
    """Some filesystems support only plain renames, so that an exchange takes three."""
    kill_everywhere(lambda: kind(memory), finish_every=11, flagless=True, every=rounds(67, 2))


@pytest.mark.parametrize(
    ("kind", "view", "flagless", "every"),
    [
        (Scene, "overlay", False, rounds(29, 1)),
        (Scene, "overlay", True, rounds(67, 2)),
        (Scene, "copy", False, rounds(67, 2)),
        (Undo, "overlay", True, rounds(67, 3)),
    ],
)
def test_recovery_killed(memory: Path, kind: type[Scene], view: str, flagless: bool, every: int) -> None:
    """The steps are the same in all cases, so only the simplest case takes all of them."""
    kill_recovery_everywhere(lambda: kind(memory, view), flagless=flagless, every=every)


def test_recovery_of_a_branch_killed(memory: Path) -> None:
    kill_recovery_everywhere(lambda: Nested(memory), every=rounds(67, 2))


@pytest.mark.parametrize("kind", [Scene, Undo])
def test_recovery_with_state_elsewhere_killed(memory: Path, elsewhere: Path, kind: type[Scene]) -> None:
    kill_recovery_everywhere(lambda: kind(memory, root=elsewhere), every=rounds(97, 5))


def test_a_recovery_with_state_elsewhere_is_marked_on_the_disk_before_its_files_are_removed(
    memory: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark and the files are on two filesystems, and a power cut could keep the removal without the mark."""
    stage = Stage(lambda: Scene(memory, root=elsewhere))
    assert stage.act(Steps(path="+")).killed
    calls: list[str] = []

    def note(name: str) -> None:
        function = getattr(transaction, name)

        def call(*given: Any) -> Any:
            marked = name != "sync_directories" or any(is_rolled_back(directory) for directory in given[0])
            calls.extend([name] if marked else [])
            return function(*given)

        monkeypatch.setattr(transaction, name, call)

    for name in ("mark_rolled_back", "sync_directories", "remove_tree"):
        note(name)
    assert stage.judge(finish=True) == "before"
    assert calls[:3] == ["mark_rolled_back", "sync_directories", "remove_tree"]


@pytest.mark.parametrize("kind", [OnOverlay, UndoOnOverlay])
def test_workspace_on_an_overlay_killed(memory: Path, kind: type[Scene]) -> None:
    """As in a container: a directory of the lower layer cannot be renamed, so it is moved entry by entry."""
    kill_everywhere(lambda: kind(memory), finish_every=20, copies=True, every=rounds(67, 2))


def test_commit_on_a_disk_killed(tmp_path: Path) -> None:
    """The same with real syncs; a few steps are enough."""
    kill_everywhere(lambda: Scene(tmp_path), finish_every=5, every=rounds(97, 5))


@pytest.mark.parametrize("kind", [Scene, Undo])
def test_without_privileges_killed(public: Path, kind: type[Scene]) -> None:
    """Read-only directories are made writable for a moment, and must be read-only again in any case."""
    kill_everywhere(
        lambda: kind(public, "copy"), finish_every=20, copies=kind is Scene, user=NOBODY, every=rounds(67, 2)
    )


def test_recovery_without_privileges_killed(public: Path) -> None:
    kill_recovery_everywhere(lambda: Scene(public, "copy"), user=NOBODY, every=rounds(97, 3))


def kill_recovery_everywhere(
    make: Callable[[], Scene], *, flagless: bool = False, user: int = 0, every: int = 1
) -> None:
    """Kill just before the commit point, then kill the recovery at every one of its steps."""
    stage = Stage(make, user)
    killed = 0
    while True:
        assert stage.act(Steps(path="+", flagless=flagless)).killed
        is_over = not stage.act(Steps(killed * every + 1, flagless=flagless), "look").killed
        assert stage.judge(finish=is_over or killed % 7 == 6) == "before"
        if is_over:
            break
        killed += 1
    print(f"recovery killed at {killed} steps")
    assert killed * every > 40


def test_commit_killed_at_random_moments(memory: Path) -> None:
    """Kill from outside after random times, independent of system calls."""
    chance = random.Random(2)
    counts: Counter[str] = Counter()
    for view in ("overlay", "copy"):
        stage = Stage(partial(Scene, memory, view))
        duration = measure(stage)
        for number in range(RANDOM_KILLS // 2):
            assert stage.act(Steps(), kill_after=chance.uniform(0, duration)).killed
            counts[stage.judge(finish=number % 7 == 0)] += 1
        stage.close()
    print(f"killed at {counts.total()} random moments: {dict(counts)}")
    assert counts.total() == RANDOM_KILLS
    assert counts["before"] > 0
    assert counts["after"] > 0


def measure(stage: Stage) -> float:
    """Return the typical duration in seconds."""
    taken = []
    for _ in range(5):
        stage.open()
        begun = time.perf_counter()
        assert stage.act(Steps()).raised is None
        taken.append(time.perf_counter() - begun)
        assert stage.judge(finish=False) == "after"
    return sorted(taken)[2]


@pytest.mark.parametrize(
    ("kind", "view"), [(Scene, "overlay"), (Scene, "copy"), (Undo, "overlay"), (Nested, "overlay")]
)
def test_no_change_goes_uncounted(memory: Path, tmp_path: Path, kind: type[Scene], view: str) -> None:
    """The kernel sees the same calls of a commit, one by one, as the wrappers count."""
    scene = kind(memory, view)
    log = tmp_path / "log"
    names = {call: name for name, calls in CALLS.items() for call in calls}
    traced = ",".join(["openat", "ioctl", *(f"?{c}" for c in names)])
    outcome = run_traced(scene, ["strace", "-o", str(log), "-e", f"trace={traced}", "-f"])
    assert outcome is not None
    counted, _ = outcome
    lines = log.read_text(errors="replace").splitlines()
    main = lines[0].split()[0]
    marks = [n for n, line in enumerate(lines) if "/proc/forkwise" in line]
    seen = []
    for line in lines[marks[0] + 1 : marks[1]]:
        thread, _, call = line.partition(" ")
        name = call.strip().partition("(")[0]
        is_creating = name != "openat" or re.search("O_CREAT|O_TRUNC", call)
        is_cloning = name != "ioctl" or "FICLONE" in call
        is_clock = name == "utimensat" and re.search(r"\(\d+, NULL, NULL", call)
        if thread == main and is_creating and is_cloning and not is_clock and name.isidentifier():
            seen.append({"openat": "open", "ioctl": "ioctl"}.get(name) or names[name])
    assert seen == [{"rmdir": "unlink", "truncate": "ftruncate"}.get(c, c) for c in counted]
    assert scene.judge() == "after"
    scene.drop()


@pytest.mark.parametrize(
    ("call", "number"),
    [("renameat2", n) for n in (1, 20, 45)]
    + [("rename", n) for n in (1, 3, 4, 5)]
    + [("utimensat", n) for n in (2, 5)]
    + [("lremovexattr", 3), ("syncfs", 2), ("io_submit", 1), ("io_submit", 2), ("fsync", 1)],
)
def test_commit_killed_by_the_kernel(memory: Path, call: str, number: int) -> None:
    """Without wrappers: strace kills a separate process."""
    scene = Scene(memory)
    options = ["-f", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}", "-o", "/dev/null"]
    assert run_traced(scene, ["strace", *options]) is None
    assert scene.judge() == "before"
    scene.finish()
    scene.drop()
