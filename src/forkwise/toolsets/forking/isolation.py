"""The files of branches, under the path that pydantic-deep documents."""

from __future__ import annotations

from forkwise import (
    BranchOverlay,
    clone_for_branch,
)

__all__ = [
    "BranchOverlay",
    "clone_for_branch",
]
