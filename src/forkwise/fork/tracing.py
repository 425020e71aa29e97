"""Spans for OpenTelemetry: what a fork, an attempt, a test run and a commit took. Whoever wants them exports them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

__all__ = ["failed", "span"]

_tracer = trace.get_tracer("forkwise")


@contextmanager
def span(name: str, **attributes: str | int | float) -> Iterator[Span]:
    """A span around a block; its attributes are named ``forkwise.*``."""
    with _tracer.start_as_current_span(
        f"forkwise.{name}", attributes={f"forkwise.{key}": value for key, value in attributes.items()}
    ) as made:
        yield made


def failed(made: Span, reason: str | None) -> None:
    """Mark a span as one of something that did not succeed."""
    made.set_status(Status(StatusCode.ERROR, reason))
