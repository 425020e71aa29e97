"""What the exploring verbs have in common: their options, and what is made of them: a recipe."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Verb, stream_option, workspace_option
from forkwise.display.output import Output
from forkwise.errors import ForkwiseWarning

if TYPE_CHECKING:
    from forkwise.cli.agents import Agent
    from forkwise.explore.recipe import Allowance, Kind, Recipe
    from forkwise.files.store.changes import OnConflict
    from forkwise.sandbox.confinement import Network

__all__ = ["ExploreOptions", "ExploringVerb", "explore_options", "shell_line"]

_SEVERAL = ("speculate", "tree", "beam")
_SECONDS = click.FloatRange(min=0, min_open=True)


class ExploringVerb(Verb):
    """A verb that runs commands: what stands behind ``--`` is one, word for word, whatever it looks like."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, streams=True, **attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read what stands before ``--``, and keep what stands behind it as ``command``."""
        at = args.index("--") if "--" in args else len(args)
        # An option whose value may be left out would take the next word for it.
        own = [f"{word}=" if word == "--commit-to-git" else word for word in args[:at]]
        left = super().parse_args(ctx, own)
        ctx.params["command"] = tuple(args[at + 1 :])
        return left


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploreOptions:
    """What somebody asked an exploring verb for."""

    words: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    tests: str | None = None
    test_timeout: float | None = None
    repeat: int = 1
    timeout: float | None = None
    max_parallel: int | None = None
    confinement: str = "standard"
    network: Network | None = None
    writable: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    on_conflict: OnConflict = "refuse"
    no_commit: bool = False
    keep: bool = False
    patch: Path | None = None
    git: str | None = None
    message: str | None = None
    quiet: bool = False
    directory: Path
    output: Output

    def recipe(self, kind: Kind, **own: Any) -> Recipe:
        """All of it as a recipe; UsageError where it makes no sense."""
        from forkwise.explore.recipe import Recipe

        self._check()
        agents = self._agents()
        commands = [*map(shell_line, self.lines), *self._command(), *(a.argv(" ".join(self.words)) for a in agents)]
        if not commands:
            raise click.UsageError("there is nothing to try: give -- COMMAND, -c LINE, or --agent NAME 'PROMPT'")
        if len(commands) > 1 and kind not in _SEVERAL:
            raise click.UsageError(f"{kind} tries one command, not {len(commands)}; forkwise speculate tries several")
        if kind in ("tree", "beam"):
            own["expand"] = tuple(map(shell_line, own["expand"])) or tuple(commands)
        return Recipe(
            kind=kind,
            commands=tuple(commands),
            tests=self.tests,
            test_timeout=self.test_timeout,
            repeat=self.repeat,
            timeout=self.timeout,
            max_parallel=self.max_parallel,
            confinement=self.confinement,
            network=self.network,
            writable=tuple(os.path.abspath(os.path.expanduser(path)) for path in self.writable),
            environment=(*self._given_to(agents), *self._variables()),
            allowance=self._allowance(agents),
            commit=not self.no_commit,
            keep=self.keep or self.no_commit,
            on_conflict=self.on_conflict,
            **own,
        )

    def _check(self) -> None:
        if self.words and not self.agents:
            line = shlex.join([*self.words, *self.command])
            raise click.UsageError(f"a command stands behind two dashes, so that its options are its own: -- {line}")
        if self.agents and not any(word.strip() for word in self.words):
            raise click.UsageError(f"agent {self.agents[0]!r} needs a prompt: --agent {self.agents[0]} 'what to do'")
        if self.tests is not None and not self.tests.strip():
            raise click.UsageError("--test needs a command, or auto")
        if self.git is not None and self.no_commit:
            raise click.UsageError("--commit-to-git and --no-commit exclude each other")
        if self.message is not None and self.git is None:
            raise click.UsageError("-m is the message of a git commit: it goes with --commit-to-git")
        for path in self.writable:
            if not os.path.exists(os.path.expanduser(path)):
                raise click.UsageError(f"--writable {path}: there is nothing")

    def _agents(self) -> list[Agent]:
        from forkwise.cli.agents import find_agent, tables_of

        agents = [find_agent(name, self.directory) for name in self.agents]
        for agent in agents:
            if agent.source == tables_of(self.directory):  # whoever wrote that may mean anything by the name
                warnings.warn(f"agent {agent.name!r} is as {agent.source} says", ForkwiseWarning, stacklevel=1)
        return agents

    def _command(self) -> list[tuple[str, ...]]:
        """The command behind ``--``, which has to be there: it is run where the workspace is."""
        if not self.command:
            return []
        program = self.command[0]
        place = os.path.join(self.directory, program) if "/" in program else program
        if shutil.which(place) is None:
            raise click.UsageError(f"there is no program {program!r} that can be run")
        return [self.command]

    def _given_to(self, agents: Sequence[Agent]) -> list[tuple[str, str]]:
        given: dict[str, str] = {}
        for agent in agents:
            given |= agent.environment
            if self.confinement != "open":
                given |= agent.environment_when_confined
        return list(given.items())

    def _variables(self) -> list[tuple[str, str]]:
        pairs = [text.partition("=") for text in self.variables]
        return [(name, value) for name, given, value in pairs if given]

    def _allowance(self, agents: Sequence[Agent]) -> Allowance:
        from forkwise.explore.recipe import Allowance

        passed = [text for text in self.variables if "=" not in text]
        return Allowance(
            network="host" if agents and self.network is None else None,
            writable=tuple(dict.fromkeys(path for agent in agents for path in agent.writable)),
            passed=tuple(dict.fromkeys([*passed, *(name for agent in agents for name in agent.passes)])),
        )


def shell_line(line: str) -> tuple[str, ...]:
    """A line for the shell as a command."""
    return ("sh", "-c", line)


def _variable(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not value.partition("=")[0]:
            raise click.BadParameter(f"{value!r} is neither NAME=VALUE nor NAME")
    return values


_OPTIONS = (
    click.option("-c", "lines", multiple=True, metavar="LINE", help="A line for the shell to try."),
    click.option(
        "--agent", "agents", multiple=True, metavar="NAME", help="An agent to give the PROMPT to, with a network."
    ),
    click.option("--test", "tests", metavar="CMD|auto", help="The tests that an attempt has to pass; auto finds them."),
    click.option("--test-timeout", type=_SECONDS, metavar="SECONDS", help="For each run of the tests."),
    click.option(
        "--repeat",
        type=click.IntRange(min=1),
        default=1,
        metavar="N",
        help="Run the tests N times; a flaky one passes if it mostly does.",
    ),
    click.option("--timeout", type=_SECONDS, metavar="SECONDS", help="For each attempt, its tests not counted."),
    click.option("-j", "--max-parallel", type=click.IntRange(min=1), metavar="N", help="The most attempts at a time."),
    click.option(
        "--confinement",
        type=click.Choice(("open", "standard", "strict")),
        default="standard",
        show_default=True,
        help="What an attempt gets: all, all to read and its branch to write, or that with no network and no secrets.",
    ),
    click.option("--network", type=click.Choice(("host", "none", "private")), help="Another than the confinement's."),
    click.option("--writable", multiple=True, metavar="PATH", help="Something else that attempts may write to."),
    click.option(
        "--env",
        "variables",
        multiple=True,
        metavar="NAME[=VALUE]",
        callback=_variable,
        help="A variable for attempts; NAME alone passes yours on, whatever the confinement.",
    ),
    click.option(
        "--on-conflict",
        type=click.Choice(("refuse", "ours", "theirs", "merge")),
        default="refuse",
        show_default=True,
        help="Where somebody changed the workspace meanwhile: change nothing, take the winner's, keep theirs, merge.",
    ),
    click.option("--no-commit", is_flag=True, help="Commit nothing; keep all attempts for forkwise pick."),
    click.option("--keep", is_flag=True, help="Keep the branches of those that did not win."),
    click.option(
        "--output-patch",
        "patch",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the winner's diff there too.",
    ),
    click.option(
        "--commit-to-git",
        "git",
        metavar="[=BRANCH]",
        help="Make a git commit of the winner too: on what is checked out, or as a new BRANCH that is not.",
    ),
    click.option("-m", "--message", metavar="TEXT", help="The message of that git commit."),
    click.option("-q", "--quiet", is_flag=True, help="Only what came of it."),
)


def explore_options(function: Callable[..., int]) -> Callable[..., int]:
    """Give a verb the common options, and hand it what was said in them as one value."""

    @functools.wraps(function)
    def packed(**given: Any) -> int:
        common = {field.name: given.pop(field.name) for field in fields(ExploreOptions)}
        return function(ExploreOptions(**common), **given)

    words = click.argument("words", metavar="[PROMPT | -- COMMAND...]", nargs=-1)
    verb: Callable[..., int] = packed
    for option in (words, stream_option, workspace_option, *reversed(_OPTIONS)):
        verb = option(verb)
    return verb
