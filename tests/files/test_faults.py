"""Commits and undos that fail: every error is one of forkwise's own, and nothing has changed.

Errors are injected at every call that changes something. Others come from real filesystems that are full, and from
directories of another user.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.errors import BranchingError, CommitError
from forkwise.files.store.state import StateDir
from forkwise.linux.mountinfo import mounts
from tests.counts import rounds
from tests.files.crash_scenes import Nested, Scene, Stage, Undo, differences, empty, run_traced
from tests.files.fork_helper import stop_helper
from tests.files.images import loop_image, mounted_tmpfs
from tests.files.sample import picture
from tests.files.steps import Steps
from tests.need import need

ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EPERM)
NOBODY = 65534

pytestmark = [pytest.mark.crash, pytest.mark.filterwarnings("ignore::forkwise.errors.ForkwiseWarning")]


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


def fail_everywhere(
    make: Callable[[], Scene],
    errors: tuple[int, ...],
    *,
    lasting: bool = False,
    every: int = 1,
    takes_turns: bool = False,
    finish_every: int = 5,
) -> None:
    """Inject errors at every step; of several errors, one at each."""
    stage = Stage(make)
    counts: Counter[str] = Counter()
    calls = stage.count_steps(flagless=False)
    for step in range(1, len(calls) + 1, every):
        for error in (errors[step % len(errors)],) if every > 1 or takes_turns else errors:
            call = calls[step - 1]
            if call == "chown" and error == errno.EPERM:
                continue  # an owner that a user may not set becomes the user
            outcome = stage.act(Steps(step, error, lasting=lasting))
            assert not outcome.killed
            case = f"{errno.errorcode[error]} at step {step} of {len(calls)}, {call}"
            if outcome.raised is not None:
                assert isinstance(outcome.raised, BranchingError), f"{case}: {outcome.raised!r}"
                assert isinstance(outcome.raised, CommitError) or call in ("mount", "umount2"), case
            state = stage.judge(finish=step % finish_every == 0)
            assert (state == "before") == (outcome.raised is not None), f"{case}: {state}, {outcome.raised!r}"
            counts[f"{state}"] += 1
    stage.close()
    print(f"failed at {len(calls)} steps: {dict(counts)}")
    assert counts["before"] > 20 // every


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_commit_failing_at_any_step(memory: Path, error: int) -> None:
    every = rounds(67, 3 if error == errno.EPERM else 1)  # the kernel returns EPERM for the same reasons as EACCES
    fail_everywhere(partial(Scene, memory), (error,), every=every, finish_every=10)


def test_undo_failing_at_every_step(memory: Path) -> None:
    fail_everywhere(partial(Undo, memory), ERRORS, takes_turns=True, every=rounds(41, 1))


def test_commit_of_a_whole_tree_failing(memory: Path) -> None:
    fail_everywhere(partial(Scene, memory, "copy"), ERRORS, every=rounds(97, 3))


def test_commit_into_a_branch_failing(memory: Path) -> None:
    fail_everywhere(partial(Nested, memory), (errno.EIO, errno.ENOSPC), takes_turns=True, every=rounds(41, 1))


@pytest.mark.parametrize("kind", [Scene, Undo])
def test_state_elsewhere_failing(memory: Path, elsewhere: Path, kind: type[Scene]) -> None:
    fail_everywhere(partial(kind, memory, root=elsewhere), ERRORS, every=rounds(151, 7))


@pytest.mark.parametrize("kind", [Scene, Undo, Nested])
def test_everything_failing_from_some_step_on(memory: Path, kind: type[Scene]) -> None:
    """Then even the rollback fails, and is left to the next process that opens the workspace."""
    fail_everywhere(partial(kind, memory), ERRORS, lasting=True, every=rounds(67, 3))


@pytest.mark.parametrize(
    ("call", "number", "error"),
    [
        ("renameat2", 1, "EIO"),
        ("renameat2", 30, "EACCES"),
        ("mkdir", 7, "ENOSPC"),
        ("syncfs", 1, "EIO"),
        ("fsync", 1, "EIO"),
        ("rename", 1, "ENOSPC"),
        ("rename", 5, "EIO"),
    ],
)
def test_commit_failing_by_the_kernel(memory: Path, call: str, number: int, error: str) -> None:
    """Without wrappers: strace injects the errors."""
    scene = Scene(memory)
    options = ["-f", "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={number}", "-o", "/dev/null"]
    outcome = run_traced(scene, ["strace", *options])
    assert outcome is not None
    assert outcome[1] == "CommitError"
    assert scene.judge() == "before"
    scene.finish()
    scene.drop()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, nothing_stays: None) -> Iterator[Path]:
    """A small disk."""
    with loop_image("ext4", 24, tmp_path_factory.mktemp("image")) as where:
        yield where
        empty(where)


class Filler:
    """Fill a filesystem except for some kilobytes."""

    def __init__(self, where: Path, left: int) -> None:
        self.path = where / "filler"
        with open(self.path, "wb", buffering=0) as file:
            size = 1 << 20
            while size >= 1024:
                try:
                    is_whole = file.write(bytes(size)) == size
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    is_whole = False
                size //= 1 if is_whole else 2
            os.fsync(file)
            os.ftruncate(file.fileno(), max(0, os.fstat(file.fileno()).st_size - left * 1024))
            os.fsync(file)

    def free(self) -> None:
        self.path.unlink()


@pytest.mark.parametrize("state_location", ["same", "state"])
@pytest.mark.parametrize(("kind", "view"), [(Scene, "overlay"), (Scene, "copy"), (Undo, "overlay")])
def test_full_disk(small: Path, elsewhere: Path, state_location: str, kind: type[Scene], view: str) -> None:
    """With a little more free space each time, it fails a little later, until it succeeds."""
    stage = Stage(partial(kind, small, view, root=elsewhere if state_location == "state" else None))
    counts: Counter[str] = Counter()
    for left in (0, 2, 8, 16, 24, 48, 96, 192, 512):
        scene = stage.open()
        filler = Filler(small, left)
        try:
            outcome = stage.act(Steps())
            now = picture(scene.root)
        finally:
            filler.free()
        if outcome.raised is None:
            assert now == scene.after, differences(scene.after, now)
        else:
            assert isinstance(outcome.raised, CommitError), repr(outcome.raised)
            assert "No space left" in str(outcome.raised)
            assert now == scene.before, differences(scene.before, now)
        state = stage.judge(finish=left % 3 == 0)
        assert (state == "before") == (outcome.raised is not None)
        counts[state] += 1
    stage.close()
    print(f"full disk: {dict(counts)}")
    assert counts["before"] > 0
    assert counts["after"] > 0


class OtherUsersDirectory(Scene):
    """One of the directories in which the branch changed something belongs to another user."""

    def __init__(self, base: Path, directory: str) -> None:
        self.directory = directory
        super().__init__(base, "copy")

    def give(self, user: int) -> None:
        for path in [self.root / self.directory, *(self.root / self.directory).rglob("*")]:
            os.chown(path, user, user, follow_symlinks=False)


DIRECTORIES = ["change", "replaced", "read-only", "delete", "keep", "gone", "attributes", "closed"]


@pytest.mark.crash
@pytest.mark.parametrize("directory", DIRECTORIES[: rounds(3, 8)])
def test_directory_of_another_user(directory: str) -> None:
    """It fails at any of these directories, after any number of steps."""
    need(os.geteuid() == 0, "only root can become another user")
    where = Path(tempfile.mkdtemp())
    try:
        where.chmod(0o1777)
        Stage(partial(Undo, where, "copy")).count_steps(
            flagless=False
        )  # loads modules that another user may not be able to read
        for name in os.listdir(where):
            shutil.rmtree(where / name)
        stage = Stage(partial(OtherUsersDirectory, where, directory), NOBODY)
        scene = stage.open()
        assert isinstance(scene, OtherUsersDirectory)
        scene.give(0)
        scene.before = picture(scene.root)
        outcome = stage.act(Steps())
        assert isinstance(outcome.raised, CommitError), repr(outcome.raised)
        now = picture(scene.root)
        assert now == scene.before, differences(scene.before, now)
        scene.give(NOBODY)
        os.utime(scene.root)
        stage.close()
    finally:
        shutil.rmtree(where)


def test_a_rollback_by_another_process_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a workspace that has found its history without rolled-back commits, and does not list it again."""
    root = tmp_path / "ws"
    root.mkdir()
    (root / "file").write_text("one")
    ours, theirs = Workspace(root, durable=False), Workspace(root, durable=False)
    with ours.branch("first") as first:
        (first.path / "other").write_text("x")
    branch, failing = ours.branch("ours"), theirs.branch("theirs")
    (branch.path / "file").write_text("two")
    (failing.path / "file").write_text("three")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(StateDir, "advance", fail)
        with pytest.raises(CommitError, match="everything is as before"):
            failing.commit()
    assert (root / "file").read_text() == "one"
    branch.commit()
    assert (root / "file").read_text() == "two"


@pytest.fixture(scope="module")
def btrfs(tmp_path_factory: pytest.TempPathFactory, nothing_stays: None) -> Iterator[Path]:
    """A btrfs with quotas, in which ``top`` is a subvolume."""
    need(shutil.which("btrfs") is not None, "the program btrfs is not installed")
    with loop_image("btrfs", 128, tmp_path_factory.mktemp("btrfs")) as where:
        run_btrfs("quota", "enable", str(where))
        run_btrfs("subvolume", "create", str(where / "top"))
        yield where
        run_btrfs("qgroup", "limit", "none", str(where / "top"))
        empty(where / "top")


def run_btrfs(*words: str) -> str:
    return subprocess.run(["btrfs", *words], check=True, capture_output=True, text=True).stdout


def test_a_quota_that_is_exceeded(btrfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKWISE_STATE", str(btrfs / "top/state"))
    (root := btrfs / "top/project").mkdir()
    number = run_btrfs("subvolume", "show", str(btrfs / "top")).partition("Subvolume ID:")[2].split()[0]

    def set_limit(free: int | None) -> None:
        run_btrfs("qgroup", "limit", "none", f"0/{number}", str(btrfs))
        run_btrfs("filesystem", "sync", str(btrfs))
        run_btrfs("quota", "rescan", "-w", str(btrfs))
        rows = run_btrfs("qgroup", "show", "--raw", str(btrfs)).splitlines()
        [used] = [int(row.split()[1]) for row in rows if row.startswith(f"0/{number} ")]
        if free is not None:
            run_btrfs("qgroup", "limit", str(used + free), f"0/{number}", str(btrfs))

    def read(where: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in where.iterdir()}

    for n in range(8):
        (root / str(n)).write_bytes(os.urandom(20_000))
    outcomes: list[str] = []
    limits = (0, 1 << 17, 1 << 18, 1 << 20, *(1 << n for n in range(12, 22)))
    for round_, free in enumerate(limits[: rounds(4, len(limits))]):
        branch = Workspace(root, view="overlay").branch(f"b{round_}")
        for n in range(4, 12):
            (branch.path / str(n)).write_bytes(os.urandom(20_000))
        before, after = read(root), read(branch.path)
        for act, old, new in (
            (lambda name=f"b{round_}": Workspace(root).open(name).commit(), before, after),
            (lambda: Workspace(root).undo(), after, before),
        ):
            set_limit(free)
            try:
                act()
                outcomes.append("done")
                assert read(root) == new
            except CommitError as error:
                outcomes.append("refused" if "Disk quota exceeded" in str(error) else str(error))
                assert read(root) == old
                set_limit(None)
                act()
                assert read(root) == new
        set_limit(None)
    assert set(outcomes) == {"done", "refused"}, outcomes


def test_a_subvolume_inside_the_workspace(btrfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKWISE_STATE", str(btrfs / "top/state"))
    (root := btrfs / "top/outer").mkdir()
    run_btrfs("subvolume", "create", str(root / "inner"))
    for name in ("a", "inner/b"):
        (root / name).write_text(name)
    with Workspace(root, view="overlay").branch("outside") as branch:
        (branch.path / "a").write_text("new")
    branch = Workspace(root, view="overlay").branch("inside")
    for name in ("a", "inner/b", "inner/c"):
        (branch.path / name).write_text("newer")
    with pytest.raises(CommitError, match=r"another btrfs subvolume.*a workspace of its own"):
        branch.commit()
    assert ((root / "a").read_text(), (root / "inner/b").read_text()) == ("new", "inner/b")
    assert os.listdir(root / "inner") == ["b"]
    branch.abort()
    run_btrfs("subvolume", "delete", str(root / "inner"))
