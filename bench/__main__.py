"""``python -m bench``: measure everything in one run, and print the table."""

from __future__ import annotations

import io
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from bench.line import Line
from bench.peers import pydantic_deep
from bench.rows import ROWS
from bench.scratch import Scratch, open_scratch
from bench.table import as_json, as_table, replace_table

_PEERS = Path(__file__).parents[1] / ".venv-peers"


@click.command()
@click.option("--json", "json_file", metavar="FILE", help="Write the figures as JSON too; - is standard output.")
@click.option("--quick", is_flag=True, help="Use smaller trees and fewer rounds.")
@click.option("--rows", metavar="NAME,...", help=f"Measure only these rows: {', '.join(ROWS)}.")
@click.option("--page", metavar="FILE", help="Write the table into the first text block of this page too.")
@click.option("--at", "directory", metavar="DIR", help="Directory to work in; its filesystem is measured.")
@click.option("--peer", type=click.Choice([pydantic_deep.NAME]), help="Install this peer in an environment of its own.")
def main(
    json_file: str | None, quick: bool, rows: str | None, page: str | None, directory: str | None, peer: str | None
) -> None:
    """Measure forkwise against the raw system calls and every installed peer, in one run."""
    if os.geteuid() != 0:
        raise click.ClickException("the raw system calls mount overlayfs: run this as root, or in unshare -rm")
    chosen = rows.split(",") if rows else list(ROWS)
    if unknown := [name for name in chosen if name not in ROWS]:
        raise click.UsageError(f"unknown row: {', '.join(unknown)}; the rows are {', '.join(ROWS)}")
    signal.signal(signal.SIGTERM, _interrupt)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or commands would compile forkwise at every start
    progress = Console(stderr=True)
    if peer:
        with progress.status(f"installing {peer}"):
            pydantic_deep.install(_PEERS / peer)
    with (
        progress.status("creating directories") as status,
        open_scratch(directory, quick=quick, report=status.update) as scratch,
    ):
        started = time.monotonic()
        lines = _measure(chosen, scratch, progress)
        status.stop()
        _report(lines, json_file, page, quick=quick, seconds=time.monotonic() - started)
        status.start()


def _measure(chosen: list[str], scratch: Scratch, progress: Console) -> list[Line]:
    lines: list[Line] = []
    for name in chosen:
        started = time.monotonic()
        measured = ROWS[name](scratch)
        took = f"{time.monotonic() - started:.0f} s" if measured else "not measured: what it needs is not installed"
        progress.print(f"[dim]{name}: {took}[/dim]", highlight=False)
        lines += measured
    return lines


def _report(lines: list[Line], json_file: str | None, page: str | None, *, quick: bool, seconds: float) -> None:
    if json_file:
        with click.open_file(json_file, "w") as file:
            json.dump(as_json(lines, quick=quick, seconds=seconds), file, indent=1)
            file.write("\n")
    caption = (
        f"median ± half the interquartile range · Linux {platform.release()}, {os.cpu_count()} processors, "
        f"Python {platform.python_version()} · {seconds:.0f} s"
    )
    output = Console(stderr=json_file == "-")
    if not output.is_terminal:
        output.width = 150
    output.print(as_table(lines, caption=caption))
    if page:
        written = io.StringIO()
        Console(file=written, width=150).print(as_table(lines, caption=caption))
        replace_table(page, written.getvalue())


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
