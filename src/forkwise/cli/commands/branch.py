"""``forkwise branch``: create branches, inspect them, commit one, drop the rest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Commands, Exit, json_option, workspace_option
from forkwise.cli.explore_options import check_paths, check_rules, find_shared_paths
from forkwise.cli.options import (
    allow_host_option,
    allow_option,
    confinement_option,
    conflict_option,
    deny_host_option,
    host_port_option,
    ignored_option,
    landlock_option,
    network_option,
)
from forkwise.cli.quantity import Duration, Processors, Size
from forkwise.display.columns import Fit
from forkwise.display.output import (
    MARKS,
    Output,
    branch_record,
    change_record,
    command_line,
    commit_record,
    conflict_record,
    repository_records,
    size_text,
    totals,
)
from forkwise.text.phrases import format_number

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.store.changes import OnConflict
    from forkwise.sandbox.confinement import Network

__all__ = ["branch"]


@click.group("branch", cls=Commands)
def branch() -> None:
    """Create branches by hand, inspect them, commit or drop them.

    Name a branch as it was created (try-1) or, for nested branches, by its full path (/main/try-1/variant).
    """


def _open(directory: Path, name: str) -> Branch:
    from forkwise.cli.private_mounts import open_inside

    return open_inside(directory, name)


@branch.command(
    "create", example=("forkwise branch create try-1", "forkwise branch create variant --from try-1 --json")
)
@click.argument("name")
@click.option("--from", "parent", metavar="BRANCH", show_default="the workspace", help="Branch to fork.")
@click.option(
    "--view",
    metavar="VIEW",
    show_default="the best that works",
    help="View to use; forkwise doctor lists them.",
)
@click.option(
    "--frozen", is_flag=True, help="Show the workspace as it is now, whatever is edited there later (btrfs, or XFS)."
)
@workspace_option
@json_option
def create(name: str, parent: str | None, view: str | None, frozen: bool, directory: Path, output: Output) -> None:
    """Create a branch and print its directory.

    The branch stays until it is committed or aborted. Without permission to mount, the branch is an overlay in a
    private namespace, which only forkwise branch shell can enter. Use --view to choose a view that every process can
    see.
    """
    from forkwise.cli.private_mounts import enter_to_create, is_private
    from forkwise.files.workspace import Workspace
    from forkwise.servers.data_branch import hold_data, record_data

    if not frozen:
        enter_to_create(directory, view)
    workspace = Workspace(directory, view=view, frozen=frozen)
    source = workspace.open(parent) if parent else workspace
    with hold_data(source) as data:
        created = source.branch(name)
    try:
        record_data(created, data)
        created.keep()
        path = None if is_private(created) else str(created.path)
    except BaseException:
        created.abort()
        raise
    if output.as_json:
        output.document({"branch": {**branch_record(created), "path": path}})
        return
    output.line(f"{created.branch_path} ({created.view})", "bold")
    short_name = created.branch_path if parent else name
    output.line(path or f"Enter it with: {command_line(directory, 'branch', 'shell', short_name)}")


@branch.command("ls", example=("forkwise branch ls", "forkwise branch ls --json"))
@workspace_option
@json_option
def ls(directory: Path, output: Output) -> None:
    """List all branches, including nested ones.

    Branches of other processes are listed too. A kept branch stays until it is committed or aborted; one without an
    owner belonged to a process that died.
    """
    from forkwise.files.workspace import Workspace

    workspace = Workspace(directory)
    branches = workspace.branches()
    if output.as_json:
        output.document({"workspace": str(workspace.path), "branches": [branch_record(item) for item in branches]})
    elif not branches:
        output.line("No branches.")
    else:
        fit = Fit(wrapped=("owner",), optional=("view", "created"))
        output.table(("branch", "view", "status", "created", "owner"), [_row(item) for item in branches], fit)


def _row(item: Branch) -> tuple[str, ...]:
    owner = "kept" if item.kept else "a running process" if item.owner_alive else "none (gc will remove it)"
    return item.branch_path, item.view, item.status, item.created.astimezone().strftime("%Y-%m-%d %H:%M:%S"), owner


@branch.command("path", example=("forkwise branch path try-1", 'cd "$(forkwise branch path try-1)"'))
@click.argument("name")
@workspace_option
@json_option
def path(name: str, directory: Path, output: Output) -> None:
    """Print the directory of a branch.

    If the view of the branch is not mounted, it is mounted first.
    """
    from forkwise.errors import MountError
    from forkwise.files.workspace import Workspace

    found = Workspace(directory).open(name)
    try:
        found_path = str(found.path)
    except MountError as error:
        error.remedy = f"enter it with {command_line(directory, 'branch', 'shell', name)}"
        raise
    if output.as_json:
        output.document({"branch_path": found.branch_path, "path": found_path})
    else:
        click.echo(found_path)


@branch.command("diff", example=("forkwise branch diff try-1", "forkwise branch diff try-1 --stat"))
@click.argument("name")
@click.option("--stat", is_flag=True, help="List the changed paths instead of printing the diff.")
@workspace_option
@json_option
def diff(name: str, stat: bool, directory: Path, output: Output) -> None:
    """Show the changes of a branch as a unified diff.

    The diff can be applied with git apply. With --json, print the list of changed paths instead.
    """
    found = _open(directory, name)
    if not stat and not output.as_json:
        output.diff(found.diff())
        if not found.view_kind.native:  # a native view would have to compare both trees again
            delta = found.delta()
            output.warn_executable_config(delta.executable_config)
            output.warn_repository(delta.repository)
        return
    delta = found.delta()
    if output.as_json:
        output.document(
            {
                "branch_path": found.branch_path,
                "changes": [change_record(change) for change in delta],
                "repository": repository_records(delta.repository),
            }
        )
        return
    if delta:
        rows = [
            (
                MARKS[c.kind],
                c.path,
                f"database, {format_number(c.files, 'file')}" if c.files else c.type,
                "" if c.kind == "deleted" else size_text(c.size),
            )
            for c in delta
        ]
        output.table(("", "path", "type", "size"), rows, Fit(wrapped=("path",), optional=("type",)))
        output.executable_config(delta.executable_config)
    output.repository(delta.repository)
    output.line(f"{totals(delta)}.")


@branch.command("commit", example=("forkwise branch commit try-1", "forkwise branch commit try-1 --on-conflict merge"))
@click.argument("name")
@conflict_option(
    "Action if the parent changed meanwhile: refuse to commit, take ours (the branch's), keep theirs, or merge."
)
@click.option("--no-durable", is_flag=True, help="Skip the sync to disk: faster, but a power failure can lose changes.")
@click.option("--trust", is_flag=True, help="Commit a branch that a power failure may have damaged.")
@allow_option
@ignored_option
@workspace_option
@json_option
def commit(
    name: str,
    on_conflict: OnConflict,
    no_durable: bool,
    trust: bool,
    allow_executable_config: bool,
    include_ignored: bool,
    directory: Path,
    output: Output,
) -> None:
    """Apply the changes of a branch to its parent.

    All changes are applied or none, even if the process is killed. Sibling branches become stale. A branch that you
    created is committed as it is. If the branch belongs to an attempt, ignored files are left out unless
    --include-ignored is given.
    """
    from forkwise.fork.stored_fork import record_branch_commit

    durable = False if no_durable else None
    found = _open(directory, name)
    result = found.commit(
        on_conflict=on_conflict,
        durable=durable,
        trust=trust,
        allow_executable_config=allow_executable_config,
        ignore=() if include_ignored else None,
    )
    record_branch_commit(found.workspace, result)
    if output.as_json:
        output.document({"commit": commit_record(result)})
        return
    output.line(f"Committed {result.branch} as {result.id}: {totals(result)}.", "bold")
    output.changes({"added": result.added, "changed": result.changed, "deleted": result.deleted})
    output.repository(result.repository)
    output.conflicts(result.conflicts)
    for skipped_path in result.skipped:
        output.line(f"  skipped {skipped_path}", "yellow")
    output.executable_config(result.executable_config)
    parent = result.branch.rpartition("/")[0]
    if result.note:
        output.line(f"{result.note}.")
    elif parent == "/main":
        output.line(f"Undo with: {command_line(directory, 'undo', str(result.undo_id))}")
    else:
        output.line(f"It is now part of {parent}, and reaches the workspace when that branch is committed.")


@branch.command("abort", example=("forkwise branch abort try-1", "forkwise branch abort /main/try-1/variant"))
@click.argument("name")
@workspace_option
@json_option
def abort(name: str, directory: Path, output: Output) -> None:
    """Drop a branch and all of its changes.

    The workspace is not affected. Branches nested in it are dropped as well.
    """
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
    """Update a stale branch to the current state of its parent.

    Text files that both sides changed are merged. Files that cannot be merged are listed as conflicts, and the exit
    code is 3.
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


_servers_option = click.option(
    "--servers", is_flag=True, help="Start the servers of .forkwise/servers.toml in the branch first."
)


@branch.command(
    "shell",
    example=("forkwise branch shell try-1", "forkwise branch shell try-1 -- make test"),
)
@click.argument("name")
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@_servers_option
@workspace_option
@json_option
def shell(name: str, command: tuple[str, ...], servers: bool, directory: Path, output: Output) -> int:
    """Start a shell or a command in a branch, without a sandbox.

    The branch is mounted at the workspace's own path, and $FORKWISE_BRANCH holds its name. The exit code is the
    command's own. The branch stays: commit or abort it afterwards. With --json, a document follows the command's
    output.
    """
    return _run_inside(name, command, directory, output, servers=servers, confinement="open")


@branch.command(
    "run",
    example=("forkwise branch run try-1 -- make test", "forkwise branch run try-1 --confinement strict -- ./agent"),
)
@click.argument("name")
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@confinement_option
@network_option
@allow_host_option
@deny_host_option
@host_port_option
@landlock_option
@click.option(
    "--writable", multiple=True, metavar="PATH", help="Path outside the branch that the command may write to."
)
@click.option(
    "--show",
    "shown",
    multiple=True,
    metavar="PATH",
    help="Path with credentials that the command may read although the sandbox hides it by default.",
)
@click.option(
    "--timeout",
    type=Duration(),
    metavar="DURATION",
    show_default="no limit",
    help="Time limit, such as 90s or 10m, after which the command and its children are killed.",
)
@click.option("--memory", type=Size(), metavar="SIZE", show_default="no limit", help="Memory limit, such as 2G.")
@click.option("--cpus", type=Processors(), metavar="N", show_default="no limit", help="CPU limit, such as 1.5.")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    metavar="N",
    show_default="no limit",
    help="Limit on the number of processes.",
)
@_servers_option
@workspace_option
@json_option
def run(
    name: str,
    command: tuple[str, ...],
    confinement: str,
    network: Network | None,
    allowed_hosts: tuple[str, ...],
    denied_hosts: tuple[str, ...],
    host_ports: tuple[int, ...],
    landlock_instead: bool,
    writable: tuple[str, ...],
    shown: tuple[str, ...],
    timeout: float | None,
    memory: int | None,
    cpus: float | None,
    processes: int | None,
    servers: bool,
    directory: Path,
    output: Output,
) -> int:
    """Run a command in a branch, in a sandbox.

    The branch is mounted at the workspace's own path. The exit code is the command's own, or 124 after a timeout.
    Processes that the command started are killed when it exits. The branch stays.
    """
    from dataclasses import replace

    from forkwise.sandbox.confinement import Confinement
    from forkwise.sandbox.limits import Limits

    check_rules(network, confinement, (*allowed_hosts, *denied_hosts), host_ports)
    check_paths(writable, shown)
    limits = Limits(memory=memory, processes=processes, cpus=cpus)
    confined = replace(
        Confinement.preset(confinement),
        writable=(*writable, *(find_shared_paths(directory) if confinement != "open" else ())),
        shown=shown,
        limits=limits,
        landlock_instead=landlock_instead,
        allowed_hosts=allowed_hosts,
        denied_hosts=denied_hosts,
        host_ports=host_ports,
    )
    if network or confinement == "standard":
        confined = replace(confined, network=network or "auto")
    return _run_inside(name, command, directory, output, servers=servers, confinement=confined, timeout=timeout)


def _run_inside(
    name: str, command: tuple[str, ...], directory: Path, output: Output, *, servers: bool, **options: Any
) -> int:
    from forkwise.files.workspace import Workspace

    if servers:
        found = _open(directory, name)  # in a namespace where the branch can be mounted for several sandboxes
        status = _run_with_servers(found, command, options)
    else:
        found = Workspace(directory).open(name)
        status = found.shell(command, **options)
    code = 128 - status if status < 0 else status
    if output.as_json:
        output.document({"branch_path": found.branch_path, "command": list(command), "status": code})
    return code


def _run_with_servers(found: Branch, command: tuple[str, ...], options: dict[str, Any]) -> int:
    """Run a command in a branch while the servers of its workspace run there; return its exit code."""
    from contextlib import ExitStack

    from forkwise.sandbox.confinement import Confinement
    from forkwise.sandbox.launcher import ForkserverClient
    from forkwise.servers.server_file import read_servers
    from forkwise.servers.server_group import BranchNetwork, ServerGroup

    servers = read_servers(found.workspace.path)
    if not servers:
        raise click.UsageError(f"--servers: {found.workspace.path} has no .forkwise/servers.toml that names any server")
    wanted = Confinement.preset(options["confinement"])
    with ExitStack() as stack:
        client = ForkserverClient(own_session=False)
        stack.callback(client.close)
        network = BranchNetwork(wanted, client=client)
        stack.callback(network.close)
        confinement = "standard" if wanted.name == "open" else wanted
        group = ServerGroup(servers, found, confinement=confinement, space=network.space)
        stack.callback(group.kill)
        group.start()
        status = found.shell(command, client=client, space=network.space, **options)
        group.check()
        group.stop()
        return status
