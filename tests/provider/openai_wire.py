"""OpenAI's wire format: parses ``POST /v1/chat/completions``, and writes replies as a completion or as chunks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tests.provider.fault import Fault, openai_refusal
from tests.provider.reply import Failure, Reply
from tests.provider.request import Message, Request, ToolCall, ToolResult, ToolSpec, joined
from tests.provider.wire import Wire, arguments_text, new_id, pieces, text_of, tokens

__all__ = ["OPENAI"]

Json = dict[str, Any]

SYSTEM = ("system", "developer")
STOPS = {"end": "stop", "tool": "tool_calls", "length": "length", "refusal": "content_filter"}
OVERLOADED = (503, "server_error", None, "The server is currently overloaded. Please try again later.")
ERRORS = {
    400: (400, "invalid_request_error", None, "Bad request."),
    401: (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    404: (404, "invalid_request_error", "model_not_found", "The model does not exist."),
    429: (429, "requests", "rate_limit_exceeded", "Rate limit reached. Please try again later."),
    503: OVERLOADED,
    529: OVERLOADED,
}
BROKEN = "The server had an error while processing your request. Sorry about that!"


def read(body: Mapping[str, Any]) -> Request:
    """The request in ``body``."""
    messages = joined(map(_message, body["messages"]))
    has_system = messages[0].role == "system"
    choice = body.get("tool_choice")
    tools = [tool["function"] for tool in body.get("tools") or [] if tool.get("type") == "function"]
    return Request(
        provider="openai",
        model=body["model"],
        system=messages[0].text if has_system else "",
        messages=messages[has_system:],
        tools=tuple(
            ToolSpec(tool["name"], tool.get("description", ""), tool.get("parameters") or {}) for tool in tools
        ),
        tool_choice=(choice.get("function") or {}).get("name") if isinstance(choice, dict) else choice,
        response_format=body.get("response_format"),
        stream=bool(body.get("stream")),
        body=body,
    )


def _message(message: Mapping[str, Any]) -> Message:
    role, text = message["role"], text_of(message.get("content"))
    if role == "tool":
        return Message("user", results=(ToolResult(message["tool_call_id"], "", text),))
    if role == "assistant":
        calls = [c for c in message.get("tool_calls") or [] if c["type"] == "function"]
        return Message(
            "assistant", text, tuple(ToolCall(c["function"]["name"], _parsed(c["function"]), c["id"]) for c in calls)
        )
    return Message("system" if role in SYSTEM else "user", text)


def _parsed(function: Mapping[str, Any]) -> Mapping[str, Any] | str:
    """Return the arguments of a call as an object, or as the original string if they are none."""
    text: str = function["arguments"]
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    return value if isinstance(value, dict) else text


def whole(reply: Reply, request: Request) -> Json:
    """The whole completion."""
    text, calls = _said(reply)
    message: Json = {"role": "assistant", "content": text or None, "refusal": None, "annotations": []}
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _stop(reply)}
    return _envelope(request, "chat.completion") | {"choices": [choice], "usage": _usage(reply, request)}


def _said(reply: Reply) -> tuple[str, list[ToolCall]]:
    text = "".join(part for part in reply.parts if isinstance(part, str))
    return text, [part for part in reply.parts if isinstance(part, ToolCall)]


def _call(call: ToolCall, **differently: str) -> Json:
    function = {"name": call.name, "arguments": arguments_text(call.arguments)} | differently
    return {"id": call.id or new_id("call_"), "type": "function", "function": function}


def _envelope(request: Request, kind: str) -> Json:
    return {
        "id": new_id("chatcmpl-"),
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
        "service_tier": "default",
        "system_fingerprint": None,
    }


def _stop(reply: Reply) -> str:
    return STOPS[reply.stop or ("tool" if _said(reply)[1] else "end")]


def _usage(reply: Reply, request: Request) -> Json:
    usage = reply.usage
    text, calls = _said(reply)
    read_ = tokens(request.body["messages"]) if usage.input is None else usage.input
    # For OpenAI cached tokens are included in the input tokens.
    read_ += usage.cache_read + usage.cache_write
    written = tokens(text + "".join(call.name + arguments_text(call.arguments) for call in calls))
    written = written if usage.output is None else usage.output
    return {
        "prompt_tokens": read_,
        "completion_tokens": written,
        "total_tokens": read_ + written,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def stream(reply: Reply, request: Request) -> Iterator[bytes]:
    """The chunks of the completion."""
    envelope = _envelope(request, "chat.completion.chunk")
    with_usage = bool((request.body.get("stream_options") or {}).get("include_usage"))
    if with_usage:
        envelope["usage"] = None
    for delta in _deltas(reply):
        yield _event(envelope | {"choices": [_choice(delta, None)]})
    yield _event(envelope | {"choices": [_choice({}, _stop(reply))]})
    if with_usage:
        yield _event(envelope | {"choices": [], "usage": _usage(reply, request)})
    yield b"data: [DONE]\n\n"


def _deltas(reply: Reply) -> Iterator[Json]:
    text, calls = _said(reply)
    yield {"role": "assistant", "content": "" if text or not calls else None, "refusal": None}
    for piece in pieces(text, reply.piece):
        yield {"content": piece}
    for index, call in enumerate(calls):
        yield {"tool_calls": [{"index": index, **_call(call, arguments="")}]}
        for piece in pieces(arguments_text(call.arguments), reply.piece):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _choice(delta: Json, stop: str | None) -> Json:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": stop}


def _event(data: Json) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def failure(error: Failure) -> tuple[int, Json]:
    """An error's status and body."""
    status, kind, code, said = ERRORS.get(error.status, (error.status, "server_error", None, BROKEN))
    return status, {"error": {"message": error.message or said, "type": kind, "param": None, "code": code}}


def broken() -> bytes:
    """Return the event for an error in the middle of a stream."""
    return _event({"error": {"message": BROKEN, "type": "server_error", "param": None, "code": None}})


def unreadable(message: str) -> Fault:
    """Return a 400 for a body that cannot be parsed."""
    return openai_refusal(message, None)


OPENAI = Wire("openai", read, whole, stream, failure, broken, unreadable)
