"""Configuration files of a workspace that the user has accepted."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from forkwise.config.trust import Acceptances

__all__ = ["write_accepted"]


def write_accepted(path: Path, text: str) -> None:
    """Write a file in the directory ``.forkwise`` of a workspace, and accept it as ``forkwise trust`` does."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    Acceptances(path.parent.parent).accept(path, sha256(text.encode()).hexdigest())
