"""The table of all lines, for people and as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from bench.figure import Figure
from bench.line import Goal, Line, times

__all__ = ["as_json", "as_table", "replace_table"]


def as_table(lines: Sequence[Line], *, caption: str) -> Table:
    """Build the table of a run."""
    table = Table(title="forkwise, the raw floor and peers", caption=caption, show_lines=True)
    table.add_column("row", max_width=34)
    table.add_column("ours", no_wrap=True)
    table.add_column("raw floor", no_wrap=True)
    table.add_column("peers (relative to ours)", no_wrap=True)
    table.add_column("must be", no_wrap=True)
    table.add_column("is", no_wrap=True)
    for line in lines:
        table.add_row(
            line.name,
            str(line.ours),
            "—" if line.floor is None else str(line.floor),
            "\n".join(_peer(line, name) for name in line.peers) or "—",
            "\n".join(goal.text for goal in line.goals) or "—",
            Text("\n").join(_reached(goal) for goal in line.goals),
        )
    return table


def as_json(lines: Sequence[Line], *, quick: bool, seconds: float) -> dict[str, object]:
    """Return the lines as JSON data, with every sample."""
    machine = {"kernel": platform.release(), "processors": os.cpu_count(), "python": platform.python_version()}
    return {"machine": machine, "quick": quick, "seconds": seconds, "rows": [line.dump() for line in lines]}


def replace_table(page: str, table: str) -> None:
    """Replace the content of a page's first text block."""
    text = Path(page).read_text()
    before, fence, rest = text.partition("```text\n")
    if not fence:
        raise click.ClickException(f"{page} has no text block for the table")
    Path(page).write_text(f"{before}{fence}{table}```{rest.partition('```')[2]}")


def _peer(line: Line, name: str) -> str:
    figure = line.peers[name]
    if not isinstance(figure, Figure):
        return f"{name}: {figure or 'not installed'}"
    return f"{name}: {figure}  ({times(figure.median / line.ours.median)})"


def _reached(goal: Goal) -> Text:
    shown = times(goal.value) if "×" in goal.text else f"{goal.value:.3g}"
    return Text(f"{shown} {'✓' if goal.is_met else '✗'}", style="green" if goal.is_met else "bold red")
