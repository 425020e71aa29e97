"""The explore commands: try something in branches of the workspace, once or many times, and commit the winner."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.explore_options import ExploreOptions, find_judge
from forkwise.cli.options import ExploreVerb, explore_options, judge_option, summary_option

if TYPE_CHECKING:
    from forkwise.explore.recipe import Kind

__all__ = ["EXPLORE_VERBS"]

_EXPAND = click.option(
    "--expand",
    multiple=True,
    metavar="LINE",
    show_default="the commands of the first level",
    help="Shell command to try on top of a result. Repeatable.",
)
_DEPTH = click.option(
    "--depth", type=click.IntRange(min=1), default=2, show_default=True, metavar="N", help="Number of levels."
)
_CROSS_TESTS = click.option(
    "--cross-tests",
    is_flag=True,
    help="Among attempts that pass --test, prefer those that pass the tests that other attempts added.",
)


class _Number(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """The number of attempts, which can be left out: a word that is not a number is the first word of the prompt."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Convert a number; return another word as it is."""
        is_number = re.fullmatch(r"[+-]?[0-9.]+", str(value))
        return click.IntRange(min=1).convert(value, param, ctx) if is_number else str(value)


_N = click.argument("n", metavar="[N]", type=_Number(), required=False)


def _explore(kind: Kind, options: ExploreOptions, **own: Any) -> int:
    """Run an exploration; ``own`` are the fields of the recipe that only this kind has."""
    if os.geteuid() == 0 and not options.detach and options.on is None:  # other users first enter a namespace
        from forkwise.sandbox.launcher import prepare_forkserver

        prepare_forkserver()
    recipe = options.recipe(kind, **own)
    from forkwise.cli.exploration import explore

    return explore(recipe, options)


@click.command(
    "run", cls=ExploreVerb, example=("forkwise run -- make deps", "forkwise run --agent claude 'fix the typos'")
)
@explore_options
def run(options: ExploreOptions) -> int:
    """Try a command once, and commit its changes if it succeeds.

    The command runs in a branch that is mounted at the workspace's own path. It succeeds if it exits with 0 and, with
    --test, the tests pass. If it fails, the workspace stays as it was. Undo a commit with forkwise undo.
    """
    return _explore("run", options)


@click.command(
    "speculate",
    cls=ExploreVerb,
    example=(
        "forkwise speculate -c ./fix_a.sh -c ./fix_b.sh --test 'pytest -q'",
        "forkwise speculate --agent claude --agent codex --test auto 'fix the failing test'",
    ),
)
@click.option("--all", "waits", is_flag=True, help="Wait for all attempts, and commit the best instead of the first.")
@judge_option()
@explore_options
def speculate(options: ExploreOptions, waits: bool, judge: str | None) -> int:
    """Try several commands at once, and commit the first success.

    Each -c and each --agent is one attempt. As soon as one wins, the others are stopped.
    """
    if judge is not None and not waits:
        raise click.UsageError("--judge compares attempts that are over: it needs --all")
    return _explore("speculate", options, first_wins=not waits, **find_judge(judge))


@click.command(
    "best-of",
    cls=ExploreVerb,
    example=(
        "forkwise best-of 4 --agent claude --test auto 'fix the failing test'",
        "forkwise best-of 4 --test 'pytest -q' -- claude -p 'fix it' --dangerously-skip-permissions",
    ),
)
@_N
@judge_option()
@_CROSS_TESTS
@explore_options
def best_of(options: ExploreOptions, n: int | None, judge: str | None, cross_tests: bool) -> int:
    """Try a command N times at once, and commit the best success.

    The best attempt passes the tests and has the highest score, which it writes to the file $FORKWISE_SCORE. With equal
    scores, or without any, the smallest diff wins. With --judge, a judge compares each pair of the attempts with the
    best test results.
    """
    if cross_tests and options.tests is None:
        raise click.UsageError("--cross-tests needs to know how tests run: give --test 'COMMAND' or --test auto")
    return _explore("best-of", options, n=n, cross_tests=cross_tests, **find_judge(judge))


@click.command(
    "reflexion",
    cls=ExploreVerb,
    example=(
        "forkwise reflexion --retries 3 --test 'pytest -q' -- ./agent.sh",
        "forkwise reflexion --agent claude --test auto 'fix the failing test'",
    ),
)
@click.option(
    "--retries",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="Maximum number of attempts.",
)
@summary_option
@explore_options
def reflexion(options: ExploreOptions, retries: int, summary_model: str | None) -> int:
    """Retry a command until it succeeds, with feedback each time.

    Every attempt starts from the current workspace. The file $FORKWISE_FEEDBACK holds the feedback: the failing tests
    with their output, or the end of the attempt's output. With --agent, the feedback is added to the prompt.
    """
    return _explore("reflexion", options, n=retries, summary_model=summary_model)


@click.command(
    "tournament",
    cls=ExploreVerb,
    example=(
        "forkwise tournament 8 --judge ./compare.sh -- ./solve.sh",
        "forkwise tournament 4 --judge ./compare.sh --agent codex --test auto 'speed up parsing'",
    ),
)
@_N
@judge_option(required=True)
@explore_options
def tournament(options: ExploreOptions, n: int | None, judge: str) -> int:
    """Try a command N times side by side; a judge compares pairs.

    The judge compares two successful attempts at a time, until one is left, which is committed. If it is a command that
    prints nothing, its exit code is the answer: 0 or 1. It runs in a sandbox, and its changes are dropped. A judge is
    asked about each pair in both orders: if it contradicts itself, the better score wins. If it fails to decide between
    attempts with equal scores, nothing is committed: the fork waits for a pick, and the exit code is 8.
    """
    return _explore("tournament", options, n=n, **find_judge(judge))


@click.command(
    "tree",
    cls=ExploreVerb,
    example=(
        "forkwise tree -c ./rewrite.sh -c ./patch.sh --expand ./polish.sh --test 'pytest -q'",
        "forkwise tree --agent claude --agent codex --depth 3 --test auto 'make the parser faster'",
    ),
)
@_EXPAND
@_DEPTH
@click.option(
    "--on-dead-end",
    type=click.Choice(["keep", "fail"]),
    default="keep",
    show_default=True,
    help="Action if all attempts of a later level fail: keep the best attempt so far, or fail.",
)
@explore_options
def tree(options: ExploreOptions, expand: tuple[str, ...], depth: int, on_dead_end: str) -> int:
    """Try several commands, then build on the best, level by level.

    Each level forks the best branch of the level before. The best attempt of the last level that has a success is
    committed.
    """
    return _explore("tree", options, expand=expand, max_depth=depth, on_dead_end=on_dead_end)


@click.command(
    "beam",
    cls=ExploreVerb,
    example=(
        "forkwise beam -c ./a.sh -c ./b.sh -c ./c.sh --expand ./refine.sh --width 2 --depth 3",
        "forkwise beam --agent claude --agent codex --width 2 --test auto 'make the parser faster'",
    ),
)
@_EXPAND
@_DEPTH
@click.option(
    "--width",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="Number of attempts to keep per level.",
)
@explore_options
def beam(options: ExploreOptions, expand: tuple[str, ...], depth: int, width: int) -> int:
    """Try several commands, then build on the best few per level.

    Like tree, but each level forks the best --width branches of the level before. The best attempt of the last level
    that has a success is committed.
    """
    return _explore("beam", options, expand=expand, max_depth=depth, beam_width=width)


def _parse_fan_out(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        waves = tuple(int(number) for number in value.split(","))
    except ValueError:
        waves = ()
    if not waves or min(waves) < 1:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 1,2,4")
    return waves


@click.command(
    "cascade",
    cls=ExploreVerb,
    example=(
        "forkwise cascade --test 'pytest -q' -- ./agent.sh",
        "forkwise cascade --fan-out 1,3,9 --agent claude --test auto 'fix the failing test'",
    ),
)
@click.option(
    "--fan-out",
    default="1,2,4",
    show_default=True,
    callback=_parse_fan_out,
    metavar="N,N,...",
    help="Number of attempts in each wave.",
)
@summary_option
@explore_options
def cascade(options: ExploreOptions, fan_out: tuple[int, ...], summary_model: str | None) -> int:
    """Try a command in growing waves, until one attempt succeeds.

    A wave starts only if all attempts before it failed. Each attempt gets feedback on those failures in the file
    $FORKWISE_FEEDBACK. The first success is committed.
    """
    return _explore("cascade", options, fan_out=fan_out, summary_model=summary_model)


@click.command(
    "refine",
    cls=ExploreVerb,
    example=(
        "forkwise refine 3 --rounds 2 --test 'pytest -q' -- ./agent.sh",
        "forkwise refine 4 --rounds 3 --agent claude --test auto 'fix the failing tests'",
    ),
)
@_N
@click.option(
    "--rounds", type=click.IntRange(min=1), default=2, show_default=True, metavar="N", help="Number of rounds."
)
@summary_option
@explore_options
def refine(options: ExploreOptions, n: int | None, rounds: int, summary_model: str | None) -> int:
    """Try a command N times per round, and build on the best so far.

    From the second round on, attempts start from the files of the best attempt so far, in branches of its branch. The
    file $FORKWISE_FEEDBACK says what that attempt and the others did. A failed attempt can be built on too if some of
    its tests pass. The best success of all rounds is committed.
    """
    return _explore("refine", options, n=n, rounds=rounds, summary_model=summary_model)


@click.command(
    "playoff",
    cls=ExploreVerb,
    example=(
        "forkwise playoff 8 --test 'pytest -q' -- ./agent.sh",
        "forkwise playoff 16 --judge ./compare.sh --agent claude --test auto 'speed up parsing'",
    ),
)
@_N
@click.option(
    "--group",
    type=click.IntRange(min=2),
    default=4,
    show_default=True,
    metavar="N",
    help="Number of attempts per group.",
)
@judge_option(show_default="the scores")
@click.option(
    "--max-attempts",
    "budget",
    type=click.IntRange(min=1),
    metavar="N",
    show_default="no limit",
    help="Number of attempts in all rounds together.",
)
@summary_option
@explore_options
def playoff(
    options: ExploreOptions,
    n: int | None,
    group: int,
    judge: str | None,
    budget: int | None,
    summary_model: str | None,
) -> int:
    """Try a command N times; judge, refine the winners, repeat.

    Attempts compete in groups, and each group has one winner. While there are several winners, each one is followed by
    another attempt, which finds in the file $FORKWISE_FEEDBACK what the winners did, and which replaces its winner if
    it is better. Then the winners are grouped again. The last one left is committed. Without --judge, the better score
    wins, as in best-of. A judge is asked about each pair in both orders; if it contradicts itself, the better score
    wins.
    """
    if budget is not None and n is not None and budget < n:
        raise click.UsageError(f"--max-attempts {budget} is less than the {n} attempts of the first round")
    own = {"n": n, "group": group, "budget": budget, "summary_model": summary_model}
    return _explore("playoff", options, **own, **find_judge(judge))


EXPLORE_VERBS = (run, speculate, best_of, reflexion, tournament, tree, beam, cascade, refine, playoff)
"""The commands of this module."""
