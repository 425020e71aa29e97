"""The ``forkwise`` command itself, without its verbs.

``verbs`` adds all of them. For a command that only looks at forks, a single verb is added, because loading the others
would take longer than the command itself.
"""

from __future__ import annotations

from pathlib import Path

import click

import forkwise
from forkwise.cli.app import Commands

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
    help="Workspace to work on: exactly this directory. Can also follow the command.",
)
def forkwise_command(directory: Path | None) -> None:
    """Fork a directory into copy-on-write branches, try something in each, and commit one.

    A command works on the workspace that contains the current directory: the nearest directory upwards that is the top
    of a git repository or has forkwise history, or else the current directory itself. Name another one with -C or
    $FORKWISE_WORKSPACE. With --json, commands print JSON. Undo a commit with forkwise undo.
    """
