"""Forks of a conversation: branches run side by side, are prompted, merged, dropped, and their merges undone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forkwise.chat.events import (
    BranchChanged,
    BranchText,
    Ended,
    Failed,
    ForkAdopted,
    ForkLeft,
    ForkOpened,
    ForkResolved,
    MergeRefused,
    MergeUndone,
    Notice,
    TurnBegan,
)
from forkwise.chat.settings import BranchRow, ForkForm
from forkwise.live.coordinator import ForkCoordinator
from tests.chat.scripted_chat import call, chatting, write_script
from tests.need import need_recorded_changes

pytestmark = pytest.mark.anyio


async def test_branches_run_and_one_is_merged_and_undone(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, log):
        await session.submit("hello")
        before = session.here
        await session.submit("/fork task")
        fork = session.fork
        assert fork is not None
        assert log.last(ForkOpened) == ForkOpened(fork, ("a", "b"), "user")
        await log.branch("a", "done")
        await log.branch("b", "done")
        assert "".join(event.text for event in log.of(BranchText) if event.branch == "a") == "a wrote lib.txt."
        assert [(view.label, view.state, view.requests) for view in session.branches()] == [
            ("a", "done", 2),
            ("b", "done", 2),
        ]
        assert not (project / "lib.txt").exists()
        await session.submit("hello")
        assert "a fork is open" in log.last(Failed).text
        await session.submit("/fork-branches 3")
        assert "a fork is open" in log.last(Failed).text
        await session.submit("/fork another")
        assert "resolve it first" in log.last(Failed).text
        await session.submit("/merge b")
        assert (project / "lib.txt").read_text() == "from b\n"
        resolved = log.last(ForkResolved)
        assert (resolved.how, resolved.winners, resolved.paths) == ("pick", ("b",), ("lib.txt",))
        assert session.fork is None
        assert session.last_answer == "b wrote lib.txt."
        assert {f"{fork}/a", f"{fork}/b", f"merged:{fork}"} <= set(session.conversation.labels)
        await session.submit("/undo")
        assert not (project / "lib.txt").exists()
        assert log.last(MergeUndone).fork == fork
        assert session.here is before
        await session.submit("/undo")
        assert "no merge to undo" in log.last(Failed).text
        await session.submit("hello once more")
        assert session.last_answer.startswith("Hi there")


async def test_no_branch_is_reported_before_its_fork(
    project: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = ForkCoordinator.fork

    async def slowly(self: ForkCoordinator, *args: Any, **options: Any) -> Any:
        handle = await fork(self, *args, **options)
        while any(runtime.is_running for runtime in self.branches.values()):
            await asyncio.sleep(0.01)
        return handle

    monkeypatch.setattr(ForkCoordinator, "fork", slowly)
    async with chatting(project, model) as (session, log):
        await session.submit("/fork task")
        first = next(n for n, event in enumerate(log) if getattr(event, "branch", None) is not None)
        assert isinstance(log[first - 1], ForkOpened)
        assert "".join(event.text for event in log.of(BranchText) if event.branch == "a") == "a wrote lib.txt."
        await session.submit("/abort")


async def test_a_branch_is_prompted_while_it_runs_and_when_it_is_done(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, log):
        await session.open_fork(ForkForm((BranchRow("a", "task until"), BranchRow("b", "task"))))
        await log.branch("b", "done")
        await session.submit(">>a more of it")
        assert "a gets the message" in log.last(Notice).text
        await session.submit(">>c hello")
        assert "no branch 'c'" in log.last(Failed).text
        (project.parent / "script" / "a").touch()
        await log.branch("a", "done")
        await session.submit(">>b more of it")
        assert log.last(TurnBegan) == TurnBegan("more of it", "b")
        await log.branch("b", "done", 2)
        assert [line.text for line in session.said("b") if line.who == "user"] == ["task", "more of it"]
        report = session.choices.diff()
        assert [path.path for path in report.paths] == ["lib.txt", "more.txt"]
        await session.submit("/merge b")
        assert (project / "more.txt").read_text() == "more\n"
        prompts = [line.text for line in session.said() if line.who == "user"]
        assert prompts == ["task", "more of it"]


async def test_a_branch_is_ended_and_a_fork_dropped(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, log):
        await session.submit("/fork a: task until | b: task")
        await log.branch("b", "done")
        await session.submit("/abort a")
        assert [view.state for view in session.branches()] == ["terminated", "done"]
        await session.submit("/abort")
        assert log.last(ForkResolved).how == "abort"
        assert session.fork is None
        assert list(project.iterdir()) == [project / "a.txt"]
        await session.submit("/merge a")
        assert "no fork is open" in log.last(Failed).text


async def test_two_branches_are_combined(project: Path) -> None:
    rules = [
        {"branch": name, "steps": [{"calls": [call("write", path=f"{name}.md", content=name)]}, {"say": name}]}
        for name in "ab"
    ]
    model = write_script(project.parent, rules)
    async with chatting(project, model) as (session, log):
        await session.submit("/fork task")
        await session.submit("/merge combine:a,b")
        log.check_no_failures()
        assert log.last(ForkResolved).winners == ("a", "b")
        assert {(project / f"{name}.md").read_text() for name in "ab"} == {"a", "b"}
        await session.submit("/undo")
        log.check_no_failures()
        assert not (project / "a.md").exists()


async def test_an_open_fork_is_kept_for_the_next_chat(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, log):
        await session.submit("hello")
        await session.submit("/fork a: task until | b: task")
        await log.branch("b", "done")
        fork = session.fork
    assert log.last(ForkLeft).fork == fork
    assert not (project / "lib.txt").exists()
    (project.parent / "script" / "a").touch()
    async with chatting(project, model) as (again, log):
        assert log.last(ForkAdopted) == ForkAdopted(fork or "", ("a", "b"), "resumed")
        await log.branch("a", "done")
        assert [event.state for event in log.of(BranchChanged) if event.branch == "b"][-1] == "done"
        await again.submit("/merge b")
        log.check_no_failures()
        assert (project / "lib.txt").read_text() == "from b\n"
        assert [line.text for line in again.said() if line.who == "user"] == ["hello", "task"]


async def test_a_fork_of_the_agent_is_adopted(project: Path) -> None:
    specs = [{"label": label, "steer": f"task {label}"} for label in "ab"]
    rules = [
        {"when": "^try", "steps": [{"calls": [call("fork_run", specs=specs)]}, {"say": "They are running."}]},
        *({"branch": n, "steps": [{"calls": [call("write", path="n", content=n)]}, {"say": n}]} for n in "ab"),
    ]
    model = write_script(project.parent, rules)
    async with chatting(project, model) as (session, log):
        await session.submit("try both")
        log.check_no_failures()
        assert log.last(ForkOpened).by == "agent"
        assert log.last(ForkAdopted).why == "agent"
        await session.submit("/fork more")
        assert "agent already forked — resolve it first" in log.last(Failed).text
        await session.submit("/merge b")
        log.check_no_failures(expected=1)
        assert (project / "n").read_text() == "b"
        assert session.last_answer == "b"
        await session.submit("/undo")
        log.check_no_failures(expected=1)
        assert session.here is session.conversation.root
        assert not (project / "n").exists()


async def test_a_fork_is_left_while_a_branch_runs_a_further_turn(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, log):
        await session.submit("/fork a: task | b: task")
        await log.branch("a", "done")
        await session.submit(">>a wait for it")
        await log.until(lambda: session.branches()[0].state == "running")
    assert log.of(ForkLeft)
    (project.parent / "script" / "go").touch()
    async with chatting(project, model) as (session, log):
        await log.branch("a", "done")
        await session.submit("/merge a")
        log.check_no_failures()
        assert session.last_answer == "At last."


def _agents_fork(action: str) -> list[dict[str, object]]:
    """Build a script whose agent forks in two, waits for both branches, and resolves the fork itself."""
    specs = [{"label": label, "steer": f"task {label}"} for label in "ab"]
    steps = [
        {"calls": [call("fork_run", specs=specs)]},
        {"calls": [call("inspect_branches")]},
        {"calls": [call("merge_or_select", action=action)], "until": "decide"},
        {"say": "They are all gone."},
    ]
    writing = [{"branch": n, "steps": [{"calls": [call("write", path="n", content=n)]}, {"say": n}]} for n in "ab"]
    return [{"when": "^try", "steps": steps}, {"when": "^.Merged", "say": "I am b now."}, *writing]


@pytest.mark.parametrize("action", ["pick:b", "abort"])
async def test_a_fork_that_the_agent_resolves_itself(project: Path, action: str) -> None:
    model = write_script(project.parent, _agents_fork(action))
    async with chatting(project, model) as (session, log):
        turn = asyncio.create_task(session.submit("try both"))
        await log.branch("b", "done")
        await log.branch("a", "done")
        await session.submit(">>b how is it?")
        await log.branch("b", "done", 2)
        (project.parent / "decide").touch()
        await turn
        log.check_no_failures()
        assert log.last(ForkResolved).by == "agent"
        assert log.of(ForkAdopted) == []
        assert session.fork is None
        if action == "abort":
            assert (log.last(ForkResolved).how, session.last_answer) == ("abort", "They are all gone.")
            return
        assert (project / "n").read_text() == "b"
        assert session.last_answer == "I am b now."
        await session.submit("/undo")
        log.check_no_failures()
        assert (session.here.depth, (project / "n").exists()) == (0, False)


async def test_an_interrupted_turn_drops_its_fork(project: Path) -> None:
    model = write_script(project.parent, _agents_fork("pick:b"))
    async with chatting(project, model) as (session, log):
        turn = asyncio.create_task(session.submit("try both"))
        await log.branch("b", "done")
        assert session.interrupt()
        await turn
        assert log.last(ForkResolved).how == "abort"
        assert session.fork is None
        await session.submit("what now?")
        assert session.last_answer == "I have nothing to say to that."


async def test_closing_ends_a_turn_that_waits(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, log):
        turn = asyncio.create_task(session.submit("wait"))
        await log.until(lambda: session.is_busy)
    await turn
    assert session.is_closed


async def test_branches_ask_and_are_answered_by_id(project: Path) -> None:
    rules = [{"steps": [{"calls": [call("execute", command="echo ran > ran.txt")]}, {"say": "ok"}]}]
    model = write_script(project.parent, rules)
    async with chatting(project, model, ask=["execute"]) as (session, log):
        await session.submit("/fork task")
        await log.until(lambda: len(session.approvals) == 2)
        assert [view.is_waiting for view in session.branches()] == [True, True]
        by_branch = {asked.branch: asked.id for asked in session.approvals}
        await session.submit(f"/deny {by_branch['a']}")
        await session.submit(f"/approve {by_branch['b']}")
        await log.branch("a", "done")
        await log.branch("b", "done")
        assert [path.path for path in session.choices.diff().paths] == ["ran.txt"]
        await session.submit("/merge b")
        log.check_no_failures()
        assert (project / "ran.txt").read_text() == "ran\n"


async def test_loading_a_checkpoint_before_a_merge_undoes_it(project: Path, model: str) -> None:
    need_recorded_changes(project)
    async with chatting(project, model) as (session, log):
        await session.submit("/fork task")
        fork = session.fork
        await session.submit("/merge a")
        await session.submit("more of it")
        await session.submit("/undo")
        assert f"/load fork:{fork}" in log.last(Failed).text
        assert (project / "lib.txt").exists()
        await session.submit(f"/load fork:{fork}")
        log.check_no_failures(expected=1)
        assert sorted(path.name for path in project.iterdir()) == ["a.txt"]
        assert session.last_merge is None
        assert session.here is session.conversation.root


async def test_without_a_user_approvals_of_a_branch_are_denied_only_while_a_merge_waits(project: Path) -> None:
    rules = [{"steps": [{"calls": [call("execute", command="echo ran > ran.txt")]}, {"say": "Then not."}]}]
    model = write_script(project.parent, rules)
    async with chatting(project, model, ask=["execute"]) as (session, log):
        session.nobody_answers()
        await session.submit("/fork task")
        await log.until(lambda: len(session.approvals) == 2)
        await session.submit("/abort b")
        assert [asked.branch for asked in session.approvals] == ["a"]
        await session.submit("/merge a")
        log.check_no_failures()
        assert session.last_answer == "Then not."
        assert not (project / "ran.txt").exists()


async def test_a_chat_ends_although_a_merge_waits(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, log):
        await session.submit("/fork a: task until | b: task")
        await log.branch("b", "done")
        merging = asyncio.create_task(session.submit("/merge a"))
        waiting = asyncio.create_task(session.submit("hello", "soon"))
        await log.branch("a", "running")
        await asyncio.sleep(0)
        await session.submit("/quit")
        assert session.is_closed
        assert isinstance(log[-1], Ended)
        await asyncio.wait([merging, waiting])
        assert log.of(ForkResolved) == []
    assert log.of(ForkLeft)
    async with chatting(project, model) as (session, log):
        merging = asyncio.create_task(session.submit("/merge a"))
        await log.branch("a", "running")
        await session.submit("/abort")
        await merging
        assert [event.how for event in log.of(ForkResolved)] == ["abort"]
        assert session.fork is None


async def test_executable_configuration_needs_a_permission(project: Path) -> None:
    directory = project.parent / "script"
    directory.mkdir()
    steps = [{"calls": [call("write", path=".envrc", content="x\n")]}, {"say": "a is done."}]
    model = write_script(directory, [{"when": "^plan", "branch": "a", "steps": steps}, {"when": "^plan", "say": "b"}])
    async with chatting(project, model) as (session, log):
        await session.submit("/fork a: plan | b: plan")
        await log.branch("a", "done")
        for line in ("/merge a", "/merge combine:a,b"):
            await session.submit(line)
            refused = log.last(MergeRefused)
            assert refused == MergeRefused(((".envrc", "direnv"),), f"{line} --allow-executable-config")
        assert session.fork is not None
        assert not (project / ".envrc").exists()
        await session.submit(refused.retry)
        assert log.last(ForkResolved).winners == ("a", "b")
        assert (project / ".envrc").read_text() == "x\n"
        log.check_no_failures()
        await session.submit("/undo")
    async with chatting(project, model, allow_executable_config=True) as (session, log):
        await session.submit("/fork a: plan | b: plan")
        await log.branch("a", "done")
        await session.submit("/merge a")
        assert (project / ".envrc").read_text() == "x\n"
