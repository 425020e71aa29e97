"""``forkwise ledger``: where the record of a workspace's forks is kept, and copying it to another database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise.cli.app import Commands, Verb, json_option, workspace_option

if TYPE_CHECKING:
    from forkwise.display.output import Output

__all__ = ["ledger"]


@click.group("ledger", cls=Commands)
def ledger() -> None:
    """Copy the record of forks and attempts to another database.

    It is a SQLite file in the workspace's state directory. With $FORKWISE_LEDGER, it is in a PostgreSQL database, which
    several machines can share.
    """


@ledger.command(
    "copy",
    cls=Verb,
    example=(
        "forkwise ledger copy --to postgresql://db/forkwise",
        "forkwise ledger copy --from postgresql://db/forkwise",
    ),
)
@click.option("--to", "target", metavar="URL", help="PostgreSQL database to copy to, from the SQLite file.")
@click.option("--from", "source", metavar="URL", help="PostgreSQL database to copy from, to the SQLite file.")
@click.option(
    "--project",
    metavar="NAME",
    envvar="FORKWISE_PROJECT",
    show_envvar=True,
    show_default="the name of the state directory",
    help="Name of this workspace's ledger in the database.",
)
@workspace_option
@json_option
def copy(target: str | None, source: str | None, project: str | None, directory: Path, output: Output) -> None:
    """Copy the ledger of a workspace into an empty one.

    All events and conversations are copied, then compared; if anything differs, nothing is copied. No fork may run
    during the copy. The output of attempts stays in the state directory.
    """
    if (target is None) == (source is None):
        raise click.UsageError("give either --to or --from")
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.sqlite import SqliteLedger, open_postgres

    state = Workspace(directory).state
    url = target or source or ""
    with (
        SqliteLedger(state / "ledger") as local,
        open_postgres(url, str(state), project or "", subject="--to" if target else "--from") as shared,
    ):
        copied = shared.copy_from(local) if target else local.copy_from(shared)
    if output.as_json:
        output.document({"copied": copied})
    else:
        output.line(f"Copied {copied} events and conversations.")
        if target:
            output.line("To use it, set FORKWISE_LEDGER to the same URL.")
