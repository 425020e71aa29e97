"""Count executed lines: how a cost grows, without a clock."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["executed_lines"]


def executed_lines(work: Callable[[], object]) -> int:
    """Count the lines of forkwise that the work executes.

    The garbage collector waits meanwhile: it would finalise what earlier tests left, in lines that are not the work's.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if "/forkwise/" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count
