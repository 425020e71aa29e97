"""Adoption: any history becomes one that the tree accepts, without loss of text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from forkwise.conversation.adopt import NOTHING, UNANSWERED, adopted
from forkwise.conversation.conversation import Conversation
from tests.counts import examples

IDS = st.sampled_from(["a", "b", "a.b", "a_b", "", "x" * 50, "x" * 40, "call_1"])
TEXT = st.sampled_from(["", " ", "yes", "no \n"])

request_parts: st.SearchStrategy[ModelRequestPart] = st.one_of(
    st.builds(UserPromptPart, TEXT),
    st.builds(SystemPromptPart, TEXT),
    st.builds(ToolReturnPart, st.just("look"), TEXT, IDS),
)
response_parts: st.SearchStrategy[ModelResponsePart] = st.one_of(
    st.builds(TextPart, TEXT),
    st.builds(ThinkingPart, TEXT),
    st.builds(ToolCallPart, st.just("look"), st.just({}), IDS),
)
messages: st.SearchStrategy[ModelMessage] = st.one_of(
    st.builds(lambda parts: ModelRequest(parts=parts), st.lists(request_parts, max_size=4)),
    st.builds(lambda parts: ModelResponse(parts=parts), st.lists(response_parts, max_size=4)),
)


def texts(history: list[ModelMessage]) -> list[str]:
    return [
        part.content
        for message in history
        for part in message.parts
        if isinstance(part, TextPart | UserPromptPart) and isinstance(part.content, str) and part.content.strip()
    ]


@settings(max_examples=examples(400))
@given(st.lists(messages, max_size=8))
def test_the_tree_takes_it(history: list[ModelMessage]) -> None:
    before = ModelMessagesTypeAdapter.dump_json(history)
    made = adopted(history)
    Conversation().extend(made)
    assert ModelMessagesTypeAdapter.dump_json(history) == before
    assert [t for t in texts(made) if t in ("yes", "no \n")] == texts(history)


@settings(max_examples=examples(200))
@given(st.lists(messages, max_size=8))
def test_adopted_twice_is_adopted_once(history: list[ModelMessage]) -> None:
    made = adopted(history)
    assert adopted(made) == made


def test_valid_messages_are_unchanged() -> None:
    talk = Conversation()
    talk.say("look")
    talk.add(ModelResponse(parts=[ToolCallPart("look", {}, "a")]))
    talk.say("and?")
    talk.reply("seen")
    history = talk.path()
    assert all(one is other for one, other in zip(adopted(history), history, strict=True))


def test_an_open_call_is_answered() -> None:
    [_, _, last] = adopted(
        [ModelRequest.user_text_prompt("look"), ModelResponse(parts=[ToolCallPart("look", {}, "a")])]
    )
    assert [(type(p), p.content) for p in last.parts] == [(ToolReturnPart, UNANSWERED)]  # type: ignore[union-attr]


def test_a_model_that_said_nothing() -> None:
    [_, said] = adopted([ModelRequest.user_text_prompt("look"), ModelResponse(parts=[])])
    assert said.parts == [TextPart(NOTHING)]
