"""Diff tools, under the path that pydantic-deep documents."""

from __future__ import annotations

from forkwise import (
    EditorDetector,
    EditorKind,
)

__all__ = [
    "EditorDetector",
    "EditorKind",
]
