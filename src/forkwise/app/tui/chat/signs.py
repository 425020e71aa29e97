"""Signs: how a branch stands, as the guide's chips say it, and what it is about in one line."""

from __future__ import annotations

from rich.text import Text

__all__ = ["SIGNS", "branch_chip", "short"]

#: The sign, the word and the style of each state of a branch.
SIGNS: dict[str, tuple[str, str, str]] = {
    "running": ("●", "running", "cyan"),
    "waiting": ("!", "asks", "bold yellow"),
    "done": ("✓", "done", "green"),
    "failed": ("✗", "failed", "red"),
    "terminated": ("⊘", "terminated", "dim"),
    "budget_exhausted": ("$", "exhausted", "yellow"),
    "aggregate_budget_exhausted": ("$$", "agg-exhausted", "yellow"),
}


def branch_chip(state: str, *, word: bool = True) -> Text:
    """The state of a branch as a chip.

    >>> branch_chip("aggregate_budget_exhausted").plain, branch_chip("done", word=False).plain
    ('$$ agg-exhausted', '✓')
    """
    sign, name, style = SIGNS.get(state, ("·", state, ""))
    return Text(f"{sign} {name}" if word else sign, style=style, no_wrap=True)


def short(text: str, most: int) -> str:
    """A text on one line, cut where it is too long.

    >>> short("a word  or\\ntwo", 9)
    'a word o…'
    """
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
