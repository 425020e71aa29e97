"""For each of Anthropic's rules: a request that breaks it, the exact error text, and a similar valid request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.provider.bodies import anthropic_body, assistant, result, text, thought, use, user, without
from tests.provider.rules import AnthropicOptions
from tests.provider.seal import redacted, seal

__all__ = ["ADAPTIVE", "ANTHROPIC_CASES", "ENABLED", "AnthropicCase"]

Json = dict[str, Any]

TOOL = {"name": "look", "input_schema": {"type": "object"}}
MARK = {"cache_control": {"type": "ephemeral"}}
ENABLED = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
ADAPTIVE = {"thinking": {"type": "adaptive"}}
STRICT = AnthropicOptions(alternation="strict")
OLD = AnthropicOptions(results_first="old")
ASKED = user("Look.")


@dataclass(frozen=True)
class AnthropicCase:
    """A request that is rejected with the text ``says``, and a similar one that is accepted."""

    rule: str
    refused: Json
    says: str
    accepted: Json
    options: AnthropicOptions = field(default_factory=AnthropicOptions)
    accepted_by: AnthropicOptions | None = None


ANTHROPIC_CASES: list[AnthropicCase] = [
    AnthropicCase(
        "A1",
        anthropic_body(ASKED, assistant(use("a"), use("b"), use("c")), user(result("b"), "And?")),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a, c. Each `tool_use` "
        "block must have a corresponding `tool_result` block in the next message.",
        anthropic_body(ASKED, assistant(use("a"), use("b"), use("c")), user(result("b"), result("c"), result("a"))),
    ),
    AnthropicCase(
        "A1",
        anthropic_body(ASKED, assistant("I look.", use("a"))),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a. Each `tool_use` "
        "block must have a corresponding `tool_result` block in the next message.",
        anthropic_body(ASKED, assistant("I look.", use("a"), "So."), user({"type": "tool_result", "tool_use_id": "a"})),
    ),
    AnthropicCase(
        "A2",
        anthropic_body(ASKED, assistant("Here."), user(text("And?"), result("a"))),
        "messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks: a. Each `tool_result` block "
        "must have a corresponding `tool_use` block in the previous message.",
        anthropic_body(ASKED, assistant("Here.", use("a")), user(result("a", is_error=True), text("And?"))),
    ),
    AnthropicCase(
        "A2",
        anthropic_body(user(result("a"))),
        "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: a. Each `tool_result` block "
        "must have a corresponding `tool_use` block in the previous message.",
        anthropic_body(user("a")),
    ),
    AnthropicCase(
        "A3",
        anthropic_body(ASKED, assistant(use("a")), user(result("a"), result("a"))),
        "messages.2.content.1: each tool_use must have a single result. Found multiple `tool_result` blocks with id: a",
        anthropic_body(ASKED, assistant(use("a"), use("b")), user(result("a"), result("b"))),
    ),
    AnthropicCase(
        "A4",
        anthropic_body(ASKED, assistant(use("a")), user(result("a")), assistant("Again.", use("a")), user(result("a"))),
        "messages.3.content.1: `tool_use` ids must be unique",
        anthropic_body(ASKED, assistant(use("a")), user(result("a")), assistant("Again.", use("A")), user(result("A"))),
    ),
    AnthropicCase(
        "A5",
        anthropic_body(ASKED, assistant(use("a"), use("b")), user(result("a"), "Then:", result("b"))),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: b. Each `tool_use` "
        "block must have a corresponding `tool_result` block in the next message.",
        anthropic_body(ASKED, assistant(use("a"), use("b")), user(result("a"), result("b"), "Then:")),
    ),
    AnthropicCase(
        "A5",
        anthropic_body(ASKED, assistant(use("a"), use("b")), user("Here:", result("a"), result("b"))),
        "messages.2: Did not find 2 tool_result block(s) at the beginning of this message. Messages following tool_use "
        "blocks must begin with a matching number of tool_result blocks.",
        anthropic_body(ASKED, assistant(use("a"), use("b")), user(result("a"), result("b"), "Here.")),
        options=OLD,
    ),
    AnthropicCase(
        "A1",  # rule A6: something between the call and its result
        anthropic_body(ASKED, assistant(use("a")), user("Hm."), assistant("Yes?"), user(result("a"))),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a. Each `tool_use` "
        "block must have a corresponding `tool_result` block in the next message.",
        anthropic_body(ASKED, assistant(use("a")), user(result("a"), "Hm."), assistant("Yes?"), user("So.")),
    ),
    AnthropicCase(
        "A7",
        anthropic_body(ASKED, assistant(use("a"), result("a")), user("And?")),
        "messages.1: `tool_result` blocks can only be in `user` messages",
        anthropic_body(ASKED, assistant(use("a")), user(result("a"), "And?")),
    ),
    AnthropicCase(
        "A7",
        anthropic_body(user("Look.", use("a"))),
        "messages.0: `tool_use` blocks can only be in `assistant` messages",
        anthropic_body(user("Look."), assistant(use("a")), user(result("a"))),
    ),
    AnthropicCase(
        "A8",
        anthropic_body(ASKED, assistant("I look.", use("call|a")), user(result("call|a"))),
        "messages.1.content.1.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
        anthropic_body(ASKED, assistant("I look.", use("call-a_0")), user(result("call-a_0"))),
    ),
    AnthropicCase(
        "A8",
        anthropic_body(ASKED, assistant(use("toolu_1", type="server_tool_use")), user("And?")),
        "messages.1.content.0.server_tool_use.id: String should match pattern '^srvtoolu_[a-zA-Z0-9_]+$'",
        anthropic_body(ASKED, assistant(use("srvtoolu_1", type="server_tool_use")), user("And?")),
    ),
    AnthropicCase(
        "A9",
        anthropic_body(ASKED, assistant(use("a", input='{"x": 1}')), user(result("a"))),
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
        anthropic_body(ASKED, assistant(use("a", input={"x": 1})), user(result("a"))),
    ),
    AnthropicCase(
        "A10",
        anthropic_body(ASKED, assistant(use("a")), user({"type": "tool_result", "content": "found"})),
        "messages.2.content.0.tool_result.tool_use_id: Field required",
        anthropic_body(ASKED, assistant(use("a")), user({"type": "tool_result", "tool_use_id": "a"})),
    ),
    AnthropicCase(
        "A10",
        anthropic_body(ASKED, tools=[{"name": "look"}]),
        "tools.0.custom.input_schema: Field required",
        anthropic_body(ASKED, tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}]),
    ),
    AnthropicCase(
        "A10", without(anthropic_body(ASKED), "max_tokens"), "max_tokens: Field required", anthropic_body(ASKED)
    ),
    AnthropicCase(
        "A11",
        anthropic_body(ASKED, tools=[TOOL, TOOL]),
        "tools: Tool names must be unique.",
        anthropic_body(ASKED, tools=[TOOL, {**TOOL, "name": "Look"}]),
    ),
    AnthropicCase("A12", anthropic_body(), "messages: at least one message is required", anthropic_body(ASKED)),
    AnthropicCase(
        "A12",
        anthropic_body(assistant("Hello."), ASKED),
        'messages: first message must use the "user" role',
        anthropic_body(ASKED, assistant("Hello."), ASKED),
    ),
    AnthropicCase(
        "A12",
        anthropic_body({"role": "system", "content": "Be brief."}, ASKED),
        "messages.0: use the top-level 'system' parameter for the initial system prompt",
        anthropic_body(ASKED, system="Be brief."),
    ),
    AnthropicCase(
        "A12",
        anthropic_body(ASKED, {"role": "system", "content": "Be brief."}),
        "messages.1: use the top-level 'system' parameter for the initial system prompt",
        anthropic_body(ASKED, {"role": "system", "content": "Be brief."}, model="claude-opus-4-8"),
    ),
    AnthropicCase(
        "A13",
        anthropic_body(ASKED, user("Well?")),
        'messages: roles must alternate between "user" and "assistant", but found multiple "user" roles in a row',
        anthropic_body(ASKED, user("Well?")),
        options=STRICT,
        accepted_by=AnthropicOptions(),
    ),
    AnthropicCase(
        "A13",
        anthropic_body(ASKED, assistant(use("a")), assistant(use("b")), user(result("b"), result("a"))),
        'messages: roles must alternate between "user" and "assistant", but found multiple "assistant" roles in a row',
        anthropic_body(ASKED, assistant(use("a"), use("b")), user(result("b"), result("a"))),
        options=STRICT,
    ),
    AnthropicCase(
        "A5",  # combined messages count as one, so text between two result messages precedes the second
        anthropic_body(ASKED, assistant(use("a"), use("b")), user(result("a"), "Then:"), user(result("b"))),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: b. Each `tool_use` "
        "block must have a corresponding `tool_result` block in the next message.",
        anthropic_body(ASKED, assistant(use("a"), use("b")), user(result("a")), user(result("b"), "Then?")),
    ),
    AnthropicCase(
        "A14",
        anthropic_body(user(""), assistant("Yes?"), ASKED),
        "messages.0: all messages must have non-empty content except for the optional final assistant message",
        anthropic_body(ASKED, assistant("")),
    ),
    AnthropicCase(
        "A14",
        anthropic_body(ASKED, assistant(), ASKED),
        "messages.1: all messages must have non-empty content except for the optional final assistant message",
        anthropic_body(ASKED, assistant()),
    ),
    AnthropicCase(
        "A14",
        anthropic_body(user("Look.", "")),
        "messages: text content blocks must be non-empty",
        anthropic_body(user("Look.", ".")),
    ),
    AnthropicCase(
        "A14",
        anthropic_body(user(" \n")),
        "messages: text content blocks must contain non-whitespace text",
        anthropic_body(user(" \n.")),
    ),
    AnthropicCase(
        "A14",
        anthropic_body(ASKED, system=[text("")]),
        "system: text content blocks must be non-empty",
        anthropic_body(ASKED, system=[text("Be brief.")]),
    ),
    AnthropicCase(
        "A14",
        anthropic_body(ASKED, system="\n"),
        "system: text content blocks must contain non-whitespace text",
        anthropic_body(ASKED, system=""),
    ),
    AnthropicCase(
        "A15",
        anthropic_body(ASKED, assistant("I see: ")),
        "messages: final assistant content cannot end with trailing whitespace",
        anthropic_body(ASKED, assistant("I see:")),
    ),
    AnthropicCase(
        "A15",
        anthropic_body(ASKED, assistant("I see:"), model="claude-opus-4-6"),
        "This model does not support assistant message prefill. The conversation must end with a user message.",
        anthropic_body(ASKED, assistant("I see:"), model="claude-opus-4-5-20251101"),
    ),
    AnthropicCase(
        "A15",
        anthropic_body(ASKED, assistant("I see:")),
        "This model does not support assistant message prefill. The conversation must end with a user message.",
        anthropic_body(ASKED, assistant("I see: "), ASKED),
        options=AnthropicOptions(prefill=False),
    ),
    AnthropicCase(
        "A16",
        anthropic_body(
            user(text("a", **MARK), text("b", **MARK)),
            assistant(use("a")),
            user(result("a", content=[text("c", **MARK)])),
            system=[text("d", **MARK)],
            tools=[TOOL | MARK],
        ),
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        anthropic_body(
            user(text("a", **MARK), text("b", cache_control=None)),
            assistant(use("a")),
            user(result("a", content=[text("c", **MARK)])),
            system=[text("d", **MARK)],
            tools=[TOOL | MARK],
        ),
    ),
    AnthropicCase(
        "A17",
        anthropic_body(ASKED, assistant(use("a")), user(result("a")), **ENABLED),
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` "
        "is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost set of "
        "`tool_use` and `tool_result` blocks). We recommend you include thinking blocks from previous turns. To avoid "
        "this requirement, disable `thinking`.",
        anthropic_body(ASKED, assistant(thought("Hm.", seal("Hm.")), use("a")), user(result("a")), **ENABLED),
    ),
    AnthropicCase(
        "A17",
        anthropic_body(ASKED, assistant(thought("Hm!", seal("Hm.")), use("a")), user(result("a")), **ADAPTIVE),
        "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
        "modified. These blocks must remain as they were in the original response.",
        anthropic_body(ASKED, assistant(thought("Hm!", seal("Hm!")), use("a")), user(result("a")), **ADAPTIVE),
    ),
    AnthropicCase(
        "A17",
        anthropic_body(ASKED, assistant("So.", {"type": "redacted_thinking", "data": "x"}), ASKED, **ENABLED),
        "messages.1.content.1: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
        "modified. These blocks must remain as they were in the original response.",
        anthropic_body(ASKED, assistant({"type": "redacted_thinking", "data": redacted("x")}, "So."), ASKED, **ENABLED),
    ),
    AnthropicCase(
        "A17",
        anthropic_body(ASKED, tools=[TOOL], tool_choice={"type": "any"}, **ENABLED),
        "Thinking may not be enabled when tool_choice forces tool use.",
        anthropic_body(ASKED, tools=[TOOL], tool_choice={"type": "auto"}, **ENABLED),
    ),
    AnthropicCase(
        "A17",
        anthropic_body(ASKED, tools=[TOOL], tool_choice={"type": "tool", "name": "look"}),
        "Thinking may not be enabled when tool_choice forces tool use.",
        anthropic_body(ASKED, tools=[TOOL], tool_choice={"type": "tool", "name": "look"}, **ENABLED),
        options=AnthropicOptions(thinking=True),
        accepted_by=AnthropicOptions(thinking=False),
    ),
    AnthropicCase(
        "A18",
        anthropic_body(ASKED, tools=[TOOL], tool_choice={"type": "required"}),
        "tool_choice: Input tag 'required' found using 'type' does not match any of the expected tags: 'auto', 'any', "
        "'tool', 'none'",
        anthropic_body(ASKED, tools=[TOOL], tool_choice={"type": "any"}),
    ),
    AnthropicCase(
        "A18",
        anthropic_body(ASKED, tools=[TOOL], tool_choice="auto"),
        "tool_choice: Input should be an object",
        anthropic_body(ASKED, tools=[TOOL], tool_choice={"type": "none"}),
    ),
    AnthropicCase(
        "A19",
        anthropic_body(*[ASKED] * 100_001),
        "messages: List should have at most 100000 items after validation, not 100001",
        anthropic_body(*[ASKED] * 1_000),
    ),
]  # fmt: skip
