"""``forkwise export``: attempts of earlier forks as git branches and patches."""

from __future__ import annotations

import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise.cli.app import Verb, json_option, workspace_option
from forkwise.display.output import Output
from forkwise.progress import report
from forkwise.text.phrases import join_first

if TYPE_CHECKING:
    from forkwise.cli.git_result import GitResult
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord

__all__ = ["export"]


class _ExportVerb(Verb):
    """A command whose option ``--as-patch`` has an optional value; click would take the next word as the value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``--as-patch`` as an option with an empty value."""
        return super().parse_args(ctx, ["--as-patch=" if word == "--as-patch" else word for word in args])


@click.command(
    "export",
    cls=_ExportVerb,
    example=(
        "forkwise export k3f9ab --as-branch fix/login",
        "forkwise export k3f9ab.2 --as-patch=- | git am",
        "forkwise export k3f9ab --branches-prefix try/k3f9ab",
    ),
)
@click.argument("name", metavar="FORK|ATTEMPT")
@click.option("--as-branch", metavar="NAME", help="New git branch to create.")
@click.option(
    "--as-patch", metavar="[=FILE]", help="Write a patch for git am, by default to ATTEMPT.patch; - is standard output."
)
@click.option("--branches-prefix", metavar="PREFIX", help="Make each attempt of the fork a git branch PREFIX/N.")
@click.option(
    "--base",
    metavar="REV",
    show_default="HEAD when the fork started",
    help="Commit that becomes the parent of the new one.",
)
@click.option(
    "-m", "--message", metavar="TEXT", show_default="the agent's own, or the prompt", help="Message of the git commit."
)
@workspace_option
@json_option
def export(
    name: str,
    as_branch: str | None,
    as_patch: str | None,
    branches_prefix: str | None,
    base: str | None,
    message: str | None,
    directory: Path,
    output: Output,
) -> None:
    """Export attempts as git branches or as a patch.

    For a fork, its winner is exported. A single attempt can be exported even if it lost. The workspace, HEAD and the
    index stay as they are, and an existing branch is never moved. Each commit has trailers: Forkwise-Fork,
    Forkwise-Attempt, Forkwise-Tests and Forkwise-Cost.
    """
    from forkwise.cli.commands.forks import open_workspace
    from forkwise.cli.git_result import GitExport
    from forkwise.cli.private_mounts import enter_to_create

    if as_branch is None and as_patch is None and branches_prefix is None:
        raise click.UsageError("say what to make: --as-branch NAME, --as-patch or --branches-prefix PREFIX")
    if branches_prefix is not None and "." in name:
        raise click.UsageError("--branches-prefix exports all attempts of a fork: name the fork, not an attempt")
    enter_to_create(directory, None)  # an attempt that was kept may be visible only in a namespace
    workspace, ledger = open_workspace(directory)
    results: list[GitResult] = []
    patch = b""
    with ledger:
        exporter = GitExport(workspace)
        exporter.check(as_branch, branches_prefix, as_patch)
        if as_branch is not None or as_patch is not None:
            attempt = _find(ledger, name)
            with report(f"Exporting {attempt.id}"):
                result, patch = exporter.export(
                    ledger, attempt, branch=as_branch, patch=as_patch, message=message, base=base
                )
            results.append(result)
        if branches_prefix is not None:
            results += _export_all(exporter, ledger, name, branches_prefix, message, base)
    if output.as_json:
        text = patch.decode("utf-8", "replace") if as_patch == "-" else None
        output.document({"exported": [asdict(one) for one in results], "patch": text})
        return
    if as_patch == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(patch)
        sys.stdout.buffer.flush()
    for one in results:
        if one.branch is not None:
            click.echo(
                f"{one.attempt} is the git branch {one.branch} ({(one.commit or '')[:10]}).", err=as_patch == "-"
            )
        if one.patch is not None:
            output.line(f"{one.attempt} is the patch {one.patch}: {one.command}")


def _find(ledger: Ledger, name: str) -> AttemptRecord:
    if "." in name:
        return ledger.attempt(name)
    fork = ledger.fork(name)
    if fork.winner is not None:
        return ledger.attempt(fork.winner)
    attempts = join_first([attempt.id for attempt in ledger.attempts(fork.id)], 10)
    raise click.ClickException(f"fork {fork.id} has no winner; name an attempt: {attempts}")


def _export_all(
    exporter: object, ledger: Ledger, name: str, prefix: str, message: str | None, base: str | None
) -> list[GitResult]:
    from forkwise.cli.git_result import GitExport
    from forkwise.errors import ForkwiseWarning, GitError

    assert isinstance(exporter, GitExport)
    found: list[GitResult] = []
    attempts = [attempt for attempt in ledger.attempts(ledger.fork(name).id) if not attempt.no_change]
    with report("Exporting attempts", len(attempts)) as work:
        for attempt in attempts:
            branch = f"{prefix.rstrip('/')}/{attempt.id.rpartition('.')[2]}"
            try:
                found.append(exporter.export(ledger, attempt, branch=branch, message=message, base=base)[0])
            except GitError as error:
                warnings.warn(f"{attempt.id} is not a git branch: {error}", ForkwiseWarning, stacklevel=2)
            work.done += 1
    if not found:
        raise click.ClickException(f"no attempt of {name} could be exported as a git branch")
    return found
