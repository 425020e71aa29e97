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

from bench.ground import Ground, laid_out
from bench.line import Line
from bench.peers import pydantic_deep
from bench.rows import ROWS
from bench.table import as_json, as_table

_PEERS = Path(__file__).parents[1] / ".venv-peers"


@click.command()
@click.option("--json", "json_file", metavar="FILE", help="Write the figures as JSON too; - is standard output.")
@click.option("--quick", is_flag=True, help="Smaller trees and fewer rounds.")
@click.option("--rows", metavar="NAME,...", help=f"Only these: {', '.join(ROWS)}.")
@click.option("--page", metavar="FILE", help="Put the table into the first text block of this page too.")
@click.option("--at", metavar="DIR", help="Where to work: the filesystem that is measured.")
@click.option("--peer", type=click.Choice([pydantic_deep.NAME]), help="Install this peer in an environment of its own.")
def main(
    json_file: str | None, quick: bool, rows: str | None, page: str | None, at: str | None, peer: str | None
) -> None:
    """Figures against the raw floor and every peer that is installed, all in one run."""
    if os.geteuid() != 0:
        raise click.ClickException("the raw floor mounts overlayfs itself: run this as root, or in unshare -rm")
    chosen = rows.split(",") if rows else list(ROWS)
    if unknown := [name for name in chosen if name not in ROWS]:
        raise click.UsageError(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    signal.signal(signal.SIGTERM, _interrupt)
    progress = Console(stderr=True)
    if peer:
        with progress.status(f"installing {peer}"):
            pydantic_deep.install(_PEERS / peer)
    with progress.status("laying the ground") as status, laid_out(at, quick=quick, say=status.update) as ground:
        begun = time.monotonic()
        lines = _measure(chosen, ground, progress)
        status.stop()
        _report(lines, json_file, page, quick=quick, seconds=time.monotonic() - begun)
        status.start()


def _measure(chosen: list[str], ground: Ground, progress: Console) -> list[Line]:
    lines: list[Line] = []
    for name in chosen:
        begun = time.monotonic()
        lines += ROWS[name](ground)
        progress.print(f"[dim]{name}: {time.monotonic() - begun:.0f} s[/dim]", highlight=False)
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
        _put_into(page, written.getvalue())


def _put_into(page: str, table: str) -> None:
    """Replace what stands in a page's first text block."""
    text = Path(page).read_text()
    before, fence, rest = text.partition("```text\n")
    if not fence:
        raise click.ClickException(f"{page} has no text block for the table")
    Path(page).write_text(f"{before}{fence}{table}```{rest.partition('```')[2]}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
