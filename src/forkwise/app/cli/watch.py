"""``forkwise watch``: a fork while somebody else runs it, in panels or line by line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise.app.cli.forks import fork_record, opened, show_fork
from forkwise.app.cli.output import Output, command_line
from forkwise.app.cli.verb import Verb, stream_option, workspace_option

if TYPE_CHECKING:
    from forkwise.ledger.record import ForkRecord

__all__ = ["has_panels", "watch"]


@click.command("watch", cls=Verb, streams=True, example=("forkwise watch", "forkwise watch k3f9ab --plain"))
@click.argument("name", metavar="[FORK]", required=False)
@click.option(
    "--plain", is_flag=True, help="Lines instead of panels, also in a terminal: for a screen reader, or a log."
)
@workspace_option
@stream_option
def watch(name: str | None, plain: bool, directory: Path, output: Output) -> None:
    """Watch a fork that another process runs, by default the newest that runs.

    In a terminal its attempts are shown in panels, from which it can be decided too: picked, combined, aborted, undone.
    Elsewhere what happens is printed line by line until the fork is over; with --plain what the attempts print is too,
    each line with the attempt's name before it, and forkwise pick, combine and abort decide it from another terminal.
    To end this changes nothing about the fork.
    """
    if not plain and output.is_live and sys.stdin.isatty() and has_panels():
        _watch_in_panels(name, directory, output)
        return
    from forkwise.app.cli.board import Board

    _, ledger = opened(directory)
    with ledger:
        if name is None:
            name = next((fork.id for fork in ledger.forks(state="running") if fork.parent is None), None)
        if name is None:
            raise click.ClickException("no fork is running here; forkwise ls lists those there were")
        if plain and not output.as_json and not (fork := ledger.fork(name)).is_over:
            _tell_verbs(fork, directory, output)
        with Board(ledger, name, output, spoken=ledger.directory if plain else None) as board:
            fork = board.follow()
        if output.as_json:
            output.stream({"fork": fork_record(fork)})
        else:
            show_fork(ledger, fork, directory, output, table=not plain)


def _tell_verbs(fork: ForkRecord, directory: Path, output: Output) -> None:
    """Say by what a fork is decided from another terminal."""
    verbs = {("pick", ".N"): "commits attempt N", ("abort", ".N"): "ends it", ("abort", ""): "gives the fork up"}
    told = ", ".join(f"{command_line(directory, verb, fork.id + at)} {does}" for (verb, at), does in verbs.items())
    output.line(f"From another terminal, {told}.")


def has_panels() -> bool:
    """Whether there is what draws them; says what to do where not."""
    from importlib.util import find_spec

    if find_spec("textual") is not None:
        return True
    click.echo("forkwise: hint: pip install 'forkwise[tui]' has panels for this", err=True)
    return False


def _watch_in_panels(name: str | None, directory: Path, output: Output) -> None:
    from forkwise.app.cli.private import enter_to_create
    from forkwise.app.tui.watch import WatchApp
    from forkwise.app.tui.watched import Watched

    enter_to_create(directory, None)  # while there is one thread only: what is picked may have to be mounted
    watched = Watched(directory, name)
    WatchApp(watched).run()
    watched.close()
    if watched.fork is not None:
        _, ledger = opened(directory)
        with ledger:
            show_fork(ledger, ledger.fork(watched.fork), directory, output)
