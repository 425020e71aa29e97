"""For each of OpenAI's rules: a request that breaks it, the exact error text, and a similar valid request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.provider.bodies import assistant, called, calling, openai_body, text, tool_message, user, without

__all__ = ["OPENAI_CASES", "OpenAICase"]

Json = dict[str, Any]

FUNCTION = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ASKED = user("Look.")


@dataclass(frozen=True)
class OpenAICase:
    """A request that is rejected with the text ``says``, and a similar one that is accepted."""

    rule: str
    refused: Json
    says: str
    param: str | None
    code: str | None
    accepted: Json


UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
    "The following tool_call_ids did not have response messages: "
)
ONE_AT_LEAST = "empty array. Expected an array with minimum length 1, but got an empty array instead."

OPENAI_CASES: list[OpenAICase] = [
    OpenAICase(
        "O1",
        openai_body(ASKED, calling("a", "b", "c"), tool_message("b"), ASKED, tool_message("a"), tool_message("c")),
        UNANSWERED + "a, c",
        "messages.[3].role",
        None,
        openai_body(ASKED, calling("a", "b", "c"), tool_message("b"), tool_message("a"), tool_message("c"), ASKED),
    ),
    OpenAICase(
        "O1",
        openai_body(ASKED, calling("a")),
        UNANSWERED + "a",
        "messages",
        None,
        openai_body(ASKED, calling("a"), tool_message("a")),
    ),
    OpenAICase(
        "O2",
        openai_body(ASKED, assistant("Here."), tool_message("a")),
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
        "messages.[2].role",
        None,
        openai_body(ASKED, calling("a", content="Here."), tool_message("a")),
    ),
    OpenAICase(
        "O3",
        openai_body(ASKED, calling("a"), tool_message("b")),
        "Invalid parameter: 'tool_call_id' of 'b' not found in 'tool_calls' of previous message.",
        "messages.[2].tool_call_id",
        None,
        openai_body(ASKED, calling("a", "b"), tool_message("b"), tool_message("a")),
    ),
    OpenAICase(
        "O3",
        openai_body(ASKED, calling("a"), tool_message("a"), calling("b"), tool_message("a"), tool_message("b")),
        "Invalid parameter: 'tool_call_id' of 'a' not found in 'tool_calls' of previous message.",
        "messages.[4].tool_call_id",
        None,
        openai_body(ASKED, calling("a"), tool_message("a"), calling("a"), tool_message("a")),
    ),
    OpenAICase(
        "O4",
        openai_body(ASKED, calling("a"), without(tool_message("a"), "tool_call_id")),
        "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'.",
        "messages.[2].tool_call_id",
        None,
        openai_body(ASKED, calling("a"), tool_message("a")),
    ),
    OpenAICase(
        "O5",
        openai_body(ASKED, calling("a", "b"), tool_message("a"), tool_message("a"), tool_message("b")),
        "Duplicate value for 'tool_call_id' of 'a' in message[3]",
        None,
        None,
        openai_body(ASKED, calling("a", "b"), tool_message("a"), tool_message("b")),
    ),
    OpenAICase(
        "O6",
        openai_body(ASKED, {"role": "assistant", "content": "Here.", "tool_calls": []}),
        f"Invalid 'messages[1].tool_calls': {ONE_AT_LEAST}",
        "messages[1].tool_calls",
        "empty_array",
        openai_body(ASKED, {"role": "assistant", "content": "Here.", "tool_calls": None}),
    ),
    OpenAICase(
        "O7",
        openai_body(ASKED, calling("a", "b" * 41), tool_message("a"), tool_message("b" * 41)),
        "Invalid 'messages[1].tool_calls[1].id': string too long. Expected a string with maximum length 40, but got a "
        "string with length 41 instead.",
        "messages[1].tool_calls[1].id",
        "string_above_max_length",
        openai_body(ASKED, calling("a", "b" * 40), tool_message("a"), tool_message("b" * 40)),
    ),
    OpenAICase(
        "O8",
        openai_body(ASKED, calling("a"), tool_message("a", {"found": 1})),
        "Invalid type for 'messages[2].content': expected one of a string or array of objects, but got an object "
        "instead.",
        "messages[2].content",
        "invalid_type",
        openai_body(ASKED, calling("a"), tool_message("a", [text("found")])),
    ),
    OpenAICase(
        "O8",
        openai_body(ASKED, {"role": "assistant", "content": None}),
        "Invalid type for 'messages[1].content': expected one of a string or array of objects, but got null instead.",
        "messages[1].content",
        "invalid_type",
        openai_body(ASKED, without(calling("a"), "content"), tool_message("a")),
    ),
    OpenAICase(
        "O8",
        openai_body(ASKED, {"role": "assistant", "tool_calls": [called("a", {"x": 1})]}, tool_message("a")),
        "Invalid type for 'messages[1].tool_calls[0].function.arguments': expected a string, but got an object "
        "instead.",
        "messages[1].tool_calls[0].function.arguments",
        "invalid_type",
        openai_body(ASKED, {"role": "assistant", "tool_calls": [called("a", '{"x": ')]}, tool_message("a")),
    ),
    OpenAICase(
        "O9",
        openai_body(ASKED, tool_choice="auto"),
        "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.",
        "tool_choice",
        None,
        openai_body(ASKED, tool_choice="auto", tools=[FUNCTION]),
    ),
    OpenAICase(
        "O9",
        openai_body(ASKED, parallel_tool_calls=False),
        "Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when 'tools' are specified.",
        "parallel_tool_calls",
        None,
        openai_body(ASKED, parallel_tool_calls=False, tools=[FUNCTION]),
    ),
    OpenAICase(
        "O10",
        openai_body(),
        f"Invalid 'messages': {ONE_AT_LEAST}",
        "messages",
        "empty_array",
        openai_body({"role": "developer", "content": "Be brief."}),
    ),
]  # fmt: skip
