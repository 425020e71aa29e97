"""Talking with an agent: what is told, what is kept, and what goes wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

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


async def test_a_turn_is_streamed_kept_and_gone_on_with(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, heard):
        await session.submit("hello")
        await session.submit("write it")
        heard.fine()
        assert heard.last(Ready).is_new
        assert [event.prompt for event in heard.of(TurnBegan)] == ["hello", "write it"]
        pieces = [event.text for event in heard.of(TextDelta)]
        assert len(pieces) > 5
        assert "".join(pieces) == "Hi there,\nhow are you?I will.Wrote it."
        assert [(event.tool, event.branch) for event in heard.of(ToolCalled)] == [("write", None)]
        assert heard.last(ToolReturned).result == "wrote x.txt"
        assert [event.state for event in heard.of(TurnEnded)] == ["done", "done"]
        assert heard.last(TurnEnded).text == session.last_answer == "Wrote it."
        assert heard.last(CostChanged).requests == 3
        assert (project / "x.txt").read_text() == "X\n"
    assert isinstance(heard[-1], Ended)
    async with chatting(project, model) as (again, heard):
        assert (again.id, heard.last(Ready).is_new, heard.last(Ready).messages) == (session.id, False, 6)
        assert [line.text for line in again.said() if line.who == "user"] == ["hello", "write it"]
        await again.submit("hello again")
        assert again.here.depth == 8
    async with chatting(project, model, is_new=True) as (other, heard):
        assert other.id != session.id
        assert other.here.depth == 0


async def test_a_conversation_is_held_by_one_chat(project: Path, model: str) -> None:
    async with chatting(project, model) as (first, _):
        await first.submit("hello")
        with pytest.raises(ConversationError, match="held by another chat"):
            await Session.open(project, model=model, conversation=first.id)
        async with chatting(project, model) as (second, heard):
            assert second.id != first.id
            assert "another chat" in heard.last(Notice).text
    async with chatting(project, model, conversation=first.id) as (again, _):
        assert again.id == first.id


async def test_what_fails_is_told_and_the_chat_goes_on(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, heard):
        await session.submit("break it")
        assert heard.last(TurnEnded).state == "failed"
        assert "out of order" in (heard.last(TurnEnded).error or "")
        await session.submit("hello")
        assert heard.last(TurnEnded).state == "done"
        assert [line.text for line in session.said() if line.who == "user"] == ["hello"]


async def test_a_turn_is_interrupted_and_another_refused_meanwhile(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, heard):
        assert not session.interrupt()
        turn = asyncio.create_task(session.submit("wait for it"))
        await heard.until(lambda: session.is_busy)
        await session.submit("hello")
        assert "the agent is at it" in heard.last(Failed).text
        following = asyncio.create_task(session.submit("hello", "soon"))
        assert session.interrupt()
        await turn
        assert heard.last(TurnEnded).state == "interrupted"
        await following
        assert heard.last(TurnEnded).state == "done"
        assert [line.text for line in session.said() if line.who == "user"] == ["hello"]


async def test_a_tool_waits_for_an_answer_by_its_id(project: Path, model: str) -> None:
    async with chatting(project, model, ask=["execute"]) as (session, heard):
        turn = asyncio.create_task(session.submit("shell"))
        await heard.until(lambda: heard.of(ApprovalAsked))
        await session.submit("y")
        assert "the agent is at it" in heard.last(Failed).text
        assert [asked.tool for asked in session.approvals] == ["execute"]
        await session.submit("/approve a7")
        assert "a7" in heard.last(Failed).text
        await session.submit("/deny a1")
        await turn
        assert not (project / "ran.txt").exists()
        assert heard.last(ToolReturned).is_error
        turn = asyncio.create_task(session.submit("shell"))
        await heard.until(lambda: session.approvals)
        await session.submit("/approve")
        await turn
        assert (project / "ran.txt").read_text() == "ran\n"
        assert [(one.id, one.is_approved) for one in heard.of(ApprovalAnswered)] == [("a1", False), ("a2", True)]
        await session.submit("/approve")
        assert "which call?" in heard.last(Failed).text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nobody:x", "nobody"),
        ("just-a-name", "just-a-name"),
        ("openai:gpt-5", "OPENAI_API_KEY"),
        ("script:nowhere.toml", "nowhere.toml"),
        (None, "which model"),
    ],
)
async def test_a_model_that_cannot_be_had_is_told(
    project: Path, name: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises((ChatModelError, Exception), match=told):
        await Session.open(project, model=name)


@pytest.mark.integration
async def test_the_local_model_is_talked_with_and_forked(project: Path) -> None:
    need_local_model()
    async with chatting(project, "local") as (session, heard):
        await session.submit("Say hello.")
        await session.submit("/fork a: Name a colour. | b: Name a fruit.")
        await session.submit("/merge a")
        heard.fine()
        assert heard.last(TurnEnded).state == "done"
        assert heard.of(ToolCalled) == []
        assert session.last_answer
