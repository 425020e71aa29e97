"""Columns: which columns of a table fit a terminal, and how wide each of them is.

Columns that matter are never shortened: less important ones are left out first, and long text is wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["GAP", "Fit", "cut_cell", "fit_columns", "measure_cell"]

GAP = 2
"""Spaces between two columns."""

_MIN_SHORTENED = 10
_MIN_WRAPPED = 12
_NARROWEST = 6  # width of a wrapped column when nothing else can be made narrower


@dataclass(frozen=True, slots=True)
class Fit:
    """How the columns of a table may be made to fit. Columns that no field names keep their width.

    ``wrapped`` columns are continued on further lines, ``shortened`` ones end with an ellipsis, and ``optional`` ones
    are left out, the first of them first.
    """

    wrapped: tuple[str, ...] = ()
    shortened: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


def measure_cell(text: str) -> int:
    """Return how many columns of a terminal a text takes.

    >>> measure_cell("abc"), measure_cell("漢字"), measure_cell("e\\u0301")
    (3, 4, 1)
    """
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut_cell(text: str, width: int) -> str:
    """Return a text that takes at most ``width`` columns of a terminal; a longer one ends with an ellipsis.

    >>> cut_cell("漢字漢字", 6), cut_cell("short", 6)
    ('漢字…', 'short')
    """
    if measure_cell(text) <= width:
        return text
    from rich.cells import chop_cells

    return f"{chop_cells(text, width - 1)[0] if width > 1 else ''}…"


def fit_columns(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    fit: Fit,
    measure: Callable[[str], int] = measure_cell,
) -> dict[int, int]:
    """Choose the columns of a table that is at most ``width`` wide, if that is possible.

    Returns the width of each of them by its position.

    >>> rows = [("k3f9ab.1", "a rather long label", "failed", "tests: 1 of 2 failed")]
    >>> fit = Fit(wrapped=("reason",), shortened=("label",), optional=("label",))
    >>> fit_columns(("attempt", "label", "state", "reason"), rows, 50, fit)
    {0: 8, 1: 14, 2: 6, 3: 16}
    >>> fit_columns(("attempt", "label", "state", "reason"), rows, 36, fit)
    {0: 8, 2: 6, 3: 18}
    """
    natural = {i: max(map(measure, column)) for i, column in enumerate(zip(names, *rows, strict=True))}
    least = dict(natural)
    for i, name in enumerate(names):
        if name in fit.wrapped:
            least[i] = min(natural[i], max(_MIN_WRAPPED, measure_cell(name)))
        elif name in fit.shortened:
            least[i] = min(natural[i], max(_MIN_SHORTENED, measure_cell(name)))
    for name in fit.optional:
        if _sum_widths(least) <= width:
            break
        least = {i: size for i, size in least.items() if names[i] != name}
    for i in reversed(least):
        if names[i] in fit.wrapped:
            least[i] -= max(min(_sum_widths(least) - width, least[i] - _NARROWEST), 0)
    return _share(least, natural, width)


def _share(least: dict[int, int], natural: dict[int, int], width: int) -> dict[int, int]:
    """Widen columns evenly towards their natural width, as far as there is room."""
    chosen = dict(least)
    room = width - _sum_widths(chosen)
    while room > 0 and (narrow := [i for i in chosen if chosen[i] < natural[i]]):
        for i in narrow[:room]:
            chosen[i] += 1
        room -= min(room, len(narrow))
    return chosen


def _sum_widths(widths: dict[int, int]) -> int:
    return sum(widths.values()) + GAP * max(len(widths) - 1, 0)
