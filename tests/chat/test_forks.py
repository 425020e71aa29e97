"""Forking a conversation: branches that run side by side, are spoken to, merged, dropped, and taken back."""

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
    MergeUndone,
    Notice,
    TurnBegan,
)
from forkwise.chat.settings import BranchRow, ForkForm
from forkwise.live.coordinator import ForkCoordinator
from tests.chat.scripted_chat import call, chatting, write_script

pytestmark = pytest.mark.anyio


async def test_branches_run_and_one_is_merged_and_taken_back(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, heard):
        await session.submit("hello")
        before = session.here
        await session.submit("/fork task")
        fork = session.fork
        assert fork is not None
        assert heard.last(ForkOpened) == ForkOpened(fork, ("a", "b"), "user")
        await heard.branch("a", "done")
        await heard.branch("b", "done")
        assert "".join(event.text for event in heard.of(BranchText) if event.branch == "a") == "a wrote lib.txt."
        assert [(view.label, view.state, view.requests) for view in session.branches()] == [
            ("a", "done", 2),
            ("b", "done", 2),
        ]
        assert not (project / "lib.txt").exists()
        await session.submit("hello")
        assert "a fork is open" in heard.last(Failed).text
        await session.submit("/fork-branches 3")
        assert "a fork is open" in heard.last(Failed).text
        await session.submit("/fork another")
        assert "resolve it first" in heard.last(Failed).text
        await session.submit("/merge b")
        assert (project / "lib.txt").read_text() == "from b\n"
        resolved = heard.last(ForkResolved)
        assert (resolved.how, resolved.winners, resolved.paths) == ("pick", ("b",), ("lib.txt",))
        assert session.fork is None
        assert session.last_answer == "b wrote lib.txt."
        assert {f"{fork}/a", f"{fork}/b", f"merged:{fork}"} <= set(session.conversation.labels)
        await session.submit("/undo")
        assert not (project / "lib.txt").exists()
        assert heard.last(MergeUndone).fork == fork
        assert session.here is before
        await session.submit("/undo")
        assert "nothing was merged" in heard.last(Failed).text
        await session.submit("hello once more")
        assert session.last_answer.startswith("Hi there")


async def test_no_branch_is_heard_before_its_fork(project: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = ForkCoordinator.fork

    async def slowly(self: ForkCoordinator, *given: Any, **more: Any) -> Any:
        handle = await fork(self, *given, **more)
        while any(runtime.is_running for runtime in self.branches.values()):
            await asyncio.sleep(0.01)
        return handle

    monkeypatch.setattr(ForkCoordinator, "fork", slowly)
    async with chatting(project, model) as (session, heard):
        await session.submit("/fork task")
        first = next(n for n, event in enumerate(heard) if getattr(event, "branch", None) is not None)
        assert isinstance(heard[first - 1], ForkOpened)
        assert "".join(event.text for event in heard.of(BranchText) if event.branch == "a") == "a wrote lib.txt."
        await session.submit("/abort")


async def test_a_branch_is_spoken_to_while_it_runs_and_when_it_is_done(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, heard):
        await session.open_fork(ForkForm((BranchRow("a", "task until"), BranchRow("b", "task"))))
        await heard.branch("b", "done")
        await session.submit(">>a more of it")
        assert "told a" in heard.last(Notice).text
        await session.submit(">>c hello")
        assert "no branch 'c'" in heard.last(Failed).text
        (project.parent / "script" / "a").touch()
        await heard.branch("a", "done")
        await session.submit(">>b more of it")
        assert heard.last(TurnBegan) == TurnBegan("more of it", "b")
        await heard.branch("b", "done", 2)
        assert [line.text for line in session.said("b") if line.who == "user"] == ["task", "more of it"]
        report = session.choices.diff()
        assert [path.path for path in report.paths] == ["lib.txt", "more.txt"]
        await session.submit("/merge b")
        assert (project / "more.txt").read_text() == "more\n"
        heard_of_a = [line.text for line in session.said() if line.who == "user"]
        assert heard_of_a == ["task", "more of it"]


async def test_a_branch_is_ended_and_a_fork_dropped(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, heard):
        await session.submit("/fork a: task until | b: task")
        await heard.branch("b", "done")
        await session.submit("/abort a")
        assert [view.state for view in session.branches()] == ["terminated", "done"]
        await session.submit("/abort")
        assert heard.last(ForkResolved).how == "abort"
        assert session.fork is None
        assert list(project.iterdir()) == [project / "a.txt"]
        await session.submit("/merge a")
        assert "no fork is open" in heard.last(Failed).text


async def test_two_branches_are_combined(project: Path) -> None:
    rules = [
        {"branch": name, "steps": [{"calls": [call("write", path=f"{name}.md", content=name)]}, {"say": name}]}
        for name in "ab"
    ]
    model = write_script(project.parent, rules)
    async with chatting(project, model) as (session, heard):
        await session.submit("/fork task")
        await session.submit("/merge combine:a,b")
        heard.fine()
        assert heard.last(ForkResolved).winners == ("a", "b")
        assert {(project / f"{name}.md").read_text() for name in "ab"} == {"a", "b"}
        await session.submit("/undo")
        heard.fine()
        assert not (project / "a.md").exists()


async def test_an_open_fork_is_kept_for_the_next_chat(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, heard):
        await session.submit("hello")
        await session.submit("/fork a: task until | b: task")
        await heard.branch("b", "done")
        fork = session.fork
    assert heard.last(ForkLeft).fork == fork
    assert not (project / "lib.txt").exists()
    (project.parent / "script" / "a").touch()
    async with chatting(project, model) as (again, heard):
        assert heard.last(ForkAdopted) == ForkAdopted(fork or "", ("a", "b"), "resumed")
        await heard.branch("a", "done")
        assert [event.state for event in heard.of(BranchChanged) if event.branch == "b"][-1] == "done"
        await again.submit("/merge b")
        heard.fine()
        assert (project / "lib.txt").read_text() == "from b\n"
        assert [line.text for line in again.said() if line.who == "user"] == ["hello", "task"]


async def test_a_fork_of_the_agent_is_adopted(project: Path) -> None:
    specs = [{"label": label, "steer": f"task {label}"} for label in "ab"]
    rules = [
        {"when": "^try", "steps": [{"calls": [call("fork_run", specs=specs)]}, {"say": "They are at it."}]},
        *({"branch": n, "steps": [{"calls": [call("write", path="n", content=n)]}, {"say": n}]} for n in "ab"),
    ]
    model = write_script(project.parent, rules)
    async with chatting(project, model) as (session, heard):
        await session.submit("try both")
        heard.fine()
        assert heard.last(ForkOpened).by == "agent"
        assert heard.last(ForkAdopted).why == "agent"
        await session.submit("/fork more")
        assert "agent already forked" in heard.last(Failed).text
        await session.submit("/merge b")
        heard.fine(but=1)
        assert (project / "n").read_text() == "b"
        assert session.last_answer == "b"
        await session.submit("/undo")
        heard.fine(but=1)
        assert session.here is session.conversation.root
        assert not (project / "n").exists()


async def test_a_fork_is_left_while_a_branch_is_told_more(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, heard):
        await session.submit("/fork a: task | b: task")
        await heard.branch("a", "done")
        await session.submit(">>a wait for it")
        await heard.until(lambda: session.branches()[0].state == "running")
    assert heard.of(ForkLeft)
    (project.parent / "script" / "go").touch()
    async with chatting(project, model) as (session, heard):
        await heard.branch("a", "done")
        await session.submit("/merge a")
        heard.fine()
        assert session.last_answer == "At last."


def _agents_fork(action: str) -> list[dict[str, object]]:
    """An agent that forks in two, waits until both are done, and decides itself."""
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
async def test_a_fork_that_the_agent_decides_itself(project: Path, action: str) -> None:
    model = write_script(project.parent, _agents_fork(action))
    async with chatting(project, model) as (session, heard):
        turn = asyncio.create_task(session.submit("try both"))
        await heard.branch("b", "done")
        await heard.branch("a", "done")
        await session.submit(">>b how is it?")
        await heard.branch("b", "done", 2)
        (project.parent / "decide").touch()
        await turn
        heard.fine()
        assert heard.last(ForkResolved).by == "agent"
        assert heard.of(ForkAdopted) == []
        assert session.fork is None
        if action == "abort":
            assert (heard.last(ForkResolved).how, session.last_answer) == ("abort", "They are all gone.")
            return
        assert (project / "n").read_text() == "b"
        assert session.last_answer == "I am b now."
        await session.submit("/undo")
        heard.fine()
        assert (session.here.depth, (project / "n").exists()) == (0, False)


async def test_an_interrupted_turn_takes_its_fork_with_it(project: Path) -> None:
    model = write_script(project.parent, _agents_fork("pick:b"))
    async with chatting(project, model) as (session, heard):
        turn = asyncio.create_task(session.submit("try both"))
        await heard.branch("b", "done")
        assert session.interrupt()
        await turn
        assert heard.last(ForkResolved).how == "abort"
        assert session.fork is None
        await session.submit("what now?")
        assert session.last_answer == "I have nothing to say to that."


async def test_closing_ends_a_turn_that_waits(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, heard):
        turn = asyncio.create_task(session.submit("wait"))
        await heard.until(lambda: session.is_busy)
    await turn
    assert session.is_closed


async def test_branches_ask_and_are_answered_by_id(project: Path) -> None:
    rules = [{"steps": [{"calls": [call("execute", command="echo ran > ran.txt")]}, {"say": "ok"}]}]
    model = write_script(project.parent, rules)
    async with chatting(project, model, ask=["execute"]) as (session, heard):
        await session.submit("/fork task")
        await heard.until(lambda: len(session.approvals) == 2)
        assert [view.is_waiting for view in session.branches()] == [True, True]
        by_branch = {asked.branch: asked.id for asked in session.approvals}
        await session.submit(f"/deny {by_branch['a']}")
        await session.submit(f"/approve {by_branch['b']}")
        await heard.branch("a", "done")
        await heard.branch("b", "done")
        assert [path.path for path in session.choices.diff().paths] == ["ran.txt"]
        await session.submit("/merge b")
        heard.fine()
        assert (project / "ran.txt").read_text() == "ran\n"


async def test_going_back_before_a_merge_takes_it_back(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, heard):
        await session.submit("/fork task")
        fork = session.fork
        await session.submit("/merge a")
        await session.submit("more of it")
        await session.submit("/undo")
        assert f"/load fork:{fork}" in heard.last(Failed).text
        assert (project / "lib.txt").exists()
        await session.submit(f"/load fork:{fork}")
        heard.fine(but=1)
        assert sorted(path.name for path in project.iterdir()) == ["a.txt"]
        assert session.last_merge is None
        assert session.here is session.conversation.root


async def test_where_nobody_answers_a_branch_waits_until_somebody_waits_for_it(project: Path) -> None:
    rules = [{"steps": [{"calls": [call("execute", command="echo ran > ran.txt")]}, {"say": "Then not."}]}]
    model = write_script(project.parent, rules)
    async with chatting(project, model, ask=["execute"]) as (session, heard):
        session.nobody_answers()
        await session.submit("/fork task")
        await heard.until(lambda: len(session.approvals) == 2)
        await session.submit("/abort b")
        assert [asked.branch for asked in session.approvals] == ["a"]
        await session.submit("/merge a")
        heard.fine()
        assert session.last_answer == "Then not."
        assert not (project / "ran.txt").exists()


async def test_a_chat_ends_although_a_merge_waits(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, heard):
        await session.submit("/fork a: task until | b: task")
        await heard.branch("b", "done")
        merging = asyncio.create_task(session.submit("/merge a"))
        waiting = asyncio.create_task(session.submit("hello", "soon"))
        await heard.branch("a", "running")
        await asyncio.sleep(0)
        await session.submit("/quit")
        assert session.is_closed
        assert isinstance(heard[-1], Ended)
        await asyncio.wait([merging, waiting])
        assert heard.of(ForkResolved) == []
    assert heard.of(ForkLeft)
    async with chatting(project, model) as (session, heard):
        merging = asyncio.create_task(session.submit("/merge a"))
        await heard.branch("a", "running")
        await session.submit("/abort")
        await merging
        assert [event.how for event in heard.of(ForkResolved)] == ["abort"]
        assert session.fork is None
