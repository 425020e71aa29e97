"""The options that commands share, as decorators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from forkwise.cli.app import Verb, find_subdirectory, require_extra, stream_option, workspace_option
from forkwise.cli.explore_options import MODEL, ExploreOptions, check_model
from forkwise.cli.quantity import Duration, Expense, Processors, Size
from forkwise.cli.variation import STDIN, check_prompt, read_prompt

__all__ = [
    "ExploreVerb",
    "allow_host_option",
    "confinement_option",
    "conflict_option",
    "deny_host_option",
    "detach_option",
    "explore_options",
    "frozen_option",
    "host_port_option",
    "ignored_option",
    "judge_option",
    "landlock_option",
    "network_option",
    "notify_option",
    "retest_option",
    "servers_option",
    "summary_option",
]


class ExploreVerb(Verb):
    """A command that runs other commands: the words after ``--`` are one of them, even if they look like options."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, streams=True, **attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before ``--``, and store those after it as ``command``."""
        end = args.index("--") if "--" in args else len(args)
        # The values of these options are optional; without the equals sign, click would take the next word as value.
        own = [f"{word}=" if word in ("--commit-to-git", "--as-patch") else word for word in args[:end]]
        rest = super().parse_args(ctx, own)
        ctx.params["command"] = tuple(args[end + 1 :])
        return rest


def judge_option(**attributes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--judge``."""
    return click.option(
        "--judge",
        metavar="LINE|model:NAME",
        help="Shell command that gets two directories and prints which one is better (0 or a, 1 or b), or a model that "
        "compares diffs: model:openai:gpt-5, model:local. It compares only the attempts with the best test results.",
        **attributes,
    )


def _check_summary_model(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        value = value.removeprefix(MODEL)
        check_model(value, f"--summary-model {value}", "a summary model")
    return value


summary_option = click.option(
    "--summary-model",
    metavar="NAME",
    callback=_check_summary_model,
    show_default="none: facts and output",
    help="Model that summarises attempts for later ones, such as openai:gpt-5 or local.",
)
"""The option ``--summary-model``."""


def _check_variables(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not value.partition("=")[0]:
            raise click.BadParameter(f"{value!r} is neither NAME=VALUE nor NAME")
    return values


def check_cluster(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Raise UsageError unless the value is ``ray`` or ``ray://HOST:PORT``, and Ray is installed."""
    if value is None:
        return None
    host, _, port = value.removeprefix("ray://").rpartition(":")
    if value != "ray" and not (value.startswith("ray://") and host and port.isascii() and port.isdecimal()):
        raise click.BadParameter(
            f"{value!r} names no cluster: give ray, or ray://HOST:PORT with the port of the Ray client server"
        )
    require_extra("ray", "an attempt on a cluster")
    return value


def _check_stop_rules(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    from forkwise.explore.stop_rule import parse_stop_rule

    for value in values:
        try:
            parse_stop_rule(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return values


def conflict_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--on-conflict`` with this help."""
    return click.option(
        "--on-conflict",
        type=click.Choice(("refuse", "ours", "theirs", "merge")),
        default="refuse",
        show_default=True,
        help=text,
    )


confinement_option = click.option(
    "--confinement",
    type=click.Choice(("open", "standard", "strict")),
    default="standard",
    show_default=True,
    help="Sandbox level: open restricts nothing, standard allows writes only to the branch, strict also blocks the "
    "network and most environment variables.",
)
"""The option ``--confinement``."""

network_option = click.option(
    "--network",
    type=click.Choice(("auto", "host", "none", "private", "proxy")),
    show_default="auto; none with strict, host with open",
    help="Network of the sandbox: host is this machine's; proxy and private have their own ports and loopback, and "
    "reach the outside through forkwise's proxy or through pasta; auto is proxy if that works, else host.",
)
"""The option ``--network``."""

allow_host_option = click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="GLOB",
    help="Host that may be reached, such as '*.example.org'; all others are blocked. Repeatable; needs the proxy "
    "network.",
)
"""The option ``--allow-host``."""

deny_host_option = click.option(
    "--deny-host",
    "denied_hosts",
    multiple=True,
    metavar="GLOB",
    help="Host to block, even if --allow-host matches it. Repeatable; needs the proxy network.",
)
"""The option ``--deny-host``."""

host_port_option = click.option(
    "--host-port",
    "host_ports",
    multiple=True,
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Port of this machine's loopback that may be reached, under the same number, such as a database or a model "
    "server. Repeatable.",
)
"""The option ``--host-port``."""

landlock_option = click.option(
    "--landlock-instead",
    is_flag=True,
    help="Use Landlock if namespaces are not allowed, as in a default container; it only confines writes to the "
    "branch.",
)
"""The option ``--landlock-instead``."""

allow_option = click.option(
    "--allow-executable-config",
    is_flag=True,
    help="Commit even files that make your machine run something, such as git hooks, editor tasks or .envrc.",
)
"""The option ``--allow-executable-config``."""

frozen_option = click.option(
    "--frozen", is_flag=True, help="Show attempts the workspace as it was at the start (btrfs, or XFS with reflinks)."
)
"""The option ``--frozen``."""

servers_option = click.option(
    "--no-servers", is_flag=True, help="Do not start the servers listed in .forkwise/servers.toml."
)
"""The option ``--no-servers``."""

retest_option = click.option(
    "--no-retest", is_flag=True, help="Commit without testing again if the workspace changed since the tests passed."
)
"""The option ``--no-retest``."""

ignored_option = click.option(
    "--include-ignored",
    is_flag=True,
    help="Commit ignored files as well: those that git ignores; outside a git repository, caches and byte code.",
)
"""The option ``--include-ignored``."""

detach_option = click.option(
    "--detach", is_flag=True, help="Run in the background: print the fork's id immediately, for use with forkwise wait."
)
"""The option ``--detach``."""

notify_option = click.option(
    "--notify",
    type=Duration(allows_zero=True),
    metavar="DURATION",
    show_default="[notify] in your config.toml",
    help="Ring the terminal's bell and show a notification (OSC 9) if the result took at least this long.",
)
"""The option ``--notify``."""


_OPTIONS = (
    click.option(
        "-c",
        "lines",
        multiple=True,
        metavar="LINE",
        help="Shell command to try. Repeatable with speculate, tree and beam.",
    ),
    click.option(
        "--agent",
        "agents",
        multiple=True,
        metavar="NAME[:MODEL]",
        help="Coding agent to run with PROMPT and network access: claude, codex, gemini, ... (see forkwise agents). "
        "Repeatable: attempts use the agents in turn.",
    ),
    click.option(
        "--agent-args",
        "agent_arguments",
        metavar="WORDS",
        help="Extra arguments for the agent, quoted as in a shell: '--max-turns 20'.",
    ),
    click.option(
        "--prompt-file",
        metavar="FILE",
        help="File that contains the prompt; - reads standard input. Commands find the prompt in the file "
        "$FORKWISE_PROMPT.",
    ),
    click.option("--model", metavar="NAME", help="Model for the agent; commands get it as $FORKWISE_MODEL."),
    click.option(
        "--vary",
        multiple=True,
        metavar="KEY=VALUE,...",
        help="Values for the attempts to use in turn. KEY is model, agent, prompt, args or env.NAME; @FILE reads one "
        "value per line. Repeat it for more keys: every combination is tried.",
    ),
    click.option(
        "--variations",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="TOML or YAML file with one [[attempt]] table per variation: what that attempt does differently.",
    ),
    click.option(
        "--test", "tests", metavar="CMD|auto", help="Test command that an attempt must pass; auto detects it."
    ),
    click.option(
        "--test-timeout",
        type=Duration(allows_zero=True),
        metavar="DURATION",
        default=600.0,
        show_default="10m",
        help="Time limit per test run, such as 90s or 30m; 0 for none.",
    ),
    click.option(
        "--repeat",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help="Number of test runs; a flaky test passes if most of its runs do.",
    ),
    click.option(
        "--seal",
        multiple=True,
        metavar="GLOB",
        help="More paths that tests take from the original workspace, not from the attempt; a leading ! exempts paths. "
        "Repeatable.",
    ),
    click.option("--unsealed", is_flag=True, help="Test attempts with their own versions of tests and configuration."),
    click.option(
        "--test-from",
        "held_out",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Directory of tests to copy over the workspace's own before testing. Attempts cannot see it.",
    ),
    click.option("--no-baseline", is_flag=True, help="Skip the test run on the unchanged workspace."),
    click.option(
        "--timeout",
        type=Duration(),
        metavar="DURATION",
        show_default="no limit",
        help="Time limit per attempt, excluding tests, such as 600 (seconds) or 10m.",
    ),
    click.option(
        "--budget",
        "budgets",
        type=Expense(),
        multiple=True,
        metavar="AMOUNT",
        show_default="no limit",
        help="Budget for all attempts together: running time (30m), dollars (2usd) or tokens (500ktokens). Once it "
        "is spent, running attempts are stopped and finished ones are judged. Repeatable.",
    ),
    click.option(
        "--attempt-budget",
        "attempt_budgets",
        type=Expense(),
        multiple=True,
        metavar="AMOUNT",
        show_default="no limit",
        help="Budget for each attempt by an agent: dollars (0.50usd) or tokens (200ktokens). Once it is spent, the "
        "attempt is stopped. Repeatable.",
    ),
    click.option(
        "--memory",
        type=Size(),
        metavar="SIZE",
        show_default="no limit",
        help="Memory limit per attempt, and per test run, such as 2G.",
    ),
    click.option(
        "--cpus",
        type=Processors(),
        metavar="N",
        show_default="no limit",
        help="CPU limit per attempt, and per test run, such as 1.5.",
    ),
    click.option(
        "--gpus",
        type=click.FloatRange(min=0.0, min_open=True),
        metavar="N",
        help="Number of GPUs to reserve for each attempt on its node, with --on.",
    ),
    click.option(
        "--on",
        metavar="ray[://HOST:PORT]",
        callback=check_cluster,
        help="Ray cluster to run attempts and tests on. Plain ray uses $RAY_ADDRESS, or else starts a cluster on this "
        "machine.",
    ),
    click.option(
        "--store",
        envvar="FORKWISE_STORE",
        show_envvar=True,
        metavar="DIR|URL",
        show_default="Ray's own",
        help="Store for the files sent to and from the nodes, with --on: s3://…, or a directory that all nodes share.",
    ),
    click.option(
        "-j",
        "--max-parallel",
        type=click.IntRange(min=1),
        metavar="N",
        show_default="number of CPUs + 4, at most 32",
        help="Number of attempts to run at the same time.",
    ),
    click.option(
        "--per-provider",
        type=click.IntRange(min=1),
        metavar="N",
        show_default="no limit",
        help="Limit on the number of simultaneous attempts by agents that use the same provider.",
    ),
    click.option(
        "--provider-retries",
        type=click.IntRange(min=0, max=100),
        metavar="N",
        default=5,
        show_default=True,
        help="Number of times to wait and restart an attempt if its provider is overloaded or refuses it.",
    ),
    click.option(
        "--stop-when",
        multiple=True,
        metavar="RULE",
        callback=_check_stop_rules,
        help="Stop making attempts once a rule applies: all-green (one passes all tests), no-gain:N (N attempts in a "
        "row do not improve on the best) or cost:USD. Repeatable.",
    ),
    confinement_option,
    network_option,
    allow_host_option,
    deny_host_option,
    host_port_option,
    landlock_option,
    click.option(
        "--writable", multiple=True, metavar="PATH", help="Path outside the branch that attempts may write to."
    ),
    click.option(
        "--show",
        "shown",
        multiple=True,
        metavar="PATH",
        help="Path with credentials that attempts and tests may read although the sandbox hides it by default.",
    ),
    click.option(
        "--env",
        "variables",
        multiple=True,
        metavar="NAME[=VALUE]",
        callback=_check_variables,
        help="Environment variable for attempts. NAME alone passes on your own value, even of a variable that the "
        "sandbox hides.",
    ),
    conflict_option(
        "Action if the workspace changed meanwhile: refuse to commit, take ours (the winner's), keep theirs, or merge."
    ),
    allow_option,
    ignored_option,
    click.option("--allow-empty", is_flag=True, help="Let an attempt succeed, and win, even if it changed nothing."),
    retest_option,
    frozen_option,
    servers_option,
    click.option("--no-commit", is_flag=True, help="Commit nothing; keep all attempts for forkwise pick."),
    click.option("--keep", is_flag=True, help="Keep the branches of the attempts that lost."),
    click.option(
        "--output-patch",
        "patch",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the winner's diff to FILE as well.",
    ),
    click.option(
        "--report",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help="Write a report to DIR: an HTML page, a summary for $GITHUB_STEP_SUMMARY, JUnit XML of the winner, and "
        "JSON.",
    ),
    click.option(
        "--commit-to-git",
        "git",
        metavar="[=BRANCH]",
        help="Make a git commit as well: on the current git branch, or on a new BRANCH that is not checked out.",
    ),
    click.option(
        "--as-branch",
        metavar="NAME",
        help="Make the winner a new git branch NAME; the workspace, HEAD and the index stay as they are.",
    ),
    click.option(
        "--as-patch",
        metavar="[=FILE]",
        help="Write the winner as a patch for git am, by default to ATTEMPT.patch; the workspace stays as it is.",
    ),
    click.option(
        "--branches-prefix",
        metavar="PREFIX",
        help="Make every attempt that changed something a git branch PREFIX/N; the workspace stays as it is.",
    ),
    click.option(
        "-m",
        "--message",
        metavar="TEXT",
        show_default="the prompt or the command",
        help="Message of the git commit.",
    ),
    detach_option,
    notify_option,
    click.option("-q", "--quiet", is_flag=True, help="Print only the result."),
)


def _find_prompt(common: dict[str, Any]) -> None:
    """Read the prompt from a file or from standard input if one of them was given, and store it as the only word."""
    words, file = common["words"], common["prompt_file"]
    if words == (STDIN,) and file is None:
        file = common["prompt_file"] = STDIN
    elif words and file is not None:
        raise click.UsageError("the prompt comes from the command line or from --prompt-file, not from both")
    if file is not None:
        common["words"] = (read_prompt(file),)
    else:
        check_prompt(" ".join(words))


def explore_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the shared options to a command, and pass them to ``function`` as one ExploreOptions."""

    @functools.wraps(function)
    def call(**arguments: Any) -> int:
        names = [field.name for field in fields(ExploreOptions) if field.name in arguments]
        common = {name: arguments.pop(name) for name in names}
        if isinstance(arguments.get("n"), str):  # N was left out: this word is the first one of the prompt
            common["words"] = (arguments["n"], *common["words"])
            arguments["n"] = None
        _find_prompt(common)
        return function(ExploreOptions(**common, subdirectory=find_subdirectory()), **arguments)

    words = click.argument("words", metavar="[PROMPT | -- COMMAND...]", nargs=-1)
    command: Callable[..., int] = call
    for option in (words, stream_option, workspace_option, *reversed(_OPTIONS)):
        command = option(command)
    return command
