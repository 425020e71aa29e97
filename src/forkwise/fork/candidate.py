"""Candidate: the function or command that an attempt runs, and how its end is judged.

``judge`` turns a ``RunEnd`` into success or failure, a score and a reason. The conversions to text and JSON below guard
against values and exceptions of the candidate's own classes, whose ``repr`` or ``str`` may raise.
"""

from __future__ import annotations

import inspect
import math
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.errors import ForkResolvedError, ProcessBranchError
from forkwise.fork.fault import Fault, find_fault
from forkwise.fork.run_end import find_success, is_pair, is_real
from forkwise.sandbox.process import signal_name
from forkwise.text.clean import truncate_middle

if TYPE_CHECKING:
    from forkwise.fork.run_end import RunEnd
    from forkwise.fork.runner import Function
    from forkwise.telemetry import ToolSpans

__all__ = [
    "Candidate",
    "Command",
    "Judgement",
    "OutputReader",
    "Subject",
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


_MAX_MESSAGE = 2000  # characters
_MAX_TEXT = 100_000
_MAX_ITEMS = 100
_MAX_DEPTH = 8
_MAX_INT = 1 << 64


def describe_error(error: BaseException) -> str:
    """Format an exception as its type and message.

    >>> describe_error(KeyError("x"))
    "KeyError: 'x'"
    """
    return f"{type(error).__name__}: {_message(error) or 'no message'}"


def abandon_reason(error: BaseException | None) -> str:
    """Return the reason why a fork was left unresolved; ``error`` is the exception that left its block, if any."""
    if error is None:
        return "it was left unresolved"
    return str(error) if isinstance(error, ForkResolvedError) else describe_error(error)


def _message(error: BaseException) -> str:
    try:
        return truncate_middle(str(error), _MAX_MESSAGE)
    except Exception:  # noqa: BLE001 - __str__ of the candidate's own class
        return "(its message cannot be read)"


def describe_value(value: object) -> str:
    """Format a value for a message, shortened.

    >>> describe_value("yes")
    "'yes' (str)"
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - __repr__ of the candidate's own class, or an int of too many digits
        text = "something"
    return "None" if value is None else f"{text[:60]} ({type(value).__name__})"


def to_bool(value: object) -> bool | None:
    """Convert a bool, including NumPy's, to bool; None for any other value."""
    if isinstance(value, bool):
        return value
    return bool(value) if type(value).__name__ in ("bool", "bool_") else None


def to_score(value: object) -> float | None:
    """Convert a finite real number to float; None for any other value.

    >>> to_score(1), to_score(True), to_score(math.nan)
    (1.0, None, None)
    """
    if is_real(value) and to_bool(value) is None:
        with suppress(OverflowError, ValueError):  # too large for a float; a signalling NaN
            score = float(value)
            return score if math.isfinite(score) else None
    return None


def error_as_data(error: BaseException) -> dict[str, str]:
    """Convert an exception to the ledger's JSON."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - __str__ of the candidate's own class
        text = ""
    return {"type": type(error).__name__, "message": _message(error), "traceback": truncate_middle(text, _MAX_TEXT)}


def to_json_data(value: object, depth: int = 0) -> Any:
    """Convert a value to JSON types for the ledger, shortened; other types become text."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) < _MAX_INT:
        return value
    if isinstance(value, str):
        return truncate_middle(value, _MAX_TEXT)
    if depth < _MAX_DEPTH and isinstance(value, tuple | list):
        return [to_json_data(item, depth + 1) for item in value[:_MAX_ITEMS]]
    if depth < _MAX_DEPTH and isinstance(value, dict):
        return {_key(key): to_json_data(item, depth + 1) for key, item in list(value.items())[:_MAX_ITEMS]}
    return describe_value(value)


def _key(key: object) -> str:
    return key[:_MAX_MESSAGE] if isinstance(key, str) else describe_value(key)


_RETURNED_FALSE = "it returned False"
_MAX_REASON = 2000  # characters of a reason

#: A function of a branch's directory and the arguments that a pattern adds.
Task = Callable[..., Any]

#: A command, as a list of words.
Command = Sequence[str]


class OutputReader(ABC):
    """Reads the output of a command while it runs, if the output says what the command does and costs.

    ``feed`` is called in a different thread from everything else.
    """

    @abstractmethod
    def trace_tools(self, spans: ToolSpans) -> None:
        """Record the calls of tools that the output reports from now on."""

    @abstractmethod
    def feed(self, stream: str, piece: bytes) -> None:
        """Read a piece of ``stdout`` or ``stderr``."""

    @abstractmethod
    def finish(self) -> None:
        """Read the end: the command is over."""

    @property
    @abstractmethod
    def activity(self) -> str | None:
        """What the command is doing now, as one line; None if its last line of output says so."""

    @property
    @abstractmethod
    def has_answer(self) -> bool:
        """Whether the service behind the command has answered, so that another command can expect an answer too."""

    @abstractmethod
    def take_steps(self) -> list[dict[str, Any]]:
        """Return what it did since the last call, as JSON values."""

    @abstractmethod
    def find_cost(self, *, by_list: bool = True) -> dict[str, Any] | None:
        """Return what it has cost so far, as the ledger records it; None if nothing is known.

        With ``by_list``, tokens are priced by a list if the command does not say what they cost, which takes longer.
        """

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Fields for the ledger's record of its end; those that are None are left out."""

    @abstractmethod
    def restart(self, note: str) -> None:
        """Start over, with a note, because the command is run again; what it did and cost before still counts."""

    @abstractmethod
    def explain(self, judgement: Judgement) -> Judgement:
        """Return the judgement of its end with what the output says about it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function of the branch's directory, or a command.

    ``label`` is its name for people. ``prior`` is its score if neither the candidate nor an evaluator returns one. With
    ``has_feedback`` its function may return ``(success, feedback)``, a text instead of a score.

    A command gets ``environment`` and its ``prompt``, as a file, in addition to what its runner gives it. ``agent`` is
    the coding agent that it runs, ``variation`` what it does differently from its siblings, and ``variant`` its number
    in the recipe. A candidate with ``variants`` is a choice: attempt 0 runs the first of them, and so on in turn.
    ``read_output`` builds the reader of a command's output; it is called with the workspace's directory. ``provider``
    names the service that the agent uses, ``at_once`` is how many attempts may use it at the same time.
    """

    label: str
    function: Function | None = None
    argv: tuple[str, ...] | None = None
    prior: float = 1.0
    has_feedback: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    prompt: str | None = None
    agent: str | None = None
    variation: Mapping[str, str] = field(default_factory=dict)
    variant: int | None = None
    variants: tuple[Candidate, ...] = ()
    read_output: Callable[[Path], OutputReader] | None = None
    provider: str | None = None
    at_once: int | None = None

    def select(self, index: int) -> Candidate:
        """Return the candidate that attempt ``index`` runs: this one, or the variant whose turn it is."""
        return self.variants[index % len(self.variants)] if self.variants else self

    @classmethod
    def of(cls, task: Subject, *arguments: Any, label: str | None = None) -> Candidate:
        """Build a candidate; a function is called with the directory, then ``arguments``.

        >>> Candidate.of(["make", "test"]).label
        'make test'
        >>> Candidate.of(["sh", "-c", "make && make test"]).label
        'make && make test'
        """
        if isinstance(task, Candidate):
            return task
        if callable(task):
            function: Function = _bind(task, arguments) if arguments else task
            return cls(label or _function_label(task), function)
        if not _is_command(task):
            raise TypeError(f"a candidate is a function or a command as a list of words, not {describe_value(task)}")
        argv = tuple(task)
        return cls(label or _command_label(argv), argv=argv)


def _is_command(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        return False
    return all(isinstance(word, str) for word in value)


def _command_label(argv: tuple[str, ...]) -> str:
    """Return a command's label: the line of ``sh -c LINE``, the name of ``sh -c SCRIPT NAME``, else all words."""
    match argv:
        case ("sh", "-c", line):
            return line
        case ("sh", "-c", _, name, *_):
            return name
    return " ".join(argv)


#: What a pattern can run.
Subject = Task | Command | Candidate


def _bind(function: Task, arguments: tuple[Any, ...]) -> Function:
    bound = _Bound(function, arguments)
    return bound.call_async if inspect.iscoroutinefunction(function) else bound


class _Bound:
    """A function with further arguments after the directory."""

    def __init__(self, function: Task, arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments

    def __call__(self, path: Path) -> Any:
        return self._function(path, *self._arguments)

    async def call_async(self, path: Path) -> Any:
        """Await the function. A coroutine function, so that the runner recognises it as ``async``."""
        return await self._function(path, *self._arguments)


def _function_label(function: Task) -> str:
    named = function.func if isinstance(function, partial) else function
    name = getattr(named, "__name__", None) or type(named).__name__
    return "a function" if name == "<lambda>" else str(name)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The meaning of a job's end.

    ``score`` is the candidate's own, if it gave one. ``message`` is the text that a function returned with its success.
    With a ``fault`` it says nothing about the candidate, and ``has_started`` says whether the candidate ran at all.
    With ``blocks_others`` the same fault will hit every other attempt of this candidate, until the user does something
    about it. With ``retry_after`` the provider refused a request for now: the same candidate may succeed after so many
    seconds, or after a while if that is 0.
    """

    success: bool
    score: float | None = None
    reason: str | None = None
    error: BaseException | None = None
    message: str | None = None
    fault: Fault | None = None
    has_started: bool = True
    blocks_others: bool = False
    retry_after: float | None = None


def judge(end: RunEnd, timeout: float | None = None, *, has_feedback: bool = False) -> Judgement:
    """Judge the end of a job; ``timeout`` is its time limit, quoted in the reason.

    A function that returned succeeded if ``bool()`` of its value is true; a tuple is ``(success, score)``, or with
    ``has_feedback`` also ``(success, feedback)``.

    >>> judge(RunEnd("exit", exit_code=3)).reason
    'exit code 3'
    >>> judge(RunEnd("returned", value=(True, 0.5))).score
    0.5
    """
    if end.ending == "returned":
        return _judge_value(end, has_feedback)
    if end.ending == "raised":
        assert end.error is not None
        reason = describe_error(end.error)
        if isinstance(end.error, ProcessBranchError):  # its message needs no type
            reason = reason.removeprefix(f"{type(end.error).__name__}: ")
        fault = end.fault or find_fault(end.error)
        return Judgement(False, reason=reason, error=end.error, fault=fault, has_started=end.has_started)
    if end.ending == "exit" and end.exit_code == 0:
        return Judgement(True)
    reason = _describe_end(end, timeout)
    kind = TimeoutError if end.ending == "timeout" else ProcessBranchError
    return Judgement(False, reason=reason, error=kind(reason), fault=end.fault)


def _describe_end(end: RunEnd, timeout: float | None) -> str:
    if end.ending == "timeout":
        return "timed out" if timeout is None else f"timed out after {timeout:g} s"
    if end.ending == "signal" and end.exit_code is not None:
        return f"killed by {signal_name(-end.exit_code)}"
    if end.ending == "exit":
        return f"exit code {end.exit_code}"
    if end.limit is not None and end.ending == "killed":
        return f"stopped by its limit {end.limit}"
    return end.ending


def _judge_value(end: RunEnd, has_feedback: bool) -> Judgement:
    value = end.value
    if isinstance(value, tuple) and len(value) != 2:
        reason = f"it returned {describe_value(value)}; a tuple is (success, score)"
        return Judgement(False, reason=reason, error=TypeError(reason))
    try:
        success = find_success(value) if end.success is None else end.success
    except TypeError as error:
        return Judgement(False, reason=describe_error(error), error=error)
    more = value[1] if is_pair(value) else None
    message = more if isinstance(more, str) else None
    if not success:
        is_plain = is_pair(value) or to_bool(value) is False
        reason = truncate_middle(message or "", _MAX_REASON)
        reason = reason or (_RETURNED_FALSE if is_plain else f"it returned {describe_value(value)}")
        return Judgement(False, to_score(more), reason, message=message)
    if is_pair(value) and to_score(more) is None and not (has_feedback and message is not None):
        reason = f"its score is not a finite number: {describe_value(more)}"
        return Judgement(False, reason=reason, error=TypeError(reason))
    return Judgement(True, to_score(more), message=message)


def read_score(text: bytes | None) -> float | None:
    """Parse the score that a command wrote; None if the text is empty. Raises ValueError if it is not a finite number.

    >>> read_score(b"0.75\\n")
    0.75
    """
    word = (text or b"").decode(errors="replace").strip()
    if not word:
        return None
    try:
        score = float(word)
    except ValueError:
        raise ValueError(f"its score is not a number: {word[:60]!r}") from None
    if not math.isfinite(score):
        raise ValueError(f"its score is not a finite number: {word[:60]!r}")
    return score
