"""``forkwise branch``: make branches, look at them, commit one, drop the rest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Commands, Exit, json_option, workspace_option
from forkwise.display.output import (
    MARKS,
    Output,
    branch_record,
    change_record,
    command_line,
    commit_record,
    conflict_record,
    size_text,
    totals,
)

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.store.changes import OnConflict
    from forkwise.sandbox.confinement import Network

__all__ = ["branch"]


@click.group("branch", cls=Commands)
def branch() -> None:
    """Make branches, look at them, commit one, drop the rest.

    A branch is named as it was created (try-1), or by its full path (/main/try-1/variant) where branches nest.
    """


def _open(directory: Path, name: str) -> Branch:
    from forkwise.cli.private_mounts import open_inside

    return open_inside(directory, name)


@branch.command(
    "create", example=("forkwise branch create try-1", "forkwise branch create variant --from try-1 --json")
)
@click.argument("name")
@click.option("--from", "parent", metavar="BRANCH", help="Fork from this branch instead of from the workspace.")
@click.option("--view", metavar="VIEW", help="Have this view or fail; forkwise doctor lists them.")
@workspace_option
@json_option
def create(name: str, parent: str | None, view: str | None, directory: Path, output: Output) -> None:
    """Make a branch that stays until it is committed or aborted, and print where it is.

    Where this user may not mount, the kernel's overlay is used in a namespace of one's own, which only forkwise branch
    shell can show. A view that every process sees can be asked for with --view.
    """
    from forkwise.cli.private_mounts import enter_to_create, is_private
    from forkwise.files.workspace import Workspace

    enter_to_create(directory, view)
    workspace = Workspace(directory, view=view)
    made = (workspace.open(parent) if parent else workspace).branch(name)
    try:
        made.keep()
        place = None if is_private(made) else str(made.path)
    except BaseException:
        made.abort()
        raise
    if output.as_json:
        output.document({"branch": {**branch_record(made), "path": place}})
        return
    output.line(f"{made.branch_path} ({made.view})", "bold")
    shown = made.branch_path if parent else name
    output.line(place or f"seen by: {command_line(directory, 'branch', 'shell', shown)}")


@branch.command("ls", example=("forkwise branch ls", "forkwise branch ls --json"))
@workspace_option
@json_option
def ls(directory: Path, output: Output) -> None:
    """List the branches of a workspace, nested ones and those of other processes included."""
    from forkwise.files.workspace import Workspace

    workspace = Workspace(directory)
    branches = workspace.branches()
    if output.as_json:
        output.document({"workspace": str(workspace.path), "branches": [branch_record(item) for item in branches]})
    elif not branches:
        output.line("No branches.")
    else:
        output.table(("branch", "view", "status", "created", "held by"), [_row(item) for item in branches])


def _row(item: Branch) -> tuple[str, ...]:
    holder = "kept" if item.kept else "a running process" if item.owner_alive else "nobody: gc may take it"
    return item.branch_path, item.view, item.status, item.created.astimezone().strftime("%Y-%m-%d %H:%M:%S"), holder


@branch.command("path", example=("forkwise branch path try-1", 'cd "$(forkwise branch path try-1)"'))
@click.argument("name")
@workspace_option
@json_option
def path(name: str, directory: Path, output: Output) -> None:
    """Print the directory in which a branch is seen."""
    from forkwise.errors import MountError
    from forkwise.files.workspace import Workspace

    found = Workspace(directory).open(name)
    try:
        place = str(found.path)
    except MountError as error:
        error.remedy = f"{command_line(directory, 'branch', 'shell', name)} shows it"
        raise
    if output.as_json:
        output.document({"branch_path": found.branch_path, "path": place})
    else:
        click.echo(place)


@branch.command("diff", example=("forkwise branch diff try-1", "forkwise branch diff try-1 --stat"))
@click.argument("name")
@click.option("--stat", is_flag=True, help="Only which paths changed, and how.")
@workspace_option
@json_option
def diff(name: str, stat: bool, directory: Path, output: Output) -> None:
    """Show what a branch changed: a unified diff, or with --json the list of changes."""
    found = _open(directory, name)
    if not stat and not output.as_json:
        output.diff(found.diff())
        return
    delta = found.delta()
    if output.as_json:
        output.document({"branch_path": found.branch_path, "changes": [change_record(change) for change in delta]})
        return
    if delta:
        rows = [(MARKS[c.kind], c.path, c.type, "" if c.kind == "deleted" else size_text(c.size)) for c in delta]
        output.table(("", "path", "type", "size"), rows)
    output.line(f"{totals(delta)}.")


@branch.command("commit", example=("forkwise branch commit try-1", "forkwise branch commit try-1 --on-conflict merge"))
@click.argument("name")
@click.option(
    "--on-conflict",
    type=click.Choice(("refuse", "ours", "theirs", "merge")),
    default="refuse",
    show_default=True,
    help="Where the parent was changed by somebody else: change nothing, take the branch's side, keep theirs, merge.",
)
@click.option(
    "--no-durable", is_flag=True, help="Do not wait for the disk: quicker, but not safe over a power failure."
)
@click.option("--trust", is_flag=True, help="Commit a layer that a power failure may have damaged.")
@workspace_option
@json_option
def commit(name: str, on_conflict: OnConflict, no_durable: bool, trust: bool, directory: Path, output: Output) -> None:
    """Apply what a branch changed to its parent: all of it or nothing, whatever is killed."""
    durable = False if no_durable else None
    done = _open(directory, name).commit(on_conflict=on_conflict, durable=durable, trust=trust)
    if output.as_json:
        output.document({"commit": commit_record(done)})
        return
    output.line(f"Committed {done.branch} as {done.id}: {totals(done)}.", "bold")
    output.changes({"added": done.added, "changed": done.changed, "deleted": done.deleted})
    output.conflicts(done.conflicts)
    for skipped in done.skipped:
        output.line(f"  skipped {skipped}", "yellow")
    into = done.branch.rpartition("/")[0]
    if into == "/main":
        output.line(f"To take it back: {command_line(directory, 'undo', str(done.undo_id))}")
    else:
        output.line(f"It is part of {into} now, and becomes part of the workspace when that is committed.")


@branch.command("abort", example=("forkwise branch abort try-1", "forkwise branch abort /main/try-1/variant"))
@click.argument("name")
@workspace_option
@json_option
def abort(name: str, directory: Path, output: Output) -> None:
    """Drop a branch and everything in it."""
    found = _open(directory, name)
    found.abort()
    if output.as_json:
        output.document({"aborted": found.branch_path})
    else:
        output.line(f"Aborted {found.branch_path}.")


@branch.command("rebase", example=("forkwise branch rebase try-1", "forkwise branch rebase try-1 --json"))
@click.argument("name")
@workspace_option
@json_option
def rebase(name: str, directory: Path, output: Output) -> int:
    """Bring a stale branch onto what its parent is now.

    Text that both changed is merged three ways. What cannot be merged is listed, and the exit code is 3.
    """
    found = _open(directory, name)
    result = found.rebase()
    if output.as_json:
        conflicts = [conflict_record(conflict) for conflict in result.conflicts]
        output.document({"branch_path": found.branch_path, "merged": list(result.merged), "conflicts": conflicts})
    else:
        counts = f"{len(result.merged)} merged, {len(result.conflicts)} in conflict"
        output.line(f"Rebased {found.branch_path}: {counts}.", "bold")
        output.changes({"changed": result.merged})
        output.conflicts(result.conflicts)
    return Exit.CONFLICT if result.conflicts else Exit.OK


@branch.command(
    "shell",
    example=("forkwise branch shell try-1", "forkwise branch shell try-1 -- make test"),
)
@click.argument("name")
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@workspace_option
@json_option
def shell(name: str, command: tuple[str, ...], directory: Path, output: Output) -> int:
    """Start a shell, or a command, inside a branch, for a person: not confined, on this terminal.

    The branch stands at the workspace's own path there. Its exit status is passed on. FORKWISE_BRANCH holds the
    branch's path among branches. The branch stays: commit or abort it afterwards. With --json, a document follows the
    command's own output.
    """
    return _run_inside(name, command, directory, output, confinement="open")


@branch.command(
    "run",
    example=("forkwise branch run try-1 -- make test", "forkwise branch run try-1 --confinement strict -- ./agent"),
)
@click.argument("name")
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--confinement",
    type=click.Choice(("open", "standard", "strict")),
    default="standard",
    show_default=True,
    help="What the command gets: all, all to read and the branch to write, or that with no network and no secrets.",
)
@click.option("--network", type=click.Choice(("host", "none", "private")), help="Another network than the preset's.")
@click.option("--writable", multiple=True, metavar="PATH", help="Something besides the branch that it may write to.")
@click.option("--timeout", type=float, metavar="SECONDS", help="End it, with all it started, after so long.")
@click.option("--memory", type=int, metavar="BYTES", help="The most memory it may use.")
@click.option("--processes", type=int, metavar="N", help="The most processes it may have.")
@workspace_option
@json_option
def run(
    name: str,
    command: tuple[str, ...],
    confinement: str,
    network: Network | None,
    writable: tuple[str, ...],
    timeout: float | None,
    memory: int | None,
    processes: int | None,
    directory: Path,
    output: Output,
) -> int:
    """Run a command in a branch, confined to it, with the branch at the workspace's own path.

    Its exit status is passed on (124 after a timeout), and all it started ends with it. The branch stays.
    """
    from dataclasses import replace

    from forkwise.sandbox.confinement import Confinement
    from forkwise.sandbox.limits import Limits

    limits = Limits(memory=memory, processes=processes)
    wanted = replace(Confinement.preset(confinement), writable=writable, limits=limits)
    if network:
        wanted = replace(wanted, network=network)
    return _run_inside(name, command, directory, output, confinement=wanted, timeout=timeout)


def _run_inside(name: str, command: tuple[str, ...], directory: Path, output: Output, **options: Any) -> int:
    from forkwise.files.workspace import Workspace

    found = Workspace(directory).open(name)
    status = found.shell(command, **options)
    shown = 128 - status if status < 0 else status
    if output.as_json:
        output.document({"branch_path": found.branch_path, "command": list(command), "status": shown})
    return shown
