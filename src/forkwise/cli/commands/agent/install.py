"""``forkwise install`` and ``uninstall``: register forkwise with another agent, and undo that."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from forkwise.cli.app import Verb, json_option, workspace_option
from forkwise.display.output import Output

if TYPE_CHECKING:
    from forkwise.agents.registration import Registration, Scope
    from forkwise.text.diff import FileVersion

__all__ = ["install", "uninstall"]

_CLIENTS = ("claude", "codex", "gemini", "cursor", "vscode", "opencode")
F = TypeVar("F", bound=Callable[..., object])


def _options(function: F) -> F:
    for option in reversed(
        (
            click.argument("client", metavar="AGENT", type=click.Choice(_CLIENTS)),
            click.option(
                "--user",
                "scope",
                flag_value="user",
                default=True,
                help="Change the agent's settings for all projects (default).",
            ),
            click.option(
                "--project",
                "scope",
                flag_value="project",
                help="Change the settings of this workspace only, in files inside it.",
            ),
            click.option("-y", "--yes", is_flag=True, help="Make the changes without asking."),
            click.option("--dry-run", is_flag=True, help="Print the changes without making them."),
        )
    ):
        function = option(function)
    return function


@click.command("install", cls=Verb, example=("forkwise install claude", "forkwise install codex --project --yes"))
@_options
@click.option("--read-only", is_flag=True, help="Offer the agent only the tools that change nothing.")
@click.option("--no-commit", is_flag=True, help="Offer the agent neither pick nor undo.")
@click.option(
    "--no-confirm", is_flag=True, help="Let the agent commit without asking you; needed if nobody can answer."
)
@workspace_option
@json_option
def install(
    client: str,
    scope: Scope,
    yes: bool,
    dry_run: bool,
    read_only: bool,
    no_commit: bool,
    no_confirm: bool,
    directory: Path,
    output: Output,
) -> None:
    """Register forkwise with another agent, such as claude or codex.

    AGENT is claude, codex, gemini, cursor, vscode or opencode. The changes to its files are shown first. Existing
    settings are kept, including comments. Claude Code also gets a plugin with worktree hooks, a skill and the commands
    best-of, forks and undo.
    """
    from forkwise.agents.registration import plan_install

    given = {"--read-only": read_only, "--no-commit": no_commit, "--no-confirm": no_confirm}
    options = [option for option, is_given in given.items() if is_given]
    _carry_out(plan_install(client, scope, directory, options), "Registered forkwise with", yes, dry_run, output)


@click.command("uninstall", cls=Verb, example=("forkwise uninstall claude", "forkwise uninstall codex --project"))
@_options
@workspace_option
@json_option
def uninstall(client: str, scope: Scope, yes: bool, dry_run: bool, directory: Path, output: Output) -> None:
    """Undo what forkwise install changed.

    Only what was inserted is removed; later changes of yours are kept, and so are plugin files that you edited.
    """
    from forkwise.agents.registration import plan_uninstall

    _carry_out(plan_uninstall(client, scope, directory), "Removed forkwise from", yes, dry_run, output)


def _version(text: str | None) -> FileVersion | None:
    from forkwise.text.diff import FileVersion

    return None if text is None else FileVersion(0o100644, text.encode())


def _carry_out(change: Registration, done: str, yes: bool, dry_run: bool, output: Output) -> None:
    from forkwise.agents.registration import apply_registration
    from forkwise.text.diff import FileDiff, unified

    if change.edits and not output.as_json:
        for edit in change.edits:
            output.line(f"{'remove' if edit.new is None else 'create' if edit.old is None else 'change'} {edit.path}")
            output.diff(unified([FileDiff(edit.path.name, *map(_version, (edit.old, edit.new)))]))
    if change.edits and not dry_run:
        if not yes and (output.as_json or not sys.stdin.isatty()):
            raise click.UsageError(
                "there is no terminal to ask on: make the changes with --yes, or print them with --dry-run"
            )
        if not yes and not click.confirm("Make these changes?", default=True):
            raise click.Abort
        apply_registration(change)
    if output.as_json:
        output.document(
            {
                "agent": change.client,
                "scope": change.scope,
                "changed": [str(edit.path) for edit in change.edits],
                "notes": change.notes,
                "dry_run": dry_run,
            }
        )
        return
    for note in change.notes:
        output.line(note, "yellow")
    if not change.edits:
        output.line("Nothing to change.")
    elif not dry_run:
        output.line(f"{done} {change.client}.", "bold")
