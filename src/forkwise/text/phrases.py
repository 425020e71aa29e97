"""Phrases of messages: lists of which only the first names are shown, counts of something, amounts of money."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["format_number", "format_usd", "join_first"]


def join_first(names: Sequence[object], most: int, between: str = ", ") -> str:
    """Join the first ``most`` names, and say how many more there are.

    >>> join_first(["a.py", "b.py", "c.py", "d.py"], 2), join_first(["a.py"], 2)
    ('a.py, b.py and 2 more', 'a.py')
    """
    shown = between.join(map(str, names[:most]))
    return shown if len(names) <= most else f"{shown}{between.strip(', ')} and {len(names) - most} more"


def format_number(count: int, noun: str) -> str:
    """Format a number of things; ``noun`` is the word for one of them, with a regular plural.

    >>> format_number(1, "file"), format_number(0, "file"), format_number(2, "branch")
    ('1 file', '0 files', '2 branches')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith(('ch', 'sh')) else 's'}"


def format_usd(usd: float) -> str:
    """Format an amount of dollars; one below a cent with more digits, so that it does not look like nothing.

    >>> format_usd(1.5), format_usd(0.0042), format_usd(0)
    ('$1.50', '$0.0042', '$0.00')
    """
    return f"${usd:.2f}" if usd >= 0.01 or usd == 0 else f"${usd:.4f}"
