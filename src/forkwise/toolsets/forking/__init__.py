"""Live forking, under the path that pydantic-deep documents."""

from __future__ import annotations

from forkwise import (
    JUDGE_SYSTEM_PROMPT,
    BranchOverlay,
    EditorDetector,
    ForkBranchLimitError,
    ForkCoordinator,
    ForkDepthLimitError,
    ForkMaterializer,
    ForkStateStore,
    InMemoryForkStateStore,
    JudgeAgent,
    build_diff_report,
    clone_for_branch,
    compute_confidence,
    create_fork_toolset,
)

__all__ = [
    "JUDGE_SYSTEM_PROMPT",
    "BranchOverlay",
    "EditorDetector",
    "ForkBranchLimitError",
    "ForkCoordinator",
    "ForkDepthLimitError",
    "ForkMaterializer",
    "ForkStateStore",
    "InMemoryForkStateStore",
    "JudgeAgent",
    "build_diff_report",
    "clone_for_branch",
    "compute_confidence",
    "create_fork_toolset",
]
