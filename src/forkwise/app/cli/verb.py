"""What every verb has in common: its options, its example in ``--help``, and how its failures end."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import click

from forkwise.app.cli.failure import EXIT_CODES, Exit, exit_code, failure_line, failure_record, hint
from forkwise.app.cli.output import Output, printable
from forkwise.errors import BranchingError, ConflictError, ForkwiseWarning

__all__ = ["Commands", "Verb", "json_option", "stream_option", "workspace_option"]

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
