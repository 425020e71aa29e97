"""All verbs of the ``forkwise`` command, in one group. Each module of ``cli.commands`` holds related ones."""

from __future__ import annotations

from pathlib import Path

import click

import forkwise
from forkwise.cli.app import Commands
from forkwise.cli.commands.branch import branch
from forkwise.cli.commands.chat import chat
from forkwise.cli.commands.completion import completion
from forkwise.cli.commands.decide import abort, combine, pick, resume
from forkwise.cli.commands.doctor import doctor
from forkwise.cli.commands.explore import EXPLORE_VERBS
from forkwise.cli.commands.export import export
from forkwise.cli.commands.fork_report import report
from forkwise.cli.commands.forks import diff, ls, show, watch
from forkwise.cli.commands.history import du, gc, judges, log, undo
from forkwise.cli.commands.model import model
from forkwise.cli.commands.trust import trust
from forkwise.cli.commands.walk import walk
from forkwise.cli.commands.worktree import worktree

__all__ = ["forkwise_command"]


@click.group(
    "forkwise",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: forkwise doctor, then forkwise run -- COMMAND.",
)
@click.version_option(forkwise.__version__, prog_name="forkwise")
@click.option(
    "-C",
    "--workspace",
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Workspace to work on, exactly this directory; also after the command.",
)
def forkwise_command(directory: Path | None) -> None:
    """Fork a directory into copy-on-write branches, try something in each, and commit one.

    Every command takes --json, and works on the workspace around the current directory: the nearest directory that is
    a git repository's top or has forkwise history, else the current directory itself. Another one is given with -C or
    in $FORKWISE_WORKSPACE. A commit can be undone with forkwise undo.
    """


forkwise_command.add_section("Explore", EXPLORE_VERBS)
forkwise_command.add_section("Decide", (pick, combine, resume, abort, undo))
forkwise_command.add_section("Look", (ls, show, watch, diff, report, export, log, judges))
forkwise_command.add_section("Branch", (branch, worktree))
forkwise_command.add_section("Agent", (chat, walk, model))
forkwise_command.add_section("Maintenance", (doctor, trust, gc, du, completion))
