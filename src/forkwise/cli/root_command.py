"""The ``forkwise`` command itself, without its verbs.

``verbs`` adds all of them. A start that only looks at forks adds one, because loading the others takes longer.
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
    help="Workspace to work on, exactly this directory; also after the command.",
)
def forkwise_command(directory: Path | None) -> None:
    """Fork a directory into copy-on-write branches, try something in each, and commit one.

    Every command takes --json, and works on the workspace around the current directory: the nearest directory that is
    a git repository's top or has forkwise history, else the current directory itself. Another one is given with -C or
    in $FORKWISE_WORKSPACE. A commit can be undone with forkwise undo.
    """
