"""The reference of the command line, written from the click commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from forkwise.cli import forkwise_command
from forkwise.cli.app import EXIT_CODES, Verb

__all__ = ["COMMANDS_MARKER", "format_commands", "walk_commands"]

#: The part of ``docs/reference/cli.md`` that the commands replace.
COMMANDS_MARKER = "commands"

_EXTRAS = re.compile(r"\s*\[([^\[\]]*)\]$")
_WORD = re.compile(r"(?<![\w`-])(--?[a-z][\w-]*(?:[=|][\w|]+)*|\$[A-Z_]+|[A-Z_]*[A-Z][A-Z_]+(?:\.N)?)(?![\w`])")


def walk_commands() -> Iterator[tuple[click.Context, click.Command]]:
    """Yield every command below ``forkwise``, each after the group that holds it, with a context of its own."""
    context = click.Context(forkwise_command, info_name="forkwise", **forkwise_command.context_settings)
    yield from _walk(context, forkwise_command)


def _walk(parent: click.Context, group: click.Group) -> Iterator[tuple[click.Context, click.Command]]:
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        if command is None or command.hidden:
            continue
        context = click.Context(command, info_name=name, parent=parent)
        yield context, command
        if isinstance(command, click.Group):
            yield from _walk(context, command)


def format_commands() -> str:
    """Return the reference of all commands as Markdown."""
    codes = [code.strip().partition(" ") for code in EXIT_CODES.split(",")]
    parts = [
        "## Commands",
        _table(
            ("command", "summary"),
            [
                (f"[`{context.command_path}`](#{_anchor(context)})", _escape(command.get_short_help_str(200)))
                for context, command in walk_commands()
            ],
        ),
        "## Exit codes",
        _table(("code", "meaning"), [(f"`{code}`", _escape(meaning)) for code, _, meaning in codes]),
        *(_format_command(context, command) for context, command in walk_commands()),
    ]
    return "\n\n".join(parts)


def _format_command(context: click.Context, command: click.Command) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"## {context.command_path} {{ #{_anchor(context)} }}", _format_help(command.help or "")]
    parts.append(f"```text\n{usage}\n```")
    options = [_format_option(context, option) for option in command.get_params(context)]
    rows = [row for row in options if row is not None]
    if rows:
        parts.append(_table(("option", "meaning", "default"), rows))
    if isinstance(command, Verb) and command.example:
        parts.append("```console\n" + "\n".join(f"$ {line}" for line in command.example) + "\n```")
    if isinstance(command, click.Group):
        names = [f"[`{name}`](#{_anchor(context)}-{name})" for name in command.list_commands(context)]
        parts.append(f"Commands: {', '.join(names)}.")
    return "\n\n".join(part for part in parts if part)


def _format_help(text: str) -> str:
    paragraphs = inspect.cleandoc(text).partition("\f")[0].split("\n\n")
    return "\n\n".join(
        # click prints a paragraph that begins with \b as it is.
        f"```text\n{paragraph.removeprefix(chr(8)).strip(chr(10))}\n```"
        if paragraph.startswith("\b")
        else _escape(" ".join(paragraph.split()))
        for paragraph in paragraphs
    )


def _format_option(context: click.Context, option: click.Parameter) -> tuple[str, str, str] | None:
    record = option.get_help_record(context)
    if not isinstance(option, click.Option) or record is None:
        return None
    declaration, meaning = record
    default, notes = "", []
    while found := _EXTRAS.search(meaning):
        meaning = meaning[: found.start()]
        for extra in found[1].split("; "):
            key, _, value = extra.partition(": ")
            if key == "default":
                default = value
            else:
                notes.append(extra)
    if not default and not option.is_flag and isinstance(option.default, str | int | float):
        default = str(option.default)
    note = f" ({', '.join(f'`{note}`' for note in notes)})" if notes else ""
    return f"`{declaration}`", _escape(meaning) + note, _escape(default)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in line) + " |" for line in lines)


def _escape(text: str) -> str:
    """Return text of a help message as Markdown, with options and placeholders as code."""
    text = re.sub(r"([\\*<>])", r"\\\1", " ".join(text.split()))
    return _WORD.sub(r"`\1`", text)


def _anchor(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")
