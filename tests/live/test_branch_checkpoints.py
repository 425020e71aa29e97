"""Rewind inside a branch: conversation and files, back and forth."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart

from forkwise import (
    BranchError,
    BranchSpec,
    CommitError,
    DeepAgentDeps,
    ForkCoordinator,
    InMemoryCheckpointStore,
    StateBackend,
    Workspace,
    create_deep_agent,
    rewind,
)
from forkwise.conversation.conversation import Conversation
from forkwise.files.shelf import drop_copy, restore_copy, save_copy
from forkwise.live.backends.branch_overlay import FilesOverlay, MemoryOverlay
from forkwise.live.backends.local import LocalBackend, ReadOnlyBackend
from forkwise.live.checkpoints import Checkpoint, FileCheckpointStore, mark_files, restore_files
from tests.live.worker import BEFORE, all_over, work, worker
from tests.modules.brain import Brain, call

pytestmark = pytest.mark.anyio


#: A directory replaced, links of both kinds, modes, times, deletions.
CHANGES = """
rm -r dir; mkdir dir; echo new > dir/new; ln -s new dir/link; ln dir/new hard; chmod 751 dir/new
rm a.txt; rm kept/in; printf x >> dir/new; touch -d @1000000000 hard
"""


def seen(root: Path) -> dict[str, Any]:
    """Read a tree: contents, links and modes, whatever the kind of view."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        entry = path.lstat()
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = oct(entry.st_mode)
        else:
            found[name] = oct(entry.st_mode), path.read_bytes(), entry.st_mtime_ns
    return found


@pytest.mark.usefixtures("recorded_changes")
async def test_a_branch_goes_back_with_its_files_and_forth_again(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    specs = [BranchSpec("a", "write one.txt 1; run rm a.txt"), BranchSpec("b", "write b.txt other")]
    await coordinator.fork(specs, parent_history=BEFORE)
    await all_over(coordinator)
    branch = next(iter(coordinator.branches.values()))
    assert await coordinator.branch_checkpoints("a") == []
    await coordinator.checkpoint_branch("a", "first")
    first = seen(branch.attempt.own_branch.path)
    await (
        await coordinator.run_on_branch("a", "write one.txt more; run mkdir d; write d/e.txt new; write a.txt again")
    )
    second = seen(branch.attempt.own_branch.path)
    assert first != second
    back = await coordinator.rewind_branch("a", "first")
    assert seen(branch.attempt.own_branch.path) == first
    assert branch.overlay.touched() == ["a.txt", "one.txt"]
    assert branch.thread.history() == back.messages
    assert branch.thread.last_text == "done: run rm a.txt"
    again = await coordinator.rewind_branch("a", back.before.id)
    assert seen(branch.attempt.own_branch.path) == second
    assert branch.thread.last_text == "done: write a.txt again"
    await coordinator.rewind_branch("a", again.before.id)
    assert seen(branch.attempt.own_branch.path) == first
    await (await coordinator.run_on_branch("a", "write two.txt 2"))
    result = await coordinator.merge_or_select("pick:a")
    assert (result.applied_paths, result.deleted_paths) == (["one.txt", "two.txt"], ["a.txt"])
    assert {p.name: p.read_text() for p in workspace.path.iterdir()} == {"one.txt": "1", "two.txt": "2"}
    Conversation().extend(result.history_after_merge)
    assert "more" not in str(result.history_after_merge)
    home = workspace.state / "history" / (result.commit_id or "") / "home"
    assert not (home / "copies").exists()  # a committed branch is never rewound
    workspace.undo(int(result.commit_id or 0))
    assert [p.name for p in workspace.path.iterdir()] == ["a.txt"]


@pytest.mark.usefixtures("recorded_changes")
async def test_a_failed_branch_continues_from_a_checkpoint(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    await coordinator.fork([BranchSpec("a", "write one.txt 1; say here")], parent_history=BEFORE)
    await all_over(coordinator)
    await coordinator.checkpoint_branch("a", "good")
    task = await coordinator.run_on_branch("a", "write one.txt worse; fail")
    with pytest.raises(ValueError, match="out of order"):
        await task
    assert coordinator.inspect_branches()[0].state == "failed"
    await coordinator.rewind_branch("a", "good")
    assert coordinator.inspect_branches()[0].state == "done"
    result = await coordinator.merge_or_select("pick:a")
    assert (workspace.path / "one.txt").read_text() == "1"
    assert result.history_after_merge[-1].parts == [TextPart("here")]


@pytest.mark.usefixtures("recorded_changes")
async def test_what_cannot_be_gone_back_to(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    await coordinator.fork([BranchSpec("a", "run sleep 100"), BranchSpec("b", "say hi")], parent_history=BEFORE)
    with pytest.raises(RuntimeError, match="running"):
        await coordinator.rewind_branch("a", "x")
    with pytest.raises(RuntimeError, match="running"):
        await coordinator.checkpoint_branch("a", "x")
    await coordinator.terminate_branch("a")
    await all_over(coordinator)
    with pytest.raises(LookupError):
        await coordinator.rewind_branch("a", "x")
    kept = await coordinator.checkpoint_branch("a", "x")
    with pytest.raises(LookupError):
        await coordinator.rewind_branch("b", kept.id)  # each branch has its own checkpoints
    with pytest.raises(CommitError, match="cannot be restored here"):
        restore_files(LocalBackend(workspace), kept.files)
    await coordinator.aclose()
    with pytest.raises(RuntimeError, match="resolved"):
        await coordinator.rewind_branch("a", "x")


def _deep(asked: Any) -> Any:
    said = work(asked)
    if getattr(said, "tool_name", "") == "write_file":
        return call("write", path=said.args["path"], content=said.args["text"])
    return call("delete", path="a.txt") if getattr(said, "tool_name", "") == "shell" else said


@pytest.mark.parametrize("where", ["memory", "directory"])
@pytest.mark.usefixtures("recorded_changes")
async def test_each_tool_call_of_a_ready_made_agent_can_be_gone_back_to(workspace: Workspace, where: str) -> None:
    """The checkpoints that are saved while a branch runs include its files."""
    backend = StateBackend({"a.txt": "one\n"}) if where == "memory" else LocalBackend(workspace)
    deps = DeepAgentDeps(backend, checkpoint_store=InMemoryCheckpointStore())
    agent = create_deep_agent(Brain(decide=_deep), include_checkpoints=True)
    coordinator = ForkCoordinator(agent, deps)
    steer = "write d/one.txt 1; run rm; write d/one.txt 2; write e.txt 3"
    await coordinator.fork([BranchSpec("a", steer)], parent_history=BEFORE)
    await all_over(coordinator)
    overlay = next(iter(coordinator.branches.values())).overlay
    labels = [c.label for c in await coordinator.branch_checkpoints("a")]
    assert labels == ["turn", "tool:write", "tool:delete", "tool:write", "tool:write"]
    saved = await coordinator.branch_checkpoints("a")
    stood: list[list[str]] = []
    for checkpoint in saved:
        back = await coordinator.rewind_branch("a", checkpoint.id)
        stood.append(overlay.touched())
        Conversation().extend(back.messages)
    assert stood == [[], ["d/one.txt"], ["a.txt", "d/one.txt"], ["a.txt", "d/one.txt"], ["a.txt", "d/one.txt", "e.txt"]]
    await coordinator.rewind_branch("a", saved[2].id)
    assert overlay.read_bytes("d/one.txt") == b"1"
    assert not overlay.exists("a.txt")
    await (await coordinator.run_on_branch("a", "write f.txt 4"))
    result = await coordinator.merge_or_select("pick:a")
    Conversation().extend(result.history_after_merge)
    assert result.applied_paths == ["d/one.txt", "f.txt"]
    assert result.deleted_paths == ["a.txt"]
    assert isinstance(result.history_after_merge[-1], ModelResponse)
    assert backend.read_bytes("f.txt") == b"4"
    assert not backend.exists("e.txt")
    await rewind(deps.checkpoint_store, f"fork:{result.fork_id}", backend)
    assert [info["path"] for info in backend.walk()] == ["a.txt"]
    await rewind(deps.checkpoint_store, f"post-fork:{result.fork_id}", backend)
    assert [info["path"] for info in backend.walk()] == ["d/one.txt", "f.txt"]


async def test_a_mark_of_a_branch_is_kept_in_files_too(tmp_path: Path) -> None:
    overlay = MemoryOverlay(StateBackend({"a.txt": "one\n", "b/c": "d"}))
    overlay.write("b/new", b"\xff")
    overlay.delete("a.txt")
    store = FileCheckpointStore(tmp_path / "kept")
    await store.save(Checkpoint("x", [], files=mark_files(overlay)))
    overlay.write("a.txt", "two")
    overlay.write("later/on", "x")
    overlay.delete("b")
    [kept] = await FileCheckpointStore(tmp_path / "kept").list_all()
    restore_files(overlay, kept.files)
    assert [info["path"] for info in overlay.walk()] == ["b/c", "b/new"]
    assert overlay.read_bytes("b/new") == b"\xff"
    assert overlay.ls_info("later") == []
    with pytest.raises(CommitError, match="memory"):
        restore_files(ReadOnly(), kept.files)


def ReadOnly() -> Any:  # noqa: N802 - stands for a backend

    return ReadOnlyBackend(StateBackend())


@pytest.mark.usefixtures("recorded_changes")
class TestCopies:
    """Copies of a branch's layer."""

    def test_hold_all_that_a_layer_can(self, workspace: Workspace) -> None:
        (workspace.path / "dir").mkdir()
        (workspace.path / "dir" / "old").write_text("old")
        (workspace.path / "kept").mkdir()
        (workspace.path / "kept" / "in").write_text("in")
        branch = workspace.branch("b", None, None)
        made = branch.run(["sh", "-c", CHANGES])
        assert made.returncode == 0
        then, delta = seen(branch.path), branch.delta()
        name = save_copy(branch)
        assert branch.run(["sh", "-c", "rm -r dir; echo y > kept/in; echo z > hard; echo a > a.txt"]).returncode == 0
        other, again = seen(branch.path), save_copy(branch)
        for _ in range(2):
            restore_copy(branch, name)
            assert (seen(branch.path), branch.delta()) == (then, delta)
            restore_copy(branch, again)
            assert seen(branch.path) == other
        restore_copy(branch, name)
        (branch.path / "after").write_text("writable")
        branch.commit()
        assert seen(workspace.path) == then | {"after": seen(workspace.path)["after"]}

    def test_cost_what_changed_since_the_last(self, workspace: Workspace) -> None:
        branch = workspace.branch("b", None, None)
        (branch.path / "large").write_bytes(os.urandom(1 << 16))
        os.utime(branch.path / "large", (1, 1))
        (branch.path / "small").write_text("1")
        one = save_copy(branch)
        (branch.path / "small").write_text("2")
        names = [one, save_copy(branch)]
        # a file changed just now is copied again: it may change once more within the same tick of the clock
        while not _is_shared(branch.home, names[-1], names[-2], "large"):
            names.append(save_copy(branch))
        assert not _is_shared(branch.home, one, names[-1], "small")
        restore_copy(branch, one)
        assert (branch.path / "small").read_text() == "1"
        (branch.path / "large").write_bytes(b"changed")  # must not change a copy
        drop_copy(branch, names[-2])
        restore_copy(branch, names[-1])
        assert (branch.path / "large").stat().st_size == 1 << 16
        assert (branch.path / "small").read_text() == "2"
        branch.abort()

    def test_refuse_what_would_pull_the_ground_away(self, workspace: Workspace) -> None:
        branch = workspace.branch("b", None, None)
        name = save_copy(branch)
        inner = branch.branch("inner", None, None)
        with pytest.raises(BranchError, match="branches of its own"):
            restore_copy(branch, name)
        inner.abort()
        with pytest.raises(BranchError, match="no saved copy"):
            restore_copy(branch, "none")
        branch.abort()

    def test_are_not_kept_of_whole_trees(self, workspace: Workspace) -> None:
        whole = Workspace(workspace.path, view="copy", durable=False)
        branch = whole.branch("b", None, None)
        with pytest.raises(BranchError, match="whole tree"):
            save_copy(branch)
        overlay = FilesOverlay(LocalBackend(workspace), branch=branch)
        assert mark_files(overlay) is None
        branch.abort()


def _is_shared(home: str, one: str, two: str, name: str) -> bool:
    first, second = (os.stat(f"{home}/copies/{copy}/layer/{name}").st_ino for copy in (one, two))
    return first == second
