"""Run ends: how a job ended, as a value, and whether what a function returned means success."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, TypeGuard

if TYPE_CHECKING:
    from forkwise.fork.fault import Fault
    from forkwise.testing.report import TestReport

__all__ = ["Ending", "RunEnd", "find_success", "is_pair", "is_real"]


Ending = Literal["returned", "raised", "exit", "signal", "timeout", "out of memory", "killed"]


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a job ended.

    A function ``returned`` its ``value`` or ``raised`` an ``error``, a command exited with ``exit_code``, or the job
    was stopped. ``success`` is `find_success` of the value, if the runner called it. ``limit`` names the limit that
    stopped the job. ``fault`` is a failure that is not the job's; ``has_started`` says whether it ran at all.
    ``reports`` are those of the job's tests, if the runner ran them; None for one that it could not run.
    """

    ending: Ending
    value: Any = None
    error: BaseException | None = None
    exit_code: int | None = None
    wall: float = 0.0
    cpu: float | None = None
    memory: int | None = None
    limit: str | None = None
    success: bool | None = None
    fault: Fault | None = None
    has_started: bool = True
    reports: tuple[TestReport | None, ...] = ()


def is_pair(value: object) -> bool:
    """Return whether a function returned ``(success, score)``: a tuple of two, or a list of a bool and a number."""
    if isinstance(value, tuple):
        return len(value) == 2
    return isinstance(value, list) and len(value) == 2 and type(value[0]) is bool and type(value[1]) in (int, float)


def is_real(value: object) -> TypeGuard[SupportsFloat]:
    """Return whether a value is a real number of any type, such as NumPy's or a Decimal."""
    if isinstance(value, int | float):
        return True
    from decimal import Decimal  # noqa: PLC0415 - few functions return such a number
    from numbers import Real  # noqa: PLC0415

    return isinstance(value, Real | Decimal)


def find_success(value: Any) -> bool:
    """Return ``bool(value)``, or ``bool(success)`` if the value is ``(success, score)``.

    Raises TypeError if ``bool()`` raises. It may run code of the value's class, so runners call it where the function
    ran, within the same timeout.
    """
    decisive = value[0] if is_pair(value) else value
    try:
        return bool(decisive)
    except BaseException as error:
        kind = type(error).__name__
        try:
            message = str(error)
        except Exception:  # noqa: BLE001 - __str__ of the value's own exception class
            message = "(its message cannot be read)"
        raise TypeError(f"bool() of its result raised {kind}: {message}") from error
