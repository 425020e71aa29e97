"""Hypothesis strategies for conversations that follow every rule, and ways to break one."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

from hypothesis import strategies as st

from tests.provider.bodies import anthropic_body, assistant, openai_body, result, text, tool_message, use, user

__all__ = [
    "ANTHROPIC_BREAKS",
    "OPENAI_BREAKS",
    "Break",
    "Round",
    "as_anthropic",
    "as_openai",
    "broken",
    "conversations",
]

Json = dict[str, Any]


class Break(Protocol):
    """A way to break a body at the assistant message with this number."""

    __name__: str

    def __call__(self, body: Json, turn: int, /) -> None: ...


@dataclass(frozen=True)
class Round:
    """A prompt, an answer with tool calls, and their results in some order, perhaps in two messages."""

    asked: str
    said: str
    calls: tuple[str, ...]
    order: tuple[str, ...]
    afterwards: str
    is_split: bool


WORDS = st.text("abc .\n", min_size=1, max_size=6).map(lambda words: words + ".")


@st.composite
def rounds(draw: st.DrawFn, number: int) -> Round:
    """One round; its ids are its own."""
    calls = [f"{draw(st.sampled_from(['toolu_', 'call-', 'x']))}{number}_{i}" for i in range(draw(st.integers(1, 3)))]
    return Round(
        asked=draw(WORDS),
        said=draw(st.just("") | WORDS),
        calls=tuple(calls),
        order=tuple(draw(st.permutations(calls))),
        afterwards=draw(st.just("") | WORDS),
        is_split=draw(st.booleans()),
    )


def conversations() -> st.SearchStrategy[list[Round]]:
    """Conversations of one to four rounds."""
    return st.integers(1, 4).flatmap(lambda size: st.tuples(*(rounds(number) for number in range(size))).map(list))


def as_anthropic(conversation: list[Round]) -> Json:
    """The conversation as Anthropic's body."""
    messages: list[Json] = []
    for one in conversation:
        messages.append(user(one.asked))
        messages.append(assistant(*([text(one.said)] if one.said else []), *map(use, one.calls)))
        results = [result(name) for name in one.order]
        messages += [user(results[0]), user(*results[1:])] if one.is_split and results[1:] else [user(*results)]
        messages[-1]["content"] += [text(one.afterwards)] if one.afterwards else []
    return anthropic_body(*messages)


def as_openai(conversation: list[Round]) -> Json:
    """The conversation as OpenAI's body."""
    messages: list[Json] = []
    for one in conversation:
        calls = [
            {"id": name, "type": "function", "function": {"name": "look", "arguments": json.dumps({"n": name})}}
            for name in one.calls
        ]
        messages += [user(one.asked), {"role": "assistant", "content": one.said or None, "tool_calls": calls}]
        messages += [tool_message(name) for name in one.order]
        messages += [user(one.afterwards)] if one.afterwards else []
    return openai_body(*messages)


def broken(body: Json, one_of: Break, place: int) -> Json:
    """A copy of ``body``, broken at the assistant message that ``place`` points to."""
    copy = deepcopy(body)
    turns = [number for number, message in enumerate(copy["messages"]) if message["role"] == "assistant"]
    one_of(copy, turns[place % len(turns)])
    return copy


def _drop_result(body: Json, turn: int) -> None:
    results = body["messages"][turn + 1]["content"]
    del results[0]
    if not results:
        del body["messages"][turn + 1]


def _repeat_result(body: Json, turn: int) -> None:
    results = body["messages"][turn + 1]["content"]
    results.insert(0, results[0])


def _rename_result(body: Json, turn: int) -> None:
    body["messages"][turn + 1]["content"][0]["tool_use_id"] += "x"


def _words_first(body: Json, turn: int) -> None:
    body["messages"][turn + 1]["content"].insert(0, text("Here:"))


def _come_between(body: Json, turn: int) -> None:
    body["messages"][turn + 1 : turn + 1] = [user("Wait."), assistant("Yes?")]


def _end_open(body: Json, turn: int) -> None:
    del body["messages"][turn + 1 :]


def _drop_calls(body: Json, turn: int) -> None:
    body["messages"][turn]["content"] = "I do nothing."


def _drop_turn(body: Json, turn: int) -> None:
    del body["messages"][turn]


def _reuse_id(body: Json, turn: int) -> None:
    calls = [block for block in body["messages"][turn]["content"] if block["type"] == "tool_use"]
    body["messages"] += [assistant(calls[0]), user(result(calls[0]["id"]))]


def _strange_id(body: Json, turn: int) -> None:
    body["messages"][turn]["content"][-1]["id"] += "."


def _text_input(body: Json, turn: int) -> None:
    body["messages"][turn]["content"][-1]["input"] = "{}"


def _empty_text(body: Json, turn: int) -> None:
    body["messages"][turn]["content"].append(text(""))


def _empty_message(body: Json, turn: int) -> None:
    body["messages"][turn - 1]["content"] = ""


def _begin_late(body: Json, turn: int) -> None:
    del body["messages"][:turn]


def _result_of_assistant(body: Json, turn: int) -> None:
    body["messages"][turn]["content"].append(result("x"))


ANTHROPIC_BREAKS: dict[Break, str] = {
    _drop_result: "A1",
    _repeat_result: "A3",
    _rename_result: "A1",
    _words_first: "A5",
    _come_between: "A1",
    _end_open: "A1",
    _drop_calls: "A2",
    _drop_turn: "A2",
    _reuse_id: "A4",
    _strange_id: "A8",
    _text_input: "A9",
    _empty_text: "A14",
    _empty_message: "A14",
    _begin_late: "A12",
    _result_of_assistant: "A7",
}


def _drop_message(body: Json, turn: int) -> None:
    del body["messages"][turn + 1]


def _repeat_message(body: Json, turn: int) -> None:
    body["messages"].insert(turn + 1, body["messages"][turn + 1])


def _rename_answer(body: Json, turn: int) -> None:
    body["messages"][turn + 1]["tool_call_id"] += "x"


def _unname_answer(body: Json, turn: int) -> None:
    del body["messages"][turn + 1]["tool_call_id"]


def _speak_first(body: Json, turn: int) -> None:
    body["messages"].insert(turn + 1, user("Here:"))


def _empty_calls(body: Json, turn: int) -> None:
    body["messages"][turn]["tool_calls"] = []


def _say_instead(body: Json, turn: int) -> None:
    body["messages"][turn] = assistant("I do nothing.")


def _long_id(body: Json, turn: int) -> None:
    body["messages"][turn]["tool_calls"][0]["id"] = "x" * 41


def _object_answer(body: Json, turn: int) -> None:
    body["messages"][turn + 1]["content"] = {}


OPENAI_BREAKS: dict[Break, str] = {
    _drop_message: "O1",
    _repeat_message: "O5",
    _rename_answer: "O3",
    _unname_answer: "O4",
    _speak_first: "O1",
    _end_open: "O1",
    _drop_turn: "O2",
    _say_instead: "O2",
    _empty_calls: "O6",
    _long_id: "O7",
    _object_answer: "O8",
}
