"""Spans: those that a pattern exports, and how they are nested."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from forkwise import Speculate, Tests, TreeOfThoughts, Workspace, telemetry


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The exporter of a provider that only this test uses."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_find_tracer", lambda: provider.get_tracer("forkwise"))
    yield exporter
    provider.shutdown()


def named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == f"forkwise.{name}"]


def workflows(spans: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    return [span for span in spans if span.name.startswith("invoke_workflow ")]


def above(span: ReadableSpan, spans: Sequence[ReadableSpan]) -> ReadableSpan | None:
    """Return the parent of a span."""
    if span.parent is None:
        return None
    return next(s for s in spans if s.context is not None and s.context.span_id == span.parent.span_id)


def good(path: Path) -> bool:
    (path / "good").write_text("good")
    return True


def test_spans_lie_in_each_other(exported: InMemorySpanExporter, workspace: Workspace) -> None:
    outcome = Speculate([good, lambda _: False], first_wins=False, evaluate=Tests("test -e good"))(workspace)
    spans = exported.get_finished_spans()
    assert sorted(s.name for s in spans) == [
        "forkwise.attempt",
        "forkwise.attempt",
        "forkwise.baseline",
        "forkwise.commit",
        "forkwise.test",
        "invoke_workflow speculate",
    ]
    [fork] = workflows(spans)
    [test] = named(spans, "test")
    [commit] = named(spans, "commit")
    attempts = {s.attributes["forkwise.id"]: s for s in named(spans, "attempt") if s.attributes}
    assert set(attempts) == {r.attempt for r in outcome.all_results}
    assert fork.parent is None
    assert fork.attributes == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "speculate",
    }
    assert all(above(span, spans) is fork for span in [*attempts.values(), commit])
    first, second = (attempts[r.attempt] for r in outcome.all_results)
    assert above(test, spans) is first
    assert test.attributes is not None
    assert test.attributes["forkwise.attempt"] == outcome.all_results[0].attempt
    assert commit.attributes == {"forkwise.fork": outcome.fork, "forkwise.attempt": outcome.all_results[0].attempt}
    [event] = first.events
    assert event.name == "gen_ai.evaluation.result"
    assert event.attributes == {
        "gen_ai.evaluation.name": "tests",
        "gen_ai.evaluation.score.label": "pass",
        "gen_ai.evaluation.score.value": 1.0,
        "gen_ai.evaluation.explanation": outcome.all_results[0].tests.summary,  # type: ignore[union-attr]
    }
    assert not second.events
    assert first.status.status_code is StatusCode.UNSET
    assert (second.status.status_code, second.status.description) == (StatusCode.ERROR, "it returned False")
    for inner in (first, second, commit):
        assert fork.start_time <= inner.start_time  # type: ignore[operator]
        assert inner.end_time <= fork.end_time  # type: ignore[operator]


def test_spans_of_explorations_inside_attempts(exported: InMemorySpanExporter, workspace: Workspace) -> None:
    def outer(path: Path) -> bool:
        return Speculate([good])(path).committed

    async def outer_on_the_loop(path: Path) -> bool:
        return Speculate([good])(path).committed  # called inside an event loop: the pattern runs in its own thread

    for work in (outer, outer_on_the_loop):
        exported.clear()
        assert Speculate([work])(workspace).committed
        spans = exported.get_finished_spans()
        inner, around = workflows(spans)
        attempt = above(inner, spans)
        assert attempt is not None
        assert attempt.name == "forkwise.attempt"
        assert above(attempt, spans) is around
        assert around.parent is None


def test_spans_lie_in_the_callers(exported: InMemorySpanExporter, workspace: Workspace) -> None:
    async def main() -> None:
        with telemetry.span("mine"):
            await TreeOfThoughts([good], expand=lambda *_: [good], max_depth=2).run(workspace)

    asyncio.run(main())
    spans = exported.get_finished_spans()
    [mine] = named(spans, "mine")
    [fork] = workflows(spans)
    assert above(fork, spans) is mine
    assert len(named(spans, "attempt")) == 2
    assert len(named(spans, "commit")) == 2, "into the branch, and from there into the workspace"


def test_a_judges_verdicts_and_questions(exported: InMemorySpanExporter, workspace: Workspace) -> None:
    from pydantic_ai.models.test import TestModel

    from forkwise import BestOfN, ModelJudge

    def write(path: Path, number: int) -> bool:
        (path / f"{number}").write_text("x")
        return True

    judge = ModelJudge(TestModel(custom_output_args={"better": "A", "confidence": 1.0, "reason": "first"}))
    BestOfN(write, 2, judge=judge)(workspace)
    spans = exported.get_finished_spans()
    chats = [span for span in spans if span.name == "chat test"]
    [verdict] = named(spans, "judge")
    assert len(chats) == 2
    for chat in chats:
        assert above(chat, spans) is verdict
        assert chat.kind is SpanKind.CLIENT
        values = dict(chat.attributes or {})
        assert values.pop("gen_ai.usage.input_tokens", 0) > 0
        assert values.pop("gen_ai.usage.output_tokens", 0) > 0
        assert values == {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "test",
            "gen_ai.provider.name": "test",
        }
    labels = [(event.attributes or {})["gen_ai.evaluation.score.label"] for event in verdict.events]
    assert labels == ["tie", "tie"], "a judge that always takes the first one contradicts itself"


def test_an_agents_attempt_is_its_invocation(exported: InMemorySpanExporter, workspace: Workspace) -> None:
    from forkwise.agents.stream import AgentStream
    from forkwise.fork.candidate import Candidate

    line = (
        '{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":"s","total_cost_usd":0.5,'
        '"usage":{"input_tokens":7,"output_tokens":3}}'
    )
    agent = Candidate(
        "claude",
        argv=("sh", "-c", f"touch made; echo '{line}'"),
        agent="claude",
        provider="anthropic",
        read_output=lambda directory: AgentStream("claude", directory),
    )
    assert Speculate([agent])(workspace).committed
    [invocation] = [span for span in exported.get_finished_spans() if span.name == "invoke_agent claude"]
    values = dict(invocation.attributes or {})
    assert values.pop("forkwise.id")
    assert values == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "claude",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "forkwise.cost.usd": 0.5,
        "forkwise.label": "claude",
    }


def agent_of(*lines: str) -> Any:
    from forkwise.agents.stream import AgentStream
    from forkwise.fork.candidate import Candidate

    return Candidate(
        "claude",
        argv=("sh", "-c", f"touch made; cat <<'END'\n{chr(10).join(lines)}\nEND\n"),
        agent="claude",
        provider="anthropic",
        read_output=lambda directory: AgentStream("claude", directory),
    )


def call_line(id_: str, name: str) -> str:
    part = {"type": "tool_use", "id": id_, "name": name, "input": {"command": "secret", "file_path": "secret"}}
    return json.dumps({"type": "assistant", "message": {"id": "m", "content": [part]}}, separators=(",", ":"))


def result_line(id_: str, *, is_error: bool = False) -> str:
    part = {"type": "tool_result", "tool_use_id": id_, "content": "secret", "is_error": is_error}
    return json.dumps({"type": "user", "message": {"content": [part]}}, separators=(",", ":"))


def test_an_agents_tool_calls_lie_in_its_invocation(exported: InMemorySpanExporter, workspace: Workspace) -> None:
    lines = [call_line("c1", "Bash"), call_line("c2", "Read"), result_line("c2"), result_line("c1", is_error=True)]
    lines += [result_line("unknown"), call_line("c3", "Edit")]
    assert Speculate([agent_of(*lines)])(workspace).committed
    spans = exported.get_finished_spans()
    [invocation] = [span for span in spans if span.name == "invoke_agent claude"]
    calls = {span.name: span for span in spans if span.name.startswith("execute_tool ")}
    assert {name: dict(span.attributes or {}) for name, span in calls.items()} == {
        f"execute_tool {name}": {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": id_,
            **more,
        }
        for name, id_, more in (("bash", "c1", {"error.type": "tool_error"}), ("read", "c2", {}), ("edit", "c3", {}))
    }
    for span in calls.values():
        assert above(span, spans) is invocation
        assert invocation.start_time <= span.start_time <= span.end_time <= invocation.end_time  # type: ignore[operator]
    bash, other = calls["execute_tool bash"], calls["execute_tool read"]
    assert bash.start_time <= other.start_time <= other.end_time <= bash.end_time  # type: ignore[operator]
    assert bash.status.status_code is StatusCode.ERROR
    assert other.status.status_code is StatusCode.UNSET
    assert not [span for span in spans if "secret" in span.to_json()]


def test_tool_calls_are_not_read_if_nobody_records(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    from forkwise.agents.stream import AgentStream

    monkeypatch.setattr(telemetry, "_find_tracer", lambda: None)
    monkeypatch.setattr(AgentStream, "trace_tools", lambda *_: pytest.fail("it is traced"))
    assert Speculate([agent_of(call_line("c1", "Bash"), result_line("c1"))])(workspace).committed


def test_times_of_tool_calls_are_bounded(exported: InMemorySpanExporter) -> None:
    begin = time.time_ns()
    with telemetry.span("agent"), telemetry.trace_tools() as tools:
        assert tools is not None
        tools.start("a", "1", at_ms=1)
        tools.end("1", is_failed=False, at_ms=10**13)
        tools.start("", "")
        tools.start("b", "")
    tools.start("late", "2")
    spans = exported.get_finished_spans()
    assert [span.name for span in spans] == ["execute_tool a", "execute_tool other", "execute_tool b", "forkwise.agent"]
    assert all(begin <= span.start_time <= span.end_time <= time.time_ns() for span in spans)  # type: ignore[operator]


def test_errors_have_a_type_and_explanations_are_bounded(exported: InMemorySpanExporter) -> None:
    def work() -> None:
        with telemetry.operation_span("execute_tool", "fork", {"tool.call.id": None}) as span:
            telemetry.record_evaluation(span, "judge", score=None, label="x", explanation="y" * 10_000)
            raise KeyError("x")

    with pytest.raises(KeyError):
        work()
    [span] = exported.get_finished_spans()
    assert span.attributes == {"gen_ai.operation.name": "execute_tool", "error.type": "KeyError"}
    [event] = [event for event in span.events if event.name == "gen_ai.evaluation.result"]
    assert len(str((event.attributes or {})["gen_ai.evaluation.explanation"])) == 500


def test_without_a_provider_there_is_nothing_to_see(workspace: Workspace) -> None:
    with telemetry.span("nothing") as span:
        assert not span.is_recording()
    telemetry.mark_failed(span, "x")
    telemetry.record_evaluation(span, "tests", score=1.0, label="pass")


def test_nothing_is_loaded_without_a_provider() -> None:
    code = """
import sys
from forkwise import telemetry
with telemetry.operation_span("chat", "m", {}, carrier={"traceparent": "x"}) as span, telemetry.span("x"):
    telemetry.record_evaluation(telemetry.current_span(), "tests", score=1.0, label="pass")
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
