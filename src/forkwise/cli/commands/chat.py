"""``forkwise chat``: a conversation with an agent in a workspace."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import Stopped, Verb, stream_option, workspace_option
from forkwise.cli.commands.forks import has_panels
from forkwise.display.output import Output, printable
from forkwise.errors import BranchingError

if TYPE_CHECKING:
    import signal

__all__ = ["chat"]


@click.command(
    "chat",
    cls=Verb,
    streams=True,
    example=("forkwise chat --model anthropic:claude-sonnet-4-6", "forkwise chat --model local --plain"),
)
@click.argument(
    "target", metavar="[DIR]", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--model", metavar="MODEL", help="Which model answers: anthropic:…, openai:…, local, or script:FILE to play one."
)
@click.option("--conversation", metavar="ID", help="Go on with this conversation.  [default: the last one]")
@click.option("--new", "is_new", is_flag=True, help="Begin a new conversation.")
@click.option("--ask", metavar="TOOL", multiple=True, help="Have this tool approved each time before it is called.")
@click.option("--plain", is_flag=True, help="Lines instead of panels: for a screen reader, or a log.")
@workspace_option
@stream_option
def chat(
    target: Path | None,
    model: str | None,
    conversation: str | None,
    is_new: bool,
    ask: tuple[str, ...],
    plain: bool,
    directory: Path,
    output: Output,
) -> None:
    """Talk with an agent that works in DIR, fork the conversation, compare its branches, and go on as one of them.

    The conversation is kept, and gone on with the next time. With --plain, with --json, and where there is no terminal,
    lines are read from stdin, and what happens is printed line by line.
    """
    import asyncio
    from importlib.util import find_spec

    if find_spec("pydantic_ai") is None:
        raise click.UsageError("chat needs pydantic-ai: pip install 'forkwise[agents]'")
    if conversation is not None and is_new:
        raise click.UsageError("--conversation goes on with one, --new begins another: say one of them")

    from forkwise.cli.private_mounts import enter_to_create

    directory = target or directory

    enter_to_create(directory, None)  # while there is one thread only: branches have to be mounted
    options = {"model": model, "conversation": conversation, "is_new": is_new, "ask": ask}
    in_panels = not plain and output.is_live and sys.stdin.isatty() and has_panels()
    try:
        ended_by = asyncio.run((_in_panels if in_panels else _in_lines)(directory, output, **options))
    except BranchingError as error:
        from forkwise.chat.services import ChatModelError  # late: it takes longer than a first frame may

        if isinstance(error, ChatModelError) and not error.model:
            raise click.UsageError(f"{error} {error.remedy}") from error
        raise
    if ended_by is not None:
        raise Stopped(ended_by, "what was said is kept")


async def _in_panels(directory: Path, _: Output, **options: Any) -> signal.Signals | None:
    from forkwise.chat import open_session
    from forkwise.tui.chat.app import chat_in_panels

    return await chat_in_panels(partial(open_session, directory, **options))


async def _in_lines(directory: Path, output: Output, **options: Any) -> signal.Signals | None:
    from forkwise.chat.plain_ui import JsonLines, PlainLines, chat_in_lines

    def print_line(line: str) -> None:
        sys.stdout.write(f"{printable(line, keep=chr(9))}\n")
        sys.stdout.flush()

    show = JsonLines(print_line) if output.as_json else PlainLines(print_line)
    return await chat_in_lines(directory, show, **options)
