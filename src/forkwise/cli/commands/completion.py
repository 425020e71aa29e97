"""``forkwise completion``: print the script that completes words in a shell."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from forkwise.cli.app import Verb, json_option, workspace_option
from forkwise.display.output import Output

__all__ = ["completion"]


@click.command(
    "completion",
    cls=Verb,
    example=(
        'eval "$(forkwise completion bash)"  # in ~/.bashrc; for zsh, in ~/.zshrc after compinit',
        "forkwise completion fish > ~/.config/fish/completions/forkwise.fish",
    ),
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@workspace_option
@json_option
def completion(shell: str, directory: Path, output: Output) -> None:  # noqa: ARG001 - every command has the option
    """Print the completion script for bash, zsh or fish.

    It completes commands, options, branches, agents, models, test commands, and the ids of forks, attempts and commits.
    """
    from forkwise.cli.completion import build_script, load_grammar

    load_grammar()  # builds the cache now, so that the first completion is as fast as the others
    if output.as_json:
        output.document({"shell": shell, "script": build_script(shell)})
    else:
        sys.stdout.write(build_script(shell))
