"""The judge and its signals, under the path that pydantic-deep documents."""

from __future__ import annotations

from forkwise import (
    JUDGE_SYSTEM_PROMPT,
    JudgeAgent,
    compute_confidence,
    count_retry_parts,
    count_stuck_loop_hits,
)

__all__ = [
    "JUDGE_SYSTEM_PROMPT",
    "JudgeAgent",
    "compute_confidence",
    "count_retry_parts",
    "count_stuck_loop_hits",
]
