"""``forkwise diff``: what turns one attempt into another, as text or in a diff tool."""

from __future__ import annotations

from pathlib import Path

import click

from forkwise.app.cli.output import Output
from forkwise.app.cli.verb import Verb, json_option, workspace_option

__all__ = ["diff"]


class _DiffVerb(Verb):
    """A verb with an option whose value may be left out, and which would else take the next word for it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``--tool`` as one without a value."""
        return super().parse_args(ctx, ["--tool=" if word == "--tool" else word for word in args])


@click.command(
    "diff", cls=_DiffVerb, example=("forkwise diff k3f9ab.1 | git apply", "forkwise diff --tool=vimdiff k3f9ab")
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="[B]", required=False)
@click.option(
    "--tool",
    metavar="[=TOOL]",
    help="Open a diff tool: git, pycharm, code, one that git knows, or a command with {parent} and {branches}.",
)
@workspace_option
@json_option
def diff(first: str, second: str | None, tool: str | None, directory: Path, output: Output) -> None:
    """Show what turns attempt A into attempt B, or what A alone changed.

    Both are attempts whose branches are still there (of a fork that runs, waits for a pick or was interrupted, or made
    with --keep), or names of branches. With --tool A can be a fork too: then all its attempts are shown beside what
    they were made from. --tool alone takes FORKWISE_DIFFTOOL, PyCharm, VS Code, or what git is set up with.
    """
    from forkwise.files.comparison import compare
    from forkwise.files.workspace import Workspace
    from forkwise.fork.remains import branch_of
    from forkwise.ledger.opening import open_ledger

    workspace = Workspace(directory)
    ledger = open_ledger(workspace)
    if tool is not None:
        if output.as_json:
            raise click.UsageError("--tool opens another program, and has nothing for --json to print")
        from forkwise.app.cli.difftool import open_tool, sides_of

        with ledger:
            sides = sides_of(ledger, workspace, first, second)
        open_tool(tool, workspace.path, sides, between=second is not None)
        return
    with ledger:
        found = [branch_of(ledger, workspace, name) for name in (first, second) if name is not None]
    text = found[0].diff() if len(found) == 1 else compare(*found)
    if output.as_json:
        old = found[0].parent if len(found) == 1 else found[0]
        output.document({"from": old.branch_path, "to": found[-1].branch_path, "diff": text})
    else:
        output.diff(text)
