"""The rules: a message that a provider would reject is refused, and the error names the rule."""

from __future__ import annotations

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from forkwise.conversation.conversation import Conversation
from forkwise.errors import ConversationError


def user(*parts: object) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(p) if isinstance(p, str) else p for p in parts])  # type: ignore[misc]


def model(*parts: object) -> ModelResponse:
    return ModelResponse(parts=[TextPart(p) if isinstance(p, str) else p for p in parts])  # type: ignore[misc]


def call(id_: str) -> ToolCallPart:
    return ToolCallPart("look", {}, id_)


def result(id_: str, content: object = "seen") -> ToolReturnPart:
    return ToolReturnPart("look", content, id_)


REFUSED: dict[str, tuple[str, list[ModelMessage]]] = {
    "model first": ("turns alternate", [model("hello")]),
    "two users": ("turns alternate", [user("one"), user("two")]),
    "two models": ("turns alternate", [user("one"), model("a"), model("b")]),
    "a result first": ("every result has its call", [user(result("a"), "hello")]),
    "no prompt first": ("a user speaks first", [ModelRequest(parts=[SystemPromptPart("be kind")])]),
    "empty user": ("no message is empty", [user("one"), model("a"), user()]),
    "empty model": ("no message is empty", [user("one"), model()]),
    "blank model": ("no message is empty", [user("one"), model(" \n")]),
    "blank beside a call": ("no text is blank", [user("one"), model(" ", call("a"))]),
    "blank user": ("no text is blank", [user("  ")]),
    "unanswered": ("every call is answered at once", [user("one"), model(call("a"), call("b")), user(result("a"))]),
    "unanswered by text": ("every call is answered at once", [user("one"), model(call("a")), user("never mind")]),
    "unknown": ("every result has its call", [user("one"), model("a"), user(result("x"), "so")]),
    "late": (
        "every result has its call",
        [user("one"), model(call("a")), user(result("a")), model("b"), user(result("a"), "again")],
    ),
    "twice": ("every call is answered once", [user("one"), model(call("a")), user(result("a"), result("a"))]),
    "behind text": ("results come first", [user("one"), model(call("a")), user("here:", result("a"))]),
    "odd id": ("ids are plain", [user("one"), model(call("a.b"))]),
    "long id": ("ids are plain", [user("one"), model(call("a" * 41))]),
    "id twice in a turn": ("no id twice on a path", [user("one"), model(call("a"), call("a"))]),
    "id twice on a path": (
        "no id twice on a path",
        [user("one"), model(call("a")), user(result("a")), model(call("a"))],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    rule, messages = REFUSED[case]
    talk = Conversation()
    talk.extend(messages[:-1])
    before = len(talk)
    with pytest.raises(ConversationError, match=rule) as refused:
        talk.add(messages[-1])
    assert refused.value.rule == rule
    assert len(talk) == before


def test_accepted() -> None:
    talk = Conversation()
    talk.extend(
        [
            user("one"),
            model("let me see", call("a"), call("b")),
            user(result("b"), result("a"), "and tell me"),
            model("done"),
            user("thanks"),
        ]
    )
    assert len(talk.path()) == 5
