"""`LiveForkCapability`, under the path that pydantic-deep documents."""

from __future__ import annotations

from forkwise import (
    LiveForkCapability,
)

__all__ = [
    "LiveForkCapability",
]
