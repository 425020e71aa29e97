"""``forkwise chat`` and ``forkwise acp``: talk with an agent in a workspace, in panels, in lines, or in an editor."""

from __future__ import annotations

import os
import stat
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.cli.app import (
    StoppedBySignalError,
    Verb,
    has_extra,
    require_extra,
    stream_option,
    suggest_extra,
    workspace_option,
)
from forkwise.cli.stop_signal import run_until_stopped
from forkwise.display.output import Output, printable
from forkwise.errors import BranchingError

if TYPE_CHECKING:
    import signal

__all__ = ["acp", "chat"]

_model_option = click.option(
    "--model", metavar="MODEL", help="Model: anthropic:…, openai:…, local, or script:FILE for recorded answers."
)
_ask_option = click.option(
    "--ask", metavar="TOOL", multiple=True, help="Tool that needs your approval before each call. Repeatable."
)
_allow_option = click.option(
    "--allow-executable-config",
    is_flag=True,
    help="Merge changes to files that your machine runs by itself, such as git hooks, without asking.",
)


@click.command(
    "chat",
    cls=Verb,
    streams=True,
    example=("forkwise chat --model anthropic:claude-sonnet-4-6", "forkwise chat --model local --plain"),
)
@click.argument(
    "target", metavar="[DIR]", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@_model_option
@click.option("--conversation", metavar="ID", show_default="the last one", help="Conversation to continue.")
@click.option("--new", "is_new", is_flag=True, help="Start a new conversation.")
@_ask_option
@_allow_option
@click.option("--plain", is_flag=True, help="Print lines instead of panels: for a screen reader or a log.")
@workspace_option
@stream_option
def chat(
    target: Path | None,
    model: str | None,
    conversation: str | None,
    is_new: bool,
    ask: tuple[str, ...],
    allow_executable_config: bool,
    plain: bool,
    directory: Path,
    output: Output,
) -> None:
    """Chat with an agent in DIR, and fork the conversation.

    Compare the branches of a fork and continue with one of them. The conversation is saved, and continued next time.
    With --plain, with --json, and without a terminal, input is read from stdin and events are printed line by line. DIR
    defaults to the current directory.
    """
    import asyncio

    require_extra("agents", "forkwise chat")
    if conversation is not None and is_new:
        raise click.UsageError("--conversation and --new exclude each other")

    from forkwise.cli.private_mounts import enter_to_create

    directory = target or directory

    enter_to_create(directory, None)  # before threads start: only a single thread can enter a namespace
    options = {
        "model": model,
        "conversation": conversation,
        "is_new": is_new,
        "ask": ask,
        "allow_executable_config": allow_executable_config,
    }
    is_terminal = not plain and output.is_live and sys.stdin.isatty()
    if is_terminal and not has_extra("tui"):
        suggest_extra("tui", "shows the chat in panels")
    run = _chat_in_panels if is_terminal and has_extra("tui") else _chat_in_lines
    try:
        end_signal = asyncio.run(run(directory, output, **options))
    except BranchingError as error:
        from forkwise.chat.services import ChatModelError  # imported late: it would delay the first frame

        if isinstance(error, ChatModelError) and not error.model:
            raise click.UsageError(f"{error}; {error.remedy}") from error
        raise
    if end_signal is not None:
        raise StoppedBySignalError(end_signal, "the conversation was saved")


async def _chat_in_panels(directory: Path, _: Output, **options: Any) -> signal.Signals | None:
    from forkwise.chat import open_session
    from forkwise.tui.chat.app import chat_in_panels

    return await chat_in_panels(partial(open_session, directory, **options))


async def _chat_in_lines(directory: Path, output: Output, **options: Any) -> signal.Signals | None:
    from forkwise.chat.plain_ui import JsonLines, PlainLines, chat_in_lines

    def print_line(line: str) -> None:
        sys.stdout.write(f"{printable(line, keep=chr(9))}\n")
        sys.stdout.flush()

    show = JsonLines(print_line) if output.as_json else PlainLines(print_line)
    return await chat_in_lines(directory, show, **options)


@click.command(
    "acp", cls=Verb, example=("forkwise acp --model anthropic:claude-sonnet-4-6", "forkwise acp --ask execute")
)
@_model_option
@_ask_option
@_allow_option
def acp(model: str | None, ask: tuple[str, ...], allow_executable_config: bool) -> None:
    """Serve the chat to an editor over the Agent Client Protocol.

    The editor starts this command and talks to it on stdin and stdout. Each chat is a session of the editor; while a
    conversation is forked, each branch is a session too. /fork, /merge and the other commands are typed as prompts.
    """
    require_extra("acp", "forkwise acp")
    if not (_is_pipe(0) and _is_pipe(1)):
        raise click.UsageError(
            "forkwise acp is started by an editor, which talks to it on stdin and stdout: name this command in the "
            "editor's settings for agents"
        )
    from forkwise.cli.private_mounts import enter_to_create

    enter_to_create(Path.cwd(), None)  # before threads start: only a single thread can enter a namespace
    from forkwise.acp.chat_agent import ChatAgent, serve_stdio

    run_until_stopped(serve_stdio(ChatAgent(model=model, ask=ask, allow_executable_config=allow_executable_config)))


def _is_pipe(fd: int) -> bool:
    """Return whether a descriptor is a pipe or a socket, so that another program can answer on it."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
