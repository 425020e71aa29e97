"""The exploring verbs: try something, once or many times, in branches of the workspace, and commit what wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from forkwise.cli.options import ExploreOptions, ExploringVerb, explore_options

if TYPE_CHECKING:
    from forkwise.explore.recipe import Recipe

__all__ = ["EXPLORING"]

_EXPAND = click.option(
    "--expand",
    multiple=True,
    metavar="LINE",
    help="A line for the shell to try upon what is kept.  [default: all that was tried at first]",
)
_DEPTH = click.option(
    "--depth", type=click.IntRange(min=1), default=2, show_default=True, metavar="N", help="How many levels."
)
_N = click.argument("n", metavar="N", type=click.IntRange(min=1))


def _explore(recipe: Recipe, asked: ExploreOptions) -> int:
    from forkwise.cli.exploration import explore

    return explore(recipe, asked)


@click.command(
    "run", cls=ExploringVerb, example=("forkwise run -- make deps", "forkwise run --agent claude 'fix the typos'")
)
@explore_options
def run(asked: ExploreOptions) -> int:
    """Try a command once; commit what it changed if it succeeds.

    It runs in a branch that stands at the workspace's own path. If it exits with 0, and the tests pass where --test
    names some, what it changed is committed, and forkwise undo takes that back. Else nothing was changed.
    """
    return _explore(asked.recipe("run"), asked)


@click.command(
    "speculate",
    cls=ExploringVerb,
    example=(
        "forkwise speculate -c ./fix_a.sh -c ./fix_b.sh --test 'pytest -q'",
        "forkwise speculate --agent claude --agent codex --test auto 'fix the failing test'",
    ),
)
@click.option("--all", "waits", is_flag=True, help="Wait for all, and take the best instead of the first.")
@explore_options
def speculate(asked: ExploreOptions, waits: bool) -> int:
    """Try several commands side by side; the first that succeeds is committed.

    Each -c is one, and so is each --agent. The others are ended as soon as one has won.
    """
    return _explore(asked.recipe("speculate", first_wins=not waits), asked)


@click.command(
    "best-of",
    cls=ExploringVerb,
    example=(
        "forkwise best-of 4 --agent claude --test auto 'fix the failing test'",
        "forkwise best-of 4 --test 'pytest -q' -- claude -p 'fix it' --dangerously-skip-permissions",
    ),
)
@_N
@explore_options
def best_of(asked: ExploreOptions, n: int) -> int:
    """Try a command N times side by side; the best success is committed.

    Of those that pass the tests the best has the highest score, if they write one to the file $FORKWISE_SCORE, and of
    equals the smallest diff.
    """
    return _explore(asked.recipe("best-of", n=n), asked)


@click.command(
    "reflexion",
    cls=ExploringVerb,
    example=(
        "forkwise reflexion --retries 3 --test 'pytest -q' -- ./agent.sh",
        "forkwise reflexion --agent claude --test auto 'fix the failing test'",
    ),
)
@click.option(
    "--retries", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="How often, at most."
)
@explore_options
def reflexion(asked: ExploreOptions, retries: int) -> int:
    """Try a command until it succeeds, and tell each attempt what was wrong with the last.

    Each starts from the workspace as it is. $FORKWISE_FEEDBACK names a file with the critique: the failing tests with
    their output, or the end of what the attempt printed. An --agent has it in its prompt.
    """
    return _explore(asked.recipe("reflexion", n=retries), asked)


@click.command(
    "tournament",
    cls=ExploringVerb,
    example=(
        "forkwise tournament 8 --judge ./compare.sh -- ./solve.sh",
        "forkwise tournament 4 --judge ./compare.sh --agent codex --test auto 'speed up parsing'",
    ),
)
@_N
@click.option(
    "--judge",
    required=True,
    metavar="LINE",
    help="Called with two directories; the better one is the first if it prints 0 or a, the second if 1 or b.",
)
@explore_options
def tournament(asked: ExploreOptions, n: int, judge: str) -> int:
    """Try a command N times side by side; a judge compares the successes two by two, and the last one is committed.

    A judge that prints nothing says it by its exit code, 0 or 1. It runs in a sandbox, and changes nothing.
    """
    return _explore(asked.recipe("tournament", n=n, judge=("sh", "-c", f'{judge} "$@"', "judge")), asked)


@click.command(
    "tree",
    cls=ExploringVerb,
    example=(
        "forkwise tree -c ./rewrite.sh -c ./patch.sh --expand ./polish.sh --test 'pytest -q'",
        "forkwise tree --agent claude --agent codex --depth 3 --test auto 'make the parser faster'",
    ),
)
@_EXPAND
@_DEPTH
@explore_options
def tree(asked: ExploreOptions, expand: tuple[str, ...], depth: int) -> int:
    """Try several commands side by side, then more upon the best of them, level after level; the best is committed."""
    return _explore(asked.recipe("tree", expand=expand, max_depth=depth), asked)


@click.command(
    "beam",
    cls=ExploringVerb,
    example=(
        "forkwise beam -c ./a.sh -c ./b.sh -c ./c.sh --expand ./refine.sh --width 2 --depth 3",
        "forkwise beam --agent claude --agent codex --width 2 --test auto 'make the parser faster'",
    ),
)
@_EXPAND
@_DEPTH
@click.option(
    "--width", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="How many are kept of each."
)
@explore_options
def beam(asked: ExploreOptions, expand: tuple[str, ...], depth: int, width: int) -> int:
    """Try several commands side by side, keep the best few of each level, and try more upon each of those.

    The best of the last level that had a success is committed.
    """
    return _explore(asked.recipe("beam", expand=expand, max_depth=depth, beam_width=width), asked)


def _fan_out(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        waves = tuple(int(number) for number in value.split(","))
    except ValueError:
        waves = ()
    if not waves or min(waves) < 1:
        raise click.BadParameter(f"{value!r} is no list of numbers like 1,2,4")
    return waves


@click.command(
    "cascade",
    cls=ExploringVerb,
    example=(
        "forkwise cascade --test 'pytest -q' -- ./agent.sh",
        "forkwise cascade --fan-out 1,3,9 --agent claude --test auto 'fix the failing test'",
    ),
)
@click.option(
    "--fan-out", default="1,2,4", show_default=True, callback=_fan_out, metavar="N,N,...", help="How many in each wave."
)
@explore_options
def cascade(asked: ExploreOptions, fan_out: tuple[int, ...]) -> int:
    """Try a command once, and if that fails in ever wider waves; the first success is committed.

    Each wave is told what was wrong with all before it, in the file that $FORKWISE_FEEDBACK names.
    """
    return _explore(asked.recipe("cascade", fan_out=fan_out), asked)


EXPLORING = (run, speculate, best_of, reflexion, tournament, tree, beam, cascade)
"""The verbs of this module."""
