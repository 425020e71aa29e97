"""Forks from a program: branches run in parallel, one is merged with its conversation and its files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel

from forkwise import (
    BranchSpec,
    DeepAgentDeps,
    ForkBranchLimitError,
    ForkCoordinator,
    ForkDepthLimitError,
    ForkHandle,
    InMemoryCheckpointStore,
    InMemoryForkStateStore,
    LedgerForkStore,
    MergeStrategy,
    StateBackend,
    Workspace,
    create_deep_agent,
    open_ledger,
)
from forkwise.conversation.conversation import Conversation
from tests.live.worker import BEFORE, all_over, last_results, work, worker
from tests.modules.brain import Asked, Brain, call

pytestmark = pytest.mark.anyio

TWO = [BranchSpec("a", "write a.txt alpha"), BranchSpec("b", "write b.txt beta")]


@pytest.fixture
def coordinator(workspace: Workspace) -> ForkCoordinator:
    return ForkCoordinator(worker(), workspace=workspace)


async def test_a_fork_runs_its_branches_and_keeps_one(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    handle = await coordinator.fork(TWO, parent_history=BEFORE)
    await all_over(coordinator)
    assert [(s.label, s.state) for s in coordinator.inspect_branches()] == [("a", "done"), ("b", "done")]
    assert sorted(p.name for p in workspace.path.iterdir()) == ["a.txt"]  # nothing is visible before the merge
    result = await coordinator.merge_or_select(f"pick:{handle.branches[1]}")
    assert (result.winner_branch_id, result.discarded_branches) == (handle.branches[1], [handle.branches[0]])
    assert (result.applied_paths, result.conflicts, result.errors) == (["b.txt"], [], [])
    assert (workspace.path / "b.txt").read_text() == "beta"
    assert (workspace.path / "a.txt").read_text() == "one\n"
    assert result.commit_id is not None
    workspace.undo(int(result.commit_id))
    assert not (workspace.path / "b.txt").exists()


async def test_the_history_after_a_merge_is_the_parents_and_the_winners(coordinator: ForkCoordinator) -> None:
    await coordinator.fork(TWO, parent_history=BEFORE)
    result = await coordinator.merge_or_select("pick:b")
    history: list[ModelMessage] = result.history_after_merge
    assert history[:2] == BEFORE
    assert history[0] is BEFORE[0]  # the same object, not a copy
    assert [m.kind for m in history] == ["request", "response"] * 3
    assert isinstance(history[-1], ModelResponse)
    assert history[-1].parts == [TextPart("done: write b.txt beta")]
    Conversation().extend(history)
    again = await worker().run("say thanks", message_history=history)
    assert again.output == "thanks"


async def test_a_live_branch_is_an_attempt_in_the_ledger(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    handle = await coordinator.fork(TWO, parent_history=BEFORE)
    await all_over(coordinator)
    result = await coordinator.merge_or_select(f"pick:{handle.branches[0]}")
    with open_ledger(workspace) as ledger:
        fork = ledger.fork(handle.fork_id)
        assert (fork.kind, fork.state, fork.winner) == ("live", "resolved", handle.branches[0])
        assert str(fork.commit) == result.commit_id
        attempts = ledger.attempts(fork.id)
        assert [(a.label, a.state) for a in attempts] == [("a", "succeeded"), ("b", "succeeded")]
        assert attempts[0].cost is not None
        assert attempts[0].cost["requests"] == 2


@pytest.mark.parametrize(
    ("specs", "error"),
    [
        ([], ValueError),
        ([BranchSpec("a", "  ")], ValueError),
        ([BranchSpec(str(n), "say hi") for n in range(11)], ForkBranchLimitError),
    ],
)
async def test_a_fork_that_makes_no_sense_is_refused(
    coordinator: ForkCoordinator, specs: list[BranchSpec], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await coordinator.fork(specs, parent_history=BEFORE)
    assert coordinator.is_resolved
    assert coordinator.fork_id is None


async def test_labels_are_distinct_and_safe_as_paths(coordinator: ForkCoordinator) -> None:
    specs = [BranchSpec(label, "say hi") for label in ("x", "x", "", "../../up")]
    await coordinator.fork(specs, parent_history=[])
    assert [status.label for status in coordinator.inspect_branches()] == ["x", "x-2", "branch-3", "up"]
    await coordinator.abort_fork()


async def test_further_turns_of_a_branch(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    handle = await coordinator.fork(TWO, parent_history=BEFORE)
    first, second = handle.branches
    with pytest.raises(ValueError, match="no branch"):
        await coordinator.run_on_branch("nobody", "hi")
    await all_over(coordinator)
    task = await coordinator.run_on_branch(first, "write c.txt gamma")
    assert coordinator.branches[first].status.state == "running"
    with pytest.raises(RuntimeError, match="running"):
        await coordinator.run_on_branch(first, "and more")
    assert (await task).output == "done: write c.txt gamma"
    assert [s.current_turn for s in coordinator.inspect_branches()] == [1, 0]
    result = await coordinator.merge_or_select(f"pick:{first}")
    assert result.applied_paths == ["a.txt", "c.txt"]
    assert [m.kind for m in result.history_after_merge] == ["request", "response"] * 5
    assert (workspace.path / "c.txt").read_text() == "gamma"
    assert second in result.discarded_branches


async def test_a_branch_is_spoken_to_while_it_runs(workspace: Workspace) -> None:
    heard = []

    def listen(asked: Asked) -> Any:
        heard.append(asked.prompts[-1])
        return "I heard you" if last_results(asked) else call("wait")

    agent = Agent(Brain(decide=listen))
    gate = asyncio.Event()

    @agent.tool_plain
    async def wait() -> str:
        await gate.wait()
        return "waited"

    coordinator = ForkCoordinator(agent, workspace=workspace)
    await coordinator.fork([BranchSpec("a", "say hi")], parent_history=[])
    while not heard:
        await asyncio.sleep(0.01)
    coordinator.steer_branch("a", "make it shorter")
    gate.set()
    await coordinator.merge_or_select("pick:a")
    assert heard == ["say hi", "make it shorter"]


async def test_a_branch_that_failed_cannot_win_and_the_others_can(coordinator: ForkCoordinator) -> None:
    await coordinator.fork([BranchSpec("bad", "fail"), TWO[1]], parent_history=BEFORE)
    await all_over(coordinator)
    bad, good = coordinator.inspect_branches()
    assert (bad.state, good.state) == ("failed", "done")
    assert "out of order" in (bad.error or "")
    with pytest.raises(RuntimeError, match="out of order"):
        await coordinator.merge_or_select("pick:bad")
    assert not coordinator.is_resolved
    await coordinator.merge_or_select("pick:b")
    assert coordinator.is_resolved


async def test_a_terminated_branch_can_be_picked_with_what_it_did(
    coordinator: ForkCoordinator, workspace: Workspace
) -> None:
    handle = await coordinator.fork([BranchSpec("a", "write w.txt kept; run sleep 100")], parent_history=BEFORE)
    [runtime] = coordinator.branches.values()
    while "w.txt" not in runtime.overlay.touched() or len(runtime.partial_history) < 5:
        await asyncio.sleep(0.01)
    await coordinator.terminate_branch(handle.branches[0])
    await coordinator.terminate_branch(handle.branches[0])  # changes nothing
    assert runtime.status.state == "terminated"
    result = await coordinator.merge_or_select(f"pick:{handle.branches[0]}")
    assert (workspace.path / "w.txt").read_text() == "kept"
    Conversation().extend(result.history_after_merge)
    assert "wrote w.txt" in str(result.history_after_merge)


async def test_a_branch_that_never_spoke_has_nothing_to_be_picked(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(Agent(Brain(decide=work, seconds=100)), workspace=workspace)
    await coordinator.fork([BranchSpec("a", "say hi")], parent_history=[])
    runtime = coordinator.branches[coordinator.inspect_branches()[0].id]
    runtime.partial_history = []
    await coordinator.terminate_branch("a")
    runtime.partial_history = []
    with pytest.raises(RuntimeError, match="terminated"):
        await coordinator.merge_or_select("pick:a")
    await coordinator.aclose()


async def test_abort_and_close_leave_nothing(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    handle = await coordinator.fork([*TWO, BranchSpec("slow", "run sleep 100")], parent_history=BEFORE)
    assert await coordinator.abort_fork() == handle.branches
    assert coordinator.is_resolved
    await coordinator.aclose()
    await coordinator.aclose()
    assert {s.state for s in coordinator.inspect_branches()} <= {"done", "terminated"}
    assert all(runtime.overlay is None for runtime in coordinator.branches.values())


async def test_an_action_has_to_be_one(coordinator: ForkCoordinator) -> None:
    with pytest.raises(RuntimeError, match="no fork"):
        await coordinator.merge_or_select("pick:x")
    with pytest.raises(RuntimeError, match="no fork"):
        coordinator.fork_cost()
    await coordinator.fork(TWO, parent_history=BEFORE)
    for action in ("choose:a", "pick:", "pick:zzz"):
        with pytest.raises(ValueError, match=r"not an action|no branch"):
            await coordinator.merge_or_select(action)
    result = await coordinator.merge_or_select("abort")
    assert (result.winner_branch_id, result.history_after_merge) == ("", BEFORE)


# Regressions


async def test_a_merge_after_a_merge_is_refused(coordinator: ForkCoordinator) -> None:
    await coordinator.fork(TWO, parent_history=BEFORE)
    await coordinator.merge_or_select("pick:a")
    for action in ("pick:b", "auto", "abort"):
        with pytest.raises(RuntimeError, match="resolved already"):
            await coordinator.merge_or_select(action)


async def test_a_second_fork_waits_for_the_first_and_mixes_nothing_in(
    coordinator: ForkCoordinator, workspace: Workspace
) -> None:
    first = await coordinator.fork(TWO, parent_history=BEFORE)
    with pytest.raises(RuntimeError, match="not resolved"):
        await coordinator.fork(TWO, parent_history=BEFORE)
    await coordinator.merge_or_select("pick:a")
    second = await coordinator.fork([BranchSpec("c", "write c.txt gamma")], parent_history=BEFORE)
    assert second.fork_id != first.fork_id
    assert list(coordinator.branches) == second.branches
    assert [s.label for s in coordinator.inspect_branches()] == ["c"]
    await coordinator.merge_or_select("pick:c")
    assert (workspace.path / "c.txt").exists()


async def test_is_resolved_after_closing(coordinator: ForkCoordinator) -> None:
    assert coordinator.is_resolved
    await coordinator.fork(TWO, parent_history=BEFORE)
    assert not coordinator.is_resolved
    await coordinator.aclose()
    assert coordinator.is_resolved


async def test_model_and_extra_instructions_of_a_spec_are_applied(workspace: Workspace) -> None:
    mine = Brain(decide=work)
    agent = worker(mine, instructions="Be brief.")
    coordinator = ForkCoordinator(agent, workspace=workspace)
    specs = [
        BranchSpec("own", "say hi", extra_instructions="Speak French."),
        BranchSpec("other", "say hi", model="test"),
    ]
    await coordinator.fork(specs, parent_history=BEFORE)
    await all_over(coordinator)
    assert [asked.system for asked in mine.asked] == ["Be brief.\n\nSpeak French."]
    other = coordinator.branches[coordinator.inspect_branches()[1].id]
    last = other.thread.node.message
    assert isinstance(last, ModelResponse)
    assert last.model_name == "test"
    await coordinator.aclose()


async def test_no_message_of_the_history_is_copied(coordinator: ForkCoordinator) -> None:
    history: list[ModelMessage] = []
    for number in range(50):
        history += [ModelRequest(parts=[UserPromptPart(f"q{number}")]), ModelResponse(parts=[TextPart(f"a{number}")])]
    await coordinator.fork(TWO, parent_history=history)
    await all_over(coordinator)
    for runtime in coordinator.branches.values():
        assert all(a is b for a, b in zip(history, runtime.thread.history(), strict=False))
        assert all(a is b for a, b in zip(history[:-1], runtime.partial_history, strict=False))
    await coordinator.aclose()


async def test_paths_that_lead_out_of_a_branch_stay_in_it(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    target = workspace.path / "absolute.txt"
    await coordinator.fork([BranchSpec("../../x", f"run echo inside > {target}")], parent_history=BEFORE)
    await all_over(coordinator)
    assert not target.exists()
    assert coordinator.materializer is not None
    assert not list(workspace.path.parent.glob("x"))
    await coordinator.merge_or_select("pick:x")
    assert target.read_text() == "inside\n"


async def test_the_winners_version_of_a_conflict_is_kept(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    await coordinator.fork([BranchSpec("a", "write a.txt branch; write new.txt new")], parent_history=BEFORE)
    await all_over(coordinator)
    (workspace.path / "a.txt").write_text("newer in the parent\n")
    result = await coordinator.merge_or_select("pick:a")
    assert (result.conflicts, result.applied_paths) == (["a.txt"], ["new.txt"])
    assert result.conflict_contents == {"a.txt": b"branch"}
    assert (workspace.path / "a.txt").read_text() == "newer in the parent\n"
    assert (workspace.path / "new.txt").read_text() == "new"
    assert result.kept_branch is not None
    workspace.open(result.kept_branch).abort()


async def test_last_write_wins_where_that_is_asked_for(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    strategy = MergeStrategy(conflict_policy="last_write_wins")
    await coordinator.fork([BranchSpec("a", "write a.txt branch")], parent_history=BEFORE, strategy=strategy)
    await all_over(coordinator)
    (workspace.path / "a.txt").write_text("newer in the parent\n")
    result = await coordinator.merge_or_select("pick:a")
    assert result.conflicts == ["a.txt"]
    assert (workspace.path / "a.txt").read_text() == "branch"


# Approvals


@pytest.mark.parametrize(("answer", "blocked"), [(True, []), (False, ['dangerous({"what":"it"})'])])
async def test_a_branch_asks_for_approval(coordinator: ForkCoordinator, answer: bool, blocked: list[str]) -> None:
    handle = await coordinator.fork([BranchSpec("a", "ask it")], parent_history=BEFORE)
    while not (waiting := coordinator.iter_pending_approvals()):
        await asyncio.sleep(0.01)
    [(branch, request)] = waiting
    assert (branch, request.branch_id) == (handle.branches[0], handle.branches[0])
    assert "dangerous" in request.description
    await request.response.put(answer)
    result = await coordinator.merge_or_select("pick:a")
    assert result.blocked_commands == blocked
    assert ("did it" in str(result.history_after_merge)) is answer
    assert coordinator.iter_pending_approvals() == []


# Nested forks


async def test_a_branch_forks_itself_down_to_the_most_that_is_allowed(workspace: Workspace) -> None:
    depths: list[int | str] = []

    async def deeper(coordinator: ForkCoordinator) -> None:
        depths.append(coordinator.depth)
        try:
            await coordinator.fork([BranchSpec("in", "go down")], parent_history=BEFORE)
        except ForkDepthLimitError as error:
            depths.append(f"{error.depth} of {error.limit}")
            return
        await coordinator.merge_or_select("pick:in")

    def think(asked: Asked) -> Any:
        return "up again" if last_results(asked) else call("down")

    agent = Agent(Brain(decide=think))

    @agent.tool
    async def down(ctx: RunContext[Any]) -> str:
        await ctx.workspace.write_text(f"depth-{len(depths)}.txt", "here")
        await deeper(ForkCoordinator(agent, workspace=workspace))
        return "been there"

    await deeper(ForkCoordinator(agent, workspace=workspace))
    assert depths == [0, 1, 2, "2 of 2"]
    assert sorted(p.name for p in workspace.path.iterdir()) == ["a.txt", "depth-1.txt", "depth-2.txt"]
    with open_ledger(workspace) as ledger:
        inner, outer = ledger.forks()
        assert inner.parent == f"{outer.id}.1"


async def test_the_mirror_says_where_branches_stand(workspace: Workspace, tmp_path: Path) -> None:
    root = tmp_path / "mirror"
    coordinator = ForkCoordinator(worker(), workspace=workspace, materializer_root=root, keep_artifacts=True)
    handle = await coordinator.fork([TWO[0], BranchSpec("bad", "fail")], parent_history=BEFORE)
    manifest = root / handle.fork_id / "manifest.json"

    def stand() -> dict[str, tuple[str, int]]:
        report = json.loads(manifest.read_text())
        return {branch["label"]: (branch["state"], branch["current_turn"]) for branch in report["branches"]}

    await all_over(coordinator)
    while stand() != {"a": ("done", 0), "bad": ("failed", 0)}:
        await asyncio.sleep(0.01)
    await (await coordinator.run_on_branch("a", "say more"))
    while stand()["a"] != ("done", 1):
        await asyncio.sleep(0.01)
    await coordinator.merge_or_select("pick:a")
    assert stand() == {"a": ("done", 1), "bad": ("failed", 0)}


# Without a directory


async def test_a_programmatic_fork_in_memory_as_the_guide_has_it() -> None:
    agent = create_deep_agent(Brain(decide=_deep), forking=True)
    backend = StateBackend({"a.txt": "one"})
    deps = DeepAgentDeps(backend=backend)
    result = await agent.run("warm up the run loop", deps=deps)
    coordinator = deps.fork_coordinator
    assert coordinator is not None
    specs = [BranchSpec("conservative", "write safe.md"), BranchSpec("aggressive", "write fast.md")]
    with pytest.warns(UserWarning, match="checkpoint"):
        handle = await coordinator.fork(specs, parent_history=list(result.all_messages()))
    assert isinstance(coordinator.store, InMemoryForkStateStore)
    assert await coordinator.store.get(handle.fork_id) == handle
    await all_over(coordinator)
    for runtime in coordinator.branches.values():
        assert [change.op for change in runtime.overlay.changes()] == ["write"]
    assert set(backend.files) == {"a.txt"}
    merge = await coordinator.merge_or_select(f"pick:{handle.branches[0]}")
    assert (merge.winner_branch_id, merge.applied_paths) == (handle.branches[0], ["safe.md"])
    assert set(backend.files) == {"a.txt", "safe.md"}
    assert len(merge.history_after_merge) == 6


def _deep(asked: Asked) -> Any:
    if asked.prompts[-1].startswith("write") and not last_results(asked):
        return call("write", path=asked.prompts[-1].split()[1], content="x")
    return "done"


async def test_an_agent_without_files_forks_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    coordinator = ForkCoordinator(Agent(Brain(decide=work)))
    with pytest.warns(UserWarning, match="checkpoint"):
        await coordinator.fork([BranchSpec("a", "say one"), BranchSpec("b", "say two")], parent_history=[])
    result = await coordinator.merge_or_select("pick:b")
    assert result.history_after_merge[-1].parts == [TextPart("two")]
    assert (result.applied_paths, result.commit_id) == ([], None)
    assert list(tmp_path.iterdir()) == []


async def test_the_store_of_a_workspace_is_its_ledger(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    handle = await coordinator.fork(TWO, parent_history=BEFORE)
    assert isinstance(coordinator.store, LedgerForkStore)
    assert await LedgerForkStore(workspace).list_all() == [handle]
    assert await coordinator.store.interrupted() == []
    await coordinator.aclose()
    assert await coordinator.store.get("zzzzzz") is None


async def test_a_fork_without_checkpoints_warns_over_a_directory_too(coordinator: ForkCoordinator) -> None:
    """The guide: "If include_checkpoints is False, fork_run still works but emits a UserWarning"."""
    with pytest.warns(UserWarning, match=r"no checkpoint store.*Workspace\.undo"):
        handle = await coordinator.fork(TWO, parent_history=BEFORE)
    assert handle.parent_checkpoint_id is None
    await coordinator.aclose()


async def test_the_handle_names_the_checkpoint_if_there_is_a_store(workspace: Workspace) -> None:
    """The guide: "Before tasks are spawned, the coordinator saves fork:<id>"."""
    store = InMemoryCheckpointStore()
    coordinator = ForkCoordinator(worker(), workspace=workspace, checkpoint_store=store)
    handle = await coordinator.fork(TWO, parent_history=BEFORE)
    [anchor] = await store.list_all()
    assert (anchor.id, anchor.label) == (handle.parent_checkpoint_id, f"fork:{handle.fork_id}")
    await coordinator.aclose()


async def test_statuses_are_copies(workspace: Workspace) -> None:
    """The API page: inspect_branches: "Return a snapshot of every branch's current status."."""
    agent = Agent(Brain(decide=lambda asked: "over" if last_results(asked) else call("wait")))
    gate = asyncio.Event()

    @agent.tool_plain
    async def wait() -> str:
        await gate.wait()
        return "waited"

    coordinator = ForkCoordinator(agent, workspace=workspace)
    await coordinator.fork(TWO, parent_history=BEFORE)
    before = coordinator.inspect_branches()
    before[0].state = "failed"
    gate.set()
    await all_over(coordinator)
    assert [status.state for status in coordinator.inspect_branches()] == ["done", "done"]
    assert before[1].state == "running"
    await coordinator.aclose()


class _FullStore(InMemoryForkStateStore):
    async def save(self, handle: ForkHandle) -> None:
        raise OSError("no space left")


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_a_store_that_fails_ends_the_branches(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on_disk: bool
) -> None:
    """The guide: "Where ForkHandle records are persisted for inspection"; without a record there are no branches."""
    monkeypatch.chdir(tmp_path)
    agent = worker() if is_on_disk else Agent(Brain(decide=work))
    coordinator = ForkCoordinator(agent, workspace=workspace if is_on_disk else None, store=_FullStore())
    steers = [BranchSpec("a", "say one"), BranchSpec("b", "say two")]
    with pytest.raises(OSError, match="no space left"):
        await coordinator.fork(steers, parent_history=[])
    assert coordinator.is_resolved
    assert all(runtime.task.done() for runtime in coordinator.branches.values())
    assert workspace.branches() == []
    coordinator.store = InMemoryForkStateStore()
    await coordinator.fork(steers, parent_history=[])
    assert (await coordinator.merge_or_select("pick:b")).history_after_merge[-1].parts == [TextPart("two")]


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_messages_of_the_winner_keep_their_run_id(workspace: Workspace, is_on_disk: bool) -> None:
    """The guide: "parent run continues with winner's history": also with the ids of its runs."""
    agent = worker() if is_on_disk else Agent(Brain(decide=work))
    coordinator = ForkCoordinator(agent, workspace=workspace if is_on_disk else None)
    before = (await Agent(Brain(decide=work)).run("say hello")).all_messages()
    handle = await coordinator.fork([BranchSpec("a", "say one")], parent_history=before)
    await all_over(coordinator)
    await (await coordinator.run_on_branch(handle.branches[0], "say more"))
    history = (await coordinator.merge_or_select("pick:a")).history_after_merge
    ids = [message.run_id for message in history]
    assert None not in ids
    assert ids[:2] == [message.run_id for message in before]
    assert ids[2] == ids[3] != ids[4] == ids[5]


async def test_a_fork_in_memory_makes_no_workspace_and_starts_no_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guide: "InMemoryForkStateStore is the only store; process restart loses fork state": nothing else is kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Workspace, "__init__", lambda *_, **__: pytest.fail("a workspace was opened"))
    backend = StateBackend({"a.txt": "one"})
    coordinator = ForkCoordinator(create_deep_agent(Brain(decide=_deep)), DeepAgentDeps(backend=backend))
    handle = await coordinator.fork([BranchSpec("a", "write b.txt")], parent_history=[])
    mirror = tmp_path / ".forkwise/forks" / handle.fork_id
    assert json.loads((mirror / "manifest.json").read_text())["fork_id"] == handle.fork_id
    assert (await coordinator.merge_or_select("pick:a")).applied_paths == ["b.txt"]
    assert list(tmp_path.iterdir()) == []


async def test_a_fork_from_calls_that_are_being_made_keeps_the_task(workspace: Workspace) -> None:
    seen: list[Asked] = []

    def look(asked: Asked) -> Any:
        seen.append(asked)
        return "seen"

    coordinator = ForkCoordinator(Agent(Brain(decide=look)), workspace=workspace)
    task = [
        ModelRequest(parts=[UserPromptPart("the task")]),
        ModelResponse(parts=[ToolCallPart("fork_run", {}, "c1"), ToolCallPart("read", {}, "c2")]),
    ]
    await coordinator.fork([BranchSpec("a", "this way")], parent_history=task)
    await coordinator.merge_or_select("pick:a")
    assert seen[0].prompts == ["the task", "this way"]
    assert len(seen[0].results) == 2
    assert "branch 'a'" in seen[0].results[0]


async def test_a_providers_fault_is_not_the_branchs_failure(workspace: Workspace) -> None:
    """A server error ends the branch as faulted, in its first turn and in later ones; other errors are failures."""
    status = 503

    def respond(*_: Any) -> ModelResponse:
        raise ModelHTTPError(status, "a model")

    coordinator = ForkCoordinator(Agent(FunctionModel(respond)), workspace=workspace)
    await coordinator.fork([BranchSpec("one", "work")], parent_history=BEFORE)
    await all_over(coordinator)
    [branch] = coordinator.inspect_branches()
    assert branch.state == "faulted"
    with open_ledger(workspace) as ledger:
        record = ledger.attempt(branch.id)
        assert (record.state, record.fault) == ("faulted", "provider")
        assert "503" in (record.reason or "")
    status = 400
    await coordinator.aclose()
    await coordinator.fork([BranchSpec("one", "work")], parent_history=BEFORE)
    await all_over(coordinator)
    assert coordinator.inspect_branches()[0].state == "failed"
    await coordinator.aclose()
