"""The plot of the results, as SVG."""

from __future__ import annotations

from html import escape

from bench.quality.agent import SHARES
from bench.quality.measure import Table

__all__ = ["draw"]

_WIDTH, _HEIGHT = 900, 470
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 620, 62, 405
_INK, _GREY, _GRID = "#1f2933", "#52606d", "#e4e7eb"

#: Policy, colour, and whether its line is dashed.
_LINES = (
    ("best of 8 by tests and judge, sealed", "#1b7837", False),
    ("recursive tournament, sealed", "#7b3294", False),
    ("best of 8 by tests, sealed", "#2166ac", False),
    ("best of 8 by judge", "#8a6d00", False),
    ("best of 8 by tests and judge, exit code", "#1b7837", True),
    ("best of 8 by tests, unsealed", "#c2570c", True),
    ("best of 8 by tests, exit code", "#2166ac", True),
)
_LABEL_DISTANCE = 19


def draw(table: Table) -> str:
    """Draw the share of the oracle's fixes that each policy finds, over the share of cheats."""
    parts = [*_draw_axes()]
    ends: list[tuple[float, str, str, bool]] = []
    for number, (label, colour, is_dashed) in enumerate(_LINES):
        cells = [(share, table[label, share].relative_to(table["oracle", share])) for share in SHARES]
        shift = 3 * (number - len(_LINES) // 2)  # so that the intervals do not hide each other
        points = [(_x(share) + shift, interval) for share, interval in cells]
        line = " ".join(f"{x:.1f},{_y(interval.value):.1f}" for x, interval in points)
        dash = ' stroke-dasharray="7 5"' if is_dashed else ""
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"{dash}/>')
        for x, interval in points:
            bounds = f'y1="{_y(interval.low):.1f}" y2="{_y(interval.high):.1f}"'
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" {bounds} stroke="{colour}" stroke-width="1.5"/>')
            parts.append(f'<circle cx="{x:.1f}" cy="{_y(interval.value):.1f}" r="3.5" fill="{colour}"/>')
        ends.append((_y(cells[-1][1].value), label, colour, is_dashed))
    parts += _draw_labels(ends)
    body = "\n  ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="t d" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">\n'
        '  <title id="t">Fixes found, relative to the oracle</title>\n'
        '  <desc id="d">Share of the fixes that an oracle would choose, by policy, over the share of attempts that '
        "cheat. The figures are in the table on the same page.</desc>\n"
        f'  <rect width="{_WIDTH}" height="{_HEIGHT}" rx="10" fill="#ffffff"/>\n  {body}\n</svg>\n'
    )


def _x(share: float) -> float:
    return _LEFT + 25 + (_RIGHT - _LEFT - 50) * share / SHARES[-1]


def _y(value: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * value


def _text(x: float, y: float, text: str, *, anchor: str = "middle", colour: str = _GREY) -> str:
    position = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {position} font-size="13" fill="{colour}">{escape(text)}</text>'


def _draw_axes() -> list[str]:
    parts = [
        _text(_LEFT, 30, "Fixes found, in % of those that an oracle finds", anchor="start", colour=_INK).replace(
            'font-size="13"', 'font-size="16" font-weight="600"'
        ),
        _text((_LEFT + _RIGHT) / 2, _BOTTOM + 46, "attempts that cheat"),
    ]
    for percent in range(0, 101, 20):
        y = _y(percent / 100)
        parts.append(f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID}"/>')
        parts.append(_text(_LEFT - 10, y + 4, f"{percent}", anchor="end"))
    goal = _y(0.95)
    parts.append(
        f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{goal:.1f}" y2="{goal:.1f}" stroke="{_GREY}" stroke-dasharray="2 4"/>'
    )
    parts.append(_text(_LEFT - 10, goal + 4, "95", anchor="end"))
    return parts + [_text(_x(share), _BOTTOM + 22, f"{share:.0%}") for share in SHARES]


def _draw_labels(ends: list[tuple[float, str, str, bool]]) -> list[str]:
    """Draw the names of the lines at their right ends, moved apart where they would overlap."""
    parts = []
    free = float("-inf")
    for y, label, colour, _ in sorted(ends):
        free = max(y, free + _LABEL_DISTANCE)
        parts.append(_text(_RIGHT + 8, free + 4, label, anchor="start", colour=colour))
    return parts
