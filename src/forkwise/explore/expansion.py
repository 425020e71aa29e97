"""Expansion: what a caller's ``expand`` gives to build on an attempt. One that fails has nothing to give."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forkwise.errors import ForkwiseWarning
from forkwise.fork.attempt import Attempt
from forkwise.fork.candidate import Candidate
from forkwise.sandbox.threads import call, in_thread

__all__ = ["expanded"]


async def expanded(expand: Callable[[Path, int], Any], attempt: Attempt, depth: int) -> list[Candidate]:
    """The candidates of the next level. What raises, or gives something else, is warned of and ends the line there."""
    path = await in_thread(lambda: attempt.place.path)
    try:
        return [Candidate.of(one) for one in await call(expand, path, depth) or ()]
    except Exception as error:  # noqa: BLE001 - what was found before stands
        warnings.warn(
            f"{attempt.id} could not be expanded: {type(error).__name__}: {error}", ForkwiseWarning, stacklevel=2
        )
        return []
