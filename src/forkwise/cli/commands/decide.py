"""``forkwise pick``, ``combine``, ``resume`` and ``abort``: how a fork ends that did not end by itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise.cli.app import Exit, Verb, json_option, stream_option, workspace_option
from forkwise.display.output import Output, command_line, commit_record, totals

if TYPE_CHECKING:
    from forkwise.files.store.changes import Commit, OnConflict
    from forkwise.fork.combine import Combined

__all__ = ["abort", "combine", "pick", "resume"]

_CONFLICTS = ("refuse", "ours", "theirs", "merge")
_ON_CONFLICT = click.option(
    "--on-conflict",
    type=click.Choice(_CONFLICTS),
    default="refuse",
    show_default=True,
    help="Where the workspace was changed by somebody else: change nothing, take ours, keep theirs, merge.",
)
_KEEP = click.option("--keep", is_flag=True, help="Keep the branches of the other attempts.")


@click.command("pick", cls=Verb, example=("forkwise pick k3f9ab.2", "forkwise pick k3f9ab --on-conflict merge"))
@click.argument("name", metavar="ATTEMPT|FORK")
@_ON_CONFLICT
@_KEEP
@click.option("--force", is_flag=True, help="Also an attempt that did not succeed.")
@click.option("--trust", is_flag=True, help="Commit a branch that a power failure may have damaged.")
@workspace_option
@json_option
def pick(
    name: str, on_conflict: OnConflict, keep: bool, force: bool, trust: bool, directory: Path, output: Output
) -> None:
    """Decide a fork for one of its attempts: commit that, and drop the others.

    The fork may be open (made with --no-commit), interrupted, or still running: then its other attempts are ended. One
    that was decided for this attempt but not committed, because of a conflict, is committed now. A FORK alone means
    the attempt that was found best.
    """
    from forkwise.cli.private_mounts import enter_to_create
    from forkwise.fork.resolve import pick as decide

    enter_to_create(directory, None)
    commit = decide(directory, name, on_conflict=on_conflict, keep=keep, force=force, trust=trust)
    if output.as_json:
        output.document({"commit": commit_record(commit)})
    else:
        _tell(commit, f"Committed {commit.branch}", directory, output)


def _tell(commit: Commit, what: str, directory: Path, output: Output) -> None:
    output.line(f"{what} as {commit.id}: {totals(commit)}.", "bold green")
    output.changes({"added": commit.added, "changed": commit.changed, "deleted": commit.deleted})
    output.conflicts(commit.conflicts)
    for skipped in commit.skipped:
        output.line(f"  skipped {skipped}", "yellow")
    if commit.branch.count("/") == 2:
        output.line(f"To take it back: {command_line(directory, 'undo', str(commit.undo_id))}")


@click.command(
    "combine",
    cls=Verb,
    example=("forkwise combine k3f9ab.1 k3f9ab.3", "forkwise combine k3f9ab.1 k3f9ab.3 --prefer setup.py=k3f9ab.3"),
)
@click.argument("names", metavar="ATTEMPT ATTEMPT...", nargs=-1, required=True)
@click.option(
    "--prefer",
    multiple=True,
    metavar="[PATH=]ATTEMPT",
    help="Whose version it is to be where they clash, at that path or wherever that attempt is part of it.",
)
@click.option("--test", "command", metavar="LINE", help="Another test command than the fork's own.")
@click.option("--no-test", is_flag=True, help="Do not test the combination.")
@_ON_CONFLICT
@_KEEP
@click.option("--force", is_flag=True, help="Commit although tests fail; where attempts clash, the first named wins.")
@workspace_option
@json_option
def combine(
    names: tuple[str, ...],
    prefer: tuple[str, ...],
    command: str | None,
    no_test: bool,
    on_conflict: OnConflict,
    keep: bool,
    force: bool,
    directory: Path,
    output: Output,
) -> int:
    """Decide a fork for several of its attempts: merge what they changed, test that, and commit it.

    Changes of different files and of different lines go together. Where they clash nothing is committed: --prefer says
    whose version it is to be. The tests are those of the fork. Exits with 3 where attempts clash, with 7 where the
    tests do not pass; the fork is as undecided as before then.
    """
    import asyncio

    from forkwise.cli.private_mounts import enter_to_create
    from forkwise.explore.resume import judging_tests
    from forkwise.files.workspace import Workspace
    from forkwise.fork.combine import combine_attempts
    from forkwise.ledger.sqlite import open_ledger

    if no_test and command is not None:
        raise click.UsageError("--test and --no-test contradict each other")
    enter_to_create(directory, None)
    workspace = Workspace(directory)
    with open_ledger(workspace) as ledger:
        fork = ledger.fork(ledger.attempt(names[0]).fork)
    by_path = {path: name for path, is_path, name in (word.rpartition("=") for word in prefer) if is_path}
    done = asyncio.run(
        combine_attempts(
            workspace,
            names,
            tests=None if no_test else judging_tests(fork, command),
            prefer=by_path,
            favour=[word for word in prefer if "=" not in word],
            on_conflict=on_conflict,
            keep=keep,
            force=force,
        )
    )
    if output.as_json:
        output.document({"combination": _record(done)})
    else:
        _show(done, directory, output)
    if done.commit is not None:
        return Exit.OK
    return Exit.CONFLICT if done.conflicts else Exit.NOBODY_WON


def _record(done: Combined) -> dict[str, object]:
    return {
        "fork": done.fork,
        "attempts": list(done.attempts),
        "merged": list(done.merged),
        "taken": dict(done.taken),
        "conflicts": [
            {"path": c.path, "kind": c.kind, "attempts": list(c.branches), "detail": c.detail} for c in done.conflicts
        ],
        "tests": None if done.tests is None else done.tests.as_json(),
        "commit": None if done.commit is None else commit_record(done.commit),
    }


def _show(done: Combined, directory: Path, output: Output) -> None:
    for path in done.merged:
        output.line(f"  {path}: merged")
    for path, name in done.taken.items():
        output.line(f"  {path}: from {name}")
    for clash in done.conflicts:
        output.line(f"  ! {clash}", "red")
    if done.tests is not None:
        output.line(f"tests: {done.tests.doubt or done.tests.summary}", "green" if done.tests.is_pass else "red")
    if done.commit is not None:
        _tell(done.commit, f"Committed {' and '.join(done.attempts)} together", directory, output)
    elif done.conflicts:
        output.line("They do not go together; nothing was committed.", "bold red")
        words = ("combine", *done.attempts, "--prefer", f"{done.conflicts[0].path}={done.attempts[-1]}")
        output.line(f"Say whose version it is to be: {command_line(directory, *words)}")
    else:
        output.text("" if done.tests is None else done.tests.feedback())
        output.line("The tests do not pass; nothing was committed. --force commits it all the same.", "bold red")


@click.command("resume", cls=Verb, streams=True, example=("forkwise resume k3f9ab", "forkwise resume k3f9ab --json"))
@click.argument("name", metavar="FORK")
@click.option("--on-conflict", type=click.Choice(_CONFLICTS), help="Another choice than the fork was begun with.")
@click.option("-q", "--quiet", is_flag=True, help="Only what came of it.")
@workspace_option
@stream_option
def resume(name: str, on_conflict: OnConflict | None, quiet: bool, directory: Path, output: Output) -> int:
    """Go on with a fork whose process was killed, or that was decided and not committed.

    Attempts that were over are not run again; those that were not start afresh, in fresh branches.
    """
    from forkwise.cli.exploration import run_and_report
    from forkwise.cli.options import ExploreOptions
    from forkwise.cli.private_mounts import enter_to_create
    from forkwise.explore.resume import resume as go_on
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.sqlite import open_ledger

    enter_to_create(directory, None)
    workspace = Workspace(directory)
    with open_ledger(workspace) as ledger:
        told = ledger.fork(name).spec
    asked = ExploreOptions(
        directory=directory,
        output=output,
        quiet=quiet,
        no_commit=not told.get("commit", True),
        keep=bool(told.get("keep", False)),
    )
    return run_and_report(
        lambda witness: go_on(workspace, name, on_conflict=on_conflict, witness=witness), workspace, asked
    )


@click.command("abort", cls=Verb, example=("forkwise abort k3f9ab", "forkwise abort k3f9ab.2"))
@click.argument("name", metavar="FORK|ATTEMPT")
@click.option("--lost", is_flag=True, help="The other machine that ran it is gone for good: do not wait for it.")
@workspace_option
@json_option
def abort(name: str, lost: bool, directory: Path, output: Output) -> None:
    """Give a fork up, and drop all of its branches; or end one attempt of it, and let the others go on.

    One that another process runs is ended there: its attempts are killed with all they started. One that was committed
    is not aborted but undone: forkwise undo.
    """
    from forkwise.cli.private_mounts import enter_to_create
    from forkwise.files.workspace import Workspace
    from forkwise.fork.control import abort_attempt, abort_fork
    from forkwise.ledger.sqlite import open_ledger

    if "." in name and lost:
        raise click.UsageError("--lost gives up a whole fork: name that")
    enter_to_create(directory, None)
    workspace = Workspace(directory)
    dropped = abort_attempt(workspace, name) if "." in name else abort_fork(workspace, name, lost=lost)
    with open_ledger(workspace) as ledger:
        found = ledger.attempt(name).id if "." in name else ledger.fork(name).id
    if output.as_json:
        output.document({"aborted": found, "dropped": list(dropped)})
    elif "." in name:
        output.line(f"Ended {found}; the other attempts go on.", "bold")
    else:
        output.line(f"Aborted {found}; nothing of it is left.", "bold")
