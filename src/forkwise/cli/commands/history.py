"""``forkwise log``, ``undo``, ``gc``, ``du`` and ``judges``: the commits of a workspace, their undo, its clean-up."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise import progress
from forkwise.cli.app import Verb, json_option, workspace_option
from forkwise.cli.commands.forks import fork_record, remedy
from forkwise.display.columns import Fit
from forkwise.display.output import Output, collected_record, command_line, commit_record, size_text, totals
from forkwise.errors import ForkwiseWarning, LedgerError
from forkwise.text.phrases import format_number

if TYPE_CHECKING:
    from forkwise.files.store.changes import Commit
    from forkwise.live.judging.confidence import Calibration

__all__ = [
    "du",
    "gc",
    "judges",
    "log",
    "undo",
]

_JUDGES_FIT = Fit(wrapped=("judge",), optional=("Brier score",))
_LARGEST = 10  # branches listed by du


@click.command("log", cls=Verb, example=("forkwise log", "forkwise log -n 5 --json"))
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", show_default="all", help="Number of commits to list."
)
@workspace_option
@json_option
def log(limit: int | None, directory: Path, output: Output) -> None:
    """List the commits, newest first, with their forks.

    The id of a commit is what forkwise undo takes. An undo is listed as a commit as well.
    """
    from forkwise.files.workspace import Workspace
    from forkwise.fork.stored_fork import forks_of
    from forkwise.ledger.sqlite import open_ledger

    workspace = Workspace(directory)
    commits = workspace.history()[:limit]
    forks: dict[int, str] = {}
    try:
        with open_ledger(workspace) as ledger:
            forks = {number: fork.id for number, fork in forks_of(ledger, commits).items()}
    except (LedgerError, OSError) as error:  # the commits are in the workspace's history, not in the ledger
        warnings.warn(f"the forks of these commits are not known: {error}", ForkwiseWarning, stacklevel=1)
    if output.as_json:
        records = [{**commit_record(commit), "fork": forks.get(commit.id)} for commit in commits]
        output.document({"workspace": str(workspace.path), "commits": records})
    elif not commits:
        output.line("No commits yet.")
    else:
        columns = ["id", "kind", "branch", "date", "paths", "", *(["fork"] if forks else [])]
        rows = [[*_commit_row(commit), forks.get(commit.id, "")][: len(columns)] for commit in commits]
        output.table(columns, rows, Fit(wrapped=("paths", ""), optional=("kind", "branch", "date")))


def _commit_row(commit: Commit) -> tuple[str, ...]:
    note = ""
    if commit.undone_by is not None:
        note = f"undone by {commit.undone_by}"
    elif commit.undoes is not None:
        note = f"undoes {commit.undoes}"
    date = commit.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return str(commit.id), commit.kind, commit.branch, date, totals(commit), note


@click.command("undo", cls=Verb, example=("forkwise undo", "forkwise undo 3"))
@click.argument("number", metavar="[ID]", required=False, type=click.IntRange(min=1))
@workspace_option
@json_option
def undo(number: int | None, directory: Path, output: Output) -> None:
    """Undo the last commit, or the commit with the given ID.

    Content, modes, times and links of the files are restored. If the same paths were changed since, the undo is refused
    as a conflict. An undo is a commit as well, so it can be undone.
    """
    from forkwise.files.workspace import Workspace
    from forkwise.fork.stored_fork import undo as undo_commit

    commit = undo_commit(Workspace(directory), number)
    if output.as_json:
        output.document({"commit": commit_record(commit)})
        return
    output.line(f"Undid {commit.undoes} as {commit.id}: {totals(commit)}.", "bold")
    output.changes({"added": commit.added, "changed": commit.changed, "deleted": commit.deleted})
    output.repository(commit.repository)
    output.line(f"Redo with: {command_line(directory, 'undo', str(commit.undo_id))}")


@click.command("gc", cls=Verb, example=("forkwise gc --dry-run", "forkwise gc --keep 10 --keep-forks 100"))
@click.option(
    "--force",
    is_flag=True,
    help="Remove branches of dead processes even if they have uncommitted changes, and abort interrupted forks.",
)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    metavar="N",
    help="Number of commits that can still be undone.",
)
@click.option(
    "--keep-forks",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    metavar="N",
    help="Number of forks to keep in the ledger, with the output of their attempts.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@click.option(
    "--all", "orphans", is_flag=True, help="Remove only the state of workspaces that were deleted, moved or renamed."
)
@workspace_option
@json_option
def gc(force: bool, keep: int, keep_forks: int, dry_run: bool, orphans: bool, directory: Path, output: Output) -> None:
    """Remove leftovers of dead processes, old undo data, old forks.

    Branches with uncommitted changes and interrupted forks are listed and kept, unless --force is given. Resume such a
    fork with forkwise resume, or drop it with forkwise abort.
    """
    if orphans:
        _remove_orphans(force, dry_run, output)
        return
    from forkwise.fork.control import clean_up

    with progress.report("Removing what is no longer needed"):
        report = clean_up(directory, force=force, keep=keep, keep_forks=keep_forks, dry_run=dry_run)
    if output.as_json:
        unfinished = [fork_record(fork) for fork in report.unfinished]
        forks = {"aborted": list(report.aborted), "forgotten": list(report.forgotten), "unfinished": unfinished}
        output.document({**collected_record(report.collected), **forks, "dry_run": dry_run})
        return
    for name in report.aborted:
        output.line(f"{'would abort' if dry_run else 'aborted'} {name}, which was interrupted")
    for name in report.collected.removed:
        output.line(f"{'would remove' if dry_run else 'removed'} {name}")
    for name in report.collected.listed:
        output.line(f"kept {name}: it has uncommitted changes (remove it with --force)", "yellow")
    for fork in report.unfinished:
        output.line(f"kept {fork.id}: it {remedy(fork, directory)}", "yellow")
    if report.forgotten:
        verb, count = "would remove" if dry_run else "removed", format_number(len(report.forgotten), "old fork")
        output.line(f"{verb} {count} from the ledger")
    output.line(f"{'Would free' if dry_run else 'Freed'} {size_text(report.collected.freed)}.")


def _remove_orphans(force: bool, dry_run: bool, output: Output) -> None:
    from forkwise.files.gc import collect_orphans

    with progress.report("Looking for the state of workspaces that are gone"):
        found = collect_orphans(force=force, dry_run=dry_run)
    freed = sum(orphan.size for orphan in found if not orphan.reason)
    if output.as_json:
        orphans = [{**asdict(orphan), "removed": not orphan.reason} for orphan in found]
        output.document({"orphans": orphans, "freed": freed, "dry_run": dry_run})
        return
    for orphan in found:
        name = f"{orphan.state}, the state of {orphan.workspace or 'an unknown workspace'}"
        if orphan.reason:
            output.line(f"kept {name}: {orphan.reason}", "yellow")
        else:
            output.line(f"{'would remove' if dry_run else 'removed'} {name}, which no longer exists")
    output.line(f"{'Would free' if dry_run else 'Freed'} {size_text(freed)}.")


@click.command("du", cls=Verb, example=("forkwise du", "forkwise du --all --json"))
@click.option("--all", "everything", is_flag=True, help="List all workspaces whose state is kept in the same place.")
@workspace_option
@json_option
def du(everything: bool, directory: Path, output: Output) -> None:
    """Show what branches, undo data, logs and caches occupy on disk.

    A file with several names counts once, and holes in files count as nothing. Blocks that files share on btrfs and XFS
    count for each of them.
    """
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.disk_use import KINDS, list_disk_use, measure_disk_use

    workspace = Workspace(directory)
    with progress.report("Measuring what is kept"):
        found = list_disk_use(workspace) if everything else [measure_disk_use(workspace)]
    if output.as_json:
        output.document({"workspaces": [{**asdict(use), "total": use.total} for use in found]})
        return
    rows = [
        (use.workspace or use.state, *(size_text(use.kinds[k]) for k in KINDS), size_text(use.total)) for use in found
    ]
    output.table(("workspace", *KINDS, "total"), rows, Fit(wrapped=("workspace",)))
    if not everything:
        largest = sorted(found[0].branches.items(), key=lambda item: -item[1])[:_LARGEST]
        for name, size in largest:
            output.line(f"branch {name}: {size_text(size)}")
    for use in found:
        if use.unreadable:
            directories = f"{use.unreadable} director{'y' if use.unreadable == 1 else 'ies'} in {use.state}"
            output.line(f"not counted, because this user cannot read them: {directories}", "yellow")


@click.command("judges", cls=Verb, example=("forkwise judges", "forkwise judges --json"))
@workspace_option
@json_option
def judges(directory: Path, output: Output) -> None:
    """Show how often each judge's picks were undone or overridden.

    A pick counts once its fork is decided. It was overridden if another branch was taken, and undone if its commit was.
    The rate is the share of picks that were neither. The Brier score measures the judge's confidence: 0 is perfect,
    0.25 is as good as tossing a coin.
    """
    from forkwise.files.workspace import Workspace
    from forkwise.fork.stored_fork import reconcile
    from forkwise.ledger.sqlite import open_ledger
    from forkwise.live.judging.confidence import Calibration

    workspace = Workspace(directory)
    with open_ledger(workspace) as ledger:
        reconcile(ledger, workspace)  # an undo through the library is recorded in the workspace only
        found = sorted(Calibration.from_ledger(ledger).values(), key=lambda judge: (-judge.picks, judge.judge))
    if output.as_json:
        output.document({"workspace": str(workspace.path), "judges": [_judge_record(judge) for judge in found]})
    elif not found:
        output.line("No picks by judges yet.")
    else:
        output.table(
            ("judge", "picks", "undone", "overridden", "rate", "Brier score"), map(_judge_row, found), _JUDGES_FIT
        )


def _judge_record(judge: Calibration) -> dict[str, object]:
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
