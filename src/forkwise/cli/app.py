"""What every verb has in common: its options, its example in ``--help``, and how its failures end."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import click

from forkwise.display.output import Output, conflict_record, printable
from forkwise.errors import (
    BranchingError,
    BranchNotFoundError,
    BranchStaleError,
    ConflictError,
    ForkNotFoundError,
    ForkResolvedError,
    ForkwiseWarning,
    MountError,
    NamespaceError,
)

__all__ = [
    "EXIT_CODES",
    "Commands",
    "Exit",
    "Stopped",
    "Verb",
    "exit_code",
    "failure_line",
    "failure_record",
    "hint",
    "json_option",
    "stream_option",
    "workspace_option",
]


class Exit(IntEnum):
    """The exit codes of every verb but ``branch shell``, which passes on what its command gave."""

    OK = 0
    ERROR = 1
    USAGE = 2
    CONFLICT = 3
    STALE = 4
    NOT_FOUND = 5
    UNAVAILABLE = 6
    NOBODY_WON = 7
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


EXIT_CODES = (
    "0 ok, 1 error, 2 usage, 3 conflict, 4 stale branch or decided fork, 5 not found, "
    "6 view or mount unavailable, 7 no attempt succeeded, 130 interrupted, 143 terminated"
)


class Stopped(click.Abort):
    """A signal asked for the end, and everything was put in order first. ``left`` says how things were left."""

    def __init__(self, number: signal.Signals, left: str) -> None:
        super().__init__()
        self.number = number
        self.left = left

    def __str__(self) -> str:
        told = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
        return f"{told[self.number]}; {self.left}"


_CODES: tuple[tuple[type[BaseException], Exit], ...] = (
    (ConflictError, Exit.CONFLICT),
    (BranchStaleError, Exit.STALE),
    (ForkResolvedError, Exit.STALE),
    (BranchNotFoundError, Exit.NOT_FOUND),
    (ForkNotFoundError, Exit.NOT_FOUND),
    (MountError, Exit.UNAVAILABLE),
    (NamespaceError, Exit.UNAVAILABLE),
    (click.Abort, Exit.INTERRUPTED),
    (click.UsageError, Exit.USAGE),
)

_HINTS: tuple[tuple[type[BaseException], str], ...] = (
    (BranchStaleError, "forkwise branch rebase brings it onto what is there now; forkwise branch abort drops it"),
    (BranchNotFoundError, "forkwise branch ls lists the branches there are"),
    (ForkNotFoundError, "forkwise ls lists the forks there are"),
)


def exit_code(error: BaseException) -> Exit:
    """The exit code that stands for an error."""
    if isinstance(error, Stopped):
        return Exit(128 + error.number)
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.ERROR)


def failure_line(error: BaseException) -> str:
    """What happened and to which thing, on one line."""
    message = _message(error)
    remedy = getattr(error, "remedy", "")
    if remedy and remedy not in message:
        message = f"{message.rstrip('.')}; {remedy}"
    return printable(" ".join(message.split("\n")))


def hint(error: BaseException, words: Sequence[str]) -> str:
    """What the reader can type next, or nothing; ``words`` are what they typed."""
    if isinstance(error, ConflictError) and {"commit", "pick", "resume"} & set(words):
        return "--on-conflict ours|theirs|merge decides who wins"
    if isinstance(error, ConflictError) and "combine" in words and error.branch is not None:
        return f"forkwise branch rebase {error.branch} brings it onto what is there now"
    if isinstance(error, ConflictError) and error.branch is not None and "undo" not in words:
        return f"what won is kept: forkwise branch commit {error.branch} --on-conflict ours|theirs|merge"
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{error.ctx.command_path} --help"
    return next((text for kind, text in _HINTS if isinstance(error, kind)), "")


def failure_record(error: BaseException) -> dict[str, Any]:
    """An error with all its facts, as JSON holds it."""
    record: dict[str, Any] = {
        "type": "Interrupted" if isinstance(error, click.Abort) else type(error).__name__,
        "message": _message(error),
        "exit_code": int(exit_code(error)),
    }
    if isinstance(error, OSError):
        record |= {"errno": error.errno, "paths": [str(p) for p in (error.filename, error.filename2) if p is not None]}
    if isinstance(error, BranchingError):
        record |= {name: _plain(value) for name, value in vars(error).items()}
    return {"error": record}


def _message(error: BaseException) -> str:
    if isinstance(error, click.Abort):
        return str(error) or "interrupted"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.strerror:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        return f"{' -> '.join(names)}: {error.strerror}" if names else error.strerror
    return str(error) or type(error).__name__


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return conflict_record(value)


F = TypeVar("F", bound=Callable[..., object])


def workspace_option(function: F) -> F:
    """``-C DIR``: which workspace is meant."""
    return click.option(
        "-C",
        "--workspace",
        "directory",
        metavar="DIR",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=".",
        help="The workspace.  [default: the current directory]",
    )(function)


def json_option(function: F) -> F:
    """``--json``: one document on stdout, also when it fails."""
    return _json_option("Print one JSON document instead of text.")(function)


def stream_option(function: F) -> F:
    """``--json`` of a verb that goes on for a while: a document a line, as things happen, also when it fails."""
    return _json_option("Print JSON lines instead of text: what happens as it happens, then the outcome.")(function)


def _json_option(text: str) -> Callable[[F], F]:
    def output(_context: click.Context, _parameter: click.Parameter, value: bool) -> Output:
        return Output(as_json=value)

    return click.option("--json", "output", is_flag=True, callback=output, help=text)


class Verb(click.Command):
    """A command whose help ends with an example and the exit codes. One that ``streams`` prints JSON as lines."""

    def __init__(self, *args: Any, example: Sequence[str] = (), streams: bool = False, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.example = tuple(example)
        self.streams = streams

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example and the exit codes."""
        with formatter.section("Example"):
            for line in self.example:
                formatter.write(f"{'':{formatter.current_indent}}$ {line}\n")
        _write_exit_codes(formatter)


class Commands(click.Group):
    """A group of verbs. As the root of them all it turns every failure into one line and one exit code."""

    command_class = Verb

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        super().format_epilog(ctx, formatter)
        _write_exit_codes(formatter)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run, and exit with what came of it."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            with _warnings_on_one_line():
                code = super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
                sys.stdout.flush()
        except BrokenPipeError:
            # Nobody reads on. Told by the exit code alone, and not once more when the interpreter flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(Exit.ERROR)
        except (click.ClickException, click.Abort, BranchingError, OSError) as error:
            verb = self.commands.get(words[0]) if words else None
            _fail(error, words, streams=isinstance(verb, Verb) and verb.streams)
        sys.exit(code if isinstance(code, int) else Exit.OK)


def _write_exit_codes(formatter: click.HelpFormatter) -> None:
    with formatter.section("Exit codes"):
        formatter.write_text(f"{EXIT_CODES}.")


def _wants_json(words: Sequence[str]) -> bool:
    """Whether ``--json`` was given, told from the words alone: what failed may be the reading of them."""
    own = words[: words.index("--")] if "--" in words else words
    return "--json" in own


def _fail(error: BaseException, words: Sequence[str], *, streams: bool) -> NoReturn:
    if _wants_json(words):
        output = Output(as_json=True)
        (output.stream if streams else output.document)(failure_record(error))
    else:
        _say("error", failure_line(error))
        if isinstance(error, ConflictError):
            for conflict in error.conflicts:
                if conflict.path not in str(error):  # the message names the first few
                    click.echo(printable(f"  {conflict}"), err=True)
        if advice := hint(error, words):
            _say("hint", advice)
    sys.exit(exit_code(error))


def _say(kind: str, text: str) -> None:
    click.echo(f"forkwise: {kind}: {text}", err=True)


@contextmanager
def _warnings_on_one_line() -> Iterator[None]:
    """Show forkwise's own warnings as people write them, and leave all others as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", ForkwiseWarning)
        otherwise = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, ForkwiseWarning):
                _say("warning", printable(str(message)))
            else:
                otherwise(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield
