"""The ``forkwise`` command: one module a noun. It asks the floors below and shows what they say."""

from __future__ import annotations

import click

import forkwise
from forkwise.app.cli.branch import branch
from forkwise.app.cli.chat import chat
from forkwise.app.cli.decisions import abort, combine, pick, resume
from forkwise.app.cli.diff import diff
from forkwise.app.cli.doctor import doctor
from forkwise.app.cli.explore import EXPLORING
from forkwise.app.cli.forks import ls, show
from forkwise.app.cli.history import gc, log, undo
from forkwise.app.cli.judges import judges
from forkwise.app.cli.model import model
from forkwise.app.cli.verb import Commands
from forkwise.app.cli.walk import walk
from forkwise.app.cli.watch import watch

__all__ = ["forkwise_command", "main"]


@click.group(
    "forkwise",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: forkwise doctor, then forkwise run -- COMMAND.",
)
@click.version_option(forkwise.__version__, prog_name="forkwise")
def forkwise_command() -> None:
    """Copy-on-write branches of any directory: fork it, try things, commit exactly one, take it back if need be.

    Every verb works on the current directory, or on the one named by -C, and takes --json.
    """


for _verb in (
    doctor,
    *EXPLORING,
    branch,
    ls,
    show,
    watch,
    diff,
    pick,
    combine,
    resume,
    abort,
    log,
    undo,
    gc,
    judges,
    chat,
    walk,
    model,
):
    forkwise_command.add_command(_verb)


def main() -> None:
    """Run the command line."""
    forkwise_command.main(prog_name="forkwise")
