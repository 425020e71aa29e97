"""The output of agents: recorded streams of the real programs, and streams that are broken, changed or hostile."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forkwise.agents.agent_event import format_step
from forkwise.agents.stream import FORMATS, AgentStream
from forkwise.fork.candidate import judge
from forkwise.fork.run_end import RunEnd
from forkwise.telemetry import ToolSpans

STREAMS = Path(__file__).with_name("streams")
PROJECT = "/home/me/project"


def read(name: str | None, *pieces: bytes, errors: bytes = b"") -> AgentStream:
    stream = AgentStream(name, PROJECT)
    for piece in pieces:
        stream.feed("stdout", piece)
    stream.feed("stderr", errors)
    stream.finish()
    return stream


def list_steps(stream: AgentStream) -> list[str]:
    return [format_step(step) for step in stream.take_steps()]


def line(**data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


SESSIONS = {
    "claude": "49f9e2d3-76ce-4ed5-97d7-7186d932d5f3",
    "codex": "01a1e512-a08a-7d40-a9a1-0c3ddd9ba067",
    "gemini": "e5af9537-c92b-4c31-8601-569eb926e85a",
    "goose": None,
    "opencode": "ses_e1aed35cdffexi7IgXK3Cl1hGr",
}
USED = {
    "claude": (4800, 180, 0.0228),
    "codex": (3600, 135, None),
    "gemini": (6000, 225, 0.0047475),
    "goose": (3600, 135, 0.01035),
    "opencode": (4800, 180, 0.0171),
}


class RecordedTools(ToolSpans):
    """Lists the calls instead of tracing them."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.started: list[str] = []
        self.unfinished: dict[str, str] = {}
        self.failed: list[str] = []

    def start(self, tool: str, call: str, *, at_ms: int | None = None) -> None:
        self.started.append(tool)
        self.unfinished[call] = tool

    def end(self, call: str, *, is_failed: bool, at_ms: int | None = None) -> None:
        tool = self.unfinished.pop(call)
        self.failed += [tool] * is_failed


@pytest.mark.parametrize("path", sorted(STREAMS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_each_tool_call_of_a_recorded_stream_has_an_end(path: Path) -> None:
    name = {"qwen": "claude"}.get(path.stem, path.stem)
    traced, tools = AgentStream(name, PROJECT), RecordedTools()
    traced.trace_tools(tools)
    traced.feed("stdout", path.read_bytes())
    traced.finish()
    plain = read(name, path.read_bytes())
    steps = traced.take_steps()
    assert tools.started == [step["tool"] for step in steps if step["kind"] == "tool"] != []
    assert (tools.unfinished, tools.failed) == ({}, [])
    assert (steps, traced.facts, traced.find_cost()) == (plain.take_steps(), plain.facts, plain.find_cost())


FAILED_CALLS = {
    "acp": [
        {"type": "update", "update": {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "x", "kind": "other"}},
        {"type": "update", "update": {"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "in_progress"}},
        {"type": "update", "update": {"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "failed"}},
    ],
    "claude": [
        {"type": "assistant", "message": {"content": [{"type": "tool_use", "id": "c", "name": "x"}]}},
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "c", "is_error": True}]}},
    ],
    "codex": [
        {"type": "item.started", "item": {"id": "c", "type": "mcp_tool_call", "tool": "x"}},
        {"type": "item.completed", "item": {"id": "c", "type": "mcp_tool_call", "tool": "x", "status": "failed"}},
    ],
    "copilot": [
        {"type": "tool.execution_start", "data": {"toolCallId": "c", "toolName": "x"}},
        {"type": "tool.execution_complete", "data": {"toolCallId": "c", "success": False}},
    ],
    "gemini": [
        {"type": "tool_use", "tool_id": "c", "tool_name": "x"},
        {"type": "tool_result", "tool_id": "c", "status": "error"},
    ],
    "opencode": [{"type": "tool_use", "part": {"callID": "c", "tool": "x", "state": {"status": "error"}}}],
    "pi": [
        {"type": "tool_execution_start", "toolCallId": "c", "toolName": "x"},
        {"type": "tool_execution_end", "toolCallId": "c", "isError": True},
    ],
}


@pytest.mark.parametrize("name", sorted(FAILED_CALLS))
def test_a_failed_tool_call_is_known(name: str) -> None:
    stream, tools = AgentStream(name, PROJECT), RecordedTools()
    stream.trace_tools(tools)
    separators = (", ", ": ") if name == "acp" else (",", ":")
    for data in FAILED_CALLS[name]:
        stream.feed("stdout", json.dumps(data, separators=separators).encode() + b"\n")
    assert (len(tools.failed), tools.unfinished) == (1, {})


@pytest.mark.parametrize("size", [7, 1 << 20])
@pytest.mark.parametrize("name", sorted(SESSIONS))
def test_recorded_streams(name: str, size: int) -> None:
    content = (STREAMS / f"{name}.jsonl").read_bytes()
    stream = read(name, *(content[at : at + size] for at in range(0, len(content), size)))
    steps = list_steps(stream)
    assert 'bash: echo "fw-attempt=[$FORKWISE_ATTEMPT] fw-cwd=[$PWD]"; ls -a' in steps
    assert name == "codex" or "edit calc.py" in steps
    assert steps[-1] == stream.activity == "Done (right): the function add was looked at."
    assert stream.facts["answer"] == "Done (right): the function add was looked at."
    assert stream.facts["session"] == SESSIONS[name]
    cost = stream.find_cost() or {}
    inputs, outputs, usd = USED[name]
    assert (cost["input_tokens"], cost["output_tokens"]) == (inputs, outputs)
    assert cost.get("usd") == (None if usd is None else pytest.approx(usd))
    assert stream.explain(judge(RunEnd("exit", exit_code=0))).success


@pytest.mark.parametrize(
    ("name", "stream", "session", "tokens"),
    [
        ("copilot", "copilot", "565e3622-67f8-49a6-a9d7-eff13118d8a5", None),
        ("pi", "pi", "01a1ea71-1ed1-73c9-b433-d8758bf2e819", (200, 10)),
        ("vibe", "vibe", "f27dc8ed-8b74-b5d9-9626-a521bf7646e7", None),
        ("qwen", "claude", "2a094228-ee78-43ea-a9da-c69bbea3f55b", (200, 10)),
    ],
)
def test_recorded_streams_of_short_runs(name: str, stream: str, session: str, tokens: tuple[int, int] | None) -> None:
    read_stream = read(stream, (STREAMS / f"{name}.jsonl").read_bytes())
    assert list_steps(read_stream) == ["bash: sed -i s/-/+/ calc.py", "Fixed it."]
    assert read_stream.facts["answer"] == "Fixed it."
    assert read_stream.facts["session"] == session
    cost = read_stream.find_cost()
    assert tokens == (None if cost is None else (cost["input_tokens"], cost["output_tokens"]))
    assert read_stream.explain(judge(RunEnd("exit", exit_code=0))).success


def test_failures_of_pi_and_copilot_say_why() -> None:
    message = {"role": "assistant", "content": [], "stopReason": "error", "errorMessage": "401 invalid api key"}
    found = read("pi", line(type="message_end", message=message)).explain(judge(RunEnd("exit", exit_code=1)))
    assert found.fault == "provider"
    error = line(type="session.error", data={"message": "the tool crashed"})
    found = read("copilot", error, line(type="result", exitCode=1)).explain(judge(RunEnd("exit", exit_code=1)))
    assert (found.success, found.fault) == (False, None)
    assert "the tool crashed" in (found.reason or "")


def test_tokens_without_a_price_are_priced_by_the_list() -> None:
    stream = AgentStream("codex", PROJECT, model="gpt-5")
    stream.feed("stdout", line(type="turn.completed", usage={"input_tokens": 1_000_000, "output_tokens": 0}))
    cost = stream.find_cost() or {}
    assert cost["source"] == "list"
    assert cost["usd"] > 0


def test_what_is_used_is_known_while_the_agent_runs() -> None:
    stream = AgentStream("claude", PROJECT)
    for output in (1, 50):  # the same request, reported twice
        message = {"id": "m1", "model": "claude-sonnet-4-5", "usage": {"input_tokens": 10, "output_tokens": output}}
        stream.feed("stdout", line(type="assistant", message=message))
    message = {"id": "m2", "model": "claude-sonnet-4-5", "usage": {"cache_read_input_tokens": 5, "output_tokens": 1}}
    stream.feed("stdout", line(type="assistant", message=message))
    assert (stream.tokens.input, stream.tokens.cached, stream.tokens.output) == (15, 5, 51)
    assert (stream.find_cost() or {})["usd"] > 0


def test_parts_of_a_message_are_one_message() -> None:
    parts = [line(type="message", role="assistant", content=text, delta=True) for text in ("All ", "done", ".")]
    stream = read("gemini", *parts, line(type="result", status="success"))
    assert list_steps(stream) == ["All done."]
    assert stream.facts["answer"] == "All done."


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize(
    "hostile",
    [
        b'{"type":"assistant","message":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        b'{"type":' + b"9" * 5000 + b"}\n",
        b'{"type":"result","total_cost_usd":1e999,"usage":{"input_tokens":-5,"output_tokens":1.5}}\n',
        b'{"type":"result","total_cost_usd":NaN,"cost_usd":-1,"usage":{"input_tokens":' + b"9" * 400 + b"}}\n",
        b'{"type":"assistant","message":{"content":[1,null,"x",{"type":"text","text":{}},{"type":"tool_use"}]}}\n',
        b'{"type":"item.completed","item":[]}\n{"type":"item.started","item":{"type":"file_change","changes":[1]}}\n',
        b'{"type":"step_finish","part":{"tokens":[],"cost":"much"}}\n{"type":"tool_use","part":7}\n',
        b'{"type":"message","role":"assistant","message":{"role":"assistant","content":{}},"content":[]}\n',
        b"\xff\xfe{\n\x00\n{\n[]\n{}\n" * 10,
        b'{"type":"result","result":"\\ud800","session_id":"\\uDfff"}\n{"type":"error","error":"\\udc00","message":"\\uD801"}\n',
        b'{"type":"result","result":"\xed\xa0\x80"}\n',
    ],
)
def test_hostile_lines(name: str, hostile: bytes) -> None:
    stream = read(name, hostile, hostile)
    cost = stream.find_cost() or {}
    assert cost.get("usd") in (None, 0.0)
    assert cost.get("input_tokens", 0) == 0
    json.dumps([stream.take_steps(), stream.facts, stream.activity], allow_nan=False, ensure_ascii=False).encode()


def test_a_line_without_end_takes_no_memory() -> None:
    stream = AgentStream("claude", PROJECT)
    stream.feed("stdout", b"")
    piece = b'{"type":"assistant","x":"' + b"a" * (64 << 10)
    tracemalloc.start()
    try:
        for _ in range(200):
            stream.feed("stdout", piece)
            stream.feed("stderr", piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20
    stream.feed("stdout", b'"}\n' + line(type="result", result="still read", is_error=False))
    assert stream.facts["answer"] == "still read"


def test_escapes_do_not_reach_the_terminal() -> None:
    text = "\x1b]0;owned\x07\x1b[31mred\x1b[0m\x9b2J\u202edlrow"
    content = [{"type": "tool_use", "name": f"Ba{text}", "input": {"command": text}}, {"type": "text", "text": text}]
    stream = read("claude", line(type="assistant", message={"content": content}), line(type="result", result=text))
    shown = [*list_steps(stream), stream.facts["answer"], stream.facts["last_line"], stream.facts["tail"]]
    assert not [c for text in shown for c in text if c in "\x1b\x07\x9b"]


def test_a_broken_stream_is_plain_output_and_says_so_once() -> None:
    stream = read("codex", b'{"type":"thread.started","thread_id":"t1"}\n{"type":"item.st\n{oops\nplain\n')
    notes = [step for step in list_steps(stream) if "not JSON" in step]
    assert len(notes) == 1
    assert stream.activity is None  # the last line of the log is shown instead
    assert stream.facts["session"] == "t1"


def test_a_changed_format_is_plain_output_and_says_so_once() -> None:
    stream = read("claude", *(line(kind="v9", n=n) for n in range(50)))
    [note] = list_steps(stream)
    assert "no event that forkwise knows" in note
    assert len(list_steps(read("claude", line(kind="v9")))) == 1


def test_unknown_events_among_known_ones_are_ignored() -> None:
    stream = read("codex", line(type="thread.started", thread_id="t"), *(line(type=f"new{n}") for n in range(50)))
    assert list_steps(stream) == []


def test_steps_are_bounded_and_the_last_one_is_still_known() -> None:
    item = {"type": "command_execution", "command": "/bin/bash -lc 'make it'"}
    stream = read("codex", *(line(type="item.started", item=item) for _ in range(5000)))
    steps = list_steps(stream)
    assert len(steps) == 2000
    assert "first 2000 steps" in steps[-1]
    stream.feed("stdout", line(type="item.completed", item={"type": "agent_message", "text": "made"}))
    stream.feed("stdout", line(type="turn.completed", usage={}))
    assert stream.facts["answer"] == "made"


@pytest.mark.parametrize(
    ("errors", "fault", "is_blocked"),
    [
        (b"Not logged in \xc2\xb7 Please run /login\n", "provider", True),
        (b"Error: 401 Unauthorized\n", "provider", True),
        (b"API Error: 429 rate_limit_error\n", "provider", False),
        (b"stream disconnected before completion\n", "provider", False),
        (b"TypeError: x is undefined\n    at run (/a/b.js:1:2)\n\nNode.js v22.1.0\n", None, False),
    ],
)
@pytest.mark.parametrize("name", [None, "claude"])
def test_a_failure_says_why_and_whose_it_is(
    name: str | None, errors: bytes, fault: str | None, is_blocked: bool
) -> None:
    judgement = read(name, b"", errors=errors).explain(judge(RunEnd("exit", exit_code=1)))
    assert judgement.reason == f"{errors.decode().splitlines()[0]} (exit code 1)"
    assert (judgement.fault, judgement.blocks_others) == (fault, is_blocked)


def test_an_error_in_the_stream_is_a_failure_whatever_the_exit_code_is() -> None:
    end = line(
        type="result", subtype="success", is_error=True, result="Credit balance is too low", api_error_status=400
    )
    judgement = read("claude", end).explain(judge(RunEnd("exit", exit_code=0)))
    assert not judgement.success
    assert judgement.fault == "provider"
    assert "Credit balance is too low" in (judgement.reason or "")


def test_what_an_agent_says_about_limits_is_no_fault_of_the_provider() -> None:
    content = [{"type": "text", "text": "The test fails with 429 rate limit and 401."}]
    stream = read("claude", line(type="assistant", message={"content": content}), errors=b"gave up\n")
    assert stream.explain(judge(RunEnd("exit", exit_code=1))).fault is None


@pytest.mark.parametrize("name", sorted(SESSIONS))
def test_a_long_stream_ends_as_a_short_one(name: str) -> None:
    content = (STREAMS / f"{name}.jsonl").read_bytes()
    short, long = read(name, content), read(name, *[content] * 500)
    assert len(long.take_steps()) == 2000
    assert long.activity == short.activity
    assert {**long.facts, "tail": ""} == {**short.facts, "tail": ""}
    assert long.facts["tail"].endswith(short.facts["tail"])
    assert long.tokens == short.tokens


def many_steps(name: str) -> bytes:
    """Return more steps than are recorded: from then on, lines are parsed only if they are needed."""
    tool = {
        "acp": line(type="update", update={"sessionUpdate": "tool_call", "title": "make it"}),
        "claude": line(type="assistant", message={"content": [{"type": "tool_use", "name": "Make"}]}),
        "codex": line(type="item.started", item={"type": "command_execution", "command": "make it"}),
        "gemini": line(type="tool_use", tool_name="make"),
        "goose": line(type="message", message={"role": "assistant", "content": [{"type": "toolRequest"}]}),
        "opencode": line(type="tool_use", part={"tool": "make"}),
        "copilot": line(type="tool.execution_start", data={"toolName": "make"}),
        "pi": line(type="tool_execution_start", toolName="make"),
        "vibe": line(sessionId="1", type="effect", detail={"toolName": "make"}),
    }[name]
    return tool * 2100


def chunk(text: str) -> bytes:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return json.dumps({"type": "update", "update": update}).encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "part", "end"),
    [
        ("acp", chunk, line(type="end", reason="end_turn")),
        (
            "gemini",
            lambda text: line(type="message", role="assistant", content=text, delta=True),
            line(type="result", status="success"),
        ),
    ],
)
def test_a_message_of_many_parts_after_many_steps(name: str, part: Callable[[str], bytes], end: bytes) -> None:
    words = [f"word{n} " for n in range(5000)]
    last_step = many_steps(name)[-200:].splitlines(keepends=True)[-1]
    parts = [part("early"), last_step, *map(part, words), end]
    stream = read(name, many_steps(name), b"".join(parts), last_step)
    assert stream.facts["answer"] == "".join(words)
    assert stream.activity in ("make", "make it")
    assert stream.facts["tail"].splitlines()[-4] == "early"
    stream.feed("stdout", part("x" * 30_000) * 200)
    assert len(stream.facts["answer"]) <= 100_000


def test_an_end_without_a_message_of_its_own_keeps_the_last_one() -> None:
    said = line(type="item.completed", item={"type": "agent_message", "text": "made"})
    item, end = line(type="item.started", item={"type": "command_execution"}), line(type="turn.completed", usage={})
    stream = read("codex", many_steps("codex"), said, end, item, end, item)
    assert stream.facts["answer"] == "made"


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_lines_that_are_parsed_late_take_no_memory(name: str) -> None:
    stream = read(name, many_steps(name))
    text = "y" * 30_000
    pieces = {
        "acp": chunk(text),
        "claude": line(type="assistant", message={"content": [{"type": "text", "text": text}]}),
        "codex": line(type="item.completed", item={"type": "agent_message", "text": text}),
        "gemini": line(type="message", role="assistant", content=text, delta=True),
        "goose": line(type="message", message={"role": "assistant", "content": [{"type": "text", "text": text}]}),
        "opencode": line(type="text", part={"text": text}),
        "copilot": line(type="assistant.message", data={"content": text}),
        "pi": line(type="message_end", message={"role": "assistant", "content": [{"type": "text", "text": text}]}),
        "vibe": line(sessionId="1", type="message", role="assistant", content=[{"type": "text", "text": text}]),
    }
    piece = pieces[name] * 4 + many_steps(name)[:200].splitlines(keepends=True)[0]
    tracemalloc.start()
    try:
        for _ in range(120):
            stream.feed("stdout", piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20


@pytest.mark.parametrize("name", sorted(SESSIONS))
def test_a_long_stream_is_read_with_few_calls(name: str) -> None:
    content = (STREAMS / f"{name}.jsonl").read_bytes()
    stream = read(name, content * 500)
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        stream.feed("stdout", content * 100)
    finally:
        sys.setprofile(None)
    most = {"claude": 14, "codex": 4, "gemini": 8, "goose": 5, "opencode": 8}[name]  # on average, for each line
    assert calls / (content.count(b"\n") * 100) < most


def test_a_bad_line_after_many_steps_is_plain_output() -> None:
    stream = read("gemini", many_steps("gemini"), b'{"type":"message",oops\n{"type":"tool_use",\n{"type":"init",\n')
    assert stream.activity is None
    assert "not JSON" in stream.facts["tail"]


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("API Error: 529 overloaded_error", 0),
        ("429 Too Many Requests (retry-after: 7)", 7),
        ("Rate limit reached for gpt-5. Please try again in 11.054s.", 11.054),
        ("Rate limit reached for gpt-5. Please try again in 250ms.", 0.25),
        ("RESOURCE_EXHAUSTED: You exceeded your current quota. Please retry in 34.5s.", 34.5),
        ("You exceeded your current quota, please check your plan and billing details", None),
        ("Claude AI usage limit reached, try again at 3pm", None),
        ("503 Service Unavailable", None),
        ("TypeError: try again in 3 s", None),
    ],
)
def test_how_long_a_provider_refuses_requests(said: str, seconds: float | None) -> None:
    error = line(type="turn.failed", error={"message": said})
    judgement = read("codex", error).explain(judge(RunEnd("exit", exit_code=1)))
    assert judgement.retry_after == (None if seconds is None else pytest.approx(seconds))


def test_when_a_limit_of_claude_ends() -> None:
    end = line(type="result", is_error=True, result="429 rate_limit_error")
    for resets, longest in ((1, 0), (4_000_000_000, 4_000_000_000)):
        info = {"status": "rejected", "resetsAt": resets}
        stream = read("claude", line(type="rate_limit_event", rate_limit_info=info), end)
        retry_after = stream.explain(judge(RunEnd("exit", exit_code=1))).retry_after
        assert retry_after is not None
        assert longest // 2 <= retry_after <= longest


@pytest.mark.parametrize("name", sorted(SESSIONS))
def test_both_parsers_read_the_same(name: str) -> None:
    content = (STREAMS / f"{name}.jsonl").read_bytes()
    padding = b'{"type":"unknown","x":"%b"}\n' % (b"y" * 300_000)  # a long stream is parsed by another library
    short, long = read(name, content), read(name, padding, content)
    assert (short.take_steps(), short.facts, short.find_cost()) == (long.take_steps(), long.facts, long.find_cost())


def test_a_second_run_adds_to_the_first() -> None:
    stream = read("codex", line(type="thread.started", thread_id="t1"), errors=b"429\n")
    used = line(type="turn.completed", usage={"input_tokens": 10, "output_tokens": 1})
    stream.feed("stdout", used + b'{"type":"turn.f')
    stream.restart("waits 5 s")
    for _ in range(2):
        stream.feed("stdout", line(type="turn.completed", usage={"input_tokens": 20, "output_tokens": 2}))
    stream.finish()
    assert (stream.tokens.input, stream.tokens.output) == (30, 3)
    assert list_steps(stream) == ["waits 5 s"]
    assert stream.explain(judge(RunEnd("exit", exit_code=0))).success
    assert stream.explain(judge(RunEnd("exit", exit_code=1))).fault is None  # what the first run said is not its own
