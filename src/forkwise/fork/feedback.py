"""Feedback: what the next attempt should know of one that failed."""

from __future__ import annotations

from forkwise.fork.attempt import Attempt

__all__ = ["feedback_of"]

_TAIL = 3000  # characters of what it printed last


def feedback_of(attempt: Attempt) -> str:
    """Why an attempt failed: what it said itself, its failing tests with their output, or what it printed last."""
    parts = [attempt.said or attempt.reason or "it failed"]
    if attempt.tests is not None:
        parts.append(attempt.tests.feedback())
    else:
        tail = attempt.fork.ledger.attempt(attempt.id).tail
        if tail:
            parts.append(f"Its output ends with:\n{tail[-_TAIL:]}")
    return "\n\n".join(parts)
