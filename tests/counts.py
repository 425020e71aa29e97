"""How often a test repeats what it tests: seldom by default, often under ``make crash`` and ``make fuzz``."""

from __future__ import annotations

import os

__all__ = ["IS_FULL", "IS_FUZZ", "examples", "rounds"]

#: Whether tests that kill or race processes do so as often as is useful (``FORKWISE_FULL=1``).
IS_FULL = os.environ.get("FORKWISE_FULL") == "1"

#: Whether property tests draw their examples at random (``FORKWISE_FUZZ=1``) instead of using the same ones every time.
IS_FUZZ = os.environ.get("FORKWISE_FUZZ") == "1"


def rounds(usual: int, full: int) -> int:
    """Return the number of rounds: ``usual``, or ``full`` with ``FORKWISE_FULL=1``."""
    return full if IS_FULL else usual


def examples(usual: int, times: int = 20) -> int:
    """Return the number of examples of a property test: ``usual``, or ``times`` as many with ``FORKWISE_FUZZ=1``."""
    return times * usual if IS_FUZZ else usual
