"""Tables fit a terminal: what matters is whole, what does not is left out, and nothing a cell holds can break that."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from forkwise.display.columns import Fit, cut_cell, fit_columns, measure_cell
from forkwise.display.output import grid

REASON = "tests: 3 passed, 12 failed: 1 fixed, 2 broken: test_shop.py::test_discount, test_shop.py::test_sum"
COLUMNS = ("attempt", "label", "state", "time", "files", "tests", "cost", "")
ROWS = [
    ("k3f9ab.1", "claude: fix the failing test, pl…", "succeeded", "12:31", "3", "12/12", "$0.12", "done"),
    ("k3f9ab.10", "漢字" * 20, "failed", "1:02:31", "120", "3/15", "$1.12", REASON),
    ("  zz9zz9.2", "\x1b[2J\x1b]0;evil\x07 \u202e label", "cancelled", "0:00", "", "", "", "a\nb\x1b[31m"),
]
FIT = Fit(wrapped=("",), shortened=("label",), optional=("files", "cost", "time", "label"))


def draw(width: int) -> str:
    """Draw the rows on a terminal of this width."""
    screen = io.StringIO()
    console = Console(file=screen, width=width, force_terminal=True, color_system=None, highlight=False)
    console.print(grid(COLUMNS, ROWS, FIT, width), soft_wrap=False, crop=False)
    return screen.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_what_matters_is_whole(width: int) -> None:
    drawn = draw(width)
    lines = drawn.splitlines()
    assert all(cell_len(line.rstrip()) <= width for line in lines)
    for row in ROWS:
        words = [row[0].strip(), row[2], *([row[5]] if row[5] else [])]
        assert any(all(re.search(rf"(^|\s){re.escape(word)}(\s|$)", line) for word in words) for line in lines), words
    assert "\x1b[2J" not in drawn
    assert "\x1b]0" not in drawn
    reason = "".join(line[30 if width == 40 else 0 :] for line in lines)
    for part in REASON.replace("::", " ").split():
        assert part in drawn or part in reason.replace(" ", ""), part


def test_less_important_columns_go_first() -> None:
    shown = {width: draw(width).splitlines()[0].split() for width in (40, 60, 80, 200)}
    assert shown[200] == ["attempt", "label", "state", "time", "files", "tests", "cost"]
    assert shown[60] == ["attempt", "label", "state", "tests"]
    assert shown[40] == ["attempt", "state", "tests"]


def test_a_table_that_cannot_fit_is_wider_and_not_cut() -> None:
    table = grid(("branch",), [("/main/" + "x" * 60,)], Fit(), 40)
    screen = io.StringIO()
    Console(file=screen, width=40, color_system=None).print(table, soft_wrap=False, crop=False)
    assert "/main/" + "x" * 60 in screen.getvalue()


text = st.text(max_size=40)


@given(st.lists(st.tuples(text, text, text), max_size=4), st.integers(1, 120))
def test_the_widths_never_exceed_the_room_if_anything_can_give_way(rows: list[tuple[str, ...]], width: int) -> None:
    fit = Fit(wrapped=("c",), shortened=("b",), optional=("b",))
    widths = fit_columns(("a", "b", "c"), rows, width, fit)
    natural = [max(measure_cell(cell) for cell in ("a", *(row[0] for row in rows)))]
    assert widths[0] == natural[0]
    if width >= natural[0] + 14:
        assert sum(widths.values()) + 2 * (len(widths) - 1) <= width


@given(st.text(), st.integers(1, 30))
def test_a_cut_text_is_as_wide_as_allowed(value: str, width: int) -> None:
    assert measure_cell(cut_cell(value, width)) <= width
