"""The recorded outputs of test runners."""

from __future__ import annotations

from pathlib import Path

__all__ = ["sample"]


def sample(name: str) -> bytes:
    """Read a file of ``samples``, whose README says where each comes from."""
    return (Path(__file__).parent / "samples" / name).read_bytes()
