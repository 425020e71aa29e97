"""``forkwise log``, ``undo`` and ``gc``: what became of a workspace, and how to take it back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

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
    """List the commits of a workspace, newest first."""
    from forkwise.files.workspace import Workspace

    workspace = Workspace(directory)
    commits = workspace.history()[:limit]
    if output.as_json:
        output.document({"workspace": str(workspace.path), "commits": [commit_record(commit) for commit in commits]})
    elif not commits:
        output.line("Nothing was committed here yet.")
    else:
        output.table(("id", "kind", "branch", "when", "paths", ""), [_row(commit) for commit in commits])


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

    commit = Workspace(directory).undo(number)
    if output.as_json:
        output.document({"commit": commit_record(commit)})
        return
    output.line(f"Undid {commit.undoes} as {commit.id}: {totals(commit)}.", "bold")
    output.changes({"added": commit.added, "changed": commit.changed, "deleted": commit.deleted})
    output.line(f"To have it again: forkwise undo {commit.undo_id}")


@click.command("gc", cls=Verb, example=("forkwise gc --dry-run", "forkwise gc --keep 10"))
@click.option("--force", is_flag=True, help="Also branches of dead processes that hold uncommitted changes.")
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    metavar="N",
    help="How many commits stay undoable.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@workspace_option
@json_option
def gc(force: bool, keep: int, dry_run: bool, directory: Path, output: Output) -> None:
    """Remove what dead processes left behind.

    A branch with uncommitted changes is listed and left alone unless --force is given.
    """
    from forkwise.files.workspace import Workspace

    collected = Workspace(directory).gc(force=force, keep=keep, dry_run=dry_run)
    if output.as_json:
        output.document({**collected_record(collected), "dry_run": dry_run})
        return
    for name in collected.removed:
        output.line(f"{'would remove' if dry_run else 'removed'} {name}")
    for name in collected.listed:
        output.line(f"left alone {name}: it holds uncommitted changes (--force removes it)", "yellow")
    output.line(f"{'Would free' if dry_run else 'Freed'} {size_text(collected.freed)}.")
