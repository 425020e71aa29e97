"""Candidate: what an attempt runs, and what its end means: whether that was success, how good it was, and why not."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

from forkwise.errors import ForkResolvedError, ProcessBranchError
from forkwise.fork.runner import Ended, Function
from forkwise.sandbox.process import signal_name
from forkwise.text.clean import truncate_middle

__all__ = [
    "Candidate",
    "Command",
    "Judgement",
    "Scored",
    "Task",
    "abandon_reason",
    "describe_error",
    "describe_value",
    "error_as_data",
    "judge",
    "read_score",
    "to_bool",
    "to_json_data",
    "to_score",
]


_REASON = 2000  # characters
_TEXT = 100_000
_MANY = 100
_DEEP = 8
_LARGE = 1 << 64


def describe_error(error: BaseException) -> str:
    """An exception in a line or a few: its type and its message.

    >>> said(KeyError("x"))
    "KeyError: 'x'"
    """
    return f"{type(error).__name__}: {_message(error) or 'no message'}"


def abandon_reason(error: BaseException | None) -> str:
    """Why a fork was left unresolved, by what was raised in it."""
    if error is None:
        return "it was left unresolved"
    return str(error) if isinstance(error, ForkResolvedError) else describe_error(error)


def _message(error: BaseException) -> str:
    try:
        return truncate_middle(str(error), _REASON)
    except Exception:  # noqa: BLE001 - of a class of the candidate's own
        return "(its text could not be had)"


def describe_value(value: object) -> str:
    """A value in a few words.

    >>> shown("yes")
    "'yes' (str)"
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - of a class of the candidate's own, or a number of too many digits
        text = "something"
    return "None" if value is None else f"{text[:60]} ({type(value).__name__})"


def to_bool(value: object) -> bool | None:
    """True or False, also in the type that libraries for numbers have for it; None where it is neither."""
    if isinstance(value, bool):
        return value
    return bool(value) if type(value).__name__ in ("bool", "bool_") else None


def to_score(value: object) -> float | None:
    """A number that can be compared; None where it is none.

    >>> as_score(1), as_score(True), as_score(math.nan)
    (1.0, None, None)
    """
    if isinstance(value, Real) and to_bool(value) is None:
        with suppress(OverflowError):
            score = float(value)
            return score if math.isfinite(score) else None
    return None


def error_as_data(error: BaseException) -> dict[str, str]:
    """An exception as the ledger holds it."""
    try:
        told = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - of a class of the candidate's own
        told = ""
    return {"type": type(error).__name__, "message": _message(error), "traceback": truncate_middle(told, _TEXT)}


def to_json_data(value: object, deep: int = 0) -> Any:
    """What of a value the ledger can hold; the rest as text."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) < _LARGE:
        return value
    if isinstance(value, str):
        return truncate_middle(value, _TEXT)
    if deep < _DEEP and isinstance(value, tuple | list):
        return [to_json_data(item, deep + 1) for item in value[:_MANY]]
    if deep < _DEEP and isinstance(value, dict):
        return {_key(key): to_json_data(item, deep + 1) for key, item in list(value.items())[:_MANY]}
    return describe_value(value)


def _key(key: object) -> str:
    return key[:_REASON] if isinstance(key, str) else describe_value(key)


_NOT = "it returned False"
_LONGEST = 2000  # characters of a reason

#: What a candidate says of itself: whether it succeeded, and if it likes, how well.
Scored = bool | tuple[bool, float]

#: A function of a branch's directory and of what a pattern adds to that.
Task = Callable[..., Any]

#: A command, as a list of words.
Command = Sequence[str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function of the branch's directory, or a command; ``label`` is how people see it. ``prior`` is its score where
    nobody gives it another."""

    label: str
    function: Function | None = None
    argv: tuple[str, ...] | None = None
    prior: float = 1.0

    @classmethod
    def of(cls, what: Task | Command | Candidate, *arguments: Any, label: str | None = None) -> Candidate:
        """A candidate from what a caller gave; a function is called with the arguments behind the directory.

        >>> Candidate.of(["make", "test"]).label
        'make test'
        >>> Candidate.of(["sh", "-c", "make && make test"]).label
        'make && make test'
        """
        if isinstance(what, Candidate):
            return what
        if callable(what):
            function: Function = _with(what, arguments) if arguments else what
            return cls(label or _name(what), function)
        if not _is_command(what):
            raise TypeError(f"a candidate is a function or a command as a list of words, not {describe_value(what)}")
        argv = tuple(what)
        return cls(label or _shown_as(argv), argv=argv)


def _is_command(what: object) -> bool:
    if not isinstance(what, Sequence) or isinstance(what, str | bytes) or not what:
        return False
    return all(isinstance(word, str) for word in what)


def _shown_as(argv: tuple[str, ...]) -> str:
    """A command as people see it: a line for the shell as that line, a script as the name that it is given."""
    match argv:
        case ("sh", "-c", line):
            return line
        case ("sh", "-c", _, name, *_):
            return name
    return " ".join(argv)


def _with(function: Task, arguments: tuple[Any, ...]) -> Function:
    bound = _Bound(function, arguments)
    return bound.awaited if inspect.iscoroutinefunction(function) else bound


class _Bound:
    """A function that gets more than the directory."""

    def __init__(self, function: Task, arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments

    def __call__(self, path: Path) -> Any:
        return self._function(path, *self._arguments)

    async def awaited(self, path: Path) -> Any:
        """The same where the function is ``async``, and has to be seen as such."""
        return await self._function(path, *self._arguments)


def _name(function: Task) -> str:
    named = function.func if isinstance(function, partial) else function
    name = getattr(named, "__name__", None) or type(named).__name__
    return "a function" if name == "<lambda>" else str(name)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the end of a job means. ``score`` is the candidate's own, where it gave one; ``said`` is what a function
    handed back beside its success."""

    success: bool
    score: float | None = None
    reason: str | None = None
    error: BaseException | None = None
    said: str | None = None


def judge(ended: Ended, timeout: float | None = None) -> Judgement:
    """What to make of how a job ended.

    >>> judge(Ended("exit", exit_code=3)).reason
    'exit code 3'
    >>> judge(Ended("returned", value=(True, 0.5))).score
    0.5
    """
    if ended.ending == "returned":
        return _of_value(ended.value)
    if ended.ending == "raised":
        assert ended.error is not None
        reason = describe_error(ended.error)
        if isinstance(ended.error, ProcessBranchError):  # which speaks for itself
            reason = reason.removeprefix(f"{type(ended.error).__name__}: ")
        return Judgement(False, reason=reason, error=ended.error)
    if ended.ending == "exit" and ended.exit_code == 0:
        return Judgement(True)
    reason = _why(ended, timeout)
    kind = TimeoutError if ended.ending == "timeout" else ProcessBranchError
    return Judgement(False, reason=reason, error=kind(reason))


def _why(ended: Ended, timeout: float | None) -> str:
    if ended.ending == "timeout":
        return "timed out" if timeout is None else f"timed out after {timeout:g} s"
    if ended.ending == "signal" and ended.exit_code is not None:
        return f"killed by {signal_name(-ended.exit_code)}"
    if ended.ending == "exit":
        return f"exit code {ended.exit_code}"
    if ended.limit is not None and ended.ending == "killed":
        return f"stopped by its limit {ended.limit}"
    return ended.ending


def _of_value(value: Any) -> Judgement:
    """True or False; or that with a score, or with a text that says why not."""
    success, more = to_bool(value), None
    if isinstance(value, tuple | list) and len(value) == 2:
        success, more = to_bool(value[0]), value[1]
        if isinstance(more, str) and success is not None:
            return Judgement(success, reason=None if success else truncate_middle(more, _LONGEST) or _NOT, said=more)
        if to_score(more) is None:
            success = None
    if success is None:
        reason = f"it returned {describe_value(value)}; a candidate returns True or False, or one of them and a score"
        return Judgement(False, reason=reason, error=TypeError(reason))
    return Judgement(success, to_score(more), None if success else _NOT)


def read_score(text: bytes | None) -> float | None:
    """The score that a command left; None where it left none. Raises ValueError where it is no score.

    >>> read_score(b"0.75\\n")
    0.75
    """
    word = (text or b"").decode(errors="replace").strip()
    if not word:
        return None
    try:
        score = float(word)
    except ValueError:
        raise ValueError(f"its score is no number: {word[:60]!r}") from None
    if not math.isfinite(score):
        raise ValueError(f"its score is no number that can be compared: {word[:60]!r}")
    return score
