"""Messages: versions, schemas, and what a hostile client can send."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from forkwise import Workspace, telemetry
from forkwise.mcp.protocol import McpServer
from forkwise.mcp.tool_schema import TOOLS
from tests.mcp.conftest import Talker

NAMES = ["fork", "wait", "show", "diff", "run", "write", "test", "pick", "undo", "abort"]


def test_what_a_client_learns_at_the_start(talker: Talker) -> None:
    answer = talker.request("initialize", protocolVersion="2024-11-05", capabilities={})["result"]
    assert answer["protocolVersion"] == "2024-11-05"
    assert answer["serverInfo"]["name"] == "forkwise"
    later = talker.request("initialize", protocolVersion="2099-01-01", capabilities={})["result"]
    assert later["protocolVersion"] == "2025-11-25"
    assert talker.request("ping")["result"] == {}
    assert [tool["name"] for tool in talker.request("tools/list")["result"]["tools"]] == NAMES
    assert len(talker.request("resources/templates/list")["result"]["resourceTemplates"]) == 3
    assert talker.request("resources/list")["result"]["resources"][0]["uri"] == "forkwise://workspace"


def test_the_tools_take_little_of_a_clients_context(talker: Talker) -> None:
    text = json.dumps(talker.request("tools/list")["result"], separators=(",", ":"))
    # In JSON and English, a token of today's models is at least three bytes on average.
    assert len(text.encode()) / 3 < 4000


def test_prompts(talker: Talker) -> None:
    names = [prompt["name"] for prompt in talker.request("prompts/list")["result"]["prompts"]]
    assert names == ["try_n_ways", "review_attempts"]
    found = talker.request("prompts/get", name="try_n_ways", arguments={"task": "fix {n}", "n": "4"})["result"]
    text = found["messages"][0]["content"]["text"]
    assert "branches=4" in text
    assert "needs task" in talker.request("prompts/get", name="try_n_ways")["error"]["message"]
    assert "no prompt" in talker.request("prompts/get", name="x")["error"]["message"]


@pytest.mark.parametrize(
    ("option", "left"),
    [("read_only", {"wait", "show", "diff"}), ("no_commit", set(NAMES) - {"pick", "undo"})],
)
def test_tools_can_be_switched_off(connect: Callable[..., Talker], option: str, left: set[str]) -> None:
    talker = connect(**{option: True})
    assert {tool["name"] for tool in talker.request("tools/list")["result"]["tools"]} == left
    flag = f"--{option.replace('_', '-')}"
    for name in set(NAMES) - left:
        assert flag in talker.fail(name, names=["x"])


@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("fork", {}, "exactly one of"),
        ("fork", {"branches": 2, "commands": ["true"]}, "exactly one of"),
        ("fork", {"branches": 2, "test": "x"}, "does not apply"),
        ("fork", {"branches": 10**9}, "from 1 to 64"),
        ("fork", {"branches": True}, "type integer"),
        ("fork", {"agent": "claude"}, "needs prompts"),
        ("fork", {"agent": "no-such-agent", "prompts": ["x"]}, "no-such-agent"),
        ("fork", {"commands": ["true"], "budget": "much"}, "much"),
        ("fork", {"branches": 1, "workspace": "/"}, "has no 'workspace'"),
        ("wait", {"handle": "nothing"}, "nothing"),
        ("wait", {"handle": "job-00000000"}, "there is no job"),
        ("wait", {}, "needs handle"),
        ("wait", {"handle": "x", "timeout_s": 41}, "from 0 to 40"),
        ("show", {"name": "../../etc"}, "etc"),
        ("show", {"name": "k.1"}, "k"),
        ("diff", {"name": "99999"}, "99999"),
        ("run", {"branch": "/main", "command": "true"}, "main"),
        ("run", {"branch": "gone", "command": "true"}, "gone"),
        ("write", {"branch": "gone", "files": []}, "gone"),
        ("write", {"branch": "x", "files": [{"path": "a", "mode": 1}]}, "has no 'mode'"),
        ("test", {"branches": []}, "1 to 16"),
        ("pick", {"names": ["gone"]}, "gone"),
        ("pick", {"names": ["a"], "on_conflict": "destroy"}, "one of"),
        ("pick", {"names": ["a"], "allow_executable_config": True}, "has no"),
        ("undo", {"commit": 77}, "77"),
        ("undo", {}, ""),
        ("abort", {"name": "gone"}, "gone"),
        ("abort", {"name": "try-"}, "try-"),
        ("show", {"name": "a\0b"}, "NUL"),
        ("show", {"name": "\ud800"}, "surrogate"),
        ("missing", {}, "there is no tool"),
    ],
)
def test_wrong_arguments_get_a_clear_error(talker: Talker, tool: str, arguments: dict[str, Any], reason: str) -> None:
    message = talker.fail(tool, **arguments)
    assert reason in message
    assert "Traceback" not in message
    assert "KeyError" not in message


def test_huge_arguments_get_a_clear_error(talker: Talker, project: Path) -> None:
    (branch,) = talker.call("fork", branches=1)["branches"]
    files = [{"path": "big", "content": "x" * 10_000_000}]
    assert "10000000 characters" in talker.fail("write", branch=branch, files=files)
    assert talker.call("show", name=branch)["changes"] == []


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"jsonrpc": "1.0", "id": 1, "method": "ping"}',
        '{"jsonrpc": "2.0", "id": null, "method": "ping"}',
        '{"jsonrpc": "2.0", "id": {}, "method": "ping"}',
        '{"jsonrpc": "2.0", "id": 1, "method": 5}',
        '{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}',
        '{"jsonrpc": "2.0", "id": 1, "method": "no/such"}',
        '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": []}}',
        '{"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "file:///etc/passwd"}}',
        '{"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "forkwise://attempt/../x/log"}}',
        b"\xff\xfe\x00",
    ],
)
def test_messages_that_are_no_requests_get_an_error(talker: Talker, content: bytes | str) -> None:
    found: list[dict[str, Any]] = []
    talker.server.receive(content, talker.client, found.append)
    assert len(found) == 1
    assert "error" in found[0]


def test_answers_and_notices_of_nothing_are_ignored(talker: Talker) -> None:
    for message in (
        {"id": "forkwise-77", "result": {"action": "accept"}},
        {"id": [], "result": 5},
        {"method": "notifications/cancelled", "params": {"requestId": []}},
        {"method": "notifications/cancelled", "params": 5},
        {"method": "notifications/initialized"},
    ):
        talker.send(message)
    assert talker.request("ping")["result"] == {}


def test_a_hundred_calls_at_once_are_all_answered(talker: Talker, project: Path) -> None:
    (branch,) = talker.call("fork", branches=1)["branches"]
    numbers = [
        talker.start("tools/call", name=tool, arguments=arguments)
        for index in range(25)
        for tool, arguments in (
            ("show", {}),
            ("write", {"branch": branch, "files": [{"path": f"{index}.txt", "content": str(index)}]}),
            ("wait", {"handle": "nothing"}),
            ("diff", {"name": branch}),
        )
    ]
    answers = [talker.finish(number)["result"] for number in numbers]
    assert [bool(answer.get("isError")) for answer in answers] == [False, False, True, False] * 25
    assert talker.call("show", name=branch)["changes_in_all"] == 25
    assert len(Workspace(project).branches()) == 1


def test_an_id_in_use_is_refused_and_a_cancelled_call_is_not_answered(talker: Talker) -> None:
    (branch,) = talker.call("fork", branches=1)["branches"]
    number = talker.start("tools/call", name="run", arguments={"branch": branch, "command": "sleep 1000"})
    talker.send({"id": number, "method": "tools/call", "params": {"name": "show", "arguments": {}}})
    assert "in progress" in talker.finish(number)["error"]["message"]
    talker.send({"method": "notifications/cancelled", "params": {"requestId": number}})
    while talker.call("show")["jobs"]:
        pass
    assert not [m for m in talker.messages if m.get("id") == number and "result" in m]


def test_progress_is_reported_while_a_call_runs(talker: Talker) -> None:
    (branch,) = talker.call("fork", branches=1)["branches"]
    arguments = {"branch": branch, "command": "echo compiling; sleep 1000"}
    number = talker.start("tools/call", name="run", arguments=arguments, _meta={"progressToken": "t"})
    count = 1
    while (report := talker.progress.get(timeout=300))["message"] != "compiling":
        count += 1
    assert report == {"progressToken": "t", "progress": count, "message": "compiling"}
    talker.send({"method": "notifications/cancelled", "params": {"requestId": number}})


def test_keys_of_nested_agents_do_not_leak(project: Path) -> None:
    server = McpServer(project, environment={"SOME_API_KEY": "sk-very-secret-value-1234567890"})
    try:
        talker = Talker(server)
        (branch,) = talker.call("fork", branches=1)["branches"]
        found = talker.call("run", branch=branch, command="env; echo sk-very-secret-value-1234567890")
        assert "very-secret" not in json.dumps(found)
    finally:
        server.close()


def test_every_tool_has_a_method_and_at_most_ten_there_are() -> None:
    assert [tool.name for tool in TOOLS] == NAMES


def test_a_call_is_a_span_inside_the_clients(connect: Callable[..., Talker], monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_find_tracer", lambda: provider.get_tracer("forkwise"))
    talker = connect()
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    for parent in (f"00-{trace_id}-{span_id}-01", "forged", 7):
        talker.request("tools/call", name="show", arguments={}, _meta={"traceparent": parent})
    inside, *others = exporter.get_finished_spans()
    assert inside.name == "execute_tool show"
    assert inside.parent is not None
    assert (f"{inside.parent.trace_id:032x}", f"{inside.parent.span_id:016x}") == (trace_id, span_id)
    assert (inside.attributes or {})["gen_ai.tool.name"] == "show"
    assert [span.parent for span in others] == [None, None]
    provider.shutdown()
