"""What strangers' values and exceptions are, as text and as data, whatever they do about it.

A candidate's own classes may raise where they are shown, hold themselves, or be of any size. What goes into a reason or
into the ledger passes through here first.
"""

from __future__ import annotations

import math
import traceback
from contextlib import suppress
from numbers import Real
from typing import Any

from forkwise.errors import ForkResolvedError
from forkwise.fork.testing.plain import clipped

__all__ = ["as_data", "as_score", "as_truth", "error_as_data", "said", "shown", "why_left"]

_REASON = 2000  # characters
_TEXT = 100_000
_MANY = 100
_DEEP = 8
_LARGE = 1 << 64


def said(error: BaseException) -> str:
    """An exception in a line or a few: its type and its message.

    >>> said(KeyError("x"))
    "KeyError: 'x'"
    """
    return f"{type(error).__name__}: {_message(error) or 'no message'}"


def why_left(error: BaseException | None) -> str:
    """Why a fork was left unresolved, by what was raised in it."""
    if error is None:
        return "it was left unresolved"
    return str(error) if isinstance(error, ForkResolvedError) else said(error)


def _message(error: BaseException) -> str:
    try:
        return clipped(str(error), _REASON)
    except Exception:  # noqa: BLE001 - of a class of the candidate's own
        return "(its text could not be had)"


def shown(value: object) -> str:
    """A value in a few words.

    >>> shown("yes")
    "'yes' (str)"
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - of a class of the candidate's own, or a number of too many digits
        text = "something"
    return "None" if value is None else f"{text[:60]} ({type(value).__name__})"


def as_truth(value: object) -> bool | None:
    """True or False, also in the type that libraries for numbers have for it; None where it is neither."""
    if isinstance(value, bool):
        return value
    return bool(value) if type(value).__name__ in ("bool", "bool_") else None


def as_score(value: object) -> float | None:
    """A number that can be compared; None where it is none.

    >>> as_score(1), as_score(True), as_score(math.nan)
    (1.0, None, None)
    """
    if isinstance(value, Real) and as_truth(value) is None:
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
    return {"type": type(error).__name__, "message": _message(error), "traceback": clipped(told, _TEXT)}


def as_data(value: object, deep: int = 0) -> Any:
    """What of a value the ledger can hold; the rest as text."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) < _LARGE:
        return value
    if isinstance(value, str):
        return clipped(value, _TEXT)
    if deep < _DEEP and isinstance(value, tuple | list):
        return [as_data(item, deep + 1) for item in value[:_MANY]]
    if deep < _DEEP and isinstance(value, dict):
        return {_key(key): as_data(item, deep + 1) for key, item in list(value.items())[:_MANY]}
    return shown(value)


def _key(key: object) -> str:
    return key[:_REASON] if isinstance(key, str) else shown(key)
