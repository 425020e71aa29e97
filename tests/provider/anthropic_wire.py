"""Anthropic's wire format: parses ``POST /v1/messages``, and writes replies as a message or as events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.provider.fault import anthropic_refusal
from tests.provider.reply import Failure, Part, Reply, Thinking
from tests.provider.request import Message, Request, ToolCall, ToolResult, ToolSpec, joined
from tests.provider.seal import seal
from tests.provider.wire import Wire, arguments_text, new_id, pieces, text_of, tokens

__all__ = ["ANTHROPIC"]

Json = dict[str, Any]

STOPS = {"end": "end_turn", "tool": "tool_use", "length": "max_tokens", "refusal": "refusal"}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}
SAID = {429: "This request would exceed your account's rate limit. Please try again later.", 529: "Overloaded"}


def read(body: Mapping[str, Any]) -> Request:
    """The request in ``body``."""
    choice = body.get("tool_choice") or {}
    config = body.get("output_config") or {}
    return Request(
        provider="anthropic",
        model=body["model"],
        system=text_of(body.get("system")),
        messages=joined(map(_message, body["messages"])),
        tools=tuple(
            ToolSpec(tool["name"], tool.get("description", ""), tool.get("input_schema", {}))
            for tool in body.get("tools") or []
        ),
        tool_choice=CHOICES.get(choice.get("type", ""), choice.get("name")),
        response_format=config.get("format") or body.get("output_format"),
        stream=bool(body.get("stream")),
        body=body,
    )


def _message(message: Mapping[str, Any]) -> Message:
    content = message["content"]
    blocks = [] if isinstance(content, str) else content
    calls = (ToolCall(b["name"], b["input"], b["id"]) for b in blocks if b["type"] == "tool_use")
    results = (
        ToolResult(b["tool_use_id"], "", text_of(b.get("content")), bool(b.get("is_error")))
        for b in blocks
        if b["type"] == "tool_result"
    )
    texts = content if isinstance(content, str) else [b for b in blocks if b["type"] == "text"]
    return Message(message["role"], text_of(texts), tuple(calls), tuple(results))


def whole(reply: Reply, request: Request) -> Json:
    """The whole message."""
    blocks = [_block(part) for part in reply.parts]
    return _envelope(request) | {
        "content": blocks,
        "stop_reason": _stop(reply),
        "usage": _usage(reply, request),
    }


def _block(part: Part) -> Json:
    if isinstance(part, Thinking):
        return {"type": "thinking", "thinking": part.text, "signature": seal(part.text)}
    if isinstance(part, ToolCall):
        called = {"type": "tool_use", "id": part.id or new_id("toolu_"), "name": part.name}
        return called | {"input": _object(part.arguments)}
    return {"type": "text", "text": part}


def _object(arguments: Mapping[str, Any] | str) -> Json:
    """The arguments as an object: in a whole message the provider never gives anything else."""
    try:
        value = json.loads(arguments_text(arguments))
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _envelope(request: Request) -> Json:
    return {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _stop(reply: Reply) -> str:
    calls = any(isinstance(part, ToolCall) for part in reply.parts)
    return STOPS[reply.stop or ("tool" if calls else "end")]


def _usage(reply: Reply, request: Request) -> Json:
    usage = reply.usage
    said = sum(tokens(_words(part)) for part in reply.parts)
    return {
        "input_tokens": tokens(request.body["messages"]) if usage.input is None else usage.input,
        "output_tokens": said if usage.output is None else usage.output,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
    }


def _words(part: Part) -> str:
    if isinstance(part, ToolCall):
        return part.name + arguments_text(part.arguments)
    return part.text if isinstance(part, Thinking) else part


def stream(reply: Reply, request: Request) -> Iterator[bytes]:
    """The events of the message."""
    usage = _usage(reply, request)
    yield _event("message_start", message=_envelope(request) | {"usage": usage | {"output_tokens": 1}})
    for index, part in enumerate(reply.parts):
        yield _event("content_block_start", index=index, content_block=_opening(part))
        if index == 0:
            yield _event("ping")
        for delta in _deltas(part, reply.piece):
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    ending = {"stop_reason": _stop(reply), "stop_sequence": None}
    yield _event("message_delta", delta=ending, usage={"output_tokens": usage["output_tokens"]})
    yield _event("message_stop")


def _opening(part: Part) -> Json:
    empty: dict[str, Json] = {
        "thinking": {"thinking": "", "signature": ""},
        "tool_use": {"input": {}},
        "text": {"text": ""},
    }
    block = _block(part)
    return block | empty[block["type"]]


def _deltas(part: Part, size: int) -> Iterator[Json]:
    if isinstance(part, Thinking):
        for piece in pieces(part.text, size):
            yield {"type": "thinking_delta", "thinking": piece}
        yield {"type": "signature_delta", "signature": seal(part.text)}
    elif isinstance(part, ToolCall):
        text = arguments_text(part.arguments)
        for piece in ("", *pieces("" if text == "{}" else text, size)):
            yield {"type": "input_json_delta", "partial_json": piece}
    else:
        for piece in pieces(part, size):
            yield {"type": "text_delta", "text": piece}


def _event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


def failure(error: Failure) -> tuple[int, Json]:
    """An error's status and body."""
    said = error.message or SAID.get(error.status, "Internal server error")
    return error.status, {"type": "error", "error": {"type": ERRORS.get(error.status, "api_error"), "message": said}}


def broken() -> bytes:
    """Return the event for an error in the middle of a stream."""
    return _event("error", error={"type": "overloaded_error", "message": "Overloaded"})


ANTHROPIC = Wire("anthropic", read, whole, stream, failure, broken, anthropic_refusal)
