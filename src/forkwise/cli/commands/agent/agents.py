"""``forkwise continue``: the session of an attempt, reopened in its branch."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise.cli.app import Verb, json_option, workspace_option
from forkwise.display.output import Output, command_line

if TYPE_CHECKING:
    from forkwise.agents.preset import Agent
    from forkwise.ledger.records import AttemptRecord, ForkRecord

__all__ = ["continue_session"]


@click.command("continue", cls=Verb, example=("forkwise continue k3f9ab.2", "forkwise continue k3f9ab.2 -C ~/project"))
@click.argument("name", metavar="ATTEMPT")
@workspace_option
@json_option
def continue_session(name: str, directory: Path, output: Output) -> int:
    """Continue the session of an attempt's agent, in its branch.

    The agent starts on this terminal, in the sandbox of the attempt, with the conversation and the files as the attempt
    left them. The attempt must be over and its branch kept: made with --keep or --no-commit, or not decided yet. What
    the session changes becomes part of the branch, and is tested when you say so. The exit code is the agent's own.
    """
    from forkwise.cli.commands.forks import open_workspace
    from forkwise.cli.private_mounts import open_inside
    from forkwise.explore.recipe import Recipe
    from forkwise.fork.agent_paths import take_logins
    from forkwise.fork.stored_fork import StoredFork
    from forkwise.sandbox.run import shell_in_branch

    workspace, ledger = open_workspace(directory)
    with ledger:
        attempt = ledger.attempt(name)
        fork = ledger.fork(attempt.fork)
        found = StoredFork(ledger, workspace, fork.id).branch(attempt.branch)
    argv = _find_command(attempt, directory)
    if not attempt.is_over:
        raise click.ClickException(f"{attempt.id} is still {attempt.state}; continue it when it is over")
    if found is None:
        raise click.ClickException(_explain_missing(attempt, fork, argv))
    recipe = Recipe.from_json(fork.spec)
    branch = open_inside(directory, found.name)
    try:
        code = shell_in_branch(
            branch,
            argv,
            confinement=recipe.build_candidate_confinement(tuple(attempt.command or ()), attempt.variant),
            cwd=recipe.subdirectory or None,
        )
    finally:
        take_logins(branch)
    if output.as_json:
        record = {"id": attempt.id, "branch": branch.branch_path, "command": list(argv), "exit_code": code}
        output.document({"continued": record})
    elif not fork.is_over:
        output.line(f"Commit it with: {command_line(directory, 'pick', attempt.id)}")
    else:
        output.line(f"Commit it with: {command_line(directory, 'branch', 'commit', branch.name)}")
    return code


def _find_command(attempt: AttemptRecord, directory: Path) -> tuple[str, ...]:
    """Return the command that continues the session of an attempt. Raises ClickException if there is none."""
    from forkwise.agents.preset import load_agents

    agent: Agent | None = load_agents(directory).get(attempt.agent or "")
    if agent is None or not agent.resume:
        what = f"agent {attempt.agent!r} has no command for that" if attempt.agent else "it ran a command, not an agent"
        raise click.ClickException(f"{attempt.id} cannot be continued: {what}; see the key resume in agents.toml")
    if not attempt.session:
        raise click.ClickException(f"{attempt.id} cannot be continued: its agent did not say which session it had")
    return agent.resume_argv(attempt.session)


def _explain_missing(attempt: AttemptRecord, fork: ForkRecord, argv: tuple[str, ...]) -> str:
    if fork.winner == attempt.id and fork.commit is not None:
        return f"{attempt.id} was committed, and its session is yours: {shlex.join(argv)}"
    return (
        f"the branch of {attempt.id} was dropped, and its session with it: make attempts with --keep or --no-commit to "
        "continue any of them"
    )
