"""Naming: how a fork is called, so that people can say it, type it, and take it for nothing else."""

from __future__ import annotations

import os

__all__ = ["new_id"]

_LETTERS = "abcdefghjkmnopqrstuvwxyz"  # none that is taken for a digit or for another
_CHARACTERS = _LETTERS + "23456789"


def new_id() -> str:
    """Six characters. The first is a letter, so that an id is never taken for the number of a commit.

    >>> len(new_id()), new_id()[0].isalpha()
    (6, True)
    """
    first, *others = os.urandom(6)
    return _LETTERS[first % len(_LETTERS)] + "".join(_CHARACTERS[byte % len(_CHARACTERS)] for byte in others)
