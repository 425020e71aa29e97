"""``forkwise worktree``: linked worktrees of git that are copy-on-write branches of the whole checkout."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Commands, json_option, workspace_option
from forkwise.display.output import Output

if TYPE_CHECKING:
    from forkwise.worktree.worktree import Worktree

__all__ = ["worktree"]

_MAX_EVENT = 1 << 20  # bytes of a hook's input


@click.group("worktree", cls=Commands)
def worktree() -> None:
    """Add git worktrees that include the checkout's ignored files.

    A worktree is an ordinary directory with its own branch, HEAD and index, and git worktree list shows it. Its files
    are a copy-on-write branch of the checkout, so ignored files such as node_modules, .venv and build output are there
    too.
    """


@worktree.command(
    "add", example=("forkwise worktree add fix-login", "forkwise worktree add ../review --from origin/main --clean")
)
@click.argument("path", metavar="PATH|NAME")
@click.option("--branch", metavar="BRANCH", show_default="the last part of PATH", help="New git branch to create.")
@click.option(
    "--from", "start", metavar="REV", show_default="HEAD", help="Commit to start from; tracked files are those of REV."
)
@click.option(
    "--view",
    type=click.Choice(["overlay", "fuse", "reflink", "copy"]),
    metavar="VIEW",
    show_default="the best that works",
    help="View for the files: overlay, fuse, reflink or copy.",
)
@click.option("--clean", is_flag=True, help="Start without uncommitted changes; ignored files stay.")
@workspace_option
@json_option
def add(
    path: str, branch: str | None, start: str | None, view: str | None, clean: bool, directory: Path, output: Output
) -> None:
    """Add a worktree and print its directory.

    A word without a slash is a name, and the directory is beside the checkout, in CHECKOUT.worktrees. The worktree
    includes the checkout's uncommitted changes. With overlay and fuse, later edits in the checkout show through in
    files that the worktree has not changed; with reflink and copy, they do not.
    """
    from forkwise.worktree.worktree import add_worktree, default_path

    target = path if "/" in path else default_path(directory, path)
    added = add_worktree(directory, target, branch=branch, start=start, view=view, clean=clean)
    if output.as_json:
        output.document({"worktree": _record(added)})
        return
    output.line(f"{added.path} ({added.view}, branch {added.branch})", "bold")


@worktree.command("list", example=("forkwise worktree list", "forkwise worktree list --json"))
@workspace_option
@json_option
def list_all(directory: Path, output: Output) -> None:
    """List the worktrees that forkwise made of this repository.

    Mounts do not survive a restart of the machine: such a worktree is "not mounted" until you run forkwise worktree
    mount. One that you removed with git itself is "unknown to git".
    """
    from forkwise.worktree.worktree import list_worktrees

    found = list_worktrees(directory)
    if output.as_json:
        output.document({"worktrees": [_record(one) for one in found]})
    elif not found:
        output.line("No worktrees. Add one with: forkwise worktree add NAME")
    else:
        rows = [(one.path, one.branch, one.view, one.state, _time(one)) for one in found]
        output.table(("path", "branch", "view", "state", "created"), rows)
        if any(one.state == "not mounted" for one in found):
            output.line("Mount what is not mounted with: forkwise worktree mount", "yellow")


@worktree.command("mount", example=("forkwise worktree mount", "forkwise worktree mount fix-login"))
@click.argument("name", metavar="[PATH|NAME]", required=False)
@workspace_option
@json_option
def mount(name: str | None, directory: Path, output: Output) -> None:
    """Mount worktrees again, such as after a restart.

    Without a name, all worktrees that are not mounted are mounted. Their files and commits are unchanged.
    """
    from forkwise.worktree.worktree import find_worktree, list_worktrees, mount_worktree

    wanted = list_worktrees(directory) if name is None else [find_worktree(directory, name)]
    mounted = [one for one in wanted if one.state == "not mounted"]
    for one in mounted:
        mount_worktree(directory, one)
    if output.as_json:
        output.document({"mounted": [_record(one) for one in mounted]})
    elif not mounted:
        output.line("Nothing to mount.")
    for one in [] if output.as_json else mounted:
        output.line(one.path)


@worktree.command(
    "remove", example=("forkwise worktree remove fix-login", "forkwise worktree remove ../review --force")
)
@click.argument("name", metavar="PATH|NAME")
@click.option("--force", is_flag=True, help="Remove it even if it has uncommitted changes or is in use.")
@workspace_option
@json_option
def remove(name: str, force: bool, directory: Path, output: Output) -> None:
    """Remove a worktree, unless there is work in it.

    The command is refused while the worktree has uncommitted changes that the checkout does not have, or commits that
    are on no other branch and no remote. Its branch is deleted if nothing was committed on it, and kept otherwise, even
    with --force.
    """
    from forkwise.worktree.worktree import find_worktree, remove_worktree

    found = find_worktree(directory, name)
    is_branch_removed = remove_worktree(directory, found, force=force)
    if output.as_json:
        output.document({"removed": _record(found) | {"state": "removed", "branch_removed": is_branch_removed}})
        return
    rest = "and its branch" if is_branch_removed else f"its branch {found.branch} stays"
    output.line(f"Removed {found.path}{' ' if is_branch_removed else '; '}{rest}.")


@worktree.command(
    "hook",
    example=(
        'echo \'{"hook_event_name": "WorktreeCreate", "cwd": ".", "name": "fix"}\' | forkwise worktree hook',
        "forkwise worktree hook < event.json",
    ),
)
@json_option
def hook(output: Output) -> None:
    """Serve the worktree hooks of Claude Code and similar tools.

    Reads the event as JSON on standard input. WorktreeCreate adds a worktree, on the branch worktree-NAME, and prints
    only its path. WorktreeRemove removes one, unless it has uncommitted changes; its branch stays if it has commits.
    """
    event = _read_event()
    match event.get("hook_event_name"):
        case "WorktreeCreate":
            made = _create(event)
            if output.as_json:
                output.document({"worktree": _record(made)})
            else:
                click.echo(made.path)
        case "WorktreeRemove":
            removed = _remove(event)
            if output.as_json:
                output.document({"removed": _record(removed) | {"state": "removed"}})
        case other:
            raise click.UsageError(f"the event {other!r} is neither WorktreeCreate nor WorktreeRemove")


def _read_event() -> dict[str, Any]:
    content = sys.stdin.buffer.read(_MAX_EVENT + 1)
    if len(content) > _MAX_EVENT:
        raise click.UsageError("the event on standard input is larger than 1 MiB")
    try:
        event = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"standard input is not a JSON event: {error}") from None
    if not isinstance(event, dict):
        raise click.UsageError("standard input is not a JSON object")
    return event


def _text(event: dict[str, Any], *names: str) -> str | None:
    for name in names:
        value = event.get(name)
        if value is not None and (not isinstance(value, str) or not value or not _is_path(value)):
            raise click.UsageError(f"{name} in the event is not a valid path")
        if value is not None:
            return str(value)
    return None


def _is_path(text: str) -> bool:
    """Return whether a text is valid as a path for the kernel. JSON allows half a surrogate pair, which is not."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _create(event: dict[str, Any]) -> Worktree:
    from forkwise.worktree.worktree import add_worktree, default_path, list_worktrees

    directory = _text(event, "cwd") or "."
    name = _text(event, "name", "worktree_name")
    path = _text(event, "worktree_path")
    if name is None and path is None:
        raise click.UsageError("the event has no name")
    target = (
        os.path.abspath(os.path.join(directory, path))
        if path is not None
        else default_path(directory, (name or "").replace("/", "+"))
    )
    for known in list_worktrees(directory):
        if known.path == target and known.state == "ready":
            return known  # a resumed session requests the same worktree again
    branch = f"worktree-{name or os.path.basename(target)}"
    return add_worktree(directory, target, branch=branch, start=_text(event, "base_commit", "base_ref"))


def _remove(event: dict[str, Any]) -> Worktree:
    from forkwise.worktree.worktree import find_worktree, remove_worktree

    path = _text(event, "worktree_path")
    if path is None:
        raise click.UsageError("the event has no worktree_path")
    directory = _text(event, "cwd") or "."
    path = os.path.join(directory, path)
    if not os.path.isdir(directory) or os.path.realpath(directory).startswith(f"{os.path.realpath(path)}/"):
        directory = path
    found = find_worktree(directory, path)
    remove_worktree(found.source, found, keeps_commits=True)
    return found


def _record(one: Worktree) -> dict[str, Any]:
    return {
        "name": one.name,
        "path": one.path,
        "branch": one.branch,
        "start": one.start or None,
        "view": one.view,
        "state": one.state,
        "source": one.source,
        "created": datetime.fromtimestamp(one.created).astimezone().isoformat(),
    }


def _time(one: Worktree) -> str:
    return datetime.fromtimestamp(one.created).strftime("%Y-%m-%d %H:%M:%S")
