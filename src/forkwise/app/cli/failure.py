"""What went wrong, as the command line tells it: one exit code, one line for people, one document for programs."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import click

from forkwise.app.cli.output import conflict_record, printable
from forkwise.errors import (
    BranchingError,
    BranchNotFoundError,
    BranchStaleError,
    ConflictError,
    ForkNotFoundError,
    ForkResolvedError,
    MountError,
    NamespaceError,
)

__all__ = ["EXIT_CODES", "Exit", "Stopped", "exit_code", "failure_line", "failure_record", "hint"]


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
