"""``forkwise log``, ``undo`` and ``gc``: what became of a workspace, and how to take it back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise.app.cli.forks import fork_record, remedy
from forkwise.app.cli.output import Output, collected_record, commit_record, size_text, totals
from forkwise.app.cli.verb import Verb, json_option, workspace_option

if TYPE_CHECKING:
    from forkwise.files.commit import Commit

__all__ = ["gc", "log", "undo"]


@click.command("log", cls=Verb, example=("forkwise log", "forkwise log -n 5 --json"))
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Only the newest N.")
@workspace_option
@json_option
def log(limit: int | None, directory: Path, output: Output) -> None:
    """List the commits of a workspace, newest first, and which fork each came from."""
    from forkwise.files.workspace import Workspace
    from forkwise.fork.history import forks_of
    from forkwise.ledger.opening import open_ledger

    workspace = Workspace(directory)
    commits = workspace.history()[:limit]
    with open_ledger(workspace) as ledger:
        forks = {number: fork.id for number, fork in forks_of(ledger, commits).items()}
    if output.as_json:
        told = [{**commit_record(commit), "fork": forks.get(commit.id)} for commit in commits]
        output.document({"workspace": str(workspace.path), "commits": told})
    elif not commits:
        output.line("Nothing was committed here yet.")
    else:
        columns = ["id", "kind", "branch", "when", "paths", "", *(["fork"] if forks else [])]
        output.table(columns, [[*_row(commit), forks.get(commit.id, "")][: len(columns)] for commit in commits])


def _row(commit: Commit) -> tuple[str, ...]:
    note = ""
    if commit.undone_by is not None:
        note = f"undone by {commit.undone_by}"
    elif commit.undoes is not None:
        note = f"undoes {commit.undoes}"
    when = commit.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return str(commit.id), commit.kind, commit.branch, when, totals(commit), note


@click.command("undo", cls=Verb, example=("forkwise undo", "forkwise undo 3"))
@click.argument("number", metavar="[ID]", required=False, type=click.IntRange(min=1))
@workspace_option
@json_option
def undo(number: int | None, directory: Path, output: Output) -> None:
    """Take a commit back: the last one, or the one with this ID.

    Content, modes, times and links are restored as they were. It is refused where somebody changed those paths since.
    An undo is a commit like any other, so it can be undone as well.
    """
    from forkwise.files.workspace import Workspace
    from forkwise.fork.history import undo as take_back

    commit = take_back(Workspace(directory), number)
    if output.as_json:
        output.document({"commit": commit_record(commit)})
        return
    output.line(f"Undid {commit.undoes} as {commit.id}: {totals(commit)}.", "bold")
    output.changes({"added": commit.added, "changed": commit.changed, "deleted": commit.deleted})
    output.line(f"To have it again: forkwise undo {commit.undo_id}")


@click.command("gc", cls=Verb, example=("forkwise gc --dry-run", "forkwise gc --keep 10 --keep-forks 100"))
@click.option(
    "--force",
    is_flag=True,
    help="Also branches of dead processes that hold uncommitted changes, and interrupted forks.",
)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    metavar="N",
    help="How many commits stay undoable.",
)
@click.option(
    "--keep-forks",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    metavar="N",
    help="How many forks the ledger remembers, with what their attempts printed.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@workspace_option
@json_option
def gc(force: bool, keep: int, keep_forks: int, dry_run: bool, directory: Path, output: Output) -> None:
    """Remove what dead processes left behind, and what is old.

    A branch with uncommitted changes is listed and left alone unless --force is given, and so is a fork that was
    interrupted: forkwise resume goes on with it, forkwise abort gives it up.
    """
    from forkwise.fork.clearing import clear

    cleared = clear(directory, force=force, keep=keep, keep_forks=keep_forks, dry_run=dry_run)
    if output.as_json:
        unfinished = [fork_record(fork) for fork in cleared.unfinished]
        told = {"aborted": list(cleared.aborted), "forgotten": list(cleared.forgotten), "unfinished": unfinished}
        output.document({**collected_record(cleared.collected), **told, "dry_run": dry_run})
        return
    for name in cleared.aborted:
        output.line(f"{'would abort' if dry_run else 'aborted'} {name}, which was interrupted")
    for name in cleared.collected.removed:
        output.line(f"{'would remove' if dry_run else 'removed'} {name}")
    for name in cleared.collected.listed:
        output.line(f"left alone {name}: it holds uncommitted changes (--force removes it)", "yellow")
    for fork in cleared.unfinished:
        output.line(f"left alone {fork.id}: it {remedy(fork, directory)}", "yellow")
    if cleared.forgotten:
        output.line(f"{'would forget' if dry_run else 'forgot'} {len(cleared.forgotten)} old forks")
    output.line(f"{'Would free' if dry_run else 'Freed'} {size_text(cleared.collected.freed)}.")
