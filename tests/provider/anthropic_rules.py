"""The rules of Anthropic's ``POST /v1/messages``, with the texts of its errors.

One function per group of rules yields complaints; the first complaint is the response. The numbers (A1 to A19) are
next to the texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from tests.provider.fault import Fault, anthropic_refusal
from tests.provider.seal import is_redacted_original, seal
from tests.provider.turns import Turn, blocks_of, turns_of

__all__ = ["AnthropicOptions", "anthropic_fault"]

MAX_MESSAGES = 100_000
MAX_CACHE_MARKERS = 4
TOOL_CHOICES = ("auto", "any", "tool", "none")
THINKING = ("thinking", "redacted_thinking")
ID_PATTERNS = {"tool_use": r"^[a-zA-Z0-9_-]+$", "server_tool_use": r"^srvtoolu_[a-zA-Z0-9_]+$"}
REQUIRED = {"tool_use": ("id", "name", "input"), "server_tool_use": ("id",), "tool_result": ("tool_use_id",)}
#: Models that accept a message of role ``system`` after the first.
INLINE_SYSTEM = ("claude-fable-5", "claude-mythos-5", "claude-opus-4-8", "claude-opus-5", "claude-sonnet-5-5",
                 "claude-haiku-5-5")  # fmt: skip

MISSING_RESULTS = (
    "messages.{}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block "
    "must have a corresponding `tool_result` block in the next message."
)
MISSING_RESULTS_OLD = (
    "messages.{}: Did not find {} tool_result block(s) at the beginning of this message. Messages following tool_use "
    "blocks must begin with a matching number of tool_result blocks."
)
UNEXPECTED_RESULT = (
    "{}: unexpected `tool_use_id` found in `tool_result` blocks: {}. Each `tool_result` block must have a "
    "corresponding `tool_use` block in the previous message."
)
SEVERAL_RESULTS = "{}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {}"
SYSTEM_ROLE = "messages.{}: use the top-level 'system' parameter for the initial system prompt"
ALTERNATE = 'messages: roles must alternate between "user" and "assistant", but found multiple "{}" roles in a row'
EMPTY = "messages.{}: all messages must have non-empty content except for the optional final assistant message"
NO_PREFILL = "This model does not support assistant message prefill. The conversation must end with a user message."
THINKING_FIRST = (
    "{}.type: Expected `thinking` or `redacted_thinking`, but found `{}`. When `thinking` is enabled, a final "
    "`assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result` "
    "blocks). We recommend you include thinking blocks from previous turns. To avoid this requirement, disable "
    "`thinking`."
)
THINKING_CHANGED = (
    "{}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks "
    "must remain as they were in the original response."
)


@dataclass(frozen=True)
class AnthropicOptions:
    """Behaviour that changed over time, or depends on the model.

    ``alternation``: consecutive messages of a role are ``combined``, or refused (``strict``, as in 2024).
    ``results_first``: the ``current`` text for results that do not come first, or the ``old`` one of early 2025.
    ``prefill`` (may the assistant have the last word), ``thinking`` (is it enabled) and ``inline_system`` (may a later
    message be the system's) follow the request and its model unless they are set.
    """

    alternation: Literal["combined", "strict"] = "combined"
    results_first: Literal["current", "old"] = "current"
    prefill: bool | None = None
    thinking: bool | None = None
    inline_system: bool | None = None

    def allows_prefill(self, model: str) -> bool:
        """Whether ``model`` continues what an assistant message began: Opus until 4.5, the others until 4.x."""
        if self.prefill is not None:
            return self.prefill
        named = re.match(r"claude-(?:(opus)|[a-z]+)-(\d{1,2})(?:-(\d{1,2}))?(?!\d)", model)
        if named is None:
            return True
        version = (int(named[2]), int(named[3] or 0))
        return version < ((4, 6) if named[1] else (5, 0))

    def allows_inline_system(self, model: str) -> bool:
        """Whether ``model`` takes system messages after the first message."""
        return model.startswith(INLINE_SYSTEM) if self.inline_system is None else self.inline_system

    def thinking_of(self, request: Mapping[str, Any]) -> Literal["off", "adaptive", "enabled"]:
        """Return the kind of thinking that ``request`` enables."""
        if self.thinking is not None:
            return "enabled" if self.thinking else "off"
        kind = (request.get("thinking") or {}).get("type")
        return "enabled" if kind == "enabled" else "adaptive" if kind == "adaptive" else "off"


class Complaint(NamedTuple):
    """A broken rule and its error text."""

    rule: str
    text: str


Complaints = Iterator[Complaint]
DEFAULTS = AnthropicOptions()


def anthropic_fault(request: Mapping[str, Any], *, options: AnthropicOptions = DEFAULTS) -> Fault | None:
    """Return the error for ``request``, or ``None`` if it follows every rule."""
    complaint = next(_complaints(request, options), None)
    return None if complaint is None else anthropic_refusal(complaint.text, complaint.rule)


def _complaints(request: Mapping[str, Any], options: AnthropicOptions) -> Complaints:
    # Nothing runs past the first complaint: each check may rely on the ones before it.
    yield from _fields(request)
    yield from _tools(request)
    messages: list[dict[str, Any]] = request["messages"]
    yield from _shapes(messages)
    yield from _roles(messages, options, request["model"])
    turns = turns_of(messages)
    yield from _placement(messages)
    yield from _content(request)
    yield from _unique_calls(messages)
    yield from _results(turns, options)
    yield from _last_word(turns[-1], options, request["model"])
    yield from _cache_markers(request)
    yield from _thinking(request, turns, options)


def _fields(request: Mapping[str, Any]) -> Complaints:
    for field in ("model", "messages", "max_tokens"):
        if field not in request:
            yield Complaint("A10", f"{field}: Field required")
    messages = request["messages"]
    if not isinstance(messages, list):
        yield Complaint("A10", "messages: Input should be a valid list")
    if len(messages) > MAX_MESSAGES:  # the number is documented, the words are those of its other length checks
        said = f"messages: List should have at most {MAX_MESSAGES} items after validation, not {len(messages)}"
        yield Complaint("A19", said)


def _tools(request: Mapping[str, Any]) -> Complaints:
    tools = request.get("tools") or []
    for number, tool in enumerate(tools):
        if tool.get("type", "custom") == "custom":
            for field in ("name", "input_schema"):
                if field not in tool:
                    yield Complaint("A10", f"tools.{number}.custom.{field}: Field required")
    names = [tool.get("name") for tool in tools]
    if len(set(names)) < len(names):
        yield Complaint("A11", "tools: Tool names must be unique.")
    choice = request.get("tool_choice")
    if choice is None:
        return
    if not isinstance(choice, dict):
        yield Complaint("A18", "tool_choice: Input should be an object")
    elif "type" not in choice:
        yield Complaint("A18", "tool_choice: Unable to extract tag using discriminator 'type'")
    elif choice["type"] not in TOOL_CHOICES:
        expected = ", ".join(map(repr, TOOL_CHOICES))
        said = f"tool_choice: Input tag {choice['type']!r} found using 'type' does not match any of the expected tags: "
        yield Complaint("A18", said + expected)


def _shapes(messages: list[Any]) -> Complaints:
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            yield Complaint("A10", f"messages.{number}: Input should be a valid dictionary")
        for field in ("role", "content"):
            if field not in message:
                yield Complaint("A10", f"messages.{number}.{field}: Field required")
        if message["role"] not in ("user", "assistant", "system"):
            yield Complaint("A12", f"messages.{number}.role: Input should be 'user' or 'assistant'")
        if not isinstance(message["content"], str | list):
            yield Complaint("A10", f"messages.{number}.content: Input should be a valid list")
    for block in blocks_of(messages):
        if not isinstance(block.data, dict):
            yield Complaint("A10", f"{block.place}: Input should be a valid dictionary")
        place = f"{block.place}.{block.type}"
        for field in REQUIRED.get(block.type, ()):
            if field not in block.data:
                yield Complaint("A10", f"{place}.{field}: Field required")
        if block.type in ID_PATTERNS:
            pattern = ID_PATTERNS[block.type]
            if not re.fullmatch(pattern, str(block.data["id"])):
                yield Complaint("A8", f"{place}.id: String should match pattern '{pattern}'")
            if not isinstance(block.data.get("input", {}), dict):
                yield Complaint("A9", f"{place}.input: Input should be a valid dictionary")


def _roles(messages: list[dict[str, Any]], options: AnthropicOptions, model: str) -> Complaints:
    if not messages:
        yield Complaint("A12", "messages: at least one message is required")
    for number, message in enumerate(messages):
        if message["role"] == "system" and not (number and options.allows_inline_system(model)):
            yield Complaint("A12", SYSTEM_ROLE.format(number))
    if messages[0]["role"] != "user":
        yield Complaint("A12", 'messages: first message must use the "user" role')
    if options.alternation == "strict":
        for one, other in pairwise(messages):
            if one["role"] == other["role"]:
                yield Complaint("A13", ALTERNATE.format(one["role"]))


def _placement(messages: list[dict[str, Any]]) -> Complaints:
    for block in blocks_of(messages):
        if block.type == "tool_result" and block.role != "user":
            yield Complaint("A7", f"messages.{block.message}: `tool_result` blocks can only be in `user` messages")
        if block.type == "tool_use" and block.role != "assistant":
            yield Complaint("A7", f"messages.{block.message}: `tool_use` blocks can only be in `assistant` messages")


def _content(request: Mapping[str, Any]) -> Complaints:
    messages = request["messages"]
    for number, message in enumerate(messages):
        is_optional = number == len(messages) - 1 and message["role"] == "assistant"
        if not message["content"] and not is_optional:
            yield Complaint("A14", EMPTY.format(number))
    system = request.get("system") or []
    said = [{"type": "text", "text": system}] if isinstance(system, str) else system
    texts = [("messages", b.data) for b in blocks_of(messages)] + [("system", data) for data in said]
    for where, data in texts:
        if data.get("type") != "text":
            continue
        if not data.get("text"):
            yield Complaint("A14", f"{where}: text content blocks must be non-empty")
        elif not data["text"].strip():
            yield Complaint("A14", f"{where}: text content blocks must contain non-whitespace text")


def _unique_calls(messages: list[dict[str, Any]]) -> Complaints:
    seen: set[str] = set()
    for block in blocks_of(messages):
        if block.type in ID_PATTERNS:
            if block.data["id"] in seen:
                yield Complaint("A4", f"{block.place}: `tool_use` ids must be unique")
            seen.add(block.data["id"])


def _results(turns: list[Turn], options: AnthropicOptions) -> Complaints:
    nothing = Turn("", (), ())
    for before, turn, after in zip([nothing, *turns], turns, [*turns[1:], nothing], strict=False):
        first = {block.data["tool_use_id"] for block in after.leading("tool_result")}
        open_calls = [block for block in turn.of_type("tool_use") if block.data["id"] not in first]
        if open_calls and options.results_first == "old" and after.of_type("tool_result"):
            yield Complaint("A5", MISSING_RESULTS_OLD.format(after.messages[0], len(open_calls)))
        if open_calls:
            late = {block.data["tool_use_id"] for block in after.of_type("tool_result")}
            rule = "A5" if late.issuperset(block.data["id"] for block in open_calls) else "A1"
            ids = ", ".join(block.data["id"] for block in open_calls)
            yield Complaint(rule, MISSING_RESULTS.format(open_calls[0].message, ids))
        calls = {block.data["id"] for block in before.of_type("tool_use")}
        answered: set[str] = set()
        for block in turn.of_type("tool_result"):
            name = block.data["tool_use_id"]
            if name not in calls:
                yield Complaint("A2", UNEXPECTED_RESULT.format(block.place, name))
            if name in answered:
                yield Complaint("A3", SEVERAL_RESULTS.format(block.place, name))
            answered.add(name)


def _last_word(last: Turn, options: AnthropicOptions, model: str) -> Complaints:
    if last.role != "assistant":
        return
    if not options.allows_prefill(model):
        yield Complaint("A15", NO_PREFILL)
    text = last.blocks[-1].data.get("text", "") if last.blocks else ""
    if text != text.rstrip():
        yield Complaint("A15", "messages: final assistant content cannot end with trailing whitespace")


def _cache_markers(request: Mapping[str, Any]) -> Complaints:
    system = request.get("system") or []
    marked = [*(request.get("tools") or []), *([] if isinstance(system, str) else system)]
    for block in blocks_of(request["messages"]):
        inner = block.data.get("content")
        marked += [block.data, *(inner if isinstance(inner, list) else [])]
    found = sum(1 for data in marked if data.get("cache_control"))
    if found > MAX_CACHE_MARKERS:
        said = f"A maximum of {MAX_CACHE_MARKERS} blocks with cache_control may be provided. Found {found}."
        yield Complaint("A16", said)


def _thinking(request: Mapping[str, Any], turns: list[Turn], options: AnthropicOptions) -> Complaints:
    mode = options.thinking_of(request)
    if mode == "off":
        return
    if (request.get("tool_choice") or {}).get("type") in ("any", "tool"):
        yield Complaint("A17", "Thinking may not be enabled when tool_choice forces tool use.")
    latest = next((turn for turn in reversed(turns) if turn.role == "assistant"), None)
    if latest is None or not latest.blocks:
        return
    is_going_on = latest is turns[-1] or bool(latest.of_type("tool_use"))
    first = latest.blocks[0]
    # With adaptive thinking a call may have no thinking before it.
    if mode == "enabled" and is_going_on and first.type not in THINKING:
        yield Complaint("A17", THINKING_FIRST.format(first.place, first.type))
    for block in latest.blocks:
        data = block.data
        is_changed = block.type == "thinking" and data.get("signature") != seal(data.get("thinking", ""))
        is_changed |= block.type == "redacted_thinking" and not is_redacted_original(data.get("data", ""))
        if is_changed:
            yield Complaint("A17", THINKING_CHANGED.format(block.place))
