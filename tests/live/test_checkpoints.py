"""Checkpoints: their stores, when they are saved, which are removed, and the rewind with the files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel

from forkwise import CommitError, ConflictError, ForkwiseWarning, StateError, Workspace
from forkwise.live.backends.backend import Backend
from forkwise.live.backends.branch_overlay import BranchOverlay
from forkwise.live.backends.local import LocalBackend
from forkwise.live.backends.memory import StateBackend
from forkwise.live.checkpoints import (
    Checkpoint,
    CheckpointStore,
    FileCheckpointStore,
    FilesMark,
    InMemoryCheckpointStore,
    fork_from_checkpoint,
    prune,
    rewind,
    save_checkpoint,
)
from forkwise.live.deep_agent import create_deep_agent
from forkwise.live.deps import DeepAgentDeps

pytestmark = pytest.mark.anyio


def said(text: str) -> list[ModelMessage]:
    """Build a conversation."""
    return [ModelRequest(parts=[UserPromptPart(text)]), ModelResponse(parts=[TextPart("well")])]


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    return InMemoryCheckpointStore() if request.param == "memory" else FileCheckpointStore(tmp_path / "checkpoints")


@pytest.fixture(params=["memory", "directory"])
def backend(request: pytest.FixtureRequest, workspace: Workspace) -> Backend:
    return StateBackend({"a.txt": "one\n"}) if request.param == "memory" else LocalBackend(workspace)


class TestAStore:
    async def test_load_returns_the_saved_checkpoint(self, store: CheckpointStore) -> None:
        files = FilesMark(contents={"a": b"\xff", "b": b""})
        checkpoint = Checkpoint("x", said("hello"), 3, files, {"why": "because"})
        await store.save(checkpoint)
        assert await store.get(checkpoint.id) == checkpoint
        assert checkpoint.message_count == 2

    async def test_marks_of_a_directory_too(self, store: CheckpointStore) -> None:
        checkpoint = Checkpoint("x", [], files=FilesMark("/somewhere", 7))
        await store.save(checkpoint)
        assert await store.get(checkpoint.id) == checkpoint

    async def test_lists_the_oldest_first(self, store: CheckpointStore) -> None:
        one = Checkpoint("one", [])
        two = replace(Checkpoint("two", []), created_at=one.created_at + timedelta(seconds=1))
        await store.save(two)
        await store.save(one)
        assert [c.label for c in await store.list_all()] == ["one", "two"]
        assert await store.count() == 2

    async def test_finds_the_newest_with_a_label(self, store: CheckpointStore) -> None:
        one = Checkpoint("x", said("1"))
        two = replace(Checkpoint("x", said("2")), created_at=one.created_at + timedelta(seconds=1))
        await store.save(two)
        await store.save(one)
        assert await store.get_by_label("x") == two
        assert await store.get_by_label("y") is None

    async def test_lets_go(self, store: CheckpointStore) -> None:
        one, two = Checkpoint("x", []), Checkpoint("y", [])
        await store.save(one)
        await store.save(two)
        assert await store.remove(one.id)
        assert not await store.remove(one.id)
        assert await store.get(one.id) is None
        await store.clear()
        assert await store.count() == 0

    async def test_is_a_store(self, store: CheckpointStore) -> None:
        assert isinstance(store, CheckpointStore)

    async def test_begins_another_conversation(self, store: CheckpointStore) -> None:
        checkpoint = await save_checkpoint(store, "x", said("hello"))
        assert await fork_from_checkpoint(store, checkpoint.id) == said_as(checkpoint)
        with pytest.raises(LookupError):
            await fork_from_checkpoint(store, "none")


def said_as(checkpoint: Checkpoint) -> list[ModelMessage]:
    return checkpoint.messages


class TestFilesOfAStore:
    async def test_are_there_for_the_next_process(self, tmp_path: Path) -> None:
        checkpoint = await save_checkpoint(FileCheckpointStore(tmp_path), "x", said("hello"), StateBackend({"a": "b"}))
        assert await FileCheckpointStore(tmp_path).list_all() == [checkpoint]

    @pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 100_000, '{"format": 2}', '{"format": 1, "id": 7}'])
    async def test_a_damaged_one_takes_away_itself_only(self, tmp_path: Path, content: str) -> None:
        store = FileCheckpointStore(tmp_path)
        checkpoint = await save_checkpoint(store, "x", said("hello"), StateBackend({"a": "b"}))
        (tmp_path / "bad.json").write_text(content)
        with pytest.warns(ForkwiseWarning, match="a checkpoint is left out"):
            assert await store.list_all() == [checkpoint]
        with pytest.raises(StateError, match="remove the file"):
            await store.get("bad")
        assert await store.remove("bad")

    async def test_an_id_that_leads_elsewhere_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text("{}")
        with pytest.raises(ValueError, match="not the id"):
            await FileCheckpointStore(tmp_path / "in").get("../x")


@dataclass
class Coordinator:
    """A coordinator with the attributes that pruning reads."""

    fork_id: str
    is_resolved: bool


class TestPruning:
    async def test_lets_the_oldest_go(self, store: CheckpointStore) -> None:
        for number in range(5):
            await save_checkpoint(store, str(number), [])
        await prune(store, 3)
        assert [c.label for c in await store.list_all()] == ["2", "3", "4"]

    @pytest.mark.parametrize(("is_resolved", "kept"), [(False, ["fork:f", "6", "7"]), (True, ["5", "6", "7"])])
    async def test_keeps_the_anchor_of_an_open_fork(
        self, store: CheckpointStore, is_resolved: bool, kept: list[str]
    ) -> None:
        await save_checkpoint(store, "fork:f", [])
        for number in range(8):
            await save_checkpoint(store, str(number), [])
            await prune(store, 3, Coordinator("f", is_resolved))
        assert [c.label for c in await store.list_all()] == kept


def plays(*steps: ModelResponse) -> FunctionModel:
    """A model that returns scripted responses."""
    left = list(steps)
    return FunctionModel(lambda messages, info: left.pop(0))


def calls(tool: str, **arguments: Any) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart(tool, arguments)])


DONE = ModelResponse(parts=[TextPart("done")])


class TestSavingAsAnAgentGoesOn:
    @pytest.mark.parametrize(
        ("frequency", "labels"),
        [("every_tool", ["turn", "tool:write", "tool:ls"]), ("every_turn", ["turn"]), ("manual_only", [])],
    )
    async def test_as_often_as_is_asked_for(self, store: CheckpointStore, frequency: Any, labels: list[str]) -> None:
        agent = create_deep_agent(
            plays(calls("write", path="a", content="1"), calls("ls"), DONE),
            include_checkpoints=True,
            checkpoint_frequency=frequency,
        )
        await agent.run("go", deps=DeepAgentDeps(StateBackend(), checkpoint_store=store))
        assert [c.label for c in await store.list_all()] == labels

    @pytest.mark.usefixtures("recorded_changes")
    async def test_each_checkpoint_can_be_continued_with_its_files(self, backend: Backend) -> None:
        steps = [calls("write", path="a.txt", content=str(n)) for n in range(4)]
        store = InMemoryCheckpointStore()
        deps = DeepAgentDeps(backend, checkpoint_store=store)
        agent = create_deep_agent(plays(*steps, DONE), include_checkpoints=True)
        result = await agent.run("go", deps=deps)
        kept = await store.list_all()
        assert len(kept) == 5
        for number, checkpoint in reversed(list(enumerate(kept))):
            back = await rewind(store, checkpoint.id, backend, result.all_messages())
            assert backend.read_bytes("a.txt").decode() == (str(number - 1) if number else "one\n")
            again = await agent.run("go on", deps=deps, message_history=back.messages, model=plays(DONE))
            assert again.output == "done"

    async def test_in_the_store_of_the_agent_where_deps_have_none(self) -> None:
        store = InMemoryCheckpointStore()
        agent = create_deep_agent(plays(DONE), include_checkpoints=True, checkpoint_store=store)
        await agent.run("go", deps=DeepAgentDeps())
        assert await store.count() == 1

    async def test_no_more_than_so_many(self) -> None:
        store = InMemoryCheckpointStore()
        agent = create_deep_agent(plays(*[calls("ls")] * 6, DONE), include_checkpoints=True, max_checkpoints=3)
        await agent.run("go", deps=DeepAgentDeps(checkpoint_store=store))
        assert await store.count() == 3


@pytest.mark.usefixtures("recorded_changes")
class TestRewinding:
    async def test_restores_conversation_and_files_and_can_be_undone(
        self, store: CheckpointStore, backend: Backend
    ) -> None:
        await save_checkpoint(store, "fork:f", said("before"), backend)
        branch = BranchOverlay(backend)
        branch.write("a.txt", "merged\n")
        branch.write("new.txt", "new\n")
        branch.flush_to(backend)
        await save_checkpoint(store, "post-fork:f", said("after"), backend)
        backend.write("a.txt", "further\n")
        backend.write("more.txt", "more\n")

        back = await rewind(store, "post-fork:f", backend, said("now"))
        assert texts(back.messages) == ["after"]
        assert names(backend) == {"a.txt": b"merged\n", "new.txt": b"new\n"}

        first = await rewind(store, "fork:f", backend, back.messages)
        assert texts(first.messages) == ["before"]
        assert names(backend) == {"a.txt": b"one\n"}

        forth = await rewind(store, back.before.id, backend)
        assert texts(forth.messages) == ["now"]
        assert names(backend) == {"a.txt": b"further\n", "new.txt": b"new\n", "more.txt": b"more\n"}

        await rewind(store, "fork:f", backend)
        await rewind(store, "post-fork:f", backend)
        assert names(backend) == {"a.txt": b"merged\n", "new.txt": b"new\n"}

    async def test_undoes_commands_too(self, workspace: Workspace) -> None:
        store, backend = InMemoryCheckpointStore(), LocalBackend(workspace)
        await save_checkpoint(store, "x", [], backend)
        backend.execute("rm a.txt; mkdir -p d/e; echo x > d/e/x")
        done = await rewind(store, "x", backend)
        assert len(done.commits) == 1
        assert names(backend) == {"a.txt": b"one\n"}

    async def test_is_all_or_nothing(self, workspace: Workspace) -> None:
        """Of three commits the oldest cannot be undone: the two after it are restored, and nothing is lost."""
        store, backend = InMemoryCheckpointStore(), LocalBackend(workspace)
        await save_checkpoint(store, "x", [], backend)
        for name in ("a.txt", "b.txt", "c.txt"):
            backend.write(name, "two\n")
        (workspace.path / "a.txt").write_text("by another writer\n")
        with pytest.raises(ConflictError):
            await rewind(store, "x", backend)
        assert names(backend) == {"a.txt": b"by another writer\n", "b.txt": b"two\n", "c.txt": b"two\n"}
        assert [c.label for c in await store.list_all()] == ["x"]

    async def test_an_earlier_undo_stays(self, workspace: Workspace) -> None:
        store, backend = InMemoryCheckpointStore(), LocalBackend(workspace)
        backend.write("a.txt", "two\n")
        backend.write("b.txt", "b\n")
        workspace.undo()
        await save_checkpoint(store, "x", [], backend)
        workspace.undo()
        backend.write("c.txt", "c\n")
        workspace.undo(workspace.history()[0].id)
        await rewind(store, "x", backend)
        assert names(backend) == {"a.txt": b"two\n"}

    async def test_needs_the_same_files(self, workspace: Workspace) -> None:
        store = InMemoryCheckpointStore()
        await save_checkpoint(store, "x", [], StateBackend({"a": "1"}))
        with pytest.raises(CommitError, match="cannot be restored here"):
            await rewind(store, "x", LocalBackend(workspace))
        with pytest.raises(LookupError):
            await rewind(store, "../x", LocalBackend(workspace))

    async def test_inside_a_branch_too(self, backend: Backend) -> None:
        branch = BranchOverlay(backend)
        try:
            store = InMemoryCheckpointStore()
            await save_checkpoint(store, "x", said("then"), branch)
            branch.write("a.txt", "two\n")
            back = await rewind(store, "x", branch, said("now"))
            assert texts(back.messages) == ["then"]
            assert branch.read_bytes("a.txt") == b"one\n"
            forth = await rewind(store, back.before.id, branch)
            assert texts(forth.messages) == ["now"]
            assert branch.read_bytes("a.txt") == b"two\n"
            assert backend.read_bytes("a.txt") == b"one\n"
        finally:
            branch.discard()

    async def test_a_collected_commit_cannot_be_restored(self, workspace: Workspace) -> None:
        store, backend = InMemoryCheckpointStore(), LocalBackend(workspace)
        await save_checkpoint(store, "x", [], backend)
        for number in range(4):
            backend.write("a.txt", str(number))
        workspace.gc(keep=2)
        with pytest.raises(CommitError, match="collected"):
            await rewind(store, "x", backend)
        assert backend.read_bytes("a.txt") == b"3"


def names(backend: Backend) -> dict[str, bytes]:
    """Read all files of a backend."""
    return {info["path"]: backend.read_bytes(info["path"]) for info in backend.glob_info("**")}


def texts(messages: list[ModelMessage]) -> list[object]:
    """Return the user prompts."""
    return [part.content for message in messages for part in message.parts if isinstance(part, UserPromptPart)]
