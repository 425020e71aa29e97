"""Seals: signatures by which a provider recognises its own thinking, so that it cannot be edited.

The real ones are secret; here a seal is a digest, which is enough to tell an original from an edited copy.
"""

from __future__ import annotations

import hashlib

__all__ = ["is_redacted_original", "redacted", "seal"]


def seal(thinking: str) -> str:
    """The signature of a thinking block."""
    return "seal_" + hashlib.sha256(thinking.encode()).hexdigest()[:32]


def redacted(name: str) -> str:
    """The data of a redacted thinking block, which differs for each ``name``."""
    return f"{name}.{seal(name)}"


def is_redacted_original(data: str) -> bool:
    """Whether ``data`` came from :func:`redacted` unchanged."""
    name, _, signature = data.rpartition(".")
    return signature == seal(name)
