"""Spans: those that a pattern exports, and how they are nested."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from forkwise import Speculate, Tests, TreeOfThoughts, Workspace
from forkwise.fork import attempt as tracing


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The exporter of a provider that only this test uses."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == f"forkwise.{name}"]


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
        "forkwise.fork",
        "forkwise.test",
    ]
    [fork] = named(spans, "fork")
    [test] = named(spans, "test")
    [commit] = named(spans, "commit")
    attempts = {s.attributes["forkwise.id"]: s for s in named(spans, "attempt") if s.attributes}
    assert set(attempts) == {r.attempt for r in outcome.all_results}
    assert fork.parent is None
    assert fork.attributes == {"forkwise.kind": "speculate"}
    assert all(above(span, spans) is fork for span in [*attempts.values(), commit])
    first, second = (attempts[r.attempt] for r in outcome.all_results)
    assert above(test, spans) is first
    assert test.attributes is not None
    assert test.attributes["forkwise.attempt"] == outcome.all_results[0].attempt
    assert commit.attributes == {"forkwise.fork": outcome.fork, "forkwise.attempt": outcome.all_results[0].attempt}
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
        inner, around = named(spans, "fork")
        attempt = above(inner, spans)
        assert attempt is not None
        assert attempt.name == "forkwise.attempt"
        assert above(attempt, spans) is around
        assert around.parent is None


def test_spans_lie_in_the_callers(exported: InMemorySpanExporter, workspace: Workspace) -> None:
    async def main() -> None:
        with tracing.span("mine"):
            await TreeOfThoughts([good], expand=lambda *_: [good], max_depth=2).run(workspace)

    asyncio.run(main())
    spans = exported.get_finished_spans()
    [mine] = named(spans, "mine")
    [fork] = named(spans, "fork")
    assert above(fork, spans) is mine
    assert len(named(spans, "attempt")) == 2
    assert len(named(spans, "commit")) == 2, "into the branch, and from there into the workspace"


def test_without_a_provider_there_is_nothing_to_see(workspace: Workspace) -> None:
    with tracing.span("nothing") as span:
        assert not span.is_recording()
