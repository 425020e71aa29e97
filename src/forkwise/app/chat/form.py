"""ForkForm: what a fork is asked for, row by row, as a picker shows it and as one line says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase

from forkwise.app.chat.settings import Settings

__all__ = ["BranchRow", "ForkForm", "blank_form", "form_of"]


@dataclass(frozen=True, slots=True)
class BranchRow:
    """One branch: what it is called, what it is told, which model runs it (None: the chat's), what it may cost."""

    label: str
    steer: str
    model: str | None = None
    budget_usd: float | None = None
    instructions: str | None = None


@dataclass(frozen=True, slots=True)
class ForkForm:
    """All branches of a fork, and what they may cost together."""

    rows: tuple[BranchRow, ...]
    budget_usd: float | None = None


def blank_form(settings: Settings, task: str = "", branches: int | None = None) -> ForkForm:
    """As many rows as the settings say, with their models and budgets; all are told the task."""
    count = settings.branches if branches is None else branches
    rows = [
        BranchRow(_letter(number), task, settings.models.get(number + 1), settings.branch_budget)
        for number in range(count)
    ]
    return ForkForm(tuple(rows), settings.fork_budget)


def form_of(settings: Settings, text: str) -> ForkForm:
    """What a line asks for: one task for all branches, or ``label: task | label: task``.

    >>> [row.label for row in form_of(Settings(branches=3), "make it fast").rows]
    ['a', 'b', 'c']
    >>> [(row.label, row.steer) for row in form_of(Settings(), "fast: use C | b: use a cache").rows]
    [('fast', 'use C'), ('b', 'use a cache')]
    """
    pieces = [piece.strip() for piece in text.split("|")]
    if len(pieces) == 1:
        return blank_form(settings, text.strip())
    form = blank_form(settings, branches=len(pieces))
    return replace(form, rows=tuple(_filled(row, piece) for row, piece in zip(form.rows, pieces, strict=True)))


def _filled(row: BranchRow, piece: str) -> BranchRow:
    label, colon, steer = piece.partition(":")
    if colon and label.strip() and " " not in label.strip():
        return replace(row, label=label.strip(), steer=steer.strip())
    return replace(row, steer=piece)


def _letter(number: int, letters: Sequence[str] = ascii_lowercase) -> str:
    return letters[number] if number < len(letters) else f"branch-{number + 1}"
