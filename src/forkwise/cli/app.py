"""Shared behaviour of all commands: the common options, the help pages, and the way a failure is reported.

A failure becomes one line on stderr (or one JSON document) and an exit code. That includes an optional dependency that
is not installed: the report names the extra to install.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, NoReturn, TextIO, TypeVar

import click

from forkwise.cli.stop_signal import describe_stop_signal, find_stop_signal, forget_stop_signal
from forkwise.display.output import FOUND_WORKSPACE, Output, command_line, conflict_record, printable
from forkwise.display.progress_line import ProgressLine
from forkwise.errors import (
    BranchingError,
    BranchNotFoundError,
    BranchStaleError,
    CommitError,
    CommitNotFoundError,
    ConflictError,
    ConversationNotFoundError,
    ExecutableConfigError,
    ForkNotFoundError,
    ForkResolvedError,
    ForkwiseWarning,
    MountError,
    NamespaceError,
    RetestError,
    SnapshotNotFoundError,
)

__all__ = [
    "EXIT_CODES",
    "Commands",
    "Exit",
    "MissingExtraError",
    "StoppedBySignalError",
    "Verb",
    "exit_code",
    "failure_line",
    "failure_record",
    "find_missing_extra",
    "find_subdirectory",
    "has_extra",
    "hint",
    "json_option",
    "print_note",
    "require_extra",
    "stream_option",
    "suggest_extra",
    "workspace_option",
]


class Exit(IntEnum):
    """The exit codes of every command except ``branch shell`` and ``branch run``, which return their command's own."""

    OK = 0
    ERROR = 1
    USAGE = 2
    CONFLICT = 3
    STALE = 4
    NOT_FOUND = 5
    UNAVAILABLE = 6
    NO_WINNER = 7
    UNDECIDED = 8
    TIMEOUT = 124
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


EXIT_CODES = (
    "0 ok, 1 error, 2 usage, 3 conflict, 4 stale branch or decided fork, 5 not found, "
    "6 view or mount unavailable, 7 no attempt succeeded, 8 a judge failed and the fork waits for a pick, "
    "124 wait timed out, 130 interrupted, 143 terminated"
)


class StoppedBySignalError(click.Abort):
    """A signal ended the command after it had cleaned up; ``state`` says what it left behind, if that is known."""

    def __init__(self, number: signal.Signals, state: str) -> None:
        super().__init__()
        self.number = number
        self.state = state

    def __str__(self) -> str:
        return "; ".join(filter(None, (describe_stop_signal(self.number), self.state)))


_ZSTD = ("backports.zstd",) if sys.version_info < (3, 14) else ()
_EXTRAS = {
    "acp": ("acp", "pydantic_ai"),
    "agents": ("pydantic_ai",),
    "local": ("xllamacpp", "pydantic_ai", "openai"),
    "ray": ("ray", "blake3", "obstore", "pyfastcdc", "cryptography", *_ZSTD),
    "snapshots": ("blake3", "obstore", "pyfastcdc", "cryptography", *_ZSTD),
    "tui": ("textual",),
    "web": ("starlette", "uvicorn", "pygments"),
    "yaml": ("yaml",),
}
_PROJECTS = {
    "acp": "agent-client-protocol",
    "pydantic_ai": "pydantic-ai",
    "pygments": "Pygments",
    "starlette": "Starlette",
    "ray": "Ray",
    "textual": "Textual",
    "uvicorn": "Uvicorn",
    "xllamacpp": "xllamacpp",
    "yaml": "PyYAML",
}
_EXTRA_OF_MODULE = {"acp": "acp", "pydantic_ai": "agents", "textual": "tui", "xllamacpp": "local", "yaml": "yaml"}
_PROVIDER_INSTALL = re.compile(r'pip install "(pydantic-ai-slim\[[\w-]+\])"')


class MissingExtraError(click.UsageError):
    """A command needs a package that a plain installation lacks; ``remedy`` is the command that installs it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def has_extra(extra: str) -> bool:
    """Return whether every package of ``forkwise[extra]`` is installed."""
    return not _missing_modules(extra)


def require_extra(extra: str, feature: str) -> None:
    """Raise MissingExtraError if ``forkwise[extra]``, which ``feature`` needs, is not installed."""
    if missing := _missing_modules(extra):
        names = " and ".join(_PROJECTS.get(name, name) for name in missing)
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(f"{feature} needs {names}, which {verb} not installed", _install_command(extra))


def suggest_extra(extra: str, benefit: str) -> None:
    """Print a hint to install ``forkwise[extra]`` for a ``benefit`` that the command can do without."""
    print_note("hint", f"{_install_command(extra)} {benefit}")


def _missing_modules(extra: str) -> list[str]:
    return [name for name in _EXTRAS[extra] if not _is_installed(name)]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def _install_command(extra: str) -> str:
    return f"pip install 'forkwise[{extra}]'"


def find_missing_extra(error: ImportError, words: Sequence[str]) -> MissingExtraError | None:
    """Return the error to report for an import that failed for lack of an extra; None for any other failure."""
    feature = " ".join(("forkwise", *words[:1]))
    module = (error.name or "").partition(".")[0]
    if module in _EXTRA_OF_MODULE:
        remedy = _install_command(_EXTRA_OF_MODULE[module])
        return MissingExtraError(f"{feature} needs {_PROJECTS[module]}, which is not installed", remedy)
    if provider := _PROVIDER_INSTALL.search(str(error)):  # what pydantic-ai raises if a provider's SDK is missing
        return MissingExtraError(
            f"{feature} needs the package of the model's provider, which is not installed",
            f"pip install '{provider[1]}'",
        )
    return None


_CODES: tuple[tuple[type[BaseException], Exit], ...] = (
    (BranchStaleError, Exit.STALE),
    (ConflictError, Exit.CONFLICT),
    (ForkResolvedError, Exit.STALE),
    (RetestError, Exit.NO_WINNER),
    (BranchNotFoundError, Exit.NOT_FOUND),
    (CommitNotFoundError, Exit.NOT_FOUND),
    (ForkNotFoundError, Exit.NOT_FOUND),
    (ConversationNotFoundError, Exit.NOT_FOUND),
    (SnapshotNotFoundError, Exit.NOT_FOUND),
    (MountError, Exit.UNAVAILABLE),
    (NamespaceError, Exit.UNAVAILABLE),
    (click.Abort, Exit.INTERRUPTED),
    (click.UsageError, Exit.USAGE),
)

_HINTS: tuple[tuple[type[BaseException], str], ...] = (
    (BranchStaleError, "update it with forkwise branch rebase, or drop it with forkwise branch abort"),
    (BranchNotFoundError, "list the branches with forkwise branch ls"),
    (ForkNotFoundError, "list the forks with forkwise ls"),
)


def exit_code(error: BaseException) -> Exit:
    """Return the exit code for ``error``."""
    if isinstance(error, StoppedBySignalError):
        return Exit(128 + error.number)
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.ERROR)


def failure_line(error: BaseException) -> str:
    """Format ``error`` as one line, with its remedy if the message does not contain it."""
    message = _message(error)
    remedy = "" if isinstance(error, MissingExtraError) else getattr(error, "remedy", "")
    if remedy and remedy not in message:
        message = f"{message.rstrip('.')}; {remedy}"
    return printable(" ".join(message.split("\n")))


def hint(error: BaseException, words: Sequence[str]) -> str:
    """Return what the user can do next, or nothing; ``words`` are the command line."""
    if isinstance(error, MissingExtraError):
        return error.remedy
    verb = list(_skip_options(_own_words(words)))[:2]
    is_conflict = isinstance(error, ConflictError) and not isinstance(error, BranchStaleError)
    if is_conflict and {"commit", "pick", "resume"} & set(verb):
        return "choose a side with --on-conflict ours|theirs|merge"
    if isinstance(error, ConflictError) and is_conflict and verb[:1] == ["combine"] and error.branch is not None:
        return f"update the branch with forkwise branch rebase {error.branch}"
    if isinstance(error, click.UsageError):
        return f"{' '.join(['forkwise', *verb[:1]]) if error.ctx is None else error.ctx.command_path} --help"
    if verb[:1] == ["worktree"]:
        return ""  # its message names forkwise worktree list
    if isinstance(error, BranchNotFoundError) and verb[:1] in (["diff"], ["open"]):
        return "list the branches with forkwise branch ls, and the forks with forkwise ls"
    general = next((text for kind, text in _HINTS if isinstance(error, kind)), "")
    return general or _find_kept_winner(error, verb)


def _find_kept_winner(error: BaseException, verb: Sequence[str]) -> str:
    """Return how to commit the winner of an exploration whose commit failed; empty if ``error`` is something else."""
    if not isinstance(error, CommitError) or isinstance(error, CommitNotFoundError | RetestError):
        return ""
    if error.branch is None or verb[:1] in (["branch"], ["pick"], ["combine"], ["resume"], ["undo"]):
        return ""
    options = ""
    if isinstance(error, ConflictError):
        options = " --on-conflict ours|theirs|merge"
    elif isinstance(error, ExecutableConfigError):
        options = " --allow-executable-config"
    return f"the winner was kept: forkwise branch commit {error.branch}{options}"


def failure_record(error: BaseException) -> dict[str, Any]:
    """Return ``error`` and its attributes as a JSON value."""
    record: dict[str, Any] = {
        "type": "Interrupted" if isinstance(error, click.Abort) else type(error).__name__,
        "message": _message(error),
        "exit_code": int(exit_code(error)),
    }
    if isinstance(error, OSError):
        record |= {"errno": error.errno, "paths": [str(p) for p in (error.filename, error.filename2) if p is not None]}
    if isinstance(error, BranchingError):
        record |= {name: _to_json(value) for name, value in vars(error).items()}
    if isinstance(error, MissingExtraError):
        record |= {"remedy": error.remedy}
    return {"error": record}


def _message(error: BaseException) -> str:
    if isinstance(error, click.Abort):
        return str(error) or "interrupted"
    if isinstance(error, click.ClickException):
        return _click_message(error)
    if isinstance(error, OSError) and error.strerror:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        return f"{' -> '.join(names)}: {error.strerror}" if names else error.strerror
    return str(error) or type(error).__name__


def _click_message(error: click.ClickException) -> str:
    # click names the type of IntRange "integer range": 'abc' is not a valid integer range.
    text = error.format_message().replace(" range.", ".")
    if isinstance(error, click.BadParameter) and isinstance(error.param, click.Argument):
        text = _OPTIONAL.sub(r"'\1'", text, count=1)
    if isinstance(error, click.MissingParameter):
        text = " ".join(text.split())  # click puts each choice on a line of its own
    return text


_OPTIONAL = re.compile(r"'\[([^\]']+)\](?:\.\.\.)?'")
"""How click names an optional argument: in brackets, as in the usage line."""


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _to_json(item) for name, item in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    return conflict_record(value)


F = TypeVar("F", bound=Callable[..., object])


def workspace_option(function: F) -> F:
    """Add ``-C DIR``, the workspace to work on."""
    return click.option(
        "-C",
        "--workspace",
        "directory",
        metavar="DIR",
        type=_DIRECTORY,
        callback=_choose_workspace,
        show_default="found from the current directory",
        help="Workspace to work on: exactly this directory.",
    )(function)


_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
_SUBDIRECTORY = "forkwise.subdirectory"


def _choose_workspace(context: click.Context, _parameter: click.Parameter, given: Path | None) -> Path:
    """Return the workspace of the command line or of $FORKWISE_WORKSPACE, or else the one that contains the cwd."""
    given = given or context.find_root().params.get("directory")
    if given is not None:
        return given
    try:
        here = os.path.realpath(".")
    except FileNotFoundError:
        raise click.UsageError("the current directory was deleted: enter another one with cd") from None
    if variable := os.environ.get("FORKWISE_WORKSPACE"):
        if not os.path.isdir(variable):
            raise click.UsageError(f"FORKWISE_WORKSPACE is {variable!r}, which is not a directory: correct or unset it")
        found = os.path.realpath(variable)
    else:
        from forkwise.cli.workspace_search import find_workspace, is_in_state

        if is_in_state(here):
            raise click.UsageError(
                "a commit or an undo deleted or replaced the current directory: enter it again with cd"
            )
        found = find_workspace(here)
    if found == here:
        return Path(".")
    context.meta[FOUND_WORKSPACE] = found
    if here.startswith(f"{found.rstrip('/')}/"):
        context.meta[_SUBDIRECTORY] = os.path.relpath(here, found)
    return Path(found)


def find_subdirectory() -> str:
    """Return the path of the current directory inside a workspace found above it; empty if the workspace was named."""
    context = click.get_current_context(silent=True)
    return "" if context is None else str(context.meta.get(_SUBDIRECTORY, ""))


def json_option(function: F) -> F:
    """Add ``--json``: print one JSON document on stdout, also on failure."""
    return _json_option("Print one JSON document instead of text.")(function)


def stream_option(function: F) -> F:
    """Add ``--json`` to a command that runs for a while: print one JSON document per line, also on failure."""
    return _json_option("Print JSON lines instead of text: each event, then the result.")(function)


def _json_option(text: str) -> Callable[[F], F]:
    def output(_context: click.Context, _parameter: click.Parameter, value: bool) -> Output:
        return Output(as_json=value)

    return click.option("--json", "output", is_flag=True, callback=output, help=text)


class _HelpFormatter(click.HelpFormatter):
    """Help that also fits into a terminal of less than 50 columns, which is the least that click formats for."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        super().__init__(indent_increment, width, max_width)
        if width is None:
            self.width = max(min(self.width, get_terminal_size().columns - 2), _NARROWEST)

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names and what they mean in two columns, of which the first is narrow if the terminal is."""
        super().write_dl(rows, col_max if self.width > _NARROW else self.width // 3, col_spacing)


_NARROWEST = 30
_NARROW = 60


class _Context(click.Context):
    formatter_class = _HelpFormatter


class Verb(click.Command):
    """A command whose help ends with examples and the exit codes. If it ``streams``, ``--json`` prints JSON lines."""

    context_class = _Context

    def __init__(self, *args: Any, example: Sequence[str] = (), streams: bool = False, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.example = tuple(example)
        self.streams = streams

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. If a signal ends it, say which commits it had made."""
        started = time.time()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            directory = ctx.params.get("directory")
            state = "" if directory is None else _describe_commits(directory, started)
            if state or self.name not in _COMMITTING:
                raise StoppedBySignalError(find_stop_signal(), state) from None
            raise StoppedBySignalError(find_stop_signal(), "nothing was changed") from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples and the exit codes."""
        with formatter.section("Examples" if len(self.example) > 1 else "Example"):
            for line in self.example:
                formatter.write(f"{'':{formatter.current_indent}}$ {line}\n")
        _write_exit_codes(formatter)


#: Commands that commit to the workspace, apart from the explore commands, which report their commits themselves.
_COMMITTING = {"commit", "undo", "pick", "combine", "resume"}


def _describe_commits(directory: Path, started: float) -> str:
    """Say what was committed to a workspace since a command was started; return an empty text if nothing was."""
    from forkwise.files.workspace import Workspace

    try:
        made = [commit for commit in Workspace(directory).history() if commit.at.timestamp() >= started]
    except (BranchingError, OSError) as error:
        return f"it is not known whether it had changed the workspace: {error}"
    if not made:
        return ""
    undo = command_line(directory, "undo", str(made[0].id))
    return f"commit {made[0].id} was made before that, and stays: {undo} takes it back"


_LONGEST_SUMMARY = 200  # characters; a narrow terminal wraps a summary instead of cutting it off


class Commands(click.Group):
    """A group of commands, listed in sections. The root group turns each failure into one line and an exit code."""

    command_class = Verb
    context_class = _Context

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.sections: dict[str, tuple[str, ...]] = {}

    def add_section(self, title: str, commands: Iterable[click.Command]) -> None:
        """Add ``commands`` and list them under ``title`` in the help."""
        added = list(commands)
        for command in added:
            self.add_command(command)
        self.sections[title] = tuple(command.name or "" for command in added)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands in the order of the help."""
        listed = [name for names in self.sections.values() for name in names]
        return [*listed, *(name for name in self.commands if name not in listed)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, with the summaries of all of them in one column."""
        sections = self.sections or {"Commands": tuple(self.list_commands(ctx))}
        width = max(len(name) for name in self.commands)
        for title, names in sections.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), self.commands[name].get_short_help_str(_LONGEST_SUMMARY)) for name in names]
                )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        super().format_epilog(ctx, formatter)
        _write_exit_codes(formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help and exit with 0 if no command is given."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. If it is in another group, say so: ``forkwise commit`` is ``forkwise branch commit``."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            root = ctx.find_root()
            paths = list(_find_paths(root.command, args[0], root.command_path))
            if not paths:
                raise
            known = " or ".join(map(repr, paths))
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {known}?", ctx) from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run the command line and exit with its code."""
        words = list(sys.argv[1:] if args is None else args)
        forget_stop_signal()
        try:
            with _one_line_warnings(), ProgressLine(is_quiet=_is_quiet(words)):
                code = super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
                sys.stdout.flush()
        except BrokenPipeError:
            # The reader closed the pipe. /dev/null keeps the interpreter's own flush at exit from failing again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(Exit.ERROR)
        except (click.ClickException, click.Abort, BranchingError, OSError) as error:
            is_plain_abort = isinstance(error, click.Abort) and not isinstance(error, StoppedBySignalError)
            self._fail(StoppedBySignalError(find_stop_signal(), "") if is_plain_abort else error, words)
        except ImportError as error:
            missing = find_missing_extra(error, _skip_options(words))
            if missing is None:
                raise
            self._fail(missing, words)
        sys.exit(code if isinstance(code, int) else Exit.OK)

    def _fail(self, error: BaseException, words: Sequence[str]) -> NoReturn:
        is_output_good = _write_output(lambda: None)
        if is_output_good and _wants_json(words):
            is_output_good = _write_output(lambda: self._print_record(error, words))
            if is_output_good:
                sys.exit(exit_code(error))
        if not is_output_good and isinstance(error, OSError) and error.filename is None:
            sys.exit(Exit.ERROR)  # it has been reported
        print_note("error", failure_line(error))
        if isinstance(error, ConflictError):
            for conflict in error.conflicts:
                if conflict.path not in str(error):  # the message names only the first few
                    click.echo(printable(f"  {conflict}"), err=True)
        if advice := hint(error, words):
            print_note("hint", advice)
        sys.exit(exit_code(error))

    def _print_record(self, error: BaseException, words: Sequence[str]) -> None:
        output = Output(as_json=True)
        verb = self.commands.get(next(iter(_skip_options(words)), ""))
        streams = isinstance(verb, Verb) and verb.streams
        (output.stream if streams else output.document)(failure_record(error))


def _write_output(write: Callable[[], None]) -> bool:
    """Write to standard output. Return whether that was possible; if not, report why, unless it is a closed pipe."""
    try:
        write()
        sys.stdout.flush()
    except OSError as error:
        # /dev/null takes what is left in the buffer when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print_note("error", f"standard output cannot be written: {error.strerror}")
        return False
    return True


def _find_paths(command: click.Command, name: str, path: str) -> Iterator[str]:
    """Yield the full names of the commands in a group, and in its groups, that are called ``name``."""
    for key, inner in command.commands.items() if isinstance(command, click.Group) else ():
        if key == name:
            yield f"{path} {key}"
        yield from _find_paths(inner, name, f"{path} {key}")


def _skip_options(words: Sequence[str]) -> Sequence[str]:
    """Return the words from the verb onwards. Does not parse the options, because parsing may be what failed."""
    while words and words[0].startswith("-"):
        words = words[2 if words[0] in ("-C", "--workspace") else 1 :]
    return words


def _write_exit_codes(formatter: click.HelpFormatter) -> None:
    with formatter.section("Exit codes"):
        formatter.write_text(f"{EXIT_CODES}.")


def _wants_json(words: Sequence[str]) -> bool:
    """Return whether ``--json`` was given. Does not parse the options, because parsing may be what failed."""
    return "--json" in _own_words(words)


def _own_words(words: Sequence[str]) -> Sequence[str]:
    """Return the words before ``--``, which are not those of another command."""
    return words[: words.index("--")] if "--" in words else words


#: Commands that draw on the whole terminal, or give it to another program.
_OWN_TERMINAL = {"watch", "walk", "chat", "shell"}


def _is_quiet(words: Sequence[str]) -> bool:
    """Return whether a command line shows no progress: ``-q``, ``--json``, or a command that uses the terminal."""
    own = list(_own_words(words))
    return _wants_json(own) or bool({"-q", "--quiet"} & set(own)) or bool(_OWN_TERMINAL & set(own[:4]))


def print_note(kind: str, text: str) -> None:
    """Print an error, a warning or a hint on stderr."""
    click.echo(f"forkwise: {kind}: {text}", err=True)


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Print each ForkwiseWarning as one line, and every other warning as Python does."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", ForkwiseWarning)
        show_other = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, ForkwiseWarning):
                print_note("warning", printable(str(message)))
            else:
                show_other(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield
