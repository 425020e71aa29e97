"""The overlay of a branch: the changes it reports, and how they are applied to the parent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.live.backends.backend import Backend
from forkwise.live.backends.branch_overlay import BranchOverlay, FilesOverlay
from forkwise.live.backends.local import LocalBackend, ReadOnlyBackend
from forkwise.live.backends.memory import StateBackend
from forkwise.live.deps import DeepAgentDeps, MessageQueue, Todo, clone_for_branch
from forkwise.live.diff.mirror import ForkMaterializer
from forkwise.live.values import BranchIsolation, ConflictPolicy
from tests.leftovers import processes_about

FILES = {"a.txt": "one\n", "b.txt": "bee\n", "d/c.txt": "sea\n"}


@pytest.fixture(params=["memory", "directory"])
def parent(request: pytest.FixtureRequest, workspace: Workspace) -> Backend:
    if request.param == "memory":
        return StateBackend(FILES)
    return _directory(workspace)


@pytest.fixture
def directory(workspace: Workspace) -> LocalBackend:
    return _directory(workspace)


def _directory(workspace: Workspace) -> LocalBackend:
    for name, content in FILES.items():
        (workspace.path / name).parent.mkdir(exist_ok=True)
        (workspace.path / name).write_text(content)
    return LocalBackend(workspace)


@pytest.fixture
def fork(workspace: Workspace) -> Iterator[Callable[..., BranchOverlay]]:
    """Create overlays, and drop them after the test."""
    made: list[BranchOverlay] = []

    def fork_one(parent: Backend, policy: ConflictPolicy = "keep_newer", label: str = "branch") -> BranchOverlay:
        made.append(BranchOverlay(parent, label, conflict_policy=policy))
        return made[-1]

    yield fork_one
    for overlay in reversed(made):
        overlay.discard()
    for branch in workspace.branches():
        branch.abort()


Forks = Callable[..., BranchOverlay]


class TestChanges:
    def test_in_the_order_of_time(self, parent: Backend, fork: Forks) -> None:
        branch = fork(parent)
        branch.write("new.txt", "1")
        branch.edit("a.txt", "one", "two")
        branch.delete("b.txt")
        branch.write("new.txt", "2")
        assert [(c.path, c.op) for c in branch.changes()] == [
            ("new.txt", "write"),
            ("a.txt", "edit"),
            ("b.txt", "delete"),
            ("new.txt", "write"),
        ]
        times = [c.timestamp for c in branch.changes()]
        assert times == sorted(times)
        assert branch.deleted() == {"b.txt"}
        assert sorted(branch.touched()) == ["a.txt", "b.txt", "new.txt"]

    def test_each_path_before_and_after(self, parent: Backend, fork: Forks) -> None:
        branch = fork(parent)
        branch.write("new.txt", "1")
        branch.edit("a.txt", "one", "two")
        branch.delete("b.txt")
        assert {p: (branch.old(p), branch.new(p)) for p in branch.touched()} == {
            "new.txt": (None, b"1"),
            "a.txt": (b"one\n", b"two\n"),
            "b.txt": (b"bee\n", None),
        }

    def test_a_reverted_change_is_not_reported(self, parent: Backend, fork: Forks) -> None:
        branch = fork(parent)
        branch.write("new.txt", "1")
        branch.delete("new.txt")
        assert branch.changes() == []
        assert branch.deleted() == set()

    def test_a_deleted_directory_is_all_its_files(self, parent: Backend, fork: Forks) -> None:
        branch = fork(parent)
        branch.delete("d")
        assert branch.deleted() == {"d/c.txt"}
        assert not branch.exists("d/c.txt")
        assert parent.exists("d/c.txt")

    def test_the_parents_later_changes_show_through(self, parent: Backend, fork: Forks) -> None:
        branch = fork(parent)
        branch.write("a.txt", "mine")
        parent.write("b.txt", "theirs")
        assert branch.read_bytes("a.txt") == b"mine"
        assert [c.path for c in branch.changes()] == ["a.txt"]

    def test_by_a_command_is_seen_at_once(self, directory: LocalBackend, fork: Forks) -> None:
        branch = fork(directory)
        branch.write("new.txt", "1")
        branch.execute("mv a.txt moved.txt; mkdir e; echo x > e/x; rm -r d; echo 2 > new.txt; chmod 600 b.txt")
        assert sorted((c.path, c.op) for c in branch.changes()) == [
            ("a.txt", "delete"),
            ("b.txt", "write"),
            ("d", "rmdir"),
            ("d/c.txt", "delete"),
            ("e", "mkdir"),
            ("e/x", "write"),
            ("moved.txt", "write"),
            ("new.txt", "write"),
            ("new.txt", "write"),
        ]
        assert branch.changes() == branch.changes()
        assert branch.deleted() == {"a.txt", "d/c.txt"}

    @pytest.mark.usefixtures("recorded_changes")
    def test_without_reading_the_tree(
        self, directory: LocalBackend, workspace: Workspace, fork: Forks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A branch with a thousand directories opens as few of them as one with two."""
        for number in range(1_000):
            (workspace.path / f"many/{number}").mkdir(parents=True)
        branch = fork(directory)
        branch.execute("echo x > many/7/x")
        listed: list[object] = []
        for name in ("listdir", "scandir"):
            real = getattr(os, name)
            monkeypatch.setattr(os, name, lambda *a, real=real: listed.append(a) or real(*a))
        assert [c.path for c in branch.changes()] == ["many/7/x"]
        assert 0 < len(listed) < 20

    def test_a_persons_edit_in_its_directory_is_part_of_it(self, directory: LocalBackend, fork: Forks) -> None:
        branch = fork(directory)
        assert isinstance(branch, FilesOverlay)
        (branch.branch.path / "a.txt").write_text("by hand\n")
        assert branch.read_bytes("a.txt") == b"by hand\n"
        assert [(c.path, c.op) for c in branch.changes()] == [("a.txt", "write")]
        branch.flush_to(directory)
        assert directory.read_bytes("a.txt") == b"by hand\n"

    def test_modes(self, directory: LocalBackend, fork: Forks) -> None:
        branch = fork(directory)
        assert isinstance(branch, FilesOverlay)
        branch.execute("chmod 755 a.txt; ln -s a.txt link")
        assert (branch.old_mode("a.txt"), branch.new_mode("a.txt")) == (0o100644, 0o100755)
        assert branch.old_mode("link") is None
        assert branch.new("link") == b"a.txt"

    def test_recorded_directories(self, parent: Backend, fork: Forks) -> None:
        branch = fork(parent)
        branch.record_mkdir("empty")
        assert [(c.path, c.op) for c in branch.changes()] == [("empty", "mkdir")]


class TestFlushing:
    def test_reports_what_it_did(self, parent: Backend, fork: Forks) -> None:
        branch = fork(parent)
        branch.write("cat.md", "1")
        branch.write("cat.md", "2")
        branch.edit("a.txt", "one", "two")
        branch.delete("b.txt")
        report = branch.flush_to(parent)
        assert report.applied_paths == ["a.txt", "cat.md"]
        assert report.applied_changes == 4
        assert report.deleted_paths == ["b.txt"]
        assert (report.conflicts, report.errors, report.conflict_contents) == ([], [], {})
        assert parent.read_bytes("cat.md") == b"2"
        assert parent.read_bytes("a.txt") == b"two\n"
        assert not parent.exists("b.txt")

    def test_nothing(self, parent: Backend, fork: Forks) -> None:
        report = fork(parent).flush_to(parent)
        assert (report.applied_paths, report.applied_changes, report.deleted_paths) == ([], 0, [])

    def test_a_losers_files_are_gone(self, parent: Backend, fork: Forks, workspace: Workspace) -> None:
        branch = fork(parent)
        branch.write("a.txt", "lost")
        branch.discard()
        assert parent.read_bytes("a.txt") == b"one\n"
        assert workspace.branches() == []

    def test_nested_branches_flush_one_level_at_a_time(self, parent: Backend, fork: Forks) -> None:
        outer = fork(parent)
        outer.write("outer.txt", "o")
        inner = fork(outer)
        assert inner.read_bytes("outer.txt") == b"o"
        inner.write("inner.txt", "i")
        inner.delete("a.txt")
        assert inner.flush_to(outer).applied_paths == ["inner.txt"]
        assert not parent.exists("inner.txt")
        assert {c.path for c in outer.changes()} == {"outer.txt", "inner.txt", "a.txt"}
        report = outer.flush_to(parent)
        assert report.applied_paths == ["inner.txt", "outer.txt"]
        assert report.deleted_paths == ["a.txt"]
        assert parent.read_bytes("inner.txt") == b"i"

    def test_modes_links_and_odd_names_are_kept(
        self, directory: LocalBackend, workspace: Workspace, fork: Forks
    ) -> None:
        branch = fork(directory)
        branch.execute("chmod 755 a.txt; echo x > s.sh; chmod 700 s.sh; ln -s a.txt link; mkdir -m 700 private")
        branch.write(os.fsdecode(b"\xff"), b"\xfe\x00")
        report = branch.flush_to(directory)
        assert report.applied_paths == ["a.txt", "link", "s.sh", os.fsdecode(b"\xff")]
        modes = {n: (workspace.path / n).lstat().st_mode & 0o777 for n in ("a.txt", "s.sh", "private")}
        assert modes == {"a.txt": 0o755, "s.sh": 0o700, "private": 0o700}
        assert os.readlink(workspace.path / "link") == "a.txt"
        assert Path(os.fsdecode(os.fsencode(workspace.path) + b"/\xff")).read_bytes() == b"\xfe\x00"

    def test_can_be_undone(self, directory: LocalBackend, workspace: Workspace, fork: Forks) -> None:
        branch = fork(directory)
        branch.execute("rm a.txt; echo x > x")
        branch.flush_to(directory)
        assert branch.commit is not None
        workspace.undo(branch.commit)
        assert directory.read_bytes("a.txt") == b"one\n"
        assert not directory.exists("x")

    def test_a_failed_flush_changes_nothing(self, fork: Forks) -> None:
        parent = StateBackend(FILES)
        branch = fork(parent)
        branch.write("a.txt", "two")
        branch.write("x/y", "deep")
        parent.write("x", "a file is in the way")
        report = branch.flush_to(parent)
        assert report.applied_paths == []
        assert [e.path for e in report.errors] == ["x/y"]
        assert report.conflict_contents == {"a.txt": b"two", "x/y": b"deep"}
        assert parent.read_bytes("a.txt") == b"one\n"

    def test_into_other_files_than_its_parents(self, directory: LocalBackend, fork: Forks) -> None:
        branch = fork(directory)
        branch.execute("echo two > a.txt; rm b.txt")
        other = StateBackend(FILES)
        assert branch.flush_to(other).applied_paths == ["a.txt"]
        assert other.files == {"a.txt": b"two\n", "d/c.txt": b"sea\n"}


class TestConflicts:
    """A path that the branch and another writer changed since the fork."""

    def test_the_newer_content_is_kept_and_the_winners_is_not_lost(self, parent: Backend, fork: Forks) -> None:
        branch = fork(parent)
        branch.write("a.txt", "mine\n")
        branch.delete("b.txt")
        branch.write("new.txt", "new\n")
        _elsewhere(parent, {"a.txt": "theirs\n", "b.txt": "theirs\n"})
        report = branch.flush_to(parent)
        assert report.conflicts == ["a.txt", "b.txt"]
        assert report.applied_paths == ["new.txt"]
        assert report.deleted_paths == []
        assert report.conflict_contents == {"a.txt": b"mine\n", "b.txt": None}
        assert (parent.read_bytes("a.txt"), parent.read_bytes("b.txt")) == (b"theirs\n", b"theirs\n")

    def test_the_last_write_wins_with_that_policy(self, parent: Backend, fork: Forks) -> None:
        branch = fork(parent, "last_write_wins")
        branch.write("a.txt", "mine\n")
        branch.delete("b.txt")
        _elsewhere(parent, {"a.txt": "theirs\n", "b.txt": "theirs\n"})
        report = branch.flush_to(parent)
        assert report.conflicts == ["a.txt", "b.txt"]
        assert (report.applied_paths, report.deleted_paths) == (["a.txt"], ["b.txt"])
        assert parent.read_bytes("a.txt") == b"mine\n"
        assert not parent.exists("b.txt")

    @pytest.mark.parametrize("policy", ["keep_newer", "last_write_wins"])
    def test_with_what_was_deleted_there(self, parent: Backend, fork: Forks, policy: ConflictPolicy) -> None:
        branch = fork(parent, policy)
        branch.write("a.txt", "mine\n")
        _elsewhere(parent, {"a.txt": None})
        assert branch.flush_to(parent).conflicts == ["a.txt"]
        assert parent.exists("a.txt") == (policy == "last_write_wins")

    def test_with_what_was_changed_there_before_the_branch_touched_it(self, parent: Backend, fork: Forks) -> None:
        branch = fork(parent)
        _elsewhere(parent, {"a.txt": "theirs\n"})
        branch.write("a.txt", "mine\n")
        assert branch.flush_to(parent).conflicts == ["a.txt"]
        assert parent.read_bytes("a.txt") == b"theirs\n"

    def test_the_same_change_is_not_a_conflict(self, parent: Backend, fork: Forks) -> None:
        branch = fork(parent)
        branch.write("a.txt", "same\n")
        _elsewhere(parent, {"a.txt": "same\n"})
        assert branch.flush_to(parent).conflicts == []
        assert parent.read_bytes("a.txt") == b"same\n"

    @pytest.mark.parametrize("policy", ["keep_newer", "last_write_wins"])
    def test_with_what_was_committed_there(self, directory: LocalBackend, fork: Forks, policy: ConflictPolicy) -> None:
        """Commits by a sibling, or by the agent of the parent (each write is one), are conflicts like any other."""
        branch = fork(directory, policy)
        branch.write("a.txt", "one\nmine\n")
        branch.write("new.txt", "new\n")
        directory.write("a.txt", "theirs\none\n")
        report = branch.flush_to(directory)
        assert report.conflicts == ["a.txt"]
        expected = b"theirs\none\n" if policy == "keep_newer" else b"one\nmine\n"
        assert directory.read_bytes("a.txt") == expected
        assert directory.read_bytes("new.txt") == b"new\n"

    def test_the_winners_version_is_kept_as_a_branch(
        self, directory: LocalBackend, workspace: Workspace, fork: Forks
    ) -> None:
        branch = fork(directory)
        branch.execute("echo mine > a.txt; chmod 755 a.txt; rm b.txt; echo x > x")
        _elsewhere(directory, {"a.txt": "theirs\n", "b.txt": "theirs\n"})
        report = branch.flush_to(directory)
        assert report.kept_branch is not None
        kept = workspace.open(report.kept_branch)
        assert (kept.delta().changed, kept.delta().deleted) == (("a.txt",), ("b.txt",))
        assert kept.kept
        kept.rebase()
        kept.commit()
        assert directory.read_bytes("a.txt") == b"mine\n"
        assert (workspace.path / "a.txt").stat().st_mode & 0o777 == 0o755
        assert not directory.exists("b.txt")

    def test_against_a_snapshot_that_is_given(self, fork: Forks) -> None:
        parent = StateBackend(FILES)
        branch = fork(parent)
        branch.write("a.txt", "mine")
        branch.write("b.txt", "mine")
        report = branch.flush_to(parent, {"a.txt": b"as it never was", "b.txt": b"bee\n"})
        assert (report.conflicts, report.applied_paths) == (["a.txt"], ["b.txt"])


def _elsewhere(parent: Backend, contents: dict[str, str | None]) -> None:
    """Change files of the parent without its backend, if possible."""
    for name, content in contents.items():
        if isinstance(parent, LocalBackend):
            path = Path(parent.root_dir, name)
            path.unlink() if content is None else path.write_text(content)
        elif content is None:
            parent.delete(name)
        else:
            parent.write(name, content)


class TestMirroring:
    @pytest.fixture
    def mirror(self, tmp_path: Path) -> ForkMaterializer:
        return ForkMaterializer(tmp_path / "mirror", "f1")

    def test_writes_and_deletions(self, parent: Backend, fork: Forks, mirror: ForkMaterializer) -> None:
        branch = fork(parent)
        branch.write("before.txt", "1")
        branch.attach_materializer(mirror, "a")
        branch.edit("a.txt", "one", "two")
        branch.write("b.txt", "x")
        branch.delete("b.txt")
        assert mirror.branch_path("a", "before.txt").read_text() == "1"
        assert mirror.branch_path("a", "a.txt").read_text() == "two\n"
        assert mirror.parent_path("a.txt").read_text() == "one\n"
        assert not mirror.branch_path("a", "b.txt").exists()

    def test_what_commands_do(self, directory: LocalBackend, fork: Forks, mirror: ForkMaterializer) -> None:
        branch = fork(directory)
        branch.attach_materializer(mirror, "a")
        branch.execute("echo two > a.txt")
        branch.execute("echo three > a.txt; rm d/c.txt")
        assert mirror.branch_path("a", "a.txt").read_text() == "three\n"
        assert mirror.parent_path("d/c.txt").read_text() == "sea\n"


class TestSnapshots:
    def test_show_the_branch_and_keep_nothing(self, parent: Backend, fork: Forks, workspace: Workspace) -> None:
        (workspace.path / "only-there").write_text("x")
        branch = fork(parent)
        branch.write("a.txt", "two\n")
        branch.delete("d")
        with branch.snapshot(workspace.path) as seen:
            assert (seen / "a.txt").read_text() == "two\n"
            assert (seen / "only-there").exists()
            assert not (seen / "d" / "c.txt").exists()
            (seen / "a.txt").write_text("spoiled")
        assert branch.read_bytes("a.txt") == b"two\n"
        branch.write("a.txt", "three\n")
        assert (workspace.path / "a.txt").read_text() == "one\n"


class TestCloning:
    def test_by_default_a_branch_has_its_own(self, parent: Backend, workspace: Workspace) -> None:
        deps = DeepAgentDeps(parent, todos=[Todo("x")], team_bus=object(), fork_coordinator=object())
        clone = clone_for_branch(deps, BranchIsolation())
        try:
            assert isinstance(clone.backend, BranchOverlay)
            assert clone.backend.parent is parent
            assert clone.todos == []
            assert clone.message_queue is not deps.message_queue
            assert clone.team_bus is deps.team_bus
            assert clone.fork_coordinator is None
            assert clone.fork_depth == 1
            assert deps.todos == [Todo("x")]
        finally:
            clone.backend.discard()

    def test_shared_files_are_equal(self) -> None:
        deps = DeepAgentDeps(StateBackend(), todos=[Todo("x")], message_queue=MessageQueue(), team_bus=object())
        isolation = BranchIsolation(backend="share", todos="share", message_queue="shared", team_bus="isolated")
        clone = clone_for_branch(deps, isolation)
        assert clone.backend is deps.backend
        assert clone.todos is deps.todos
        assert clone.message_queue is deps.message_queue
        assert clone.team_bus is None

    def test_to_be_read_only(self) -> None:
        clone = clone_for_branch(DeepAgentDeps(), BranchIsolation(backend="share_readonly"))
        assert isinstance(clone.backend, ReadOnlyBackend)

    def test_a_label_with_dots_becomes_a_safe_name(self, directory: LocalBackend, fork: Forks) -> None:
        branch = fork(directory, label="../../etc/passwd")
        assert isinstance(branch, FilesOverlay)
        assert branch.branch.name.startswith("etc-passwd-")
        assert branch.branch.home.startswith(str(branch.branch.workspace.state))

    def test_a_subclass_of_deps_stays_one(self) -> None:
        from dataclasses import dataclass

        @dataclass
        class Mine(DeepAgentDeps):
            extra: int = 0

        assert clone_for_branch(Mine(extra=3), BranchIsolation()).extra == 3  # type: ignore[attr-defined]


@pytest.mark.anyio
async def test_cancelling_an_overlays_command_leaves_nothing_running(directory: LocalBackend, fork: Forks) -> None:
    branch = fork(directory)
    job = asyncio.create_task(branch.async_execute("echo x > x; sleep 3605 & sleep 3605"))
    while len(processes_about("sleep 3605")) < 2:
        await asyncio.sleep(0.01)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert processes_about("sleep 3605") == []
    assert branch.read_bytes("x") == b"x\n"
