"""``forkwise judges``: what became of what judges picked in a workspace, judge by judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise.cli.app import Verb, json_option, workspace_option
from forkwise.cli.commands.forks import fork_record, remedy
from forkwise.display.output import Output, collected_record, commit_record, size_text, totals

if TYPE_CHECKING:
    from forkwise.files.store.changes import Commit
    from forkwise.live.judging.confidence import Calibration

__all__ = [
    "gc",
    "judges",
    "log",
    "undo",
]


@click.command("log", cls=Verb, example=("forkwise log", "forkwise log -n 5 --json"))
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Only the newest N.")
@workspace_option
@json_option
def log(limit: int | None, directory: Path, output: Output) -> None:
    """List the commits of a workspace, newest first, and which fork each came from."""
    from forkwise.files.workspace import Workspace
    from forkwise.fork.stored_fork import forks_of
    from forkwise.ledger.sqlite import open_ledger

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
    from forkwise.fork.stored_fork import undo as take_back

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
    from forkwise.fork.control import clean_up

    cleared = clean_up(directory, force=force, keep=keep, keep_forks=keep_forks, dry_run=dry_run)
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


@click.command("judges", cls=Verb, example=("forkwise judges", "forkwise judges --json"))
@workspace_option
@json_option
def judges(directory: Path, output: Output) -> None:
    """Tell how often the picks of each judge were undone or overridden later.

    A pick counts once its fork was decided: it was overridden where somebody took another branch, undone where what it
    put into the workspace was taken back. The rate is the share that held. Off is how far a judge's confidence lies
    from that: 0 is a judge that knows how sure it can be, 0.25 one that might as well toss a coin.
    """
    from forkwise.files.workspace import Workspace
    from forkwise.fork.stored_fork import reconcile
    from forkwise.ledger.sqlite import open_ledger
    from forkwise.live.judging.confidence import Calibration

    workspace = Workspace(directory)
    with open_ledger(workspace) as ledger:
        reconcile(ledger, workspace)  # what was undone without this command is known to the workspace alone
        found = sorted(Calibration.from_ledger(ledger).values(), key=lambda one: (-one.picks, one.judge))
    if output.as_json:
        output.document({"workspace": str(workspace.path), "judges": [_record(one) for one in found]})
    elif not found:
        output.line("No judge has decided anything here yet.")
    else:
        output.table(("judge", "picks", "undone", "overridden", "rate", "off"), map(_judge_row, found))


def _record(judge: Calibration) -> dict[str, object]:
    return {
        "judge": judge.judge,
        "picks": judge.picks,
        "undone": judge.undone,
        "overridden": judge.overridden,
        "rate": judge.hold_rate,
        "brier": judge.brier,
    }


def _judge_row(judge: Calibration) -> tuple[str, ...]:
    counts = (judge.picks, judge.undone, judge.overridden)
    return judge.judge, *map(str, counts), f"{judge.hold_rate:.0%}", f"{judge.brier:.2f}"
