"""Talk: the messages of a failed turn that stay in the tree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessEventStream
from pydantic_ai.models.function import FunctionModel

from forkwise.conversation.talk import Talk, text_of

pytestmark = pytest.mark.anyio


def talk_of(*answers: list[str | Exception]) -> Talk:
    """Return a talk with a streaming agent; an exception among the pieces breaks the stream."""
    left = list(answers)

    async def speak(_messages: Any, _info: Any) -> AsyncIterator[str]:
        for piece in left.pop(0):
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def listen(_ctx: Any, events: Any) -> None:
        async for _ in events:
            pass

    return Talk(Agent(FunctionModel(stream_function=speak), capabilities=[ProcessEventStream(listen)]))


async def test_an_answer_that_broke_off_before_it_began_is_no_answer() -> None:
    talk = talk_of([ConnectionError("no line")], ["hello"])
    with pytest.raises(ConnectionError):
        await talk.prompt("hi")
    [asked] = talk.conversation
    assert not asked.is_response
    assert text_of(await talk.go_on(asked)) == "hello"
    assert len(talk.conversation) == 2


async def test_what_was_said_before_it_broke_off_stays() -> None:
    talk = talk_of(["half a "], ["half a ", ConnectionError("no line")])
    await talk.prompt("hi")
    with pytest.raises(ConnectionError):
        await talk.prompt("and")
    assert [text_of(node) for node in talk.conversation if node.is_response] == ["half a ", "half a "]
