"""Spans and events of OpenTelemetry, named by its conventions for generative AI.

OpenTelemetry is loaded only if the program around forkwise has loaded it, or if its variables ask the command line to
export: a provider of traces cannot exist otherwise, and all of this then costs next to nothing. Spans have names,
numbers and verdicts, never prompts, diffs or output.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = [
    "ToolSpans",
    "allow_export",
    "chat_span",
    "current_span",
    "mark_failed",
    "operation_span",
    "record_evaluation",
    "record_usage",
    "span",
    "split_model",
    "trace_tools",
]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_MAX_TEXT = 500  # characters of an explanation
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "grok": "x_ai",
    "mistral": "mistral_ai",
    "openai-chat": "openai",
    "openai-responses": "openai",
}
"""The conventions' names of providers, where pydantic-ai's differ."""

Value = str | int | float | bool

_may_export = False
_export_lock = threading.Lock()


class _NoSpan:
    """A span that nobody records."""

    def is_recording(self) -> bool:
        return False

    def set_attribute(self, _name: str, _value: Value) -> None:
        pass

    def set_status(self, _status: Any) -> None:
        pass

    def add_event(self, _name: str, _attributes: Mapping[str, Value]) -> None:
        pass


def allow_export() -> None:
    """Let the first span start an exporter, if the variables of OpenTelemetry name an endpoint. For command lines."""
    global _may_export
    _may_export = any(os.environ.get(name) for name in _ENDPOINTS)


def _load() -> Any:
    """Return the module ``opentelemetry.trace``; None if there cannot be a provider of traces."""
    if _may_export:
        with _export_lock:
            if _may_export:
                _start_export()
    if "opentelemetry.trace" not in sys.modules and not os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"):
        return None
    from opentelemetry import trace  # noqa: PLC0415 (60 ms of CPU time)

    return trace


def _start_export() -> None:
    global _may_export
    _may_export = False
    from opentelemetry import trace  # noqa: PLC0415

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return  # opentelemetry-instrument has set one
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        print("forkwise: spans are not exported: pip install 'forkwise[otel]'", file=sys.stderr)
        return
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({} if named else {"service.name": "forkwise"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)  # it exports what is left when the process ends


def _find_tracer() -> Any:
    """Return the tracer; None if nobody records spans."""
    trace = _load()
    return None if trace is None else trace.get_tracer("forkwise")


@contextmanager
def _start(
    name: str, attributes: Mapping[str, Value], *, is_client: bool = False, context: Any = None
) -> Iterator[Any]:
    tracer = _find_tracer()
    if tracer is None:
        yield _NoSpan()
        return
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 (loaded by now)

    kind = SpanKind.CLIENT if is_client else SpanKind.INTERNAL
    with tracer.start_as_current_span(name, context, kind, attributes) as started:
        yield started


@contextmanager
def span(name: str, **attributes: Value) -> Iterator[Any]:
    """Trace the block as a span of forkwise's own; name and ``attributes`` get the prefix ``forkwise.``."""
    with _start(f"forkwise.{name}", _prefix(attributes)) as started:
        yield started


@contextmanager
def operation_span(
    operation: str,
    target: str,
    attributes: Mapping[str, Value | None],
    *,
    is_client: bool = False,
    carrier: Mapping[str, str] | None = None,
    **own: Value,
) -> Iterator[Any]:
    """Trace the block as an operation of the conventions, such as ``invoke_agent`` or ``chat``.

    ``target`` is the agent, tool or model. ``attributes`` are those of the conventions without their prefix; None
    values are left out. ``own`` attributes get the prefix ``forkwise.``. A ``carrier`` has the ids of the caller's span
    if that is in another process.
    """
    values = {f"gen_ai.{name}": value for name, value in attributes.items() if value is not None}
    context = None
    if carrier and _load() is not None:
        from opentelemetry.propagate import extract  # noqa: PLC0415

        context = extract(carrier)
    name = f"{operation} {target}" if target else operation
    values = {"gen_ai.operation.name": operation, **values, **_prefix(own)}
    with _start(name, values, is_client=is_client, context=context) as started:
        try:
            yield started
        except Exception as error:
            started.set_attribute("error.type", type(error).__qualname__)
            raise


@contextmanager
def chat_span(model: Any, usage: Any) -> Iterator[Any]:
    """Trace the block, a request to ``model`` (pydantic-ai's, or a name), as ``chat``; ``usage`` counts the tokens."""
    provider, name = split_model(model if isinstance(model, str) else str(getattr(model, "model_id", "")))
    facts = {"request.model": name, "provider.name": provider}
    with operation_span("chat", name, facts, is_client=True) as started:
        try:
            yield started
        finally:
            record_usage(started, {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens})


class ToolSpans:
    """The tool calls that an agent reports, as spans inside the span of its invocation.

    They have names, never arguments or results. A thread other than the caller's may start and end them.
    """

    def __init__(self, tracer: Any, context: Any) -> None:
        self._tracer = tracer
        self._context = context
        self._begin_ns = time.time_ns()
        self._open: dict[str, Any] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def start(self, tool: str, call: str, *, at_ms: int | None = None) -> None:
        """Start a call's span, now or at a time by the agent's clock; without an id, the next such call ends it."""
        with self._lock:
            if self._is_closed:
                return
            self._end(call, at_ms)
            name = tool or "other"
            values = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
            if call:
                values["gen_ai.tool.call.id"] = call
            self._open[call] = self._tracer.start_span(
                f"execute_tool {name}", self._context, attributes=values, start_time=self._find_time(at_ms)
            )

    def end(self, call: str, *, is_failed: bool, at_ms: int | None = None) -> None:
        """End the span of a call; do nothing if there is none."""
        with self._lock:
            if is_failed and call in self._open:
                self._open[call].set_attribute("error.type", "tool_error")
                mark_failed(self._open[call], None)
            self._end(call, at_ms)

    def close(self) -> None:
        """End the spans of calls whose end was not reported."""
        with self._lock:
            self._is_closed = True
            for call in list(self._open):
                self._end(call, None)

    def _end(self, call: str, at_ms: int | None) -> None:
        started = self._open.pop(call, None)
        if started is not None:
            started.end(self._find_time(at_ms))

    def _find_time(self, at_ms: int | None) -> int:
        """Return a time in nanoseconds: now, or the reported time, limited to between the beginning and now."""
        now = time.time_ns()
        return now if at_ms is None else max(self._begin_ns, min(at_ms * 1_000_000, now))


@contextmanager
def trace_tools() -> Iterator[ToolSpans | None]:
    """Yield the spans of tool calls inside the current span; None if nobody records it."""
    active = current_span()
    tracer = _find_tracer() if active.is_recording() else None
    if tracer is None:
        yield None
        return
    from opentelemetry.trace import set_span_in_context  # noqa: PLC0415 (loaded by now)

    spans = ToolSpans(tracer, set_span_in_context(active))
    try:
        yield spans
    finally:
        spans.close()


def _prefix(attributes: Mapping[str, Value]) -> dict[str, Value]:
    return {f"forkwise.{name}": value for name, value in attributes.items()}


def current_span() -> Any:
    """Return the span around the caller."""
    trace = _load()
    return _NoSpan() if trace is None else trace.get_current_span()


def mark_failed(active_span: Any, reason: str | None) -> None:
    """Set the status of a span to an error with ``reason``."""
    if active_span.is_recording():
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

        active_span.set_status(Status(StatusCode.ERROR, reason))


def record_usage(active_span: Any, cost: Mapping[str, Any] | None) -> None:
    """Record tokens and dollars: the keys are those of an attempt's cost in the ledger."""
    if not cost or not active_span.is_recording():
        return
    names = {
        "input_tokens": "gen_ai.usage.input_tokens",
        "output_tokens": "gen_ai.usage.output_tokens",
        "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
        "usd": "forkwise.cost.usd",
    }
    for key, name in names.items():
        if cost.get(key) is not None:
            active_span.set_attribute(name, cost[key])


def record_evaluation(
    active_span: Any, name: str, *, score: float | None, label: str, explanation: str | None = None, **own: Value
) -> None:
    """Add the event ``gen_ai.evaluation.result`` to a span: the verdict of tests or of a judge."""
    if not active_span.is_recording():
        return
    values: dict[str, Value] = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.label": label, **_prefix(own)}
    if score is not None:
        values["gen_ai.evaluation.score.value"] = float(score)
    if explanation:
        values["gen_ai.evaluation.explanation"] = explanation[:_MAX_TEXT]
    active_span.add_event("gen_ai.evaluation.result", values)


def split_model(name: str) -> tuple[str | None, str]:
    """Split pydantic-ai's name of a model into the conventions' name of its provider, if it has one, and the rest.

    >>> split_model("google-gla:gemini-3-pro"), split_model("local")
    (('gcp.gemini', 'gemini-3-pro'), (None, 'local'))
    """
    provider, colon, model = name.partition(":")
    return (_PROVIDERS.get(provider, provider), model) if colon else (None, name)
