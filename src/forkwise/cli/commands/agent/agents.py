"""``forkwise agents``: the coding agents of this machine; ``forkwise continue``: a session, reopened in its branch."""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Verb, json_option, workspace_option
from forkwise.display.columns import Fit
from forkwise.display.output import Output, command_line
from forkwise.text.clean import truncate_line
from forkwise.text.redaction import find_secrets

if TYPE_CHECKING:
    from forkwise.agents.preset import Agent
    from forkwise.ledger.records import AttemptRecord, ForkRecord

__all__ = ["agents", "continue_session"]

_CHECK_PROMPT = "Reply with the word OK. Do not change any file."
_CHECK_TIMEOUT_S = 180.0
_VERSION_TIMEOUT_S = 10.0
_MOST_FORKS = 500
_VERSION = re.compile(r"\d+(?:\.\d+)+[\w.-]{0,20}")


class _Action(click.Choice[str]):
    """The word ``check``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word; for any other, raise UsageError with both forms of the command."""
        if value not in self.choices:
            raise click.UsageError(
                f"{value!r} is not 'check': forkwise agents lists all agents, and forkwise agents check NAME checks one"
            )
        return str(value)


@click.command("agents", cls=Verb, example=("forkwise agents", "forkwise agents check claude"))
@click.argument("action", metavar="[check", required=False, type=_Action(("check",)))
@click.argument("name", metavar="NAME]", required=False)
@workspace_option
@json_option
def agents(action: str | None, name: str | None, directory: Path, output: Output) -> int:
    """List the coding agents that --agent knows, or check one.

    The list says which are installed, in which version, whether a login or an API key was found, and when each was last
    used in this workspace. With check, the agent gets one tiny task in a branch that is then dropped. This shows
    whether the agent starts and whether its model answers. It costs one request.
    """
    if action is not None:
        if name is None:
            raise click.UsageError("check needs the name of an agent: forkwise agents check claude")
        return _check_agent(name, directory, output)
    rows = _list_agents(directory)
    if output.as_json:
        output.document({"agents": rows})
        return 0
    columns = ("agent", "installed", "version", "login", "last used", "")
    fit = Fit(wrapped=("",), optional=("last used", "version", "login", ""))
    output.table(columns, [_format_row(row) for row in rows], fit)
    return 0


def _format_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    used = "" if row["last_used"] is None else str(row["last_used"])[:16].replace("T", " ")
    note = "untested" if row["untested"] else ""
    note = note if row["program"] else f"{f'{note}; ' if note else ''}install: {row['install']}"
    return row["name"], "yes" if row["program"] else "no", row["version"] or "", row["login"] or "no", used, note


def _list_agents(directory: Path) -> list[dict[str, Any]]:
    from concurrent.futures import ThreadPoolExecutor

    from forkwise.agents.preset import load_agents

    found = load_agents(directory)
    programs = {name: shutil.which(agent.command[0]) for name, agent in found.items()}
    with ThreadPoolExecutor(8) as pool:
        top = f"{os.path.realpath(directory).rstrip('/')}/"  # an attempt may have changed a program there
        safe = [None if os.path.realpath(path or "").startswith(top) else path for path in programs.values()]
        versions = dict(zip(programs, pool.map(_find_version, safe), strict=True))
    used = _find_last_uses(directory)
    return [
        {
            "name": name,
            "program": programs[name],
            "version": versions[name],
            "login": _find_login(agent),
            "last_used": used.get(name),
            "untested": agent.untested,
            "stream": agent.stream,
            "source": str(agent.source),
            "install": agent.install,
        }
        for name, agent in sorted(found.items())
    ]


def _find_version(program: str | None) -> str | None:
    """Return what a program prints as its version; None if it prints nothing within the time limit."""
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stdout[:4000].decode(errors="replace"))
    return None if found is None else found[0]


def _find_login(agent: Agent) -> str | None:
    """Return where an agent's login was found: the name of its file or of a variable; None if there is neither."""
    for login in agent.paths.logins:
        if glob.glob(os.path.expanduser(login.file)):
            return "file"
    names = [name for name, text in os.environ.items() if find_secrets({name: text})]
    return next((name for name in names if any(fnmatchcase(name, pattern) for pattern in agent.passes)), None)


def _find_last_uses(directory: Path) -> dict[str, str]:
    from forkwise.cli.commands.forks import open_workspace
    from forkwise.display.subject import find_agents

    _, ledger = open_workspace(directory)
    used: dict[str, str] = {}
    with ledger:
        for fork in ledger.forks(limit=_MOST_FORKS):
            for name in find_agents(fork):
                used.setdefault(name, datetime.fromtimestamp(fork.started).astimezone().isoformat(timespec="seconds"))
    return used


def _check_agent(name: str, directory: Path, output: Output) -> int:
    from forkwise.cli.app import Exit
    from forkwise.cli.explore_options import ExploreOptions
    from forkwise.cli.private_mounts import enter_to_create
    from forkwise.files.workspace import Workspace

    options = ExploreOptions(agents=(name,), words=(_CHECK_PROMPT,), directory=directory, output=output)
    recipe = replace(
        options.recipe("run"), commit=False, keep=False, allow_empty=True, has_prompt=False, timeout=_CHECK_TIMEOUT_S
    )
    enter_to_create(directory, None)
    workspace = Workspace(directory)
    outcome = recipe.pattern(workspace)(workspace)
    [result] = outcome.all_results
    from forkwise.fork.fork import open_ledger

    with open_ledger(workspace) as ledger:
        attempt = ledger.attempt(str(result.attempt))
    if output.as_json:
        output.document(
            {
                "agent": name,
                "works": result.success,
                "reason": attempt.reason,
                "fault": attempt.fault,
                "answer": attempt.answer,
                "cost": attempt.cost,
                "seconds": attempt.wall,
            }
        )
    elif result.success:
        said = f", and says: {truncate_line(attempt.answer, 60)}" if attempt.answer else ""
        output.line(f"{name} works ({attempt.wall or 0.0:.1f} s){said}", "bold green")
    else:
        output.line(f"{name} does not work: {attempt.reason}", "bold red")
        output.line(f"Its output: {command_line(directory, 'show', attempt.id, '--output')}")
    return Exit.OK if result.success else Exit.NO_WINNER


@click.command("continue", cls=Verb, example=("forkwise continue k3f9ab.2", "forkwise continue k3f9ab.2 -C ~/project"))
@click.argument("name", metavar="ATTEMPT")
@workspace_option
@json_option
def continue_session(name: str, directory: Path, output: Output) -> int:
    """Continue the session of an attempt's agent, in its branch.

    The agent starts on this terminal, in the sandbox of the attempt, with the conversation and the files as the attempt
    left them. The attempt must be over, and its branch must still exist: its fork is undecided, or was made with --keep
    or --no-commit. What the session changes becomes part of the branch; nothing tests it automatically. The exit code
    is the agent's own.
    """
    from forkwise.cli.commands.forks import open_workspace
    from forkwise.cli.private_mounts import open_inside
    from forkwise.explore.recipe import Recipe
    from forkwise.fork.agent_paths.logins import take_logins
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
        what = (
            f"agent {attempt.agent!r} cannot continue a session" if attempt.agent else "it ran a command, not an agent"
        )
        raise click.ClickException(f"{attempt.id} cannot be continued: {what}; see the key resume in agents.toml")
    if not attempt.session:
        raise click.ClickException(f"{attempt.id} cannot be continued: its agent did not report a session id")
    return agent.resume_argv(attempt.session)


def _explain_missing(attempt: AttemptRecord, fork: ForkRecord, argv: tuple[str, ...]) -> str:
    if fork.winner == attempt.id and fork.commit is not None:
        return f"{attempt.id} was committed; continue its session with: {shlex.join(argv)}"
    return (
        f"the branch of {attempt.id} was dropped, and its session with it: make attempts with --keep or --no-commit to "
        "continue any of them"
    )
