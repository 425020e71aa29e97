"""Expansion: what a caller's ``expand`` gives to build on an attempt. One that fails has nothing to give."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forkwise.errors import ForkwiseWarning
from forkwise.fork.attempt import Attempt
from forkwise.fork.candidate import Candidate
from forkwise.fork.telling import said
from forkwise.runners.asking import ask
from forkwise.sandbox.threads import in_thread

__all__ = ["expanded"]


async def expanded(expand: Callable[[Path, int], Any], attempt: Attempt, depth: int) -> list[Candidate]:
    """The candidates of the next level. What raises, or gives something else, is warned of and ends the line there."""
    try:
        path = await in_thread(lambda: attempt.place.path)
        return [Candidate.of(one) for one in (await ask(expand, path, depth)).get() or ()]
    except Exception as error:  # noqa: BLE001 - what was found before stands
        warnings.warn(f"{attempt.id} could not be expanded: {said(error)}", ForkwiseWarning, stacklevel=2)
        return []
