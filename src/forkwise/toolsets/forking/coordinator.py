"""The coordinator and its errors, under the path that pydantic-deep documents."""

from __future__ import annotations

from forkwise import (
    BranchRuntime,
    ForkBranchLimitError,
    ForkCoordinator,
    ForkDepthLimitError,
)

__all__ = [
    "BranchRuntime",
    "ForkBranchLimitError",
    "ForkCoordinator",
    "ForkDepthLimitError",
]
