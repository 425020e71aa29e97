"""``forkwise report``: write the report of a fork to a directory."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import click

import forkwise
from forkwise.cli.app import Verb, json_option, workspace_option
from forkwise.display.output import Output
from forkwise.errors import ForkwiseWarning

if TYPE_CHECKING:
    from forkwise.display.report_documents import ReportDirectory
    from forkwise.ledger.ledger import Ledger

__all__ = ["open_report", "report", "write_report"]

_SUMMARY = "GITHUB_STEP_SUMMARY"


def open_report(path: Path) -> ReportDirectory:
    """Create and open the directory of a report; raises UsageError if that is impossible."""
    from forkwise.display.report_documents import ReportDirectory

    try:
        return ReportDirectory(path)
    except OSError as error:
        raise click.UsageError(f"no report can be written to {path}: {error.strerror}") from error


def write_report(target: ReportDirectory, ledger: Ledger, fork: str) -> None:
    """Write the report of a fork; in a job of GitHub, also append the summary to the job's own."""
    from forkwise.display.report_documents import append_summary

    summary = target.write(ledger, fork, version=forkwise.__version__)
    path = os.environ.get(_SUMMARY)
    if not path:
        return
    try:
        is_written = append_summary(summary, path)
    except OSError as error:
        warnings.warn(f"the job's summary {path} was not written: {error.strerror}", ForkwiseWarning, stacklevel=2)
        return
    if not is_written:
        warnings.warn(
            f"the job's summary {path} is full: GitHub shows 1 MiB at most; read {target.path / 'summary.md'} instead",
            ForkwiseWarning,
            stacklevel=2,
        )


@click.command("report", cls=Verb, example=("forkwise report k3f9ab out/", "xdg-open out/index.html"))
@click.argument("name", metavar="FORK")
@click.argument("target", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@workspace_option
@json_option
def report(name: str, target: Path, directory: Path, output: Output) -> None:
    """Write a fork's HTML page, summary and JUnit XML to DIR.

    DIR/index.html shows the attempts, their tests and diffs, and the decision; it is self-contained and needs no
    scripts. DIR/junit.xml holds the winner's test results, and DIR/report.json holds everything for programs.
    DIR/summary.md is a short version; it is also appended to $GITHUB_STEP_SUMMARY if that is set. Explore commands
    write the same report with --report.
    """
    from forkwise.cli.commands.forks import open_workspace

    _, ledger = open_workspace(directory)
    with ledger:
        fork = ledger.fork(name.partition(".")[0])
        with open_report(target) as opened:
            write_report(opened, ledger, fork.id)
    if output.as_json:
        names = ("index.html", "summary.md", "junit.xml", "report.json")
        output.document({"fork": fork.id, "report": str(target), "files": [str(target / name) for name in names]})
    else:
        output.line(f"Report of {fork.id} written to {target / 'index.html'}.")
