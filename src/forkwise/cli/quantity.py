"""The types of option values that are a duration, a size or an amount to spend, with their units."""

from __future__ import annotations

import math
import re
from typing import Any

import click

__all__ = ["Duration", "Expense", "Processors", "Size"]

_VALUE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)", re.IGNORECASE)
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_TOKENS = {f"{prefix}token{end}": 1000.0**n for n, prefix in enumerate(("", "k", "m")) for end in ("", "s")}
_MOST = 1e12
_LONGEST_S = 10 * 365 * 86400.0


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A duration in seconds: ``90``, ``90s``, ``10m``, ``1.5h``. With ``needs_unit`` a plain number is refused.

    >>> Duration().convert("1.5h", None, None)
    5400.0
    """

    name = "duration"

    def __init__(self, *, needs_unit: bool = False, allows_zero: bool = False) -> None:
        self._needs_unit = needs_unit
        self._allows_zero = allows_zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert the text; fail with an example if it is not a duration."""
        if isinstance(value, int | float):
            return float(value)
        found = _VALUE.fullmatch(str(value).strip())
        unit = None if found is None else found[2].lower()
        if found is None or unit is None or (unit and unit not in _SECONDS):
            self.fail(f"{value!r} is not a duration such as 90s, 10m or 1.5h", param, ctx)
        seconds = float(found[1]) * _SECONDS[unit or "s"]
        if not (seconds > 0 or (self._allows_zero and seconds == 0)):
            self.fail(f"{value!r} is not above zero", param, ctx)
        if not unit and self._needs_unit:
            self.fail(f"{value!r} has no unit: {value}s are seconds, {value}m minutes, {value}h hours", param, ctx)
        if seconds > _LONGEST_S:
            self.fail(f"{value!r} is longer than ten years", param, ctx)
        return seconds


class Size(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A size in bytes: ``512M``, ``2G``, ``1.5GiB``; units are powers of 1024, ``MB`` and ``GB`` of 1000.

    >>> Size().convert("2G", None, None), Size().convert("1MB", None, None)
    (2147483648, 1000000)
    """

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert the text; fail with an example if it is not a size."""
        if isinstance(value, int):
            return value
        found = _VALUE.fullmatch(str(value).strip())
        unit = "?" if found is None else found[2].lower()
        base = 1000 if unit.endswith("b") and not unit.endswith("ib") and len(unit) == 2 else 1024
        power = _BYTES.get(unit.removesuffix("ib") if unit.endswith("ib") else unit if unit == "b" else unit[:1])
        is_known = unit in ("", "b") or unit[1:] in ("", "b", "ib")
        if found is None or power is None or not is_known:
            self.fail(f"{value!r} is not a size such as 512M or 2G", param, ctx)
        size = float(found[1]) * base**power
        if not 1 <= size < 1 << 60 or not math.isfinite(size):
            self.fail(f"{value!r} is not a possible size; give one such as 512M or 2G", param, ctx)
        return int(size)


class Expense(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """An amount to spend, with its kind: ``30m`` of running time, ``2usd`` or ``$2``, ``500ktokens``.

    >>> Expense().convert("2usd", None, None), Expense().convert("500ktokens", None, None)
    (('usd', 2.0), ('tokens', 500000.0))
    """

    name = "budget"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Convert the text; fail with examples if it is not an amount."""
        if isinstance(value, tuple):
            return value
        text = str(value).strip()
        found = _VALUE.fullmatch(text.removeprefix("$"))
        unit = "" if found is None else found[2].lower()
        if found is not None and (unit == "usd" or (text.startswith("$") and not unit)):
            return "usd", self._check(float(found[1]), value, param, ctx)
        if found is not None and unit in _TOKENS and not text.startswith("$"):
            return "tokens", self._check(float(found[1]) * _TOKENS[unit], value, param, ctx)
        if found is None or unit not in ("", *_SECONDS):
            self.fail(f"{value!r} is not an amount such as 30m, 2usd or 500ktokens", param, ctx)
        return "seconds", Duration(needs_unit=True).convert(text, param, ctx)

    def _check(self, amount: float, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not 0 < amount <= _MOST:
            self.fail(
                f"{value!r} is not a possible amount: give one above zero, such as 2usd or 500ktokens", param, ctx
            )
        return amount


class Processors(click.FloatRange):
    """A number of processors, such as 1.5."""

    def __init__(self) -> None:
        super().__init__(min=0.01)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert the text; fail if it is not a finite number."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number of processors such as 1.5", param, ctx)
        return number
