"""The help of every command: complete, in plain English, and readable at 80 columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner

from forkwise.cli import forkwise_command

IDIOMS = re.compile(
    r"\b(whoever|somebody|for who|who (is|has|looks|asks|waits|wants|leaves|forks)|gone on with|had back|be had"
    r"|(is|was|are|were) told|goes on|comes? to rest|at it|what (is|was) said|take it back|given up|let go)\b",
    re.IGNORECASE,
)


def commands(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command and every group, with the words that name it."""
    yield words, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, *words, name)


COMMANDS = dict(commands(forkwise_command))
every_command = pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "forkwise")


def print_help(*words: str, code: int = 0, columns: int = 80) -> str:
    # Click leaves two columns of a terminal free. CliRunner does not, unless the width is given.
    done = CliRunner().invoke(forkwise_command, [*words], env={"COLUMNS": str(columns)}, terminal_width=columns - 2)
    assert done.exit_code == code, done.output
    return done.stdout


@every_command
def test_the_text_is_plain_english(words: tuple[str, ...]) -> None:
    text = " ".join(print_help(*words, "--help").split())
    assert not IDIOMS.search(text)
    command = COMMANDS[words]
    assert re.match(r"[A-Z][a-z]+ .*\.\n", command.help or ""), "a summary of one line, with a verb first"
    assert len((command.help or "").split("\n\n")) > 1, "and a sentence or two about the command"


@every_command
def test_every_option_has_help(words: tuple[str, ...]) -> None:
    for option in COMMANDS[words].params:
        if isinstance(option, click.Option):
            assert re.match(r"[A-Z][A-Za-z]+\b.*\.$", option.help or "", re.DOTALL), option.opts
            assert not re.match(r"(What|Which|How|Where|Whose|Only|Also|All|Another) ", option.help or ""), option.opts
            has_default = isinstance(option.default, str | int | float) and not option.is_flag
            assert not has_default or option.show_default, f"the default of {option.opts} is not shown"


@every_command
def test_no_line_is_wider_than_the_terminal(words: tuple[str, ...]) -> None:
    text = print_help(*words, "--help").partition("Examples:\n")[0]
    assert all(len(line) <= 80 for line in text.splitlines())


@every_command
def test_a_narrow_terminal_cuts_nothing_off(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(forkwise_command, [*words, "--help"], env={"COLUMNS": "40"})
    text = done.stdout.partition("Example")[0]
    names = re.compile(r"^ +(-|[\w-]+$)")  # an option with its value, or the name of a command, is never broken
    assert [line for line in text.splitlines() if len(line) > 40 and not names.match(line)] == []
    for inner in getattr(COMMANDS[words], "commands", {}).values():
        assert (inner.help or "").partition("\n")[0] in " ".join(text.split())


GROUPS = {words: command for words, command in COMMANDS.items() if isinstance(command, click.Group)}


@pytest.mark.parametrize("words", GROUPS, ids=lambda words: " ".join(words) or "forkwise")
def test_a_group_lists_every_command_on_one_line(words: tuple[str, ...]) -> None:
    group = GROUPS[words]
    text = print_help(*words, "--help")
    for name, command in group.commands.items():
        summary = (command.help or "").partition("\n")[0]
        assert re.search(rf"^  {name} +{re.escape(summary)}$", text, re.MULTILINE), name
    assert print_help(*words) == text, "without a command, the help is printed, and the exit code is 0"


def test_the_commands_are_grouped() -> None:
    sections = forkwise_command.sections  # type: ignore[attr-defined]
    assert list(sections) == ["Explore", "Decide", "Look", "Branch", "Agent", "Maintenance"]
    names = [name for section in sections.values() for name in section]
    assert sorted(names) == sorted(forkwise_command.commands)
    assert all(f"\n{title}:\n" in print_help() for title in sections)


def test_the_help_of_no_command_is_an_exit_without_error(command: Callable[..., Any]) -> None:
    for words in ((), ("branch",), ("model",)):
        done = command(*words)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Usage: forkwise")
