"""Stop rules: they end a search that has found enough or spent enough, to save the cost of further attempts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkwise.text.phrases import format_usd

if TYPE_CHECKING:
    from forkwise.fork.attempt import Attempt

__all__ = ["AllGreen", "CostLimit", "NoGain", "StopRule", "StopWhen", "build_stop_rules", "parse_stop_rule"]


class StopRule(ABC):
    """Decides after each attempt whether a search stops. It has no state, so it can be used by several searches."""

    @abstractmethod
    def find_reason(self, ended: Sequence[Attempt], running: Sequence[Attempt]) -> str | None:
        """Return why the search stops now; None if it continues.

        ``ended`` are the attempts that were judged, in the order in which they ended, without faulted and cancelled
        ones; ``running`` are those that have not ended yet.
        """

    def find_doubt(self, ended: Sequence[Attempt]) -> str | None:
        """Return why the rule could not be applied to a search that is over; None if it could."""
        return None


@dataclass(frozen=True, slots=True)
class AllGreen(StopRule):
    """Stops at the first success whose tests all passed."""

    def find_reason(self, ended: Sequence[Attempt], running: Sequence[Attempt]) -> str | None:
        last = ended[-1] if ended else None
        if last is None or not last.success or last.tests is None or not last.tests.is_pass:
            return None
        return f"all tests of {last.id} passed"

    def find_doubt(self, ended: Sequence[Attempt]) -> str | None:
        if not any(attempt.success for attempt in ended) or any(attempt.tests is not None for attempt in ended):
            return None
        return "all-green did not apply: no tests were run"


@dataclass(frozen=True, slots=True)
class NoGain(StopRule):
    """Stops if the last ``attempts`` attempts were not better than the best one before them.

    A success is better than a failure; of two successes, or of two failures, the one with the higher scores is better.
    """

    attempts: int

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"no-gain needs at least 1 attempt, not {self.attempts}")

    def find_reason(self, ended: Sequence[Attempt], running: Sequence[Attempt]) -> str | None:
        best: tuple[bool, tuple[float, ...]] = (False, ())
        since = 0
        for attempt in ended:
            merit = (attempt.success, attempt.scores)
            best, since = (merit, 0) if merit > best else (best, since + 1)
        return f"no gain in {self.attempts} attempts" if since >= self.attempts else None


@dataclass(frozen=True, slots=True)
class CostLimit(StopRule):
    """Stops if the attempts have cost ``usd`` together, as far as the ledger knows."""

    usd: float

    def __post_init__(self) -> None:
        if not (self.usd > 0 and math.isfinite(self.usd)):
            raise ValueError(f"cost needs an amount above 0, not {self.usd}")

    def find_reason(self, ended: Sequence[Attempt], running: Sequence[Attempt]) -> str | None:
        spent = sum(_find_cost(attempt) or 0.0 for attempt in (*ended, *running))
        return f"the attempts cost {format_usd(spent)}" if spent >= self.usd else None

    def find_doubt(self, ended: Sequence[Attempt]) -> str | None:
        unknown = sum(_find_cost(attempt) is None for attempt in ended)
        if not unknown:
            return None
        return f"cost:{self.usd:g} may not have applied: the cost of {unknown} of {len(ended)} attempts is not known"


def _find_cost(attempt: Attempt) -> float | None:
    usd = (attempt.fork.ledger.attempt(attempt.id).cost or {}).get("usd")
    is_number = isinstance(usd, int | float) and not isinstance(usd, bool) and math.isfinite(usd)
    return float(usd) if is_number and usd is not None and usd >= 0 else None


#: The ``stop_when`` argument of patterns: a rule, its text such as ``no-gain:3``, or several.
StopWhen = StopRule | str | Sequence[StopRule | str]


def parse_stop_rule(text: str) -> StopRule:
    """Parse ``all-green``, ``no-gain:ATTEMPTS`` or ``cost:USD``. Raises ValueError for anything else.

    >>> parse_stop_rule("no-gain:3"), parse_stop_rule("cost:1.50"), parse_stop_rule("all-green")
    (NoGain(attempts=3), CostLimit(usd=1.5), AllGreen())
    """
    name, _, value = text.partition(":")
    try:
        match name:
            case "all-green" if not value:
                return AllGreen()
            case "no-gain":
                return NoGain(int(value))
            case "cost":
                return CostLimit(float(value.removeprefix("$")))
    except ValueError as error:
        if not str(error).startswith(("could not convert", "invalid literal")):
            raise
    raise ValueError(f"{text!r} is not a stop rule: all-green, no-gain:ATTEMPTS or cost:USD")


def build_stop_rules(stop_when: StopWhen | None) -> tuple[StopRule, ...]:
    """Build the rules of the ``stop_when`` argument of a pattern."""
    given: Iterable[StopRule | str] = (
        () if stop_when is None else [stop_when] if isinstance(stop_when, StopRule | str) else stop_when
    )
    return tuple(rule if isinstance(rule, StopRule) else parse_stop_rule(rule) for rule in given)
