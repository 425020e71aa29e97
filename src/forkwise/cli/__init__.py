"""The ``forkwise`` command: one module a noun. It asks the floors below and shows what they say."""

from __future__ import annotations

import click

import forkwise
from forkwise.cli.app import Commands
from forkwise.cli.commands.branch import branch
from forkwise.cli.commands.chat import chat
from forkwise.cli.commands.decide import abort, combine, pick, resume
from forkwise.cli.commands.doctor import doctor
from forkwise.cli.commands.explore import EXPLORING
from forkwise.cli.commands.forks import diff, ls, show, watch
from forkwise.cli.commands.history import gc, judges, log, undo
from forkwise.cli.commands.model import model
from forkwise.cli.commands.walk import walk

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
