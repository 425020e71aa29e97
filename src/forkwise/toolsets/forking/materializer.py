"""The mirror of a fork, under the path that pydantic-deep documents."""

from __future__ import annotations

from forkwise import (
    ForkMaterializer,
)

__all__ = [
    "ForkMaterializer",
]
