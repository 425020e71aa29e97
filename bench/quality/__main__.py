"""``python -m bench.quality``: measure how well forkwise chooses between attempts, and print the tables."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table as RichTable

from bench.quality import local
from bench.quality.measure import Case, check_with_files, find_all_verdicts, load_cases, simulate
from bench.quality.plot import draw
from bench.quality.report import as_json, build_cost_table, build_verdict_table, build_win_table, find_goals
from bench.quality.verdict import Verdict
from bench.scratch import open_scratch
from bench.table import replace_table

_SEEDS, _SAMPLE, _LOCAL_BUGS = 200, 26, 10


@click.command()
@click.option("--seeds", default=_SEEDS, show_default=True, help="Number of seeds of the simulated agent.")
@click.option("--sample", default=_SAMPLE, show_default=True, help="Number of forks to run with files as well.")
@click.option("--json", "json_file", metavar="FILE", help="Write the figures as JSON too; - is standard output.")
@click.option("--page", metavar="FILE", help="Write the tables into the first text block of this page too.")
@click.option("--plot", metavar="FILE", help="Draw the plot as SVG into this file.")
@click.option(
    "--verdicts", metavar="FILE", help="Read the tests' verdicts from this file, or write them if it is missing."
)
@click.option("--local/--no-local", "uses_local", default=True, help="Let the local model try, if it is installed.")
@click.option("--local-bugs", default=_LOCAL_BUGS, show_default=True, help="Number of bugs that the local model tries.")
@click.option("--workers", default=os.cpu_count() or 1, help="Number of processes of the simulation.")
@click.option("--at", "directory", metavar="DIR", help="Directory to work in.")
def main(
    seeds: int,
    sample: int,
    json_file: str | None,
    page: str | None,
    plot: str | None,
    verdicts: str | None,
    uses_local: bool,
    local_bugs: int,
    workers: int,
    directory: str | None,
) -> None:
    """Measure how often each way to choose between attempts ends with a fix, and what it costs."""
    progress = Console(stderr=True)
    started = time.monotonic()
    cases = load_cases()
    with (
        progress.status("creating directories") as status,
        open_scratch(directory, quick=False, report=status.update) as scratch,
    ):
        _find_verdicts(cases, verdicts, scratch.path, status.update)
        table = simulate(cases, seeds, workers, status.update)
        same = 0
        for number, (text, is_same) in enumerate(check_with_files(cases, sample, scratch.path), 1):
            status.update(f"running with files: {number} of {sample} forks")
            same += is_same
            if not is_same:
                progress.print(f"[red]differs[/red]: {text}", highlight=False)
        tables = [build_win_table(table), build_cost_table(table), build_verdict_table(cases)]
        if uses_local:
            reason = local.find_obstacle()
            if reason is None:
                tables.append(local.measure(cases[:local_bugs], scratch.path, status.update))
            else:
                progress.print(f"the local model is not measured: {reason}", highlight=False, markup=False)
    seconds = time.monotonic() - started
    goals = find_goals(table)
    notes = [
        f"{len(cases)} bugs × {seeds} seeds; {os.cpu_count()} processors, {seconds:.0f} s",
        f"{same} of {sample} forks that were also run with files chose the same attempt",
        *(f"{'✓' if goal.is_met else '✗'} {goal.text}: {goal.value:.1f} %" for goal in goals),
    ]
    if json_file:
        with click.open_file(json_file, "w") as file:
            json.dump(as_json(cases, table, seeds=seeds, seconds=seconds), file, indent=1)
            file.write("\n")
    _print(Console(stderr=json_file == "-"), tables, notes)
    if page:
        written = io.StringIO()
        _print(Console(file=written), tables, notes)
        replace_table(page, written.getvalue())
    if plot:
        Path(plot).write_text(draw(table))
    if same < sample:
        raise click.ClickException(f"{sample - same} forks chose another attempt when they were run with files")


def _find_verdicts(cases: Sequence[Case], path: str | None, directory: str, report: Any) -> None:
    if path is not None and os.path.exists(path):
        for case, data in zip(cases, json.loads(Path(path).read_text()), strict=True):
            case.verdicts = {name: [Verdict.load(one) for one in found] for name, found in data.items()}
        return
    for number, case in enumerate(cases, 1):
        report(f"testing the patches: {number} of {len(cases)} bugs")
        find_all_verdicts(case, directory)
    if path is not None:
        dumped = [{name: [one.dump() for one in found] for name, found in case.verdicts.items()} for case in cases]
        Path(path).write_text(json.dumps(dumped))


def _print(output: Console, tables: Sequence[RichTable], notes: Sequence[str]) -> None:
    if not output.is_terminal:
        output.width = 150
    for table in tables:
        output.print(table)
    for note in notes:
        output.print(note, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
