"""A scripted model on the loopback that speaks the interfaces of Anthropic, OpenAI (chat and responses) and Gemini.

The prompt says which part it plays: for ``right`` it fixes the project, for ``wrong`` it makes a change that does
not help, for ``idle`` it changes nothing. It calls the agent's own tool for shell commands once, whatever that is
named, and then says that it is done. To an agent without such a tool, it answers with a block that Aider applies. For
``forked`` it calls the tools of forkwise's MCP server, one after the other: fork, wait, diff, pick, undo.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ["ANSWER", "BROKEN", "FIXED", "FORK_PROMPT", "PROMPTS", "serve_model"]

ANSWER = "Fixed it."
BROKEN = "def add(a, b):\n    return a - b\n"
FIXED = BROKEN.replace("-", "+")
PROMPTS = tuple(
    f"The function add in calc.py is wrong. Fix it in the {part} way." for part in ("right", "wrong", "idle")
)
_PART = re.compile(r"in the (right|wrong|idle) way")
FORK_PROMPT = "The function add in calc.py is wrong. Try two ways in the forked way, with forkwise, and undo it."
_FORKED = re.compile(r"in the forked way")
_MOST_CALLS = 20  # of forkwise's tools
_HANDLE = re.compile(r"wait with handle ([a-z0-9]+)")
_COMMANDS = {"right": "sed -i s/-/+/ calc.py", "wrong": "echo '# wrong' >> calc.py", "idle": "true"}
_EDITS = {"right": ("a - b", "a + b"), "wrong": ("a - b", "a - b  # wrong")}
_SHELLS = (
    *("bash", "shell", "run_shell_command", "exec_command", "shell_command", "execute_command", "execute_bash"),
    *("run_commands", "run_command", "run_terminal_command", "terminal", "developer__shell", "local_shell"),
)
"""Names of tools that run a shell command, in any case."""

_MINI_END = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_USED = (100, 5)  # tokens of each answer, in and out


@dataclass(frozen=True)
class _Turn:
    """What the model does next: call a tool, or say something."""

    text: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] | None = None


def _decide(conversation: str, tools: Mapping[str, Mapping[str, Any]], results: int) -> _Turn:
    """Return what comes next; ``tools`` are the schemas of their arguments by name, ``results`` the calls so far."""
    if _FORKED.search(conversation):
        return _use_server(conversation, tools) if results < _MOST_CALLS else _Turn("It did not work.")
    found = _PART.search(conversation)
    part = found[1] if found else "idle"
    shell = next((name for known in _SHELLS for name in tools if name.lower() == known), None)
    if found and shell is not None and results == 0:
        return _Turn(tool=shell, arguments=_fill_in(tools[shell], _COMMANDS[part]))
    if shell is not None and "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in conversation and results == 1:
        return _Turn(tool=shell, arguments=_fill_in(tools[shell], _MINI_END), text=ANSWER)
    for end, key in (("submit_and_exit", "summary"), ("attempt_completion", "result"), ("finish", "message")):
        if end in tools and results:
            return _Turn(tool=end, arguments={key: ANSWER})
    if not tools and part in _EDITS and "*SEARCH/REPLACE*" in conversation:
        old, new = (f"    return {text}" for text in _EDITS[part])
        return _Turn(f"calc.py\n```python\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n```\n{ANSWER}")
    return _Turn(ANSWER)


def _use_server(conversation: str, tools: Mapping[str, Mapping[str, Any]]) -> _Turn:
    """Return the next call of a tool of forkwise's, by what the results so far say."""
    found = _HANDLE.search(conversation)
    fork = found[1] if found else ""
    steps: list[tuple[str, str, dict[str, Any]]] = [
        (_HANDLE.pattern, "fork", {"commands": [_COMMANDS["right"], _COMMANDS["wrong"]]}),
        (r"state\W+open", "wait", {"handle": fork, "timeout_s": 30}),
        (r"characters_in_all\W+\d", "diff", {"name": f"{fork}.1"}),
        (r"committed\W+true", "pick", {"names": [f"{fork}.1"]}),
        (r"undoes\W+\d", "undo", {}),
    ]
    for sign, name, arguments in steps:
        if re.search(sign, conversation) is None:
            tool = next((one for one in tools if re.search(rf"forkwise\W*_*{name}$", one)), None)
            return _Turn(f"There is no tool {name}.") if tool is None else _Turn(tool=tool, arguments=arguments)
    return _Turn(ANSWER)


def _fill_in(schema: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Return arguments for a tool that runs a shell command, by the schema of its arguments."""
    properties: Mapping[str, Any] = schema.get("properties") or {"command": {"type": "string"}}
    name = next((n for n in ("command", "commands", "cmd", "script") if n in properties), next(iter(properties)))
    is_list = "array" in json.dumps(properties[name].get("type", properties[name]))
    words = ["sh", "-c", command] if name == "command" else [command]
    filled: dict[str, Any] = {name: words if is_list else command}
    for other in schema.get("required", ()):
        kind = properties.get(other, {}).get("type")
        kind = next((k for k in kind if k != "null"), None) if isinstance(kind, list) else kind
        values = {"boolean": False, "integer": 60, "number": 60, "array": [], "object": {}}
        choices = properties.get(other, {}).get("enum")
        filled.setdefault(other, choices[0] if choices else values.get(str(kind), "fix"))
    return filled


# The interfaces: each reads a request, and returns the pieces of its streamed answer and the answer as a whole.

Events = list[dict[str, Any]]


def _answer_messages(request: Mapping[str, Any]) -> tuple[Events, dict[str, Any]]:
    """Answer as Anthropic's messages."""
    tools = {tool["name"]: tool.get("input_schema") or {} for tool in request.get("tools", ()) if "name" in tool}
    parts = [p for m in request.get("messages", ()) if isinstance(m["content"], list) for p in m["content"]]
    turn = _decide(_text_of(request), tools, sum(part.get("type") == "tool_result" for part in parts))
    blocks: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []
    if turn.text:
        start, whole = {"type": "text", "text": ""}, {"type": "text", "text": turn.text}
        blocks.append((start, {"type": "text_delta", "text": turn.text}, whole))
    if turn.tool:
        start = {"type": "tool_use", "id": _new_id("toolu"), "name": turn.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(turn.arguments)}
        blocks.append((start, delta, start | {"input": turn.arguments}))
    stop = "tool_use" if turn.tool else "end_turn"
    usage = {"input_tokens": _USED[0], "output_tokens": _USED[1]}
    head = {"id": _new_id("msg"), "type": "message", "role": "assistant", "model": request.get("model")}
    head |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    events: Events = [{"type": "message_start", "message": head}]
    for index, (start, delta, _) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    end = {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": _USED[1]}}
    events += [{"type": "message_delta", **end}, {"type": "message_stop"}]
    return events, head | {"content": [whole for _, _, whole in blocks], "stop_reason": stop}


def _answer_chat(request: Mapping[str, Any]) -> tuple[Events, dict[str, Any]]:
    """Answer as OpenAI's chat completions."""
    functions = [tool["function"] for tool in request.get("tools") or () if "function" in tool]
    tools = {function["name"]: function.get("parameters") or {} for function in functions}
    results = sum(message.get("role") == "tool" for message in request.get("messages", ()))
    turn = _decide(_text_of(request), tools, results)
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.tool:
        call = {"name": turn.tool, "arguments": json.dumps(turn.arguments)}
        message["tool_calls"] = [{"index": 0, "id": _new_id("call"), "type": "function", "function": call}]
    usage = {"prompt_tokens": _USED[0], "completion_tokens": _USED[1], "total_tokens": sum(_USED)}
    head = {"id": _new_id("chatcmpl"), "created": int(time.time()), "model": request.get("model")}
    chunk = head | {"object": "chat.completion.chunk"}
    end = {"index": 0, "finish_reason": "tool_calls" if turn.tool else "stop"}
    events = [
        chunk | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        chunk | {"choices": [end | {"delta": {}}]},
        chunk | {"choices": [], "usage": usage},
    ]
    return events, head | {"object": "chat.completion", "choices": [end | {"message": message}], "usage": usage}


def _answer_responses(request: Mapping[str, Any]) -> tuple[Events, dict[str, Any]]:
    """Answer as OpenAI's responses."""
    tools = {tool["name"]: tool.get("parameters") or {} for tool in request.get("tools") or () if "name" in tool}
    spaces = {tool["name"]: tool["tools"] for tool in request.get("tools") or () if tool.get("type") == "namespace"}
    inside = {f"{space}.{tool['name']}": (space, tool) for space, found in spaces.items() for tool in found}
    tools |= {name: tool.get("parameters") or {} for name, (_, tool) in inside.items()}
    items = [item for item in request.get("input", ()) if isinstance(item, dict)]
    turn = _decide(_text_of(request), tools, sum(item.get("type") == "function_call_output" for item in items))
    output: list[dict[str, Any]] = []
    if turn.text:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        output.append({"type": "message", "id": _new_id("msg"), "role": "assistant", "status": "completed"})
        output[-1]["content"] = content
    if turn.tool:
        call = {"type": "function_call", "id": _new_id("fc"), "call_id": _new_id("call"), "status": "completed"}
        space, tool = inside.get(turn.tool, ("", {"name": turn.tool}))
        call |= {"namespace": space} if space else {}
        output.append(call | {"name": tool["name"], "arguments": json.dumps(turn.arguments)})
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": _USED[0], "output_tokens": _USED[1], "total_tokens": sum(_USED), **details}
    response = {"id": _new_id("resp"), "object": "response", "created_at": int(time.time()), "status": "in_progress"}
    response |= {"model": request.get("model"), "output": [], "usage": None}
    whole = response | {"status": "completed", "output": output, "usage": usage}
    events: Events = [{"type": "response.created", "response": response}]
    for index, item in enumerate(output):
        place = {"item_id": item["id"], "output_index": index}
        empty = {"content": []} if item["type"] == "message" else {"arguments": ""}
        added = item | empty | {"status": "in_progress"}
        events.append({"type": "response.output_item.added", "output_index": index, "item": added})
        if item["type"] == "message":
            place["content_index"] = 0
            part = {"type": "output_text", "text": "", "annotations": []}
            events.append({"type": "response.content_part.added", **place, "part": part})
            events.append({"type": "response.output_text.delta", **place, "delta": turn.text})
            events.append({"type": "response.output_text.done", **place, "text": turn.text})
            events.append({"type": "response.content_part.done", **place, "part": item["content"][0]})
        else:
            events.append({"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]})
            events.append({"type": "response.function_call_arguments.done", **place, "arguments": item["arguments"]})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return [event | {"sequence_number": number} for number, event in enumerate(events)], whole


def _answer_gemini(request: Mapping[str, Any]) -> tuple[Events, dict[str, Any]]:
    """Answer as Gemini."""
    declared = [d for tool in request.get("tools") or () for d in tool.get("functionDeclarations", ())]
    tools = {d["name"]: d.get("parametersJsonSchema") or d.get("parameters") or {} for d in declared}
    parts = [part for content in request.get("contents", ()) for part in content.get("parts", ())]
    turn = _decide(_text_of(request), tools, sum("functionResponse" in part for part in parts))
    said: list[dict[str, Any]] = [{"text": turn.text}] if turn.text else []
    if turn.tool:
        said.append({"functionCall": {"name": turn.tool, "args": turn.arguments}})
    used = {"promptTokenCount": _USED[0], "candidatesTokenCount": _USED[1], "totalTokenCount": sum(_USED)}
    candidate = {"content": {"role": "model", "parts": said}, "finishReason": "STOP", "index": 0}
    whole = {"candidates": [candidate], "usageMetadata": used, "modelVersion": "scripted"}
    return [whole], whole


def _text_of(request: Mapping[str, Any]) -> str:
    return json.dumps(request, ensure_ascii=False)


_last_id = iter(range(1, 1 << 62))


def _new_id(kind: str) -> str:
    return f"{kind}_{next(_last_id):024}"


class _Handler(BaseHTTPRequestHandler):
    """Answers requests by their path."""

    protocol_version = "HTTP/1.1"
    record: Path | None = None

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.endswith("/models"):
            models = [{"id": "scripted", "object": "model", "created": 0, "owned_by": "nobody", "name": "scripted"}]
            self._send(json.dumps({"object": "list", "data": models, "models": []}).encode(), "application/json")
        else:
            self._send(b"{}", "application/json")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body = self._read_body()
        try:
            request = json.loads(body)
        except ValueError:
            request = {}
        path = self.path.partition("?")[0]
        if self.record is not None:
            with self.record.open("a") as file:
                file.write(json.dumps({"path": self.path, "request": request}) + "\n")
        if path.endswith("count_tokens"):
            self._send(b'{"input_tokens": 10}', "application/json")
        elif path.endswith(":countTokens"):
            self._send(b'{"totalTokens": 10}', "application/json")
        elif path.endswith("/messages"):
            self._answer(_answer_messages(request), is_streamed=request.get("stream") is True, has_names=True)
        elif path.endswith("/responses"):
            self._answer(_answer_responses(request), is_streamed=request.get("stream") is True, has_names=True)
        elif path.endswith("/chat/completions"):
            self._answer(_answer_chat(request), is_streamed=request.get("stream") is True, end="data: [DONE]\n\n")
        elif "enerateContent" in path:
            self._answer(_answer_gemini(request), is_streamed="stream" in path)
        else:
            self._send(b"{}", "application/json")

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(
        self,
        answer: tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]],
        *,
        is_streamed: bool,
        has_names: bool = False,
        end: str = "",
    ) -> None:
        events, whole = answer
        if not is_streamed:
            self._send(json.dumps(whole).encode(), "application/json")
            return
        pieces = [
            (f"event: {event['type']}\n" if has_names else "") + f"data: {json.dumps(event)}\n\n" for event in events
        ]
        self._send("".join([*pieces, end]).encode(), "text/event-stream")

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def serve_model(record: Path | None = None) -> Iterator[str]:
    """Serve the model on a free port of the loopback, and yield its address; ``record`` gets a line a request."""
    handler = type("Handler", (_Handler,), {"record": record})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
