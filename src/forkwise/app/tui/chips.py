"""Chips: the state of an attempt or a fork as a sign and a word, which says the same without colours."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

__all__ = ["SIGNS", "chip", "tally"]

#: The sign and the style of each state.
SIGNS: dict[str, tuple[str, str]] = {
    "won": ("★", "bold green"),
    "running": ("●", "cyan"),
    "succeeded": ("✓", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("⊘", "dim"),
    "pending": ("○", "dim"),
    "open": ("?", "yellow"),
    "interrupted": ("!", "yellow"),
    "resolved": ("✓", "green"),
    "aborted": ("⊘", "dim"),
}


def chip(state: str) -> Text:
    """A state with its sign.

    >>> chip("failed").plain
    '✗ failed'
    """
    sign, style = SIGNS.get(state, ("·", ""))
    return Text(f"{sign} {state}", style=style, no_wrap=True)


def tally(states: Sequence[str]) -> Text:
    """How many are in which state, in the order of the signs.

    >>> tally(["failed", "running", "running"]).plain
    '2● 1✗'
    """
    counts = [(states.count(state), sign, style) for state, (sign, style) in SIGNS.items()]
    return Text(" ").join(Text(f"{count}{sign}", style=style) for count, sign, style in counts if count)
