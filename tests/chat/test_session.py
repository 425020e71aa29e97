"""Turns of the agent: events, stored conversations, approvals and errors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

import forkwise.local_model.model
from forkwise.chat.events import (
    ApprovalAnswered,
    ApprovalAsked,
    CostChanged,
    Ended,
    Failed,
    Notice,
    Ready,
    TextDelta,
    ToolCalled,
    ToolReturned,
    TurnBegan,
    TurnEnded,
)
from forkwise.chat.services import ChatModelError
from forkwise.chat.session import Session
from forkwise.errors import ConversationError
from tests.chat.scripted_chat import chatting
from tests.local_model.requirements import need_local_model

pytestmark = pytest.mark.anyio


async def test_a_turn_is_streamed_saved_and_continued(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, log):
        await session.submit("hello")
        await session.submit("write it")
        log.check_no_failures()
        assert log.last(Ready).is_new
        assert [event.prompt for event in log.of(TurnBegan)] == ["hello", "write it"]
        pieces = [event.text for event in log.of(TextDelta)]
        assert len(pieces) > 5
        assert "".join(pieces) == "Hi there,\nhow are you?I will.Wrote it."
        assert [(event.tool, event.branch) for event in log.of(ToolCalled)] == [("write", None)]
        assert log.last(ToolReturned).result == "wrote x.txt"
        assert [event.state for event in log.of(TurnEnded)] == ["done", "done"]
        assert log.last(TurnEnded).text == session.last_answer == "Wrote it."
        assert log.last(CostChanged).requests == 3
        assert (project / "x.txt").read_text() == "X\n"
    assert isinstance(log[-1], Ended)
    async with chatting(project, model) as (again, log):
        assert (again.id, log.last(Ready).is_new, log.last(Ready).messages) == (session.id, False, 6)
        assert [line.text for line in again.said() if line.who == "user"] == ["hello", "write it"]
        await again.submit("hello again")
        assert again.here.depth == 8
    async with chatting(project, model, is_new=True) as (other, log):
        assert other.id != session.id
        assert other.here.depth == 0


async def test_a_conversation_is_locked_by_one_chat(project: Path, model: str) -> None:
    async with chatting(project, model) as (first, _):
        await first.submit("hello")
        with pytest.raises(ConversationError, match="locked by another chat"):
            await Session.open(project, model=model, conversation=first.id)
        async with chatting(project, model) as (second, log):
            assert second.id != first.id
            assert "another chat" in log.last(Notice).text
    async with chatting(project, model, conversation=first.id) as (again, _):
        assert again.id == first.id


async def test_a_failed_turn_is_reported_and_the_chat_continues(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, log):
        await session.submit("break it")
        assert log.last(TurnEnded).state == "failed"
        assert "out of order" in (log.last(TurnEnded).error or "")
        await session.submit("hello")
        assert log.last(TurnEnded).state == "done"
        assert [line.text for line in session.said() if line.who == "user"] == ["hello"]


async def test_a_turn_is_interrupted_and_another_refused_meanwhile(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, log):
        assert not session.interrupt()
        turn = asyncio.create_task(session.submit("wait for it"))
        await log.until(lambda: session.is_busy)
        await session.submit("hello")
        assert "the agent is running" in log.last(Failed).text
        following = asyncio.create_task(session.submit("hello", "soon"))
        assert session.interrupt()
        await turn
        assert log.last(TurnEnded).state == "interrupted"
        await following
        assert log.last(TurnEnded).state == "done"
        assert [line.text for line in session.said() if line.who == "user"] == ["hello"]


async def test_a_tool_waits_for_an_answer_by_its_id(project: Path, model: str) -> None:
    async with chatting(project, model, ask=["execute"]) as (session, log):
        turn = asyncio.create_task(session.submit("shell"))
        await log.until(lambda: log.of(ApprovalAsked))
        await session.submit("y")
        assert "the agent is running" in log.last(Failed).text
        assert [asked.tool for asked in session.approvals] == ["execute"]
        await session.submit("/approve a7")
        assert "a7" in log.last(Failed).text
        await session.submit("/deny a1")
        await turn
        assert not (project / "ran.txt").exists()
        assert log.last(ToolReturned).is_error
        turn = asyncio.create_task(session.submit("shell"))
        await log.until(lambda: session.approvals)
        await session.submit("/approve")
        await turn
        assert (project / "ran.txt").read_text() == "ran\n"
        assert [(one.id, one.is_approved) for one in log.of(ApprovalAnswered)] == [("a1", False), ("a2", True)]
        await session.submit("/approve")
        assert "name a tool call by its id" in log.last(Failed).text


@pytest.mark.parametrize("text", ["[chat]\nask = []\n", None])
async def test_an_attempt_cannot_end_approvals(project: Path, model: str, text: str | None) -> None:
    file = project / ".forkwise/config.toml"
    file.parent.mkdir()
    file.write_text('[chat]\nask = ["execute"]\n')
    async with chatting(project, model) as (_, log):
        assert not log.of(Notice)
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    async with chatting(project, model) as (session, log):
        assert "forkwise trust" in log.last(Notice).text
        turn = asyncio.create_task(session.submit("shell"))
        await log.until(lambda: session.approvals)
        await session.submit("/deny")
        await turn
    assert not (project / "ran.txt").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody:x", "nobody"),
        ("just-a-name", "just-a-name"),
        ("openai:gpt-5", "OPENAI_API_KEY"),
        ("script:nowhere.toml", "nowhere.toml"),
        (None, "no model is set"),
    ],
)
async def test_an_unavailable_model_is_refused(
    project: Path, name: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises((ChatModelError, Exception), match=message):
        await Session.open(project, model=name)


@pytest.mark.integration
async def test_the_local_model_answers_and_is_forked(project: Path) -> None:
    need_local_model()
    async with chatting(project, "local") as (session, log):
        await session.submit("Say hello.")
        await session.submit("/fork a: Name a colour. | b: Name a fruit.")
        await session.submit("/merge a")
        log.check_no_failures()
        assert log.last(TurnEnded).state == "done"
        assert log.of(ToolCalled) == []
        assert session.last_answer


@pytest.mark.integration
async def test_the_local_model_answers_after_a_merge_and_its_undo(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed: "This allows later modification or continuation": a chat continues after a merge, without an undo."""
    need_local_model()
    monkeypatch.setitem(cast(dict[str, int], forkwise.local_model.model._SETTINGS), "max_tokens", 32)
    async with chatting(project, "local") as (session, log):
        for command in (
            "Say hello.",
            "/fork a: Name a colour. | b: Name a fruit.",
            "/merge a",
            "Name another.",
            "/fork a: Name a town. | b: Name a river.",
            "/merge b",
            "And another.",
            "/undo",
            "And one more.",
        ):
            await session.submit(command)
            log.check_no_failures()
            assert log.last(TurnEnded).state == "done", (command, log.last(TurnEnded).error)
    async with chatting(project, "local") as (session, log):  # also in another process
        await session.submit("Say goodbye.")
        log.check_no_failures()
        assert log.last(TurnEnded).state == "done"
